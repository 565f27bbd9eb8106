//! Measures what is open, for whoever watches: an `unknown` that nobody sees is a hidden failure.
//!
//! **Invariant:** the oldest is found however many others there are, and nothing is read but numbers: in an outage there is most to be
//! seen, and least to spare.

use std::sync::Arc;

use metrics::gauge;
use oncegate_core::audit::Comparison;
use oncegate_core::time::Timestamp;
use oncegate_store::{Store, StoreError};

use super::{Pass, WorkerOptions};
use crate::engine::Engine;
use crate::meters::names;

/// So many runs of comparisons are read, the last ones.
const RUNS: usize = 256;
/// So many comparisons are shown: a name is a label.
const COMPARISONS_MAX: usize = 32;

impl<S: Store> Engine<S> {
    /// Shows the last run of each comparison. It was made by a command, so every node reads it
    /// from the store.
    async fn show_comparisons(&self) -> Result<(), StoreError> {
        let story = self.0.store.story(Comparison::ID, RUNS).await?;
        let mut shown: Vec<Box<str>> = Vec::new();
        for entry in story.iter().rev() {
            let Some(run) = Comparison::of(entry) else { continue };
            if shown.len() >= COMPARISONS_MAX {
                break;
            }
            if shown.contains(&run.name) {
                continue;
            }
            let label = || [metrics::Label::new("comparison", run.name.to_string())].to_vec();
            gauge!(names::COMPARE_LAST_RUN, label()).set(seconds(entry.at));
            gauge!(names::COMPARE_DIFFERENCES, label()).set(double(run.differences));
            gauge!(names::COMPARE_UNREADABLE, label()).set(double(run.unreadable));
            shown.push(run.name);
        }
        Ok(())
    }

    pub(super) async fn watch(&self, _options: &WorkerOptions) -> Result<Pass, Arc<StoreError>> {
        let now = self.now().at;
        let age = |oldest: Option<Timestamp>| oldest.map_or(0.0, |oldest| now.since(oldest).as_secs_f64());
        let count = |rows: u64| u32::try_from(rows).unwrap_or(u32::MAX);
        let doubts = self.0.store.doubts().await?;
        gauge!(names::UNKNOWN_OPEN).set(count(doubts.open.rows));
        gauge!(names::UNKNOWN_OLDEST).set(age(doubts.open.oldest));
        gauge!(names::DEAD_LETTERS).set(count(doubts.parked.rows));
        let backlog = self.0.store.backlog().await?;
        gauge!(names::PENDING_WAITING).set(count(backlog.rows));
        gauge!(names::PENDING_OLDEST).set(age(backlog.oldest));
        self.show_comparisons().await?;
        Ok(Pass { seen: usize::try_from(doubts.open.rows).unwrap_or(usize::MAX), changed: 0, more: false })
    }
}

fn seconds(at: Timestamp) -> f64 {
    at.since(Timestamp::from_micros(0)).as_secs_f64()
}

fn double(count: u64) -> f64 {
    f64::from(u32::try_from(count).unwrap_or(u32::MAX))
}
