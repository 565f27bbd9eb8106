//! Who waits for a connection of a dedicated pool. Each leaves its wish, so that another's closing can take it along.
//!
//! **Invariant:** each is served once. It is taken out of the line by whoever will tell it something, or leaves by itself because it has a turn; never both.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;

/// The line, the longest waiting first: what they wish for (`W`), and what they are served with (`S`).
pub(super) struct Line<W, S>(Mutex<Places<W, S>>);

struct Places<W, S> {
    /// How many have joined it.
    joined: u64,
    waiting: VecDeque<Waiting<W, S>>,
}

/// One of them, as whoever serves it sees it. Dropped, it is told nothing, and waits again.
pub(super) struct Waiting<W, S> {
    number: u64,
    wish: W,
    tell: oneshot::Sender<S>,
}

/// One of them, as it sees itself. Dropped, it has left.
struct Place<'l, W, S> {
    line: &'l Line<W, S>,
    number: u64,
    told: oneshot::Receiver<S>,
}

impl<W, S> Default for Line<W, S> {
    fn default() -> Self {
        Self(Mutex::new(Places { joined: 0, waiting: VecDeque::new() }))
    }
}

impl<W, S> Line<W, S> {
    /// Waits until another's closing has taken this wish along, or there is a turn for it. Nothing: neither, wait again. One that was taken along waits for no more than `patience` once there would be a
    /// turn: its connection may be one that says nothing.
    pub(super) async fn wait(
        &self,
        wish: W,
        turn: impl Future<Output = Option<S>>,
        patience: Duration,
    ) -> Option<S> {
        let mut place = self.join(wish);
        let turn = tokio::select! {
            biased;
            told = &mut place.told => return told.ok(),
            turn = turn => turn?,
        };
        if place.leave() {
            return Some(turn);
        }
        // Taken along already: the turn is for the next.
        drop(turn);
        if let Ok(told) = tokio::time::timeout(patience, &mut place.told).await {
            return told.ok();
        }
        place.told.close();
        place.told.try_recv().ok()
    }

    /// Takes out the one that has waited longest, and still does, if its wish suits, and how many there are in the line.
    pub(super) fn take_if<R>(
        &self,
        suits: impl FnOnce(usize, &W) -> Option<R>,
    ) -> Option<(Waiting<W, S>, R)> {
        let mut places = self.lock();
        // One that was put back may have left meanwhile; all others leave by themselves.
        while places.waiting.pop_front_if(|waiting| waiting.tell.is_closed()).is_some() {}
        let suited = suits(places.waiting.len(), &places.waiting.front()?.wish)?;
        Some((places.waiting.pop_front()?, suited))
    }

    /// Puts one that was taken out to where it was, the longest waiting of all.
    #[cfg(feature = "sqlx-sqlite")]
    pub(super) fn put_back(&self, waiting: Waiting<W, S>) {
        self.lock().waiting.push_front(waiting);
    }

    fn join(&self, wish: W) -> Place<'_, W, S> {
        let (tell, told) = oneshot::channel();
        let mut places = self.lock();
        places.joined += 1;
        let number = places.joined;
        places.waiting.push_back(Waiting { number, wish, tell });
        Place { line: self, number, told }
    }

    fn lock(&self) -> MutexGuard<'_, Places<W, S>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<W, S> Waiting<W, S> {
    #[cfg(feature = "sqlx-postgres")]
    pub(super) fn wish(&self) -> &W {
        &self.wish
    }

    /// If it is not there any more, what it is told is dropped: a transaction is rolled back, a turn is the next one's.
    pub(super) fn tell(self, served: S) {
        drop(self.tell.send(served));
    }
}

impl<W, S> Place<'_, W, S> {
    /// Whether it was still in the line.
    fn leave(&self) -> bool {
        let mut places = self.line.lock();
        // In the order of their numbers.
        match places.waiting.binary_search_by_key(&self.number, |waiting| waiting.number) {
            Ok(place) => places.waiting.remove(place).is_some(),
            Err(_) => false,
        }
    }
}

impl<W, S> Drop for Place<'_, W, S> {
    fn drop(&mut self) {
        self.leave();
    }
}
