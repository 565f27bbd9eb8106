//! The clock of a store in this process: the machine's wall clock, held against its monotonic
//! clock.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use oncegate_core::time::{Now, Timestamp, micros};
use oncegate_store::clock::{Clock, Pace};

use super::DRIFT_DIVISOR;
use super::step::{ClockStep, LatestTime, Steps};

/// A smaller difference between the two clocks is no step: a thread may be stopped between two
/// readings.
const STEP_MIN: Duration = Duration::from_millis(500);
/// The clocks are compared at least this often while time is read. A difference is noticed at
/// once.
const COMPARE_EVERY: Duration = Duration::from_secs(1);

pub(super) struct LocalClock {
    clock: Clock,
    latest: LatestTime,
    /// When this was made: the monotonic clock counts from here.
    origin: Instant,
    compared: Mutex<ClockReading>,
    /// What the last comparison found, for readers that need not compare: by how much the wall
    /// clock was ahead of the monotonic one, in microseconds, and when the next comparison is due.
    ahead: AtomicI64,
    next: AtomicI64,
}

/// Both clocks, read together.
#[derive(Clone, Copy)]
struct ClockReading {
    wall: Timestamp,
    /// The monotonic clock before the wall clock was read.
    before: Instant,
    /// How long the reading took.
    took: Duration,
}

impl ClockReading {
    fn read(clock: &Clock) -> Self {
        let before = Instant::now();
        let wall = clock.now();
        Self { wall, before, took: before.elapsed() }
    }

    /// The step of the wall clock since `earlier`, if there was one.
    fn step_since(self, earlier: Self) -> Option<ClockStep> {
        let elapsed = self.before.saturating_duration_since(earlier.before);
        let error = earlier.took + elapsed / DRIFT_DIVISOR + STEP_MIN;
        let expected = Now { at: earlier.wall.plus(elapsed), error };
        ClockStep::between(expected, Now { at: self.wall, error: self.took })
    }
}

impl LocalClock {
    pub(super) fn new(clock: Clock) -> Self {
        let first = ClockReading::read(&clock);
        Self {
            clock,
            latest: LatestTime::default(),
            origin: first.before,
            compared: Mutex::new(first),
            ahead: AtomicI64::new(first.wall.as_micros()),
            next: AtomicI64::new(micros(COMPARE_EVERY)),
        }
    }

    pub(super) fn is_watched(&self) -> bool {
        self.clock.pace() == Pace::RealTime
    }

    pub(super) fn now(&self, steps: &Steps) -> Now {
        if !self.is_watched() {
            return Now::exact(self.clock.now());
        }
        let before = Instant::now();
        let wall = self.clock.now();
        let (ahead, since_origin) = self.ahead_of_monotonic(wall, before);
        let moved_us = (ahead - self.ahead.load(Ordering::Acquire)).unsigned_abs();
        if Duration::from_micros(moved_us) >= STEP_MIN || since_origin >= self.next.load(Ordering::Relaxed) {
            self.compare(steps);
        }
        self.latest.advance(Now::exact(wall))
    }

    /// Compares the clocks with what they showed last. It reads them again under the lock, so that
    /// no reading is compared with a later one.
    fn compare(&self, steps: &Steps) {
        let mut compared = self.compared.lock().unwrap_or_else(PoisonError::into_inner);
        let read = ClockReading::read(&self.clock);
        if let Some(step) = read.step_since(*compared) {
            steps.note(step, Now { at: read.wall, error: read.took });
        }
        *compared = read;
        let (ahead, since_origin) = self.ahead_of_monotonic(read.wall, read.before);
        self.next.store(since_origin.saturating_add(micros(COMPARE_EVERY)), Ordering::Relaxed);
        self.ahead.store(ahead, Ordering::Release);
    }

    /// By how much the wall clock is ahead of the monotonic one, and what the latter shows:
    /// microseconds.
    fn ahead_of_monotonic(&self, wall: Timestamp, before: Instant) -> (i64, i64) {
        let since_origin = micros(before.saturating_duration_since(self.origin));
        (wall.as_micros().saturating_sub(since_origin), since_origin)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use oncegate_core::time::Timestamp;

    use super::*;
    use crate::clock::step::ClockSteps;

    const HOUR: Duration = Duration::from_hours(1);

    fn read(before: Instant, wall_ms: i64) -> ClockReading {
        let wall = Timestamp::from_micros(wall_ms * 1_000);
        ClockReading { wall, before, took: Duration::from_millis(1) }
    }

    #[test]
    fn a_clock_that_runs_apart_from_the_monotonic_one_has_stepped() {
        let start = Instant::now();
        let first = read(start, 1_000_000);
        let after = |elapsed: Duration, wall_ms| read(start + elapsed, wall_ms).step_since(first);
        let second = Duration::from_secs(1);
        assert_eq!(after(second, 1_001_000), None);
        assert_eq!(after(second, 1_001_083), None, "slewed");
        assert_eq!(after(second, 1_001_600), None, "a thread was stopped between two readings");
        let hour = Duration::from_hours(1);
        assert_eq!(after(second, 1_001_000 + 3_600_000), Some(ClockStep::Forward(hour)));
        assert_eq!(after(second, 1_001_000 - 900), Some(ClockStep::Back(Duration::from_millis(900))));
        assert_eq!(after(hour, 1_000_000 + 3_600_000 + 300_000), None, "slewed for an hour");
    }

    /// A process clamped its clock at the latest time and claimed an error of zero. A second
    /// process on the same file worked an hour earlier, and the first one expired its fresh lease.
    /// The clamp must widen the error by the size of the step.
    #[test]
    fn attack_21_a_clock_that_is_set_back_widens_the_error_by_the_step() {
        let off_s = Arc::new(AtomicI64::new(0));
        let (steps, off) = (Steps::default(), Arc::clone(&off_s));
        let local = LocalClock::new(Clock::system().set_to(move |now| {
            Timestamp::from_micros(now.as_micros() + 1_000_000 * off.load(Ordering::SeqCst))
        }));
        let before = local.now(&steps);
        assert_eq!((before.error, steps.counts()), (Duration::ZERO, ClockSteps::default()));

        off_s.store(-3_600, Ordering::SeqCst);
        let lease_until = local.clock.now().plus(Duration::from_mins(1));
        let after = local.now(&steps);
        assert!(after.at >= before.at, "time never runs backwards");
        assert!(
            !after.is_surely_past(lease_until),
            "a lease of a process that goes by the new time: {after:?}"
        );
        assert_eq!(steps.counts(), ClockSteps { forward: 0, back: 1 });

        // Corrected: exact again, and no lease may be taken from anybody by the step itself.
        off_s.store(1, Ordering::SeqCst);
        let corrected = local.now(&steps);
        assert_eq!(corrected.error, Duration::ZERO);
        assert_eq!(steps.counts(), ClockSteps { forward: 1, back: 1 });
        assert!(steps.steady_since() >= corrected.at, "a horizon is counted from the step");
        assert!(steps.steady_since().since(corrected.at) < HOUR);
        let _ = local.now(&steps);
        assert_eq!(steps.counts(), ClockSteps { forward: 1, back: 1 }, "noticed once");
    }
}
