//! Measures what is open, for whoever watches: an `unknown` that nobody sees is a hidden failure.
//!
//! **Invariant:** the oldest is found however many others there are, and nothing is read but numbers: in an outage there is most to be
//! seen, and least to spare.

use std::sync::Arc;

use metrics::gauge;
use oncegate_core::time::Timestamp;
use oncegate_store::{Backlog, Store, StoreError};

use super::{Pass, WorkerOptions};
use crate::engine::Engine;
use crate::meters::names;

impl<S: Store> Engine<S> {
    pub(super) async fn watch(&self, _options: &WorkerOptions) -> Result<Pass, Arc<StoreError>> {
        let now = self.now().at;
        let age = |oldest: Option<Timestamp>| oldest.map_or(0.0, |oldest| now.since(oldest).as_secs_f64());
        let doubts = self.0.store.doubts().await?;
        gauge!(names::UNKNOWN_OPEN).set(rows(&doubts.open));
        gauge!(names::UNKNOWN_OLDEST).set(age(doubts.open.oldest));
        gauge!(names::DEAD_LETTERS).set(rows(&doubts.parked));
        let backlog = self.0.store.backlog().await?;
        gauge!(names::PENDING_WAITING).set(rows(&backlog));
        gauge!(names::PENDING_OLDEST).set(age(backlog.oldest));
        Ok(Pass { seen: usize::try_from(doubts.open.rows).unwrap_or(usize::MAX), changed: 0, more: false })
    }
}

/// As many as were counted, which is far fewer than fit.
fn rows(backlog: &Backlog) -> f64 {
    f64::from(u32::try_from(backlog.rows).unwrap_or(u32::MAX))
}
