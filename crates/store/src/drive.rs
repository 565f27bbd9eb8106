//! Read, decide, write; again if the row changed meanwhile.
//!
//! The plain loop, one event at a time, for operators' commands, workers and tests. The path of a request has its own
//! (the engine's batching writer), and so has the doubt of a reserve: here an error is the caller's to judge, by its
//! [`Effect`].

use std::sync::Arc;

use oncegate_core::decide::{Event, Step, decide};
use oncegate_core::identity::RecordId;
use oncegate_core::record::Record;
use oncegate_core::time::Now;

use crate::error::{Effect, Kind, StoreError};
use crate::write::{Outcome, Write};
use crate::{Result, Store};

/// More rounds than any honest contention needs.
const ROUNDS_MAX: usize = 64;

/// Makes `event` happen to the record `id`, and returns the step that took effect.
pub async fn drive(store: &impl Store, id: RecordId, event: &Event, now: Now) -> Result<Step> {
    let mut row = read_one(store, id).await?;
    for _ in 0..ROUNDS_MAX {
        let step = decide(row.as_ref(), event, now);
        let Some(write) = Write::of_step(row.as_ref(), &step) else {
            return Ok(step);
        };
        match store.apply(&[write]).await?.pop() {
            Some(Outcome::Applied) => return Ok(step),
            // Refused over the very row that was decided upon: the store's own clock disagrees about a removal.
            Some(Outcome::Refused { current }) if current.as_deref() == row.as_ref() => break,
            Some(Outcome::Refused { current }) => row = current.map(Arc::unwrap_or_clone),
            Some(Outcome::Unreadable { problem }) => {
                return Err(StoreError::new(Kind::Unreadable, Effect::None, "drive").because(problem));
            }
            None => return Err(StoreError::new(Kind::Other, Effect::Unknown, "drive").because("no outcome")),
        }
    }
    Err(StoreError::new(Kind::Contended, Effect::None, "drive"))
}

/// Reads one row.
pub async fn read_one(store: &impl Store, id: RecordId) -> Result<Option<Record>> {
    store.read(&[id]).await?.pop().unwrap_or(Ok(None))
}
