//! A job of the outbox as JSON, for operators.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use oncegate_store::jobs::{Job, JobId, Stage};
use serde_json::{Value, json};

use crate::record::{Bodies, moment};

/// One job. What it is to tell its provider is customers' data: shown only if asked for.
#[must_use]
pub fn for_operator(job: &Job, bodies: Bodies) -> Value {
    let (stage, receipt) = match &job.stage {
        Stage::Waiting => ("waiting", None),
        Stage::Delivered(receipt) => ("delivered", Some(receipt)),
        Stage::Parked => ("parked", None),
        Stage::Done(receipt) => ("done", Some(receipt)),
        Stage::Withdrawn => ("withdrawn", None),
        Stage::Unreadable(_) => ("unreadable", None),
    };
    let error = job.last_error.as_ref();
    let mut shown = json!({
        "id": job.id.to_string(),
        "effect": job.effect,
        "stage": stage,
        "record": job.record.to_string(),
        "answers": job.answers.is_some(),
        "line": job.line,
        "downstream_key": job.downstream_key(),
        "reference": receipt.and_then(|receipt| receipt.reference.as_deref()),
        "created_at": moment(job.created_at),
        "due_at": moment(job.due_at),
        "tries": job.tries,
        "last_error": error.map(|reason| json!({ "code": reason.code(), "detail": reason.detail() })),
        "payload_bytes": job.payload.len(),
    });
    if bodies == Bodies::Shown {
        match std::str::from_utf8(&job.payload) {
            Ok(text) => shown["payload"] = text.into(),
            Err(_) => shown["payload_base64"] = STANDARD.encode(&job.payload).into(),
        }
    }
    shown
}

/// Jobs that wait for an operator, oldest first: `limit` of them. One more was asked for, and says that there is a next page.
#[must_use]
pub fn page(jobs: &[Job], limit: usize) -> Value {
    let is_more = jobs.len() > limit;
    let jobs = &jobs[..jobs.len().min(limit)];
    let next: Option<JobId> = jobs.last().filter(|_| is_more).map(|job| job.id);
    let shown: Vec<_> = jobs.iter().map(|job| for_operator(job, Bodies::Counted)).collect();
    json!({ "jobs": shown, "next": next.map(|id| id.to_string()) })
}
