//! How fast a body must come. Pure: the caller passes `now`.
//!
//! A body has credit: time for which it may be waited for. It begins with `timeout`, is spent while
//! the gateway waits, and is earned by what comes, a second by `rate_min` bytes, up to `timeout`
//! again. So no body is slower than `rate_min` for longer than `timeout`, however fast it was
//! before; and time that the upstream takes to read it is not the client's.

use std::fmt;
use std::time::Duration;

use tokio::time::Instant;

use crate::config::Listen;

/// What is demanded of bodies.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BodyRules {
    /// How long it may stand still, or be too slow.
    pub(crate) timeout: Duration,
    /// How long it may take in all.
    pub(crate) deadline: Duration,
    /// Bytes per second; 0: any rate will do.
    pub(crate) rate_min: u64,
}

impl BodyRules {
    pub(crate) const fn of(listen: &Listen) -> Self {
        Self { timeout: listen.body_timeout, deadline: listen.body_deadline, rate_min: listen.body_rate_min }
    }
}

/// Which rule was broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TooSlow {
    /// It stood still, or was slower than it may be.
    Rate { rate_min: u64, timeout: Duration },
    /// It took too long in all.
    Deadline(Duration),
}

impl fmt::Display for TooSlow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rate { rate_min: 0, timeout } => {
                write!(f, "Nothing of the body came for {}", humantime::format_duration(*timeout))
            }
            Self::Rate { rate_min, timeout } => write!(
                f,
                "The body came more slowly than {rate_min} bytes per second for {}",
                humantime::format_duration(*timeout)
            ),
            Self::Deadline(deadline) => {
                write!(f, "The body did not come whole within {}", humantime::format_duration(*deadline))
            }
        }
    }
}

/// The credit of one body.
#[derive(Debug)]
pub(super) struct Pace {
    rules: BodyRules,
    credit: Duration,
    end: Instant,
    waiting_since: Option<Instant>,
}

impl Pace {
    pub(super) fn new(rules: BodyRules, now: Instant) -> Self {
        // A span that no clock reaches is no limit.
        let end = now.checked_add(rules.deadline).unwrap_or_else(|| now + FAR);
        Self { rules, credit: rules.timeout.min(FAR), end, waiting_since: None }
    }

    /// Something is waited for: until when.
    pub(super) fn wait(&mut self, now: Instant) -> Instant {
        let since = *self.waiting_since.get_or_insert(now);
        (since + self.credit).min(self.end)
    }

    /// So much has come.
    pub(super) fn came(&mut self, bytes: usize, now: Instant) -> Result<(), TooSlow> {
        if let Some(since) = self.waiting_since.take() {
            let left = self.credit.saturating_sub(now - since);
            self.credit = left.saturating_add(self.earned(bytes)).min(self.rules.timeout).min(FAR);
        }
        if now < self.end { Ok(()) } else { Err(TooSlow::Deadline(self.rules.deadline)) }
    }

    /// Which rule ends a body that was waited for until then.
    pub(super) fn fault(&self, until: Instant) -> TooSlow {
        if until >= self.end {
            return TooSlow::Deadline(self.rules.deadline);
        }
        TooSlow::Rate { rate_min: self.rules.rate_min, timeout: self.rules.timeout }
    }

    fn earned(&self, bytes: usize) -> Duration {
        if self.rules.rate_min == 0 {
            return self.rules.timeout;
        }
        let nanos = (bytes as u128 * 1_000_000_000) / u128::from(self.rules.rate_min);
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

/// Longer than any body takes.
const FAR: Duration = Duration::from_hours(24 * 365);

#[cfg(test)]
mod tests {
    use super::*;

    const RULES: BodyRules =
        BodyRules { timeout: Duration::from_secs(30), deadline: Duration::from_mins(30), rate_min: 240 };

    /// Pieces of so many bytes, each after so many seconds: how many come until the body is given
    /// up, and why.
    fn run(rules: BodyRules, bytes: usize, pause_s: u64) -> (usize, TooSlow) {
        let mut now = Instant::now();
        let mut pace = Pace::new(rules, now);
        for pieces in 0..100_000 {
            let until = pace.wait(now);
            let next = now + Duration::from_secs(pause_s);
            if until <= next {
                return (pieces, pace.fault(until));
            }
            now = next;
            if let Err(slow) = pace.came(bytes, now) {
                return (pieces, slow);
            }
        }
        panic!("it is never given up")
    }

    const RATE: TooSlow = TooSlow::Rate { rate_min: 240, timeout: RULES.timeout };
    const DEADLINE: TooSlow = TooSlow::Deadline(RULES.deadline);

    #[tokio::test(start_paused = true)]
    async fn a_byte_now_and_then_buys_no_time() {
        assert_eq!(run(RULES, 1, 20), (1, RATE));
        assert_eq!(run(RULES, 1, 1).1, RATE);
        assert_eq!(run(RULES, 120, 1).1, RATE);
        // As fast as it must be, until the deadline.
        assert_eq!(run(RULES, 240, 1), (1799, DEADLINE));
        assert_eq!(run(RULES, 240 * 29, 29).1, DEADLINE);
        // What came before is worth no more than the timeout.
        assert_eq!(run(RULES, 1 << 30, 29).1, DEADLINE);
        assert_eq!(run(RULES, 1 << 30, 30), (0, RATE));
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_rate_only_silence_counts() {
        let rules = BodyRules { rate_min: 0, ..RULES };
        assert_eq!(run(rules, 1, 29).1, DEADLINE);
        assert_eq!(run(rules, 1, 30), (0, TooSlow::Rate { rate_min: 0, timeout: RULES.timeout }));
    }

    /// The upstream reads slowly; the client sends as soon as it is asked to.
    #[tokio::test(start_paused = true)]
    async fn time_that_nobody_waits_for_the_client_costs_it_nothing() {
        let mut now = Instant::now();
        let mut pace = Pace::new(BodyRules { deadline: Duration::MAX, ..RULES }, now);
        for _ in 0..100 {
            now += Duration::from_mins(1);
            assert_eq!(pace.wait(now), now + RULES.timeout);
            assert_eq!(pace.came(1, now), Ok(()));
        }
    }
}
