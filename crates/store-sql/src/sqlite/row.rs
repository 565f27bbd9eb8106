//! Records as columns.
//!
//! Columns are bound and read in one order ([`COLUMNS`]). The numbers of states, crash policies and forwarded keys are
//! those of [`codec`]; every other enum's is stated here once, for both ways.

use std::sync::Arc;
use std::time::Duration;

use oncegate_core::codec::Malformed;
use oncegate_core::fingerprint::{Fingerprint, Members};
use oncegate_core::identity::{Fence, RecordId, Token, Version};
use oncegate_core::key::Key;
use oncegate_core::record::{
    AfterRetention, CrashPolicy, Doubt, Evidence, Execution, GoneStatus, Grant, Reason, Record,
    RecoveryPoint, RetentionFrom, State, StateKind, StoredRequest, Terms, codec,
};
use oncegate_core::response::Answer;
use oncegate_core::scope::{Address, Operation, Scope};
use oncegate_core::time::{Timestamp, micros};
use rusqlite::types::ToSqlOutput;
use rusqlite::{Row, Statement, ToSql};

use super::error::Failure;

/// The columns of `record`, in the order in which they are bound and read; the answer, from its own table, follows them.
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

/// The first so many columns are the identity: they never change.
pub(super) const IDENTITY: usize = 3;
/// Frozen when a life begins. With `created_at` they say which life it is.
pub(super) const FROZEN: [&str; 10] = [
    "operation",
    "fingerprint_version",
    "fingerprint",
    "crash",
    "retention",
    "retention_from",
    "after_retention",
    "forward_key",
    "tombstone",
    "horizon",
];
/// The first so many columns are all that a fresh reserve needs.
pub(super) const COMMON: usize = 25;
/// The row layout of this release. Triggers refuse rows with a smaller number (migration 0010).
const LAYOUT: i64 = 3;

/// Binds [`COLUMNS`], or the first of them, to the statement's first parameters.
pub(super) fn bind(record: &Record, statement: &mut Statement<'_>, part: Part) -> rusqlite::Result<()> {
    lay_out(record, statement, part)
}

/// The values of [`COLUMNS`], for whoever binds them elsewhere.
pub(super) fn values(record: &Record) -> rusqlite::Result<Vec<rusqlite::types::Value>> {
    let mut values = Vec::with_capacity(COLUMNS.len());
    lay_out(record, &mut values, Part::Whole)?;
    Ok(values)
}

/// Takes the columns, one after the other.
trait Sheet {
    fn put(&mut self, place: usize, value: impl ToSql) -> rusqlite::Result<()>;
}

impl Sheet for Statement<'_> {
    fn put(&mut self, place: usize, value: impl ToSql) -> rusqlite::Result<()> {
        self.raw_bind_parameter(place, value)
    }
}

impl Sheet for Vec<rusqlite::types::Value> {
    fn put(&mut self, _: usize, value: impl ToSql) -> rusqlite::Result<()> {
        let value = match value.to_sql()? {
            ToSqlOutput::Borrowed(value) => value.try_into()?,
            ToSqlOutput::Owned(value) => value,
            _ => return Err(rusqlite::Error::InvalidQuery),
        };
        self.push(value);
        Ok(())
    }
}

fn lay_out(record: &Record, sheet: &mut impl Sheet, part: Part) -> rusqlite::Result<()> {
    let created_at = record.created_at.as_micros();
    let (after_retention, tombstone) = match record.terms.after_retention {
        AfterRetention::Fresh => (0, None),
        AfterRetention::Gone { status, tombstone } => (i64::from(status.code()), Some(micros(tombstone))),
    };
    let life = record.grant.is_none_or(|grant| grant.token != record.life).then_some(&record.life);
    let (moment, doubt) = match &record.state {
        State::Pending { run_after } => (Some(*run_after), None),
        State::Unknown(doubt) => (Some(doubt.reconcile_after), Some(doubt)),
        _ => (None, None),
    };

    let mut columns = Binder { sheet, bound: 0, part };
    columns.bind(&record.id.as_bytes()[..])?;
    columns.bind_identity(record.address.scope.as_str())?;
    columns.bind_identity(record.address.key.as_str())?;
    columns.bind(codec::state_number(record.state.kind()))?;
    columns.bind(record.version.as_raw())?;
    columns.bind(life.map(|life| &life.as_bytes()[..]))?;
    columns.bind_frozen(record.operation.as_str())?;
    columns.bind_frozen(record.fingerprint.version())?;
    columns.bind_frozen(digests(record.fingerprint, &mut [0; DIGESTS_BYTES_MAX]))?;
    columns.bind_frozen(codec::crash_number(record.terms.crash))?;
    columns.bind_frozen(micros(record.terms.retention))?;
    columns.bind_frozen(record.terms.retention_from == RetentionFrom::Creation)?;
    columns.bind_frozen(after_retention)?;
    columns.bind_frozen(codec::forward_key_number(record.terms.forward_key))?;
    columns.bind(created_at)?;
    columns.bind(record.execution == Execution::Deferred)?;
    columns.bind(record.fence.as_raw().wrapping_sub(created_at))?;
    columns.bind(record.grant.as_ref().map(|grant| &grant.token.as_bytes()[..]))?;
    columns.bind(record.grant.map(|grant| grant.lease_until.as_micros()))?;
    columns.bind(record.grant.map(|grant| grant.attempt_deadline.as_micros()))?;
    columns.bind(record.attempts)?;
    columns.bind(record.unaccounted)?;
    columns.bind(record.last_run_at.map(|at| at.as_micros().wrapping_sub(created_at)))?;
    columns.bind(record.due_at().map(Timestamp::as_micros))?;
    columns.bind(LAYOUT)?;
    if part == Part::Common {
        return Ok(());
    }
    columns.bind_frozen(tombstone)?;
    columns.bind_frozen(record.terms.horizon.map(micros))?;
    columns.bind(record.last_error.as_ref().map(Reason::to_string))?;
    columns.bind(record.settled_at.map(Timestamp::as_micros))?;
    columns.bind(record.expires_at.map(Timestamp::as_micros))?;
    columns.bind(moment.map(Timestamp::as_micros))?;
    columns.bind(doubt.map(|doubt| doubt.since.as_micros()))?;
    columns.bind(doubt.map(|doubt| doubt.tries))?;
    columns.bind(doubt.map(|doubt| doubt.parked))?;
    columns.bind(record.provider_reference.as_deref())?;
    columns.bind(record.evidence.as_ref().map(Evidence::encode))?;
    columns.bind(record.recovery.as_ref().map(RecoveryPoint::encode))?;
    columns.bind(record.request.as_ref().map(StoredRequest::encode))
}

/// Whether the columns past [`COMMON`] are all NULL.
pub(super) fn is_common(record: &Record) -> bool {
    record.state == State::InProgress
        && record.terms.after_retention == AfterRetention::Fresh
        && record.terms.horizon.is_none()
        && record.last_error.is_none()
        && record.settled_at.is_none()
        && record.expires_at.is_none()
        && record.provider_reference.is_none()
        && record.evidence.is_none()
        && record.recovery.is_none()
        && record.request.is_none()
}

/// How much of a row is bound.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    /// The columns up to [`COMMON`].
    Common,
    /// What may change within a life: neither the identity nor what was frozen when the life began.
    WithinLife,
    /// All but scope and key, which the id stands for.
    Changing,
    /// All of them.
    Whole,
}

/// Binds one parameter after the other.
struct Binder<'a, T> {
    sheet: &'a mut T,
    bound: usize,
    part: Part,
}

impl<T: Sheet> Binder<'_, T> {
    fn bind(&mut self, value: impl ToSql) -> rusqlite::Result<()> {
        self.bound += 1;
        self.sheet.put(self.bound, value)
    }

    fn bind_identity(&mut self, value: impl ToSql) -> rusqlite::Result<()> {
        match self.part {
            Part::Common | Part::Whole => self.bind(value),
            Part::WithinLife | Part::Changing => self.skip(),
        }
    }

    fn bind_frozen(&mut self, value: impl ToSql) -> rusqlite::Result<()> {
        match self.part {
            Part::Common | Part::Whole | Part::Changing => self.bind(value),
            Part::WithinLife => self.skip(),
        }
    }

    /// The statement does not mention this parameter.
    #[expect(clippy::unnecessary_wraps, reason = "in place of a binding, which can fail")]
    const fn skip(&mut self) -> rusqlite::Result<()> {
        self.bound += 1;
        Ok(())
    }
}

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

/// The column `fingerprint`: the digest, and then those of the members.
fn digests(fingerprint: Fingerprint, room: &mut [u8; DIGESTS_BYTES_MAX]) -> &[u8] {
    let (digest, members) = (fingerprint.digest(), fingerprint.members().as_bytes());
    let length = digest.len() + members.len();
    room[..digest.len()].copy_from_slice(&digest);
    room[digest.len()..length].copy_from_slice(members);
    &room[..length]
}

const DIGESTS_BYTES_MAX: usize = 32 + Members::BYTES_MAX;

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

/// The state with the number in its column.
pub(super) fn state_kind(number: i64) -> Result<StateKind, Failure> {
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

fn unreadable(what: &'static str) -> Failure {
    Box::new(Malformed { what })
}
