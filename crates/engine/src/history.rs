//! Whether the store still has what this process wrote, and which keys it may have lost.
//!
//! Every few seconds the engine has the store check its history ([`Store::check_history`]) and
//! reads the quarantines. Once the history is lost, what the engine remembers is of a state that
//! the store no longer has. So it refuses every request, also those that its cache could answer,
//! and its workers rest. Attempts that are under way go on, and what became of them is still
//! submitted: a write over a row that was lost is refused by its version, and a response that
//! cannot be recorded is not sent.
//!
//! A key without a record whose time lies in an active quarantine does not run: it is recorded as
//! `unknown` and parked, for an operator.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};
use std::time::Duration;

use metrics::gauge;
use oncegate_core::decide::{Admission, Arrival, Decision, Event, QUARANTINED};
use oncegate_core::record::{Record, State, StateKind};
use oncegate_core::time::Timestamp;
use oncegate_store::history::RESTORED;
use oncegate_store::{Filter, History, Kind, Quarantine, Store, StoreError};
use tokio::task::AbortHandle;

use crate::engine::{Engine, Inner};
use crate::meters::names;
use crate::operate::{Act, Operator};

/// Rows of one page while a quarantine is released.
const PAGE: usize = 256;

/// What an engine knows of its store's history.
#[derive(Default)]
pub(crate) struct StoreHistory {
    is_lost: AtomicBool,
    has_windows: AtomicBool,
    /// The active ones.
    windows: RwLock<Arc<[Quarantine]>>,
    task: Mutex<Option<AbortHandle>>,
    /// One look at a time.
    looking: tokio::sync::Mutex<()>,
}

impl StoreHistory {
    pub(crate) fn is_lost(&self) -> bool {
        self.is_lost.load(Ordering::Acquire)
    }

    /// Marks the history as lost, for good, and logs it once.
    pub(crate) fn lose(&self) {
        if !self.is_lost.swap(true, Ordering::AcqRel) {
            gauge!(names::STORE_RESTORED).set(1.0);
            tracing::error!("refusing all requests: {RESTORED}");
        }
    }

    fn set_windows(&self, windows: Vec<Quarantine>) {
        self.has_windows.store(!windows.is_empty(), Ordering::Release);
        gauge!(names::QUARANTINES).set(u32::try_from(windows.len()).unwrap_or(u32::MAX));
        *self.windows.write().unwrap_or_else(PoisonError::into_inner) = windows.into();
    }

    /// Whether a key of this time may begin a life.
    pub(crate) fn admission(&self, arrival: &Arrival, skew: Duration) -> Admission {
        if !self.has_windows.load(Ordering::Acquire) {
            return Admission::Open;
        }
        // The time in the key comes before the header: a retry cannot change it.
        let time = arrival.address.key.time().or(arrival.sent_at);
        let windows = Arc::clone(&self.windows.read().unwrap_or_else(PoisonError::into_inner));
        let covering: Vec<_> =
            windows.iter().filter(|window| window.covers(time, skew)).map(|window| &*window.id).collect();
        if covering.is_empty() {
            return Admission::Open;
        }
        Admission::Quarantined { windows: covering.join(",").into() }
    }
}

impl Drop for StoreHistory {
    fn drop(&mut self) {
        if let Some(task) = self.task.get_mut().unwrap_or_else(PoisonError::into_inner).take() {
            task.abort();
        }
    }
}

impl<S: Store> Inner<S> {
    /// One look: the watermark, then the quarantines.
    async fn check_history(&self) -> Result<(), StoreError> {
        let _looking = self.history.looking.lock().await;
        self.check_watermark().await?;
        if self.history.is_lost() { Ok(()) } else { self.read_quarantines().await }
    }

    async fn check_watermark(&self) -> Result<(), StoreError> {
        match self.store.check_history().await {
            Ok(History::Intact) => {}
            Ok(History::Lost) => self.history.lose(),
            Err(error) if error.kind() == Kind::Restored => self.history.lose(),
            Err(error) => return Err(error),
        }
        Ok(())
    }

    async fn read_quarantines(&self) -> Result<(), StoreError> {
        let windows = self.store.quarantines().await?;
        self.history.set_windows(windows.into_iter().filter(|one| one.released_at.is_none()).collect());
        Ok(())
    }
}

async fn watch<S: Store>(inner: Weak<Inner<S>>, every: Duration) {
    let mut ticks = tokio::time::interval(every);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    ticks.tick().await;
    loop {
        ticks.tick().await;
        let Some(inner) = inner.upgrade() else { return };
        if inner.history.is_lost() {
            return;
        }
        if let Err(error) = inner.check_history().await {
            tracing::warn!(%error, "failed to check the store's history; trying again");
        }
    }
}

/// What the release of a quarantine came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReleasedQuarantine {
    /// It was active until now.
    pub was_active: bool,
    /// How many of its keys may run again.
    pub keys: usize,
}

impl<S: Store> Engine<S> {
    /// The first look, before anything is served; and the task that goes on looking. A node starts
    /// also where nothing can be written yet, but never without having read the quarantines.
    pub(crate) async fn start_watching_history(&self) -> Result<(), StoreError> {
        gauge!(names::STORE_RESTORED).set(0.0);
        if let Err(error) = self.0.check_watermark().await {
            tracing::warn!(%error, "failed to check the store's history; trying again");
        }
        self.0.read_quarantines().await?;
        let task = watch(Arc::downgrade(&self.0), self.0.options.check_history_every);
        let task = self.0.runtime.spawn(task).abort_handle();
        *self.0.history.task.lock().unwrap_or_else(PoisonError::into_inner) = Some(task);
        Ok(())
    }

    /// Whether the store was found restored to an earlier state: then nothing runs until this
    /// process is restarted.
    #[must_use]
    pub fn is_restored(&self) -> bool {
        self.0.history.is_lost()
    }

    /// Checks the store's history and reads the quarantines, now. The engine does so by itself
    /// every few seconds.
    pub async fn check_history(&self) -> Result<(), Arc<StoreError>> {
        Ok(self.0.check_history().await?)
    }

    /// Removes this process's watermark from the store. Call it last: afterwards nothing may be
    /// asked of this engine.
    pub async fn leave(&self) -> Result<(), Arc<StoreError>> {
        if let Some(task) = self.0.history.task.lock().unwrap_or_else(PoisonError::into_inner).take() {
            task.abort();
        }
        Ok(self.0.store.leave().await?)
    }

    /// Declares that keys of this time may have been lost. Also holds back released keys, accepted
    /// work, and under `resume` and `restart` work in progress, which may have run in that time.
    /// Running nodes learn of it at their next check.
    ///
    /// May be called again after an error: what is held back already stays so.
    pub async fn declare_quarantine(
        &self,
        since: Timestamp,
        until: Timestamp,
        operator: &Operator,
    ) -> Result<Quarantine, Arc<StoreError>> {
        let quarantine = Quarantine {
            id: new_id(self.now().at),
            since,
            until,
            declared_at: self.now().at,
            released_at: None,
            reason: format!("{}: {}", operator.name, operator.reason).into(),
        };
        self.0.store.declare_quarantine(&quarantine).await?;
        self.0.check_history().await?;
        // In the order in which work moves on, so that what runs meanwhile is met in the next
        // state.
        for state in
            [StateKind::FailedRetryable, StateKind::Pending, StateKind::InProgress, StateKind::Unknown]
        {
            self.hold_back(state, &quarantine, operator).await?;
        }
        Ok(quarantine)
    }

    /// Holds back all records in this state.
    async fn hold_back(
        &self,
        state: StateKind,
        window: &Quarantine,
        operator: &Operator,
    ) -> Result<(), Arc<StoreError>> {
        let event = Event::HoldBack { windows: window.id.clone() };
        let skew = self.0.options.quarantine_skew;
        // What another window holds back may be outside of this one. What may run is held back whatever its time.
        let is_held = |record: &Record| {
            let is_parked = matches!(&record.state, State::Unknown(doubt) if doubt.parked);
            !is_parked || window.covers(record.address.key.time(), skew)
        };
        let who = self.operator_who(operator);
        let filter = Filter { state: Some(state), ..Filter::default() };
        let mut after = None;
        loop {
            let page = self.0.store.browse(&filter, after.as_ref(), PAGE).await?;
            for record in page.records.into_iter().filter(is_held) {
                self.step_as(&event, Some(Arc::new(record)), &who).await?;
            }
            after = page.next;
            if after.is_none() {
                return Ok(());
            }
        }
    }

    /// Ends a quarantine. Keys that no other active quarantine holds back are settled as "did not
    /// happen", in the operator's name, and may run.
    ///
    /// Nodes hold keys back until their next check: call it again after that, for those too.
    pub async fn release_quarantine(
        &self,
        id: &str,
        operator: &Operator,
    ) -> Result<ReleasedQuarantine, Arc<StoreError>> {
        let was_active = self.0.store.release_quarantine(id, self.now().at).await?;
        self.0.check_history().await?;
        let all = self.0.store.quarantines().await?;
        let active: Vec<_> = all.iter().filter(|one| one.released_at.is_none()).map(|one| &*one.id).collect();
        let mut keys = 0;
        let mut after = None;
        let filter = Filter { state: Some(StateKind::Unknown), parked: Some(true), ..Filter::default() };
        loop {
            let page = self.0.store.browse(&filter, after.as_ref(), PAGE).await?;
            for record in page.records.iter().filter(|record| is_held_by(record, id, &active)) {
                let decision = self.operate(record.id, record.version, Act::DidNotHappen, operator).await?;
                keys += usize::from(matches!(decision, Decision::Done));
            }
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        Ok(ReleasedQuarantine { was_active, keys })
    }
}

/// Held back by this quarantine, and by none that is active.
fn is_held_by(record: &Record, id: &str, active: &[&str]) -> bool {
    let is_parked = matches!(&record.state, State::Unknown(doubt) if doubt.parked);
    let windows = record.last_error.as_ref().filter(|reason| reason.code() == QUARANTINED);
    is_parked
        && windows.is_some_and(|windows| {
            let mut ids = windows.detail().split(',');
            ids.clone().any(|one| one == id) && !ids.any(|one| active.contains(&one))
        })
}

/// Short enough to type, and unique: the time in seconds, and 16 random bits.
fn new_id(now: Timestamp) -> Box<str> {
    let random = getrandom::u32().unwrap_or_default() & 0xffff;
    format!("q{:x}-{random:04x}", now.as_micros() / 1_000_000).into()
}
