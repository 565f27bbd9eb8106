//! Takes a batch out of the queue: at most one write a key.
//!
//! A second *insert* of a key that is already in the batch need not be written at all: had it been applied right after the first,
//! in the same commit, it would have been refused and shown the first one's row. So it is told that, and a hundred
//! duplicates of one request cost one commit. Anything else of that key waits for the next batch, in order.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use oncegate_core::identity::RecordId;
use oncegate_store::{Effect, Kind, Outcome, StoreError, Write};
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::{Failed, Job};

/// Writes, and who waits for each of them.
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
    /// Takes what is at the head of the queue, but nothing of keys that are `busy` in another batch.
    pub(super) fn take(queue: &mut VecDeque<Job>, batch_max: usize, busy: &HashSet<RecordId>) -> Self {
        let mut batch = Self { writes: Vec::new(), waiting: Vec::new() };
        let mut places: HashMap<RecordId, usize> = HashMap::new();
        let mut blocked: HashSet<RecordId> = HashSet::new();
        let mut left = VecDeque::new();
        while batch.writes.len() < batch_max
            && let Some(job) = queue.pop_front()
        {
            let id = job.write.id();
            match places.get(&id) {
                None if !blocked.contains(&id) && !busy.contains(&id) => {
                    if batch.add(job) {
                        places.insert(id, batch.writes.len() - 1);
                    }
                }
                Some(place) if !blocked.contains(&id) && batch.may_follow(*place, &job) => {
                    batch.follow(*place, job);
                }
                _ => {
                    blocked.insert(id);
                    left.push_back(job);
                }
            }
        }
        // In order, before those that came later.
        while let Some(job) = left.pop_back() {
            queue.push_front(job);
        }
        batch
    }

    /// Adds a write, unless its caller has taken it back.
    fn add(&mut self, job: Job) -> bool {
        if job.claim.swap(true, Ordering::AcqRel) {
            return false;
        }
        self.writes.push(job.write);
        self.waiting.push(Waiting { first: job.outcome, followers: Vec::new(), room: job.room });
        true
    }

    fn may_follow(&self, place: usize, job: &Job) -> bool {
        matches!((&self.writes[place], &job.write), (Write::Insert(_), Write::Insert(_)))
    }

    fn follow(&mut self, place: usize, job: Job) {
        if !job.claim.swap(true, Ordering::AcqRel) {
            self.waiting[place].followers.push(job.outcome);
        }
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
            let refused = match (&outcome, write) {
                (Outcome::Applied, Write::Insert(record)) => Outcome::Refused { current: Some(record) },
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::time::Duration;

    use oncegate_core::identity::Version;
    use tokio::sync::Semaphore;

    use super::*;

    type Told = oneshot::Receiver<Result<Outcome, Failed>>;

    /// A write that needs no row: what it is conditioned on tells it from others of the same key.
    fn change(key: u8, version: i64) -> (Job, Told) {
        let id = RecordId::from_bytes([key; 16]);
        let expect = Version::from_raw(version);
        job(Write::Remove { id, expect, grace: Duration::ZERO })
    }

    fn job(write: Write) -> (Job, Told) {
        let (outcome, told) = oneshot::channel();
        let room = Arc::new(Semaphore::new(1)).try_acquire_owned().unwrap();
        (Job { write, outcome, claim: Arc::new(AtomicBool::new(false)), room }, told)
    }

    fn shown(batch: &Batch) -> Vec<(u8, i64)> {
        let one = |write: &Write| match write {
            Write::Remove { id, expect, .. } => (id.as_bytes()[0], expect.as_raw()),
            other => unreachable!("{other:?}"),
        };
        batch.writes.iter().map(one).collect()
    }

    #[test]
    fn a_batch_has_one_write_a_key_and_the_rest_keeps_its_order() {
        let jobs = [(1, 1), (2, 1), (1, 2), (3, 1), (1, 3), (2, 2)];
        let mut queue: VecDeque<Job> = jobs.map(|(key, version)| change(key, version).0).into();
        assert_eq!(shown(&Batch::take(&mut queue, 10, &HashSet::new())), [(1, 1), (2, 1), (3, 1)]);
        assert_eq!(shown(&Batch::take(&mut queue, 10, &HashSet::new())), [(1, 2), (2, 2)]);
        assert_eq!(shown(&Batch::take(&mut queue, 10, &HashSet::new())), [(1, 3)]);
        assert!(queue.is_empty());
    }

    #[test]
    fn what_another_batch_is_about_waits_in_order() {
        let jobs = [(1, 1), (2, 1), (1, 2)];
        let mut queue: VecDeque<Job> = jobs.map(|(key, version)| change(key, version).0).into();
        let busy = HashSet::from([RecordId::from_bytes([1; 16])]);
        assert_eq!(shown(&Batch::take(&mut queue, 10, &busy)), [(2, 1)]);
        assert!(Batch::take(&mut queue, 10, &busy).is_empty());
        assert_eq!(shown(&Batch::take(&mut queue, 10, &HashSet::new())), [(1, 1)]);
        assert_eq!(shown(&Batch::take(&mut queue, 10, &HashSet::new())), [(1, 2)]);
    }

    #[test]
    fn a_batch_is_no_larger_than_it_may_be() {
        let mut queue: VecDeque<Job> = (0..10).map(|key| change(key, 1).0).collect();
        assert_eq!(Batch::take(&mut queue, 4, &HashSet::new()).len(), 4);
        assert_eq!(queue.len(), 6);
    }

    #[test]
    fn what_was_taken_back_is_not_written() {
        let (given_up, _told) = change(1, 1);
        given_up.claim.store(true, Ordering::Release);
        let mut queue = VecDeque::from([given_up, change(1, 2).0]);
        assert_eq!(shown(&Batch::take(&mut queue, 10, &HashSet::new())), [(1, 2)]);
    }
}
