//! Keeping promises: jobs that a committed transaction has left, delivered at least once, each under one downstream key.
//!
//! Each effect has a loop of its own, so that a provider that hangs takes nobody's place but its own. A loop claims as many jobs as it has
//! places, delivers each in a task of its own, and writes what became of those that have ended meanwhile in one commit. Errors and panics
//! are counted, and the loop goes on.
//!
//! **Invariants:** what the provider gave back is durable before anything follows from it, so a job is never delivered again after that.
//! A job whose answer is the record's is sent only while its holder holds the record; once that is settled, so is the job. A job that is
//! put before an operator has put its record there too. Jobs that hang or fail, however many, hold at most half of the places.
//!
//! Not here: the rows (`oncegate_store::jobs`), promising (`tower`), speaking to a provider (effects).

mod attend;
mod effect;
mod keep;
mod operate;
mod pump;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use oncegate_core::duration::{DURATION_MAX, INTERVAL_MIN, InvalidDuration, check_max, check_positive};
use oncegate_store::StoreError;
use oncegate_store::jobs::Jobs;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::engine::Engine;
use crate::meters;
use crate::workers::Pass;
pub use effect::{Delivering, Delivery, Effect, OUTAGE, Sent};
pub(crate) use keep::Kept;
use pump::Pump;

/// The name of these loops, in metrics and logs.
const WORKER: &str = "outbox";

/// The effects that this node can bring about, by name.
#[derive(Clone, Default)]
pub struct Effects(BTreeMap<Box<str>, Arc<dyn Effect>>);

impl Effects {
    /// None.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds one. A name that is taken gets the new one.
    #[must_use]
    pub fn with(mut self, name: &str, effect: impl Effect) -> Self {
        self.0.insert(name.into(), Arc::new(effect));
        self
    }

    /// Their names.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(|name| &**name)
    }

    /// There are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl std::fmt::Debug for Effects {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

/// How the outbox is worked off.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutboxOptions {
    /// Jobs that are due are looked for so often; one that is promised on this node wakes the loop at once.
    pub every: Duration,
    /// Deliveries of one effect that are under way at the same time, on this node. A claim takes as many; of those that were tried before,
    /// at most half as many.
    pub at_once: usize,
    /// How much longer than its delivery may take a claim lasts: what became of it is to be written meanwhile. After a crash it is
    /// delivered again when the claim has ended.
    pub claim_slack: Duration,
    /// Depth and age are measured, and old jobs are dropped, so often.
    pub keep_every: Duration,
    /// How long a job that is over is kept.
    pub retention: Duration,
}

impl Default for OutboxOptions {
    fn default() -> Self {
        Self {
            every: Duration::from_secs(1),
            at_once: 64,
            claim_slack: Duration::from_secs(10),
            keep_every: Duration::from_secs(15),
            retention: Duration::from_hours(30 * 24),
        }
    }
}

impl OutboxOptions {
    /// Refuses durations above 100 years, and zero where it has no meaning.
    pub fn check(&self) -> Result<(), InvalidDuration> {
        check_positive("every", self.every)?;
        check_max("claim_slack", self.claim_slack)?;
        check_positive("keep_every", self.keep_every)?;
        check_max("retention", self.retention)
    }

    /// The same options, with each duration in its range. What is outside is reported: a loop must neither spin nor panic.
    fn within_limits(&self) -> Self {
        if let Err(error) = self.check() {
            tracing::error!(%error, "outbox options are invalid; using the nearest allowed values");
        }
        Self {
            every: self.every.clamp(INTERVAL_MIN, DURATION_MAX),
            at_once: self.at_once,
            claim_slack: self.claim_slack.min(DURATION_MAX),
            keep_every: self.keep_every.clamp(INTERVAL_MIN, DURATION_MAX),
            retention: self.retention.min(DURATION_MAX),
        }
    }
}

/// The running outbox. Dropped, it ends where it is: what it had claimed is anybody's when the claim ends.
#[derive(Debug)]
pub struct Outbox {
    pumps: Vec<JoinHandle<()>>,
    keeping: JoinHandle<()>,
    passes: watch::Receiver<u64>,
    retired: watch::Sender<bool>,
}

impl Outbox {
    /// Returns when so many claims have been made, well or not, and what they gave is over. For tests.
    pub async fn until_passes(&mut self, count: u64) {
        // An error means that the outbox has ended, and no more will come.
        let _ = self.passes.wait_for(|passes| *passes >= count).await;
    }

    /// How many claims have been made.
    #[must_use]
    pub fn passes(&self) -> u64 {
        *self.passes.borrow()
    }

    /// Claims no more, and sees what is under way to its end behind: another takes its place, with other effects.
    pub fn retire(mut self) {
        // Nobody listens if there are no effects.
        let _ = self.retired.send(true);
        // Without their handles they are nobody's to end.
        self.pumps.clear();
    }
}

impl Drop for Outbox {
    fn drop(&mut self) {
        self.keeping.abort();
        for pump in &self.pumps {
            pump.abort();
        }
    }
}

impl<S: Jobs> Engine<S> {
    /// Starts to work off the outbox, on the engine's runtime: a loop for each effect, and one that measures and tidies.
    #[must_use]
    pub fn start_outbox(&self, effects: &Effects, options: &OutboxOptions) -> Outbox {
        meters::begin_worker_at_zero(WORKER);
        let options = options.within_limits();
        let (counts, passes) = watch::channel(0);
        let retired = watch::Sender::new(false);
        let mut pumps = Vec::new();
        for (name, effect) in &effects.0 {
            meters::begin_effect_at_zero(name);
            let pump = Pump::new(self, name, effect, &options);
            pumps.push(self.0.runtime.spawn(pump.run(counts.clone(), retired.subscribe())));
        }
        let (engine, effects) = (self.clone(), effects.clone());
        let keeping = self.0.runtime.spawn(async move { engine.keep_outbox(&effects, &options).await });
        Outbox { pumps, keeping, passes, retired }
    }

    /// Claims once for each effect and sees what it got to the end, now. For services with schedulers of their own, and for tests.
    pub async fn work_outbox(
        &self,
        effects: &Effects,
        options: &OutboxOptions,
    ) -> Result<Pass, Arc<StoreError>> {
        let mut all = Pass::default();
        for (name, effect) in &effects.0 {
            let pass = Pump::new(self, name, effect, options).once().await?;
            all.seen += pass.seen;
            all.changed += pass.changed;
            all.more |= pass.more;
        }
        Ok(all)
    }
}

impl<S> Engine<S> {
    /// Says that jobs were promised on this node: its outbox need not wait for its next look.
    pub fn wake_outbox(&self) {
        self.0.promises.send_modify(|count| *count += 1);
    }
}
