//! A record as JSON, for operators. For its owner: `oncegate_tower::described`.

use oncegate_core::record::{Record, State};
use oncegate_core::time::Now;
use oncegate_engine::ClockSteps;
use oncegate_store::{Counts, Cursor, Page};
use oncegate_tower::described::{answer, state};
use serde_json::{Value, json};

pub use oncegate_tower::described::{Bodies, moment};

/// For operators. Bodies are customers' data: shown only if asked for.
#[must_use]
pub fn for_operator(record: &Record, now: Now, bodies: Bodies) -> Value {
    let doubt = match &record.state {
        State::Unknown(doubt) => json!({
            "since": moment(doubt.since),
            "reconcile_after": moment(doubt.reconcile_after),
            "tries": doubt.tries,
            "parked": doubt.parked,
        }),
        _ => Value::Null,
    };
    let lease = match (&record.state, &record.grant) {
        (State::InProgress, Some(grant)) => json!({
            "until": moment(grant.lease_until),
            "deadline": moment(grant.attempt_deadline),
        }),
        _ => Value::Null,
    };
    json!({
        "id": record.id.to_string(),
        "scope": record.address.scope.to_string(),
        "tenant": record.address.scope.tenant_str(),
        "key": record.address.key.as_str(),
        // What the upstream has in its place, where the route derives it.
        "derived_key": record.id.derived_key(record.life),
        "operation": record.operation.as_str(),
        "state": state(record, now),
        // A string: some programs read numbers as doubles, and it is what an operator's act is checked against.
        "version": record.version.as_raw().to_string(),
        "fence": record.fence.as_raw(),
        "attempts": record.attempts,
        "created_at": moment(record.created_at),
        "last_run_at": record.last_run_at.map(moment),
        "settled_at": record.settled_at.map(moment),
        "expires_at": record.expires_at.map(moment),
        "lease": lease,
        "doubt": doubt,
        "last_error": record.last_error.as_ref().map(|reason| {
            json!({ "code": reason.code(), "detail": reason.detail() })
        }),
        "provider_reference": record.provider_reference.as_deref(),
        "answer": answer(record, bodies),
    })
}

/// A page of records, for operators; `next` is where the next one begins.
#[must_use]
pub fn page(page: &Page, now: Now, bodies: Bodies) -> Value {
    let records: Vec<_> = page.records.iter().map(|row| for_operator(row, now, bodies)).collect();
    let next = page.next.as_ref().map(Cursor::as_str);
    json!({ "records": records, "unreadable": page.unreadable, "next": next })
}

/// The steps of the store's clock that a node has noticed since its start.
#[must_use]
pub fn clock_steps(steps: ClockSteps) -> Value {
    json!({ "forward": steps.forward, "back": steps.back })
}

/// How many records are in each state.
#[must_use]
pub fn counts(counts: &Counts) -> Value {
    let Counts { pending, in_progress, completed, failed_retryable, unknown, parked, expired } = counts;
    json!({
        "pending": pending,
        "in_progress": in_progress,
        "completed": completed,
        "failed_retryable": failed_retryable,
        "unknown": unknown,
        "parked": parked,
        "expired": expired,
    })
}
