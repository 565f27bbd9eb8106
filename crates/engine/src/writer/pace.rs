//! When to let a batch grow.
//!
//! A lone request never waits: it is all that is in flight. Under load a commit costs the same for one write as for many,
//! so a short wait for those who are about to come saves commits, and the processor time in them. Numbers in
//! docs/decisions/0006-engine.md.

use std::time::Duration;

/// Batches of this size show that others are about to come.
const FROM: u32 = 4;
/// So many requests in flight are written together; of more, one half is written while the other half is answered.
const TOGETHER: usize = 32;
/// How slowly the average follows, as a power of two.
const SMOOTHING: u32 = 3;

/// Watches how large batches are.
#[derive(Debug)]
pub(super) struct Pace {
    linger: Duration,
    /// The moving average of batch sizes, times 2^`SMOOTHING`.
    average: u32,
}

impl Pace {
    pub(super) const fn new(linger: Duration) -> Self {
        Self { linger, average: 1 << SMOOTHING }
    }

    /// The longest wait.
    pub(super) const fn linger(&self) -> Duration {
        self.linger
    }

    /// How many to wait for, given how many are here and how many requests are in flight; `None`: do not wait.
    pub(super) fn wanted(&self, here: usize, in_flight: usize, batch_max: usize) -> Option<usize> {
        let average = self.average >> SMOOTHING;
        let others = if in_flight <= TOGETHER { in_flight } else { in_flight / 2 };
        // As many again as usual: batches double until nobody is left to wait for.
        let wanted = (2 * average as usize).min(others).min(batch_max);
        (average >= FROM && wanted > here && !self.linger.is_zero()).then_some(wanted)
    }

    /// A batch of this size was taken.
    pub(super) fn took(&mut self, writes: usize) {
        let writes = u32::try_from(writes).unwrap_or(u32::MAX >> SMOOTHING);
        self.average = self.average - (self.average >> SMOOTHING) + writes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(batches: &[usize]) -> Pace {
        let mut pace = Pace::new(Duration::from_micros(300));
        for size in batches {
            pace.took(*size);
        }
        pace
    }

    #[test]
    fn a_lone_request_never_waits_also_in_the_middle_of_a_storm() {
        let pace = after(&[256; 100]);
        assert_eq!(pace.wanted(1, 1, 256), None, "all that is in flight is here");
        assert_eq!(after(&[1; 100]).wanted(1, 500, 256), None, "the others are busy elsewhere");
    }

    #[test]
    fn under_load_batches_grow_up_to_what_is_in_flight() {
        assert_eq!(after(&[8; 100]).wanted(7, 256, 256), Some(16));
        assert_eq!(after(&[8; 100]).wanted(7, 12, 256), Some(12));
        assert_eq!(after(&[60; 100]).wanted(7, 64, 256), Some(32), "the other half is being answered");
        assert_eq!(after(&[200; 100]).wanted(100, 1_000, 256), Some(256));
        assert_eq!(after(&[200; 100]).wanted(256, 1_000, 256), None, "it is full");
    }
}
