//! The layer itself.

use std::sync::Arc;

use bytes::Bytes;
use http::header::HeaderName;
use http::{Request, Response};
use http_body::Body;
use oncegate_engine::{Engine, Finisher, Probe, WorkerOptions, Workers};
use oncegate_store::Store;
use oncegate_store::join::{Join, Transactions};
use tower_layer::Layer;
use tower_service::Service;

use crate::authorize::Authorize;
use crate::body::{BoxError, RequestBody};
use crate::complete::{Again, NoBody};
use crate::limit::RequestLimit;
use crate::phased;
use crate::route::Routes;
use crate::scope::Tenant;
use crate::service::{Idempotent, Shared};

/// Where the layer shows operations, if some may be run later and nothing else is said.
const OPERATIONS: &str = "/.oncegate/operations/";

/// Makes protected requests take effect once.
pub struct Idempotency<S: Store>(pub(crate) Arc<Shared<S>>);

impl<S: Store> Idempotency<S> {
    /// Protects what `routes` say. `tenant` says whose request it is; see [`crate::scope`] for ready ones.
    ///
    /// Where a route may defer, the layer answers at `/.oncegate/operations/`, as if [`serve_operations_at`](Self::serve_operations_at) had said so:
    /// what is accepted must have a place where it is asked for. If this layer is not around all of the service, that path may not reach it; then
    /// choose one that does.
    pub fn new(engine: Engine<S>, tenant: impl Tenant, routes: Routes) -> Self {
        let may_defer = routes.may_defer();
        Self(Arc::new(Shared {
            engine,
            routes,
            tenant: Box::new(tenant),
            authorize: None,
            operations: may_defer.then(|| OPERATIONS.into()),
            serves_operations: may_defer,
            phases: None,
            request_time: None,
            limit: None,
        }))
    }

    /// Trusts this header for when the client first sent an operation: an HTTP date, RFC 3339 in
    /// UTC, or seconds since 1970. After a restore it places keys that are not UUID version 7
    /// inside or outside the lost time. Call it before the layer is cloned.
    #[must_use]
    pub fn request_time_header(mut self, name: HeaderName) -> Self {
        if let Some(shared) = Arc::get_mut(&mut self.0) {
            shared.request_time = Some(name);
        }
        self
    }

    /// Asks this about every request with a key, before its body is read: a replay never reaches
    /// the service, so what authenticates there is not asked again. Also before an operation is
    /// shown or cancelled; one whose route is gone is refused with 403. Call it before the layer
    /// is cloned.
    #[must_use]
    pub fn authorize(mut self, authorize: impl Authorize) -> Self {
        if let Some(shared) = Arc::get_mut(&mut self.0) {
            shared.authorize = Some(Box::new(authorize));
        }
        self
    }

    /// Limits how many protected requests are recorded and executed at once. Replays from the cache
    /// are not limited. Call it before the layer is cloned.
    #[must_use]
    pub fn limit(mut self, limit: Arc<dyn RequestLimit>) -> Self {
        if let Some(shared) = Arc::get_mut(&mut self.0) {
            shared.limit = Some(limit);
        }
        self
    }

    /// Where a caller can look at its own operations: a path to which an operation's id is added. Problems that a client may
    /// have to come back for then carry it, and so does what is accepted. The service answers there by itself; see
    /// [`Idempotency::serve_operations_at`].
    #[must_use]
    pub fn operations_at(mut self, path: impl Into<Box<str>>) -> Self {
        if let Some(shared) = Arc::get_mut(&mut self.0) {
            shared.operations = Some(path.into());
            shared.serves_operations = false;
        }
        self
    }

    /// The same, and the layer answers there: `GET` of an operation gives its state and then its answer, `DELETE` takes back what nobody has
    /// begun. Only to the tenant whose it is.
    #[must_use]
    pub fn serve_operations_at(mut self, path: impl Into<Box<str>>) -> Self {
        if let Some(shared) = Arc::get_mut(&mut self.0) {
            shared.operations = Some(path.into());
            shared.serves_operations = true;
        }
        self
    }

    /// Starts the completer: accepted requests are run, and operations in phases that their client has left go on without it, by calling
    /// `inner` with their stored request. Give it the service that this layer is put around, without the layer. Dropped, it takes up nothing more.
    ///
    /// The request carries what was kept of it, and [`Completing`](crate::phased::Completing) among its extensions; whatever was put there
    /// by layers outside of this one (an authenticated user, say) is not there.
    ///
    /// **It is not enough**: what a service that dies leaves in the middle of a run is found by the sweeper, and found out by the reconciler. Unless
    /// other nodes of the store run them ([`Engine::start_workers`]), start all of them: [`start_workers`](Self::start_workers).
    #[must_use]
    pub fn start_completer<V, A>(&self, inner: V, options: &WorkerOptions) -> Workers
    where
        V: Service<Request<RequestBody<NoBody>>, Response = Response<A>> + Clone + Send + Sync + 'static,
        V::Error: Into<BoxError> + Send,
        V::Future: Send,
        A: Body<Data = Bytes> + Send + 'static,
        A::Error: Into<BoxError> + Send,
    {
        self.0.engine.start_completer(options, self.finisher(inner))
    }

    /// Starts all workers: the completer, as [`start_completer`](Self::start_completer) does, and those that find what was left in the middle, ask `probe`
    /// what became of it, and free what is past retention. What a service needs whose requests are accepted to be run later.
    #[must_use]
    pub fn start_workers<V, A>(&self, inner: V, options: &WorkerOptions, probe: &Arc<dyn Probe>) -> Workers
    where
        V: Service<Request<RequestBody<NoBody>>, Response = Response<A>> + Clone + Send + Sync + 'static,
        V::Error: Into<BoxError> + Send,
        V::Future: Send,
        A: Body<Data = Bytes> + Send + 'static,
        A::Error: Into<BoxError> + Send,
    {
        self.0.engine.start_all_workers(options, probe, self.finisher(inner))
    }

    /// What the completer runs accepted requests with: for whoever starts it in another way.
    #[must_use]
    pub fn finisher<V, A>(&self, inner: V) -> Arc<dyn Finisher<S>>
    where
        V: Service<Request<RequestBody<NoBody>>, Response = Response<A>> + Clone + Send + Sync + 'static,
        V::Error: Into<BoxError> + Send,
        V::Future: Send,
        A: Body<Data = Bytes> + Send + 'static,
        A::Error: Into<BoxError> + Send,
    {
        Arc::new(Again { shared: Arc::clone(&self.0), inner })
    }
}

impl<S: Join> Idempotency<S> {
    /// Handlers have recovery points: their atomic phases run in transactions of this pool, which must be of the database that the
    /// records are in. See [`crate::phased`]. To be called before the layer is cloned.
    #[must_use]
    pub fn phases<T: Transactions>(mut self, transactions: T) -> Self {
        if let Some(shared) = Arc::get_mut(&mut self.0) {
            shared.phases = Some(phased::offer(Arc::new(transactions)));
        }
        self
    }
}

impl<S: Store> Clone for Idempotency<S> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<S: Store, V> Layer<V> for Idempotency<S> {
    type Service = Idempotent<S, V>;

    fn layer(&self, inner: V) -> Self::Service {
        Idempotent { shared: Arc::clone(&self.0), inner }
    }
}
