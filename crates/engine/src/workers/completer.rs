//! Operations that their client has left: resumable ones whose lease has lapsed, and accepted ones that wait to be run.
//!
//! **Invariants:** what is run is taken before, by a write with an end, so that nodes do not run it twice; a take in doubt is cleaned up.
//! Whatever a run does, it holds up nobody: each is a task of its own, and there are never more than so many. Nor does what no handler
//! here can go on with: it stays due, for another service, and a pass goes on behind it.

use std::collections::HashSet;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};

use futures_util::FutureExt as _;
use oncegate_core::decide::{Decision, Event, Reserve, Take};
use oncegate_core::identity::RecordId;
use oncegate_core::record::{Record, StoredRequest};
use oncegate_core::time::Timestamp;
use oncegate_store::{Due, Effect, Moments, Scan, Store, StoreError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::{Pass, WorkerOptions};
use crate::engine::Engine;
use crate::held::Held;
use crate::route::{Route, new_token};

/// Runs an operation again from its stored request: what a service brings, so that its abandoned operations are finished.
pub trait Finisher<S: Store>: Send + Sync + 'static {
    /// The route whose handler can go on with this record; `None`: not a handler of this service.
    fn route(&self, record: &Record) -> Option<Route>;

    /// Runs it, and settles it. A lease that is dropped settles itself.
    fn finish(&self, held: Box<Held<S>>, left: Left) -> Finishing<'_>;
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

/// The completer of one engine: who runs, how many more may, and how far it has looked.
pub(super) struct Completer<S: Store> {
    finisher: Arc<dyn Finisher<S>>,
    places: Arc<Semaphore>,
    /// For each kind that it looks for; kept between passes, so that each of them can be bounded.
    looked: [Mutex<Looked>; KINDS.len()],
}

/// So many scans of a kind a pass may take, each of twice as many rows as the one before.
const SCANS: u32 = 4;
/// What it looks for.
const KINDS: [Due; 2] = [Due::Resumable, Due::Pending];

/// How far it has looked: all before this moment, and these of this moment.
#[derive(Debug)]
struct Looked {
    until: Timestamp,
    met: HashSet<RecordId>,
}

impl Default for Looked {
    fn default() -> Self {
        Self { until: Timestamp::FIRST, met: HashSet::new() }
    }
}

impl Looked {
    /// What of a scan from here on was not met before.
    fn fresh(&self, scan: Scan) -> Vec<Record> {
        scan.records.into_iter().filter(|row| !self.met.contains(&row.id)).collect()
    }

    fn at(&mut self, what: Due, row: &Record) {
        let moment = what.moment(row).unwrap_or(self.until);
        if moment > self.until {
            *self = Self { until: moment, met: HashSet::new() };
        }
        self.met.insert(row.id);
    }
}

impl<S: Store> Completer<S> {
    pub(super) fn new(finisher: Arc<dyn Finisher<S>>, at_once: usize) -> Self {
        let looked = std::array::from_fn(|_| Mutex::default());
        Self { finisher, places: Arc::new(Semaphore::new(at_once.max(1))), looked }
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
        let mut all = Pass::default();
        for (what, kept) in KINDS.into_iter().zip(&completer.looked) {
            let mut looked = std::mem::take(&mut *kept.lock().unwrap_or_else(PoisonError::into_inner));
            let passed = self.complete_kind(completer, what, &mut looked, options.batch).await;
            // Also after an error: the next pass goes on behind what this one has looked at.
            *kept.lock().unwrap_or_else(PoisonError::into_inner) = looked;
            let pass = passed?;
            all.seen += pass.seen;
            all.changed += pass.changed;
            all.more |= pass.more;
        }
        Ok(all)
    }

    /// Goes over what is due of one kind, from where the last pass came to, until there is no place left, or no more rows. Then the next
    /// pass begins with the longest due again.
    async fn complete_kind(
        &self,
        completer: &Completer<S>,
        what: Due,
        looked: &mut Looked,
        batch: usize,
    ) -> Result<Pass, Arc<StoreError>> {
        let mut pass = Pass::default();
        for scan in 0..SCANS {
            if completer.places.available_permits() == 0 {
                return Ok(pass);
            }
            let moments = Moments { from: looked.until, by: self.due_by(what) };
            // Those that are met again must not fill the scan.
            let limit = (batch << scan) + looked.met.len();
            let scan = self.0.store.due_in(what, moments, limit).await?;
            let fresh = looked.fresh(scan);
            if fresh.is_empty() {
                *looked = Looked::default();
                pass.more = false;
                return Ok(pass);
            }
            for row in fresh {
                let Ok(place) = Arc::clone(&completer.places).try_acquire_owned() else { return Ok(pass) };
                looked.at(what, &row);
                pass.seen += 1;
                pass.changed += usize::from(self.take_up(completer, row, place).await?);
            }
            // Where nothing could be taken up, what is left can wait for the next turn.
            pass.more = pass.changed > 0;
        }
        Ok(pass)
    }

    /// A lease has lapsed when it has by every clock.
    fn due_by(&self, what: Due) -> Timestamp {
        let now = self.now();
        if what == Due::Resumable { now.at.minus(now.error) } else { now.at }
    }

    /// Takes one, and begins it; says whether it did.
    async fn take_up(
        &self,
        completer: &Completer<S>,
        row: Record,
        place: OwnedSemaphorePermit,
    ) -> Result<bool, Arc<StoreError>> {
        let (Some(request), Some(route)) = (row.request.clone(), completer.finisher.route(&row)) else {
            tracing::debug!(record = %row.id, operation = %row.operation, "no handler here can go on with it");
            return Ok(false);
        };
        let row = Arc::new(row);
        let Some(held) = self.take(&route, &row).await? else { return Ok(false) };
        tracing::info!(record = %row.id, attempt = held.lease().attempt, "going on with what its client has left");
        let (finisher, left) = (Arc::clone(&completer.finisher), Left { record: row, request });
        self.0.runtime.spawn(async move {
            let _place = place;
            let id = left.record.id;
            let running = AssertUnwindSafe(async { finisher.finish(held, left).await }).catch_unwind();
            if running.await.is_err() {
                tracing::error!(record = %id, "what goes on with abandoned operations panicked");
            }
        });
        Ok(true)
    }

    /// The lease on a row that waits for a worker; `None`: somebody else has it, or it is over.
    async fn take(&self, route: &Route, row: &Arc<Record>) -> Result<Option<Box<Held<S>>>, Arc<StoreError>> {
        let Ok(token) = new_token() else { return Ok(None) };
        let policy = route.policy();
        let take = Take { token, lease: policy.lease, attempt_deadline: policy.attempt_deadline };
        let in_flight = self.0.writer.in_flight();
        let stepped = match self.step(&Event::Take(take), Some(Arc::clone(row))).await {
            Ok(stepped) => stepped,
            Err(error) => {
                if error.effect() == Effect::Unknown {
                    self.clean_up(Reserve::Take(token), Some(Arc::clone(row)), Some(row.version));
                }
                return Err(error);
            }
        };
        let (Decision::Execute(lease), Some(row)) = (stepped.step.decision, stepped.row) else {
            return Ok(None);
        };
        // If the lease may have ended already, whoever begins it finds out, and releases it.
        Ok(Some(Box::new(Held::new(self.clone(), route.clone(), lease, row, in_flight))))
    }
}
