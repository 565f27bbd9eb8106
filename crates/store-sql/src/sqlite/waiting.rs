//! Accepted work that waits: all through one index, which knows of nothing else. See [`oncegate_store::turns`].

use oncegate_core::record::Record;
use oncegate_core::time::Timestamp;
use oncegate_store::turns::{
    BACKLOG_MAX, Backlog, Calling, Doubts, HEADS_AT_ONCE, HEADS_TIMES, Line, Turn, Waiting, in_turns,
    oldest_head,
};
use oncegate_store::{Cursor, Scan};
use rusqlite::{Connection, OptionalExtension, params};

use super::error::Failure;
use super::row::{decode, operation_of};

/// The head of the next line. The index is named because a planner without statistics takes the
/// one by state for as good.
pub(super) const NEXT_LINE: &str = "SELECT line, due_at FROM record INDEXED BY record_waiting \
     WHERE state = 0 AND line > ?1 ORDER BY line, due_at LIMIT 1";

/// The first rows of a line.
pub(super) const OF_LINE: &str = "SELECT seq FROM record INDEXED BY record_waiting \
     WHERE state = 0 AND line = ?1 AND due_at <= ?2 ORDER BY due_at, seq LIMIT ?3";

pub(super) const AT: &str = "SELECT id, body, response FROM record WHERE seq = ?1";

/// Of all lines, but no more rows than are counted. They come line by line, so the oldest is among them only if they are all.
pub(super) const BACKLOG: &str = "SELECT count(*), min(due_at) FROM \
     (SELECT due_at FROM record INDEXED BY record_waiting WHERE state = 0 LIMIT ?1)";

/// Unknown outcomes: how many, but no more than are counted, and since when the oldest has been
/// unknown.
pub(super) const DOUBTS: [&str; 2] = [
    "SELECT count(*) FROM (SELECT 1 FROM record WHERE doubt_since IS NOT NULL LIMIT ?1)",
    "SELECT doubt_since FROM record WHERE doubt_since IS NOT NULL ORDER BY doubt_since LIMIT 1",
];

/// The same of those that are parked.
pub(super) const PARKED: [&str; 2] = [
    "SELECT count(*) FROM (SELECT 1 FROM record WHERE parked_since IS NOT NULL LIMIT ?1)",
    "SELECT parked_since FROM record WHERE parked_since IS NOT NULL ORDER BY parked_since LIMIT 1",
];

pub(super) fn waiting(connection: &Connection, turn: &Turn, now: Timestamp) -> Result<Waiting, Failure> {
    let mut calling = Calling::new(turn, turn.after.as_ref().map(|after| after.as_str().to_owned()), now);
    while let Some((after, count)) = calling.asks() {
        calling.sees(lines(connection, &after.unwrap_or_default(), count)?);
    }
    let (called, next, is_round) = calling.ended();
    let mut found = Vec::with_capacity(called.len());
    for line in &called {
        found.push(of_line(connection, line, now, turn.limit)?);
    }
    let mut scan = Scan::default();
    for seq in in_turns(found, turn.limit) {
        match at(connection, seq)? {
            Some(Ok(record)) => scan.records.push(record),
            Some(Err(_)) => scan.unreadable += 1,
            None => {}
        }
    }
    Ok(Waiting { scan, next: next.map(Cursor::new), is_round })
}

pub(super) fn backlog(connection: &Connection) -> Result<Backlog, Failure> {
    let mut statement = connection.prepare_cached(BACKLOG)?;
    let most = i64::try_from(BACKLOG_MAX).unwrap_or(i64::MAX);
    let counted = statement.query_row([most], |row| Ok((row.get::<_, i64>(0)?, row.get(1)?)))?;
    let (rows, oldest): (i64, Option<i64>) = counted;
    let oldest = if rows < most { oldest.map(Timestamp::from_micros) } else { oldest_of_heads(connection)? };
    Ok(Backlog { rows: u64::try_from(rows).unwrap_or(0), oldest })
}

/// What has waited longest is at the head of its line, however long that is.
fn oldest_of_heads(connection: &Connection) -> Result<Option<Timestamp>, Failure> {
    let (mut oldest, mut after) = (None, String::new());
    for _ in 0..HEADS_TIMES {
        let heads = lines(connection, &after, HEADS_AT_ONCE)?;
        let Some(last) = heads.last() else { break };
        after.clone_from(&last.place);
        oldest = oldest_head(&heads, oldest);
    }
    Ok(oldest)
}

pub(super) fn doubts(connection: &Connection) -> Result<Doubts, Failure> {
    let backlog = |[count, oldest]: [&str; 2]| -> Result<Backlog, Failure> {
        let most = i64::try_from(BACKLOG_MAX).unwrap_or(i64::MAX);
        let rows: i64 = connection.prepare_cached(count)?.query_row([most], |row| row.get(0))?;
        let oldest = connection.prepare_cached(oldest)?.query_row([], |row| row.get(0)).optional()?;
        Ok(Backlog { rows: u64::try_from(rows).unwrap_or(0), oldest: oldest.map(Timestamp::from_micros) })
    };
    Ok(Doubts { open: backlog(DOUBTS)?, parked: backlog(PARKED)? })
}

/// Heads of lines after this one. A cursor of another store is before all lines, or after them:
/// the turn comes round all the same.
fn lines(connection: &Connection, after: &str, count: usize) -> Result<Vec<Line<String>>, Failure> {
    let mut next = connection.prepare_cached(NEXT_LINE)?;
    let mut lines = Vec::new();
    let mut after = after.to_owned();
    while lines.len() < count {
        let head = next.query_row([&after], |row| Ok((row.get(0)?, row.get(1)?))).optional()?;
        let Some((place, first)): Option<(String, i64)> = head else { break };
        after.clone_from(&place);
        let operation = operation_of(&place).to_owned();
        lines.push(Line { operation, place, first: Timestamp::from_micros(first) });
    }
    Ok(lines)
}

fn of_line(connection: &Connection, line: &str, now: Timestamp, limit: usize) -> Result<Vec<i64>, Failure> {
    let mut statement = connection.prepare_cached(OF_LINE)?;
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let rows = statement.query_map(params![line, now.as_micros(), limit], |row| row.get(0))?;
    Ok(rows.collect::<rusqlite::Result<_>>()?)
}

/// The row at this place: the outer error is the database's, the inner one the row's.
pub(super) fn at(connection: &Connection, seq: i64) -> Result<Option<Result<Record, Failure>>, Failure> {
    let mut statement = connection.prepare_cached(AT)?;
    Ok(statement.query_row([seq], |row| Ok(decode(row))).optional()?)
}
