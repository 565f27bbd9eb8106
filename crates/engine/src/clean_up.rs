//! A reserve in doubt that nobody will run: made sure of, by a conflicting write, never by a read alone.

use std::sync::Arc;
use std::time::Duration;

use oncegate_core::decide::{Event, Reserve};
use oncegate_core::identity::{RecordId, Version};
use oncegate_core::record::Record;
use oncegate_store::{Kind, Store};

use crate::engine::Engine;

const BACKOFF_FIRST: Duration = Duration::from_millis(50);
/// So that a key is free within two seconds of the store's return.
const BACKOFF_MAX: Duration = Duration::from_secs(1);

impl<S: Store> Engine<S> {
    /// Tries until the store says that it is done. `row` is what was last seen: of an arrival nothing, and if there is a row, the
    /// conflicting insert shows it.
    pub(crate) fn clean_up(&self, reserve: Reserve, row: Option<Arc<Record>>, over: Option<Version>) {
        let address = match (&reserve, &row) {
            (Reserve::Arrival(arrival), _) => arrival.address.clone(),
            (Reserve::Take(_), Some(row)) => row.address.clone(),
            // There is nothing that a take could land on.
            (Reserve::Take(_), None) => return,
        };
        let engine = self.clone();
        self.behind(async move {
            let (id, key) = (RecordId::of(&address), address.key);
            let event = Event::CleanUp { reserve, over };
            let mut pause = BACKOFF_FIRST;
            loop {
                match engine.step(&event, row.clone()).await {
                    Ok(_) => break,
                    // There is a row, so the insert cannot land on it; and what cannot be read is not ours to change.
                    Err(error) if error.kind() == Kind::Unreadable => {
                        tracing::error!(%error, key = key.prefix(), "a reserve in doubt cannot be cleaned up: its row cannot be read");
                        return;
                    }
                    Err(error) => {
                        tracing::debug!(%error, key = key.prefix(), "a reserve in doubt could not be cleaned up yet");
                    }
                }
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(BACKOFF_MAX);
            }
            engine.0.waiters.wake(id);
            tracing::info!(key = key.prefix(), record = %id, "a reserve in doubt was cleaned up; the key is free");
        });
    }
}
