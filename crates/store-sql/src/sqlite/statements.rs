//! The statements. Free functions over a connection, so that a caller's own transaction can use them too, later.

use std::sync::LazyLock;

use oncegate_core::identity::{RecordId, Version};
use oncegate_core::record::{Record, StateKind};
use oncegate_core::time::{Timestamp, micros};
use oncegate_store::{Due, Outcome};
use rusqlite::{Connection, OptionalExtension, Rows, params};

use super::error::Failure;
use super::row::{COLUMNS, EncodedRow, EncodedWrite, decode, state_number};

static INSERT: LazyLock<String> = LazyLock::new(|| {
    let places: Vec<_> = (1..=COLUMNS.len()).map(|place| format!("?{place}")).collect();
    let (columns, places) = (COLUMNS.join(", "), places.join(", "));
    format!("INSERT INTO record ({columns}) VALUES ({places}) ON CONFLICT (id) DO NOTHING")
});

/// Every column but the identity, on the condition that identity and version (the last parameter) are what was read.
pub(super) static SWAP: LazyLock<String> = LazyLock::new(|| {
    let set = COLUMNS.iter().zip(1..).skip(3).map(|(column, place)| format!("{column} = ?{place}"));
    let set = set.collect::<Vec<_>>().join(", ");
    let condition = format!("id = ?1 AND scope = ?2 AND key = ?3 AND version = ?{EXPECTED}");
    format!("UPDATE record SET {set} WHERE {condition} RETURNING seq")
});
const EXPECTED: usize = COLUMNS.len() + 1;

/// Settled states only, past retention by the store's own clock.
pub(super) const REMOVE: &str = "DELETE FROM record WHERE id = ?1 AND version = ?2 AND state IN (2, 3, 5) AND expires_at <= ?3 RETURNING seq";

const KEEP_ANSWER: &str =
    "INSERT INTO answer (seq, bytes) VALUES (?1, ?2) ON CONFLICT (seq) DO UPDATE SET bytes = ?2";
const DROP_ANSWER: &str = "DELETE FROM answer WHERE seq = ?1";

/// `SELECT` of whole records, up to its conditions.
pub(super) static SELECT: LazyLock<String> = LazyLock::new(|| {
    let columns = COLUMNS.map(|column| format!("record.{column}")).join(", ");
    format!(
        "SELECT {columns}, answer.bytes, record.seq FROM record LEFT JOIN answer ON answer.seq = record.seq"
    )
});

pub(super) static READ: LazyLock<String> = LazyLock::new(|| format!("{} WHERE id = ?1", *SELECT));

/// What is due in one state, the longest first. `seq` settles ties, so that passes are repeatable.
pub(super) static DUE: LazyLock<String> = LazyLock::new(|| {
    format!("{} WHERE state = ?1 AND due_at <= ?2 ORDER BY due_at, record.seq LIMIT ?3", *SELECT)
});

/// Waiting work past its limit: the queue is all that is looked at.
pub(super) static OVERDUE: LazyLock<String> = LazyLock::new(|| {
    format!("{} WHERE state = 0 AND expires_at <= ?1 ORDER BY expires_at, record.seq LIMIT ?2", *SELECT)
});

/// Applies a batch inside the transaction that `connection` is in, at the store's time `now`.
///
/// What [`oncegate_store::Store::apply`] does between `BEGIN IMMEDIATE` and `COMMIT`. A caller's own transaction may do it
/// too, if it has begun as a writer: one that reads first and writes later fails at once with `SQLITE_BUSY_SNAPSHOT`
/// where another has written meanwhile.
pub(super) fn apply_in(
    connection: &Connection,
    batch: &[EncodedWrite],
    now: Timestamp,
) -> Result<Vec<Outcome>, Failure> {
    batch.iter().map(|write| apply_one(connection, write, now)).collect()
}

fn apply_one(connection: &Connection, write: &EncodedWrite, now: Timestamp) -> Result<Outcome, Failure> {
    let (id, applied) = match write {
        EncodedWrite::Insert(row) => (row.record.id, insert(connection, row)?),
        EncodedWrite::Swap { expect, row } => (row.record.id, swap(connection, *expect, row)?),
        EncodedWrite::Remove { id, expect, grace } => {
            let before = now.as_micros().saturating_sub(micros(*grace));
            (*id, remove(connection, *id, *expect, before)?)
        }
    };
    if applied {
        return Ok(Outcome::Applied);
    }
    Ok(Outcome::Refused { current: read_one(connection, id)?.map(Box::new) })
}

fn insert(connection: &Connection, row: &EncodedRow) -> Result<bool, Failure> {
    let mut statement = connection.prepare_cached(&INSERT)?;
    row.bind(&mut statement)?;
    let applied = statement.raw_execute()? == 1;
    if applied && let Some(answer) = &row.answer {
        keep_answer(connection, connection.last_insert_rowid(), answer)?;
    }
    Ok(applied)
}

fn swap(connection: &Connection, expect: Version, row: &EncodedRow) -> Result<bool, Failure> {
    let mut statement = connection.prepare_cached(&SWAP)?;
    row.bind(&mut statement)?;
    statement.raw_bind_parameter(EXPECTED, expect.as_raw())?;
    let Some(seq) = only_seq(statement.raw_query())? else { return Ok(false) };
    match &row.answer {
        Some(answer) => keep_answer(connection, seq, answer)?,
        None => drop_answer(connection, seq)?,
    }
    Ok(true)
}

fn remove(connection: &Connection, id: RecordId, expect: Version, before: i64) -> Result<bool, Failure> {
    let mut statement = connection.prepare_cached(REMOVE)?;
    let Some(seq) = only_seq(statement.query(params![&id.as_bytes()[..], expect.as_raw(), before])?)? else {
        return Ok(false);
    };
    drop_answer(connection, seq)?;
    Ok(true)
}

/// The one row's `seq`, if there was one; runs the statement to its end.
fn only_seq(mut rows: Rows<'_>) -> Result<Option<i64>, Failure> {
    let mut seq = None;
    while let Some(row) = rows.next()? {
        seq = Some(row.get(0)?);
    }
    Ok(seq)
}

fn keep_answer(connection: &Connection, seq: i64, answer: &[u8]) -> Result<(), Failure> {
    connection.prepare_cached(KEEP_ANSWER)?.execute(params![seq, answer])?;
    Ok(())
}

fn drop_answer(connection: &Connection, seq: i64) -> Result<(), Failure> {
    connection.prepare_cached(DROP_ANSWER)?.execute([seq])?;
    Ok(())
}

pub(super) fn read(connection: &Connection, ids: &[RecordId]) -> Result<Vec<Option<Record>>, Failure> {
    ids.iter().map(|id| read_one(connection, *id)).collect()
}

fn read_one(connection: &Connection, id: RecordId) -> Result<Option<Record>, Failure> {
    let mut statement = connection.prepare_cached(&READ)?;
    statement.query_row([&id.as_bytes()[..]], |row| Ok(decode(row))).optional()?.transpose()
}

pub(super) fn due(
    connection: &Connection,
    what: Due,
    now: Timestamp,
    limit: usize,
) -> Result<Vec<Record>, Failure> {
    let states: &[StateKind] = match what {
        Due::Pending => &[StateKind::Pending],
        Due::Lapsed => &[StateKind::InProgress],
        Due::Doubted => &[StateKind::Unknown],
        Due::Expired => &[StateKind::Completed, StateKind::FailedRetryable, StateKind::Expired],
    };
    let limit_sql = i64::try_from(limit).unwrap_or(i64::MAX);
    let mut found = Vec::new();
    for state in states {
        let mut statement = connection.prepare_cached(&DUE)?;
        collect(statement.query(params![state_number(*state), now.as_micros(), limit_sql])?, &mut found)?;
    }
    if what == Due::Expired {
        let mut statement = connection.prepare_cached(&OVERDUE)?;
        collect(statement.query(params![now.as_micros(), limit_sql])?, &mut found)?;
    }
    found.sort_by_key(|record| what.moment(record));
    found.truncate(limit);
    Ok(found)
}

fn collect(mut rows: Rows<'_>, into: &mut Vec<Record>) -> Result<(), Failure> {
    while let Some(row) = rows.next()? {
        into.push(decode(row)?);
    }
    Ok(())
}
