//! Operations that their client has left: resumable ones whose lease has lapsed, and accepted ones that wait to be run.
//!
//! **Invariants:** what is run is taken before, by a write with an end, so that nodes do not run it twice; a take in doubt is cleaned up.
//! Whatever a run does, it holds up nobody: each is a task of its own, and there are never more than so many. Nor does what no handler
//! here can go on with: what lapsed stays due, for another service, and a pass goes on behind it; what waits steps aside for a while, or its
//! line would wait behind it. No more requests are read than can be begun, however many wait; and who has few of them does not wait
//! behind who has many ([`oncegate_store::turns`]).

use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::join_all;
use oncegate_core::decide::{Decision, Event, Reserve, Take};
use oncegate_core::identity::Token;
use oncegate_core::record::{Record, State, StoredRequest};
use oncegate_store::turns::Operations;
use oncegate_store::{Cursor, Due, Effect, Store, StoreError, Turn};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::looked::Looked;
use super::{Pass, SCANS_MAX, WorkerOptions};
use crate::drive::{ROUNDS_MAX, Stepped, Tried};
use crate::engine::Engine;
use crate::held::Held;
use crate::route::Route;
use crate::writer::Failed;

/// Runs an operation again from its stored request: what a service brings, so that its abandoned operations are finished.
pub trait Finisher<S: Store>: Send + Sync + 'static {
    /// What it can run.
    fn runs(&self) -> Runs;

    /// The route whose handler can go on with this record; `None`: not a handler of this service.
    fn route(&self, record: &Record) -> Option<Route>;

    /// Runs it, and settles it. A lease that is dropped settles itself.
    fn finish(&self, held: Box<Held<S>>, left: Left) -> Finishing<'_>;
}

/// What a service can run without its clients.
#[derive(Clone, Debug, Default)]
pub struct Runs {
    /// Accepted requests of these operations.
    pub operations: Operations,
    /// Whether it can go on with what lapsed, after its last recovery point.
    pub resumes: bool,
}

/// A run under way.
pub type Finishing<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

/// What a client has left.
#[derive(Clone, Debug)]
pub struct Left {
    /// The row as it was found.
    pub record: Arc<Record>,
    /// What was asked for.
    pub request: StoredRequest,
}

/// What came of a wish to run something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Taken {
    /// It runs.
    Begun,
    /// Another node was there first, or it is over.
    Elsewhere,
    /// Nobody here can run it.
    Unable,
}

/// A take on its way. Given up, also by a shutdown in the middle of it, it grants nothing: nobody would run it, and its lease would lapse as
/// if somebody had.
struct Taking<'t, S: Store> {
    engine: &'t Engine<S>,
    token: Token,
    /// The row that the last try wrote over. After a refusal it is a newer one than the worker found.
    over: Arc<Record>,
    may_land: bool,
}

impl<S: Store> Taking<'_, S> {
    /// Tries until the write lands or there is nothing to take. `None`: the row is gone, or it changes faster than this can follow.
    async fn write(&mut self, event: &Event) -> Result<Option<Stepped>, Failed> {
        for _ in 0..ROUNDS_MAX {
            let row = Some(Arc::clone(&self.over));
            match self.engine.try_step(event, row, &self.engine.0.who).await? {
                Tried::Stepped(stepped) => return Ok(Some(stepped)),
                Tried::Changed(None) => return Ok(None),
                // The write was refused, so it cannot land any more; the next one is conditioned on this row.
                Tried::Changed(Some(current)) => self.over = current,
            }
        }
        Ok(None)
    }
}

impl<S: Store> Drop for Taking<'_, S> {
    fn drop(&mut self) {
        if self.may_land {
            let (row, over) = (Arc::clone(&self.over), self.over.version);
            self.engine.clean_up(Reserve::Take(self.token), Some(row), Some(over));
        }
    }
}

/// So many scans a pass may take for what lapsed, each of twice as many rows as the one before.
const SCANS: u32 = 4;

/// So long, at least and at most, what no handler here can run steps aside.
const ASIDE_MIN: Duration = Duration::from_secs(1);
const ASIDE_MAX: Duration = Duration::from_mins(5);

/// So long places that become free are gathered.
const GATHERED: Duration = Duration::from_millis(5);

/// The completer of one engine: who runs, how many more may, and how far it has looked.
pub(super) struct Completer<S: Store> {
    finisher: Arc<dyn Finisher<S>>,
    places: Arc<Semaphore>,
    /// Where the next turn of the lines that wait goes on.
    turn: Mutex<Option<Cursor>>,
    /// Of what lapsed; kept between passes, so that each of them can be bounded.
    looked: Mutex<Looked>,
}

impl<S: Store> Completer<S> {
    pub(super) fn new(finisher: Arc<dyn Finisher<S>>, at_once: usize) -> Self {
        let places = Arc::new(Semaphore::new(at_once.max(1)));
        Self { finisher, places, turn: Mutex::default(), looked: Mutex::default() }
    }

    /// Returns when something can be begun. Who had to wait for it waits a little longer, so that others that end meanwhile are replaced by
    /// the same look.
    async fn has_room(&self) {
        if self.places.available_permits() == 0 && self.places.acquire().await.is_ok() {
            tokio::time::sleep(GATHERED).await;
        }
    }

    /// All places that are free.
    fn free(&self) -> Vec<OwnedSemaphorePermit> {
        std::iter::from_fn(|| Arc::clone(&self.places).try_acquire_owned().ok()).collect()
    }

    fn looked(&self) -> MutexGuard<'_, Looked> {
        self.looked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn turn(&self) -> MutexGuard<'_, Option<Cursor>> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<S: Store> Engine<S> {
    /// One pass of the completer, now: begins what is due, and does not wait for it to end. For services with schedulers of their own,
    /// and for tests; [`Engine::drain`] waits. Of each kind it looks at fifteen batches at most.
    pub async fn complete(
        &self,
        options: &WorkerOptions,
        finisher: &Arc<dyn Finisher<S>>,
    ) -> Result<Pass, Arc<StoreError>> {
        self.complete_with(&Completer::new(Arc::clone(finisher), options.completions_at_once), options).await
    }

    pub(super) async fn complete_with(
        &self,
        completer: &Completer<S>,
        options: &WorkerOptions,
    ) -> Result<Pass, Arc<StoreError>> {
        completer.has_room().await;
        let runs = completer.finisher.runs();
        let resumed = if runs.resumes { self.resume(completer, options).await? } else { Pass::default() };
        let called = self.call_lines(completer, runs.operations).await?;
        Ok(Pass {
            seen: resumed.seen + called.seen,
            changed: resumed.changed + called.changed,
            more: resumed.more || called.more,
        })
    }

    /// Goes on with what lapsed, the longest first.
    async fn resume(
        &self,
        completer: &Completer<S>,
        options: &WorkerOptions,
    ) -> Result<Pass, Arc<StoreError>> {
        let mut looked = std::mem::take(&mut *completer.looked());
        let passed = self.resume_from(completer, &mut looked, options.batch).await;
        // Also after an error: the next pass goes on behind what this one has looked at.
        *completer.looked() = looked;
        passed
    }

    /// From where the last pass came to, until there is no place left, or no more rows. Then the next one begins with the longest due again.
    async fn resume_from(
        &self,
        completer: &Completer<S>,
        looked: &mut Looked,
        batch: usize,
    ) -> Result<Pass, Arc<StoreError>> {
        let mut pass = Pass::default();
        for scan in 0..SCANS {
            if completer.places.available_permits() == 0 {
                return Ok(pass);
            }
            // A lease has lapsed when it has by every clock.
            let now = self.now();
            let by = now.at.minus(now.error);
            let fresh = looked.next(&*self.0.store, Due::Resumable, by, batch << scan).await?.rows;
            if fresh.is_empty() {
                *looked = Looked::default();
                pass.more = false;
                return Ok(pass);
            }
            for row in fresh {
                let Ok(place) = Arc::clone(&completer.places).try_acquire_owned() else { return Ok(pass) };
                looked.at(Due::Resumable, &row);
                pass.seen += 1;
                pass.changed += usize::from(self.take_up(completer, row, place).await? == Taken::Begun);
            }
            // Where nothing could be taken up, what is left can wait for the next turn.
            pass.more = pass.changed > 0;
        }
        Ok(pass)
    }

    /// Runs what waits, line by line.
    async fn call_lines(
        &self,
        completer: &Completer<S>,
        operations: Operations,
    ) -> Result<Pass, Arc<StoreError>> {
        let places = completer.free();
        if operations.is_empty() || places.is_empty() {
            return Ok(Pass::default());
        }
        let mut turn = Turn { operations, after: completer.turn().take(), limit: places.len() };
        let mut waiting = self.0.store.waiting(&turn, self.now().at).await?;
        // Many lines in which nothing is due: a pass looks at so many, and the next one goes on.
        for _ in 1..SCANS_MAX {
            if !waiting.scan.records.is_empty() || waiting.is_round {
                break;
            }
            turn.after = waiting.next;
            waiting = self.0.store.waiting(&turn, self.now().at).await?;
        }
        *completer.turn() = waiting.next;
        let seen = waiting.scan.records.len();
        // Together, so that they share a commit.
        let rows = waiting.scan.records.into_iter().zip(places);
        let mut changed = 0;
        for taken in join_all(rows.map(|(row, place)| self.take_up(completer, row, place))).await {
            changed += usize::from(taken? == Taken::Begun);
        }
        Ok(Pass { seen, changed, more: seen >= turn.limit || !waiting.is_round })
    }

    /// Takes one, and begins it.
    async fn take_up(
        &self,
        completer: &Completer<S>,
        row: Record,
        place: OwnedSemaphorePermit,
    ) -> Result<Taken, Arc<StoreError>> {
        let (Some(request), Some(route)) = (row.request.clone(), completer.finisher.route(&row)) else {
            tracing::debug!(record = %row.id, operation = %row.operation, "no handler here can go on with it");
            self.put_behind(row).await?;
            return Ok(Taken::Unable);
        };
        let row = Arc::new(row);
        let Some(held) = self.take(&route, &row).await? else { return Ok(Taken::Elsewhere) };
        match row.state {
            State::Pending { .. } => tracing::debug!(record = %row.id, "running what was accepted"),
            _ => {
                tracing::info!(record = %row.id, attempt = held.lease().attempt, "going on with what its client has left");
            }
        }
        let (finisher, left) = (Arc::clone(&completer.finisher), Left { record: row, request });
        self.0.runtime.spawn(async move {
            let _place = place;
            let id = left.record.id;
            let running = AssertUnwindSafe(async { finisher.finish(held, left).await }).catch_unwind();
            if running.await.is_err() {
                tracing::error!(record = %id, "what goes on with abandoned operations panicked");
            }
        });
        Ok(Taken::Begun)
    }

    /// What waits and cannot be run here lets others of its line pass. The longer it has waited, the longer; another service that can run
    /// it finds it due again soon.
    async fn put_behind(&self, row: Record) -> Result<(), Arc<StoreError>> {
        if !matches!(row.state, State::Pending { .. }) {
            return Ok(());
        }
        let now = self.now().at;
        let pause = (now.since(row.created_at) / 2).clamp(ASIDE_MIN, ASIDE_MAX);
        let event = Event::Postpone { version: row.version, until: now.plus(pause) };
        self.step(&event, Some(Arc::new(row))).await.map(drop)
    }

    /// The lease on a row that waits for a worker; `None`: somebody else has it, or it is over.
    async fn take(&self, route: &Route, row: &Arc<Record>) -> Result<Option<Box<Held<S>>>, Arc<StoreError>> {
        let Ok(token) = self.new_token() else { return Ok(None) };
        let policy = route.policy();
        // The clock was set back: by it the lease might be over before it begins. Another node
        // takes it.
        if self.now().error >= policy.lease {
            return Ok(None);
        }
        let take = Take {
            token,
            lease: policy.lease,
            attempt_deadline: policy.attempt_deadline,
            credentials: policy.credentials,
        };
        let in_flight = self.0.writer.in_flight();
        let mut taking = Taking { engine: self, token, over: Arc::clone(row), may_land: true };
        let stepped = taking.write(&Event::Take(take)).await;
        taking.may_land = stepped.as_ref().is_err_and(|error| error.effect() == Effect::Unknown);
        drop(taking);
        let Some(stepped) = stepped? else { return Ok(None) };
        let (Decision::Execute(lease), Some(row)) = (stepped.step.decision, stepped.row) else {
            return Ok(None);
        };
        // If the lease may have ended already, whoever begins it finds out, and releases it.
        Ok(Some(Box::new(Held::new(self.clone(), route.clone(), lease, row, in_flight))))
    }
}
