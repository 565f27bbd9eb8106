//! The clock of a store elsewhere: sampled over the network, and extrapolated in between.

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant, SystemTime};

use oncegate_core::time::{Now, Timestamp};
use oncegate_store::{Result, Store};
use tokio::sync::Notify;

use super::DRIFT_DIVISOR;
use super::step::{ClockStep, LatestTime, Steps};

/// The error of reading two clocks one after the other.
const READING_ERROR: Duration = Duration::from_millis(1);
/// The wall clock running this much ahead of the monotonic one means that the host was suspended,
/// or its clock was set.
const JUMP: Duration = Duration::from_millis(500);
/// How often the store is asked. In between the error grows, see [`DRIFT_DIVISOR`].
const SAMPLE_EVERY: Duration = Duration::from_secs(1);

/// After so long without a sample a step may have come unseen, because the error has grown by a
/// fifth of that.
const UNWATCHED_MAX: Duration = Duration::from_secs(5);

/// What the store's clock showed, and when.
#[derive(Clone, Copy, Debug)]
struct Sample {
    store: Timestamp,
    error: Duration,
    taken: Instant,
    wall: SystemTime,
}

impl Sample {
    /// What the store showed between two readings of this host's clocks. `taken` is the later one.
    ///
    /// The round trip is measured by both clocks and the longer one counts: the monotonic clock
    /// stands still while the host is suspended, and the wall clock may be set back.
    fn new(shown: Timestamp, asked: (Instant, SystemTime), taken: (Instant, SystemTime)) -> Self {
        let by_wall = taken.1.duration_since(asked.1).unwrap_or_default();
        let round_trip = taken.0.saturating_duration_since(asked.0).max(by_wall);
        Self {
            store: shown.plus(round_trip / 2),
            error: round_trip / 2 + READING_ERROR,
            taken: taken.0,
            wall: taken.1,
        }
    }

    async fn take<S: Store>(store: &S) -> Result<Self> {
        let asked = (Instant::now(), SystemTime::now());
        let shown = store.clock().await?;
        // The wall clock first: if this thread is stopped in between, the host looks suspended,
        // which widens the error.
        let wall = SystemTime::now();
        Ok(Self::new(shown, asked, (Instant::now(), wall)))
    }

    /// The store's time by the monotonic clock alone.
    fn extrapolated(&self, instant: Instant) -> Now {
        let elapsed = instant.saturating_duration_since(self.taken);
        Now { at: self.store.plus(elapsed), error: self.error + elapsed / DRIFT_DIVISOR }
    }

    /// The store's time. If the wall clock is ahead of the monotonic one, this host may have been
    /// suspended, and the error covers that.
    fn estimate(&self, instant: Instant, wall: SystemTime) -> (Now, Suspension) {
        let mut now = self.extrapolated(instant);
        let elapsed = instant.saturating_duration_since(self.taken);
        let ahead = wall.duration_since(self.wall).unwrap_or_default().saturating_sub(elapsed);
        if ahead <= JUMP {
            return (now, Suspension::None);
        }
        // Suspended, and so much time is gone; or the clock was set, and it is not. The time stays
        // until the store is asked: a later one could not be taken back.
        now.error += ahead;
        (now, Suspension::Possible)
    }
}

/// Whether this host may have been suspended since a sample was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Suspension {
    None,
    Possible,
}

pub(super) struct Sampler {
    last: Mutex<Sample>,
    latest: LatestTime,
    steps: Arc<Steps>,
    /// The clocks of this host disagree: ask the store now.
    jumped: Notify,
}

impl Sampler {
    /// Takes the first sample, and a task takes the others for as long as the sampler and the
    /// store live.
    pub(super) async fn start<S: Store>(store: &Arc<S>, steps: &Arc<Steps>) -> Result<Arc<Self>> {
        let sampler = Arc::new(Self::new(Sample::take(&**store).await?, Arc::clone(steps)));
        tokio::spawn(keep_sampled(Arc::downgrade(store), Arc::downgrade(&sampler)));
        Ok(sampler)
    }

    fn new(first: Sample, steps: Arc<Steps>) -> Self {
        Self { last: Mutex::new(first), latest: LatestTime::default(), steps, jumped: Notify::new() }
    }

    pub(super) fn now(&self, instant: Instant, wall: SystemTime) -> Now {
        let last = *self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let (now, suspension) = last.estimate(instant, wall);
        if suspension == Suspension::Possible {
            self.jumped.notify_one();
        }
        self.latest.advance(now)
    }

    /// Goes on by a new sample, unless the last one still gives the better time. One that
    /// contradicts the monotonic clock is a step: it counts however long its round trip took.
    fn keep(&self, new: Sample) {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let shown = Now { at: new.store, error: new.error };
        let step = ClockStep::between(last.extrapolated(new.taken), shown);
        if let Some(step) = step {
            self.steps.note(step, shown);
        } else if new.taken.saturating_duration_since(last.taken) > UNWATCHED_MAX {
            self.steps.begin(shown);
        }
        if step.is_some() || new.error <= last.estimate(new.taken, new.wall).0.error {
            *last = new;
        }
    }
}

async fn keep_sampled<S: Store>(store: Weak<S>, sampler: Weak<Sampler>) {
    loop {
        let Some(current) = sampler.upgrade() else { return };
        let _ = tokio::time::timeout(SAMPLE_EVERY, current.jumped.notified()).await;
        drop(current);
        let (Some(store), Some(sampler)) = (store.upgrade(), sampler.upgrade()) else { return };
        match Sample::take(&*store).await {
            Ok(sample) => sampler.keep(sample),
            Err(error) => {
                // The error grows with the sample's age, so an old one is still true.
                tracing::warn!(%error, "failed to read the store's clock; extrapolating from the last sample");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::step::{ClockSteps, NOTICED_WITHIN};

    fn at(s: u64) -> Timestamp {
        Timestamp::from_micros(i64::try_from(s * 1_000_000).unwrap())
    }

    fn sampler() -> (Sampler, Instant, SystemTime) {
        let (taken, wall) = (Instant::now(), SystemTime::now());
        let first = Sample { store: at(1_000), error: READING_ERROR, taken, wall };
        (Sampler::new(first, Arc::default()), taken, wall)
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
        assert_eq!(now.error, READING_ERROR + Duration::from_secs(12));
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
        assert!(!now.is_surely_past(at(1_060)), "the lease of another node is not taken for over");
    }

    /// The clock of this host was set forward by an hour, and the store's was not. Its time was
    /// told as half an hour later until it was sampled again, and time never runs backwards: for
    /// half an hour the node refused to execute, and what it wrote was due in the future.
    #[test]
    fn a_step_of_this_hosts_clock_alone_is_over_with_the_next_sample() {
        let (sampler, taken, wall) = sampler();
        let hour = Duration::from_hours(1);
        let unsure = sampler.now(taken, wall + hour);
        assert!(covers(unsure, at(1_000)) && unsure.error >= hour, "{unsure:?}");
        assert_eq!(unsure.at, at(1_000), "a time that may not have come is not told");
        let ms = Duration::from_millis(1);
        let (taken, wall) = (taken + ms, wall + hour + ms);
        sampler.keep(Sample { store: at(1_000).plus(ms), error: READING_ERROR, taken, wall });
        assert_eq!(sampler.now(taken, wall), Now { at: at(1_000).plus(ms), error: READING_ERROR });
        assert_eq!(sampler.steps.counts(), ClockSteps::default(), "the store's clock has not stepped");
    }

    /// The store could not be read for 30 seconds, and failed over to a server whose clock is 6
    /// seconds ahead. That lies within the error of the extrapolation, so no step was noticed, and
    /// a horizon ended 6 seconds early.
    #[test]
    fn attack_20_a_step_that_an_outage_may_hide_restarts_horizons() {
        let (sampler, taken, wall) = sampler();
        let after = |elapsed: Duration, store: Timestamp| Sample {
            store,
            error: READING_ERROR,
            taken: taken + elapsed,
            wall: wall + elapsed,
        };
        let second = Duration::from_secs(1);
        for n in 1..=3 {
            sampler.keep(after(n * second, at(1_000 + u64::from(n))));
        }
        assert_eq!(sampler.steps.steady_since(), Timestamp::FIRST, "it was watched all the time");
        let shown = after(33 * second, at(1_033 + 6));
        sampler.keep(shown);
        assert_eq!(sampler.steps.steady_since(), shown.store.plus(READING_ERROR + NOTICED_WITHIN));
        assert_eq!(sampler.steps.counts(), ClockSteps::default(), "nor is it known to be one");
        assert_eq!(sampler.now(shown.taken, shown.wall), Now { at: shown.store, error: READING_ERROR });
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

    /// The same as a lease that another node was granted after the failover: it is respected.
    #[test]
    fn attack_21_a_sample_that_is_set_back_widens_the_error_by_the_step() {
        let (sampler, taken, wall) = sampler();
        let _ = sampler.now(taken, wall);
        let second = Duration::from_secs(1);
        let (taken, wall) = (taken + second, wall + second);
        let _ = sampler.now(taken, wall);
        let back =
            Sample { store: at(1_001).minus(Duration::from_mins(10)), error: READING_ERROR, taken, wall };
        sampler.keep(back);
        let now = sampler.now(taken, wall);
        assert!(covers(now, back.store), "{now:?}");
        assert!(!now.is_surely_past(back.store.plus(Duration::from_mins(1))), "{now:?}");
        assert_eq!(sampler.steps.counts(), ClockSteps { forward: 0, back: 1 });
        assert_eq!(sampler.steps.steady_since(), Timestamp::FIRST);
    }

    /// A database fails over to a server whose clock is an hour ahead. The node went on as if an
    /// hour had passed. It must notice the step, and must not believe a "not found" before a
    /// horizon has passed since.
    #[test]
    fn attack_20_a_sample_that_contradicts_the_monotonic_clock_is_a_step() {
        let (sampler, taken, wall) = sampler();
        let second = Duration::from_secs(1);
        let next = |store: Timestamp| Sample {
            store,
            error: READING_ERROR,
            taken: taken + second,
            wall: wall + second,
        };
        sampler.keep(next(at(1_001).plus(Duration::from_millis(150))));
        assert_eq!(sampler.steps.counts(), ClockSteps::default(), "clocks drift");
        let ahead = Sample { taken: taken + 2 * second, wall: wall + 2 * second, ..next(at(1_002 + 3_600)) };
        sampler.keep(ahead);
        assert_eq!(sampler.steps.counts(), ClockSteps { forward: 1, back: 0 });
        assert_eq!(sampler.steps.steady_since(), at(1_002 + 3_600).plus(READING_ERROR + NOTICED_WITHIN));
        assert_eq!(sampler.now(ahead.taken, ahead.wall).at, ahead.store);
    }

    /// The clock of this host and that of the store are the same clock, and it is set forward.
    /// That looks like a suspended host, and an hour that has not passed must not end a horizon.
    #[test]
    fn attack_20_a_step_of_both_clocks_is_noticed_too() {
        let (sampler, taken, wall) = sampler();
        let (second, hour) = (Duration::from_secs(1), Duration::from_hours(1));
        let taken = taken + second;
        sampler.keep(Sample {
            store: at(1_001 + 3_600),
            error: READING_ERROR,
            taken,
            wall: wall + second + hour,
        });
        assert_eq!(sampler.steps.counts(), ClockSteps { forward: 1, back: 0 });
        assert!(sampler.steps.steady_since() >= at(1_001 + 3_600));
    }

    /// The host was suspended for an hour after the store had answered and before the answer was
    /// read. By the monotonic clock the round trip took 1 ms, so the sample was an hour old and
    /// claimed an error of 1 ms. Both clocks measure the round trip, and the longer one counts.
    #[test]
    fn attack_28_a_host_suspended_during_the_round_trip_knows_that_it_does_not_know_the_time() {
        let (asked, wall) = (Instant::now(), SystemTime::now());
        let (ms, hour) = (Duration::from_millis(1), Duration::from_hours(1));
        let sample = Sample::new(at(1_000), (asked, wall), (asked + ms, wall + hour));
        let now = Now { at: sample.store, error: sample.error };
        assert!(covers(now, at(1_000 + 3_600)), "the true time: {now:?}");
        assert!(covers(now, at(1_000)), "or the wall clock was set: {now:?}");

        let quick = Sample::new(at(1_000), (asked, wall), (asked + 2 * ms, wall + ms));
        assert_eq!((quick.store, quick.error), (at(1_000).plus(ms), ms + READING_ERROR));
        let set_back = Sample::new(at(1_000), (asked, wall), (asked + 2 * ms, wall - hour));
        assert_eq!((set_back.store, set_back.error), (quick.store, quick.error));
    }

    /// A sample with a round trip of a minute replaced one with a round trip of 1 ms, and the node
    /// lost its good time until the next sample.
    #[test]
    fn attack_28_a_much_worse_sample_does_not_replace_a_good_one() {
        let (sampler, taken, wall) = sampler();
        let second = Duration::from_secs(1);
        let (taken, wall) = (taken + second, wall + second);
        let good = sampler.now(taken, wall);
        sampler.keep(Sample { store: at(1_010), error: Duration::from_secs(30), taken, wall });
        assert_eq!(sampler.now(taken, wall), good);
        // Also a slow sample proves a step, if it lies outside of both errors.
        sampler.keep(Sample { store: at(2_000), error: Duration::from_secs(30), taken, wall });
        assert_eq!(sampler.now(taken, wall), Now { at: at(2_000), error: Duration::from_secs(30) });
        assert_eq!(sampler.steps.counts(), ClockSteps { forward: 1, back: 0 });
        // A better one follows it.
        sampler.keep(Sample { store: at(2_001), error: READING_ERROR, taken, wall });
        assert_eq!(sampler.now(taken, wall), Now { at: at(2_001), error: READING_ERROR });
    }
}
