//! `/api/v1/audit`: the audit trail of all records; and `/api/v1/comparisons`: the end of a run of
//! `oncegate compare`, which becomes an entry of it.

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use oncegate_store::EntryPlace;
use serde::Deserialize;

use super::Admin;
use super::acts::not_meant;
use super::api::{PAGE, bad, moment, problem, within};
use crate::audit::{self, AuditFilter, ENTRIES_MAX, act_named};
use crate::comparison::{COMPARISON_BYTES_MAX, read_comparison, record};

/// What the trail may be narrowed by.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct AuditQuery {
    since: Option<String>,
    until: Option<String>,
    scope: Option<String>,
    operation: Option<String>,
    act: Option<String>,
    limit: Option<usize>,
    after: Option<String>,
}

/// `GET /api/v1/audit`
pub(super) async fn list(
    State(admin): State<Admin>,
    asked: Result<Query<AuditQuery>, QueryRejection>,
) -> Result<Response, Response> {
    let Query(asked) = asked.map_err(|error| {
        let expected = "expected any of since, until, scope, operation, act, limit, after";
        bad(&format!("{}; {expected}.", error.body_text()))
    })?;
    let limit = asked.limit.unwrap_or(PAGE);
    if !(1..=ENTRIES_MAX).contains(&limit) {
        return Err(bad(&format!("limit is a number from 1 to {ENTRIES_MAX}.")));
    }
    let after = asked.after.as_deref().map(str::parse::<EntryPlace>).transpose();
    let after = after.map_err(|_| bad("after is the `next` of an earlier page, as it stood there."))?;
    let moment = |text: &Option<String>| text.as_deref().map(moment).transpose();
    let act = asked.act.as_deref().map(act_named).transpose();
    let filter = AuditFilter {
        since: moment(&asked.since).map_err(|words| bad(&words))?,
        until: moment(&asked.until).map_err(|words| bad(&words))?,
        scope: asked.scope,
        operation: asked.operation,
        act: act.map_err(|words| bad(&format!("{words}.")))?,
    };
    let page = within(audit::page(admin.0.engine.store(), &filter, after, limit)).await?;
    Ok(Json(page).into_response())
}

/// `POST /api/v1/comparisons`
pub(super) async fn record_comparison(
    State(admin): State<Admin>,
    request: Request,
) -> Result<Response, Response> {
    if let Some(refused) = not_meant(&admin, request.headers()) {
        return Err(refused);
    }
    let body = axum::body::to_bytes(request.into_body(), COMPARISON_BYTES_MAX).await.map_err(|_| {
        let words = format!(
            "It did not come whole, or is larger than {COMPARISON_BYTES_MAX} bytes. Nothing was changed."
        );
        problem(StatusCode::PAYLOAD_TOO_LARGE, "Not taken", &words)
    })?;
    let run = read_comparison(&body).map_err(|words| bad(&format!("{words}. Nothing was changed.")))?;
    let at = within(record(admin.0.engine.store(), &run, admin.0.engine.node())).await?;
    Ok(Json(serde_json::json!({ "recorded_at": crate::record::moment(at) })).into_response())
}
