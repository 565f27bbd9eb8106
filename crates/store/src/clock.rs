//! Clocks for stores that have none of their own: memory, and files on one machine.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use oncegate_core::time::Timestamp;

/// Where an embedded store takes its time from. Tests pass one that they turn by hand.
#[derive(Clone)]
pub struct Clock(Arc<dyn Fn() -> Timestamp + Send + Sync>);

impl Clock {
    /// A clock made of a function.
    #[must_use]
    pub fn from_fn(read: impl Fn() -> Timestamp + Send + Sync + 'static) -> Self {
        Self(Arc::new(read))
    }

    /// This machine's clock. It stands still while the machine's clock is set back: time never runs backwards.
    #[must_use]
    pub fn system() -> Self {
        static LATEST: AtomicI64 = AtomicI64::new(i64::MIN);
        Self::from_fn(|| {
            let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            let micros = i64::try_from(since_epoch.as_micros()).unwrap_or(i64::MAX);
            Timestamp::from_micros(LATEST.fetch_max(micros, Ordering::Relaxed).max(micros))
        })
    }

    /// The time.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        (self.0)()
    }
}

impl std::fmt::Debug for Clock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Clock({:?})", self.now())
    }
}
