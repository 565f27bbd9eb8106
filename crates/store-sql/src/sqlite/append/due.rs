//! What of the two tables is due.

use std::collections::BinaryHeap;
use std::sync::Arc;

use oncegate_core::identity::RecordId;
use oncegate_core::record::Record;
use oncegate_store::query::answer_bytes;
use oncegate_store::{Due, Moments, SCAN_BYTES_MAX, Scan};
use rusqlite::{Connection, params};

use super::super::error::Failure;
use super::ids::RUN;
use super::packed::unpack;
use super::reserved::Row;
use super::{Ledger, Memory};

/// Runs that have something, the one whose first row ends first before the others.
pub(in super::super) const RUNS: &str =
    "SELECT run, first_end FROM record_run WHERE first_end <= ?2 AND last_end >= ?1 ORDER BY first_end";
pub(in super::super) const ENDED: &str = "SELECT seq, expires_at FROM record_settled WHERE seq >= ?1 AND seq < ?2 \
     AND expires_at BETWEEN ?3 AND ?4";
pub(in super::super) const ROW: &str = "SELECT id, bytes FROM record_settled WHERE seq = ?1";

/// Leases that have lapsed; and how many reservations cannot be read, which may be among them.
pub(in super::super) fn lapsed(memory: &Memory, what: Due, moments: Moments) -> (Vec<Arc<Record>>, usize) {
    let (mut found, mut unreadable) = (Vec::new(), 0);
    for (_, held) in memory.reserved.all() {
        match &held.row {
            Row::Readable(record) if what.moment(record).is_some_and(|moment| moments.contain(moment)) => {
                found.push((held.arrival, Arc::clone(record)));
            }
            Row::Readable(_) => {}
            Row::Unreadable { .. } => unreadable += 1,
        }
    }
    found.sort_unstable_by_key(|(arrival, _)| *arrival);
    (found.into_iter().map(|(_, record)| record).collect(), unreadable)
}

/// Adds completed rows past retention, those that ended first before the others. What cannot be read is counted and passed over.
pub(in super::super) fn expired(
    connection: &Connection,
    ledger: &Ledger,
    moments: Moments,
    limit: usize,
    into: &mut Scan,
) -> Result<(), Failure> {
    let (mut bytes, mut read, mut unreadable) = (0, 0, 0);
    let mut statement = connection.prepare_cached(ROW)?;
    loop {
        // One more than is asked for says whether there are more; and as many more as there were that cannot be read.
        let most = limit.saturating_add(1).saturating_add(2 * unreadable);
        let found = first_to_end(connection, ledger, moments, most)?;
        let is_all = found.len() < most;
        let before = read;
        for (_, seq) in found.into_iter().skip(read) {
            if read - unreadable >= limit || bytes >= SCAN_BYTES_MAX {
                into.is_cut = true;
                into.unreadable += unreadable;
                return Ok(());
            }
            let mut rows = statement.query([seq])?;
            let Some(row) = rows.next()? else { continue };
            let id = RecordId::from_bytes(row.get(0)?);
            read += 1;
            match unpack(id, row.get_ref(1)?.as_blob()?) {
                Ok(record) => {
                    bytes += answer_bytes(&record);
                    into.records.push(record);
                }
                Err(_) => unreadable += 1,
            }
        }
        if is_all || read == before {
            into.unreadable += unreadable;
            return Ok(());
        }
    }
}

/// When they end, and where they are.
fn first_to_end(
    connection: &Connection,
    ledger: &Ledger,
    moments: Moments,
    most: usize,
) -> Result<Vec<(i64, i64)>, Failure> {
    let (from, by) = (moments.from.as_micros(), moments.by.as_micros());
    // The latest of them on top.
    let mut first = BinaryHeap::new();
    let mut look_into = |from_seq: i64, to_seq: i64| -> Result<Option<i64>, Failure> {
        let mut statement = connection.prepare_cached(ENDED)?;
        let mut rows = statement.query(params![from_seq, to_seq, from, by])?;
        while let Some(row) = rows.next()? {
            let found: (i64, i64) = (row.get(1)?, row.get(0)?);
            if first.len() < most {
                first.push(found);
            } else if first.peek().is_some_and(|latest| found < *latest) {
                first.pop();
                first.push(found);
            }
        }
        Ok(first.peek().filter(|_| first.len() >= most).map(|(end, _)| *end))
    };
    // What is in no whole run yet, and then the runs, until none can have a row that ends sooner.
    let open = ledger.settled - ledger.settled.rem_euclid(RUN);
    let mut latest = look_into(open, ledger.settled)?;
    let mut statement = connection.prepare_cached(RUNS)?;
    let mut runs = statement.query([from, by])?;
    while let Some(row) = runs.next()? {
        let (run, first_end): (i64, i64) = (row.get(0)?, row.get(1)?);
        if latest.is_some_and(|latest| first_end > latest) {
            break;
        }
        latest = look_into(run * RUN, (run + 1) * RUN)?;
    }
    Ok(first.into_sorted_vec())
}
