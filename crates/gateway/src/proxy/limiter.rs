//! How many requests are at the upstream, wait for their turn, or are still coming.
//!
//! **Invariant:** a body that is still coming holds no place that others need. While it is waited
//! for it has one of `bodies`; a request takes one of `requests` when its body is whole. A body
//! that is streamed holds one of `requests` and one of `executions` meanwhile, but no more than
//! half of either are for streams, and no more than half of those for one address.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use oncegate_core::classify::Failure;
use oncegate_tower::{Failed, RequestLimit};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::config::Limits;
use crate::public::{PeerUpload, PeerUsage};

/// Counts them. What it refuses was not sent.
pub(crate) struct Limiter {
    /// Requests that have come whole, whatever they wait for: each may hold a body.
    requests: Arc<Semaphore>,
    /// Bodies that are waited for: each may be in memory.
    bodies: Arc<Semaphore>,
    /// Bodies that are streamed to the upstream while they come.
    uploads: Arc<Semaphore>,
    uploads_per_peer_max: usize,
    executions: Arc<Semaphore>,
    waiting: AtomicUsize,
    queue_max: usize,
    queue_timeout: Duration,
}

/// A place at the upstream.
pub(crate) struct Permit(
    #[expect(dead_code, reason = "held, and given back when dropped")] OwnedSemaphorePermit,
);

/// A place for a body that is still coming.
pub(crate) struct BodyPlace {
    _permit: OwnedSemaphorePermit,
    _upload: Option<PeerUpload>,
}

impl Limiter {
    pub(crate) fn new(limits: &Limits) -> Self {
        let uploads_max = half(limits.executions_max.min(limits.requests_max));
        Self {
            requests: Arc::new(Semaphore::new(limits.requests_max)),
            bodies: Arc::new(Semaphore::new(limits.requests_max)),
            uploads: Arc::new(Semaphore::new(uploads_max)),
            uploads_per_peer_max: half(uploads_max),
            executions: Arc::new(Semaphore::new(limits.executions_max)),
            waiting: AtomicUsize::new(0),
            queue_max: limits.queue_max,
            queue_timeout: limits.queue_timeout,
        }
    }

    /// No other request could even wait: one that comes now is refused before anything is recorded
    /// about it.
    pub(crate) fn is_full(&self) -> bool {
        self.requests.available_permits() == 0
            || self.executions.available_permits() == 0
                && self.waiting.load(Ordering::Acquire) >= self.queue_max
    }

    /// A place for a body that is waited for, and kept in memory; `None`: there are too many.
    pub(crate) fn wait_for_body(&self) -> Option<BodyPlace> {
        let permit = Arc::clone(&self.bodies).try_acquire_owned().ok()?;
        Some(BodyPlace { _permit: permit, _upload: None })
    }

    /// A place for a body that is streamed to the upstream. Who waits for one stands in no queue
    /// that others need.
    pub(crate) async fn begin_upload(&self, peer: &Arc<PeerUsage>) -> Result<BodyPlace, Failed> {
        let upload = peer.begin_upload(self.uploads_per_peer_max).ok_or(Failed(Failure::QueueFull))?;
        let turn = Arc::clone(&self.uploads).acquire_owned();
        match tokio::time::timeout(self.queue_timeout, turn).await {
            Ok(Ok(permit)) => Ok(BodyPlace { _permit: permit, _upload: Some(upload) }),
            Ok(Err(_)) | Err(_) => Err(Failed(Failure::QueueFull)),
        }
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

impl RequestLimit for Limiter {
    fn admit(&self) -> Option<OwnedSemaphorePermit> {
        if self.is_full() { None } else { Arc::clone(&self.requests).try_acquire_owned().ok() }
    }
}

/// Half of a number, and at least one.
const fn half(number: usize) -> usize {
    if number < 2 { 1 } else { number / 2 }
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

    fn limits(requests_max: usize, executions_max: usize, queue_max: usize) -> Limits {
        Limits {
            requests_max,
            executions_max,
            queue_max,
            queue_timeout: Duration::from_secs(5),
            per_peer_connections_max: 9,
            per_peer_requests_max: 9,
            per_peer_exempt: None,
        }
    }

    #[tokio::test]
    async fn some_run_some_wait_and_the_rest_is_refused() {
        let limiter = Limiter::new(&limits(9, 2, 1));
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
        let limiter = Limiter::new(&limits(2, 9, 9));
        let first = limiter.admit().expect("room");
        let _second = limiter.admit().expect("room");
        assert!(limiter.is_full() && limiter.admit().is_none());
        drop(first);
        assert!(limiter.admit().is_some());
    }

    #[test]
    fn bodies_that_are_waited_for_take_no_place_of_requests() {
        let limiter = Limiter::new(&limits(2, 9, 9));
        let first = limiter.wait_for_body().expect("room");
        let _second = limiter.wait_for_body().expect("room");
        assert!(limiter.wait_for_body().is_none());
        assert!(limiter.admit().is_some());
        drop(first);
        assert!(limiter.wait_for_body().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn uploads_have_half_of_the_executions_and_each_peer_half_of_those() {
        let limiter = Limiter::new(&limits(9, 8, 0));
        let [one, another, third]: [Arc<PeerUsage>; 3] = std::array::from_fn(|_| Arc::default());
        let mut begun = Vec::new();
        for peer in [&one, &one, &another, &another] {
            begun.push(limiter.begin_upload(peer).now_or_never().expect("room").expect("room"));
        }
        let refused = limiter.begin_upload(&one).now_or_never().expect("at once");
        assert_eq!(refused.err(), Some(Failed(Failure::QueueFull)), "its peer has its share");
        assert_eq!(limiter.begin_upload(&third).await.err(), Some(Failed(Failure::QueueFull)), "in time");
        assert!(!limiter.is_full(), "all else has its places");
        drop(begun.pop());
        assert!(limiter.begin_upload(&third).now_or_never().expect("room").is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn no_request_waits_without_end() {
        let limiter = Limiter::new(&limits(9, 1, 9));
        let _first = limiter.enter().await.expect("room");
        assert_eq!(limiter.enter().await.err(), Some(Failed(Failure::QueueFull)));
        assert_eq!(limiter.waiting.load(Ordering::Acquire), 0);
    }
}
