//! Measures what is open, for whoever watches: an `unknown` that nobody sees is a hidden failure.

use std::sync::Arc;

use metrics::gauge;
use oncegate_core::record::{State, StateKind};
use oncegate_store::{Filter, Store, StoreError};

use super::{Pass, WorkerOptions};
use crate::engine::Engine;
use crate::meters::names;

/// So many doubts are looked at; past that the numbers say "at least".
const LOOKED_AT: usize = 1_000;
const PAGE: usize = 250;

impl<S: Store> Engine<S> {
    pub(super) async fn watch(&self, _options: &WorkerOptions) -> Result<Pass, Arc<StoreError>> {
        let now = self.now();
        let filter = Filter { state: Some(StateKind::Unknown), ..Filter::default() };
        let (mut unknown, mut parked, mut oldest) = (0_u32, 0_u32, now.at);
        let mut after = None;
        for _ in 0..LOOKED_AT / PAGE {
            let page = self.0.store.browse(&filter, after.as_ref(), PAGE).await?;
            for row in &page.records {
                if let State::Unknown(doubt) = &row.state {
                    unknown += 1;
                    parked += u32::from(doubt.parked);
                    oldest = oldest.min(doubt.since);
                }
            }
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        gauge!(names::UNKNOWN_OPEN).set(unknown);
        gauge!(names::DEAD_LETTERS).set(parked);
        gauge!(names::UNKNOWN_OLDEST).set(now.at.since(oldest).as_secs_f64());
        Ok(Pass { seen: unknown as usize, changed: 0, more: false })
    }
}
