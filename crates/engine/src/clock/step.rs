//! Steps of the store's clock: how they are recognized, and what a node does when it notices one.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use metrics::counter;
use oncegate_core::time::{Now, Timestamp};

use crate::meters::names;

/// The clock runs ahead of the expected time, or behind it, by so much.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClockStep {
    Forward(Duration),
    Back(Duration),
}

impl ClockStep {
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

/// How much longer than this node another node may use the time from before a step, until it reads
/// the clock again.
pub(super) const NOTICED_WITHIN: Duration = Duration::from_secs(3);

/// The steps that a node has noticed.
#[derive(Debug)]
pub(super) struct Steps {
    forward: AtomicU64,
    back: AtomicU64,
    /// The latest moment at which any node went by the time from before the last step forward.
    steady_since: AtomicI64,
}

impl Default for Steps {
    fn default() -> Self {
        let steady_since = AtomicI64::new(Timestamp::FIRST.as_micros());
        Self { forward: AtomicU64::new(0), back: AtomicU64::new(0), steady_since }
    }
}

impl Steps {
    /// Notes that this node began to watch the clock, or watches it again after an outage. The
    /// clock may have stepped just before that, unseen.
    pub(super) fn begin(&self, now: Now) {
        self.steady_from(now);
    }

    fn steady_from(&self, now: Now) {
        let steady_since = now.at.plus(now.error).plus(NOTICED_WITHIN);
        self.steady_since.fetch_max(steady_since.as_micros(), Ordering::AcqRel);
    }

    /// Notes a step after which the clock shows `now`: remembers it, counts it and logs it. Call
    /// this before any reader can see the new time.
    pub(super) fn note(&self, step: ClockStep, now: Now) {
        match step {
            ClockStep::Forward(size) => {
                self.steady_from(now);
                self.forward.fetch_add(1, Ordering::Relaxed);
                counter!(names::CLOCK_STEP, "direction" => "forward").increment(1);
                tracing::warn!(
                    ?size,
                    "clock stepped forward, or this host was suspended; horizons restart now"
                );
            }
            ClockStep::Back(size) => {
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

    /// Since when no step forward was noticed; [`Timestamp::FIRST`] where the clock is not watched.
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
pub(super) struct LatestTime(AtomicI64);

impl Default for LatestTime {
    fn default() -> Self {
        Self(AtomicI64::new(i64::MIN))
    }
}

impl LatestTime {
    pub(super) fn advance(&self, mut now: Now) -> Now {
        let latest = Timestamp::from_micros(self.0.fetch_max(now.at.as_micros(), Ordering::AcqRel));
        if latest > now.at {
            now.error += latest.since(now.at);
            now.at = latest;
        }
        now
    }
}
