//! Rows past retention: removed, or turned into tombstones; accepted work that nobody ran in its time: answered with 408.
//!
//! **Invariant:** it only frees space. Whether a key has expired is decided when a request arrives; and what is in progress or
//! unknown is never due here.

use std::sync::Arc;
use std::time::Instant;

use futures_util::future::join_all;
use metrics::gauge;
use oncegate_core::decide::{Event, Next};
use oncegate_store::{Due, Kind, Store, StoreError};

use super::{Pass, WorkerOptions, in_batches};
use crate::engine::Engine;
use crate::meters::names;

/// Entries of the audit trail that are dropped in one pass.
const ENTRIES: usize = 1_000;

impl<S: Store> Engine<S> {
    pub(super) async fn reap(&self, options: &WorkerOptions) -> Result<Pass, Arc<StoreError>> {
        let reaped = in_batches(|| self.reap_batch(options)).await;
        let started = Instant::now();
        let before = self.now().at.minus(options.audit_retention);
        let dropped = self.0.store.drop_entries(before, ENTRIES).await?;
        let has_more = dropped >= ENTRIES;
        if has_more {
            tokio::time::sleep(started.elapsed()).await;
        }
        let reaped = reaped?;
        Ok(Pass { more: reaped.more || has_more, ..reaped })
    }

    async fn reap_batch(&self, options: &WorkerOptions) -> Result<Pass, Arc<StoreError>> {
        let started = Instant::now();
        let now = self.now();
        let due = now.at.minus(now.error).minus(options.reap_grace);
        let scan = self.0.store.due(Due::Expired, due, options.batch).await?;
        let (seen, more) = (scan.records.len(), scan.is_cut);
        let oldest = scan.records.iter().filter_map(|row| row.expires_at).min();
        gauge!(names::REAPER_LAG).set(oldest.map_or(0.0, |end| due.since(end).as_secs_f64()));
        let event = Event::Reap { grace: options.reap_grace };
        let reaped = scan.records.into_iter().map(|row| {
            let event = &event;
            async move {
                let id = row.id;
                match self.step(event, Some(Arc::new(row))).await {
                    Ok(stepped) => {
                        self.0.let_go(id);
                        Ok(usize::from(stepped.step.next != Next::Keep))
                    }
                    // The store's own clock is a little behind: the next pass will find it.
                    Err(error) if error.kind() == Kind::Contended => Ok(0),
                    Err(error) => Err(error),
                }
            }
        });
        let mut changed = 0;
        for reaped in join_all(reaped).await {
            changed += reaped?;
        }
        // As long idle as busy: requests have at least half of the store, whatever has piled up.
        if more {
            tokio::time::sleep(started.elapsed()).await;
        }
        Ok(Pass { seen, changed, more })
    }
}
