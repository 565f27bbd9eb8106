//! Running what was accepted, and going on with what a client has left: the inner service, with the stored request, under a lease of the
//! completer's.

use std::marker::PhantomData;
use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use oncegate_core::record::Record;
use oncegate_engine::{Finisher, Finishing, Held, Left, Route, Runs};
use oncegate_store::Store;
use oncegate_store::turns::Operations;
use tower_service::Service;
use tracing::Instrument as _;

use crate::body::{BoxError, RequestBody};
use crate::execute::Work;
use crate::phased::Completing;
use crate::service::{Shared, attempt};
use crate::stored;

/// There is no client, and no body of its: what was stored is given whole.
pub type NoBody = http_body_util::Empty<Bytes>;

/// A service, and what its layer knows.
pub(crate) struct Again<S: Store, V> {
    pub(crate) shared: Arc<Shared<S>>,
    pub(crate) inner: V,
}

impl<S, V, A> Finisher<S> for Again<S, V>
where
    S: Store,
    V: Service<Request<RequestBody<NoBody>>, Response = Response<A>> + Clone + Send + Sync + 'static,
    V::Error: Into<BoxError> + Send,
    V::Future: Send,
    A: Body<Data = Bytes> + Send + 'static,
    A::Error: Into<BoxError> + Send,
{
    fn runs(&self) -> Runs {
        let shared = Arc::clone(&self.shared);
        let operations = Operations::new(move |operation| shared.routes.of_stored(operation).is_some());
        Runs { operations, resumes: self.shared.routes.has_phases() }
    }

    fn route(&self, record: &Record) -> Option<Route> {
        self.shared.routes.of_record(record).cloned()
    }

    fn finish(&self, lease: Box<Held<S>>, left: Left) -> Finishing<'_> {
        Box::pin(async move {
            let Some(route) = self.route(&left.record) else { return };
            let Some((mut head, body)) = stored::restore(&*self.shared.tenant, left.request) else {
                // Dropped before anything began, the lease is released.
                tracing::error!(record = %left.record.id, "stored request is invalid; cannot run it");
                return;
            };
            let address = &left.record.address;
            head.extensions.insert(Completing { scope: address.scope.clone() });
            let work = Work::<NoBody> { head, body, key: address.key.clone(), of: PhantomData };
            let span =
                tracing::info_span!("completing", route = %route.operation(), record = %left.record.id);
            let mut inner = self.inner.clone();
            let is_ready = std::future::poll_fn(|cx| inner.poll_ready(cx)).await.is_ok();
            if is_ready {
                let attempt = attempt(Arc::clone(&self.shared), route, lease, inner, work);
                // Nobody waits for the answer: it is in the record.
                drop(attempt.instrument(span).await);
            }
        })
    }
}
