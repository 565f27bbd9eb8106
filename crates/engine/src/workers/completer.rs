//! Operations that their client has left: resumable ones whose lease has lapsed, and accepted ones that wait to be run.
//!
//! **Invariants:** what is run is taken before, by a write with an end, so that nodes do not run it twice; a take in doubt is cleaned up.
//! Whatever a run does, it holds up nobody: each is a task of its own, and there are never more than so many.

use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;

use futures_util::FutureExt as _;
use oncegate_core::decide::{Decision, Event, Reserve, Take};
use oncegate_core::record::{Record, StoredRequest};
use oncegate_store::{Due, Effect, Store, StoreError};
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

/// The completer of one engine: who runs, and how many more may.
pub(super) struct Completer<S: Store> {
    finisher: Arc<dyn Finisher<S>>,
    places: Arc<Semaphore>,
}

impl<S: Store> Clone for Completer<S> {
    fn clone(&self) -> Self {
        Self { finisher: Arc::clone(&self.finisher), places: Arc::clone(&self.places) }
    }
}

impl<S: Store> Completer<S> {
    pub(super) fn new(finisher: Arc<dyn Finisher<S>>, at_once: usize) -> Self {
        Self { finisher, places: Arc::new(Semaphore::new(at_once.max(1))) }
    }
}

impl<S: Store> Engine<S> {
    /// One pass of the completer, now: begins what is due, and does not wait for it to end. For services with schedulers of their own,
    /// and for tests; [`Engine::drain`] waits.
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
        let now = self.now();
        for (what, by) in [(Due::Resumable, now.at.minus(now.error)), (Due::Pending, now.at)] {
            if completer.places.available_permits() == 0 {
                break;
            }
            let scan = self.0.store.due(what, by, options.batch).await?;
            let is_full = scan.records.len() >= options.batch;
            let mut taken = 0;
            for row in scan.records {
                all.seen += 1;
                let Ok(place) = Arc::clone(&completer.places).try_acquire_owned() else { break };
                taken += usize::from(self.take_up(completer, row, place).await?);
            }
            all.changed += taken;
            all.more |= is_full && taken > 0 && completer.places.available_permits() > 0;
        }
        Ok(all)
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
