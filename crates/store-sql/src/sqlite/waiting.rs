//! Accepted work that waits: all through one index, which knows of nothing else. See [`oncegate_store::turns`].

use std::sync::LazyLock;

use oncegate_core::record::Record;
use oncegate_core::time::Timestamp;
use oncegate_store::turns::{
    BACKLOG_MAX, Backlog, Calling, Doubts, HEADS_AT_ONCE, HEADS_TIMES, Line, Turn, Waiting, in_turns,
    oldest_head,
};
use oncegate_store::{Cursor, Scan};
use rusqlite::{Connection, OptionalExtension, params};

use super::error::Failure;
use super::row::decode;
use super::statements::SELECT;

/// Where a line is: its operation, and whose it is.
type Place = (String, String);

/// The head of the next line of an operation. The index is named because a planner without statistics takes the one by state for as good.
/// And both columns are not compared at once: SQLite would go to the first row of the operation, and from there over all that waits.
pub(super) const NEXT_LINE: &str = "SELECT operation, line, due_at FROM record INDEXED BY record_waiting WHERE state = 0 \
     AND operation = ?1 AND line > ?2 ORDER BY line, due_at LIMIT 1";

/// The head of the first line of the next operation.
pub(super) const NEXT_OPERATION: &str = "SELECT operation, line, due_at FROM record INDEXED BY record_waiting WHERE state = 0 \
     AND operation > ?1 ORDER BY operation, line, due_at LIMIT 1";

/// The first rows of a line.
pub(super) const OF_LINE: &str = "SELECT seq FROM record INDEXED BY record_waiting WHERE state = 0 AND operation = ?1 AND line = ?2 \
     AND due_at <= ?3 ORDER BY due_at, seq LIMIT ?4";

pub(super) static AT: LazyLock<String> = LazyLock::new(|| format!("{} WHERE record.seq = ?1", *SELECT));

/// Of all lines, but no more rows than are counted. They come line by line, so the oldest is among them only if they are all.
pub(super) const BACKLOG: &str = "SELECT count(*), min(due_at) FROM \
     (SELECT due_at FROM record INDEXED BY record_waiting WHERE state = 0 LIMIT ?1)";

/// Outcomes that nobody knows: how many, but no more than are counted, and the oldest.
pub(super) const DOUBTS: [&str; 2] = [
    "SELECT count(*) FROM (SELECT 1 FROM record INDEXED BY record_doubts WHERE state = 4 LIMIT ?1)",
    "SELECT doubt_since FROM record INDEXED BY record_doubts WHERE state = 4 AND doubt_since IS NOT NULL \
     ORDER BY doubt_since LIMIT 1",
];

/// The same of those that are parked.
pub(super) const PARKED: [&str; 2] = [
    "SELECT count(*) FROM (SELECT 1 FROM record INDEXED BY record_parked WHERE state = 4 AND parked = 1 LIMIT ?1)",
    "SELECT doubt_since FROM record INDEXED BY record_parked WHERE state = 4 AND parked = 1 AND doubt_since IS NOT NULL \
     ORDER BY doubt_since LIMIT 1",
];

pub(super) fn waiting(connection: &Connection, turn: &Turn, now: Timestamp) -> Result<Waiting, Failure> {
    let mut calling = Calling::new(turn, turn.after.as_ref().map(place), now);
    while let Some((after, count)) = calling.asks() {
        calling.sees(lines(connection, after.unwrap_or_default(), count)?);
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
    let next = next.map(|(operation, scope)| Cursor::new(format!("{operation}\0{scope}")));
    Ok(Waiting { scan, next, is_round })
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
    let (mut oldest, mut after) = (None, Place::default());
    for _ in 0..HEADS_TIMES {
        let heads = lines(connection, after, HEADS_AT_ONCE)?;
        let Some(last) = heads.last() else { break };
        after = last.place.clone();
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

/// A cursor that is none of ours is before all lines, or after them: the turn comes round all the same.
fn place(cursor: &Cursor) -> Place {
    let (operation, scope) = cursor.as_str().split_once('\0').unwrap_or((cursor.as_str(), ""));
    (operation.to_owned(), scope.to_owned())
}

fn lines(connection: &Connection, mut after: Place, count: usize) -> Result<Vec<Line<Place>>, Failure> {
    let mut of_operation = connection.prepare_cached(NEXT_LINE)?;
    let mut of_next = connection.prepare_cached(NEXT_OPERATION)?;
    let head = |row: &rusqlite::Row<'_>| Ok(((row.get(0)?, row.get(1)?), row.get(2)?));
    let mut lines = Vec::new();
    while lines.len() < count {
        let next = of_operation.query_row(params![after.0, after.1], head).optional()?;
        let next = match next {
            None => of_next.query_row([&after.0], head).optional()?,
            next => next,
        };
        let Some((place, first)): Option<(Place, i64)> = next else { break };
        after.clone_from(&place);
        lines.push(Line { operation: place.0.clone(), place, first: Timestamp::from_micros(first) });
    }
    Ok(lines)
}

fn of_line(connection: &Connection, line: &Place, now: Timestamp, limit: usize) -> Result<Vec<i64>, Failure> {
    let mut statement = connection.prepare_cached(OF_LINE)?;
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let rows = statement.query_map(params![line.0, line.1, now.as_micros(), limit], |row| row.get(0))?;
    Ok(rows.collect::<rusqlite::Result<_>>()?)
}

/// The outer error is the database's, the inner one the row's.
fn at(connection: &Connection, seq: i64) -> Result<Option<Result<Record, Failure>>, Failure> {
    let mut statement = connection.prepare_cached(&AT)?;
    Ok(statement.query_row([seq], |row| Ok(decode(row))).optional()?)
}
