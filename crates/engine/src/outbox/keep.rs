//! Measures how full the outbox is, and drops what has been over for long.

use std::sync::Arc;

use metrics::{counter, gauge};
use oncegate_store::StoreError;
use oncegate_store::jobs::{Depth, Jobs};

use super::{Effects, OutboxOptions, WORKER};
use crate::engine::Engine;
use crate::meters::names;
use crate::workers::jittered;

/// Jobs that one statement drops.
const DROPPED_AT_ONCE: usize = 1_000;

impl<S: Jobs> Engine<S> {
    pub(super) async fn keep_outbox(&self, effects: &Effects, options: &OutboxOptions) {
        loop {
            if let Err(error) = self.tidy_outbox(effects, options).await {
                counter!(names::WORKER_ERROR, "worker" => WORKER).increment(1);
                tracing::warn!(
                    worker = WORKER,
                    "the outbox could not be measured; the next look follows: {error}"
                );
            }
            tokio::time::sleep(jittered(options.keep_every)).await;
        }
    }

    /// Measures and tidies once, now.
    pub async fn tidy_outbox(
        &self,
        effects: &Effects,
        options: &OutboxOptions,
    ) -> Result<usize, Arc<StoreError>> {
        let now = self.now().at;
        let mut depths = self.0.store.depth().await?;
        // What is empty is shown as empty.
        for name in effects.names() {
            if !depths.iter().any(|depth| &*depth.effect == name) {
                depths.push(Depth { effect: name.into(), waiting: 0, parked: 0, oldest: None });
            }
        }
        for depth in depths {
            let oldest_s = depth.oldest.map_or(0.0, |oldest| now.since(oldest).as_secs_f64());
            let effect = depth.effect.to_string();
            gauge!(names::OUTBOX_WAITING, "effect" => effect.clone()).set(number(depth.waiting));
            gauge!(names::OUTBOX_DEAD, "effect" => effect.clone()).set(number(depth.parked));
            gauge!(names::OUTBOX_OLDEST, "effect" => effect).set(oldest_s);
        }
        let before = now.minus(options.retention);
        let mut dropped = 0;
        loop {
            let some = self.0.store.drop_jobs(before, DROPPED_AT_ONCE).await?;
            dropped += some;
            if some < DROPPED_AT_ONCE {
                return Ok(dropped);
            }
        }
    }
}

/// As a gauge shows it.
fn number(count: u64) -> f64 {
    u32::try_from(count).map_or(f64::from(u32::MAX), f64::from)
}
