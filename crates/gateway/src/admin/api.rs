//! `/api/v1`: the records.

use std::time::{Duration, UNIX_EPOCH};

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use oncegate_core::identity::RecordId;
use oncegate_core::record::StateKind;
use oncegate_core::time::Timestamp;
use oncegate_store::{Cursor, Filter, Kind, Store as _, StoreError};
use serde::Deserialize;
use serde_json::json;

use super::Admin;
use crate::record::{self, Bodies};

/// A page, if nobody says how long.
pub(super) const PAGE: usize = 50;
/// The longest page.
pub(super) const PAGE_MAX: usize = 500;
/// How long a question may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// What a list may be narrowed by.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Asked {
    state: Option<String>,
    parked: Option<bool>,
    scope: Option<String>,
    key: Option<String>,
    operation: Option<String>,
    reference: Option<String>,
    created_from: Option<String>,
    created_before: Option<String>,
    limit: Option<usize>,
    after: Option<String>,
    body: bool,
}

/// `GET /api/v1/records`
pub(super) async fn list(
    State(admin): State<Admin>,
    asked: Result<Query<Asked>, QueryRejection>,
) -> Result<Response, Response> {
    let Query(asked) = asked.map_err(|error| {
        let expected = "expected any of state, parked, scope, key, operation, reference, created_from, created_before, limit, after, body";
        bad(&format!("{}; {expected}.", error.body_text()))
    })?;
    let filter = filter(&asked).map_err(|words| bad(&words))?;
    let limit = asked.limit.unwrap_or(PAGE);
    if !(1..=PAGE_MAX).contains(&limit) {
        return Err(bad(&format!("limit is a number from 1 to {PAGE_MAX}.")));
    }
    let after = asked.after.map(Cursor::new);
    let browsing = async {
        match admin.0.engine.store().browse(&filter, after.as_ref(), limit).await {
            // Not the store's fault: it cannot read the place.
            Err(error) if after.is_some() && error.kind() == Kind::Other => Ok(None),
            browsed => browsed.map(Some),
        }
    };
    let page = within(browsing).await?;
    let page = page.ok_or_else(|| bad("after is the `next` of an earlier page, as it stood there."))?;
    Ok(Json(record::page(&page, admin.0.engine.now(), bodies(asked.body))).into_response())
}

/// What `GET /api/v1/records/{id}` may be asked.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct AskedOne {
    pub(super) body: bool,
}

/// `GET /api/v1/records/{id}`
pub(super) async fn show(
    State(admin): State<Admin>,
    Path(id): Path<String>,
    asked: Result<Query<AskedOne>, QueryRejection>,
) -> Result<Response, Response> {
    let Query(asked) =
        asked.map_err(|error| bad(&format!("{}; expected body=true or nothing.", error.body_text())))?;
    let id: RecordId = id.parse().map_err(|_| not_an_id(&id))?;
    let row = within(async {
        let rows = admin.0.engine.store().read(&[id]).await?;
        rows.into_iter().next().transpose().map(Option::flatten)
    });
    let Some(row) = row.await? else { return Err(no_record(id)) };
    Ok(Json(record::for_operator(&row, admin.0.engine.now(), bodies(asked.body))).into_response())
}

/// `GET /api/v1/counts`
pub(super) async fn counts(State(admin): State<Admin>) -> Result<Response, Response> {
    let counts = within(admin.0.engine.store().counts()).await?;
    let mut counts = record::counts(&counts);
    counts["clock_steps"] = record::clock_steps(admin.0.engine.stats().clock_steps);
    Ok(Json(counts).into_response())
}

/// Any other path.
pub(super) async fn nothing_here() -> Response {
    let words = "See /healthz, /readyz, /metrics and /api/v1/openapi.json.";
    problem(StatusCode::NOT_FOUND, "Nothing here", words)
}

pub(super) const fn bodies(are_shown: bool) -> Bodies {
    if are_shown { Bodies::Shown } else { Bodies::Counted }
}

fn filter(asked: &Asked) -> Result<Filter, String> {
    let state = asked.state.as_deref().map(|name| {
        name.parse::<StateKind>().map_err(|error| format!("There is no state {name:?}; {error}."))
    });
    Ok(Filter {
        state: state.transpose()?,
        parked: asked.parked,
        scope: asked.scope.clone(),
        key: asked.key.clone(),
        operation: asked.operation.clone(),
        reference: asked.reference.clone(),
        created_from: asked.created_from.as_deref().map(moment).transpose()?,
        created_before: asked.created_before.as_deref().map(moment).transpose()?,
    })
}

pub(super) fn moment(text: &str) -> Result<Timestamp, String> {
    let parsed = humantime::parse_rfc3339_weak(text).ok().and_then(|time| {
        let since = time.duration_since(UNIX_EPOCH).ok()?;
        i64::try_from(since.as_micros()).ok()
    });
    parsed
        .map(Timestamp::from_micros)
        .ok_or_else(|| format!("{text:?} is not a moment; expected the like of 2026-11-16T09:30:00Z."))
}

pub(super) fn not_an_id(text: &str) -> Response {
    bad(&format!("{text:?} is not a record's id: those are op_ and 26 letters and digits."))
}

pub(super) fn no_record(id: RecordId) -> Response {
    let words =
        format!("There is no record {id}: it was never made, or it is past its retention and was removed.");
    problem(StatusCode::NOT_FOUND, "No such record", &words)
}

pub(super) async fn within<T>(asking: impl Future<Output = Result<T, StoreError>>) -> Result<T, Response> {
    let down = |why: &str| {
        let words = format!("The store did not answer ({why}). Records are as they were. Ask again.");
        problem(StatusCode::SERVICE_UNAVAILABLE, "The store is not available", &words)
    };
    match tokio::time::timeout(PATIENCE, asking).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(error)) => Err(down(&error.to_string())),
        Err(_) => Err(down("in time")),
    }
}

pub(super) fn bad(words: &str) -> Response {
    problem(StatusCode::BAD_REQUEST, "The question cannot be read", words)
}

/// A problem of the admin interface; these have no page of their own.
pub(super) fn problem(status: StatusCode, title: &str, words: &str) -> Response {
    let body = json!({ "type": "about:blank", "title": title, "status": status.as_u16(), "detail": words });
    (status, [(header::CONTENT_TYPE, "application/problem+json")], body.to_string()).into_response()
}
