//! A batch, as one call of the script that applies it (`scripts/apply.lua`).

use std::sync::Arc;
use std::time::Duration;

use oncegate_core::audit::Entry;
use oncegate_core::record::State;
use oncegate_core::time::micros;
use oncegate_store::{Change, Due, Effect, Kind, Outcome, Result, StoreError, Write};
use redis::Value;

use crate::keys::Keys;
use crate::removed;
use crate::row::{self, Class};
use crate::script::{APPLY, Call};
use crate::waiting;

pub(crate) fn call(keys: &Keys, batch: &[Write]) -> Call {
    let mut names = names(keys);
    names.extend(batch.iter().map(|write| keys.row(write.id())));
    let mut all: Vec<_> = batch.iter().flat_map(arguments).collect();
    for (number, write) in (1..).zip(batch) {
        all.extend(write.entry.iter().flat_map(|entry| told(number, entry)));
    }
    Call::new(&APPLY, names, all)
}

/// A batch of no writes, of which something is told all the same.
pub(crate) fn tell(keys: &Keys, entries: &[Entry]) -> Call {
    Call::new(&APPLY, names(keys), entries.iter().flat_map(|entry| told(0, entry)).collect())
}

/// All but the rows.
fn names(keys: &Keys) -> Vec<String> {
    let mut names = vec![keys.arrival()];
    names.extend(Class::ALL.map(|class| keys.class(class)));
    names.extend(Due::ALL.map(|what| keys.due(what)));
    names.extend(keys.trail());
    names.extend(keys.references());
    names.extend(keys.waiting());
    names.extend(keys.doubts());
    names.push(keys.removed());
    names
}

/// Five an entry, as the script says.
fn told(number: usize, entry: &Entry) -> [Vec<u8>; 5] {
    let mut rest = entry.at.as_micros().to_be_bytes().to_vec();
    let bytes = entry.encode();
    rest.push(entry.act.number());
    rest.extend(entry.distinct_name(&bytes).into_bytes());
    let at = entry.at.as_micros().to_string();
    [number.to_string().into(), entry.id.as_bytes().to_vec(), rest, at.into(), bytes]
}

/// Twelve a write, as the script says.
fn arguments(write: &Write) -> [Vec<u8>; 12] {
    let (verb, expect, record) = match &write.change {
        Change::Insert(record) => (b"i", None, Some(record)),
        Change::Swap { expect, record } => (b"s", Some(expect), Some(record)),
        Change::Remove { expect, .. } => (b"r", Some(expect), None),
    };
    let mut arguments = [const { Vec::new() }; 12];
    arguments[0] = verb.to_vec();
    arguments[1] = write.id().to_string().into_bytes();
    arguments[2] = expect.map(|version| version.as_raw().to_be_bytes().to_vec()).unwrap_or_default();
    if let Change::Remove { grace, is_remembered, .. } = &write.change {
        arguments[3] = exact_micros(*grace).to_string().into_bytes();
        if *is_remembered {
            [arguments[4], arguments[5]] = removed::place_of(write.id());
        }
    }
    if let Some(record) = record {
        arguments[3] = row::encode(record);
        arguments[9] = record.provider_reference.as_deref().map(row::reference).unwrap_or_default();
        arguments[10] = waiting::name(record).unwrap_or_default();
        if let State::Unknown(doubt) = &record.state {
            arguments[11] = doubt.since.as_micros().to_string().into_bytes();
        }
        for (argument, what) in arguments[4..9].iter_mut().zip(Due::ALL) {
            let moment = what.moment(record).map(|moment| moment.as_micros().to_string());
            *argument = moment.unwrap_or_default().into_bytes();
        }
    }
    arguments
}

/// What a Lua number can hold: 285 years. A longer grace spares all the same rows.
fn exact_micros(span: Duration) -> i64 {
    micros(span).min(1 << 53)
}

/// What the script said of each write.
pub(crate) fn outcomes(batch: &[Write], reply: Value) -> Result<Vec<Outcome>> {
    let odd = || {
        // Whatever it was, the script has run.
        StoreError::new(Kind::Other, Effect::Unknown, "apply")
            .because("the script's reply is not one of ours")
    };
    let Value::Array(replies) = reply else { return Err(odd()) };
    if replies.len() != batch.len() {
        return Err(odd());
    }
    batch.iter().zip(replies).map(|(write, reply)| outcome(write, &reply).ok_or_else(odd)).collect()
}

fn outcome(write: &Write, reply: &Value) -> Option<Outcome> {
    Some(match reply {
        Value::Int(1) => Outcome::Applied,
        Value::Int(0) => Outcome::Unreadable { problem: "what is there is not a row".to_owned() },
        Value::Nil => Outcome::Refused { current: None },
        Value::BulkString(bytes) => match row::decode(bytes, write.id()) {
            Ok(record) => Outcome::Refused { current: Some(Arc::new(record)) },
            Err(problem) => Outcome::Unreadable { problem },
        },
        _ => return None,
    })
}
