//! `/api/v1/jobs`: the outbox's jobs that wait for an operator.

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use oncegate_store::jobs::{JobId, Jobs as _};
use serde::Deserialize;
use serde_json::json;

use super::Admin;
use super::acts::{carried_out, not_meant, wished};
use super::api::{AskedOne, PAGE, PAGE_MAX, bad, bodies, problem, within};
use crate::job;
use crate::operate::{no_job, read_wish, retry_job, withdraw_job};

/// Which page.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Asked {
    limit: Option<usize>,
    after: Option<String>,
}

/// `GET /api/v1/jobs/parked`
pub(super) async fn parked(
    State(admin): State<Admin>,
    asked: Result<Query<Asked>, QueryRejection>,
) -> Result<Response, Response> {
    let Query(asked) =
        asked.map_err(|error| bad(&format!("{}; expected any of limit, after.", error.body_text())))?;
    let limit = asked.limit.unwrap_or(PAGE);
    if !(1..=PAGE_MAX).contains(&limit) {
        return Err(bad(&format!("limit is a number from 1 to {PAGE_MAX}.")));
    }
    let after = match asked.after {
        None => None,
        Some(text) => Some(text.parse::<JobId>().map_err(|_| not_an_id(&text))?),
    };
    let store = admin.0.engine.store();
    // A store without an outbox has no jobs that wait.
    if !store.keeps_outbox() {
        return Ok(Json(json!({ "jobs": [], "next": null })).into_response());
    }
    let jobs = within(store.parked(after, limit + 1)).await?;
    Ok(Json(job::page(&jobs, limit)).into_response())
}

/// `GET /api/v1/jobs/{id}`
pub(super) async fn show(
    State(admin): State<Admin>,
    Path(text): Path<String>,
    asked: Result<Query<AskedOne>, QueryRejection>,
) -> Result<Response, Response> {
    let Query(asked) =
        asked.map_err(|error| bad(&format!("{}; expected body=true or nothing.", error.body_text())))?;
    let id: JobId = text.parse().map_err(|_| not_an_id(&text))?;
    let found = within(admin.0.engine.store().job(id)).await?;
    let found = found.ok_or_else(|| problem(StatusCode::NOT_FOUND, "No such record", &no_job(id)))?;
    Ok(Json(job::for_operator(&found, bodies(asked.body))).into_response())
}

/// `POST /api/v1/jobs/{id}/retry`
pub(super) async fn retry(
    State(admin): State<Admin>,
    Path(text): Path<String>,
    request: Request,
) -> Result<Response, Response> {
    if let Some(refused) = not_meant(&admin, request.headers()) {
        return Err(refused);
    }
    let id: JobId = text.parse().map_err(|_| not_an_id(&text))?;
    let wish = wished(request, read_wish).await?;
    let engine = admin.0.engine.clone();
    carried_out(async move { retry_job(&engine, id, &wish).await }).await
}

/// `POST /api/v1/jobs/{id}/withdraw`
pub(super) async fn withdraw(
    State(admin): State<Admin>,
    Path(text): Path<String>,
    request: Request,
) -> Result<Response, Response> {
    if let Some(refused) = not_meant(&admin, request.headers()) {
        return Err(refused);
    }
    let id: JobId = text.parse().map_err(|_| not_an_id(&text))?;
    let wish = wished(request, read_wish).await?;
    let engine = admin.0.engine.clone();
    carried_out(async move { withdraw_job(&engine, id, &wish).await }).await
}

fn not_an_id(text: &str) -> Response {
    bad(&format!("{text:?} is not a job's id: those are job_ and 26 letters and digits."))
}
