//! Work that outlives whoever waits for it, without a task of its own while somebody does.
//!
//! A task for every request costs a wake-up there and back. Here the work is polled where it is awaited, and becomes a task only when
//! nobody does any more: a client has hung up, a limit has passed.

use std::pin::Pin;
use std::task::{Context, Poll};

/// A future that goes on in a task when it is dropped before its end.
#[derive(Debug)]
pub struct Outlive<F: Future<Output: Send> + Send + 'static>(Option<Pin<Box<F>>>);

impl<F: Future<Output: Send> + Send + 'static> Outlive<F> {
    /// Work to be awaited.
    pub fn new(work: F) -> Self {
        Self(Some(Box::pin(work)))
    }
}

impl<F: Future<Output: Send> + Send + 'static> Future for Outlive<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        // Nobody polls a future that has ended. If it panics it is gone, and not polled again.
        let Some(mut work) = self.0.take() else { return Poll::Pending };
        let polled = work.as_mut().poll(cx);
        if polled.is_pending() {
            self.0 = Some(work);
        }
        polled
    }
}

impl<F: Future<Output: Send> + Send + 'static> Drop for Outlive<F> {
    fn drop(&mut self) {
        // Also where it is another's panic that has ended the waiting. Without a runtime there is nobody to go on with it.
        if let (Some(work), Ok(runtime)) = (self.0.take(), tokio::runtime::Handle::try_current()) {
            runtime.spawn(work);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Poll;

    use tokio::sync::Notify;

    use super::Outlive;

    /// Work that stands still until it is told to go on, and says when it has.
    fn work() -> (impl Future<Output = ()> + Send + 'static, Arc<Notify>, Arc<Notify>) {
        let (go_on, gone_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let (told, says) = (Arc::clone(&go_on), Arc::clone(&gone_on));
        let work = async move {
            told.notified().await;
            says.notify_one();
        };
        (work, go_on, gone_on)
    }

    #[tokio::test]
    async fn what_nobody_waits_for_any_more_goes_on() {
        let (work, go_on, gone_on) = work();
        let mut waiting = Box::pin(Outlive::new(work));
        let is_pending = poll_fn(|cx| Poll::Ready(waiting.as_mut().poll(cx).is_pending())).await;
        assert!(is_pending);
        drop(waiting);
        go_on.notify_one();
        gone_on.notified().await;
    }

    /// A commit is on its way, and what stands beside it in the same task panics.
    #[tokio::test]
    async fn what_nobody_waits_for_because_of_anothers_panic_goes_on() {
        let (work, go_on, gone_on) = work();
        let task = tokio::spawn(async move {
            let mut waiting = Box::pin(Outlive::new(work));
            let is_pending = poll_fn(|cx| Poll::Ready(waiting.as_mut().poll(cx).is_pending())).await;
            assert!(!is_pending, "another's panic");
        });
        assert!(task.await.is_err());
        go_on.notify_one();
        gone_on.notified().await;
    }

    #[tokio::test]
    async fn what_panics_is_not_polled_again() {
        let polls = Arc::new(AtomicUsize::new(0));
        let work = {
            let polls = Arc::clone(&polls);
            async move { assert_eq!(polls.fetch_add(1, Ordering::SeqCst), 9, "its own panic") }
        };
        assert!(tokio::spawn(Outlive::new(work)).await.is_err());
        tokio::task::yield_now().await;
        assert_eq!(polls.load(Ordering::SeqCst), 1);
    }

    #[tokio::test]
    async fn what_is_waited_for_gives_its_answer() {
        assert_eq!(Outlive::new(async { 7 }).await, 7);
    }
}
