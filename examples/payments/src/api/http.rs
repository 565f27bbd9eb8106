//! The API's HTTP side.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use axum::body::Bytes;
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::Deserialize;
use serde_json::{Value, json};

use super::Api;
use super::book::Payment;
use super::input;
use super::provider::{Charged, NotAsked};
use crate::name;
use crate::provider::Signed;

type Shared = State<Arc<Api>>;
/// How an answer that is no outcome says so to whatever stands in front.
const OUTCOME: &str = "idempotency-outcome";

pub(super) fn routes(api: Arc<Api>) -> Router {
    Router::new()
        .route("/payments", post(pay).get(of_key))
        // The same under another path: so that a gateway may treat some payments differently, and do them later, say.
        .route("/payments/later", post(pay))
        .route("/payments/{id}", get(one))
        .route("/payments/{id}/refunds", post(refund))
        .route("/webhooks/provider", post(webhook))
        .with_state(api)
}

/// `POST /payments`
async fn pay(State(api): Shared, headers: HeaderMap, body: Bytes) -> Result<Response, Failed> {
    let money = match input::payment(&body) {
        Ok(money) => money,
        Err(words) => return Ok(wrong(&words)),
    };
    let payment = Payment {
        id: name("pay")?,
        kind: "payment".to_owned(),
        of: None,
        reference: reference(&headers),
        idempotency_key: key(&headers),
        amount: money.amount,
        currency: money.currency,
        status: "created".to_owned(),
        charge: None,
    };
    api.book.add(payment.clone()).await?;
    charge(&api, payment, &headers).await
}

/// `POST /payments/{id}/refunds`
async fn refund(
    State(api): Shared,
    Path(id): Path<String>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, Failed> {
    let paid = api.book.one(id.clone()).await?.filter(|payment| payment.kind == "payment");
    let Some(paid) = paid else { return Ok(StatusCode::NOT_FOUND.into_response()) };
    if paid.status != "succeeded" {
        return Ok(wrong(&format!(
            "the payment is {}, and only one that succeeded can be refunded",
            paid.status
        )));
    }
    let money = match input::refund(&body, &paid.money()) {
        Ok(money) => money,
        Err(words) => return Ok(wrong(&words)),
    };
    let refund = Payment {
        id: name("ref")?,
        kind: "refund".to_owned(),
        of: Some(id),
        reference: reference(&headers),
        idempotency_key: key(&headers),
        amount: money.amount,
        currency: money.currency,
        status: "created".to_owned(),
        charge: None,
    };
    if let Err(left) = api.book.add_refund(refund.clone(), &paid).await? {
        return Ok(wrong(&format!("only {left} of the payment is left to be refunded")));
    }
    charge(&api, refund, &headers).await
}

/// Has charged what is written down, writes down what became of it, and says so.
async fn charge(api: &Api, mut payment: Payment, headers: &HeaderMap) -> Result<Response, Failed> {
    let charged = api.provider.charge(&payment, headers).await;
    let (status, is) = match &charged {
        Charged::Succeeded { .. } => (StatusCode::CREATED, "succeeded"),
        Charged::Declined { .. } => (StatusCode::PAYMENT_REQUIRED, "declined"),
        Charged::NotSent => (StatusCode::SERVICE_UNAVAILABLE, "failed"),
        Charged::Unknown(_) => (StatusCode::GATEWAY_TIMEOUT, "unknown"),
    };
    let charge = match &charged {
        Charged::Succeeded { charge } | Charged::Declined { charge } => Some(charge.clone()),
        Charged::NotSent | Charged::Unknown(_) => None,
    };
    api.book.settle(payment.id.clone(), is, charge.clone()).await?;
    payment.charge = charge;
    is.clone_into(&mut payment.status);
    let mut response = (status, Json(&payment)).into_response();
    match charged {
        Charged::Succeeded { .. } => {
            if let Ok(location) = format!("/payments/{}", payment.id).parse() {
                response.headers_mut().insert(header::LOCATION, location);
            }
        }
        Charged::Declined { .. } => {}
        Charged::NotSent => say(&mut response, "not-executed"),
        Charged::Unknown(_) => say(&mut response, "unknown"),
    }
    Ok(response)
}

fn say(response: &mut Response, outcome: &'static str) {
    response.headers_mut().insert(OUTCOME, header::HeaderValue::from_static(outcome));
}

/// `GET /payments/{id}`
async fn one(State(api): Shared, Path(id): Path<String>) -> Result<Response, Failed> {
    Ok(match api.book.one(id).await? {
        Some(payment) => Json(looked_up(&api, payment).await?).into_response(),
        None => StatusCode::NOT_FOUND.into_response(),
    })
}

#[derive(Deserialize)]
struct Asked {
    idempotency_key: String,
}

/// `GET /payments?idempotency_key=`
async fn of_key(State(api): Shared, Query(asked): Query<Asked>) -> Result<Json<Value>, Failed> {
    let mut payments = Vec::new();
    for payment in api.book.of_key(asked.idempotency_key).await? {
        payments.push(looked_up(&api, payment).await?);
    }
    Ok(Json(json!({ "payments": payments })))
}

/// One whose outcome is not known is asked about. If the provider cannot be asked, nothing is said of it: "unknown" means that it was asked, and
/// has nothing.
async fn looked_up(api: &Api, mut payment: Payment) -> Result<Payment, Failed> {
    if !matches!(payment.status.as_str(), "created" | "unknown") {
        return Ok(payment);
    }
    let (is, charge) = match api.provider.look_up(&payment.reference).await? {
        Some(Charged::Succeeded { charge }) => ("succeeded", charge),
        Some(Charged::Declined { charge }) => ("declined", charge),
        _ => return Ok(payment),
    };
    api.book.settle(payment.id.clone(), is, Some(charge.clone())).await?;
    is.clone_into(&mut payment.status);
    payment.charge = Some(charge);
    Ok(payment)
}

/// `POST /webhooks/provider`
async fn webhook(State(api): Shared, headers: HeaderMap, body: Bytes) -> Result<StatusCode, Failed> {
    let Some(secret) = &api.webhook_secret else { return Ok(StatusCode::NOT_FOUND) };
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    if Signed::check(&headers, &body, secret, now).is_err() {
        return Ok(StatusCode::UNAUTHORIZED);
    }
    let event: Value = serde_json::from_slice(&body).unwrap_or_default();
    let text = |name: &str| event["data"][name].as_str().map(str::to_owned);
    let (Some(reference), Some(charge)) = (text("reference"), text("id")) else {
        return Ok(StatusCode::BAD_REQUEST);
    };
    let is = match event["type"].as_str() {
        Some("charge.succeeded") => "succeeded",
        Some("charge.declined") => "declined",
        _ => return Ok(StatusCode::NO_CONTENT),
    };
    api.book.settle_reference(reference, is, charge).await?;
    Ok(StatusCode::NO_CONTENT)
}

fn wrong(words: &str) -> Response {
    (StatusCode::UNPROCESSABLE_ENTITY, Json(json!({ "error": words }))).into_response()
}

/// The client's key, without the quotes that the standard puts around it.
fn key(headers: &HeaderMap) -> String {
    let key = headers.get("idempotency-key").and_then(|value| value.to_str().ok()).unwrap_or_default();
    key.trim_matches('"').to_owned()
}

/// Whose payment it is, and under which key: what the provider shows on its side.
fn reference(headers: &HeaderMap) -> String {
    let who = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok()).unwrap_or("nobody");
    format!("{}/{}", who.trim_start_matches("Bearer "), key(headers))
}

/// Why there is no answer.
enum Failed {
    /// The API's own trouble: a 500, and nothing is said about the provider.
    Own(String),
    /// The provider cannot be asked now: a 503, from which nobody can read that there is nothing.
    NotAsked(NotAsked),
}

impl From<rusqlite::Error> for Failed {
    fn from(error: rusqlite::Error) -> Self {
        Self::Own(error.to_string())
    }
}

impl From<getrandom::Error> for Failed {
    fn from(error: getrandom::Error) -> Self {
        Self::Own(error.to_string())
    }
}

impl From<NotAsked> for Failed {
    fn from(why: NotAsked) -> Self {
        Self::NotAsked(why)
    }
}

impl IntoResponse for Failed {
    fn into_response(self) -> Response {
        match self {
            Self::Own(words) => (StatusCode::INTERNAL_SERVER_ERROR, words).into_response(),
            Self::NotAsked(why) => (StatusCode::SERVICE_UNAVAILABLE, why.0).into_response(),
        }
    }
}
