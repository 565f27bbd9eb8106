//! Rows past retention: removed, or turned into tombstones; accepted work that nobody ran in its time: answered with 408.
//!
//! **Invariant:** it only frees space. Whether a key has expired is decided when a request arrives; and what is in progress or
//! unknown is never due here. A row that the database does not let go hinders no other.

use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Instant;

use futures_util::future::join_all;
use metrics::gauge;
use oncegate_core::decide::{Event, Next};
use oncegate_store::{Due, Kind, Store, StoreError};

use super::{Looked, Pass, SCANS_MAX, WorkerOptions};
use crate::engine::Engine;
use crate::meters::names;

/// Entries of the audit trail that are dropped in one pass.
const ENTRIES: usize = 1_000;
/// Ids of removed rows that are forgotten in one pass.
const IDS: usize = 10_000;

impl<S: Store> Engine<S> {
    pub(super) async fn reap(&self, options: &WorkerOptions) -> Result<Pass, Arc<StoreError>> {
        let mut looked = std::mem::take(&mut *self.expired_looked());
        let reaped = self.reap_from(&mut looked, options).await;
        *self.expired_looked() = looked;
        let started = Instant::now();
        let before = self.now().at.minus(options.audit_retention);
        let dropped = self.0.store.drop_entries(before, ENTRIES).await?;
        let kept_for = self.0.options.removed_keys_for;
        let forgotten = self.0.store.drop_removed(self.now().at.minus(kept_for), IDS).await?;
        let has_more = dropped >= ENTRIES || forgotten >= IDS;
        if has_more {
            tokio::time::sleep(started.elapsed()).await;
        }
        let reaped = reaped?;
        Ok(Pass { more: reaped.more || has_more, ..reaped })
    }

    fn expired_looked(&self) -> MutexGuard<'_, Looked> {
        self.0.expired_looked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From behind the rows that an earlier pass met and could not change. After the last row the next
    /// pass begins with the oldest again. A pass in which nothing could be changed is not followed by
    /// another at once: rejected writes cost others time.
    async fn reap_from(&self, looked: &mut Looked, options: &WorkerOptions) -> Result<Pass, Arc<StoreError>> {
        let mut all = Pass::default();
        for _ in 0..SCANS_MAX {
            let pass = self.reap_batch(looked, options).await?;
            all.seen += pass.seen;
            all.changed += pass.changed;
            all.more = pass.more && all.changed > 0;
            if !pass.more {
                *looked = Looked::default();
                break;
            }
        }
        Ok(all)
    }

    async fn reap_batch(
        &self,
        looked: &mut Looked,
        options: &WorkerOptions,
    ) -> Result<Pass, Arc<StoreError>> {
        let started = Instant::now();
        let now = self.now();
        let due = now.at.minus(now.error).minus(options.reap_grace);
        let ahead = looked.next(&*self.0.store, Due::Expired, due, options.batch).await?;
        let seen = ahead.rows.len();
        if looked.is_start() {
            let oldest = ahead.rows.iter().filter_map(|row| row.expires_at).min();
            gauge!(names::REAPER_LAG).set(oldest.map_or(0.0, |end| due.since(end).as_secs_f64()));
        }
        let event = Event::Reap { grace: options.reap_grace };
        let reaped = ahead.rows.into_iter().map(|row| {
            let (event, row) = (&event, Arc::new(row));
            async move { (Arc::clone(&row), self.step(event, Some(row)).await) }
        });
        let (mut changed, mut rejected, mut failed) = (0, 0, None);
        for (row, stepped) in join_all(reaped).await {
            match stepped {
                Ok(stepped) => {
                    self.0.let_go(row.id);
                    changed += usize::from(stepped.step.next != Next::Keep);
                }
                // The store's own clock is a little behind: the next pass will find it.
                Err(error) if error.kind() == Kind::Contended => {}
                // It would be the oldest in every pass, and others behind it would never be reached.
                Err(error) if error.is_rejection() => {
                    looked.at(Due::Expired, &row);
                    rejected += 1;
                }
                Err(error) => failed = Some(error),
            }
        }
        if rejected > 0 {
            tracing::warn!(rejected, "the database rejected the removal of expired records; they stay");
        }
        if let Some(error) = failed {
            return Err(error);
        }
        // What nothing came of would be found again and again.
        let more = !ahead.is_end && changed + rejected > 0;
        // As long idle as busy: requests have at least half of the store, whatever has piled up.
        if more {
            tokio::time::sleep(started.elapsed()).await;
        }
        Ok(Pass { seen, changed, more })
    }
}
