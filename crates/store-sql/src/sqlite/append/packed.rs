//! Rows of the happy path as bytes: a reservation, or what became of it, and nothing that is rare.
//!
//! Moments are differences to the life's beginning, in as few bytes as they need: most rows are settled by their first attempt, moments
//! after they began. **Invariant:** unpacking gives back exactly what was packed; the first byte is the form, and one that this release does
//! not know is refused.

use std::sync::Arc;
use std::time::Duration;

use oncegate_core::codec::Malformed;
use oncegate_core::fingerprint::{Fingerprint, Members};
use oncegate_core::identity::{Fence, RecordId, Token, Version};
use oncegate_core::key::Key;
use oncegate_core::record::{
    AfterRetention, Execution, GoneStatus, Grant, Record, RetentionFrom, State, Terms, codec,
};
use oncegate_core::response::Answer;
use oncegate_core::scope::{Address, Operation, Scope};
use oncegate_core::time::{Timestamp, micros};

const FORM: u8 = 1;
const MALFORMED: Malformed = Malformed { what: "packed row" };

/// A lease that was just granted, and nothing else.
pub(in super::super) fn is_reservation(record: &Record) -> bool {
    record.state == State::InProgress
        && record.settled_at.is_none()
        && record.expires_at.is_none()
        && is_plain(record)
}

/// An answer, and nothing else.
pub(in super::super) fn is_settlement(record: &Record) -> bool {
    matches!(record.state, State::Completed(_)) && is_plain(record)
}

/// What is rare, or searched by, has columns of its own in `record`.
fn is_plain(record: &Record) -> bool {
    record.last_error.is_none()
        && record.evidence.is_none()
        && record.provider_reference.is_none()
        && record.recovery.is_none()
        && record.request.is_none()
}

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

/// Appends a row for which [`is_reservation`] or [`is_settlement`] holds.
pub(super) fn pack(record: &Record, out: &mut Vec<u8>) {
    let terms = &record.terms;
    let is_first = record.grant.is_some_and(|grant| grant.token == record.life);
    let flags = flag(record.execution == Execution::Deferred, DEFERRED)
        | flag(record.unaccounted, UNACCOUNTED)
        | flag(terms.retention_from == RetentionFrom::Creation, FROM_CREATION)
        | flag(terms.horizon.is_some(), HORIZON)
        | flag(record.last_run_at.is_some(), LAST_RUN)
        | flag(record.settled_at.is_some(), SETTLED)
        | flag(record.expires_at.is_some(), EXPIRES)
        | flag(record.grant.is_some(), GRANTED)
        | flag(is_first, FIRST_GRANT)
        | flag(matches!(record.state, State::Completed(_)), COMPLETED)
        | flag(!record.fingerprint.members().is_empty(), MEMBERS);
    let begun = record.created_at.as_micros();
    let moment = |out: &mut Vec<u8>, at: Option<Timestamp>| {
        if let Some(at) = at {
            signed(out, at.as_micros().wrapping_sub(begun));
        }
    };

    out.push(FORM);
    out.extend_from_slice(&flags.to_le_bytes());
    for text in [record.address.scope.as_str(), record.address.key.as_str(), record.operation.as_str()] {
        unsigned(out, text.len() as u64);
        out.extend_from_slice(text.as_bytes());
    }
    out.push(record.fingerprint.version());
    out.extend_from_slice(&record.fingerprint.digest());
    let members = record.fingerprint.members();
    if !members.is_empty() {
        unsigned(out, members.as_bytes().len() as u64);
        out.extend_from_slice(members.as_bytes());
    }
    out.push(codec::crash_number(terms.crash));
    out.push(codec::forward_key_number(terms.forward_key));
    signed(out, micros(terms.retention));
    match terms.after_retention {
        AfterRetention::Fresh => unsigned(out, 0),
        AfterRetention::Gone { status, tombstone } => {
            unsigned(out, u64::from(status.code()));
            signed(out, micros(tombstone));
        }
    }
    if let Some(horizon) = terms.horizon {
        signed(out, micros(horizon));
    }
    signed(out, begun);
    signed(out, record.version.as_raw().wrapping_sub(begun));
    signed(out, record.fence.as_raw().wrapping_sub(begun));
    unsigned(out, u64::from(record.attempts));
    moment(out, record.last_run_at);
    moment(out, record.settled_at);
    moment(out, record.expires_at);
    if !is_first {
        out.extend_from_slice(record.life.as_bytes());
    }
    if let Some(grant) = &record.grant {
        out.extend_from_slice(grant.token.as_bytes());
        moment(out, Some(grant.lease_until));
        moment(out, Some(grant.attempt_deadline));
    }
    if let State::Completed(answer) = &record.state {
        out.extend_from_slice(&answer.encode());
    }
}

/// Reads back what [`pack`] wrote, of the row with this id.
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

const fn flag(is_set: bool, flag: u16) -> u16 {
    if is_set { flag } else { 0 }
}

/// Seven bits a byte, the lowest first; the highest bit says that there is more.
fn unsigned(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value.to_le_bytes()[0] | 0x80);
        value >>= 7;
    }
    out.push(value.to_le_bytes()[0]);
}

/// The sign last, so that small numbers are short on either side of nothing.
fn signed(out: &mut Vec<u8>, value: i64) {
    unsigned(out, ((value << 1) ^ (value >> 63)).cast_unsigned());
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

#[cfg(test)]
mod tests {
    use oncegate_conformance::samples::every_shape;

    use super::*;

    fn plain_shapes() -> Vec<Record> {
        let mut rows = every_shape();
        let mut without = rows.clone();
        for row in &mut without {
            row.last_error = None;
            row.evidence = None;
            row.provider_reference = None;
            row.recovery = None;
            row.request = None;
        }
        rows.extend(without);
        rows.retain(|row| is_reservation(row) || is_settlement(row));
        assert!(rows.len() >= 4);
        rows
    }

    fn packed(row: &Record) -> Vec<u8> {
        let mut bytes = Vec::new();
        pack(row, &mut bytes);
        bytes
    }

    #[test]
    fn every_plain_row_comes_back_as_it_was() {
        let extremes = [i64::MIN, -1, 0, 1, i64::MAX];
        for row in plain_shapes() {
            assert_eq!(unpack(row.id, &packed(&row)).unwrap(), row);
            for raw in extremes {
                let mut row = row.clone();
                row.version = Version::from_raw(raw);
                row.fence = Fence::from_raw(raw.wrapping_neg());
                row.last_run_at = Some(Timestamp::from_micros(raw));
                row.grant =
                    row.grant.map(|grant| Grant { lease_until: Timestamp::from_micros(raw), ..grant });
                assert_eq!(unpack(row.id, &packed(&row)).unwrap(), row, "{raw}");
            }
        }
    }

    #[test]
    fn what_is_cut_short_or_of_another_form_is_refused() {
        for row in plain_shapes() {
            let bytes = packed(&row);
            for length in (0..bytes.len().min(400)).chain(bytes.len().saturating_sub(9)..bytes.len()) {
                assert!(unpack(row.id, &bytes[..length]).is_err(), "{length} of {}", bytes.len());
            }
            for (place, value) in [(0, 2), (2, 0x80)] {
                let mut other = bytes.clone();
                other[place] = value;
                assert!(unpack(row.id, &other).is_err());
            }
            assert!(unpack(row.id, &[&bytes[..], &[0]].concat()).is_err());
        }
    }
}
