//! Accepted work that waits: a set of names in their order. See [`oncegate_store::turns`].
//!
//! ```text
//! …         the operation, then a zero byte
//! …         the scope, then a zero byte
//! 8 bytes   when it is due, in microseconds, big-endian, its sign turned: so that bytes are in the order of time
//! …         the id, as text
//! ```
//!
//! **Invariant:** exactly the pending rows have a name here; the script that writes a row writes both.

use std::sync::Arc;

use oncegate_core::identity::RecordId;
use oncegate_core::record::Record;
use oncegate_core::time::Timestamp;
use oncegate_store::turns::{BACKLOG_MAX, Backlog, Calling, Doubts, Line, Turn, Waiting, in_turns};
use oncegate_store::{Cursor, Due, Result, Scan, StoreError};
use redis::Value;

use crate::ask::{array, odd, run};
use crate::error::Nature;
use crate::history::Checks;
use crate::keys::Keys;
use crate::link::Link;
use crate::row;
use crate::script::{BACKLOG, Call, LINES, OF_LINES};

const MOMENT: usize = 8;

/// The name of a row among what waits; `None`: it does not.
pub(crate) fn name(record: &Record) -> Option<Vec<u8>> {
    let moment = Due::Pending.moment(record)?;
    let mut name = line(record.operation.as_str(), record.line_scope());
    name.extend(in_order(moment));
    name.extend(record.id.to_string().into_bytes());
    Some(name)
}

fn line(operation: &str, scope: &str) -> Vec<u8> {
    format!("{operation}\0{scope}\0").into_bytes()
}

const fn in_order(moment: Timestamp) -> [u8; MOMENT] {
    (moment.as_micros() ^ i64::MIN).to_be_bytes()
}

pub(crate) async fn waiting(
    link: &Arc<Link<Checks>>,
    keys: &Keys,
    turn: &Turn,
    now: Timestamp,
) -> Result<Waiting> {
    let start = turn.after.as_ref().map(|after| after.as_str().as_bytes().to_vec());
    let mut calling = Calling::new(turn, start, now);
    while let Some((after, count)) = calling.asks() {
        calling.sees(lines(link, keys, after.unwrap_or_default(), count).await?);
    }
    let (called, next, is_round) = calling.ended();
    let scan = read(link, keys, of_lines(link, keys, turn, called, now).await?).await?;
    let next = next.and_then(|line| String::from_utf8(line).ok()).map(Cursor::new);
    Ok(Waiting { scan, next, is_round })
}

pub(crate) async fn backlog(link: &Arc<Link<Checks>>, keys: &Keys) -> Result<Backlog> {
    backlog_of(link, "backlog", keys.due(Due::Pending)).await
}

pub(crate) async fn doubts(link: &Arc<Link<Checks>>, keys: &Keys) -> Result<Doubts> {
    let [open, parked] = keys.doubts();
    let open = backlog_of(link, "doubts", open).await?;
    Ok(Doubts { open, parked: backlog_of(link, "doubts", parked).await? })
}

async fn backlog_of(link: &Arc<Link<Checks>>, verb: &'static str, name: String) -> Result<Backlog> {
    let call = Call::new(&BACKLOG, vec![name], Vec::new());
    match &array(verb, run(link, verb, call).await?)?[..] {
        [Value::Int(rows), first @ ..] => {
            let oldest = match first {
                [Value::Int(moment)] => Some(Timestamp::from_micros(*moment)),
                _ => None,
            };
            Ok(Backlog { rows: u64::try_from(*rows).unwrap_or(0).min(BACKLOG_MAX), oldest })
        }
        _ => Err(odd(verb)),
    }
}

async fn lines(
    link: &Arc<Link<Checks>>,
    keys: &Keys,
    after: Vec<u8>,
    count: usize,
) -> Result<Vec<Line<Vec<u8>>>> {
    let [names, _] = keys.waiting();
    let call = Call::new(&LINES, vec![names], vec![after, count.to_string().into_bytes()]);
    let heads = array("waiting", run(link, "waiting", call).await?)?;
    let parsed = |head: &Value| {
        let Value::BulkString(head) = head else { return None };
        let (place, first, _) = parts(head)?;
        let operation = place.split(|byte| *byte == 0).next()?;
        let operation = String::from_utf8(operation.to_vec()).ok()?;
        Some(Line { place: place.to_vec(), operation, first })
    };
    heads.iter().map(|head| parsed(head).ok_or_else(not_a_name)).collect()
}

/// Line, moment and id.
fn parts(name: &[u8]) -> Option<(&[u8], Timestamp, RecordId)> {
    let operation = name.iter().position(|byte| *byte == 0)? + 1;
    let scope = name[operation..].iter().position(|byte| *byte == 0)? + 1;
    let (line, rest) = name.split_at(operation + scope);
    let (moment, id) = rest.split_at_checked(MOMENT)?;
    let moment = i64::from_be_bytes(moment.try_into().ok()?) ^ i64::MIN;
    Some((line, Timestamp::from_micros(moment), std::str::from_utf8(id).ok()?.parse().ok()?))
}

/// Which rows this turn gives, in its order.
async fn of_lines(
    link: &Arc<Link<Checks>>,
    keys: &Keys,
    turn: &Turn,
    called: Vec<Vec<u8>>,
    now: Timestamp,
) -> Result<Vec<RecordId>> {
    if called.is_empty() {
        return Ok(Vec::new());
    }
    let [names, _] = keys.waiting();
    let not_yet = in_order(Timestamp::from_micros(now.as_micros().saturating_add(1)));
    let mut arguments = vec![not_yet.to_vec(), turn.limit.to_string().into_bytes()];
    arguments.extend(called);
    let reply = run(link, "waiting", Call::new(&OF_LINES, vec![names], arguments)).await?;
    let mut of_each = Vec::new();
    for line in array("waiting", reply)? {
        let ids = array("waiting", line)?.into_iter().map(|name| {
            let Value::BulkString(name) = name else { return Err(not_a_name()) };
            parts(&name).map(|(.., id)| id).ok_or_else(not_a_name)
        });
        of_each.push(ids.collect::<Result<Vec<_>>>()?);
    }
    Ok(in_turns(of_each, turn.limit))
}

/// The rows themselves. One that has changed meanwhile is left out.
async fn read(link: &Arc<Link<Checks>>, keys: &Keys, ids: Vec<RecordId>) -> Result<Scan> {
    let mut scan = Scan::default();
    if ids.is_empty() {
        return Ok(scan);
    }
    let names: Vec<_> = ids.iter().map(|id| keys.row(*id)).collect();
    let get = async move |mut connection| {
        redis::cmd("MGET").arg(names).query_async::<Vec<Option<Vec<u8>>>>(&mut connection).await
    };
    let found = link.call("waiting", Nature::Reads, get).await?;
    for (id, found) in ids.into_iter().zip(found) {
        match found.map(|found| row::decode(&found, id)) {
            Some(Ok(record)) if Due::Pending.moment(&record).is_some() => scan.records.push(record),
            Some(Ok(_)) | None => {}
            Some(Err(_)) => scan.unreadable += 1,
        }
    }
    Ok(scan)
}

fn not_a_name() -> StoreError {
    odd("waiting")
}
