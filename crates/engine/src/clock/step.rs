//! Steps of the store's clock: how they are recognized, and what a node does when it notices one.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use metrics::counter;
use oncegate_core::time::{Now, Timestamp};

use crate::meters::names;

/// The clock runs `size` ahead of the expected time, or behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Forward(Duration),
    Back(Duration),
}

impl Step {
    /// The step between the `expected` time and the `shown` one, if they contradict each other by
    /// more than both errors.
    pub(super) fn between(expected: Now, shown: Now) -> Option<Self> {
        let error = expected.error + shown.error;
        let (ahead, behind) = (shown.at.since(expected.at), expected.at.since(shown.at));
        if ahead > error {
            Some(Self::Forward(ahead))
        } else if behind > error {
            Some(Self::Back(behind))
        } else {
            None
        }
    }
}

/// The steps that a node has noticed.
#[derive(Debug)]
pub(super) struct Steps {
    forward: AtomicU64,
    back: AtomicU64,
    /// The latest moment at which the last step forward was noticed.
    steady_since: AtomicI64,
}

impl Default for Steps {
    fn default() -> Self {
        let steady_since = AtomicI64::new(Timestamp::FIRST.as_micros());
        Self { forward: AtomicU64::new(0), back: AtomicU64::new(0), steady_since }
    }
}

impl Steps {
    /// Notes a step after which the clock shows `now`: remembers it, counts it and logs it. Call
    /// this before any reader can see the new time.
    pub(super) fn note(&self, step: Step, now: Now) {
        match step {
            Step::Forward(size) => {
                self.steady_since.fetch_max(now.at.plus(now.error).as_micros(), Ordering::AcqRel);
                self.forward.fetch_add(1, Ordering::Relaxed);
                counter!(names::CLOCK_STEP, "direction" => "forward").increment(1);
                tracing::warn!(
                    ?size,
                    "clock stepped forward, or this host was suspended; horizons are counted anew"
                );
            }
            Step::Back(size) => {
                self.back.fetch_add(1, Ordering::Relaxed);
                counter!(names::CLOCK_STEP, "direction" => "back").increment(1);
                tracing::warn!(
                    ?size,
                    "clock was set back; this node grants no lease that is shorter than the step until the \
                     clock has caught up. Correct the clock, then restart this node"
                );
            }
        }
    }

    /// Since when no step forward was noticed; [`Timestamp::FIRST`] if there was none.
    pub(super) fn steady_since(&self) -> Timestamp {
        Timestamp::from_micros(self.steady_since.load(Ordering::Acquire))
    }

    pub(super) fn counts(&self) -> ClockSteps {
        ClockSteps { forward: self.forward.load(Ordering::Relaxed), back: self.back.load(Ordering::Relaxed) }
    }
}

/// How often a node has seen the store's clock step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClockSteps {
    /// Forward; a suspended host looks the same.
    pub forward: u64,
    /// Back.
    pub back: u64,
}

/// The latest time that was ever told. Time never runs backwards: where it would, the told time
/// stays and the error grows by the difference, so that the true time is still within it.
#[derive(Debug)]
pub(super) struct LatestTold(AtomicI64);

impl Default for LatestTold {
    fn default() -> Self {
        Self(AtomicI64::new(i64::MIN))
    }
}

impl LatestTold {
    pub(super) fn tell(&self, mut now: Now) -> Now {
        let latest = Timestamp::from_micros(self.0.fetch_max(now.at.as_micros(), Ordering::AcqRel));
        if latest > now.at {
            now.error += latest.since(now.at);
            now.at = latest;
        }
        now
    }
}
