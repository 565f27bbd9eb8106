//! Watermarks and quarantines. Free functions over a connection, as [`super::statements`].

use oncegate_core::time::{Timestamp, micros};
use oncegate_store::history::{Beat, Expected, WATERMARK_AGE_MAX, Watermark};
use oncegate_store::{History, Quarantine};
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::error::Failure;

const MARK: &str = "SELECT mark FROM watermark WHERE node = ?1";
const KEEP: &str = "INSERT OR REPLACE INTO watermark (node, mark, at) VALUES (?1, ?2, ?3)";
const DROP_OLD: &str = "DELETE FROM watermark WHERE at < ?1";
const LEAVE: &str = "DELETE FROM watermark WHERE node = ?1";
const DECLARE: &str = "INSERT INTO quarantine (id, since, until, declared_at, released_at, reason) \
     VALUES (?1, ?2, ?3, ?4, ?5, ?6) ON CONFLICT DO NOTHING";
const QUARANTINES: &str =
    "SELECT id, since, until, declared_at, released_at, reason FROM quarantine ORDER BY declared_at, id";
const RELEASE: &str = "UPDATE quarantine SET released_at = ?2 WHERE id = ?1 AND released_at IS NULL";

/// Rewrites a watermark inside the transaction that `connection` is in. `false` if it was not as
/// it must be.
pub(super) fn rewrite(connection: &Connection, beat: Beat, now: Timestamp) -> Result<bool, Failure> {
    if !beat.follows(watermark(connection, beat.node)?) {
        return Ok(false);
    }
    if beat.last.is_none() {
        let oldest = now.as_micros().saturating_sub(micros(WATERMARK_AGE_MAX));
        connection.prepare_cached(DROP_OLD)?.execute([oldest])?;
    }
    connection.prepare_cached(KEEP)?.execute(params![beat.node, beat.next, now.as_micros()])?;
    Ok(true)
}

/// Whether the file has what this process wrote before `expected` was taken, or later.
pub(super) fn look(
    connection: &Connection,
    process: &Watermark,
    expected: Option<Expected>,
) -> Result<History, Failure> {
    let Some(expected) = expected else { return Ok(History::Intact) };
    Ok(process.judge(expected, watermark(connection, expected.node)?))
}

fn watermark(connection: &Connection, node: i64) -> Result<Option<i64>, Failure> {
    Ok(connection.prepare_cached(MARK)?.query_row([node], |row| row.get(0)).optional()?)
}

pub(super) fn leave(connection: &Connection, node: i64) -> Result<(), Failure> {
    connection.prepare_cached(LEAVE)?.execute([node])?;
    Ok(())
}

pub(super) fn declare(connection: &Connection, new: &Quarantine) -> Result<(), Failure> {
    let [since, until, declared_at] = [new.since, new.until, new.declared_at].map(Timestamp::as_micros);
    let released_at = new.released_at.map(Timestamp::as_micros);
    let bound = params![&*new.id, since, until, declared_at, released_at, &*new.reason];
    connection.prepare_cached(DECLARE)?.execute(bound)?;
    Ok(())
}

pub(super) fn quarantines(connection: &Connection) -> Result<Vec<Quarantine>, Failure> {
    let mut statement = connection.prepare_cached(QUARANTINES)?;
    let found = statement.query_map([], quarantine)?.collect::<rusqlite::Result<_>>()?;
    Ok(found)
}

fn quarantine(row: &Row<'_>) -> rusqlite::Result<Quarantine> {
    let moment = |place: usize| row.get(place).map(Timestamp::from_micros);
    Ok(Quarantine {
        id: row.get(0)?,
        since: moment(1)?,
        until: moment(2)?,
        declared_at: moment(3)?,
        released_at: row.get::<_, Option<i64>>(4)?.map(Timestamp::from_micros),
        reason: row.get(5)?,
    })
}

pub(super) fn release(connection: &Connection, id: &str, at: Timestamp) -> Result<bool, Failure> {
    Ok(connection.prepare_cached(RELEASE)?.execute(params![id, at.as_micros()])? == 1)
}
