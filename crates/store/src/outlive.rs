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
        // Nobody polls a future that has ended.
        let Some(work) = &mut self.0 else { return Poll::Pending };
        let polled = work.as_mut().poll(cx);
        if polled.is_ready() {
            self.0 = None;
        }
        polled
    }
}

impl<F: Future<Output: Send> + Send + 'static> Drop for Outlive<F> {
    fn drop(&mut self) {
        // A panic of the work itself is not to be polled again; and without a runtime there is nobody to go on with it.
        if let (Some(work), false, Ok(runtime)) =
            (self.0.take(), std::thread::panicking(), tokio::runtime::Handle::try_current())
        {
            runtime.spawn(work);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::sync::Arc;
    use std::task::Poll;

    use tokio::sync::Notify;

    use super::Outlive;

    #[tokio::test]
    async fn what_nobody_waits_for_any_more_goes_on() {
        let (go_on, gone_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let work = {
            let (go_on, gone_on) = (Arc::clone(&go_on), Arc::clone(&gone_on));
            async move {
                go_on.notified().await;
                gone_on.notify_one();
            }
        };
        let mut waiting = Box::pin(Outlive::new(work));
        let is_pending = poll_fn(|cx| Poll::Ready(waiting.as_mut().poll(cx).is_pending())).await;
        assert!(is_pending);
        drop(waiting);
        go_on.notify_one();
        gone_on.notified().await;
    }

    #[tokio::test]
    async fn what_is_waited_for_gives_its_answer() {
        assert_eq!(Outlive::new(async { 7 }).await, 7);
    }
}
