//! Is it alive, and may traffic be sent to it?

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use oncegate_core::identity::RecordId;
use oncegate_store::history::RESTORED;
use serde_json::{Value, json};

use super::Admin;

/// A store that takes longer than this to answer is not there.
const STORE_PATIENCE: Duration = Duration::from_secs(2);

/// The process answers.
pub(super) async fn alive() -> &'static str {
    "ok\n"
}

/// Whether traffic should come here: the store answers, requests are not being shed, and it is not shutting down.
pub(super) async fn ready(State(admin): State<Admin>) -> (StatusCode, Json<Value>) {
    // A read of a row that is not there goes all the way to the store and costs it nothing.
    let missing = RecordId::from_bytes([0; 16]);
    let store = if admin.0.engine.is_restored() {
        json!(RESTORED)
    } else {
        match tokio::time::timeout(STORE_PATIENCE, admin.0.engine.read(missing)).await {
            Ok(Ok(_)) => json!("ok"),
            Ok(Err(error)) => json!(error.to_string()),
            Err(_) => json!(format!("no answer within {} s", STORE_PATIENCE.as_secs())),
        }
    };
    let load = if admin.0.limiter.is_full() { "shedding" } else { "ok" };
    let life = if *admin.0.stopping.borrow() { "draining" } else { "ok" };
    let is_ready = store == "ok" && load == "ok" && life == "ok";
    let status = if is_ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, Json(json!({ "ready": is_ready, "store": store, "load": load, "life": life })))
}
