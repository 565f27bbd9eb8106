//! A row: a head that the scripts read, then the record's own bytes.
//!
//! ```text
//! 1 byte    layout, now 1
//! 8 bytes   version, big-endian; compared as bytes, because a Lua number is exact only up to 2^53
//! 1 byte    class: the state's number, or 6 for parked
//! 1 byte    in which senses it is due, a bit each, in the order of `Due::ALL`; and 0x20 if the provider has a reference for it
//! …         `Record::encode`
//! ```
//!
//! **Invariant:** the head says what the record says. A row whose head and record differ, or that is another record's, cannot
//! be read.

use oncegate_core::identity::RecordId;
use oncegate_core::record::codec::{state_kind, state_number};
use oncegate_core::record::{Record, State, StateKind};
use oncegate_store::Due;

const LAYOUT: u8 = 1;
const HEAD: usize = 11;
const REFERENCED: u8 = 0x20;

/// In which order a row is listed: its state, and parked apart from what is merely unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Class(u8);

const PARKED: u8 = 6;

impl Class {
    /// All of them, by number.
    pub(crate) const ALL: [Self; 7] = [Self(0), Self(1), Self(2), Self(3), Self(4), Self(5), Self(PARKED)];

    pub(crate) fn of(record: &Record) -> Self {
        match &record.state {
            State::Unknown(doubt) if doubt.parked => Self(PARKED),
            state => Self(state_number(state.kind())),
        }
    }

    pub(crate) const fn is_parked(self) -> bool {
        self.0 == PARKED
    }

    /// The state of its records.
    pub(crate) fn state(self) -> StateKind {
        state_kind(self.0).unwrap_or(StateKind::Unknown)
    }

    pub(crate) fn name(self) -> &'static str {
        match (self.is_parked(), self.state()) {
            (true, _) => "parked",
            (_, StateKind::Pending) => "pending",
            (_, StateKind::InProgress) => "in_progress",
            (_, StateKind::Completed) => "completed",
            (_, StateKind::FailedRetryable) => "failed_retryable",
            (_, StateKind::Unknown) => "unknown",
            (_, StateKind::Expired) => "expired",
        }
    }
}

/// What stands for a reference among others: its length goes before it, so that none is the beginning of another.
pub(crate) fn reference(text: &str) -> Vec<u8> {
    format!("{:08}{text}", text.len()).into_bytes()
}

/// The row of a record.
pub(crate) fn encode(record: &Record) -> Vec<u8> {
    let body = record.encode();
    let mut row = Vec::with_capacity(HEAD + body.len());
    row.extend(head(record));
    row.extend(body);
    row
}

fn head(record: &Record) -> [u8; HEAD] {
    let mut head = [0; HEAD];
    head[0] = LAYOUT;
    head[1..9].copy_from_slice(&record.version.as_raw().to_be_bytes());
    head[9] = Class::of(record).0;
    let bits = Due::ALL.iter().enumerate().filter(|(_, what)| what.moment(record).is_some());
    head[10] = bits.fold(0, |bits, (place, _)| bits | 1 << place);
    if record.provider_reference.is_some() {
        head[10] |= REFERENCED;
    }
    head
}

/// Reads a row back; `id` is the one that it was found under.
pub(crate) fn decode(row: &[u8], id: RecordId) -> Result<Record, String> {
    let Some((found, body)) = row.split_at_checked(HEAD) else {
        return Err(format!("the row has {} bytes, fewer than its head", row.len()));
    };
    if found[0] != LAYOUT {
        return Err(format!("the row is of layout {}, and this release knows {LAYOUT}", found[0]));
    }
    let record = Record::decode(body).map_err(|error| error.to_string())?;
    if found != head(&record) {
        return Err("the row's head is not that of its record".to_owned());
    }
    if record.id != id {
        return Err(format!("the row is that of {}", record.id));
    }
    Ok(record)
}

#[cfg(test)]
mod tests {
    use oncegate_conformance::samples::every_shape;

    use super::*;

    #[test]
    fn rows_come_back_and_damage_is_noticed() {
        for record in every_shape().into_iter().filter(|record| record.encode().len() < 10_000) {
            let row = encode(&record);
            assert_eq!(decode(&row, record.id).as_ref(), Ok(&record));
            assert!(decode(&row, RecordId::from_bytes([0; 16])).is_err(), "another's row");
            for length in 0..row.len() {
                assert!(decode(&row[..length], record.id).is_err(), "cut to {length} bytes");
            }
            for place in 0..HEAD {
                let mut damaged = row.clone();
                damaged[place] ^= 0x40;
                assert!(decode(&damaged, record.id).is_err(), "byte {place} of the head");
            }
        }
    }

    #[test]
    fn parked_is_a_class_of_its_own() {
        let classes: Vec<_> = Class::ALL.into_iter().map(Class::name).collect();
        assert_eq!(
            classes,
            ["pending", "in_progress", "completed", "failed_retryable", "unknown", "expired", "parked"]
        );
    }
}
