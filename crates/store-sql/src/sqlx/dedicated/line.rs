//! Who waits for a connection of a dedicated pool. Each leaves its opening, so that a closing can take it along.
//!
//! **Invariant:** each is served once. It is taken out of the line by whoever will tell it something, or leaves by itself because it has a turn; never both.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use oncegate_store::Result;
use oncegate_store::join::{Call, Opened};
use tokio::sync::{AcquireError, OwnedSemaphorePermit, oneshot};

use super::DedicatedTransaction;

/// The line, the longest waiting first.
#[derive(Default)]
pub(super) struct Line(Mutex<Places>);

#[derive(Default)]
struct Places {
    /// How many have joined it.
    joined: u64,
    waiting: VecDeque<Waiting>,
}

/// One of them, as whoever serves it sees it. Dropped, it is told nothing, and waits again.
pub(super) struct Waiting {
    number: u64,
    opening: Option<Call>,
    tell: oneshot::Sender<Served>,
}

/// One of them, as it sees itself. Dropped, it has left.
struct Place<'l> {
    line: &'l Line,
    number: u64,
    told: oneshot::Receiver<Served>,
}

/// How the waiting ended.
pub(super) enum Served {
    /// What came of its opening, which went with another's closing.
    Opened(Result<Opened<DedicatedTransaction>>),
    /// It has a turn; its opening was not tried.
    Turn(OwnedSemaphorePermit),
}

impl Line {
    /// Waits until a closing has taken this opening along, or there is a turn for it. Nothing: neither, wait again. One that was taken along waits for no more than `patience` once there would be a
    /// turn: its connection may be one that says nothing.
    pub(super) async fn wait(
        &self,
        opening: Option<&Call>,
        turn: impl Future<Output = std::result::Result<OwnedSemaphorePermit, AcquireError>>,
        patience: Duration,
    ) -> Option<Served> {
        let mut place = self.join(opening.cloned());
        let turn = tokio::select! {
            biased;
            told = &mut place.told => return told.ok(),
            turn = turn => turn.ok()?,
        };
        if place.leave() {
            return Some(Served::Turn(turn));
        }
        // Taken along already: the turn is for the next.
        drop(turn);
        if let Ok(told) = tokio::time::timeout(patience, &mut place.told).await {
            return told.ok();
        }
        place.told.close();
        place.told.try_recv().ok()
    }

    /// Takes out the one that has waited longest, and still does.
    pub(super) fn take(&self) -> Option<Waiting> {
        let mut places = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let waiting = places.waiting.pop_front()?;
            if !waiting.tell.is_closed() {
                return Some(waiting);
            }
        }
    }

    fn join(&self, opening: Option<Call>) -> Place<'_> {
        let (tell, told) = oneshot::channel();
        let mut places = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        places.joined += 1;
        let number = places.joined;
        places.waiting.push_back(Waiting { number, opening, tell });
        Place { line: self, number, told }
    }
}

impl Waiting {
    pub(super) fn opening(&self) -> Option<&Call> {
        self.opening.as_ref()
    }

    /// If it is not there any more, what it is told is dropped: a transaction is rolled back, a turn is the next one's.
    pub(super) fn tell(self, served: Served) {
        drop(self.tell.send(served));
    }
}

impl Place<'_> {
    /// Whether it was still in the line.
    fn leave(&self) -> bool {
        let mut places = self.line.0.lock().unwrap_or_else(PoisonError::into_inner);
        // In the order of their numbers.
        match places.waiting.binary_search_by_key(&self.number, |waiting| waiting.number) {
            Ok(place) => places.waiting.remove(place).is_some(),
            Err(_) => false,
        }
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.leave();
    }
}
