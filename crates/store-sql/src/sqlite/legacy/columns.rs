//! Rows of the table `record` as releases up to schema 11 laid them out: a column per field.

use std::sync::Arc;
use std::time::Duration;

use oncegate_core::fingerprint::{Fingerprint, Members};
use oncegate_core::identity::{Fence, RecordId, Token, Version};
use oncegate_core::key::Key;
use oncegate_core::record::{
    AfterRetention, CrashPolicy, Doubt, Evidence, Execution, GoneStatus, Grant, Reason, Record,
    RecoveryPoint, RetentionFrom, State, StateKind, StoredRequest, Terms, codec,
};
use oncegate_core::response::Answer;
use oncegate_core::scope::{Address, Operation, Scope};
use oncegate_core::time::Timestamp;
use rusqlite::Row;

use super::super::error::{Failure, unreadable};

/// The columns, in the order in which they are read; the answer, from its own table, follows them.
pub(super) const COLUMNS: [&str; 38] = [
    "id",
    "scope",
    "key",
    "state",
    "version",
    "life",
    "operation",
    "fingerprint_version",
    "fingerprint",
    "crash",
    "retention",
    "retention_from",
    "after_retention",
    "forward_key",
    "created_at",
    "execution",
    "fence",
    "token",
    "lease_until",
    "attempt_deadline",
    "attempts",
    "unaccounted",
    "last_run_at",
    "due_at",
    "layout",
    // Mostly NULL while a lease is held; see `COMMON`.
    "tombstone",
    "horizon",
    "last_error",
    "settled_at",
    "expires_at",
    "moment",
    "doubt_since",
    "tries",
    "parked",
    "provider_reference",
    "evidence",
    "recovery",
    "request",
];

/// Reads a record from a row of [`COLUMNS`] and the answer.
pub(super) fn decode(row: &Row<'_>) -> Result<Record, Failure> {
    let mut columns = Reader { row, read: 0 };
    let id = RecordId::from_bytes(columns.next()?);
    let scope = Scope::from_stored(&columns.next::<String>()?)?;
    let key = Key::from_text(&columns.next::<String>()?)?;
    let state: i64 = columns.next()?;
    let version = Version::from_raw(columns.next()?);
    let life: Option<[u8; 16]> = columns.next()?;
    let operation = Operation::new(&columns.next::<String>()?)?;
    let fingerprint = fingerprint_of(columns.next()?, &columns.next::<Vec<u8>>()?)?;
    let crash = columns.next()?;
    let retention = span(columns.next()?);
    let retention_from = if columns.next()? { RetentionFrom::Creation } else { RetentionFrom::Settlement };
    let after_retention = columns.next()?;
    let forward_key = codec::forward_key(columns.next()?)?;
    let created_at: i64 = columns.next()?;
    let execution = if columns.next()? { Execution::Deferred } else { Execution::Inline };
    let fence = Fence::from_raw(columns.next::<i64>()?.wrapping_add(created_at));
    let token: Option<[u8; 16]> = columns.next()?;
    let lease_until: Option<i64> = columns.next()?;
    let attempt_deadline: Option<i64> = columns.next()?;
    let attempts = columns.next()?;
    let unaccounted = columns.next()?;
    let last_run_at: Option<i64> = columns.next()?;
    let _due_at: Option<i64> = columns.next()?;
    let _layout: i64 = columns.next()?;
    let tombstone: Option<i64> = columns.next()?;
    let horizon: Option<i64> = columns.next()?;
    let last_error: Option<String> = columns.next()?;
    let settled_at = columns.next::<Option<i64>>()?.map(Timestamp::from_micros);
    let expires_at = columns.next::<Option<i64>>()?.map(Timestamp::from_micros);
    let moment = columns.next::<Option<i64>>()?.map(Timestamp::from_micros);
    let doubt_since = columns.next::<Option<i64>>()?.map(Timestamp::from_micros);
    let tries: Option<u32> = columns.next()?;
    let parked: Option<bool> = columns.next()?;
    let provider_reference = columns.next::<Option<String>>()?.map(String::into_boxed_str);
    let evidence: Option<Vec<u8>> = columns.next()?;
    let recovery: Option<Vec<u8>> = columns.next()?;
    let request: Option<Vec<u8>> = columns.next()?;
    let answer: Option<Vec<u8>> = columns.next()?;

    let grant = match (token, lease_until, attempt_deadline) {
        (Some(token), Some(lease_until), Some(attempt_deadline)) => Some(Grant {
            token: Token::from_bytes(token),
            lease_until: Timestamp::from_micros(lease_until),
            attempt_deadline: Timestamp::from_micros(attempt_deadline),
        }),
        (None, None, None) => None,
        _ => return Err(unreadable("grant")),
    };
    let state = match state_kind(state)? {
        StateKind::Pending => State::Pending { run_after: moment.ok_or_else(|| unreadable("pending"))? },
        StateKind::InProgress => State::InProgress,
        StateKind::Completed => {
            State::Completed(Arc::new(Answer::decode(&answer.ok_or_else(|| unreadable("stored answer"))?)?))
        }
        StateKind::FailedRetryable => State::FailedRetryable,
        StateKind::Unknown => match (doubt_since, moment, tries, parked) {
            (Some(since), Some(reconcile_after), Some(tries), Some(parked)) => {
                State::Unknown(Doubt { since, reconcile_after, tries, parked })
            }
            _ => return Err(unreadable("doubt")),
        },
        StateKind::Expired => State::Expired,
    };
    let life = match (life, token) {
        (Some(life), _) | (None, Some(life)) => Token::from_bytes(life),
        (None, None) => return Err(unreadable("life")),
    };
    Ok(Record {
        id,
        address: Address { scope, key },
        life,
        operation,
        fingerprint,
        terms: Terms {
            crash: crash_policy(crash)?,
            retention,
            retention_from,
            after_retention: after_retention_of(after_retention, tombstone)?,
            horizon: horizon.map(span),
            forward_key,
        },
        execution,
        state,
        version,
        fence,
        grant,
        attempts,
        unaccounted,
        last_error: last_error.as_deref().map(Reason::from_stored),
        evidence: evidence.as_deref().map(Evidence::decode).transpose()?,
        provider_reference,
        recovery: recovery.as_deref().map(RecoveryPoint::decode).transpose()?,
        request: request.as_deref().map(StoredRequest::decode).transpose()?,
        created_at: Timestamp::from_micros(created_at),
        last_run_at: last_run_at.map(|after| Timestamp::from_micros(created_at.wrapping_add(after))),
        settled_at,
        expires_at,
    })
}

fn fingerprint_of(version: u8, digests: &[u8]) -> Result<Fingerprint, Failure> {
    let (digest, members) = digests.split_first_chunk().ok_or_else(|| unreadable("fingerprint"))?;
    Ok(Fingerprint::from_parts(version, *digest).with_members(Members::from_bytes(members)?))
}

/// Reads one column after the other.
struct Reader<'a> {
    row: &'a Row<'a>,
    read: usize,
}

impl Reader<'_> {
    fn next<T: rusqlite::types::FromSql>(&mut self) -> rusqlite::Result<T> {
        self.read += 1;
        self.row.get(self.read - 1)
    }
}

fn state_kind(number: i64) -> Result<StateKind, Failure> {
    let state = u8::try_from(number).ok().and_then(codec::state_kind);
    state.ok_or_else(|| unreadable("state"))
}

fn crash_policy(number: i64) -> Result<CrashPolicy, Failure> {
    let crash = u8::try_from(number).ok().and_then(codec::crash_policy);
    crash.ok_or_else(|| unreadable("crash policy"))
}

fn after_retention_of(number: i64, tombstone: Option<i64>) -> Result<AfterRetention, Failure> {
    let gone = |status| {
        let tombstone = tombstone.map(span).ok_or_else(|| unreadable("tombstone"))?;
        Ok(AfterRetention::Gone { status, tombstone })
    };
    match number {
        0 => Ok(AfterRetention::Fresh),
        410 => gone(GoneStatus::Gone),
        404 => gone(GoneStatus::NotFound),
        _ => Err(unreadable("after-retention mode")),
    }
}

fn span(micros: i64) -> Duration {
    Duration::from_micros(u64::try_from(micros).unwrap_or(0))
}
