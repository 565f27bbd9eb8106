//! Whose turn it is to write, where a database has one writer: one at a time, in the order in which they came.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Gives out turns, among the writers of one process.
#[derive(Clone, Debug)]
pub struct Turns {
    /// First come, first served.
    one: Arc<Semaphore>,
    waiting: Arc<AtomicUsize>,
}

/// A turn, until it is dropped.
#[derive(Debug, Default)]
pub struct Turn(Option<Held>);

#[derive(Debug)]
struct Held {
    _one: OwnedSemaphorePermit,
    waiting: Arc<AtomicUsize>,
}

impl Default for Turns {
    fn default() -> Self {
        Self { one: Arc::new(Semaphore::new(1)), waiting: Arc::default() }
    }
}

impl Turns {
    /// Waits for the next one.
    pub async fn next(&self) -> Turn {
        // Nobody is passed over: a turn that is free has nobody waiting for it.
        let permit = if let Ok(permit) = Arc::clone(&self.one).try_acquire_owned() {
            Ok(permit)
        } else {
            let _counted = Counted::among(&self.waiting);
            Arc::clone(&self.one).acquire_owned().await
        };
        // An error would mean that the semaphore was closed, and nobody closes it.
        Turn(permit.ok().map(|one| Held { _one: one, waiting: Arc::clone(&self.waiting) }))
    }
}

impl Turn {
    /// There is nothing to wait for.
    #[must_use]
    pub const fn everybodys() -> Self {
        Self(None)
    }

    /// How many wait for this one to end. Nothing where there is nothing to wait for.
    #[must_use]
    pub fn waiting(&self) -> Option<usize> {
        self.0.as_ref().map(|held| held.waiting.load(Ordering::Relaxed))
    }
}

/// One of those who wait.
struct Counted<'w>(&'w AtomicUsize);

impl<'w> Counted<'w> {
    fn among(waiting: &'w AtomicUsize) -> Self {
        waiting.fetch_add(1, Ordering::Relaxed);
        Self(waiting)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::pin::Pin;
    use std::task::Poll;

    use super::{Turn, Turns};

    async fn polled(waiting: &mut Pin<Box<impl Future<Output = Turn>>>) -> Option<Turn> {
        let turn = poll_fn(|cx| Poll::Ready(waiting.as_mut().poll(cx))).await;
        if let Poll::Ready(turn) = turn { Some(turn) } else { None }
    }

    #[tokio::test]
    async fn turns_are_in_the_order_of_arrival_and_who_waits_is_counted() {
        let turns = Turns::default();
        let first = turns.next().await;
        assert_eq!(first.waiting(), Some(0));
        let (mut second, mut third) = (Box::pin(turns.next()), Box::pin(turns.next()));
        assert!(polled(&mut second).await.is_none());
        assert!(polled(&mut third).await.is_none());
        assert_eq!(first.waiting(), Some(2));
        drop(first);
        assert!(polled(&mut third).await.is_none());
        let turn = polled(&mut second).await.expect("the first has ended");
        assert_eq!(turn.waiting(), Some(1));
        drop(third);
        assert_eq!(turn.waiting(), Some(0), "whoever leaves is not counted any more");
        assert_eq!(Turn::everybodys().waiting(), None);
    }
}
