//! Clocks for stores that have none of their own: memory, and files on one machine.
//!
//! A clock here says what the machine says and may step when the machine's clock is set. The
//! engine watches for steps and states the error that follows from them
//! (`oncegate_engine::NodeClock`).

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use oncegate_core::time::Timestamp;

/// Where an embedded store takes its time from. Tests pass one that they turn by hand.
#[derive(Clone)]
pub struct Clock {
    read: Arc<dyn Fn() -> Timestamp + Send + Sync>,
    pace: Pace,
}

/// How fast a clock runs between two readings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// As time passes: if it runs apart from the machine's monotonic clock, it was set.
    RealTime,
    /// As a test says.
    ByHand,
}

impl Clock {
    /// A clock made of a function, which a test turns by hand.
    #[must_use]
    pub fn from_fn(read: impl Fn() -> Timestamp + Send + Sync + 'static) -> Self {
        Self { read: Arc::new(read), pace: Pace::ByHand }
    }

    /// This machine's wall clock. It may be set, forward and back.
    #[must_use]
    pub fn system() -> Self {
        let read = || {
            let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            Timestamp::from_micros(i64::try_from(since_epoch.as_micros()).unwrap_or(i64::MAX))
        };
        Self { read: Arc::new(read), pace: Pace::RealTime }
    }

    /// The same clock, set to what `set` makes of its time.
    #[must_use]
    pub fn set_to(self, set: impl Fn(Timestamp) -> Timestamp + Send + Sync + 'static) -> Self {
        let Self { read, pace } = self;
        Self { read: Arc::new(move || set(read())), pace }
    }

    /// The time.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        (self.read)()
    }

    /// How fast it runs.
    #[must_use]
    pub const fn pace(&self) -> Pace {
        self.pace
    }
}

impl std::fmt::Debug for Clock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Clock({:?})", self.now())
    }
}
