//! Fails closed, fast: while the store is down nobody waits to be told so.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Counts failed commits in a row.
#[derive(Debug)]
pub(crate) struct Breaker {
    failures_max: u32,
    pause_ms: u64,
    started: Instant,
    failures: AtomicU32,
    /// While open: when the next one is let through, in milliseconds since the start.
    next_try_ms: AtomicU64,
}

impl Breaker {
    pub(crate) fn new(failures_max: u32, pause: Duration) -> Self {
        Self {
            failures_max,
            pause_ms: u64::try_from(pause.as_millis()).unwrap_or(u64::MAX),
            started: Instant::now(),
            failures: AtomicU32::new(0),
            next_try_ms: AtomicU64::new(0),
        }
    }

    /// Whether a new request may ask the store. While open, one is let through each pause, to look.
    pub(crate) fn admits(&self) -> bool {
        if self.failures.load(Ordering::Acquire) < self.failures_max {
            return true;
        }
        let now_ms = self.now_ms();
        let next = self.next_try_ms.load(Ordering::Acquire);
        let later = now_ms.saturating_add(self.pause_ms);
        now_ms >= next
            && self.next_try_ms.compare_exchange(next, later, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// The store has answered.
    pub(crate) fn succeeded(&self) {
        if self.failures.swap(0, Ordering::AcqRel) >= self.failures_max {
            tracing::info!("the store answers again; new requests are admitted");
        }
    }

    /// The store has failed, or has not answered in time.
    pub(crate) fn failed(&self) {
        let failures = self.failures.fetch_add(1, Ordering::AcqRel).saturating_add(1);
        if failures >= self.failures_max {
            self.next_try_ms.store(self.now_ms().saturating_add(self.pause_ms), Ordering::Release);
        }
        if failures == self.failures_max {
            tracing::error!(
                failures,
                "the store fails; new requests are refused until it answers, nothing is executed"
            );
        }
    }

    /// How long until the next one is let through.
    pub(crate) fn pause(&self) -> Duration {
        Duration::from_millis(self.pause_ms)
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opens_after_failures_in_a_row_and_lets_one_through_to_look() {
        let breaker = Breaker::new(3, Duration::ZERO);
        for _ in 0..2 {
            breaker.failed();
        }
        breaker.succeeded();
        for _ in 0..2 {
            breaker.failed();
            assert!(breaker.admits(), "not in a row");
        }
        let breaker = Breaker::new(1, Duration::from_hours(1));
        breaker.failed();
        assert!(!breaker.admits());
        breaker.next_try_ms.store(0, Ordering::Release);
        assert!(breaker.admits(), "one may look");
        assert!(!breaker.admits(), "and only one");
        breaker.succeeded();
        assert!(breaker.admits());
    }
}
