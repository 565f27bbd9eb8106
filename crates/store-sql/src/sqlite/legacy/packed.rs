//! Rows of the tables `record_reserved` and `record_settled` (schemas 8 to 11): a reservation or a
//! completed record without rare fields. Moments are differences to the beginning of the life, in
//! as few bytes as they need.

use std::sync::Arc;
use std::time::Duration;

use oncegate_core::codec::{Decoder, Malformed};
use oncegate_core::fingerprint::{Fingerprint, Members};
use oncegate_core::identity::{Fence, RecordId, Token, Version};
use oncegate_core::key::Key;
use oncegate_core::record::{
    AfterRetention, Execution, GoneStatus, Grant, Record, RetentionFrom, State, Terms, codec,
};
use oncegate_core::response::Answer;
use oncegate_core::scope::{Address, Operation, Scope};
use oncegate_core::time::Timestamp;

const FORM: u8 = 1;
const MALFORMED: Malformed = Malformed { what: "packed row" };

const DEFERRED: u16 = 1;
const UNACCOUNTED: u16 = 1 << 1;
const FROM_CREATION: u16 = 1 << 2;
const HORIZON: u16 = 1 << 3;
const LAST_RUN: u16 = 1 << 4;
const SETTLED: u16 = 1 << 5;
const EXPIRES: u16 = 1 << 6;
const GRANTED: u16 = 1 << 7;
/// The life is that of the grant: its first.
const FIRST_GRANT: u16 = 1 << 8;
const COMPLETED: u16 = 1 << 9;
const MEMBERS: u16 = 1 << 10;
const KNOWN: u16 = (1 << 11) - 1;

/// One reservation: the id, the place in the order of arrival, and the packed row.
pub(super) type Reservation<'b> = (RecordId, i64, &'b [u8]);

/// Reads a row of `record_reserved`: all reservations of one commit.
pub(super) fn reservations(bytes: &[u8]) -> Result<Vec<Reservation<'_>>, Malformed> {
    let mut input = Decoder::new(bytes, "batch of reservations");
    if input.u8()? != FORM {
        return Err(input.malformed());
    }
    let mut rows = Vec::new();
    for _ in 0..input.u32()? {
        let id = input.bytes()?.try_into().map_err(|_| input.malformed())?;
        rows.push((RecordId::from_bytes(id), input.i64()?, input.bytes()?));
    }
    input.finish()?;
    Ok(rows)
}

/// Reads the row of this id.
pub(super) fn unpack(id: RecordId, bytes: &[u8]) -> Result<Record, Malformed> {
    let mut input = Input(bytes);
    let [form, low, high] = input.take()?;
    let flags = u16::from_le_bytes([low, high]);
    if form != FORM || flags & !KNOWN != 0 {
        return Err(MALFORMED);
    }
    let has = |what: u16| flags & what != 0;
    let scope = Scope::from_stored(input.text()?).map_err(|_| MALFORMED)?;
    let key = Key::from_text(input.text()?).map_err(|_| MALFORMED)?;
    let operation = Operation::new(input.text()?).map_err(|_| MALFORMED)?;
    let [fingerprint_version] = input.take()?;
    let fingerprint = Fingerprint::from_parts(fingerprint_version, input.take()?);
    let members = if has(MEMBERS) { Members::from_bytes(input.bytes()?)? } else { Members::NONE };
    let fingerprint = fingerprint.with_members(members);
    let [crash, forward_key] = input.take()?;
    let retention = input.span()?;
    let after_retention = match input.unsigned()? {
        0 => AfterRetention::Fresh,
        410 => AfterRetention::Gone { status: GoneStatus::Gone, tombstone: input.span()? },
        404 => AfterRetention::Gone { status: GoneStatus::NotFound, tombstone: input.span()? },
        _ => return Err(MALFORMED),
    };
    let horizon = if has(HORIZON) { Some(input.span()?) } else { None };
    let begun = input.signed()?;
    let version = Version::from_raw(input.signed()?.wrapping_add(begun));
    let fence = Fence::from_raw(input.signed()?.wrapping_add(begun));
    let attempts = u32::try_from(input.unsigned()?).map_err(|_| MALFORMED)?;
    let last_run_at = input.moment(has(LAST_RUN), begun)?;
    let settled_at = input.moment(has(SETTLED), begun)?;
    let expires_at = input.moment(has(EXPIRES), begun)?;
    let own_life = if has(FIRST_GRANT) { None } else { Some(Token::from_bytes(input.take()?)) };
    let grant = if has(GRANTED) {
        let token = Token::from_bytes(input.take()?);
        let mut moment = || input.moment(true, begun)?.ok_or(MALFORMED);
        Some(Grant { token, lease_until: moment()?, attempt_deadline: moment()? })
    } else {
        None
    };
    let state = if has(COMPLETED) {
        State::Completed(Arc::new(Answer::decode(input.0)?))
    } else if input.0.is_empty() {
        State::InProgress
    } else {
        return Err(MALFORMED);
    };
    Ok(Record {
        id,
        address: Address { scope, key },
        life: own_life.or(grant.map(|grant| grant.token)).ok_or(MALFORMED)?,
        operation,
        fingerprint,
        terms: Terms {
            crash: codec::crash_policy(crash).ok_or(MALFORMED)?,
            retention,
            retention_from: if has(FROM_CREATION) {
                RetentionFrom::Creation
            } else {
                RetentionFrom::Settlement
            },
            after_retention,
            horizon,
            forward_key: codec::forward_key(forward_key)?,
        },
        execution: if has(DEFERRED) { Execution::Deferred } else { Execution::Inline },
        state,
        version,
        fence,
        grant,
        attempts,
        unaccounted: has(UNACCOUNTED),
        last_error: None,
        evidence: None,
        provider_reference: None,
        recovery: None,
        request: None,
        created_at: Timestamp::from_micros(begun),
        last_run_at,
        settled_at,
        expires_at,
    })
}

struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (taken, rest) = self.0.split_first_chunk::<N>().ok_or(MALFORMED)?;
        self.0 = rest;
        Ok(*taken)
    }

    fn text(&mut self) -> Result<&'a str, Malformed> {
        std::str::from_utf8(self.bytes()?).map_err(|_| MALFORMED)
    }

    fn bytes(&mut self) -> Result<&'a [u8], Malformed> {
        let length = usize::try_from(self.unsigned()?).map_err(|_| MALFORMED)?;
        let (taken, rest) = self.0.split_at_checked(length).ok_or(MALFORMED)?;
        self.0 = rest;
        Ok(taken)
    }

    fn unsigned(&mut self) -> Result<u64, Malformed> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let [byte] = self.take()?;
            value |= u64::from(byte & 0x7F) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(MALFORMED)
    }

    fn signed(&mut self) -> Result<i64, Malformed> {
        let value = self.unsigned()?;
        Ok((value >> 1).cast_signed() ^ -(value & 1).cast_signed())
    }

    fn span(&mut self) -> Result<Duration, Malformed> {
        let micros = u64::try_from(self.signed()?).map_err(|_| MALFORMED)?;
        Ok(Duration::from_micros(micros))
    }

    fn moment(&mut self, is_there: bool, begun: i64) -> Result<Option<Timestamp>, Malformed> {
        if !is_there {
            return Ok(None);
        }
        Ok(Some(Timestamp::from_micros(self.signed()?.wrapping_add(begun))))
    }
}
