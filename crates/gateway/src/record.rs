//! A record as JSON: for its owner, and for operators.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use oncegate_core::record::{Record, State, StateKind};
use oncegate_core::response::Answer;
use oncegate_core::time::{Now, Timestamp};
use oncegate_store::{Counts, Cursor, Page};
use serde_json::{Map, Value, json};

/// For whoever the key belongs to: state, answer, expiry.
pub(crate) fn for_owner(record: &Record, now: Now) -> Value {
    let mut shown = Map::new();
    shown.insert("id".to_owned(), record.id.to_string().into());
    shown.insert("state".to_owned(), state(record, now).into());
    shown.insert("operation".to_owned(), record.operation.as_str().into());
    shown.insert("key".to_owned(), record.address.key.as_str().into());
    shown.insert("created_at".to_owned(), moment(record.created_at));
    shown.insert("settled_at".to_owned(), record.settled_at.map_or(Value::Null, moment));
    shown.insert("expires_at".to_owned(), record.expires_at.map_or(Value::Null, moment));
    shown.insert("attempts".to_owned(), record.attempts.into());
    shown.insert("answer".to_owned(), answer(record, Bodies::Shown));
    Value::Object(shown)
}

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

/// Whether an answer's body is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bodies {
    /// As text, or in hexadecimal digits.
    Shown,
    /// Only its size.
    Counted,
}

/// The state as it is now: a lease may have lapsed, and retention may be over, before anybody wrote it down.
fn state(record: &Record, now: Now) -> &'static str {
    match record.state.kind() {
        StateKind::InProgress if record.is_lapsed(now) => "lapsed",
        StateKind::Completed | StateKind::FailedRetryable if record.is_past_retention(now) => "expired",
        kind => kind.name(),
    }
}

fn answer(record: &Record, bodies: Bodies) -> Value {
    let State::Completed(answer) = &record.state else { return Value::Null };
    match &**answer {
        Answer::NotKept { status, location } => json!({
            "status": status,
            "kept": false,
            "location": location.as_deref().map(String::from_utf8_lossy),
        }),
        Answer::Kept(response) => {
            let headers = response.headers.iter();
            let headers: Vec<Value> =
                headers.map(|(name, value)| json!([name, String::from_utf8_lossy(value)])).collect();
            let mut shown = json!({
                "status": response.status,
                "kept": true,
                "headers": headers,
                "body_bytes": response.body.len(),
            });
            if bodies == Bodies::Shown {
                // As text where it is text; replaying the request gives the bytes in any case.
                match std::str::from_utf8(&response.body) {
                    Ok(text) => shown["body"] = text.into(),
                    Err(_) => shown["body_hex"] = hex(&response.body).into(),
                }
            }
            shown
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// RFC 3339, in UTC; `null` if there is no such year.
#[must_use]
pub fn moment(at: Timestamp) -> Value {
    match to_system(at) {
        Some(time) => humantime::format_rfc3339_micros(time).to_string().into(),
        None => Value::Null,
    }
}

fn to_system(at: Timestamp) -> Option<SystemTime> {
    let since = Duration::from_micros(u64::try_from(at.as_micros()).ok()?);
    // humantime can write the years up to 9999.
    UNIX_EPOCH.checked_add(since).filter(|_| since < Duration::from_hours(70_389_528))
}
