//! Lapsed leases, by crash policy.
//!
//! **Invariant:** a lease is swept only once it has ended by every clock, and what becomes of it is `decide`'s alone.

use std::sync::Arc;

use futures_util::future::join_all;
use oncegate_core::decide::{Event, Next};
use oncegate_store::signals::Signal;
use oncegate_store::{Due, Store, StoreError};

use super::{Looked, Pass, SCANS_MAX, WorkerOptions};
use crate::engine::Engine;

impl<S: Store> Engine<S> {
    pub(super) async fn sweep(&self, options: &WorkerOptions) -> Result<Pass, Arc<StoreError>> {
        let (mut all, mut looked) = (Pass::default(), Looked::default());
        for _ in 0..SCANS_MAX {
            let pass = self.sweep_batch(&mut looked, options.batch).await?;
            all.seen += pass.seen;
            all.changed += pass.changed;
            all.more = pass.more && all.changed > 0;
            if !pass.more {
                break;
            }
        }
        Ok(all)
    }

    /// One batch, behind the rows that this pass has met already and that the database rejects.
    async fn sweep_batch(&self, looked: &mut Looked, batch: usize) -> Result<Pass, Arc<StoreError>> {
        let now = self.now();
        let ahead = looked.next(&*self.0.store, Due::Lapsed, now.at.minus(now.error), batch).await?;
        let seen = ahead.rows.len();
        // Together, so that they share a commit.
        let swept = ahead.rows.into_iter().map(|row| async {
            let row = Arc::new(row);
            (Arc::clone(&row), self.step(&Event::Sweep, Some(row)).await)
        });
        let (mut changed, mut rejected) = (0, 0);
        for (row, stepped) in join_all(swept).await {
            match stepped {
                Ok(stepped) if stepped.step.next != Next::Keep => {
                    tracing::info!(record = %row.id, "a lease had lapsed");
                    self.settled_by_worker(row.id);
                    changed += 1;
                }
                Ok(_) => {}
                // The writer has logged it; the others are swept.
                Err(error) if error.is_rejection() => {
                    looked.at(Due::Lapsed, &row);
                    rejected += 1;
                }
                Err(error) => return Err(error),
            }
        }
        // What has become unknown is to be asked about.
        if changed > 0 {
            self.0.doubts.notify_one();
        }
        // What nothing came of would be found again and again.
        Ok(Pass { seen, changed, more: !ahead.is_end && changed + rejected > 0 })
    }

    /// Whoever waits for the record, here or on another node, looks again.
    pub(super) fn settled_by_worker(&self, id: oncegate_core::identity::RecordId) {
        self.0.waiters.wake(id);
        self.0.herald.tell(Signal::Settled(id));
    }
}
