//! The admin listener: health, metrics, and the records for operators and their tools.
//!
//! Health and readiness are open to whoever reaches the address; everything else wants the token, if there is one. Without one
//! the configuration keeps the address on this machine, and what changes records is taken from this machine only.

mod acts;
mod api;
mod health;
mod jobs;
mod openapi;
mod token;

use std::sync::Arc;

use axum::Router;
use axum::http::header;
use axum::middleware;
use axum::response::IntoResponse;
use axum::routing::{get, post};
use metrics_exporter_prometheus::PrometheusHandle;
use oncegate::AnyStore;
use oncegate_engine::Engine;
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::config::Secret;
use crate::proxy::Limiter;

/// What the handlers see. Clones share everything.
#[derive(Clone)]
pub(crate) struct Admin(Arc<Inner>);

struct Inner {
    engine: Engine<AnyStore>,
    limiter: Arc<Limiter>,
    stopping: watch::Receiver<bool>,
    token: Option<Secret>,
    metrics: Option<PrometheusHandle>,
}

impl Admin {
    pub(crate) fn new(
        engine: Engine<AnyStore>,
        limiter: Arc<Limiter>,
        stopping: watch::Receiver<bool>,
        token: Option<Secret>,
        metrics: Option<PrometheusHandle>,
    ) -> Self {
        Self(Arc::new(Inner { engine, limiter, stopping, token, metrics }))
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
            .route("/api/v1/counts", get(api::counts))
            .route("/api/v1/openapi.json", get(openapi::document))
            .layer(middleware::from_fn_with_state(self.clone(), token::check));
        Router::new()
            .route("/healthz", get(health::alive))
            .route("/readyz", get(health::ready))
            .merge(guarded)
            .fallback(api::nothing_here)
            .with_state(self.clone())
    }
}

/// Serves until the gateway has stopped: readiness is asked about while it drains.
pub(crate) async fn serve(admin: Admin, socket: TcpListener, mut stop: watch::Receiver<bool>) {
    let upkeep = admin.0.metrics.clone().map(|metrics| {
        tokio::spawn(async move {
            let mut tick = tokio::time::interval(std::time::Duration::from_secs(5));
            loop {
                tick.tick().await;
                metrics.run_upkeep();
            }
        })
    });
    let ended = async move {
        // The sender is dropped when all is drained.
        while stop.changed().await.is_ok() {}
    };
    let served = axum::serve(socket, admin.routes()).with_graceful_shutdown(ended).await;
    if let Err(error) = served {
        tracing::warn!(%error, "the admin listener ended");
    }
    if let Some(upkeep) = upkeep {
        upkeep.abort();
    }
}

async fn metrics(axum::extract::State(admin): axum::extract::State<Admin>) -> impl IntoResponse {
    let text = admin.0.metrics.as_ref().map(PrometheusHandle::render).unwrap_or_default();
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text)
}
