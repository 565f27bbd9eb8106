//! Measures how full the outbox is, drops what has been over for long, and ends what is parked and nobody waits for any more.

use std::collections::BTreeSet;
use std::sync::{Arc, PoisonError};

use metrics::{counter, gauge};
use oncegate_core::audit::Act;
use oncegate_store::StoreError;
use oncegate_store::jobs::{Depth, JobId, Jobs};

use super::attend::{UNREADABLE, settled_otherwise};
use super::{Effects, OutboxOptions, WORKER};
use crate::engine::Engine;
use crate::meters::names;
use crate::workers::jittered;

/// Jobs that one statement drops.
const DROPPED_AT_ONCE: usize = 1_000;
/// Parked jobs that one look goes through; the next one goes on behind them.
const PARKED_AT_ONCE: usize = 200;

/// What one look leaves for the next.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    /// Effects whose gauges show something: once there is nothing of theirs in the store, they are to show that.
    shown: BTreeSet<Box<str>>,
    /// The last parked job that was looked at.
    after: Option<JobId>,
}

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

    /// Measures and tidies once, now; says how many jobs it dropped.
    pub async fn tidy_outbox(
        &self,
        effects: &Effects,
        options: &OutboxOptions,
    ) -> Result<usize, Arc<StoreError>> {
        self.withdraw_settled().await?;
        self.measure_outbox(effects).await?;
        let before = self.now().at.minus(options.retention);
        let mut dropped = 0;
        loop {
            let some = self.0.store.drop_jobs(before, DROPPED_AT_ONCE).await?;
            dropped += some;
            if some < DROPPED_AT_ONCE {
                return Ok(dropped);
            }
        }
    }

    async fn measure_outbox(&self, effects: &Effects) -> Result<(), Arc<StoreError>> {
        let now = self.now().at;
        let mut depths = self.0.store.depth().await?;
        let mut kept = self.0.outbox.lock().unwrap_or_else(PoisonError::into_inner);
        // What is empty is shown as empty: what this node can deliver, and what it has seen once and somebody else has delivered.
        kept.shown.extend(effects.names().map(Into::into));
        for name in &kept.shown {
            if !depths.iter().any(|depth| depth.effect == *name) {
                depths.push(Depth { effect: name.clone(), waiting: 0, parked: 0, oldest: None });
            }
        }
        kept.shown = depths
            .iter()
            .filter(|depth| depth.waiting + depth.parked > 0)
            .map(|depth| depth.effect.clone())
            .collect();
        drop(kept);
        for depth in depths {
            let oldest_s = depth.oldest.map_or(0.0, |oldest| now.since(oldest).as_secs_f64());
            let effect = depth.effect.to_string();
            gauge!(names::OUTBOX_WAITING, "effect" => effect.clone()).set(number(depth.waiting));
            gauge!(names::OUTBOX_DEAD, "effect" => effect.clone()).set(number(depth.parked));
            gauge!(names::OUTBOX_OLDEST, "effect" => effect).set(oldest_s);
        }
        Ok(())
    }

    /// Whoever settles a record, an operator, a probe or a webhook, settles the job that was to answer it too.
    async fn withdraw_settled(&self) -> Result<(), Arc<StoreError>> {
        let after = self.0.outbox.lock().unwrap_or_else(PoisonError::into_inner).after;
        let parked = self.0.store.parked(after, PARKED_AT_ONCE).await?;
        let next = if parked.len() < PARKED_AT_ONCE { None } else { parked.last().map(|job| job.id) };
        for job in parked {
            // Of what cannot be read nobody knows whose it is: only an operator ends it.
            let is_readable = job.last_error.as_ref().is_none_or(|error| error.code() != UNREADABLE);
            if !is_readable
                || self.is_still_wanted(&job).await?
                || !self.0.store.withdraw(&job, &settled_otherwise()).await?
            {
                continue;
            }
            tracing::info!(job = %job.id, record = %job.record, "its record is settled, and so is the job: it is not sent any more");
            self.wake_outbox();
            self.tell_of_job(&job, Act::Withdrawn, None).await?;
        }
        self.0.outbox.lock().unwrap_or_else(PoisonError::into_inner).after = next;
        Ok(())
    }
}

/// As a gauge shows it.
fn number(count: u64) -> f64 {
    u32::try_from(count).map_or(f64::from(u32::MAX), f64::from)
}
