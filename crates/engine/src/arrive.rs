//! A request arrives: from the cache, or by a reserve through the batching writer.
//!
//! **Invariants:** nothing runs that is not reserved, durably, under a lease that has not ended; and a reserve that may have
//! been written without anybody to run it is cleaned up, also if its caller goes away while it waits.

use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use oncegate_core::decide::{Arrival, Decision, Event, Lease, Next, Notice, Step, decide};
use oncegate_core::identity::{RecordId, Version};
use oncegate_core::record::{Execution, GoneStatus, Record, State, StateKind};
use oncegate_core::response::Answer;
use oncegate_core::time::{Now, Timestamp};
use oncegate_store::shared_cache::Kept;
use oncegate_store::{Effect, Kind, Outcome, Store, Write};

use crate::after_expiry::log_after_expiry;
use crate::cache::Epoch;
use crate::drive::ROUNDS_MAX;
use crate::engine::Engine;
use crate::held::Held;
use crate::meters::{Repeat, observe};
use crate::route::{FormerAddress, Route};
use crate::settle::Settlement;
use crate::writer::InFlight;

/// The first pause before a reserve in doubt is tried again.
const DOUBT_BACKOFF: Duration = Duration::from_millis(10);
/// With so many clean-ups waiting for the store, no more reserves are tried.
const CLEAN_UPS_MAX: usize = 10_000;

/// What a request may do.
#[must_use]
pub enum Arrived<S: Store> {
    /// Run it, and settle what became of it.
    Execute(Box<Held<S>>),
    /// It is over: send this and touch nothing.
    Replay {
        /// The first answer.
        answer: Arc<Answer>,
        /// When it is no longer kept.
        expires_at: Option<Timestamp>,
    },
    /// Somebody will run it.
    Accepted {
        /// Its public name.
        id: RecordId,
        /// By this very request, and not by an earlier one.
        is_new: bool,
        /// It waits, or it is being run.
        state: StateKind,
    },
    /// Another caller holds the lease until then.
    Busy {
        /// The lease's end, as it stands.
        until: Timestamp,
    },
    /// Nobody knows what the last attempt did.
    Unsettled {
        /// Since when.
        since: Timestamp,
        /// An operator has it.
        parked: bool,
        /// Who runs it if it is found not to have happened: its client, or a worker.
        execution: Execution,
    },
    /// Same key, another request.
    Mismatch {
        /// The record of the first request, where there is one to compare with.
        record: Option<Arc<Record>>,
    },
    /// Past retention.
    Gone {
        /// With which status.
        status: GoneStatus,
    },
}

/// Whatever the store is: it need not be printable.
impl<S: Store> fmt::Debug for Arrived<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Execute(held) => f.debug_tuple("Execute").field(held).finish(),
            Self::Replay { answer, expires_at } => {
                f.debug_struct("Replay").field("answer", answer).field("expires_at", expires_at).finish()
            }
            Self::Accepted { id, is_new, state } => {
                let mut shown = f.debug_struct("Accepted");
                shown.field("id", id).field("is_new", is_new).field("state", state).finish()
            }
            Self::Busy { until } => f.debug_struct("Busy").field("until", until).finish(),
            Self::Unsettled { since, parked, execution } => {
                let mut shown = f.debug_struct("Unsettled");
                shown.field("since", since).field("parked", parked).field("execution", execution).finish()
            }
            Self::Mismatch { .. } => f.write_str("Mismatch"),
            Self::Gone { status } => f.debug_struct("Gone").field("status", status).finish(),
        }
    }
}

/// There is no answer yet: ask again later, with the same key. Nothing was executed, and nothing will be; but for
/// [`PerhapsAccepted`](Self::PerhapsAccepted).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unavailable {
    /// Too much waits to be written.
    Overloaded,
    /// The store failed several times in a row, and is not asked for a moment.
    BreakerOpen {
        /// Until when.
        words: Box<str>,
    },
    /// The store could not say yes.
    Store {
        /// What it said.
        words: Box<str>,
    },
    /// The system has no randomness to give, and a guessable token protects nothing.
    NoRandomness,
    /// The store was restored to an earlier state while this process ran: it refuses everything until it is restarted.
    Restored,
    /// It was to be run later, and the store did not say whether that was written. If it was, somebody runs it: a row that waits may have
    /// been shown to another client as accepted, so that nobody takes it back.
    PerhapsAccepted {
        /// What the store said.
        words: Box<str>,
    },
}

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Overloaded => f.write_str("too much waits to be written; nothing was executed"),
            Self::Store { words } | Self::BreakerOpen { words } => {
                write!(f, "the store could not say yes; nothing was executed ({words})")
            }
            Self::NoRandomness => f.write_str("the system has no randomness to give; nothing was executed"),
            Self::Restored => f.write_str(oncegate_store::history::RESTORED),
            Self::PerhapsAccepted { words } => {
                write!(f, "the store did not say whether it was accepted; it may be executed ({words})")
            }
        }
    }
}

impl Error for Unavailable {}

impl Unavailable {
    pub(crate) fn store(words: impl fmt::Display) -> Self {
        Self::Store { words: words.to_string().into() }
    }

    fn perhaps_accepted(self) -> Self {
        match self {
            Self::Store { words } | Self::BreakerOpen { words } | Self::PerhapsAccepted { words } => {
                Self::PerhapsAccepted { words }
            }
            Self::Overloaded => Self::PerhapsAccepted { words: "too much waits to be written".into() },
            Self::NoRandomness => Self::PerhapsAccepted { words: "no randomness".into() },
            Self::Restored => Self::PerhapsAccepted { words: oncegate_store::history::RESTORED.into() },
        }
    }
}

impl<S: Store> Engine<S> {
    /// Decides what a request may do.
    ///
    /// Dropping the future is safe: what it may have reserved is cleaned up.
    pub async fn arrive(&self, route: &Route, arrival: Arrival) -> Result<Arrived<S>, Unavailable> {
        self.look(route, &mut Asked::new(arrival), Look::First).await
    }

    /// The same for somebody who may ask more than once. Each time with a token of its own: what is cleaned up under one is never
    /// granted under it.
    pub(crate) async fn look(
        &self,
        route: &Route,
        asked: &mut Asked,
        look: Look,
    ) -> Result<Arrived<S>, Unavailable> {
        if self.is_restored() {
            return Err(Unavailable::Restored);
        }
        if let Some(arrived) = self.by_cache(route, asked, look) {
            return Ok(arrived);
        }
        if let Some(arrived) = self.by_shared_cache(route, asked, look).await {
            return Ok(arrived);
        }
        let started = Instant::now();
        self.admit().map_err(|unavailable| refused(&asked.event, look, None, unavailable))?;
        if asked.may_be_elsewhere() {
            let located = Box::pin(self.locate(asked)).await;
            located.map_err(|unavailable| refused(&asked.event, look, None, unavailable))?;
            if let Some(arrived) = self.by_cache(route, asked, look) {
                return Ok(arrived);
            }
        }
        let event = self.arriving(asked)?;
        let mut reserve = Reserve::new(self, route, &event, asked.id, look);
        reserve.is_former = asked.is_former;
        let arrived = reserve.by_store().await.map_err(|unavailable| reserve.refused(unavailable))?;
        route.meters().arrive_s.record(started.elapsed());
        Ok(arrived)
    }

    /// The answer that the cache allows. The rules are the same; only the row comes from elsewhere.
    pub(crate) fn by_cache(&self, route: &Route, asked: &Asked, look: Look) -> Option<Arrived<S>> {
        // What the cache holds is of a state that the store no longer has.
        if self.is_restored() {
            return None;
        }
        let started = Instant::now();
        let arrived = Reserve::new(self, route, &asked.event, asked.id, look).by_cache()?;
        route.meters().arrive_s.record(started.elapsed());
        Some(arrived)
    }
}

impl<S: Store> Engine<S> {
    /// The event of a request that is about to be decided: with a token of its own, drawn now.
    pub(crate) fn arriving(&self, asked: &Asked) -> Result<Event, Unavailable> {
        let mut event = asked.event.clone();
        if let Event::Arrive(arrival) = &mut event {
            arrival.token = self.new_token()?;
            arrival.admission = self.0.history.admission(arrival, self.0.options.quarantine_skew);
        }
        Ok(event)
    }

    /// Refuses at once while the store is down, and while too many reserves in doubt wait to be
    /// cleaned up.
    fn admit(&self) -> Result<(), Unavailable> {
        if !self.0.breaker.admits() {
            let pause = self.0.breaker.pause();
            let words = format!("it failed several times; next try within {pause:?}").into();
            return Err(Unavailable::BreakerOpen { words });
        }
        if self.0.behind.count() > CLEAN_UPS_MAX { Err(Unavailable::Overloaded) } else { Ok(()) }
    }

    /// Finds out under which address the request's record is: its own, or a former one, if there
    /// is a row.
    ///
    /// Earlier releases made a route's pattern part of the scope, and an earlier configuration may
    /// have served the request by a route that told its keys apart otherwise. Such records stay
    /// where they are: replayed, busy, unknown, run again after a release.
    ///
    /// Reading the former address and then writing at the own one is no race. Nodes of those
    /// releases are refused by a store that a node of this release has used, and this release never
    /// inserts at a former address (see [`Reserve`]): it only changes the row that is there, on
    /// the condition of its version. So once a former address was seen empty it stays empty, and
    /// until then every node goes there. Of an earlier configuration that holds once the nodes
    /// that have it are gone: they insert there.
    pub(crate) async fn locate(&self, asked: &mut Asked) -> Result<(), Unavailable> {
        let Event::Arrive(arrival) = &mut asked.event else { return Ok(()) };
        let former_ids = asked.former.iter().map(|former| RecordId::of(&former.address));
        let ids: Vec<_> = std::iter::once(asked.id).chain(former_ids).collect();
        let reading = tokio::time::timeout(self.0.options.store_timeout, self.0.store.read(&ids));
        let rows = reading.await.map_err(|_| Unavailable::store("it did not answer in time"))?;
        let rows = rows.map_err(Unavailable::store)?;
        // The first row is at the own address, the others are at the former ones.
        let addresses = std::iter::once(None).chain(asked.former.iter().map(Some));
        for ((row, id), former) in rows.into_iter().zip(ids).zip(addresses) {
            let Some(row) = row.map_err(Unavailable::store)? else { continue };
            let Some(former) = former else { break };
            if former.holds.contain(&row, arrival) {
                (arrival.address, asked.id, asked.is_former) = (former.address.clone(), id, true);
                break;
            }
        }
        asked.former.clear();
        Ok(())
    }

    /// The answer that another node has kept, taken over into this node's cache under the same limits.
    pub(crate) async fn by_shared_cache(
        &self,
        route: &Route,
        asked: &Asked,
        look: Look,
    ) -> Option<Arrived<S>> {
        let (shared, realm) = (self.0.options.shared_cache.as_ref()?, self.0.store.realm()?);
        let epoch = self.0.cache.epoch(asked.id, self.now());
        let kept = shared.get(asked.id).await?;
        // Whatever it is, it is only asked for its answer if it is the record that was asked for, and of this store.
        let is_ours = kept.realm == realm && kept.record.id == asked.id;
        let is_adopted = is_ours && self.0.cache.adopt(kept, epoch, self.now());
        if is_adopted { self.by_cache(route, asked, look) } else { None }
    }

    /// What the store has shown is kept here, and where other nodes find it.
    pub(crate) fn keep_shown(&self, row: &Arc<Record>, epoch: Epoch) {
        let is_kept = self.0.cache.keep(row, epoch, self.now());
        if let (Some(shared), Some(realm)) = (&self.0.options.shared_cache, self.0.store.realm())
            && is_kept
        {
            shared.put(Kept { realm, record: Arc::clone(row), shown_at: epoch.asked_at() });
        }
    }
}

/// How often a request has been asked about. A duplicate that waits is one duplicate, however often it looks.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Look {
    First,
    Again,
}

/// A request, as it is asked about.
#[derive(Clone, Debug)]
pub struct Asked {
    pub(crate) event: Event,
    pub(crate) id: RecordId,
    /// Where else its record may be; empty once that is known.
    former: Vec<FormerAddress>,
    /// Its record was found at a former address.
    pub(crate) is_former: bool,
}

impl Asked {
    /// To be asked about.
    #[must_use]
    pub fn new(arrival: Arrival) -> Self {
        let id = RecordId::of(&arrival.address);
        Self { id, event: Event::Arrive(arrival), former: Vec::new(), is_former: false }
    }

    /// Its record may also be at one of these addresses; see [`Route::former_addresses`].
    #[must_use]
    pub fn or_at(mut self, former: Vec<FormerAddress>) -> Self {
        self.former = former;
        self
    }

    /// The record's id. Where the record is found at a former address, it is that one's, once it
    /// is known.
    #[must_use]
    pub const fn id(&self) -> RecordId {
        self.id
    }

    pub(crate) fn may_be_elsewhere(&self) -> bool {
        !self.former.is_empty()
    }
}

/// No lease can be granted: by this clock it might be over before it begins.
fn clock_too_uncertain(now: Now) -> Unavailable {
    Unavailable::store(format_args!(
        "this node's clock may be off by {:?}, longer than a lease: the clock was set back, or the store's \
         clock cannot be read; correct it, then restart this node",
        now.error
    ))
}

/// The record was removed between two looks at it. Nothing may be inserted at a former address.
pub(crate) fn former_is_gone() -> Unavailable {
    Unavailable::store("the record at the key's former address was removed meanwhile; retry")
}

/// What is told with a write in doubt. One that would have run the request is cleaned up. One
/// that would have accepted it is not, so its client must not be told that nothing will be
/// executed; nor must one that has waited and looks again, because its first look may have been
/// accepted.
fn refused(event: &Event, look: Look, may_land: Option<Over>, unavailable: Unavailable) -> Unavailable {
    let is_deferred = matches!(event, Event::Arrive(arrival) if arrival.execution == Execution::Deferred);
    let may_be_written = may_land.is_some() || look == Look::Again;
    if is_deferred && may_be_written { unavailable.perhaps_accepted() } else { unavailable }
}

fn too_late() -> Unavailable {
    Unavailable::store("it acknowledged the reserve after its lease had ended")
}

/// A request on its way to a decision.
pub(crate) struct Reserve<'a, S: Store> {
    engine: &'a Engine<S>,
    route: &'a Route,
    event: &'a Event,
    id: RecordId,
    /// A write of ours that may be there, or may still land: the version that it was conditioned on.
    may_land: Option<Over>,
    in_flight: Option<InFlight>,
    look: Look,
    /// The record is at a former address, where nothing is ever inserted: see [`Engine::locate`].
    is_former: bool,
    /// Of a record at a former address: the row that the last write was conditioned on.
    former: Option<Arc<Record>>,
}

/// The version that a write was conditioned on; `None` for an insert.
type Over = Option<Version>;

impl<'a, S: Store> Reserve<'a, S> {
    pub(crate) fn new(
        engine: &'a Engine<S>,
        route: &'a Route,
        event: &'a Event,
        id: RecordId,
        look: Look,
    ) -> Self {
        let (may_land, in_flight, former) = (None, None, None);
        Self { engine, route, event, id, may_land, in_flight, look, is_former: false, former }
    }

    fn by_cache(&mut self) -> Option<Arrived<S>> {
        let now = self.engine.now();
        let hit = self.engine.0.cache.get(self.id, now)?;
        let step = decide(Some(hit.record()), self.event, now);
        match &step.decision {
            Decision::Replay(_) | Decision::Mismatch if step.next == Next::Keep => {
                Some(self.decided(step, Some(hit.record())))
            }
            _ => None,
        }
    }

    async fn by_store(&mut self) -> Result<Arrived<S>, Unavailable> {
        self.in_flight = Some(self.engine.0.writer.in_flight());
        let mut row = if self.is_former { Some(Box::pin(self.read_former()).await?) } else { None };
        let mut doubted_since: Option<Instant> = None;
        let mut clashes = 0;
        while clashes < ROUNDS_MAX {
            // Before the write is submitted: a lease counts from here.
            let now = self.engine.now();
            let epoch = self.engine.0.cache.epoch(self.id, now);
            let step = decide(row.as_deref(), self.event, now);
            if self.is_own_and_too_late(row.as_deref(), &step) {
                // Nothing ran under it, and nobody else can know that: dropping this releases it.
                self.may_land = Some(row.as_ref().map(|row| row.version));
                return Err(too_late());
            }
            if let Decision::Execute(lease) = &step.decision
                && now.may_be_past(lease.until)
            {
                // Nothing may run here; what has run can still be replayed.
                row = match row {
                    None => self.engine.read(self.id).await.map_err(Unavailable::store)?.map(Arc::new),
                    Some(_) => None,
                };
                if row.is_none() {
                    return Err(clock_too_uncertain(now));
                }
                clashes += 1;
                continue;
            }
            let Some(write) = Write::of_step(row.as_deref(), &step) else {
                // Told over a row that the store has shown since, or in doubt all the same: then dropping this cleans up.
                return self.granted_or_told(step, row.as_ref());
            };
            let write = write.telling(self.engine.entry(row.as_deref(), self.event, &step, now));
            let over = row.as_ref().map(|row| row.version);
            self.former = row.clone().filter(|_| self.is_former);
            let submitted = Instant::now();
            let ticket = self.engine.0.writer.submit(write).map_err(|_| Unavailable::Overloaded)?;
            // A key that is quarantined is granted nothing, and to clean it up would free it.
            let is_quarantined = step.notices.contains(&Notice::Parked);
            self.may_land = (!is_quarantined).then_some(over);
            let timeout = self.engine.0.options.store_timeout;
            match ticket.outcome_within(timeout, &self.engine.0.breaker).await {
                Ok(Outcome::Applied) => {
                    self.may_land = None;
                    observe(self.event, row.as_deref(), &step);
                    return self.granted_or_told(step, row.as_ref());
                }
                // Whatever of ours was in doubt can no longer land: the row is another by now, or it is ours.
                Ok(Outcome::Refused { current }) => {
                    (self.may_land, doubted_since) = (None, None);
                    clashes += 1;
                    if current.is_none() && self.is_former {
                        return Err(former_is_gone());
                    }
                    row = current;
                    if let Some(row) = &row {
                        self.engine.keep_shown(row, epoch);
                    }
                }
                Ok(Outcome::Unreadable { problem }) => {
                    self.may_land = None;
                    return Err(Unavailable::store(problem));
                }
                Err(error) if error.effect() == Effect::None => {
                    if doubted_since.is_none() {
                        self.may_land = None;
                    }
                    if error.kind() == Kind::Restored {
                        self.engine.0.history.lose();
                        return Err(Unavailable::Restored);
                    }
                    return Err(Unavailable::store(error));
                }
                // In doubt. The same write again, with the same token, conflicts with itself: it finds its own row, or takes
                // the place. But only until the client is told; then nothing may be granted any more, and dropping this cleans up.
                Err(error) => {
                    let since = *doubted_since.get_or_insert(submitted);
                    if since.elapsed() >= self.engine.0.options.doubt_patience {
                        return Err(Unavailable::store(error));
                    }
                    tokio::time::sleep(DOUBT_BACKOFF).await;
                }
            }
        }
        Err(Unavailable::store("others were in the way for too long"))
    }

    /// The row at a former address.
    async fn read_former(&self) -> Result<Arc<Record>, Unavailable> {
        let epoch = self.engine.0.cache.epoch(self.id, self.engine.now());
        let reading = tokio::time::timeout(self.engine.0.options.store_timeout, self.engine.read(self.id));
        let row = reading.await.map_err(|_| Unavailable::store("it did not answer in time"))?;
        let row = Arc::new(row.map_err(Unavailable::store)?.ok_or_else(former_is_gone)?);
        self.engine.keep_shown(&row, epoch);
        Ok(row)
    }

    fn refused(&self, unavailable: Unavailable) -> Unavailable {
        refused(self.event, self.look, self.may_land, unavailable)
    }

    /// An acknowledgement that comes after the lease's end grants nothing.
    fn granted_or_told(&mut self, step: Step, row: Option<&Arc<Record>>) -> Result<Arrived<S>, Unavailable> {
        let arrived = self.decided(step, row);
        match arrived {
            Arrived::Execute(held) if held.permit().check().is_err() => {
                let settlement =
                    Settlement::released("reserve_too_late", "the store acknowledged it after its lease");
                self.engine.behind(async move { drop(held.settle(settlement).await) });
                Err(too_late())
            }
            arrived => Ok(arrived),
        }
    }

    /// The store shows a row with this very token, and the lease in it may have ended.
    fn is_own_and_too_late(&self, row: Option<&Record>, step: &Step) -> bool {
        let (Event::Arrive(arrival), Some(row)) = (self.event, row) else { return false };
        row.grant.is_some_and(|grant| grant.token == arrival.token)
            && matches!(row.state, State::InProgress | State::Unknown(_))
            && !matches!(step.decision, Decision::Execute(_))
    }

    /// Counts, and hands out what was decided over `row`.
    pub(crate) fn decided(&mut self, step: Step, row: Option<&Arc<Record>>) -> Arrived<S> {
        let meters = self.route.meters();
        let is_first = self.look == Look::First;
        if is_first && step.notices.contains(&Notice::Misuse) {
            meters.key_misuse.increment(1);
        }
        let is_new_life = match (&step.next, row) {
            (Next::Put(next), Some(row)) => next.life != row.life,
            (Next::Put(_), None) => true,
            (Next::Keep | Next::Remove { .. }, _) => false,
        };
        let is_duplicate = match step.decision {
            Decision::Execute(_) => false,
            Decision::Accepted => !is_new_life,
            _ => true,
        };
        if is_first
            && is_duplicate
            && let Event::Arrive(arrival) = self.event
        {
            let is_misuse =
                step.notices.contains(&Notice::Misuse) || matches!(step.decision, Decision::Mismatch);
            let repeat = if is_misuse { Repeat::Misuse } else { Repeat::Duplicate };
            self.engine.0.tenants.count(arrival.address.scope.tenant_str(), repeat);
        }
        let next = match step.next {
            Next::Put(record) => Some(record),
            Next::Keep | Next::Remove { .. } => None,
        };
        match step.decision {
            Decision::Execute(lease) => {
                let record = next.or_else(|| row.cloned());
                self.count_execution(&lease, row.map(|row| &**row), record.as_deref());
                match record {
                    Some(record) => self.hold(lease, record),
                    // There is no lease without a row.
                    None => Arrived::Busy { until: lease.until },
                }
            }
            Decision::Replay(answer) => {
                meters.replay.increment(1);
                let expires_at = next.as_ref().or(row).and_then(|record| record.expires_at);
                Arrived::Replay { answer, expires_at }
            }
            Decision::Accepted => {
                if is_new_life {
                    meters.created.increment(1);
                } else if is_first {
                    meters.in_progress.increment(1);
                }
                match (row, &next) {
                    (Some(row), _) if is_new_life => self.count_after_expiry(row),
                    (None, Some(record)) => self.engine.look_up_later(record, self.route),
                    _ => {}
                }
                if next.is_some() {
                    self.engine.0.accepted.notify_one();
                }
                let state = next.as_ref().or(row).map_or(StateKind::Pending, |record| record.state.kind());
                Arrived::Accepted { id: self.id, is_new: is_new_life, state }
            }
            Decision::Busy { until } => {
                if is_first {
                    meters.in_progress.increment(1);
                }
                // It was accepted, and is being run: whoever asks is told so, whatever it would prefer itself.
                let is_deferred = row.is_some_and(|row| row.execution == Execution::Deferred);
                if is_deferred && self.route.policy().may_defer() {
                    return Arrived::Accepted { id: self.id, is_new: false, state: StateKind::InProgress };
                }
                Arrived::Busy { until }
            }
            Decision::Unsettled { since, parked } => {
                if is_first {
                    meters.unknown.increment(1);
                }
                // Found lapsed by this very request: somebody is to be asked.
                if next.is_some() {
                    self.engine.0.doubts.notify_one();
                }
                let row = next.as_ref().or(row);
                let execution = row.map_or(Execution::Inline, |record| record.execution);
                Arrived::Unsettled { since, parked, execution }
            }
            Decision::Gone { status, .. } => Arrived::Gone { status },
            Decision::Mismatch => {
                meters.key_misuse.increment(1);
                Arrived::Mismatch { record: row.cloned() }
            }
            // Not decisions about an arrival. Whatever they would mean, nothing runs.
            Decision::Done
            | Decision::Renewed { .. }
            | Decision::Fenced(_)
            | Decision::Refused(_)
            | Decision::KeepApart
            | Decision::Nothing => Arrived::Mismatch { record: None },
        }
    }

    /// Counts what runs under `lease`, decided over `row`, as the record `running`.
    pub(crate) fn count_execution(&self, lease: &Lease, row: Option<&Record>, running: Option<&Record>) {
        let meters = self.route.meters();
        match row {
            Some(_) if lease.attempt > 1 => meters.failed_retry.increment(1),
            Some(row) if row.life != lease.holder.life => {
                meters.created.increment(1);
                self.count_after_expiry(row);
            }
            _ => meters.created.increment(1),
        }
        if let (None, Some(running)) = (row, running) {
            self.engine.look_up_later(running, self.route);
        }
    }

    /// Counts a new life where the row of an older one is still there.
    fn count_after_expiry(&self, row: &Record) {
        self.route.meters().after_expiry.increment(1);
        log_after_expiry(row.id, &row.address.scope, &row.operation);
    }

    fn hold(&mut self, lease: Lease, record: Arc<Record>) -> Arrived<S> {
        let in_flight = self.in_flight.take().unwrap_or_else(|| self.engine.0.writer.in_flight());
        Arrived::Execute(Box::new(Held::new(
            self.engine.clone(),
            self.route.clone(),
            lease,
            record,
            in_flight,
        )))
    }
}

impl<S: Store> Drop for Reserve<'_, S> {
    /// Refused, or given up by its caller, with a write that may be there: from here on only clean-up is allowed.
    fn drop(&mut self) {
        let Some(over) = self.may_land.take() else { return };
        let Event::Arrive(arrival) = self.event else { return };
        let (reserve, row) = match self.former.take() {
            // Only a swap may land there, as of a take: where there is no row, clean-up inserts none.
            Some(row) => (oncegate_core::decide::Reserve::Take(arrival.token), Some(row)),
            None => (oncegate_core::decide::Reserve::Arrival(Box::new(arrival.clone())), None),
        };
        self.engine.clean_up(reserve, row, over);
    }
}
