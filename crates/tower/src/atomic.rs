//! Atomic handlers: the key, the handler's own writes and the answer are one transaction of the service's own database.
//!
//! The layer opens it, takes the key in it, hands it to the handler as [`Atomic`], and commits it with the answer. So there is one
//! commit a request, a crash is a rollback, and no lease has to be kept or to lapse.
//!
//! **Invariant:** what the client is told of is committed, or nothing was. A handler's error, its panic, a 5xx, or a transaction that
//! took too long is rolled back whole.
//!
//! Not here: calls to others. A transaction that waits for them holds its locks and a connection, and cannot take back what they have
//! done: promise the call instead ([`Atomic::enqueue`]). To make the mistake hard, an atomic handler gets neither an
//! [`crate::Attempt`] nor a downstream key, and its time is short ([`AtomicIdempotency::within`]).

mod handle;

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt as _;
use http::header::HeaderName;
use http::{Request, Response};
use http_body::Body;
use oncegate_core::classify::Failure;
use oncegate_core::decide::Arrival;
use oncegate_core::policy::Policy;
use oncegate_core::problem::{Code, Problem};
use oncegate_core::record::{Execution, Record, State};
use oncegate_core::response::Answer;
use oncegate_engine::{
    Arrived, ArrivedIn, Asked, EndedIn, Engine, InTransaction, Route, Settlement, Unavailable,
};
use oncegate_store::jobs::{Enqueue, Job};
use oncegate_store::join::Transactions;
use oncegate_store::outlive::Outlive;
use tower_layer::Layer;
use tower_service::Service;
use tracing::Instrument as _;

use crate::answer::{About, Which};
use crate::body::{BoxError, RequestBody, ResponseBody};
use crate::execute::{Ended, ask_for_identity, read};
use crate::reuse::Misused;
use crate::route::Routes;
use crate::scope::Tenant;
use crate::sent_at::sent_at;
use crate::service::{Admitted, Answering, admit, routed};
use crate::{answer, classify, reuse};

use handle::Slot;
pub use handle::{Atomic, NotAtomic, Promise};

/// How long a handler may hold its transaction, where nothing else is said.
const WITHIN: Duration = Duration::from_secs(5);
/// How long a client waits for a rollback, of which it will hear nothing new.
const ROLL_BACK_PATIENCE: Duration = Duration::from_secs(1);

/// Makes protected requests take effect once, each in one transaction of the service's own database.
///
/// The store must be in that database: a schema of it (PostgreSQL), the same file (SQLite).
pub struct AtomicIdempotency<S, T>(Arc<Shared<S, T>>);

struct Shared<S, T> {
    engine: Engine<S>,
    transactions: Arc<T>,
    tenant: Box<dyn Tenant>,
    routes: Routes,
    within: Duration,
    /// The field in which clients say when they first sent an operation.
    request_time: Option<HeaderName>,
}

impl<S: Enqueue, T: Transactions> AtomicIdempotency<S, T> {
    /// Protects what `routes` say, in transactions that `transactions` begins. `tenant` says whose request it is; see [`crate::scope`].
    pub fn new(engine: Engine<S>, transactions: T, tenant: impl Tenant, routes: Routes) -> Self {
        if routes.may_defer() {
            tracing::warn!(
                "an atomic handler is never deferred: its requests run while their client waits, whatever the policy says"
            );
        }
        let (transactions, tenant) = (Arc::new(transactions), Box::new(tenant));
        Self(Arc::new(Shared { engine, transactions, tenant, routes, within: WITHIN, request_time: None }))
    }

    /// Believes this field about when the client first sent an operation, see
    /// [`Idempotency::request_time_header`](crate::Idempotency::request_time_header).
    #[must_use]
    pub fn request_time_header(mut self, name: HeaderName) -> Self {
        if let Some(shared) = Arc::get_mut(&mut self.0) {
            shared.request_time = Some(name);
        }
        self
    }

    /// How long a handler may hold its transaction; then it is rolled back. Five seconds by default.
    #[must_use]
    pub fn within(mut self, limit: Duration) -> Self {
        if let Some(shared) = Arc::get_mut(&mut self.0) {
            shared.within = limit;
        }
        self
    }
}

impl<S, T> Clone for AtomicIdempotency<S, T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<S, T, V> Layer<V> for AtomicIdempotency<S, T> {
    type Service = AtomicService<S, T, V>;

    fn layer(&self, inner: V) -> Self::Service {
        AtomicService { shared: Arc::clone(&self.0), inner }
    }
}

/// A service whose protected requests are one transaction each.
pub struct AtomicService<S, T, V> {
    shared: Arc<Shared<S, T>>,
    inner: V,
}

impl<S, T, V: Clone> Clone for AtomicService<S, T, V> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared), inner: self.inner.clone() }
    }
}

impl<S, T, V, B, A> Service<Request<B>> for AtomicService<S, T, V>
where
    S: Enqueue,
    T: Transactions,
    V: Service<Request<RequestBody<B>>, Response = Response<A>> + Clone + Send + 'static,
    V::Error: Into<BoxError> + Send,
    V::Future: Send,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError> + Send,
    A: Body<Data = Bytes> + Send + 'static,
    A::Error: Into<BoxError> + Send,
{
    type Response = Response<ResponseBody<A>>;
    type Error = V::Error;
    type Future = Answering<A, V::Error>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), V::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let shared = &self.shared;
        let protect = |route, inner, request| protect(Arc::clone(shared), route, inner, request);
        routed(&shared.routes, &mut self.inner, request, protect)
    }
}

async fn protect<S, T, V, B, A>(
    shared: Arc<Shared<S, T>>,
    route: Route,
    inner: V,
    request: Request<B>,
) -> Result<Response<ResponseBody<A>>, V::Error>
where
    S: Enqueue,
    T: Transactions,
    V: Service<Request<RequestBody<B>>, Response = Response<A>> + Send + 'static,
    V::Error: Into<BoxError> + Send,
    V::Future: Send,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError> + Send,
    A: Body<Data = Bytes> + Send + 'static,
    A::Error: Into<BoxError> + Send,
{
    let policy = route.policy();
    let (admitted, inner) = match admit(&*shared.tenant, None, &route, inner, request).await {
        Ok(admitted) => admitted,
        Err(answered) => return answered,
    };
    let Admitted { head, key, key_line, scope, fingerprints, .. } = &*admitted;
    let span = tracing::info_span!("atomic", route = %route.operation(), key = key.prefix());
    let arrival = route.arrival(scope.clone(), key.clone(), fingerprints.current, None);
    // Its transaction is its client's; see `new`.
    let sent_at = sent_at(&head.headers, shared.request_time.as_ref());
    let former_fingerprint = fingerprints.former.map(Box::new);
    let arrival = Arrival { execution: Execution::Inline, sent_at, former_fingerprint, ..arrival };
    let former = shared.routes.former_addresses(&route, &arrival.address, key_line.as_ref(), head);
    let mut asked = Asked::new(arrival).or_at(former);
    let arriving = shared.engine.arrive_in(&route, &mut asked, &shared.transactions);
    let arrived = arriving.instrument(span.clone()).await;
    let about = About::alone(policy, Which::Id(asked.id()));
    Ok(match arrived {
        Ok(ArrivedIn::Execute(held)) => {
            let (engine, within) = (shared.engine.clone(), shared.within);
            let id = held.id();
            let attempt = attempt(engine, held, inner, *admitted, within).instrument(span);
            // A client that hangs up does not end it: its retry finds the answer.
            let attempt = Outlive::new(AssertUnwindSafe(attempt).catch_unwind());
            // How far it had come, nobody can tell; the retry finds out.
            attempt.await.unwrap_or_else(|_| answer::unknown_first(&About::alone(policy, Which::Id(id))))
        }
        Ok(ArrivedIn::Told(Arrived::Mismatch { record })) => {
            let _span = span.enter();
            let request = Misused { head, body: &admitted.body, route: &route, record: record.as_deref() };
            reuse::refuse(&shared.engine, &shared.routes, &*shared.tenant, &request, &about)
        }
        Ok(ArrivedIn::Told(arrived)) => answer::told(arrived, &about),
        Err(unavailable) => answer::unavailable(&unavailable, &about),
    })
}

/// Run, then commit or roll back, then answer.
async fn attempt<S, T, V, B, A>(
    engine: Engine<S>,
    mut held: Box<InTransaction<S, T>>,
    inner: V,
    admitted: Admitted,
    within: Duration,
) -> Response<ResponseBody<A>>
where
    S: Enqueue,
    T: Transactions,
    V: Service<Request<RequestBody<B>>, Response = Response<A>>,
    V::Error: Into<BoxError>,
    A: Body<Data = Bytes>,
    A::Error: Into<BoxError> + Send,
{
    let slot = Slot::lending(&mut held);
    let answer_bytes_max = held.policy().answer_bytes_max;
    let running = run(inner, admitted, slot.clone(), answer_bytes_max);
    let Ok(mut ended) = tokio::time::timeout(within, running).await else {
        tracing::error!(record = %held.id(), ?within, "a handler held its transaction for too long; it is rolled back");
        let refusal = too_long(held.policy(), within);
        Box::pin(roll_back(*held, slot)).await;
        return refusal;
    };
    let Some(lent) = slot.take_back() else {
        tracing::error!(record = %held.id(), "a handler has kept its transaction beyond its answer; nothing is committed");
        Box::pin(roll_back(*held, slot)).await;
        return failed("The handler kept its transaction beyond its answer, so it is rolled back");
    };
    held.give_back(lent.transaction);
    let settlement = classify::of(held.policy(), &mut ended);
    let is_refusal = matches!(&settlement, Settlement::Complete(answer) if answer.status() >= 400);
    let (jobs, is_entrusted) = promised(lent.jobs, is_refusal);
    held.promise(jobs);
    match settlement {
        Settlement::Complete(_) if is_entrusted => Box::pin(entrust(&engine, held, ended)).await,
        Settlement::Complete(answer) if answer.status() < 500 => commit(held, answer, ended).await,
        // Nothing is in doubt: what was done goes with the transaction.
        Settlement::Complete(_)
        | Settlement::Release { .. }
        | Settlement::Doubt(_)
        | Settlement::Unknown(_)
        | Settlement::Park(_) => {
            let (policy, id) = (held.policy().clone(), held.id());
            let overtaken = Box::pin(held.overtaken()).await;
            Box::pin(roll_back(*held, slot)).await;
            match overtaken {
                Some(arrived) => answer::told(arrived, &About::alone(&policy, Which::Id(id))),
                None => as_it_ended(ended),
            }
        }
    }
}

/// What is promised, and whether a call's answer is the request's: of several that were to answer, the last; and none where the
/// handler has refused, which is an answer.
fn promised(mut jobs: Vec<Job>, is_refusal: bool) -> (Vec<Job>, bool) {
    let last = jobs.iter().rposition(|job| job.answers.is_some());
    if is_refusal {
        jobs.retain(|job| job.answers.is_none());
        return (jobs, false);
    }
    for (place, job) in jobs.iter_mut().enumerate() {
        job.answers = job.answers.filter(|_| Some(place) == last);
    }
    (jobs, last.is_some())
}

/// Calls the handler with the transaction, and reads its answer.
async fn run<V, B, A, T>(mut inner: V, admitted: Admitted, slot: Slot<T>, answer_bytes_max: u64) -> Ended<A>
where
    T: oncegate_store::join::Transaction,
    V: Service<Request<RequestBody<B>>, Response = Response<A>>,
    V::Error: Into<BoxError>,
    A: Body<Data = Bytes>,
    A::Error: Into<BoxError>,
{
    let Admitted { mut head, body, .. } = admitted;
    ask_for_identity(&mut head);
    head.extensions.insert(slot);
    let request = Request::from_parts(head, RequestBody::whole(body));
    let attempt = async {
        match inner.call(request).await {
            Ok(response) => read(response, answer_bytes_max).await,
            Err(error) => {
                tracing::warn!(error = %error.into(), "a handler failed; its transaction is rolled back");
                Ended::Failed(Failure::Service)
            }
        }
    };
    AssertUnwindSafe(attempt).catch_unwind().await.unwrap_or(Ended::Failed(Failure::Panic))
}

/// The answer is the handler's.
async fn commit<S: Enqueue, T: Transactions, A>(
    held: Box<InTransaction<S, T>>,
    kept: Arc<Answer>,
    ended: Ended<A>,
) -> Response<ResponseBody<A>> {
    let policy = held.policy().clone();
    let about = About::alone(&policy, Which::Id(held.id()));
    match held.complete(kept, policy.patience).await {
        EndedIn::Committed(row) if is_completed(&row) => answer::own(ended, &row, &about),
        otherwise => not_as_said(otherwise, &about),
    }
}

/// The answer will be a job's: wait for it a while.
async fn entrust<S: Enqueue, T: Transactions, A>(
    engine: &Engine<S>,
    held: Box<InTransaction<S, T>>,
    ended: Ended<A>,
) -> Response<ResponseBody<A>> {
    let (policy, id) = (held.policy().clone(), held.id());
    let about = About::alone(&policy, Which::Id(id));
    match held.entrust(policy.patience).await {
        EndedIn::Committed(_) => match engine.until_settled(id, policy.patience).await {
            Some(row) => answer::first_from_row(&row, &about),
            None => as_it_ended(ended),
        },
        otherwise => not_as_said(otherwise, &about),
    }
}

fn not_as_said<S: Enqueue, A>(ended: EndedIn<S>, about: &About<'_>) -> Response<ResponseBody<A>> {
    match ended {
        EndedIn::Committed(row) => answer::from_row(Some(&row), about),
        EndedIn::Overtaken(arrived) => answer::told(arrived, about),
        EndedIn::RolledBack(error) => {
            tracing::warn!(%error, "a transaction could not be committed");
            let unavailable = Unavailable::Store { words: error.to_string().into() };
            answer::unavailable(&unavailable, about)
        }
        EndedIn::InDoubt => answer::unknown_first(about),
    }
}

fn is_completed(row: &Record) -> bool {
    matches!(row.state, State::Completed(_))
}

/// Rolls back, by a task of its own: the database may take its time, and somebody may still have the transaction. The key stays taken
/// until it is over; whoever waits for the answer waits only a moment.
async fn roll_back<S: Enqueue, T: Transactions>(mut held: InTransaction<S, T>, slot: Slot<T::Transaction>) {
    let rolling_back = tokio::spawn(async move {
        if let Some(lent) = slot.given_back().await {
            held.give_back(lent.transaction);
        }
        held.roll_back().await;
    });
    let _ = tokio::time::timeout(ROLL_BACK_PATIENCE, rolling_back).await;
}

fn too_long<A>(policy: &Policy, within: Duration) -> Response<ResponseBody<A>> {
    let words = format!(
        "The handler did not end within the {within:?} for which it may hold its transaction, so it is rolled back. Nothing was \
         executed. Send the same request with the same key again."
    );
    answer::refusal(&Problem::new(Code::Overloaded, words).retry_after(policy.retry_unknown))
}

/// The handler's own answer, of which nothing is kept; or that it had none.
fn as_it_ended<A>(ended: Ended<A>) -> Response<ResponseBody<A>> {
    match ended {
        Ended::Answered { head, body } => answer::plain(head, body),
        Ended::Failed(_) => failed("The handler failed, and what it had done was rolled back"),
    }
}

fn failed<A>(what: &str) -> Response<ResponseBody<A>> {
    let words = format!("{what}. Nothing was executed. Send the same request with the same key again.");
    answer::refusal(&Problem::new(Code::UpstreamUnreachable, words))
}
