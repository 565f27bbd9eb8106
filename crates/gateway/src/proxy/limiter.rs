//! How many requests are at the upstream, and how many wait for their turn.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use oncegate_core::classify::Failure;
use oncegate_tower::Failed;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit};

use crate::config::Limits;

/// Counts them. What it refuses was not sent.
pub(crate) struct Limiter {
    /// All requests at once, whatever they wait for: each may hold a body.
    requests: Semaphore,
    executions: Arc<Semaphore>,
    waiting: AtomicUsize,
    queue_max: usize,
    queue_timeout: Duration,
}

/// A place at the upstream.
pub(crate) struct Permit(
    #[expect(dead_code, reason = "held, and given back when dropped")] OwnedSemaphorePermit,
);

impl Limiter {
    pub(crate) fn new(limits: &Limits) -> Self {
        Self {
            requests: Semaphore::new(limits.requests_max),
            executions: Arc::new(Semaphore::new(limits.executions_max)),
            waiting: AtomicUsize::new(0),
            queue_max: limits.queue_max,
            queue_timeout: limits.queue_timeout,
        }
    }

    /// Nobody more could even wait: a request that comes now is refused before anything is recorded about it.
    pub(crate) fn is_full(&self) -> bool {
        self.requests.available_permits() == 0
            || self.executions.available_permits() == 0
                && self.waiting.load(Ordering::Acquire) >= self.queue_max
    }

    /// Lets a request in, until it is answered; `None`: it is shed.
    pub(crate) fn admit(&self) -> Option<SemaphorePermit<'_>> {
        if self.is_full() { None } else { self.requests.try_acquire().ok() }
    }

    /// A place that is free now.
    pub(crate) fn enter_now(&self) -> Option<Permit> {
        Arc::clone(&self.executions).try_acquire_owned().ok().map(Permit)
    }

    pub(crate) async fn enter(&self) -> Result<Permit, Failed> {
        if let Some(permit) = self.enter_now() {
            return Ok(permit);
        }
        let _place = self.wait_in_line().ok_or(Failed(Failure::QueueFull))?;
        let turn = Arc::clone(&self.executions).acquire_owned();
        match tokio::time::timeout(self.queue_timeout, turn).await {
            Ok(Ok(permit)) => Ok(Permit(permit)),
            Ok(Err(_)) | Err(_) => Err(Failed(Failure::QueueFull)),
        }
    }

    fn wait_in_line(&self) -> Option<Place<'_>> {
        let before = self.waiting.fetch_add(1, Ordering::AcqRel);
        let place = Place(self);
        (before < self.queue_max).then_some(place)
    }
}

/// A place in the queue, given back when dropped.
struct Place<'l>(&'l Limiter);

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn some_run_some_wait_and_the_rest_is_refused() {
        let limits = Limits {
            requests_max: 9,
            executions_max: 2,
            queue_max: 1,
            queue_timeout: Duration::from_mins(1),
        };
        let limiter = Limiter::new(&limits);
        let first = limiter.enter().now_or_never().expect("room").expect("room");
        let _second = limiter.enter().now_or_never().expect("room").expect("room");
        assert!(!limiter.is_full(), "one may wait");
        let mut third = Box::pin(limiter.enter());
        assert!(third.as_mut().now_or_never().is_none(), "it waits");
        assert!(limiter.is_full());
        let refused = limiter.enter().now_or_never().expect("at once");
        assert_eq!(refused.err(), Some(Failed(Failure::QueueFull)));
        drop(first);
        assert!(third.now_or_never().expect("its turn").is_ok());
        assert!(!limiter.is_full(), "a place in the queue is given back");
    }

    #[test]
    fn requests_are_let_in_until_there_are_too_many() {
        let limits =
            Limits { requests_max: 2, executions_max: 9, queue_max: 9, queue_timeout: Duration::ZERO };
        let limiter = Limiter::new(&limits);
        let first = limiter.admit().expect("room");
        let _second = limiter.admit().expect("room");
        assert!(limiter.is_full() && limiter.admit().is_none());
        drop(first);
        assert!(limiter.admit().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_waits_for_ever() {
        let limits = Limits {
            requests_max: 9,
            executions_max: 1,
            queue_max: 9,
            queue_timeout: Duration::from_secs(5),
        };
        let limiter = Limiter::new(&limits);
        let _first = limiter.enter().await.expect("room");
        assert_eq!(limiter.enter().await.err(), Some(Failed(Failure::QueueFull)));
        assert_eq!(limiter.waiting.load(Ordering::Acquire), 0);
    }
}
