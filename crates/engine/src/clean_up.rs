//! A reserve in doubt that nobody will run: made sure of, by a conflicting write, never by a read alone.

use std::time::Duration;

use oncegate_core::decide::{Arrival, Event, Reserve};
use oncegate_core::identity::{RecordId, Version};
use oncegate_store::{Kind, Store};

use crate::engine::Engine;

const BACKOFF_FIRST: Duration = Duration::from_millis(50);
/// So that a key is free within two seconds of the store's return.
const BACKOFF_MAX: Duration = Duration::from_secs(1);

impl<S: Store> Engine<S> {
    /// Tries until the store says that it is done.
    pub(crate) fn clean_up(&self, arrival: Arrival, over: Option<Version>) {
        let engine = self.clone();
        self.behind(async move {
            let id = RecordId::of(&arrival.address);
            let key = arrival.address.key.clone();
            let event = Event::CleanUp { reserve: Reserve::Arrival(Box::new(arrival)), over };
            let mut pause = BACKOFF_FIRST;
            loop {
                // Nothing is known of the row; if there is one, the conflicting insert shows it.
                match engine.step(&event, None).await {
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
