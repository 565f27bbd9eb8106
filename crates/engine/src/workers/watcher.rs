//! Measures what is open, for whoever watches: an `unknown` that nobody sees is a hidden failure.

use std::sync::Arc;

use metrics::gauge;
use oncegate_core::record::{State, StateKind};
use oncegate_core::time::Timestamp;
use oncegate_store::{Filter, Store, StoreError};

use super::{Pass, WorkerOptions};
use crate::engine::Engine;
use crate::meters::names;

/// So many doubts of each kind are looked at; past that the numbers say "at least".
const LOOKED_AT: usize = 10_000;
const PAGE: usize = 1_000;

impl<S: Store> Engine<S> {
    pub(super) async fn watch(&self, _options: &WorkerOptions) -> Result<Pass, Arc<StoreError>> {
        let now = self.now();
        // Apart, so that neither hides the other, however many there are.
        let parked = self.doubts(true, now.at).await?;
        let asked_about = self.doubts(false, now.at).await?;
        let oldest = parked.oldest.min(asked_about.oldest);
        let unknown = parked.count + asked_about.count;
        gauge!(names::UNKNOWN_OPEN).set(unknown);
        gauge!(names::DEAD_LETTERS).set(parked.count);
        let backlog = self.0.store.backlog().await?;
        gauge!(names::PENDING_WAITING).set(u32::try_from(backlog.rows).unwrap_or(u32::MAX));
        gauge!(names::PENDING_OLDEST)
            .set(backlog.oldest.map_or(0.0, |oldest| now.at.since(oldest).as_secs_f64()));
        gauge!(names::UNKNOWN_OLDEST).set(now.at.since(oldest).as_secs_f64());
        Ok(Pass { seen: unknown as usize, changed: 0, more: false })
    }

    async fn doubts(&self, parked: bool, now: Timestamp) -> Result<Doubts, Arc<StoreError>> {
        let filter = Filter { state: Some(StateKind::Unknown), parked: Some(parked), ..Filter::default() };
        let mut doubts = Doubts { count: 0, oldest: now };
        let mut after = None;
        for _ in 0..LOOKED_AT / PAGE {
            let page = self.0.store.browse(&filter, after.as_ref(), PAGE).await?;
            for row in &page.records {
                if let State::Unknown(doubt) = &row.state {
                    doubts.count += 1;
                    doubts.oldest = doubts.oldest.min(doubt.since);
                }
            }
            // A row that cannot be read is one more that somebody must see.
            doubts.count += u32::try_from(page.unreadable).unwrap_or(u32::MAX);
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        Ok(doubts)
    }
}

/// How many, and since when.
struct Doubts {
    count: u32,
    oldest: Timestamp,
}
