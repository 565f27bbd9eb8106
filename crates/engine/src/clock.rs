//! The store's time, as this node knows it.
//!
//! **Invariants:** time never runs backwards, and the true time of the store is within `error` of what is said, also after
//! this host was suspended.

use std::fmt;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use oncegate_core::time::{Now, Timestamp};
use oncegate_store::clock::Clock;
use oncegate_store::{Result, Store};
use tokio::sync::Notify;

/// Two clocks of good quartz drift apart by no more than this: 1 in 2,000.
const DRIFT_DIVISOR: u32 = 2_000;
/// What reading two clocks one after the other may cost.
const READING_ERROR: Duration = Duration::from_millis(1);
/// The wall clock running this much ahead of the monotonic one means that the host was suspended, or its clock was set.
const JUMP: Duration = Duration::from_millis(500);
const SAMPLE_EVERY: Duration = Duration::from_secs(10);

/// Where a node takes its time from.
#[derive(Clone)]
pub struct NodeClock(Source);

#[derive(Clone)]
enum Source {
    /// The store's clock is in this process.
    Local(Clock),
    /// Asked for now and then.
    Sampled(Arc<Sampler>),
    /// As a test says.
    Given(Arc<dyn Fn() -> Now + Send + Sync>),
}

impl NodeClock {
    /// A clock made of a function. For tests: two nodes whose clocks are apart.
    #[must_use]
    pub fn from_fn(read: impl Fn() -> Now + Send + Sync + 'static) -> Self {
        Self(Source::Given(Arc::new(read)))
    }

    /// The clock of `store`; sampled, and kept so by a task, if it is not in this process.
    pub(crate) async fn of_store<S: Store>(store: &Arc<S>) -> Result<Self> {
        if let Some(clock) = store.local_clock() {
            return Ok(Self(Source::Local(clock)));
        }
        let sampler = Arc::new(Sampler::new(sample(&**store).await?));
        tokio::spawn(keep_sampled(Arc::downgrade(store), Arc::downgrade(&sampler)));
        Ok(Self(Source::Sampled(sampler)))
    }

    /// The present.
    #[must_use]
    pub fn now(&self) -> Now {
        match &self.0 {
            Source::Local(clock) => Now::exact(clock.now()),
            Source::Given(read) => read(),
            Source::Sampled(sampler) => sampler.now(Instant::now(), SystemTime::now()),
        }
    }
}

impl fmt::Debug for NodeClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NodeClock({:?})", self.now())
    }
}

/// What the store's clock showed, and when.
#[derive(Clone, Copy, Debug)]
struct Sample {
    store: Timestamp,
    error: Duration,
    taken: Instant,
    wall: SystemTime,
}

async fn sample<S: Store>(store: &S) -> Result<Sample> {
    let asked = Instant::now();
    let shown = store.clock().await?;
    let round_trip = asked.elapsed();
    Ok(Sample {
        store: shown.plus(round_trip / 2),
        error: round_trip / 2 + READING_ERROR,
        taken: Instant::now(),
        wall: SystemTime::now(),
    })
}

struct Sampler {
    last: Mutex<Sample>,
    /// The latest time that was ever said.
    said: AtomicI64,
    /// The clocks of this host disagree: ask the store now.
    jumped: Notify,
}

impl Sampler {
    fn new(first: Sample) -> Self {
        Self { last: Mutex::new(first), said: AtomicI64::new(i64::MIN), jumped: Notify::new() }
    }

    fn now(&self, instant: Instant, wall: SystemTime) -> Now {
        let last = *self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let elapsed = instant.saturating_duration_since(last.taken);
        let ahead = wall.duration_since(last.wall).unwrap_or_default().saturating_sub(elapsed);
        let mut now = Now { at: last.store.plus(elapsed), error: last.error + elapsed / DRIFT_DIVISOR };
        if ahead > JUMP {
            // Suspended, and so much time is gone; or the clock was set, and it is not. Between the two, until the store is asked.
            now.at = now.at.plus(ahead / 2);
            now.error += ahead / 2;
            self.jumped.notify_one();
        }
        let said = self.said.fetch_max(now.at.as_micros(), Ordering::AcqRel);
        if said > now.at.as_micros() {
            let said = Timestamp::from_micros(said);
            now.error += said.since(now.at);
            now.at = said;
        }
        now
    }

    fn keep(&self, sample: Sample) {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = sample;
    }
}

async fn keep_sampled<S: Store>(store: std::sync::Weak<S>, sampler: std::sync::Weak<Sampler>) {
    loop {
        let Some(current) = sampler.upgrade() else { return };
        let _ = tokio::time::timeout(SAMPLE_EVERY, current.jumped.notified()).await;
        drop(current);
        let (Some(store), Some(sampler)) = (store.upgrade(), sampler.upgrade()) else { return };
        match sample(&*store).await {
            Ok(sample) => sampler.keep(sample),
            Err(error) => {
                // The error grows with the sample's age, so an old one is still true.
                tracing::warn!(%error, "the store's clock could not be read; going on by the last reading");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(s: u64) -> Timestamp {
        Timestamp::from_micros(i64::try_from(s * 1_000_000).unwrap())
    }

    fn sampler() -> (Sampler, Instant, SystemTime) {
        let (taken, wall) = (Instant::now(), SystemTime::now());
        (Sampler::new(Sample { store: at(1_000), error: READING_ERROR, taken, wall }), taken, wall)
    }

    fn covers(now: Now, truth: Timestamp) -> bool {
        now.at.minus(now.error) <= truth && truth <= now.at.plus(now.error)
    }

    #[test]
    fn the_error_grows_until_the_store_is_asked_again() {
        let (sampler, taken, wall) = sampler();
        let minute = Duration::from_mins(1);
        let now = sampler.now(taken + minute, wall + minute);
        assert_eq!(now.at, at(1_060));
        assert_eq!(now.error, READING_ERROR + Duration::from_millis(30));
    }

    /// A suspended host's monotonic clock stands still: an hour is gone, and a lease with it.
    #[test]
    fn a_suspended_host_does_not_believe_its_old_leases() {
        let (sampler, taken, wall) = sampler();
        let hour = Duration::from_hours(1);
        let now = sampler.now(taken, wall + hour);
        assert!(covers(now, at(1_000 + 3_600)), "if it slept: {now:?}");
        assert!(covers(now, at(1_000)), "if its clock was set: {now:?}");
        assert!(now.may_be_past(at(1_060)), "a lease of a minute may be over");
        assert!(!now.is_surely_past(at(1_060)), "nobody else's lease is taken for over");
    }

    #[test]
    fn time_never_runs_backwards_also_across_a_failover_to_a_slow_clock() {
        let (sampler, taken, wall) = sampler();
        let ten = Duration::from_secs(10);
        let before = sampler.now(taken + ten, wall + ten);
        sampler.keep(Sample { store: at(1_003), error: READING_ERROR, taken: taken + ten, wall: wall + ten });
        let after = sampler.now(taken + ten, wall + ten);
        assert_eq!(after.at, before.at);
        assert!(covers(after, at(1_003)), "the new store's time is within the error: {after:?}");
    }
}
