//! A batch: at most one write a key, and who is to be told of it.
//!
//! A second *insert* of a key that is already in the batch need not be written at all: had it been applied right after the first,
//! in the same commit, it would have been refused and shown the first one's row. So it is told that, and a hundred
//! duplicates of one request cost one commit. Anything else of that key waits for the next batch, in order.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use oncegate_store::{Change, Effect, Kind, Outcome, StoreError, Write};
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::Failed;
use super::queue::Job;

/// Writes, and who waits for each of them.
#[derive(Default)]
pub(super) struct Batch {
    pub(super) writes: Vec<Write>,
    pub(super) waiting: Vec<Waiting>,
}

/// Who waits for one write.
pub(super) struct Waiting {
    first: oneshot::Sender<Result<Outcome, Failed>>,
    /// Inserts of the same key that came after it.
    followers: Vec<oneshot::Sender<Result<Outcome, Failed>>>,
    room: OwnedSemaphorePermit,
}

impl Batch {
    /// Adds a write, unless its caller has taken it back.
    pub(super) fn add(&mut self, job: Job) -> bool {
        if job.claim.swap(true, Ordering::AcqRel) {
            return false;
        }
        self.writes.push(job.write);
        self.waiting.push(Waiting { first: job.outcome, followers: Vec::new(), room: job.room });
        true
    }

    /// Whether this write, of the same key, need not be written if the last that was added is.
    pub(super) fn may_follow(&self, job: &Job) -> bool {
        let is_insert = |write: &Write| matches!(write.change, Change::Insert(_));
        self.writes.last().is_some_and(is_insert) && is_insert(&job.write)
    }

    /// Tells whoever waits for it together with the last that was added, unless they have taken it back.
    pub(super) fn follow(&mut self, job: Job) {
        if let Some(last) = self.waiting.last_mut()
            && !job.claim.swap(true, Ordering::AcqRel)
        {
            last.followers.push(job.outcome);
        }
    }

    /// Tells all who wait that nothing came of it.
    pub(super) fn fail(self, error: &Failed) {
        for waiting in self.waiting {
            waiting.tell_failed(error);
        }
    }

    /// Two halves, in order.
    pub(super) fn divide(mut self) -> (Self, Self) {
        let half = self.len() / 2;
        let second = Self { writes: self.writes.split_off(half), waiting: self.waiting.split_off(half) };
        (self, second)
    }

    pub(super) fn len(&self) -> usize {
        self.writes.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.writes.is_empty()
    }
}

impl Waiting {
    /// Tells the outcome of a durable commit. Somebody who no longer listens has given up, and cleans up.
    pub(super) fn tell(self, outcome: Outcome, write: Write) {
        // Whoever is told may come again at once, and find it.
        drop(self.room);
        if !self.followers.is_empty() {
            let refused = match (&outcome, write.change) {
                (Outcome::Applied, Change::Insert(record)) => Outcome::Refused { current: Some(record) },
                _ => outcome.clone(),
            };
            for follower in self.followers {
                let _ = follower.send(Ok(refused.clone()));
            }
        }
        let _ = self.first.send(Ok(outcome));
    }

    /// Tells of a failed commit. Of the followers nothing was written in any case.
    pub(super) fn tell_failed(self, error: &Failed) {
        drop(self.room);
        for follower in self.followers {
            let words = format!("another request with the same key was before it, and failed: {error}");
            let error = StoreError::new(Kind::Unavailable, Effect::None, "apply").because(words);
            let _ = follower.send(Err(Arc::new(error)));
        }
        let _ = self.first.send(Err(Arc::clone(error)));
    }
}
