//! The provider's HTTP side.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post, put};
use axum::{Json, Router};
use serde::Deserialize;
use serde_json::{Value, json};

use super::Provider;
use super::fault::{Fault, Faults};
use super::ledger::{Charge, Order};
use super::webhook::Telling;
use crate::serve::NoAnswer;

type Shared = State<Arc<Provider>>;

pub(super) fn routes(provider: Arc<Provider>) -> Router {
    Router::new()
        .route("/charges", post(charge).get(find))
        .route("/charges/{id}", get(one))
        .route("/ledger", get(ledger))
        .route("/faults", put(set_faults))
        .route("/idempotency", put(set_idempotency))
        .with_state(provider)
}

/// `POST /charges`
async fn charge(State(provider): Shared, headers: HeaderMap, Json(order): Json<Order>) -> Response {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let faults = match provider.faults_of(text("x-fault")) {
        Ok(faults) => faults,
        Err(words) => return (StatusCode::BAD_REQUEST, words).into_response(),
    };
    let key = text("idempotency-key").filter(|_| provider.is_idempotent()).map(str::to_owned);
    let fault = faults.iter().copied().find(|fault| !fault.is_of_webhook());
    let told_before = provider.webhooks.as_ref().and_then(|webhooks| webhooks.tell_before(&order, &faults));
    match fault {
        // Whoever waits gives up at some point, and then this is dropped.
        Some(Fault::TimeoutBeforeCharge) => std::future::pending().await,
        Some(Fault::ResetBeforeCharge) => return no_answer(),
        Some(Fault::ErrorBeforeCharge) => return StatusCode::INTERNAL_SERVER_ERROR.into_response(),
        _ => {}
    }
    let status = if fault == Some(Fault::Decline) { "declined" } else { "succeeded" };
    provider.coming.fetch_add(1, Ordering::AcqRel);
    // A task of its own: a provider does not stop because its merchant has hung up.
    let booking = tokio::spawn(async move {
        if matches!(fault, Some(Fault::Slow | Fault::LateCharge)) {
            provider.late.pass().await;
        }
        let booked = book(&provider, order, status, key, &faults, told_before).await;
        provider.coming.fetch_sub(1, Ordering::AcqRel);
        booked
    });
    if fault == Some(Fault::LateCharge) {
        return no_answer();
    }
    let booked = match booking.await {
        Ok(Ok(booked)) => booked,
        Ok(Err(error)) => return (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
        Err(error) => return (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    };
    match fault {
        Some(Fault::TimeoutAfterCharge) => std::future::pending().await,
        Some(Fault::ResetAfterCharge) => no_answer(),
        Some(Fault::ErrorAfterCharge) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
        _ if booked.status == "declined" => (StatusCode::PAYMENT_REQUIRED, Json(booked)).into_response(),
        _ => (StatusCode::CREATED, Json(booked)).into_response(),
    }
}

async fn book(
    provider: &Provider,
    order: Order,
    status: &'static str,
    key: Option<String>,
    faults: &[Fault],
    told_before: Option<Telling>,
) -> rusqlite::Result<Charge> {
    let booked = provider.ledger.book(order, status, key).await?;
    if let Some(webhooks) = &provider.webhooks {
        webhooks.tell(&booked, faults, told_before);
    }
    Ok(booked)
}

fn no_answer() -> Response {
    let mut response = StatusCode::IM_A_TEAPOT.into_response();
    response.extensions_mut().insert(NoAnswer);
    response
}

#[derive(Deserialize)]
struct Asked {
    reference: String,
}

/// `GET /charges?reference=`
async fn find(State(provider): Shared, Query(asked): Query<Asked>) -> Result<Json<Value>, Failed> {
    provider.asked.fetch_add(1, Ordering::AcqRel);
    let charges = provider.ledger.find(asked.reference).await?;
    Ok(Json(json!({ "charges": charges })))
}

/// `GET /charges/{id}`
async fn one(State(provider): Shared, Path(id): Path<String>) -> Result<Response, Failed> {
    let Some(no) = id.strip_prefix("ch_").and_then(|no| no.parse().ok()) else {
        return Ok(StatusCode::NOT_FOUND.into_response());
    };
    Ok(match provider.ledger.one(no).await? {
        Some(charge) => Json(charge).into_response(),
        None => StatusCode::NOT_FOUND.into_response(),
    })
}

/// `GET /ledger`
async fn ledger(State(provider): Shared) -> Result<Json<Value>, Failed> {
    // Asked first: what is booked meanwhile is in the verdict.
    let coming = provider.coming.load(Ordering::Acquire);
    let mut verdict = provider.ledger.verdict().await?;
    verdict["still_to_come"] = coming.into();
    verdict["asked"] = provider.asked.load(Ordering::Acquire).into();
    Ok(Json(verdict))
}

/// `PUT /faults`
async fn set_faults(State(provider): Shared, Json(faults): Json<Faults>) -> StatusCode {
    *provider.faults.lock().unwrap_or_else(PoisonError::into_inner) = faults;
    StatusCode::NO_CONTENT
}

/// `PUT /idempotency`
async fn set_idempotency(State(provider): Shared, Json(is_idempotent): Json<bool>) -> StatusCode {
    provider.is_idempotent.store(is_idempotent, Ordering::Release);
    StatusCode::NO_CONTENT
}

/// The ledger could not be read.
struct Failed(rusqlite::Error);

impl From<rusqlite::Error> for Failed {
    fn from(error: rusqlite::Error) -> Self {
        Self(error)
    }
}

impl IntoResponse for Failed {
    fn into_response(self) -> Response {
        (StatusCode::INTERNAL_SERVER_ERROR, self.0.to_string()).into_response()
    }
}
