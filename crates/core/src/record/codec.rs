//! A record as bytes, for stores that do not give every field a column of its own.
//!
//! The *row* is all that the rules read and nobody searches by; scope, key, operation and the answer stay outside of it, where
//! a store may keep them as columns. A whole record is those four and its row, in one frame.

use std::sync::Arc;
use std::time::Duration;

use super::{
    AfterRetention, CrashPolicy, Doubt, Evidence, Execution, GoneStatus, Grant, Reason, Record,
    RecoveryPoint, RetentionFrom, State, StateKind, StoredRequest, Terms,
};
use crate::codec::{Decoder, Encoder, Malformed};
use crate::fingerprint::{Fingerprint, Members};
use crate::identity::{Fence, RecordId, Token, Version};
use crate::key::Key;
use crate::policy::ForwardKey;
use crate::response::Answer;
use crate::scope::{Address, Operation, Scope};
use crate::time::{Timestamp, micros};

/// Rows with digests of the request's members.
const ROW_SCHEMA_WITH_MEMBERS: u8 = 3;
const ROW_SCHEMA: u8 = 2;
/// Rows that do not say which key the upstream was sent; read, and no longer written.
const ROW_SCHEMA_WITHOUT_FORWARD_KEY: u8 = 1;
const RECORD_SCHEMA: u8 = 2;
/// Whole records of earlier releases; read, and no longer written.
const RECORD_SCHEMA_WITHOUT_BODY: u8 = 1;
/// The first byte of a body. Not the first one of any row.
const BODY_SCHEMA: u8 = 16;
/// Where the first name of a body begins.
pub const BODY_NAMES: usize = 9;
const MALFORMED: Malformed = Malformed { what: "record" };
/// What most rows take.
const ROW_BYTES: usize = 192;

impl Record {
    /// All of it in one frame, for stores without columns.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let body = self.encode_body();
        let response = self.encode_answer();
        let mut out = Encoder::with_capacity(body.len() + response.as_ref().map_or(0, Vec::len) + 16);
        out.u8(RECORD_SCHEMA);
        out.bytes(&body);
        out.optional(response.as_deref());
        out.finish()
    }

    /// Reads back what [`Record::encode`] wrote, in this release or an earlier one.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut input = Decoder::new(bytes, "record");
        match input.u8()? {
            RECORD_SCHEMA => {
                let (body, response) = (input.bytes()?, input.optional()?);
                input.finish()?;
                Self::decode_body(body, response)
            }
            RECORD_SCHEMA_WITHOUT_BODY => {
                let (scope, key, operation) = (input.text()?, input.text()?, input.text()?);
                let (row, answer) = (input.bytes()?, input.optional()?);
                input.finish()?;
                Self::decode_row(Texts { scope, key, operation }, row, answer)
            }
            _ => Err(input.malformed()),
        }
    }

    /// All but the response. In front is what people search by, laid out so that SQL can read it:
    /// when the life began, then scope, key and operation, each behind its length. These numbers
    /// are big-endian.
    #[must_use]
    pub fn encode_body(&self) -> Vec<u8> {
        let names = [self.address.scope.as_str(), self.address.key.as_str(), self.operation.as_str()];
        let row = self.encode_row();
        let names_bytes: usize = names.iter().map(|name| 4 + name.len()).sum();
        let mut body = Vec::with_capacity(BODY_NAMES + names_bytes + row.len());
        body.push(BODY_SCHEMA);
        body.extend(self.created_at.as_micros().to_be_bytes());
        for name in names {
            body.extend(body_name(name));
        }
        body.extend(row);
        body
    }

    /// Reads back what [`Record::encode_body`] and [`Record::encode_answer`] wrote.
    pub fn decode_body(body: &[u8], response: Option<&[u8]>) -> Result<Self, Malformed> {
        let (texts, row) = split_body(body).ok_or(MALFORMED)?;
        let record = Self::decode_row(texts, row, response)?;
        // What SQL reads in front must be what the row says.
        let is_same = body[1..BODY_NAMES] == record.created_at.as_micros().to_be_bytes();
        if is_same { Ok(record) } else { Err(MALFORMED) }
    }

    /// Reads the operation alone from what [`Record::encode_body`] wrote.
    pub fn operation_of_body(body: &[u8]) -> Result<&str, Malformed> {
        let (texts, _) = split_body(body).ok_or(MALFORMED)?;
        Ok(texts.operation)
    }

    /// The answer's bytes, if it has one.
    #[must_use]
    pub fn encode_answer(&self) -> Option<Vec<u8>> {
        match &self.state {
            State::Completed(answer) => Some(answer.encode()),
            _ => None,
        }
    }

    /// All but scope, key, operation and answer.
    #[must_use]
    pub fn encode_row(&self) -> Vec<u8> {
        let mut out = Encoder::with_capacity(ROW_BYTES);
        let members = self.fingerprint.members();
        out.u8(if members.is_empty() { ROW_SCHEMA } else { ROW_SCHEMA_WITH_MEMBERS });
        out.u8(state_number(self.state.kind()));
        out.i64(self.version.as_raw());
        out.i64(self.fence.as_raw());
        token(&mut out, self.life);
        out.u8(self.fingerprint.version());
        self.fingerprint.digest().iter().for_each(|byte| out.u8(*byte));
        if !members.is_empty() {
            out.bytes(members.as_bytes());
        }
        terms(&mut out, &self.terms);
        out.u8(u8::from(self.execution == Execution::Deferred));
        out.u32(self.attempts);
        out.u8(u8::from(self.unaccounted));
        out.i64(self.created_at.as_micros());
        moment(&mut out, self.last_run_at);
        moment(&mut out, self.settled_at);
        moment(&mut out, self.expires_at);
        if let Some(grant) = &self.grant {
            out.u8(1);
            token(&mut out, grant.token);
            out.i64(grant.lease_until.as_micros());
            out.i64(grant.attempt_deadline.as_micros());
        } else {
            out.u8(0);
        }
        match &self.state {
            State::Pending { run_after } => out.i64(run_after.as_micros()),
            State::Unknown(doubt) => {
                out.i64(doubt.since.as_micros());
                out.i64(doubt.reconcile_after.as_micros());
                out.u32(doubt.tries);
                out.u8(u8::from(doubt.parked));
            }
            State::InProgress | State::Completed(_) | State::FailedRetryable | State::Expired => {}
        }
        out.optional(self.last_error.as_ref().map(Reason::to_string).as_deref().map(str::as_bytes));
        out.optional(self.provider_reference.as_deref().map(str::as_bytes));
        out.optional(self.evidence.as_ref().map(Evidence::encode).as_deref());
        out.optional(self.recovery.as_ref().map(RecoveryPoint::encode).as_deref());
        out.optional(self.request.as_ref().map(StoredRequest::encode).as_deref());
        out.finish()
    }

    /// Reads back what [`Record::encode_row`] and [`Record::encode_answer`] wrote.
    pub fn decode_row(texts: Texts<'_>, row: &[u8], answer: Option<&[u8]>) -> Result<Self, Malformed> {
        let mut input = Decoder::new(row, "record");
        let malformed = input.malformed();
        let schema = input.u8()?;
        if ![ROW_SCHEMA_WITH_MEMBERS, ROW_SCHEMA, ROW_SCHEMA_WITHOUT_FORWARD_KEY].contains(&schema) {
            return Err(malformed);
        }
        let address = Address {
            scope: Scope::from_stored(texts.scope).map_err(|_| malformed)?,
            key: Key::from_text(texts.key).map_err(|_| malformed)?,
        };
        let operation = Operation::new(texts.operation).map_err(|_| malformed)?;
        let kind = state_kind(input.u8()?).ok_or(malformed)?;
        let version = Version::from_raw(input.i64()?);
        let fence = Fence::from_raw(input.i64()?);
        let life = Token::from_bytes(array(&mut input)?);
        let fingerprint = Fingerprint::from_parts(input.u8()?, array(&mut input)?);
        let fingerprint = match schema {
            ROW_SCHEMA_WITH_MEMBERS => fingerprint.with_members(Members::from_bytes(input.bytes()?)?),
            _ => fingerprint,
        };
        let terms = read_terms(&mut input, schema)?;
        let execution = if flag(&mut input)? { Execution::Deferred } else { Execution::Inline };
        let attempts = input.u32()?;
        let unaccounted = flag(&mut input)?;
        let created_at = Timestamp::from_micros(input.i64()?);
        let last_run_at = read_moment(&mut input)?;
        let settled_at = read_moment(&mut input)?;
        let expires_at = read_moment(&mut input)?;
        let grant = if flag(&mut input)? {
            Some(Grant {
                token: Token::from_bytes(array(&mut input)?),
                lease_until: Timestamp::from_micros(input.i64()?),
                attempt_deadline: Timestamp::from_micros(input.i64()?),
            })
        } else {
            None
        };
        let state = match kind {
            StateKind::Pending => State::Pending { run_after: Timestamp::from_micros(input.i64()?) },
            StateKind::InProgress => State::InProgress,
            StateKind::Completed => State::Completed(Arc::new(Answer::decode(answer.ok_or(malformed)?)?)),
            StateKind::FailedRetryable => State::FailedRetryable,
            StateKind::Unknown => State::Unknown(Doubt {
                since: Timestamp::from_micros(input.i64()?),
                reconcile_after: Timestamp::from_micros(input.i64()?),
                tries: input.u32()?,
                parked: flag(&mut input)?,
            }),
            StateKind::Expired => State::Expired,
        };
        let last_error = text(input.optional()?, malformed)?.map(Reason::from_stored);
        let provider_reference = text(input.optional()?, malformed)?.map(Box::from);
        let evidence = input.optional()?.map(Evidence::decode).transpose()?;
        let recovery = input.optional()?.map(RecoveryPoint::decode).transpose()?;
        let request = input.optional()?.map(StoredRequest::decode).transpose()?;
        input.finish()?;
        Ok(Self {
            id: RecordId::of(&address),
            address,
            life,
            operation,
            fingerprint,
            terms,
            execution,
            state,
            version,
            fence,
            grant,
            attempts,
            unaccounted,
            last_error,
            evidence,
            provider_reference,
            recovery,
            request,
            created_at,
            last_run_at,
            settled_at,
            expires_at,
        })
    }
}

/// A name as it stands in a body: its length, then its bytes. (A name whose length does not fit is
/// far past every limit on names, and cannot be read back.)
pub fn body_name(name: &str) -> impl Iterator<Item = u8> + '_ {
    let length = u32::try_from(name.len()).unwrap_or(u32::MAX);
    length.to_be_bytes().into_iter().chain(name.bytes())
}

fn split_body(body: &[u8]) -> Option<(Texts<'_>, &[u8])> {
    let names = body.get(BODY_NAMES..).filter(|_| body[0] == BODY_SCHEMA)?;
    let (scope, rest) = take_name(names)?;
    let (key, rest) = take_name(rest)?;
    let (operation, row) = take_name(rest)?;
    Some((Texts { scope, key, operation }, row))
}

fn take_name(bytes: &[u8]) -> Option<(&str, &[u8])> {
    let (length, rest) = bytes.split_first_chunk()?;
    let (name, rest) = rest.split_at_checked(usize::try_from(u32::from_be_bytes(*length)).ok()?)?;
    Some((std::str::from_utf8(name).ok()?, rest))
}

/// The names of a record, which stand in front of its row.
#[derive(Clone, Copy, Debug)]
pub struct Texts<'a> {
    /// The scope, as stored.
    pub scope: &'a str,
    /// The key.
    pub key: &'a str,
    /// The operation.
    pub operation: &'a str,
}

/// The number of a state, in rows and indexes.
#[must_use]
pub const fn state_number(state: StateKind) -> u8 {
    match state {
        StateKind::Pending => 0,
        StateKind::InProgress => 1,
        StateKind::Completed => 2,
        StateKind::FailedRetryable => 3,
        StateKind::Unknown => 4,
        StateKind::Expired => 5,
    }
}

/// The state with this number.
#[must_use]
pub fn state_kind(number: u8) -> Option<StateKind> {
    StateKind::ALL.into_iter().find(|state| state_number(*state) == number)
}

const CRASH: [CrashPolicy; 3] = [CrashPolicy::Reconcile, CrashPolicy::Resume, CrashPolicy::Restart];

/// The number of a crash policy, in rows.
#[must_use]
pub const fn crash_number(crash: CrashPolicy) -> u8 {
    match crash {
        CrashPolicy::Reconcile => 0,
        CrashPolicy::Resume => 1,
        CrashPolicy::Restart => 2,
    }
}

/// The crash policy with this number.
#[must_use]
pub fn crash_policy(number: u8) -> Option<CrashPolicy> {
    CRASH.into_iter().find(|crash| crash_number(*crash) == number)
}

const FORWARD_KEY: [Option<ForwardKey>; 4] =
    [None, Some(ForwardKey::AsIs), Some(ForwardKey::Derived), Some(ForwardKey::None)];

/// The number of the way in which the key is forwarded, in rows; 0 is a row from before that was kept.
#[must_use]
pub const fn forward_key_number(forward: Option<ForwardKey>) -> u8 {
    match forward {
        None => 0,
        Some(ForwardKey::AsIs) => 1,
        Some(ForwardKey::Derived) => 2,
        Some(ForwardKey::None) => 3,
    }
}

/// The way of forwarding with this number.
pub fn forward_key(number: u8) -> Result<Option<ForwardKey>, Malformed> {
    let known = FORWARD_KEY.into_iter().find(|forward| forward_key_number(*forward) == number);
    known.ok_or(Malformed { what: "forwarded key" })
}

fn terms(out: &mut Encoder, terms: &Terms) {
    out.u8(crash_number(terms.crash));
    out.i64(micros(terms.retention));
    out.u8(u8::from(terms.retention_from == RetentionFrom::Creation));
    match terms.after_retention {
        AfterRetention::Fresh => out.u16(0),
        AfterRetention::Gone { status, tombstone } => {
            out.u16(status.code());
            out.i64(micros(tombstone));
        }
    }
    if let Some(horizon) = terms.horizon {
        out.u8(1);
        out.i64(micros(horizon));
    } else {
        out.u8(0);
    }
    out.u8(forward_key_number(terms.forward_key));
}

fn read_terms(input: &mut Decoder<'_>, schema: u8) -> Result<Terms, Malformed> {
    let crash = crash_policy(input.u8()?).ok_or(input.malformed())?;
    let retention = span(input)?;
    let retention_from = if flag(input)? { RetentionFrom::Creation } else { RetentionFrom::Settlement };
    let after_retention = match input.u16()? {
        0 => AfterRetention::Fresh,
        410 => AfterRetention::Gone { status: GoneStatus::Gone, tombstone: span(input)? },
        404 => AfterRetention::Gone { status: GoneStatus::NotFound, tombstone: span(input)? },
        _ => return Err(input.malformed()),
    };
    let horizon = if flag(input)? { Some(span(input)?) } else { None };
    let forward_key = if schema == ROW_SCHEMA_WITHOUT_FORWARD_KEY { None } else { forward_key(input.u8()?)? };
    Ok(Terms { crash, retention, retention_from, after_retention, horizon, forward_key })
}

fn token(out: &mut Encoder, token: Token) {
    token.as_bytes().iter().for_each(|byte| out.u8(*byte));
}

fn array<const N: usize>(input: &mut Decoder<'_>) -> Result<[u8; N], Malformed> {
    let mut bytes = [0; N];
    for byte in &mut bytes {
        *byte = input.u8()?;
    }
    Ok(bytes)
}

fn moment(out: &mut Encoder, at: Option<Timestamp>) {
    match at {
        None => out.u8(0),
        Some(at) => {
            out.u8(1);
            out.i64(at.as_micros());
        }
    }
}

fn read_moment(input: &mut Decoder<'_>) -> Result<Option<Timestamp>, Malformed> {
    Ok(if flag(input)? { Some(Timestamp::from_micros(input.i64()?)) } else { None })
}

fn flag(input: &mut Decoder<'_>) -> Result<bool, Malformed> {
    match input.u8()? {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(input.malformed()),
    }
}

fn span(input: &mut Decoder<'_>) -> Result<Duration, Malformed> {
    let micros = u64::try_from(input.i64()?).map_err(|_| input.malformed())?;
    Ok(Duration::from_micros(micros))
}

fn text(bytes: Option<&[u8]>, malformed: Malformed) -> Result<Option<&str>, Malformed> {
    bytes.map(std::str::from_utf8).transpose().map_err(|_| malformed)
}
