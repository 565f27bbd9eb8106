//! The HTTP side. A payment is a row and a promise; both are there, or neither.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use oncegate::{
    Atomic, AtomicIdempotency, Engine, PgTransactions, PostgresStore, Profile, RouteError, Routes,
    SqliteStore, SqliteTransactions, scope,
};
use serde::Deserialize;
use serde_json::json;
use sqlx::{PgPool, SqlitePool};

use crate::payments::{ADD, Payment, Payments};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Asked {
    amount: i64,
    currency: String,
}

/// `POST /payments`, over the transactions of one library. No retries, no duplicates, no provider: they are not its business.
macro_rules! pay {
    ($name:ident, $transactions:ty) => {
        async fn $name(mut tx: Atomic<$transactions>, Json(asked): Json<Asked>) -> Result<Response, Failed> {
            let Some(payment) = accepted(&tx.life_name(), asked) else { return Ok(refused()) };
            let add = sqlx::query(ADD).bind(&payment.id).bind(payment.amount).bind(&payment.currency);
            add.execute(&mut *tx).await?;
            tx.enqueue("charge", &payment)?.answers();
            // The charge's own answer is the answer; this is for a client that has waited long enough.
            Ok((StatusCode::ACCEPTED, Json(payment)).into_response())
        }
    };
}

pay!(pay_in_postgres, PgTransactions);
pay!(pay_in_sqlite, SqliteTransactions);

pub(crate) fn postgres(engine: Engine<PostgresStore>, pool: PgPool) -> Result<Router, RouteError> {
    let layer =
        AtomicIdempotency::new(engine, PgTransactions(pool.clone()), scope::authorization(), routes()?);
    Ok(Router::new()
        .route("/payments", post(pay_in_postgres))
        .layer(layer)
        .merge(reading(Payments::Postgres(pool))))
}

pub(crate) fn sqlite(engine: Engine<SqliteStore>, pool: SqlitePool) -> Result<Router, RouteError> {
    let layer =
        AtomicIdempotency::new(engine, SqliteTransactions(pool.clone()), scope::authorization(), routes()?);
    Ok(Router::new()
        .route("/payments", post(pay_in_sqlite))
        .layer(layer)
        .merge(reading(Payments::Sqlite(pool))))
}

fn routes() -> Result<Routes, RouteError> {
    Routes::none().route("POST /payments", Profile::Payments)
}

fn reading(payments: Payments) -> Router {
    Router::new().route("/payments/{id}", get(one)).with_state(Arc::new(payments))
}

/// `GET /payments/{id}`
async fn one(State(payments): State<Arc<Payments>>, Path(id): Path<String>) -> Result<Response, Failed> {
    Ok(match payments.one(&id).await? {
        Some(payment) => Json(payment).into_response(),
        None => StatusCode::NOT_FOUND.into_response(),
    })
}

/// Named by the key's life, not by dice: a request that is run once more finds the payment of its first run, and does not make a second.
fn accepted(life: &str, asked: Asked) -> Option<Payment> {
    let is_currency =
        asked.currency.len() == 3 && asked.currency.bytes().all(|letter| letter.is_ascii_uppercase());
    (asked.amount > 0 && is_currency).then(|| Payment {
        id: format!("pay_{life}"),
        amount: asked.amount,
        currency: asked.currency,
        status: "pending".to_owned(),
        charge: None,
    })
}

fn refused() -> Response {
    let words = "amount is a positive number of cents, currency three capital letters";
    (StatusCode::UNPROCESSABLE_ENTITY, Json(json!({ "error": words }))).into_response()
}

/// The service's own trouble: a 500, and the transaction is rolled back.
struct Failed(String);

impl<E: std::error::Error> From<E> for Failed {
    fn from(error: E) -> Self {
        Self(error.to_string())
    }
}

impl IntoResponse for Failed {
    fn into_response(self) -> Response {
        (StatusCode::INTERNAL_SERVER_ERROR, self.0).into_response()
    }
}
