//! The batching writer: whatever is waiting when a commit ends goes into the next one.
//!
//! **Invariants:** an outcome leaves only after its commit; the writes of one key are applied in the order of their
//! submission, at most one of them in a batch; what waits is bounded, and past the bound a new request is refused, never
//! queued. A write that the database rejects fails alone.
//!
//! Threads of its own, because an embedded store keeps the thread that writes ([`oncegate_store::Writing::Blocks`]) and
//! a linger of microseconds is finer than a runtime's timer. One for such a store; as many as a store takes batches at once
//! otherwise. One of them at a time gathers the next batch, and leaves out keys that another's batch is about.

mod batch;
mod pace;
mod queue;
#[cfg(test)]
mod tests;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use metrics::{Histogram, histogram};
use oncegate_core::identity::RecordId;
use oncegate_core::record::{Record, State};
use oncegate_store::{
    Change, Effect, Kind, Outcome, Result as StoreResult, Store, StoreError, Write, Writing,
};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use crate::breaker::Breaker;
use crate::meters::names;
use crate::options::Options;
use batch::Batch;
use pace::Pace;
use queue::{Job, Queue};

/// What waits is measured in these.
const UNIT_BYTES: usize = 1024;

/// So many who wait are told by a task of the runtime, and fewer by the thread itself.
const MANY: usize = 8;

/// Why a write has no outcome.
pub(crate) type Failed = Arc<StoreError>;

/// The queue is full.
#[derive(Debug)]
pub(crate) struct Full;

/// Hands writes to the thread.
#[derive(Debug)]
pub(crate) struct Writer {
    shared: Arc<Shared>,
    room: Arc<Semaphore>,
    units_max: u32,
}

/// A write on its way.
pub(crate) struct Ticket {
    outcome: oneshot::Receiver<Result<Outcome, Failed>>,
    claim: Arc<AtomicBool>,
}

#[derive(Debug)]
struct Shared {
    queue: Mutex<Queue>,
    arrived: Condvar,
    /// Held by the thread that gathers.
    gathering: Mutex<()>,
    /// Requests between their arrival and their end: who may still bring something.
    in_flight: AtomicUsize,
    commits: AtomicU64,
    writes: AtomicU64,
    lingers: AtomicU64,
}

impl Writer {
    pub(crate) fn start<S: Store>(
        store: &Arc<S>,
        breaker: &Arc<Breaker>,
        options: &Options,
        runtime: &Handle,
    ) -> std::io::Result<Self> {
        let shared = Arc::new(Shared {
            queue: Mutex::default(),
            arrived: Condvar::new(),
            gathering: Mutex::default(),
            in_flight: AtomicUsize::new(0),
            commits: AtomicU64::new(0),
            writes: AtomicU64::new(0),
            lingers: AtomicU64::new(0),
        });
        let at_once = match store.capability().writing {
            Writing::Blocks => 1,
            Writing::Awaits { at_once } => at_once.max(1),
        };
        for _ in 0..at_once {
            let thread = Thread {
                store: Arc::clone(store),
                breaker: Arc::clone(breaker),
                shared: Arc::clone(&shared),
                runtime: runtime.clone(),
                batch_max: options.batch_max.max(1),
                pace: Pace::new(options.linger),
                batch_size: histogram!(names::BATCH_SIZE),
            };
            std::thread::Builder::new().name("oncegate writer".to_owned()).spawn(move || thread.run())?;
        }
        let units = options.queue_bytes.div_ceil(UNIT_BYTES).clamp(16, Semaphore::MAX_PERMITS >> 4);
        let units_max = u32::try_from(units).unwrap_or(u32::MAX);
        Ok(Self { shared, room: Arc::new(Semaphore::new(units_max as usize)), units_max })
    }

    /// Submits a write that may be refused because too much waits already.
    pub(crate) fn submit(&self, write: Write) -> Result<Ticket, Full> {
        let room = Arc::clone(&self.room).try_acquire_many_owned(self.units(&write)).map_err(|_| Full)?;
        Ok(self.push(write, room))
    }

    /// Submits a write that must not be lost; waits for room, before all that may be refused.
    pub(crate) async fn submit_when_there_is_room(&self, write: Write) -> Result<Ticket, Full> {
        let room = Arc::clone(&self.room).acquire_many_owned(self.units(&write)).await.map_err(|_| Full)?;
        Ok(self.push(write, room))
    }

    fn push(&self, write: Write, room: OwnedSemaphorePermit) -> Ticket {
        let (sender, outcome) = oneshot::channel();
        let claim = Arc::new(AtomicBool::new(false));
        let job = Job { write, outcome: sender, claim: Arc::clone(&claim), room, number: 0 };
        let is_awaited = self.shared.queue().push(job);
        if is_awaited {
            self.shared.arrived.notify_one();
        }
        Ticket { outcome, claim }
    }

    fn units(&self, write: &Write) -> u32 {
        let bytes = match &write.change {
            Change::Insert(record) | Change::Swap { record, .. } => bytes_of(record),
            Change::Remove { .. } => 0,
        };
        u32::try_from(1 + bytes / UNIT_BYTES).unwrap_or(u32::MAX).min(self.units_max)
    }

    /// Counts a request in, until the guard is dropped.
    pub(crate) fn in_flight(&self) -> InFlight {
        self.shared.in_flight.fetch_add(1, Ordering::Relaxed);
        InFlight(Arc::clone(&self.shared))
    }

    pub(crate) fn commits(&self) -> u64 {
        self.shared.commits.load(Ordering::Relaxed)
    }

    pub(crate) fn writes(&self) -> u64 {
        self.shared.writes.load(Ordering::Relaxed)
    }

    #[cfg(test)]
    pub(crate) fn counted(&self) -> queue::Counted {
        self.shared.queue().counted
    }

    pub(crate) fn lingers(&self) -> u64 {
        self.shared.lingers.load(Ordering::Relaxed)
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.shared.queue().is_closed = true;
        self.shared.arrived.notify_all();
    }
}

/// What a record brings to the queue beyond its fixed fields.
fn bytes_of(record: &Record) -> usize {
    let answer = match &record.state {
        State::Completed(answer) => answer.size_hint(),
        _ => 0,
    };
    answer
        + record.request.as_ref().map_or(0, |request| {
            let headers = request.headers.iter().map(|(name, value)| name.len() + value.len());
            request.body.len() + headers.sum::<usize>()
        })
        + record.recovery.as_ref().map_or(0, |point| point.output.len())
        + record.evidence.as_ref().map_or(0, |evidence| evidence.answer.size_hint())
}

impl Ticket {
    /// The outcome, after its commit.
    pub(crate) async fn outcome(mut self) -> Result<Outcome, Failed> {
        (&mut self.outcome).await.unwrap_or_else(|_| Err(gone()))
    }

    /// The same, but no longer than `limit`. What the thread has not begun by then is taken back and was never written.
    pub(crate) async fn outcome_within(
        mut self,
        limit: Duration,
        breaker: &Breaker,
    ) -> Result<Outcome, Failed> {
        if let Ok(outcome) = tokio::time::timeout(limit, &mut self.outcome).await {
            return outcome.unwrap_or_else(|_| Err(gone()));
        }
        breaker.failed();
        metrics::counter!(names::STORE_ERROR).increment(1);
        let is_taken_back = !self.claim.swap(true, Ordering::AcqRel);
        let effect = if is_taken_back { Effect::None } else { Effect::Unknown };
        let words = format!("no answer from the store within {limit:?}");
        Err(Arc::new(StoreError::new(Kind::Unavailable, effect, "apply").because(words)))
    }
}

fn gone() -> Failed {
    Arc::new(StoreError::new(Kind::Unavailable, Effect::Unknown, "apply").because("the writer has ended"))
}

fn not_tried(error: &StoreError) -> Failed {
    let words = format!("not tried, because the store failed on an earlier part of the batch: {error}");
    Arc::new(StoreError::new(Kind::Unavailable, Effect::None, "apply").because(words))
}

/// A request between its arrival and its end.
#[derive(Debug)]
pub(crate) struct InFlight(Arc<Shared>);

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Shared {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Thread<S> {
    store: Arc<S>,
    breaker: Arc<Breaker>,
    shared: Arc<Shared>,
    runtime: Handle,
    batch_max: usize,
    pace: Pace,
    batch_size: Histogram,
}

impl<S: Store> Thread<S> {
    fn run(mut self) {
        loop {
            // A recorder or a subscriber that panics must not end all writing. Whoever was in the batch is in doubt.
            let turn = catch_unwind(AssertUnwindSafe(|| self.turn()));
            match turn {
                Ok(true) => {}
                Ok(false) => return,
                Err(_) => metrics::counter!(names::STORE_ERROR).increment(1),
            }
        }
    }

    /// One batch; `false` when there will be no more.
    fn turn(&mut self) -> bool {
        let Some(batch) = self.next_batch() else { return false };
        let _on_the_way = OnTheWay::new(&self.shared, &batch);
        if !batch.is_empty() {
            let _ = self.commit(batch);
        }
        true
    }

    /// Waits for work; `None` when there will be no more.
    fn next_batch(&mut self) -> Option<Batch> {
        let shared = Arc::clone(&self.shared);
        let _gathering = shared.gathering.lock().unwrap_or_else(PoisonError::into_inner);
        let mut queue = shared.queue();
        queue.wanted = 1;
        while queue.here() == 0 {
            // Whoever has a batch on its way comes back for those behind it.
            if queue.is_closed {
                return None;
            }
            queue = shared.arrived.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
        // Of those in flight, who waits for another batch's end brings nothing to this one.
        let in_flight = shared.in_flight.load(Ordering::Relaxed).saturating_sub(queue.parked());
        if let Some(wanted) = self.pace.wanted(queue.here(), in_flight, self.batch_max) {
            shared.lingers.fetch_add(1, Ordering::Relaxed);
            queue = linger(&shared, queue, wanted, self.pace.linger());
        }
        // Nobody needs to wake a thread that is awake.
        queue.wanted = usize::MAX;
        let batch = queue.take(self.batch_max);
        drop(queue);
        self.pace.took(batch.len());
        Some(batch)
    }

    /// Applies a batch and tells all who wait. A batch that the database rejects is divided until only
    /// the culprit fails; its keys differ, so its parts are independent. `Err`: the store fails, and
    /// there is no use in asking it for the rest.
    fn commit(&self, batch: Batch) -> Result<(), Failed> {
        let Batch { writes, waiting } = batch;
        self.batch_size.record(u32::try_from(writes.len()).unwrap_or(u32::MAX));
        self.shared.commits.fetch_add(1, Ordering::Relaxed);
        self.shared.writes.fetch_add(writes.len() as u64, Ordering::Relaxed);
        let many = writes.len() >= MANY;
        match self.apply(&writes) {
            Ok(outcomes) => {
                self.breaker.succeeded();
                let tell = move || {
                    for ((outcome, waiting), write) in outcomes.into_iter().zip(waiting).zip(writes) {
                        waiting.tell(outcome, write);
                    }
                };
                // From a thread of the runtime's own a task is woken without a call to the system; one message there is enough.
                if many {
                    drop(self.runtime.spawn(async move { tell() }));
                } else {
                    tell();
                }
                Ok(())
            }
            Err(error) if error.is_rejection() && writes.len() > 1 => {
                let (first, second) = Batch { writes, waiting }.divide();
                match self.commit(first) {
                    Ok(()) => self.commit(second),
                    Err(error) => {
                        second.fail(&not_tried(&error));
                        Err(error)
                    }
                }
            }
            Err(error) => {
                metrics::counter!(names::STORE_ERROR).increment(1);
                let error = Arc::new(error);
                let answered = if error.is_rejection() {
                    let record = writes.first().map(Write::id);
                    tracing::error!(%error, ?record, "the database rejected a write");
                    Ok(())
                } else {
                    self.breaker.failed();
                    tracing::warn!(%error, writes = writes.len(), "a commit failed");
                    Err(Arc::clone(&error))
                };
                Batch { writes, waiting }.fail(&error);
                answered
            }
        }
    }

    /// A panic of the store is an error whose effect nobody knows.
    fn apply(&self, writes: &[Write]) -> StoreResult<Vec<Outcome>> {
        let apply = || self.runtime.block_on(self.store.apply(writes));
        let outcomes = catch_unwind(AssertUnwindSafe(apply)).unwrap_or_else(|_| {
            Err(StoreError::new(Kind::Other, Effect::Unknown, "apply").because("the store panicked"))
        })?;
        if outcomes.len() != writes.len() {
            let words = format!("{} outcomes for {} writes", outcomes.len(), writes.len());
            return Err(StoreError::new(Kind::Other, Effect::Unknown, "apply").because(words));
        }
        Ok(outcomes)
    }
}

/// Keys that are on their way, until they are not, whatever happens meanwhile.
struct OnTheWay {
    shared: Arc<Shared>,
    ids: Vec<RecordId>,
}

impl OnTheWay {
    fn new(shared: &Arc<Shared>, batch: &Batch) -> Self {
        Self { shared: Arc::clone(shared), ids: batch.writes.iter().map(Write::id).collect() }
    }
}

impl Drop for OnTheWay {
    fn drop(&mut self) {
        let is_awaited = self.shared.queue().free(&self.ids);
        if is_awaited {
            self.shared.arrived.notify_one();
        }
    }
}

/// Lets the batch grow until so many are here, or the time is over.
fn linger<'q>(
    shared: &'q Shared,
    mut queue: MutexGuard<'q, Queue>,
    wanted: usize,
    limit: Duration,
) -> MutexGuard<'q, Queue> {
    let started = Instant::now();
    queue.wanted = wanted;
    while queue.here() < wanted && !queue.is_closed {
        let left = limit.saturating_sub(started.elapsed());
        if left.is_zero() {
            break;
        }
        queue = shared.arrived.wait_timeout(queue, left).unwrap_or_else(PoisonError::into_inner).0;
    }
    queue
}
