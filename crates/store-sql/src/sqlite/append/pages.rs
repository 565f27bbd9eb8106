//! The two tables for people: pages and counts.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use oncegate_core::identity::RecordId;
use oncegate_core::record::Record;
use rusqlite::{Connection, params};

use super::super::error::Failure;
use super::Ledger;
use super::due::ROW;
use super::ids::RUN;
use super::packed::unpack;
use super::settled;

/// Runs that have rows before a place in the order of arrival, the newest first.
pub(in super::super) const RUNS: &str =
    "SELECT run, last_arrival FROM record_run WHERE first_arrival < ?1 ORDER BY last_arrival DESC";
pub(in super::super) const ROWS: &str =
    "SELECT seq, arrival, id, bytes FROM record_settled WHERE seq >= ?1 AND seq < ?2 AND arrival < ?3";
const COUNT_RUNS: &str = "SELECT coalesce(sum(kept), 0) FROM record_run";
const COUNT_OPEN: &str = "SELECT count(*) FROM record_settled WHERE seq >= ?1";

/// How many rows `record_settled` has.
pub(in super::super) fn count(connection: &Connection, ledger: &Ledger) -> Result<u64, Failure> {
    let whole: i64 = connection.prepare_cached(COUNT_RUNS)?.query_row([], |row| row.get(0))?;
    let open = ledger.settled - ledger.settled.rem_euclid(RUN);
    let open: i64 = connection.prepare_cached(COUNT_OPEN)?.query_row([open], |row| row.get(0))?;
    Ok(u64::try_from(whole + open).unwrap_or(0))
}

/// A place in the order of arrival, and the row there, if it can be read.
pub(in super::super) type Shown = (i64, Result<Record, Failure>);

/// The row of this id at this place, if it is still there.
pub(in super::super) fn at(
    connection: &Connection,
    seq: i64,
    id: RecordId,
) -> Result<Option<Shown>, Failure> {
    let Some(head) = settled::head(connection, seq, id)? else { return Ok(None) };
    let row = settled::read(connection, seq, id)?;
    Ok(row.map(|row| (head.arrival, row.map_err(Failure::from))))
}

/// The newest rows of `record_settled` that arrived before that and are wanted; those that cannot be read among them, as nobody can say.
pub(in super::super) fn newest(
    connection: &Connection,
    ledger: &Ledger,
    before: i64,
    most: usize,
    wanted: Option<&dyn Fn(&Record) -> bool>,
) -> Result<Vec<Shown>, Failure> {
    // The oldest of them on top.
    let mut newest = BinaryHeap::new();
    let mut look_into = |from: i64, to: i64| -> Result<Option<i64>, Failure> {
        let mut statement = connection.prepare_cached(ROWS)?;
        let mut rows = statement.query([from, to, before])?;
        while let Some(row) = rows.next()? {
            let found: (i64, i64) = (row.get(1)?, row.get(0)?);
            let is_full = newest.len() >= most;
            if is_full && newest.peek().is_none_or(|Reverse(oldest)| found <= *oldest) {
                continue;
            }
            if let Some(wanted) = wanted {
                let id = RecordId::from_bytes(row.get(2)?);
                if unpack(id, row.get_ref(3)?.as_blob()?).is_ok_and(|record| !wanted(&record)) {
                    continue;
                }
            }
            if is_full {
                newest.pop();
            }
            newest.push(Reverse(found));
        }
        Ok(newest.peek().filter(|_| newest.len() >= most).map(|Reverse((arrival, _))| *arrival))
    };
    let open = ledger.settled - ledger.settled.rem_euclid(RUN);
    let mut oldest = look_into(open, ledger.settled)?;
    let mut statement = connection.prepare_cached(RUNS)?;
    let mut runs = statement.query([before])?;
    while let Some(row) = runs.next()? {
        let (run, last_arrival): (i64, i64) = (row.get(0)?, row.get(1)?);
        if oldest.is_some_and(|oldest| last_arrival < oldest) {
            break;
        }
        oldest = look_into(run * RUN, (run + 1) * RUN)?;
    }
    let mut statement = connection.prepare_cached(ROW)?;
    let mut shown = Vec::with_capacity(newest.len());
    for Reverse((arrival, seq)) in newest {
        let mut rows = statement.query(params![seq])?;
        if let Some(row) = rows.next()? {
            let id = RecordId::from_bytes(row.get(0)?);
            shown.push((arrival, unpack(id, row.get_ref(1)?.as_blob()?).map_err(Failure::from)));
        }
    }
    Ok(shown)
}
