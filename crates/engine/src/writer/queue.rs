//! What waits to be written: a line for each key.
//!
//! The first of a line is gathered. The others stand behind it, and then behind the batch that it went into, and nobody looks at
//! them until that batch has ended: a key that thousands ask for costs the other keys nothing, and its own writes keep their order.
//!
//! **Invariant:** a key has a line exactly while a write of it waits or is on its way; its first write is among the heads
//! exactly while none of them is on its way.
//! Not here: who wakes and who sleeps (`writer`), who is told what (`batch`).

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use oncegate_core::identity::RecordId;
use oncegate_store::{Outcome, Write};
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::Failed;
use super::batch::Batch;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Queue {
    /// First writes of keys that had no line when they came, in the order of arrival.
    heads: VecDeque<Job>,
    /// First writes of lines whose batch has ended.
    freed: VecDeque<Job>,
    lines: HashMap<RecordId, Line>,
    /// Writes that may be gathered: first ones, and those behind them.
    here: usize,
    /// Writes behind batches that are on their way.
    parked: usize,
    /// How many have ever come.
    arrived: u64,
    /// The gathering thread sleeps until so many are here.
    pub(super) wanted: usize,
    pub(super) is_closed: bool,
    #[cfg(test)]
    pub(super) counted: Counted,
}

#[derive(Debug)]
pub(super) struct Job {
    pub(super) write: Write,
    pub(super) outcome: oneshot::Sender<Result<Outcome, Failed>>,
    /// Whoever sets it first has the write: the thread to apply it, or the caller to take it back.
    pub(super) claim: Arc<AtomicBool>,
    pub(super) room: OwnedSemaphorePermit,
    /// Its place in the order of arrival, which the queue gives it.
    pub(super) number: u64,
}

/// Most lines have nobody behind the first, and allocate nothing.
#[derive(Debug, Default)]
struct Line {
    behind: VecDeque<Job>,
    is_on_the_way: bool,
}

/// What gathering took.
#[cfg(test)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counted {
    pub(crate) gatherings: u64,
    /// Writes that were looked at.
    pub(crate) looks: u64,
}

impl Queue {
    /// Adds a write; says whether the thread that gathers should know. It need not know of what it could not take.
    pub(super) fn push(&mut self, mut job: Job) -> bool {
        job.number = self.arrived;
        self.arrived += 1;
        match self.lines.entry(job.write.id()) {
            Entry::Vacant(place) => {
                place.insert(Line::default());
                self.heads.push_back(job);
            }
            Entry::Occupied(line) => {
                let line = line.into_mut();
                line.behind.push_back(job);
                if line.is_on_the_way {
                    self.parked += 1;
                    return false;
                }
            }
        }
        self.here += 1;
        self.is_enough()
    }

    /// Takes what came first, at most one write a key. Their keys are on their way from here on, until they are freed.
    pub(super) fn take(&mut self, batch_max: usize) -> Batch {
        let mut batch = Batch::default();
        while batch.len() < batch_max
            && let Some(first) = self.pop_first()
        {
            self.take_line(first, &mut batch);
        }
        #[cfg(test)]
        {
            self.counted.gatherings += 1;
        }
        batch
    }

    /// Batches about these keys have ended; says whether the thread that gathers should know.
    pub(super) fn free(&mut self, ids: &[RecordId]) -> bool {
        let before = self.here;
        for id in ids {
            let Entry::Occupied(mut line) = self.lines.entry(*id) else { continue };
            let Some(first) = line.get_mut().behind.pop_front() else {
                line.remove();
                continue;
            };
            line.get_mut().is_on_the_way = false;
            let freed = 1 + line.get().behind.len();
            self.parked -= freed;
            self.here += freed;
            self.freed.push_back(first);
        }
        self.here > before && self.is_enough()
    }

    /// How many writes may be gathered.
    pub(super) const fn here(&self) -> usize {
        self.here
    }

    /// How many writes wait for the end of a batch on its way.
    pub(super) const fn parked(&self) -> usize {
        self.parked
    }

    const fn is_enough(&self) -> bool {
        self.here >= self.wanted
    }

    /// The older of the two, so that neither new keys nor busy ones starve the others.
    fn pop_first(&mut self) -> Option<Job> {
        match (self.freed.front(), self.heads.front()) {
            (Some(freed), Some(head)) if freed.number > head.number => self.heads.pop_front(),
            (Some(_), _) => self.freed.pop_front(),
            (None, _) => self.heads.pop_front(),
        }
    }

    /// Takes the first that its caller has not taken back, and those that may follow it.
    fn take_line(&mut self, first: Job, batch: &mut Batch) {
        let id = first.write.id();
        let line = self.lines.entry(id).or_default();
        let waited = 1 + line.behind.len();
        self.here -= waited;
        let mut next = Some(first);
        let mut is_taken = false;
        while !is_taken && let Some(job) = next {
            is_taken = batch.add(job);
            next = if is_taken { None } else { line.behind.pop_front() };
        }
        while is_taken && let Some(job) = line.behind.pop_front_if(|job| batch.may_follow(job)) {
            batch.follow(job);
        }
        let left = line.behind.len();
        line.is_on_the_way = is_taken;
        self.parked += left;
        #[cfg(test)]
        {
            self.counted.looks += (waited - left) as u64;
        }
        if !is_taken {
            self.lines.remove(&id);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;
    use std::time::Duration;

    use oncegate_core::identity::Version;
    use oncegate_store::Change;
    use tokio::sync::Semaphore;

    use super::*;

    /// A write that needs no row: what it is conditioned on tells it from others of the same key.
    fn change(key: u8, version: i64) -> Job {
        let write = Write::remove(id(key), Version::from_raw(version), Duration::ZERO);
        let (outcome, _told) = oneshot::channel();
        let room = Arc::new(Semaphore::new(1)).try_acquire_owned().unwrap();
        Job { write, outcome, claim: Arc::default(), room, number: 0 }
    }

    fn id(key: u8) -> RecordId {
        RecordId::from_bytes([key; 16])
    }

    fn queue(jobs: impl IntoIterator<Item = (u8, i64)>) -> Queue {
        let mut queue = Queue { wanted: 1, ..Queue::default() };
        push(&mut queue, jobs);
        queue
    }

    fn push(queue: &mut Queue, jobs: impl IntoIterator<Item = (u8, i64)>) {
        for (key, version) in jobs {
            queue.push(change(key, version));
        }
    }

    /// Takes a batch, which stays on its way.
    fn take(queue: &mut Queue, batch_max: usize) -> Vec<(u8, i64)> {
        let one = |write: &Write| match &write.change {
            Change::Remove { id, expect, .. } => (id.as_bytes()[0], expect.as_raw()),
            other => unreachable!("{other:?}"),
        };
        queue.take(batch_max).writes.iter().map(one).collect()
    }

    /// Takes a batch, which ends at once.
    fn take_and_free(queue: &mut Queue, batch_max: usize) -> Vec<(u8, i64)> {
        let taken = take(queue, batch_max);
        free(queue, taken.iter().map(|(key, _)| *key));
        taken
    }

    fn free(queue: &mut Queue, keys: impl IntoIterator<Item = u8>) -> bool {
        let ids: Vec<_> = keys.into_iter().map(id).collect();
        queue.free(&ids)
    }

    fn assert_empty(queue: &Queue) {
        assert!(queue.lines.is_empty() && queue.heads.is_empty() && queue.freed.is_empty(), "{queue:?}");
        assert_eq!((queue.here, queue.parked), (0, 0));
    }

    #[test]
    fn a_batch_has_one_write_a_key_and_the_rest_keeps_its_order() {
        let mut queue = queue([(1, 1), (2, 1), (1, 2), (3, 1), (1, 3), (2, 2)]);
        assert_eq!(take_and_free(&mut queue, 10), [(1, 1), (2, 1), (3, 1)]);
        assert_eq!(take_and_free(&mut queue, 10), [(1, 2), (2, 2)]);
        assert_eq!(take_and_free(&mut queue, 10), [(1, 3)]);
        assert_empty(&queue);
    }

    #[test]
    fn what_another_batch_is_about_waits_in_order() {
        let mut queue = queue([(1, 0)]);
        assert_eq!(take(&mut queue, 10), [(1, 0)]);
        push(&mut queue, [(1, 1), (2, 1), (1, 2)]);
        assert_eq!(take_and_free(&mut queue, 10), [(2, 1)]);
        assert!(take(&mut queue, 10).is_empty());
        free(&mut queue, [1]);
        assert_eq!(take_and_free(&mut queue, 10), [(1, 1)]);
        assert_eq!(take_and_free(&mut queue, 10), [(1, 2)]);
        assert_empty(&queue);
    }

    #[test]
    fn a_batch_is_no_larger_than_it_may_be() {
        let mut queue = queue((0..10).map(|key| (key, 1)));
        assert_eq!(take(&mut queue, 4).len(), 4);
        assert_eq!(queue.here(), 6);
    }

    #[test]
    fn what_was_taken_back_is_not_written() {
        let mut queue = queue([]);
        for (key, version) in [(1, 1), (1, 2), (2, 1)] {
            let given_up = change(key, version);
            given_up.claim.store(true, Ordering::Release);
            queue.push(given_up);
        }
        push(&mut queue, [(1, 3)]);
        assert_eq!(take_and_free(&mut queue, 10), [(1, 3)]);
        assert_empty(&queue);
    }

    /// The order of arrival holds among keys too, whether they were busy or not: else one kind would starve the other.
    #[test]
    fn those_who_waited_for_a_batch_go_before_those_who_came_later() {
        let mut queue = queue([(1, 1), (2, 1)]);
        assert_eq!(take(&mut queue, 10), [(1, 1), (2, 1)]);
        push(&mut queue, [(3, 1), (1, 2), (4, 1), (2, 2), (5, 1)]);
        free(&mut queue, [1, 2]);
        assert_eq!(take_and_free(&mut queue, 3), [(3, 1), (1, 2), (4, 1)]);
        push(&mut queue, [(1, 3)]);
        assert_eq!(take_and_free(&mut queue, 3), [(2, 2), (5, 1), (1, 3)]);
        assert_empty(&queue);
    }

    /// Whoever sleeps until something is here is told of all that it can take, and of nothing else.
    #[test]
    fn who_gathers_is_told_of_what_it_can_take() {
        let mut queue = queue([]);
        assert!(queue.push(change(1, 1)), "the first of its key");
        assert!(queue.push(change(1, 2)), "behind one that is here: it may follow it");
        assert_eq!(take(&mut queue, 10), [(1, 1)]);
        assert!((3..2_003).all(|version| !queue.push(change(1, version))), "behind one that is on its way");
        assert_eq!((queue.here(), queue.parked()), (0, 2_001));
        assert!(queue.push(change(2, 1)));
        assert_eq!(take(&mut queue, 10), [(2, 1)]);
        assert!(!free(&mut queue, [2]), "nobody stood behind it");
        assert!(free(&mut queue, [1]), "and here they are");
        assert_eq!((queue.here(), queue.parked()), (2_001, 0));
        queue.wanted = 2_003;
        assert!(!queue.push(change(3, 1)), "not enough yet");
        assert!(queue.push(change(3, 2)));
    }
}
