//! The store's time, as this node knows it.
//!
//! **Invariants:** time never runs backwards, and the true time of the store is within `error` of
//! what is said, also after this host was suspended or the store's clock was set back. A step of
//! the store's clock is noticed, logged and counted ([`ClockSteps`]).

use std::fmt;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use oncegate_core::time::{Now, Timestamp};
use oncegate_store::{Result, Store};

mod local;
mod sampled;
mod step;

use local::LocalClock;
use sampled::Sampler;
use step::Steps;

pub use step::ClockSteps;

/// Two clocks run apart by no more than this part of the time. chrony corrects a clock by up to 1
/// second in 12, so two of them, corrected in opposite directions, run apart by almost 1 second in
/// 5.
const DRIFT_DIVISOR: u32 = 5;

/// Where a node takes its time from.
#[derive(Clone)]
pub struct NodeClock {
    source: Source,
    steps: Arc<Steps>,
}

#[derive(Clone)]
enum Source {
    /// The store's clock is in this process.
    Local(Arc<LocalClock>),
    /// The store is asked for it now and then.
    Sampled(Arc<Sampler>),
    /// As a test says.
    Given(Arc<dyn Fn() -> Now + Send + Sync>),
}

impl NodeClock {
    /// A clock made of a function. For tests: two nodes whose clocks are apart.
    #[must_use]
    pub fn from_fn(read: impl Fn() -> Now + Send + Sync + 'static) -> Self {
        Self { source: Source::Given(Arc::new(read)), steps: Arc::default() }
    }

    /// The clock of `store`; sampled, and kept so by a task, if it is not in this process.
    pub(crate) async fn of_store<S: Store>(store: &Arc<S>) -> Result<Self> {
        let steps: Arc<Steps> = Arc::default();
        let source = match store.local_clock() {
            Some(clock) => Source::Local(Arc::new(LocalClock::new(clock))),
            None => Source::Sampled(Sampler::start(store, &steps).await?),
        };
        let clock = Self { source, steps };
        if clock.is_watched() {
            clock.steps.begin(clock.now());
        }
        Ok(clock)
    }

    /// The present.
    #[must_use]
    pub fn now(&self) -> Now {
        match &self.source {
            Source::Local(clock) => clock.now(&self.steps),
            Source::Given(read) => read(),
            Source::Sampled(sampler) => sampler.now(Instant::now(), SystemTime::now()),
        }
    }

    /// Whether steps are noticed. A clock that a test turns by hand never steps.
    fn is_watched(&self) -> bool {
        match &self.source {
            Source::Local(clock) => clock.is_watched(),
            Source::Sampled(_) => true,
            Source::Given(_) => false,
        }
    }

    /// Since when this node has seen the clock run without a step forward; at the earliest, since
    /// it began to watch. Read it after the `now` that it is about.
    pub(crate) fn steady_since(&self) -> Timestamp {
        self.steps.steady_since()
    }

    /// How often this node has seen the clock step.
    pub(crate) fn steps(&self) -> ClockSteps {
        self.steps.counts()
    }
}

impl fmt::Debug for NodeClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NodeClock({:?})", self.now())
    }
}
