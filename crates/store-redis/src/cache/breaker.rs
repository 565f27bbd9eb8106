//! Leaves a Redis alone that does not answer, so that a dead one costs nothing.
//!
//! After some failures in a row nobody asks for a pause; then one get tries, and the pause begins anew until one succeeds.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// See the module. Time is brought by the caller.
pub(super) struct Breaker {
    failures_max: u32,
    pause: Duration,
    since: Instant,
    failures: AtomicU32,
    /// In microseconds after `since`.
    closed_until: AtomicU64,
}

impl Breaker {
    pub(super) fn new(failures_max: u32, pause: Duration) -> Self {
        Self {
            failures_max: failures_max.max(1),
            pause,
            since: Instant::now(),
            failures: AtomicU32::new(0),
            closed_until: AtomicU64::new(0),
        }
    }

    pub(super) fn lets_through(&self, now: Instant) -> bool {
        if self.failures.load(Ordering::Relaxed) < self.failures_max {
            return true;
        }
        let until = self.closed_until.load(Ordering::Relaxed);
        // One of those who come after the pause begins the next one, and tries.
        self.micros(now) >= until
            && self
                .closed_until
                .compare_exchange(until, self.micros(now + self.pause), Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
    }

    pub(super) fn succeeded(&self) {
        self.failures.store(0, Ordering::Relaxed);
    }

    pub(super) fn failed(&self, now: Instant) {
        self.closed_until.store(self.micros(now + self.pause), Ordering::Relaxed);
        let more = |failures: u32| Some(failures.saturating_add(1));
        let _ = self.failures.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
    }

    fn micros(&self, at: Instant) -> u64 {
        u64::try_from(at.saturating_duration_since(self.since).as_micros()).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_opens_after_failures_in_a_row_and_one_tries_after_the_pause() {
        let breaker = Breaker::new(3, Duration::from_secs(1));
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        for _ in 0..2 {
            breaker.failed(at(0));
        }
        assert!(breaker.lets_through(at(0)), "two are not three");
        breaker.succeeded();
        for _ in 0..3 {
            assert!(breaker.lets_through(at(0)), "in a row");
            breaker.failed(at(0));
        }
        assert!(!breaker.lets_through(at(0)));
        assert!(!breaker.lets_through(at(999)));
        assert!(breaker.lets_through(at(1_000)), "one tries");
        assert!(!breaker.lets_through(at(1_000)), "and no other");
        breaker.failed(at(1_005));
        assert!(!breaker.lets_through(at(2_000)), "a pause from its failure on");
        assert!(breaker.lets_through(at(2_005)));
        breaker.succeeded();
        assert!(breaker.lets_through(at(2_005)) && breaker.lets_through(at(2_005)));
    }
}
