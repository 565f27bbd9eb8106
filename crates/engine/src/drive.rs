//! Decide, write, and decide again if the row has changed: through the batching writer.

use std::sync::Arc;

use oncegate_core::decide::{Event, Next, Step, decide};
use oncegate_core::record::Record;
use oncegate_store::{Effect, Kind, Outcome, Store, StoreError, Write};

use crate::engine::Engine;
use crate::meters::observe;
use crate::writer::Failed;

/// More rounds than any honest contention needs.
pub(crate) const ROUNDS_MAX: usize = 64;

/// A step that took effect.
pub(crate) struct Stepped {
    pub(crate) step: Step,
    /// The row as it is now.
    pub(crate) row: Option<Arc<Record>>,
}

impl<S: Store> Engine<S> {
    /// Makes `event` happen to `row`, which may be outdated: the store shows the right one if it is. Waits for room.
    pub(crate) async fn step(&self, event: &Event, mut row: Option<Arc<Record>>) -> Result<Stepped, Failed> {
        for _ in 0..ROUNDS_MAX {
            let now = self.now();
            let step = decide(row.as_deref(), event, now);
            let Some(write) = Write::of_step(row.as_deref(), &step) else {
                observe(event, row.as_deref(), &step);
                return Ok(Stepped { step, row });
            };
            let ticket = self.0.writer.submit_when_there_is_room(write).await.map_err(|_| ended())?;
            match ticket.outcome().await? {
                Outcome::Applied => {
                    observe(event, row.as_deref(), &step);
                    let row = match &step.next {
                        Next::Put(record) => Some(Arc::clone(record)),
                        Next::Keep => row,
                        Next::Remove { .. } => None,
                    };
                    return Ok(Stepped { step, row });
                }
                // Refused over the very row that was decided upon: the store's own clock disagrees about a removal.
                Outcome::Refused { current } if current == row => break,
                Outcome::Refused { current } => row = current,
                Outcome::Unreadable { problem } => return Err(unreadable(problem)),
            }
        }
        Err(Arc::new(StoreError::new(Kind::Contended, Effect::None, "drive")))
    }
}

pub(crate) fn unreadable(problem: String) -> Failed {
    Arc::new(StoreError::new(Kind::Unreadable, Effect::None, "drive").because(problem))
}

fn ended() -> Failed {
    Arc::new(StoreError::new(Kind::Unavailable, Effect::None, "drive").because("the writer has ended"))
}
