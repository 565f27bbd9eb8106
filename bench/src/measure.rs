//! Interleaving, medians and spread.
//!
//! The machine is small and shared, so an absolute figure says little and a figure from another run says
//! nothing. Contenders take turns within one run; what is reported is the ratio to the first of them,
//! taken round by round, as a median with the lowest and highest round.

use std::fmt;
use std::time::Duration;

use crate::Outcome;

/// Lets every contender run once per round. Every other round goes backwards, so that a drift of the
/// machine does not always hit the same one. One round in front is thrown away: caches are cold.
///
/// Returns one series per contender, in their order.
pub(crate) fn interleave<T, V: Clone>(
    rounds: usize,
    contenders: &mut [T],
    mut once: impl FnMut(&mut T) -> Outcome<V>,
) -> Outcome<Vec<Vec<V>>> {
    let mut series = vec![Vec::with_capacity(rounds); contenders.len()];
    for round in 0..=rounds {
        let mut order: Vec<usize> = (0..contenders.len()).collect();
        if round % 2 == 1 {
            order.reverse();
        }
        for index in order {
            let value = once(&mut contenders[index])?;
            if round > 0 {
                series[index].push(value);
            }
        }
    }
    Ok(series)
}

/// Median, lowest and highest of a series.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Summary {
    pub(crate) median: f64,
    pub(crate) low: f64,
    pub(crate) high: f64,
}

impl Summary {
    /// Of an empty series, all zero.
    pub(crate) fn of(values: &[f64]) -> Self {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let at = |index: usize| sorted.get(index).copied().unwrap_or_default();
        let last = sorted.len().saturating_sub(1);
        // Of an even number, between the two in the middle.
        Self { median: f64::midpoint(at(last / 2), at(last.div_ceil(2))), low: at(0), high: at(last) }
    }

    /// `series` over `base`, round by round.
    pub(crate) fn of_ratio(series: &[f64], base: &[f64]) -> Self {
        let ratios: Vec<f64> = series.iter().zip(base).map(|(value, base)| value / base).collect();
        Self::of(&ratios)
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.2} ({:.2}–{:.2})", self.median, self.low, self.high)
    }
}

/// The value below which `share` of the durations lie.
pub(crate) fn percentile(durations: &mut [Duration], share: f64) -> Duration {
    durations.sort_unstable();
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "an index within a small slice"
    )]
    let index = ((durations.len() as f64 * share) as usize).min(durations.len().saturating_sub(1));
    durations.get(index).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::{Summary, interleave};

    #[test]
    fn ratios_are_taken_within_a_round() {
        // The machine halves its speed in the second round; the contender is always twice as fast.
        let summary = Summary::of_ratio(&[200.0, 100.0, 200.0], &[100.0, 50.0, 100.0]);
        assert_eq!(summary.to_string(), "2.00 (2.00–2.00)");
    }

    #[test]
    fn a_median_is_in_the_middle() {
        let median = |values: &[f64]| Summary::of(values).median;
        assert_eq!(
            [median(&[]), median(&[3.0, 1.0]), median(&[9.0, 1.0, 2.0])].map(f64::to_bits),
            [0.0_f64.to_bits(), 2.0_f64.to_bits(), 2.0_f64.to_bits()]
        );
    }

    #[test]
    fn the_cold_round_is_dropped() {
        let mut calls = 0;
        let series = interleave(3, &mut [(), ()], |()| {
            calls += 1;
            Ok(1.0)
        })
        .unwrap();
        assert_eq!((calls, series[0].len(), series[1].len()), (8, 3, 3));
    }
}
