//! Time and chance.

use std::future::{Future, ready};
use std::pin::Pin;
use std::time::{Duration, Instant, SystemTime};

/// A wait, under way.
pub type Waiting<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

/// Time and chance, as the client sees them between tries. Its own unless told otherwise; tests bring one that does not wait.
///
/// The time of a try is the runtime's: a server that does not answer is waited for.
pub trait Pace: Send + Sync + 'static {
    /// For the deadline: never runs backwards.
    fn now(&self) -> Instant;

    /// What a calendar says, for a `Retry-After` that is a date in an answer without one.
    fn date(&self) -> SystemTime;

    /// A number from 0 and below 1: the jitter.
    fn dice(&self) -> f64;

    /// Waits for so long, before it is asked again.
    fn wait(&self, span: Duration) -> Waiting<'_>;
}

/// The runtime's time, and a die.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Real;

impl Pace for Real {
    fn now(&self) -> Instant {
        tokio::time::Instant::now().into_std()
    }

    fn date(&self) -> SystemTime {
        SystemTime::now()
    }

    fn dice(&self) -> f64 {
        fastrand::f64()
    }

    fn wait(&self, span: Duration) -> Waiting<'_> {
        if span.is_zero() { Box::pin(ready(())) } else { Box::pin(tokio::time::sleep(span)) }
    }
}
