//! A node: an axum service with the layer around it, on a runtime of its own, so that it can be killed.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Extension, Router};
use oncegate_core::policy::Profile;
use oncegate_core::time::Timestamp;
use oncegate_engine::{Engine, Options};
use oncegate_store::clock::Clock;
use oncegate_store_sql::SqliteStore;
use oncegate_store_sql::sqlite::SqliteOptions;
use oncegate_tower::{Attempt, Idempotency, Routes, scope};
use tokio::runtime::Runtime;

use super::Error;
use super::provider::Provider;

pub(super) struct Node {
    runtime: Runtime,
    pub(super) address: SocketAddr,
    pub(super) engine: Engine<SqliteStore>,
}

impl Node {
    /// Starts a service on a free port, over the file. `turned_by` turns the store's clock, so that a lease can lapse without
    /// waiting for it.
    pub(super) fn start(
        file: &Path,
        provider: &Arc<Provider>,
        turned_by: &Arc<AtomicI64>,
    ) -> Result<Self, Error> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let store = SqliteOptions::new(file).clock(turned(turned_by)).open()?;
        let (engine, listener) = runtime.block_on(async {
            let engine = Engine::start(store, Options::default()).await?;
            let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await?;
            Ok::<_, Error>((engine, listener))
        })?;
        let address = listener.local_addr()?;
        let idempotency =
            Idempotency::new(engine.clone(), scope::header("x-tenant"), Routes::all(Profile::Ietf)?);
        let app =
            Router::new().route("/payments", post(pay)).with_state(Arc::clone(provider)).layer(idempotency);
        runtime.spawn(async move { axum::serve(listener, app).await });
        Ok(Self { runtime, address, engine })
    }

    /// Everything that it was doing stops where it is.
    pub(super) fn kill(self) {
        self.runtime.shutdown_background();
    }
}

fn turned(by: &Arc<AtomicI64>) -> Clock {
    let (system, by) = (Clock::system(), Arc::clone(by));
    Clock::from_fn(move || Timestamp::from_micros(system.now().as_micros() + by.load(Ordering::Relaxed)))
}

/// What `x-provider` asks for.
pub(super) const ANSWERS: &str = "answers";
pub(super) const WAITS: &str = "waits before it charges";
pub(super) const REFUSES: &str = "refuses the connection";
pub(super) const TIMES_OUT: &str = "times out after charging";
pub(super) const HANGS: &str = "hangs after charging";

/// The handler: calls the provider, once an attempt.
async fn pay(
    State(provider): State<Arc<Provider>>,
    Extension(attempt): Extension<Attempt>,
    headers: HeaderMap,
) -> Response {
    let ending = headers.get("x-provider").and_then(|value| value.to_str().ok()).unwrap_or(ANSWERS);
    if ending == REFUSES {
        // It knows that nothing was sent, and says so.
        let words = "the provider refused the connection";
        return (StatusCode::BAD_GATEWAY, [("idempotency-outcome", "not-executed")], words).into_response();
    }
    if ending == WAITS {
        provider.arrived.add_permits(1);
        if let Ok(permit) = provider.gate.acquire().await {
            permit.forget();
        }
    }
    let number = provider.charge(attempt.life);
    match ending {
        TIMES_OUT => (StatusCode::GATEWAY_TIMEOUT, "the provider timed out").into_response(),
        HANGS => {
            provider.arrived.add_permits(1);
            std::future::pending().await
        }
        _ => (StatusCode::CREATED, format!("charge {number}")).into_response(),
    }
}
