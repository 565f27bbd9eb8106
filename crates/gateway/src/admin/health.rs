//! Is it alive, and may traffic be sent to it?

use std::sync::PoisonError;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, Uri};
use oncegate_core::identity::RecordId;
use oncegate_store::history::RESTORED;
use serde_json::{Value, json};

use super::{Admin, access};

/// A store that takes longer than this to answer is not there.
const STORE_PATIENCE: Duration = Duration::from_secs(2);

/// The process answers.
pub(super) async fn alive() -> &'static str {
    "ok\n"
}

/// Whether traffic should come here: the store answers, requests are not being shed, and it is not shutting down.
///
/// Every caller is told which part is not ready. A store's error may name hosts, users and files:
/// it goes to the log, and to callers that may see records.
pub(super) async fn ready(
    State(admin): State<Admin>,
    uri: Uri,
    headers: HeaderMap,
) -> (StatusCode, Json<Value>) {
    let store_error = store_error(&admin).await;
    log_change(&admin, store_error.as_deref());
    let store = if store_error.is_none() { "ok" } else { "not ready" };
    let load = if admin.0.limiter.is_full() { "shedding" } else { "ok" };
    let life = if *admin.0.stopping.borrow() { "draining" } else { "ok" };
    let is_ready = [store, load, life].iter().all(|part| *part == "ok");
    let status = if is_ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let mut body = json!({ "ready": is_ready, "store": store, "load": load, "life": life });
    if let Some(error) = store_error
        && access::refusal(&admin, &uri, &headers).is_none()
    {
        body["store_error"] = error.into();
    }
    (status, Json(body))
}

async fn store_error(admin: &Admin) -> Option<String> {
    if admin.0.engine.is_restored() {
        return Some(RESTORED.to_owned());
    }
    // A read of a row that is not there goes all the way to the store and costs it nothing.
    let missing = RecordId::from_bytes([0; 16]);
    match tokio::time::timeout(STORE_PATIENCE, admin.0.engine.read(missing)).await {
        Ok(Ok(_)) => None,
        Ok(Err(error)) => Some(error.to_string()),
        Err(_) => Some(format!("no answer within {} s", STORE_PATIENCE.as_secs())),
    }
}

/// Logs an error once, however often it is asked about.
fn log_change(admin: &Admin, error: Option<&str>) {
    let mut logged = admin.0.store_error.lock().unwrap_or_else(PoisonError::into_inner);
    if logged.as_deref() == error {
        return;
    }
    if let Some(error) = error {
        tracing::warn!(error, "not ready: the store does not answer");
    } else {
        tracing::info!("the store answers again");
    }
    *logged = error.map(str::to_owned);
}
