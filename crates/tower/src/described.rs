//! A record as JSON: for its owner, and the parts of it that operators are shown too.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use oncegate_core::record::{Record, State, StateKind};
use oncegate_core::response::Answer;
use oncegate_core::time::{Now, Timestamp};
use serde_json::{Map, Value, json};

/// For whoever the key belongs to: state, answer, expiry.
#[must_use]
pub fn for_owner(record: &Record, now: Now) -> Value {
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

/// Whether an answer's body is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bodies {
    /// As text, or in hexadecimal digits.
    Shown,
    /// Only its size.
    Counted,
}

/// The state as it is now: a lease may have lapsed, and retention may be over, before anybody wrote it down.
#[must_use]
pub fn state(record: &Record, now: Now) -> &'static str {
    match record.state.kind() {
        StateKind::InProgress if record.is_lapsed(now) => "lapsed",
        StateKind::Completed | StateKind::FailedRetryable if record.is_past_retention(now) => "expired",
        kind => kind.name(),
    }
}

/// The answer, where the operation is over; else `null`.
#[must_use]
pub fn answer(record: &Record, bodies: Bodies) -> Value {
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
