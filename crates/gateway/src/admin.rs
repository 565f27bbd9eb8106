//! The admin listener: health, metrics, and the records for operators and their tools.
//!
//! Health and readiness are open to all that reach the address; everything else needs the token,
//! if there is one. Without one
//! the configuration keeps the address on this machine, and only requests of this machine are
//! answered.

mod access;
mod acts;
mod api;
mod audit;
mod health;
mod jobs;
mod openapi;

use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, Response, header};
use axum::middleware;
use axum::response::IntoResponse;
use axum::routing::{get, post};
use hyper::body::Incoming;
use oncegate::AnyStore;
use oncegate_engine::Engine;
use tokio::sync::watch;
use tower_service::Service as _;

use crate::config::Secret;
use crate::listener::HttpService;
use crate::proxy::Limiter;
use crate::public::{BodyRules, ClientBody, PeerConnection};
use crate::recorder::MetricsHandle;

/// What the handlers see. Clones share everything.
#[derive(Clone)]
pub(crate) struct Admin(Arc<Inner>);

struct Inner {
    engine: Engine<AnyStore>,
    limiter: Arc<Limiter>,
    stopping: watch::Receiver<bool>,
    token: Option<Secret>,
    metrics: Option<MetricsHandle>,
    /// The last error of the store that was logged.
    store_error: Mutex<Option<String>>,
}

/// Answers the requests that come to the admin listener.
pub(crate) struct AdminService {
    routes: Router,
    body_rules: BodyRules,
}

impl Admin {
    pub(crate) fn new(
        engine: Engine<AnyStore>,
        limiter: Arc<Limiter>,
        stopping: watch::Receiver<bool>,
        token: Option<Secret>,
        metrics: Option<MetricsHandle>,
    ) -> Self {
        let store_error = Mutex::default();
        Self(Arc::new(Inner { engine, limiter, stopping, token, metrics, store_error }))
    }

    /// A body that comes more slowly than these rules allow is given up.
    pub(crate) fn service(&self, body_rules: BodyRules) -> AdminService {
        AdminService { routes: self.routes(), body_rules }
    }

    /// Keeps the metrics' histograms small, for as long as it runs.
    pub(crate) async fn run_upkeep(self) {
        let Some(metrics) = &self.0.metrics else { return };
        let mut tick = tokio::time::interval(Duration::from_secs(5));
        loop {
            tick.tick().await;
            metrics.run_upkeep();
        }
    }

    fn routes(&self) -> Router {
        let guarded = Router::new()
            .route("/metrics", get(metrics))
            .route("/api/v1/records", get(api::list))
            .route("/api/v1/records/{id}", get(api::show))
            .route("/api/v1/records/{id}/story", get(acts::told))
            .route("/api/v1/records/{id}/resolve", post(acts::resolve))
            .route("/api/v1/records/{id}/retry", post(acts::retry))
            .route("/api/v1/records/{id}/forget", post(acts::forget))
            .route("/api/v1/jobs/parked", get(jobs::parked))
            .route("/api/v1/jobs/{id}", get(jobs::show))
            .route("/api/v1/jobs/{id}/retry", post(jobs::retry))
            .route("/api/v1/jobs/{id}/withdraw", post(jobs::withdraw))
            .route("/api/v1/audit", get(audit::list))
            .route("/api/v1/comparisons", post(audit::record_comparison))
            .route("/api/v1/counts", get(api::counts))
            .route("/api/v1/openapi.json", get(openapi::document))
            .layer(middleware::from_fn_with_state(self.clone(), access::check));
        Router::new()
            .route("/healthz", get(health::alive))
            .route("/readyz", get(health::ready))
            .merge(guarded)
            .fallback(api::nothing_here)
            .with_state(self.clone())
    }
}

impl HttpService for AdminService {
    type Body = Body;

    /// Operators' connections are limited in all, and not by address.
    fn connect(&self, _: Option<IpAddr>) -> Option<PeerConnection> {
        Some(PeerConnection::uncounted())
    }

    async fn answer(
        &self,
        request: Request<Incoming>,
        connection: &PeerConnection,
        _: usize,
    ) -> Response<Body> {
        // Clients' bodies may have all places that there are; operators' need none.
        let peer = Arc::clone(connection.usage());
        let request = request.map(|incoming| ClientBody::new(incoming, self.body_rules, None, peer));
        let answered: Result<_, Infallible> = self.routes.clone().call(request).await;
        answered.unwrap_or_else(|never| match never {})
    }

    /// Refusals are counted where clients come.
    fn count_malformed() {}
}

async fn metrics(axum::extract::State(admin): axum::extract::State<Admin>) -> impl IntoResponse {
    let text = admin.0.metrics.as_ref().map(MetricsHandle::render).unwrap_or_default();
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text)
}
