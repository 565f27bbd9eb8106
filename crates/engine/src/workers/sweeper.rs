//! Lapsed leases, by crash policy.
//!
//! **Invariant:** a lease is swept only once it has ended by every clock, and what becomes of it is `decide`'s alone.

use std::sync::Arc;

use futures_util::future::join_all;
use oncegate_core::decide::{Event, Next};
use oncegate_store::signals::Signal;
use oncegate_store::{Due, Store, StoreError};

use super::{Pass, WorkerOptions, in_batches};
use crate::engine::Engine;

impl<S: Store> Engine<S> {
    pub(super) async fn sweep(&self, options: &WorkerOptions) -> Result<Pass, Arc<StoreError>> {
        in_batches(|| self.sweep_batch(options.batch)).await
    }

    async fn sweep_batch(&self, batch: usize) -> Result<Pass, Arc<StoreError>> {
        let now = self.now();
        let scan = self.0.store.due(Due::Lapsed, now.at.minus(now.error), batch).await?;
        let (seen, more) = (scan.records.len(), scan.is_cut);
        // Together, so that they share a commit.
        let swept = scan.records.into_iter().map(|row| async move {
            let id = row.id;
            let stepped = match self.step(&Event::Sweep, Some(Arc::new(row))).await {
                Ok(stepped) => stepped,
                // The writer has logged it; the others are swept.
                Err(error) if error.is_rejection() => return Ok(0),
                Err(error) => return Err(error),
            };
            let is_changed = stepped.step.next != Next::Keep;
            if is_changed {
                tracing::info!(record = %id, "a lease had lapsed");
                self.settled_by_worker(id);
            }
            Ok::<_, Arc<StoreError>>(usize::from(is_changed))
        });
        let mut changed = 0;
        for swept in join_all(swept).await {
            changed += swept?;
        }
        // What has become unknown is to be asked about.
        if changed > 0 {
            self.0.doubts.notify_one();
        }
        Ok(Pass { seen, changed, more })
    }

    /// Whoever waits for the record, here or on another node, looks again.
    pub(super) fn settled_by_worker(&self, id: oncegate_core::identity::RecordId) {
        self.0.waiters.wake(id);
        self.0.herald.tell(Signal::Settled(id));
    }
}
