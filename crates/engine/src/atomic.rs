//! A request whose key, effects and answer are one transaction of the caller's own database.
//!
//! Nothing is reserved beforehand: the row is written once, settled, as the last statement before the commit. So a crash is a
//! rollback, and nothing of it was ever there; and a second execution is refused by the row's own statement at the latest, with all that it
//! did. What comes before (this node's set of keys, the store's lock) only spares the work.
//!
//! **Invariant:** the only doubt is a commit whose acknowledgement was lost. It is settled by reading again once every transaction
//! that had the key has ended; until then nobody is told anything but that it is not known.
//!
//! Not here: HTTP (`tower`), the caller's statements, and calls to others: they belong into the outbox, because a transaction that
//! waits for another party holds its locks, and cannot take back what the other has done.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use oncegate_core::audit::Entry;
use oncegate_core::decide::{Decision, Event, Lease, Next, Step, decide};
use oncegate_core::identity::{RecordId, Version};
use oncegate_core::policy::{AfterDoubt, Policy, WhileInProgress};
use oncegate_core::record::{Holder, Record};
use oncegate_core::response::Answer;
use oncegate_core::time::Timestamp;
use oncegate_store::jobs::{Enqueue, Job};
use oncegate_store::join::{Closed, Joined, Opened, Taken, Transaction, Transactions, Turn, Waited};
use oncegate_store::signals::Signal;
use oncegate_store::{Effect, Kind, StoreError, Write};
use tokio::time::error::Elapsed;

use crate::arrive::{Arrived, Asked, Look, Reserve, Unavailable, former_is_gone};
use crate::cache::Epoch;
use crate::engine::Engine;
use crate::meters::observe;
use crate::phases::parked_without_phases;
use crate::route::Route;
use crate::settle::Awaited;

mod phased;

/// The first pause before a doubted commit is looked for again.
const LOOK_PAUSE: Duration = Duration::from_millis(20);
const LOOK_PAUSE_MAX: Duration = Duration::from_secs(1);

/// What a request may do whose key, effects and answer are one transaction.
pub enum ArrivedIn<S: Enqueue, T: Transactions> {
    /// Run it in this transaction.
    Execute(Box<InTransaction<S, T>>),
    /// Run nothing, and answer so.
    Told(Arrived<S>),
}

/// A transaction that has taken a key and not ended. Dropped, it is rolled back, and nothing was executed.
pub struct InTransaction<S: Enqueue, T: Transactions> {
    engine: Engine<S>,
    route: Route,
    transactions: Arc<T>,
    transaction: Option<T::Transaction>,
    /// Whether the store's own statements began it, and so may end it.
    is_opened: bool,
    /// The row before this request.
    before: Option<Box<Record>>,
    /// The row as it would be while this runs; never written.
    running: Arc<Record>,
    lease: Lease,
    entry: Option<Entry>,
    /// Promised in this transaction, and written with the row.
    jobs: Vec<Job>,
    epoch: Epoch,
    started: Instant,
    /// Let go of in this order: the file's writer, then the key.
    turn: Option<Turn>,
    _key: KeyInHand<S>,
    /// The arrival, for when another turns out to have been first.
    event: Event,
}

/// How a transaction ended.
#[must_use]
pub enum EndedIn<S: Enqueue> {
    /// Committed; this is the row now.
    Committed(Arc<Record>),
    /// Rolled back, because another had the key: answer as if this had come after it.
    Overtaken(Arrived<S>),
    /// Rolled back: nothing was executed.
    RolledBack(StoreError),
    /// The commit was not acknowledged, and nobody could be asked in time. A retry finds out.
    InDoubt,
}

impl<S: Enqueue> Engine<S> {
    /// Takes the key in a new transaction, or says why not; waits for another's answer where the route's policy says so.
    ///
    /// Dropping the future is safe: the transaction is rolled back.
    pub async fn arrive_in<T: Transactions>(
        &self,
        route: &Route,
        asked: &mut Asked,
        transactions: &Arc<T>,
    ) -> Result<ArrivedIn<S, T>, Unavailable> {
        let (started, policy) = (Instant::now(), route.policy());
        let waits_for_holder = policy.in_progress == WhileInProgress::Wait;
        let waits_for_verdict = policy.after_doubt == AfterDoubt::WaitThenReject;
        let mut look = Look::First;
        loop {
            let waiter = self.0.waiters.register(asked.id);
            let mut woken = std::pin::pin!(waiter.notify.notified());
            woken.as_mut().enable();
            let arrived = self.look_in(route, asked, look, transactions).await?;
            look = Look::Again;
            let left = policy.wait_limit.saturating_sub(started.elapsed());
            let waits = match &arrived {
                ArrivedIn::Told(Arrived::Busy { .. }) => waits_for_holder,
                ArrivedIn::Told(Arrived::Unsettled { .. }) => waits_for_verdict,
                _ => false,
            };
            if !waits || left.is_zero() {
                route.meters().arrive_s.record(started.elapsed());
                return Ok(arrived);
            }
            let _ = tokio::time::timeout(left.min(self.0.options.wait_poll), woken).await;
        }
    }

    /// The ways that most requests do not go are boxed: a future has room for each of them, and is copied.
    async fn look_in<T: Transactions>(
        &self,
        route: &Route,
        asked: &mut Asked,
        look: Look,
        transactions: &Arc<T>,
    ) -> Result<ArrivedIn<S, T>, Unavailable> {
        if self.is_restored() {
            return Err(Unavailable::Restored);
        }
        if let Some(arrived) = self.by_cache(route, asked, look) {
            return Ok(ArrivedIn::Told(arrived));
        }
        if self.0.options.shared_cache.is_some()
            && let Some(arrived) = Box::pin(self.by_shared_cache(route, asked, look)).await
        {
            return Ok(ArrivedIn::Told(arrived));
        }
        if asked.may_be_elsewhere() {
            Box::pin(self.locate(asked)).await?;
            if let Some(arrived) = self.by_cache(route, asked, look) {
                return Ok(ArrivedIn::Told(arrived));
            }
        }
        let asked = &*asked;
        // A twin on this node is told at once, and takes no connection.
        let Some(key) = self.take_in_hand(asked.id) else {
            return Box::pin(self.behind_twin(route, asked, look)).await.map(ArrivedIn::Told);
        };
        let epoch = self.0.cache.epoch(asked.id, self.now());
        // At a former address there is a row, or nothing may be done.
        let is_new = look == Look::First && !asked.is_former;
        let opening = if is_new { self.0.store.opening(asked.id) } else { None };
        let opened = match opening {
            Some(opening) => self.in_time(transactions.begin_with(opening)).await?,
            None if T::LOOKS_FIRST && is_new => self.begin_first(&**transactions, asked.id).await?,
            None => Opened::Occupied,
        };
        let is_opened = matches!(opened, Opened::Begun(_));
        let (transaction, before, turn) = match opened {
            // If there is a turn, it is the transaction's.
            Opened::Begun(transaction) => (transaction, None, Turn::everybodys()),
            Opened::Occupied | Opened::Unable => {
                // Most of those who find a row need no transaction.
                let shown = match opened {
                    Opened::Unable => None,
                    _ => self.read(asked.id).await.map_err(Unavailable::store)?,
                };
                let told = shown.as_ref().and_then(|row| self.told_by(row, route, &asked.event, look, epoch));
                if let Some(arrived) = told {
                    return Ok(ArrivedIn::Told(arrived));
                }
                let turn = self.in_turn(self.0.store.turn()).await?;
                let taking = Box::pin(self.take_in(&**transactions, asked.id, shown));
                let taken = self.in_time(taking).await?;
                let Some((transaction, before)) = taken else {
                    return Box::pin(self.behind_twin(route, asked, look)).await.map(ArrivedIn::Told);
                };
                (transaction, before, turn)
            }
        };
        if asked.is_former && before.is_none() {
            transaction.roll_back().await;
            return Err(former_is_gone());
        }
        let event = self.arriving(asked)?;
        let now = self.now();
        let step = decide(before.as_deref(), &event, now);
        let entry = self.entry(before.as_deref(), &event, &step, now);
        if let (Decision::Execute(lease), Next::Put(running)) = (&step.decision, &step.next) {
            if parked_without_phases(lease.recovery.as_ref()).is_some() {
                transaction.roll_back().await;
                drop(turn);
                return Box::pin(self.park_phased(route, asked.clone())).await.map(ArrivedIn::Told);
            }
            let lease = lease.clone();
            let running = Arc::clone(running);
            Reserve::new(self, route, &event, asked.id, look).count_execution(
                &lease,
                before.as_deref(),
                Some(&running),
            );
            observe(&event, before.as_deref(), &step);
            return Ok(ArrivedIn::Execute(Box::new(InTransaction {
                engine: self.clone(),
                route: route.clone(),
                transactions: Arc::clone(transactions),
                transaction: Some(transaction),
                is_opened,
                before,
                running,
                lease,
                entry,
                jobs: Vec::new(),
                epoch,
                started: Instant::now(),
                turn: Some(turn),
                _key: key,
                event,
            })));
        }
        let before = before.map(|row| Arc::new(*row));
        Box::pin(self.write_told(transaction, before.as_ref(), &step, entry)).await?;
        if let Some(row) = &before {
            self.keep_shown(row, epoch);
        }
        observe(&event, before.as_deref(), &step);
        Ok(ArrivedIn::Told(Reserve::new(self, route, &event, asked.id, look).decided(step, before.as_ref())))
    }

    /// Of one writer: begins a transaction by which a key is taken that is new, or nothing. A key that is known to have a row needs neither.
    async fn begin_first<T: Transactions>(
        &self,
        transactions: &T,
        id: RecordId,
    ) -> Result<Opened<T::Transaction>, Unavailable> {
        let store = &self.0.store;
        if store.first(id).is_none() {
            return Ok(Opened::Occupied);
        }
        let opened = match self.in_turn(transactions.wait(&**store, id)).await? {
            Waited::Along(opened) => opened.map_err(Unavailable::store)?,
            // Others may have written while this waited.
            Waited::Turn(turn) => match store.first(id) {
                Some(first) => self.in_time(transactions.begin_first(first, turn)).await?,
                None => Opened::Occupied,
            },
        };
        Ok(match opened {
            Opened::Begun(transaction) => Opened::Begun(transaction),
            // Where nothing was tried nobody has looked for the row either; and of one writer, it is looked for before a transaction begins or not at all.
            Opened::Occupied | Opened::Unable => Opened::Occupied,
        })
    }

    async fn in_turn<R>(&self, waiting: impl Future<Output = R>) -> Result<R, Unavailable> {
        let waited = tokio::time::timeout(self.0.options.store_timeout, waiting).await;
        waited.map_err(|_| Unavailable::Overloaded)
    }

    /// What a row says that is the answer to this arrival, if it is.
    fn told_by(
        &self,
        row: &Record,
        route: &Route,
        event: &Event,
        look: Look,
        epoch: Epoch,
    ) -> Option<Arrived<S>> {
        let step = decide(Some(row), event, self.now());
        if step.next != Next::Keep || matches!(step.decision, Decision::Execute(_)) {
            return None;
        }
        let row = Arc::new(row.clone());
        self.keep_shown(&row, epoch);
        observe(event, Some(&row), &step);
        Some(Reserve::new(self, route, event, row.id, look).decided(step, Some(&row)))
    }

    /// Begins a transaction, and takes the key in it. `None`: another transaction has it.
    async fn take_in<T: Transactions>(
        &self,
        transactions: &T,
        id: RecordId,
        shown: Option<Record>,
    ) -> Result<Option<(T::Transaction, Option<Box<Record>>)>, StoreError> {
        let mut transaction = transactions.begin().await?;
        if self.0.store.opening(id).is_none() {
            // One writer. What has changed since the row was shown, the index or the version refuses.
            return Ok(Some((transaction, shown.map(Box::new))));
        }
        // The row as it is after the lock: a twin may have committed while this one asked for it.
        match self.0.store.take_after(&mut transaction, id).await? {
            Taken::Mine(row) => Ok(Some((transaction, row))),
            Taken::Twin => {
                transaction.roll_back().await;
                Ok(None)
            }
        }
    }

    async fn in_time<R>(
        &self,
        asking: impl Future<Output = Result<R, StoreError>>,
    ) -> Result<R, Unavailable> {
        let asked = tokio::time::timeout(self.0.options.store_timeout, asking).await;
        let asked = asked.map_err(|_| Unavailable::store("the database did not answer in time"))?;
        asked.map_err(Unavailable::store)
    }

    /// Nothing runs; but what the arrival found out (that a lease has lapsed, say) is written.
    async fn write_told<T: Transaction>(
        &self,
        mut transaction: T,
        before: Option<&Arc<Record>>,
        step: &Step,
        entry: Option<Entry>,
    ) -> Result<(), Unavailable> {
        let Some(write) = Write::of_step(before.map(|row| &**row), step) else {
            transaction.roll_back().await;
            return Ok(());
        };
        let joined = self.0.store.join(&mut transaction, &write.telling(entry)).await;
        match joined.map_err(Unavailable::store)? {
            Joined::Written => transaction.commit().await.map_err(Unavailable::store),
            Joined::Refused => Err(Unavailable::store("the row changed while it was looked at")),
        }
    }

    /// Another has the key. If only to read it, because all is over: then this is told what the row says, too.
    async fn behind_twin(&self, route: &Route, asked: &Asked, look: Look) -> Result<Arrived<S>, Unavailable> {
        let row = self.read(asked.id).await.map_err(Unavailable::store)?.map(Arc::new);
        Ok(self.told_behind(route, &asked.event, look, row.as_ref(), asked.id))
    }

    /// What an arrival is told that may not run, whatever the row says: if it would let it run, another is about to.
    fn told_behind(
        &self,
        route: &Route,
        event: &Event,
        look: Look,
        row: Option<&Arc<Record>>,
        id: RecordId,
    ) -> Arrived<S> {
        let now = self.now();
        let step = decide(row.map(|row| &**row), event, now);
        let is_told = step.next == Next::Keep && !matches!(step.decision, Decision::Execute(_));
        let step = if is_told { step } else { busy(now.at.plus(route.policy().lease)) };
        Reserve::new(self, route, event, id, look).decided(step, row)
    }

    fn take_in_hand(&self, id: RecordId) -> Option<KeyInHand<S>> {
        let is_free = self.0.in_hand.lock().unwrap_or_else(PoisonError::into_inner).insert(id);
        if !is_free {
            return None;
        }
        self.0.behind.take_up();
        Some(KeyInHand { engine: self.clone(), id })
    }
}

/// The keys whose transactions are open on this node.
pub(crate) type InHand = Mutex<HashSet<RecordId>>;

/// One of them.
struct KeyInHand<S: Enqueue> {
    engine: Engine<S>,
    id: RecordId,
}

impl<S: Enqueue> Drop for KeyInHand<S> {
    fn drop(&mut self) {
        let inner = &self.engine.0;
        inner.in_hand.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.id);
        inner.behind.lay_down();
        // Whoever waits may take it now.
        inner.waiters.wake(self.id);
    }
}

impl<S: Enqueue, T: Transactions> InTransaction<S, T> {
    /// The record's public name.
    #[must_use]
    pub fn id(&self) -> RecordId {
        self.running.id
    }

    /// The policy of its route.
    #[must_use]
    pub fn policy(&self) -> &Policy {
        self.route.policy()
    }

    /// Whom a settlement will be checked against: what a job is given that is to settle it.
    #[must_use]
    pub const fn holder(&self) -> &Holder {
        &self.lease.holder
    }

    /// When it began, by the store's clock.
    #[must_use]
    pub fn began_at(&self) -> Timestamp {
        self.running.last_run_at.unwrap_or(self.running.created_at)
    }

    /// Hands out the transaction, for the caller's statements. It must come back by [`InTransaction::give_back`], or nothing is
    /// committed.
    pub fn lend(&mut self) -> Option<T::Transaction> {
        self.transaction.take()
    }

    /// Takes it back.
    pub fn give_back(&mut self, transaction: T::Transaction) {
        self.transaction = Some(transaction);
    }

    /// Makes jobs part of the transaction: promised when it is committed, and not before.
    pub fn promise(&mut self, jobs: Vec<Job>) {
        self.jobs = jobs;
    }

    /// What another has written of the key since this one looked, if so: then that is what a client is to be told, and not what became of
    /// this attempt, which may have met the other's rows.
    pub async fn overtaken(&mut self) -> Option<Arrived<S>> {
        let row = self.engine.read(self.running.id).await.ok().flatten()?;
        let is_as_before = self.before.as_ref().is_some_and(|before| before.version == row.version);
        (!is_as_before).then(|| self.behind(Some(&Arc::new(row))))
    }

    /// Rolls back: nothing was executed.
    pub async fn roll_back(mut self) {
        self.route.meters().execute_s.record(self.started.elapsed());
        if let Some(transaction) = self.transaction.take() {
            transaction.roll_back().await;
        }
    }

    /// Stores the answer and commits. Whoever waits is told within `patience`, if only that nothing is known.
    pub async fn complete(self: Box<Self>, answer: Arc<Answer>, patience: Duration) -> EndedIn<S> {
        let event = Event::Complete { holder: self.lease.holder, answer, reference: None };
        self.end(&event, patience).await
    }

    /// Commits with the key still open: a job that was promised in this transaction carries the lease on, and its answer will be the
    /// answer.
    pub async fn entrust(self: Box<Self>, patience: Duration) -> EndedIn<S> {
        let event = Event::Entrust { holder: self.lease.holder };
        self.end(&event, patience).await
    }

    async fn end(mut self: Box<Self>, event: &Event, patience: Duration) -> EndedIn<S> {
        self.route.meters().execute_s.record(self.started.elapsed());
        let started = Instant::now();
        let Some(transaction) = self.transaction.take() else {
            return EndedIn::RolledBack(not_given_back());
        };
        let step = decide(Some(&self.running), event, self.engine.now());
        let Next::Put(row) = &step.next else {
            transaction.roll_back().await;
            return EndedIn::RolledBack(not_given_back());
        };
        let write = match &self.before {
            None => Write::insert(Arc::clone(row)),
            Some(before) => Write::swap(before.version, Arc::clone(row)),
        };
        let write = write.telling(self.entry.take());
        let ended = self.commit(transaction, write, row, patience).await;
        if let EndedIn::Committed(row) = &ended {
            observe(event, Some(&self.running), &step);
            self.tell(row);
        }
        self.route.meters().settle_s.record(started.elapsed());
        ended
    }

    async fn commit(
        &mut self,
        mut transaction: T::Transaction,
        write: Write,
        row: &Arc<Record>,
        patience: Duration,
    ) -> EndedIn<S> {
        if !transaction.is_lost() {
            return self.commit_in(transaction, write, row, patience).await;
        }
        // What was done since cannot be taken back: the row must be there too, and if it cannot be, nobody may be told that nothing was executed.
        tracing::error!(record = %row.id, "a handler has lost its transaction; what it did since is committed without its key, which is written now");
        let regained = tokio::time::timeout(patience, Box::pin(transaction.regain())).await;
        if !matches!(regained, Ok(Ok(()))) {
            return EndedIn::InDoubt;
        }
        match Box::pin(self.commit_in(transaction, write, row, patience)).await {
            EndedIn::RolledBack(_) => EndedIn::InDoubt,
            ended => ended,
        }
    }

    async fn commit_in(
        &mut self,
        transaction: T::Transaction,
        write: Write,
        row: &Arc<Record>,
        patience: Duration,
    ) -> EndedIn<S> {
        // Jobs are promised after the row: without it, because the transaction has ended behind everybody's back, they would be alone.
        let store = &self.engine.0.store;
        let closing = if self.is_opened && self.jobs.is_empty() { store.closing(&write) } else { None };
        let last = if closing.is_none() && self.jobs.is_empty() { store.last(&write) } else { None };
        let committed = match (closing, last) {
            (Some(closing), _) => {
                let closed = tokio::time::timeout(patience, transaction.commit_with(closing)).await;
                self.closed(closed, &write, patience).await
            }
            (None, Some(last)) => {
                let closed = tokio::time::timeout(patience, transaction.commit_after(last)).await;
                self.closed(closed, &write, patience).await
            }
            (None, None) => self.write_and_commit(transaction, &write, patience).await,
        };
        let confirmed = match committed {
            Ok(()) => {
                // The next writer need not wait for what is done with the answer.
                drop(self.turn.take());
                self.confirm(patience).await
            }
            not => not,
        };
        match confirmed {
            Ok(()) => EndedIn::Committed(Arc::clone(row)),
            Err(NotCommitted::Overtaken(arrived)) => EndedIn::Overtaken(arrived),
            Err(NotCommitted::RolledBack(error)) => EndedIn::RolledBack(error),
            Err(NotCommitted::InDoubt) => EndedIn::InDoubt,
            Err(NotCommitted::NotAcknowledged(error)) => {
                tracing::warn!(%error, record = %row.id, "a commit was not acknowledged; looking for it");
                // Whoever looks must be able to begin.
                drop(self.turn.take());
                let search = Search {
                    engine: self.engine.clone(),
                    transactions: Arc::clone(&self.transactions),
                    holder: self.lease.holder,
                    before: self.before.as_ref().map(|row| row.version),
                };
                let found = tokio::time::timeout(patience, Box::pin(search.find(row.id))).await;
                match found {
                    Ok(Found::Committed(row)) => EndedIn::Committed(row),
                    Ok(Found::Another(row)) => EndedIn::Overtaken(self.behind(Some(&row))),
                    Ok(Found::Nothing) => EndedIn::RolledBack(error),
                    Err(_) => EndedIn::InDoubt,
                }
            }
        }
    }

    /// A commit that only the primary has is one in doubt.
    async fn confirm(&mut self, patience: Duration) -> Result<(), NotCommitted<S>> {
        match tokio::time::timeout(patience, self.engine.0.store.confirm()).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(NotCommitted::NotAcknowledged(error)),
            Err(_) => Err(NotCommitted::InDoubt),
        }
    }

    /// What came of the short way, where the row and the commit are one message.
    async fn closed(
        &mut self,
        closed: Result<Result<Closed<T::Transaction>, StoreError>, Elapsed>,
        write: &Write,
        patience: Duration,
    ) -> Result<(), NotCommitted<S>> {
        match closed {
            Ok(Ok(Closed::Committed)) => Ok(()),
            Ok(Ok(Closed::Unable(transaction))) => {
                Box::pin(self.write_and_commit(transaction, write, patience)).await
            }
            // As above; only the server knew. What was done cannot be taken back: the row must be there too, and if it cannot be, nobody may be told that nothing was executed.
            Ok(Ok(Closed::Outside(transaction))) => {
                tracing::error!(record = %self.running.id, "a handler has ended its transaction; what it did since is committed without its key, which is written now");
                let written = Box::pin(self.write_and_commit(transaction, write, patience)).await;
                written.map_err(|why| match why {
                    NotCommitted::RolledBack(_) => NotCommitted::InDoubt,
                    why => why,
                })
            }
            // Of the row, because another's is there; or of what the handler did.
            Ok(Err(error)) if error.effect() == Effect::None => Err(Box::pin(self.refused(error)).await),
            Ok(Err(error)) => Err(NotCommitted::NotAcknowledged(error)),
            Err(_) => Err(NotCommitted::InDoubt),
        }
    }

    /// Nothing is committed, and the server has said why; if because of another's row, that is what there is to tell.
    async fn refused(&mut self, error: StoreError) -> NotCommitted<S> {
        match self.engine.read(self.running.id).await {
            Ok(None) => NotCommitted::RolledBack(error),
            Ok(Some(row)) => NotCommitted::Overtaken(self.behind(Some(&Arc::new(row)))),
            Err(_) => NotCommitted::InDoubt,
        }
    }

    /// The long way, which every library can go.
    async fn write_and_commit(
        &mut self,
        mut transaction: T::Transaction,
        write: &Write,
        patience: Duration,
    ) -> Result<(), NotCommitted<S>> {
        match tokio::time::timeout(patience, self.write(&mut transaction, write)).await {
            Ok(Ok(Joined::Written)) => {}
            Ok(Ok(Joined::Refused)) => {
                transaction.roll_back().await;
                return Err(match self.engine.read(self.running.id).await {
                    Ok(current) => NotCommitted::Overtaken(self.behind(current.map(Arc::new).as_ref())),
                    Err(_) => NotCommitted::InDoubt,
                });
            }
            Ok(Err(error)) => {
                transaction.roll_back().await;
                return Err(NotCommitted::RolledBack(error));
            }
            // Dropped, and so rolled back: nobody has said COMMIT yet.
            Err(_) => return Err(NotCommitted::RolledBack(too_slow())),
        }
        match tokio::time::timeout(patience, transaction.commit()).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) if error.effect() == Effect::None => Err(NotCommitted::RolledBack(error)),
            Ok(Err(error)) => Err(NotCommitted::NotAcknowledged(error)),
            Err(_) => Err(NotCommitted::InDoubt),
        }
    }

    /// The row first: on SQLite it is what finds out that the transaction has ended behind everybody's back.
    async fn write(&mut self, transaction: &mut T::Transaction, write: &Write) -> Result<Joined, StoreError> {
        let store = &self.engine.0.store;
        let joined = store.join(transaction, write).await?;
        if joined == Joined::Written && !self.jobs.is_empty() {
            Box::pin(store.enqueue(transaction, &self.jobs)).await?;
        }
        Ok(joined)
    }

    /// What this is told as one that came after what is in the row.
    fn behind(&self, row: Option<&Arc<Record>>) -> Arrived<S> {
        self.engine.told_behind(&self.route, &self.event, Look::Again, row, self.running.id)
    }

    fn tell(&self, row: &Arc<Record>) {
        if !self.jobs.is_empty() {
            self.engine.wake_outbox();
        }
        let inner = &self.engine.0;
        inner.cache.keep(row, self.epoch, self.engine.now());
        inner.waiters.wake(row.id);
        if Awaited::by(self.route.policy()) == Awaited::Elsewhere {
            inner.herald.tell(Signal::Settled(row.id));
        }
    }
}

/// Why a transaction is not known to be committed.
enum NotCommitted<S: Enqueue> {
    /// It was rolled back, because another had the key.
    Overtaken(Arrived<S>),
    /// It was rolled back.
    RolledBack(StoreError),
    /// The commit may have landed.
    NotAcknowledged(StoreError),
    /// The same, and there is no time left to look.
    InDoubt,
}

/// What became of a commit that was not acknowledged.
enum Found {
    Committed(Arc<Record>),
    /// Another has written since, and so this was not.
    Another(Arc<Record>),
    Nothing,
}

/// The search for it.
struct Search<S: Enqueue, T: Transactions> {
    engine: Engine<S>,
    transactions: Arc<T>,
    holder: Holder,
    /// The version of the row before it, if there was one.
    before: Option<Version>,
}

impl<S: Enqueue, T: Transactions> Search<S, T> {
    /// Reads the row once every transaction that had the key has ended.
    async fn find(&self, id: RecordId) -> Found {
        let mut pause = LOOK_PAUSE;
        loop {
            match self.look(id).await {
                Ok(Some(found)) if found.is_held_by(&self.holder) => return Found::Committed(found),
                Ok(Some(found)) if self.before != Some(found.version) => return Found::Another(found),
                Ok(_) => return Found::Nothing,
                Err(error) => {
                    tracing::debug!(%error, record = %id, "a commit could not be looked for yet");
                }
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LOOK_PAUSE_MAX);
        }
    }

    async fn look(&self, id: RecordId) -> Result<Option<Arc<Record>>, StoreError> {
        let store = &self.engine.0.store;
        let _turn = store.turn().await;
        let mut transaction = self.transactions.begin().await?;
        let taken = store.take_after(&mut transaction, id).await;
        transaction.roll_back().await;
        match taken? {
            Taken::Mine(row) => Ok(row.map(|row| Arc::new(*row))),
            // It has not ended, or another is at it: ask again.
            Taken::Twin => Err(StoreError::new(Kind::Contended, Effect::None, "take")),
        }
    }
}

fn busy(until: Timestamp) -> Step {
    Step { next: Next::Keep, decision: Decision::Busy { until }, notices: Vec::new() }
}

fn too_slow() -> StoreError {
    let words = "the database did not answer in time; the transaction was not committed";
    StoreError::new(Kind::Unavailable, Effect::None, "join").because(words)
}

fn not_given_back() -> StoreError {
    let words = "the handler kept the transaction beyond its answer; it was rolled back";
    StoreError::new(Kind::Other, Effect::None, "commit").because(words)
}
