//! Time inside the system is the store's time, in microseconds, with a stated error.
//!
//! **Invariant:** nothing here reads a clock. A node samples its store's clock and passes a [`Now`]; its error ε is
//! paid as waiting (a lease is held until its end − ε, and is lapsed for others from its end + ε), never as a second
//! effect.

use std::time::Duration;

/// A moment by the store's clock: microseconds since the Unix epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(i64);

impl Timestamp {
    /// No moment is before it.
    pub const FIRST: Self = Self(i64::MIN);

    /// A moment that does not come.
    pub const NEVER: Self = Self(i64::MAX);

    /// The moment this many microseconds after the Unix epoch.
    #[must_use]
    pub const fn from_micros(micros: i64) -> Self {
        Self(micros)
    }

    /// Microseconds since the Unix epoch.
    #[must_use]
    pub const fn as_micros(self) -> i64 {
        self.0
    }

    /// Later by `span`; stays at the end of time rather than wrapping.
    #[must_use]
    pub fn plus(self, span: Duration) -> Self {
        Self(self.0.saturating_add(micros(span)))
    }

    /// Earlier by `span`; stays at the beginning of time rather than wrapping.
    #[must_use]
    pub fn minus(self, span: Duration) -> Self {
        Self(self.0.saturating_sub(micros(span)))
    }

    /// How long after `earlier` this is; zero if it is not.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }
}

/// The present, as well as this node knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// The best estimate of the store's time.
    pub at: Timestamp,
    /// ε: how far off `at` may be, either way.
    pub error: Duration,
}

impl Now {
    /// A present without error: the store's own clock, read in this very moment.
    #[must_use]
    pub const fn exact(at: Timestamp) -> Self {
        Self { at, error: Duration::ZERO }
    }

    /// The earliest moment that this can be. What is due at once is due from here, by every clock.
    #[must_use]
    pub fn earliest(self) -> Timestamp {
        self.at.minus(self.error)
    }

    /// Even the slowest clock agrees that `moment` has come. For taking something from somebody else.
    #[must_use]
    pub fn is_surely_past(self, moment: Timestamp) -> bool {
        self.earliest() >= moment
    }

    /// By some clock `moment` may have come. For giving up something of one's own.
    #[must_use]
    pub fn may_be_past(self, moment: Timestamp) -> bool {
        self.at.plus(self.error) >= moment
    }
}

/// A span in whole microseconds, as stores keep it; saturates at 292,000 years.
#[must_use]
pub fn micros(span: Duration) -> i64 {
    i64::try_from(span.as_micros()).unwrap_or(i64::MAX)
}
