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
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt as _;
use http::{Request, Response};
use http_body::Body;
use oncegate_core::classify::Failure;
use oncegate_core::problem::{Code, Problem};
use oncegate_core::record::{Record, State};
use oncegate_core::response::Answer;
use oncegate_engine::{ArrivedIn, EndedIn, Engine, InTransaction, Route, Settlement};
use oncegate_store::join::{Join, Transactions};
use tower_layer::Layer;
use tower_service::Service;
use tracing::Instrument as _;

use crate::answer::{About, Which};
use crate::body::{BoxError, RequestBody, ResponseBody};
use crate::execute::{Ended, ask_for_identity, read};
use crate::route::Routes;
use crate::scope::Tenant;
use crate::service::{Admission, Admitted, admit, pass};
use crate::{answer, classify, headers, route};

use handle::Slot;
pub use handle::{Atomic, NotAtomic};

/// How long a handler may hold its transaction, where nothing else is said.
const WITHIN: Duration = Duration::from_secs(5);

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
}

impl<S: Join, T: Transactions> AtomicIdempotency<S, T> {
    /// Protects what `routes` say, in transactions that `transactions` begins. `tenant` says whose request it is; see [`crate::scope`].
    pub fn new(engine: Engine<S>, transactions: T, tenant: impl Tenant, routes: Routes) -> Self {
        let (transactions, tenant) = (Arc::new(transactions), Box::new(tenant));
        Self(Arc::new(Shared { engine, transactions, tenant, routes, within: WITHIN }))
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
    S: Join,
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
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, V::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), V::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        // The one that was polled ready is used, and the clone waits for the next call.
        let another = self.inner.clone();
        let inner = std::mem::replace(&mut self.inner, another);
        let address = route::address(request.uri(), request.extensions());
        let route = self.shared.routes.of(request.method(), address.path()).cloned();
        match route {
            None => Box::pin(pass(inner, request)),
            Some(route) => Box::pin(protect(Arc::clone(&self.shared), route, inner, request)),
        }
    }
}

async fn protect<S, T, V, B, A>(
    shared: Arc<Shared<S, T>>,
    route: Route,
    inner: V,
    request: Request<B>,
) -> Result<Response<ResponseBody<A>>, V::Error>
where
    S: Join,
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
    let admitted = match admit(&*shared.tenant, &route, request).await {
        Admission::Granted(admitted) => *admitted,
        Admission::Unprotected(request) => {
            let mut response = pass(inner, request).await?;
            response.headers_mut().remove(headers::OUTCOME);
            return Ok(response);
        }
        Admission::Refused(refusal) => return Ok(refusal),
    };
    let Admitted { key, scope, fingerprint, .. } = &admitted;
    let span = tracing::info_span!("atomic", route = %route.operation(), key = key.prefix());
    let about = About { policy, operations: None, operation: Which::Of { scope, key } };
    let arrived = match route.arrival(scope.clone(), key.clone(), *fingerprint, None) {
        Ok(arrival) => {
            let arriving = shared.engine.arrive_in(&route, arrival, &shared.transactions);
            arriving.instrument(span.clone()).await
        }
        Err(unavailable) => Err(unavailable),
    };
    Ok(match arrived {
        Ok(ArrivedIn::Execute(held)) => {
            let within = shared.within;
            // A client that hangs up drops this future, not the task: its retry finds the answer.
            let attempt = tokio::spawn(attempt(held, inner, admitted, within).instrument(span));
            attempt.await.unwrap_or_else(|_| failed("the handler's task ended"))
        }
        Ok(ArrivedIn::Told(arrived)) => answer::told(arrived, &about),
        Err(unavailable) => answer::unavailable(&unavailable, policy),
    })
}

/// Run, then commit or roll back, then answer.
async fn attempt<S, T, V, B, A>(
    mut held: Box<InTransaction<S, T>>,
    inner: V,
    admitted: Admitted,
    within: Duration,
) -> Response<ResponseBody<A>>
where
    S: Join,
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
        return timed_out(*held, &slot, within).await;
    };
    let Some(transaction) = slot.take_back() else {
        tracing::error!(record = %held.id(), "a handler has kept its transaction beyond its answer; nothing is committed");
        return failed("The handler kept its transaction beyond its answer, so it was rolled back");
    };
    held.give_back(transaction);
    let settlement = classify::of(held.policy(), &mut ended);
    match settlement {
        Settlement::Complete(answer) if answer.status() < 500 => commit(*held, answer, ended).await,
        // Nothing is in doubt: what was done goes with the transaction.
        Settlement::Complete(_) | Settlement::Release { .. } | Settlement::Doubt(_) | Settlement::Park(_) => {
            held.roll_back().await;
            as_it_ended(ended)
        }
    }
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

async fn commit<S: Join, T: Transactions, A>(
    held: InTransaction<S, T>,
    kept: Arc<Answer>,
    ended: Ended<A>,
) -> Response<ResponseBody<A>> {
    let policy = held.policy().clone();
    let about = About { policy: &policy, operations: None, operation: Which::Id(held.id()) };
    match held.complete(kept, policy.patience).await {
        EndedIn::Committed(row) if is_completed(&row) => answer::own(ended, &row, &about),
        EndedIn::Committed(row) => answer::from_row(Some(&row), &about),
        EndedIn::Overtaken(row) => answer::from_row(row.as_deref(), &about),
        EndedIn::RolledBack(error) => {
            tracing::warn!(%error, "a transaction could not be committed");
            let words = oncegate_engine::Unavailable::Store { words: error.to_string().into() };
            answer::unavailable(&words, &policy)
        }
        EndedIn::InDoubt => answer::unknown_first(&about),
    }
}

fn is_completed(row: &Record) -> bool {
    matches!(row.state, State::Completed(_))
}

async fn timed_out<S: Join, T: Transactions, A>(
    held: InTransaction<S, T>,
    slot: &Slot<T::Transaction>,
    within: Duration,
) -> Response<ResponseBody<A>> {
    tracing::error!(record = %held.id(), ?within, "a handler held its transaction for too long; it was rolled back");
    let mut held = held;
    if let Some(transaction) = slot.take_back() {
        held.give_back(transaction);
    }
    let retry_after = held.policy().retry_unknown;
    held.roll_back().await;
    let words = format!(
        "The handler did not end within the {within:?} for which it may hold its transaction, so it was rolled back. Nothing was \
         executed. Send the same request with the same key again."
    );
    answer::refusal(&Problem::new(Code::Overloaded, words).retry_after(retry_after))
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
