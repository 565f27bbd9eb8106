//! `/api/v1/records/{id}/…`: what operators do, and the story that it becomes part of.
//!
//! With a token, a caller that shows it may act, under the name that it gives. Without one the
//! listener is on this machine only, and
//! what a browser or a proxy brings from another machine is refused.

use std::time::Duration;

use axum::Json;
use axum::extract::{Path, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use oncegate_store::Store as _;
use serde_json::{Value, json};

use super::Admin;
use super::api::{bad, no_record, not_an_id, problem, within};
use crate::operate::{self, Bad, Refused, Verb, WISH_BYTES_MAX, Wish};
use crate::story::{STORY_MAX, story};

/// How long an act may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// `GET /api/v1/records/{id}/story`
pub(super) async fn told(State(admin): State<Admin>, Path(id): Path<String>) -> Result<Response, Response> {
    let id = id.parse().map_err(|_| not_an_id(&id))?;
    let store = admin.0.engine.store();
    let entries = within(store.story(id, STORY_MAX)).await?;
    if entries.is_empty() {
        let rows = within(store.read(&[id])).await?;
        // A row that cannot be read is there.
        if rows.iter().all(|row| matches!(row, Ok(None))) {
            return Err(no_record(id));
        }
    }
    let (told, left_out) = story(&entries);
    Ok(Json(json!({ "id": id.to_string(), "story": told, "left_out": left_out })).into_response())
}

/// `POST /api/v1/records/{id}/resolve`
pub(super) async fn resolve(
    State(admin): State<Admin>,
    Path(id): Path<String>,
    request: Request,
) -> Result<Response, Response> {
    act(&admin, &id, Verb::Resolve, request).await
}

/// `POST /api/v1/records/{id}/retry`
pub(super) async fn retry(
    State(admin): State<Admin>,
    Path(id): Path<String>,
    request: Request,
) -> Result<Response, Response> {
    act(&admin, &id, Verb::Retry, request).await
}

/// `POST /api/v1/records/{id}/forget`
pub(super) async fn forget(
    State(admin): State<Admin>,
    Path(id): Path<String>,
    request: Request,
) -> Result<Response, Response> {
    act(&admin, &id, Verb::Forget, request).await
}

async fn act(admin: &Admin, id: &str, verb: Verb, request: Request) -> Result<Response, Response> {
    if let Some(refused) = not_meant(admin, request.headers()) {
        return Err(refused);
    }
    let id = id.parse().map_err(|_| not_an_id(id))?;
    let wish = wished(request, |body| Wish::read(verb, body)).await?;
    let engine = admin.0.engine.clone();
    carried_out(async move { operate::carry_out(&engine, id, &wish).await }).await
}

/// What is wanted, or why that cannot be read.
pub(super) async fn wished(
    request: Request,
    read: impl FnOnce(&[u8]) -> Result<Wish, Bad>,
) -> Result<Wish, Response> {
    let body = axum::body::to_bytes(request.into_body(), WISH_BYTES_MAX).await.map_err(|_| {
        let words =
            format!("It did not come whole, or is larger than {WISH_BYTES_MAX} bytes. Nothing was changed.");
        problem(StatusCode::PAYLOAD_TOO_LARGE, "Not taken", &words)
    })?;
    read(&body).map_err(|words| bad(&format!("{words} Nothing was changed.")))
}

/// Sees an act to its end, in a task of its own: whoever hangs up has not stopped half of it.
pub(super) async fn carried_out(
    acting: impl Future<Output = Result<Value, Refused>> + Send + 'static,
) -> Result<Response, Response> {
    let acting = tokio::spawn(acting);
    match tokio::time::timeout(PATIENCE, acting).await {
        Ok(Ok(Ok(done))) => Ok(Json(done).into_response()),
        Ok(Ok(Err(refused))) => Err(refusal(refused)),
        Ok(Err(_)) | Err(_) => {
            let words = "The store did not answer in time, and may still do it. Look at the record's story before you do it again: \
                         doing it again with the same version is safe, and is refused if it was done.";
            Err(problem(StatusCode::SERVICE_UNAVAILABLE, "The store is not available", words))
        }
    }
}

fn refusal(refused: Refused) -> Response {
    match refused {
        Refused::NotFound(words) => problem(StatusCode::NOT_FOUND, "No such record", &words),
        Refused::Changed { words, record } => conflict("The record has changed", &words, &record),
        Refused::NotAllowed { words, record } => {
            conflict("The record's state does not allow it", &words, &record)
        }
        Refused::Store(words) => {
            problem(StatusCode::SERVICE_UNAVAILABLE, "The store is not available", &words)
        }
    }
}

/// A problem that shows the record as it is.
fn conflict(title: &str, words: &str, record: &Value) -> Response {
    let status = StatusCode::CONFLICT;
    let body = json!({
        "type": "about:blank", "title": title, "status": status.as_u16(), "detail": words, "record": record,
    });
    (status, [(header::CONTENT_TYPE, "application/problem+json")], body.to_string()).into_response()
}

/// Refuses what the operator may not mean: a web page can make a browser post forms, but not
/// JSON; and where there is no token,
/// a proxy must not let others in.
pub(super) fn not_meant(admin: &Admin, headers: &HeaderMap) -> Option<Response> {
    if !is_json(headers) {
        let words = "Send it as `content-type: application/json`. Nothing was changed.";
        return Some(problem(StatusCode::UNSUPPORTED_MEDIA_TYPE, "Not JSON", words));
    }
    if admin.0.token.is_none() && is_proxied(headers) {
        let words = "Without an admin token only this machine may change records, and this came through a proxy. Nothing was \
                     changed. Set `admin.token_file` or ONCEGATE_ADMIN_TOKEN.";
        return Some(problem(StatusCode::FORBIDDEN, "Not from this machine", words));
    }
    None
}

fn is_json(headers: &HeaderMap) -> bool {
    let named = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let essence = named.and_then(|named| named.split(';').next()).map(str::trim);
    essence.is_some_and(|essence| essence.eq_ignore_ascii_case("application/json"))
}

fn is_proxied(headers: &HeaderMap) -> bool {
    ["forwarded", "x-forwarded-for", "via"].iter().any(|name| headers.contains_key(*name))
}
