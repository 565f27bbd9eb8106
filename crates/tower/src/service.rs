//! The life of a request: a table of contents.

use std::marker::PhantomData;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::{FutureExt as _, TryFutureExt as _};
use http::header::HeaderName;
use http::{HeaderMap, HeaderValue, Request, Response, request};
use http_body::Body;
use oncegate_core::classify::Failure;
use oncegate_core::decide::Arrival;
use oncegate_core::fingerprint::Fingerprints;
use oncegate_core::key::Key;
use oncegate_core::policy::{AfterDoubt, Policy};
use oncegate_core::problem::Problem;
use oncegate_core::record::{CrashPolicy, Execution, State};
use oncegate_core::scope::{Address, Scope};
use oncegate_engine::{Arrived, Engine, Held, Route};
use oncegate_store::Store;
use oncegate_store::outlive::Outlive;
use tower_service::Service;
use tracing::Instrument as _;

use crate::answer::{About, Which};
use crate::authorize::Authorize;
use crate::body::{BoxError, RequestBody, ResponseBody};
use crate::execute::{Ended, Work};
use crate::limit::RequestLimit;
use crate::phased::Offer;
use crate::prefer::Prefer;
use crate::refusals::count_refusal;
use crate::reuse::Misused;
use crate::route::Routes;
use crate::scope::Tenant;
use crate::sent_at::sent_at;
use crate::{
    answer, classify, execute, fingerprint, headers, key, read, reuse, route, scope, settle, stored,
};

/// What all clones of a service share.
pub(crate) struct Shared<S: Store> {
    pub(crate) engine: Engine<S>,
    pub(crate) routes: Routes,
    pub(crate) tenant: Box<dyn Tenant>,
    pub(crate) authorize: Option<Box<dyn Authorize>>,
    pub(crate) operations: Option<Box<str>>,
    pub(crate) serves_operations: bool,
    pub(crate) phases: Option<Offer<S>>,
    /// The field in which clients say when they first sent an operation.
    pub(crate) request_time: Option<HeaderName>,
    pub(crate) limit: Option<Arc<dyn RequestLimit>>,
}

/// A service whose protected requests take effect once.
pub struct Idempotent<S: Store, V> {
    pub(crate) shared: Arc<Shared<S>>,
    pub(crate) inner: V,
}

impl<S: Store, V: Clone> Clone for Idempotent<S, V> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared), inner: self.inner.clone() }
    }
}

impl<S, V, B, A> Service<Request<B>> for Idempotent<S, V>
where
    S: Store,
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
        let path = route::address(request.uri(), request.extensions()).path();
        if shared.is_about_operations(path) {
            return Box::pin(operation(Arc::clone(shared), request));
        }
        let protect = |route, inner, request| protect(Arc::clone(shared), route, inner, request);
        routed(&shared.routes, &mut self.inner, request, protect)
    }
}

/// A request about an operation.
async fn operation<S, B, A, E>(
    shared: Arc<Shared<S>>,
    request: Request<B>,
) -> Result<Response<ResponseBody<A>>, E>
where
    S: Store,
    B: Body<Data = Bytes>,
{
    let (head, body) = request.into_parts();
    read::leave(&head.headers, body).await;
    let response = shared.operation(&head).await;
    count_refusal(&response, None);
    Ok(response)
}

/// An answer on its way.
pub(crate) type Answering<A, E> = Pin<Box<dyn Future<Output = Result<Response<ResponseBody<A>>, E>> + Send>>;

/// Step 1: to `protect` with it, where a route says so.
pub(crate) fn routed<V, B, A, F>(
    routes: &Routes,
    inner: &mut V,
    request: Request<B>,
    protect: impl FnOnce(Route, V, Request<B>) -> F,
) -> Answering<A, V::Error>
where
    V: Service<Request<RequestBody<B>>, Response = Response<A>, Future: Send> + Clone + Send + 'static,
    B: Send + 'static,
    A: 'static,
    F: Future<Output = Result<Response<ResponseBody<A>>, V::Error>> + Send + 'static,
{
    // The one that was polled ready is used, and the clone waits for the next call.
    let another = inner.clone();
    let inner = std::mem::replace(inner, another);
    let address = route::address(request.uri(), request.extensions());
    match routes.of(request.method(), address.path()).cloned() {
        None => Box::pin(pass(inner, request)),
        Some(route) => {
            let counting = route.clone();
            let answered = protect(route, inner, request);
            Box::pin(answered.inspect_ok(move |response| count_refusal(response, Some(&counting))))
        }
    }
}

/// A request that nobody protects.
async fn pass<V, B, A>(mut inner: V, request: Request<B>) -> Result<Response<ResponseBody<A>>, V::Error>
where
    V: Service<Request<RequestBody<B>>, Response = Response<A>>,
{
    Ok(inner.call(request.map(RequestBody::passing)).await?.map(ResponseBody::passing))
}

/// A request that takes effect once.
async fn protect<S, V, B, A>(
    shared: Arc<Shared<S>>,
    route: Route,
    inner: V,
    request: Request<B>,
) -> Result<Response<ResponseBody<A>>, V::Error>
where
    S: Store,
    V: Service<Request<RequestBody<B>>, Response = Response<A>> + Send + 'static,
    V::Error: Into<BoxError> + Send,
    V::Future: Send,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError> + Send,
    A: Body<Data = Bytes> + Send + 'static,
    A::Error: Into<BoxError> + Send,
{
    let policy = route.policy();
    let (admitted, inner) =
        match admit(&*shared.tenant, shared.authorize.as_deref(), &route, inner, request).await {
            Ok(admitted) => admitted,
            Err(answered) => return answered,
        };
    let Admitted { head, body, key, key_line, scope, fingerprints } = *admitted;

    let prefer = Prefer::of(&head.headers);
    let execution = execution(policy, prefer);
    let sent_at = sent_at(&head.headers, shared.request_time.as_ref());
    let stored = match stored::store(&*shared.tenant, policy, execution, &head, &body) {
        Ok(stored) => stored,
        Err(problem) => return Ok(answer::refusal(&problem)),
    };
    let arrival = route.arrival(scope.clone(), key.clone(), fingerprints.current, stored);
    let former_fingerprint = fingerprints.former.map(Box::new);
    let arrival = Arrival { execution, sent_at, former_fingerprint, ..arrival };
    let arrived = shared.engine.arrive_at_once(&route, arrival);
    // What the cache answers takes no place: retries are served also under overload.
    let _place = match (&arrived, &shared.limit) {
        (Err(_), Some(limit)) => match limit.admit() {
            None => return Ok(answer::refusal(&Problem::overloaded())),
            place => place,
        },
        _ => None,
    };
    // Whatever may be said of it in a log says which request it was; of a replay nothing is.
    let span = || tracing::info_span!("idempotent", route = %route.operation(), key = key.prefix());
    let (arrived, which, span) = match arrived {
        Ok(Arrived::Replay { answer, expires_at }) => return Ok(answer::replay(&answer, expires_at, policy)),
        Ok(arrived) => (Ok(arrived), Which::Of { scope: &scope, key: &key }, span()),
        Err(asked) => {
            let address = Address { scope: scope.clone(), key: key.clone() };
            let former = shared.routes.former_addresses(&route, &address, key_line.as_ref(), &head);
            let mut asked = asked.or_at(former);
            let span = span();
            let arrived = shared.engine.go_on(&route, &mut asked).instrument(span.clone()).await;
            (arrived, Which::Id(asked.id()), span)
        }
    };
    match arrived {
        Ok(Arrived::Execute(lease)) => {
            let work = Work { head, body, key: key.clone(), of: PhantomData };
            let attempt = attempt(Arc::clone(&shared), route.clone(), lease, inner, work).instrument(span);
            // A client that hangs up drops this future: the attempt goes on in a task then.
            let attempt = Outlive::new(AssertUnwindSafe(attempt).catch_unwind());
            let about = shared.about(policy, which);
            Ok(attempt.await.unwrap_or_else(|_| answer::unknown_first(&about)))
        }
        Ok(arrived) => {
            let about = shared.about(policy, which);
            if let Arrived::Mismatch { record } = &arrived {
                let _span = span.enter();
                let request = Misused { head: &head, body: &body, route: &route, record: record.as_deref() };
                return Ok(reuse::refuse(&shared.engine, &shared.routes, &*shared.tenant, &request, &about));
            }
            let about = About { respond_async: policy.may_defer() && prefer.respond_async, ..about };
            if let Arrived::Replay { answer, expires_at } = arrived {
                return Ok(answer::replay(&answer, expires_at, policy));
            }
            Ok(Box::pin(later(&shared, arrived, prefer, &about).instrument(span)).await)
        }
        Err(unavailable) => {
            let about = shared.about(policy, which);
            Ok(answer::unavailable(&unavailable, &about))
        }
    }
}

/// Now, or later: as the route says, or as the client prefers where the route allows it.
fn execution(policy: &Policy, prefer: Prefer) -> Execution {
    if policy.respond_async && prefer.respond_async { Execution::Deferred } else { policy.execution }
}

/// What a request is told that does not run now: the answer if it comes while the client would wait for it.
async fn later<S: Store, B>(
    shared: &Shared<S>,
    arrived: Arrived<S>,
    prefer: Prefer,
    about: &About<'_>,
) -> Response<ResponseBody<B>> {
    let policy = about.policy;
    let hold = prefer.hold(policy.wait_limit);
    let is_awaited = match &arrived {
        Arrived::Accepted { .. } => policy.may_defer(),
        Arrived::Unsettled { parked, execution: Execution::Deferred, .. } => {
            policy.after_doubt == AfterDoubt::Accept && !parked
        }
        _ => false,
    };
    if !is_awaited || hold.is_zero() {
        return answer::told(arrived, about);
    }
    let row = match shared.engine.until_over(about.id(), hold).await {
        None => return answer::told(arrived, about),
        // It had no effect, and only a client runs it again: this one, if it asks again.
        Some(row) if row.state == State::FailedRetryable => return answer::told(arrived, about),
        Some(row) => row,
    };
    let mut response = shared.of_row(&row, about);
    if matches!(arrived, Arrived::Accepted { is_new: true, .. }) {
        // The first to hear of it.
        response.headers_mut().remove(policy.replayed_header);
    }
    response
}

/// A request that has come through steps 2 to 5.
pub(crate) struct Admitted {
    pub(crate) head: request::Parts,
    pub(crate) body: Bytes,
    pub(crate) key: Key,
    /// As the client wrote it.
    pub(crate) key_line: Option<HeaderValue>,
    pub(crate) scope: Scope,
    pub(crate) fingerprints: Fingerprints,
}

/// Steps 2 to 5: the key, its scope, whether its owner may, the body, the fingerprint. The error
/// is the answer, also of a request that has no key and needs
/// none.
pub(crate) async fn admit<V, B, A>(
    tenant: &dyn Tenant,
    authorize: Option<&dyn Authorize>,
    route: &Route,
    inner: V,
    request: Request<B>,
) -> Result<(Box<Admitted>, V), Result<Response<ResponseBody<A>>, V::Error>>
where
    V: Service<Request<RequestBody<B>>, Response = Response<A>>,
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    let policy = route.policy();
    let (mut head, body) = request.into_parts();
    let key = match key::read(&head.headers, &policy.key) {
        Ok(Some(key)) => key,
        Ok(None) => {
            route.count_keyless();
            let passed = pass(inner, Request::from_parts(head, body)).await;
            return Err(passed.map(|mut response| {
                response.headers_mut().remove(headers::OUTCOME);
                response
            }));
        }
        Err(problem) => return Err(Ok(Box::pin(refuse_early(&problem, &head.headers, body)).await)),
    };
    let key_line = key::respell(&mut head.headers, &key, policy.key.syntax);
    let scope = match scope::of(tenant, route, &head) {
        Ok(scope) => scope,
        Err(problem) => return Err(Ok(Box::pin(refuse_early(&problem, &head.headers, body)).await)),
    };
    if let Some(checking) = authorize.and_then(|authorize| authorize.check(route, &head))
        && let Err(denied) = checking.await
    {
        let mut refused = Box::pin(refuse_early(&denied.problem, &head.headers, body)).await;
        denied.challenge(refused.headers_mut());
        return Err(Ok(refused));
    }
    let body = read::whole(&head.headers, body, policy.body_bytes_max).await;
    let body = body.map_err(|problem| Ok(answer::refusal(&problem)))?;
    let fingerprints = fingerprint::of(policy, &head, &body);
    let fingerprints = fingerprints.map_err(|problem| Ok(answer::refusal(&problem)))?;
    Ok((Box::new(Admitted { head, body, key, key_line, scope, fingerprints }), inner))
}

/// Run, classify, settle, answer.
pub(crate) async fn attempt<S, V, B, A>(
    shared: Arc<Shared<S>>,
    route: Route,
    mut held: Box<Held<S>>,
    inner: V,
    mut work: Work<B>,
) -> Response<ResponseBody<A>>
where
    S: Store,
    V: Service<Request<RequestBody<B>>, Response = Response<A>>,
    V::Error: Into<BoxError>,
    A: Body<Data = Bytes>,
    A::Error: Into<BoxError> + Send,
{
    let about = shared.about(route.policy(), Which::Id(held.id()));
    match (route.policy().crash, &shared.phases) {
        (CrashPolicy::Resume, Some(offer)) => offer(&held, &mut work.head.extensions),
        // The handler reports that it was offered none, and nothing runs.
        (CrashPolicy::Resume, None) => {}
        (CrashPolicy::Reconcile | CrashPolicy::Restart, _) => {
            if let Some(parked) = held.parked_without_phases() {
                return settle::and_answer(held, parked, Ended::Failed(Failure::Service), &about).await;
            }
        }
    }
    let mut ended = execute::run(&mut held, inner, work).await;
    let settlement = held.as_its_phases_say(classify::of(held.policy(), &mut ended));
    settle::and_answer(held, settlement, ended, &about).await
}

impl<S: Store> Shared<S> {
    pub(crate) fn about<'a>(&'a self, policy: &'a Policy, operation: Which<'a>) -> About<'a> {
        About { policy, operations: self.operations.as_deref(), operation, respond_async: false }
    }
}

/// A refusal before the body was read.
async fn refuse_early<B, A>(problem: &Problem, headers: &HeaderMap, body: B) -> Response<ResponseBody<A>>
where
    B: Body<Data = Bytes>,
{
    read::leave(headers, body).await;
    answer::refusal(problem)
}
