//! What is remembered of removed rows. Free functions over a connection, as [`super::statements`].

use oncegate_core::identity::RecordId;
use oncegate_core::time::Timestamp;
use oncegate_store::removed::{day_of, digest_of, start_of};
use rusqlite::{Connection, OptionalExtension, params};

use super::error::Failure;

pub(super) const REMEMBER: &str =
    "INSERT INTO removed_id (day, digest) VALUES (?1, ?2) ON CONFLICT DO NOTHING";
pub(super) const DAYS: &str = "SELECT min(day), (SELECT max(day) FROM removed_id) FROM removed_id";
pub(super) const IS_REMOVED: &str = "SELECT 1 FROM removed_id WHERE day = ?1 AND digest = ?2";
pub(super) const DROP_REMOVED: &str = "DELETE FROM removed_id WHERE (day, digest) IN \
     (SELECT day, digest FROM removed_id WHERE day < ?1 ORDER BY day, digest LIMIT ?2)";

/// Inside the transaction that removes the row.
pub(super) fn remember(connection: &Connection, id: RecordId, now: Timestamp) -> Result<(), Failure> {
    connection.prepare_cached(REMEMBER)?.execute([day_of(now), digest_of(id)])?;
    Ok(())
}

pub(super) fn removed(
    connection: &Connection,
    ids: &[RecordId],
    since: Timestamp,
) -> Result<Vec<Option<Timestamp>>, Failure> {
    let days = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?));
    let days: (Option<i64>, Option<i64>) = connection.prepare_cached(DAYS)?.query_row([], days)?;
    let (Some(first), Some(last)) = days else { return Ok(vec![None; ids.len()]) };
    let first = first.max(day_of(since));
    let mut statement = connection.prepare_cached(IS_REMOVED)?;
    let mut all = Vec::with_capacity(ids.len());
    for id in ids {
        let mut found = None;
        for day in (first..=last).rev() {
            if statement.query_row([day, digest_of(*id)], |_| Ok(())).optional()?.is_some() {
                found = Some(start_of(day));
                break;
            }
        }
        all.push(found);
    }
    Ok(all)
}

pub(super) fn drop_removed(
    connection: &Connection,
    before: Timestamp,
    limit: usize,
) -> Result<usize, Failure> {
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    Ok(connection.prepare_cached(DROP_REMOVED)?.execute(params![day_of(before), limit])?)
}
