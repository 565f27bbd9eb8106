//! What was completed: rows in the order of completion, and what is known of every run of them.
//!
//! A run is 4,096 places. Once they were all given away its ids are written down, and what its rows have in common: how many there are, when
//! the first of them ends. So a process that starts reads ids and not answers, and a scan looks into the runs that have something for it.

use oncegate_core::codec::Malformed;
use oncegate_core::identity::{RecordId, Version};
use oncegate_core::record::Record;
use oncegate_core::time::Timestamp;
use rusqlite::{CachedStatement, Connection, OptionalExtension, params};

use super::super::error::Failure;
use super::ids::{Ids, RUN, WRITTEN_BYTES, offset};
use super::packed::{pack, unpack};

pub(in super::super) const ADD: &str = "INSERT INTO record_settled (seq, id, arrival, version, expires_at, bytes) VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
pub(in super::super) const HEAD: &str =
    "SELECT arrival, version FROM record_settled WHERE seq = ?1 AND id = ?2";
pub(in super::super) const READ: &str = "SELECT bytes FROM record_settled WHERE seq = ?1 AND id = ?2";
pub(in super::super) const DROP: &str = "DELETE FROM record_settled WHERE seq = ?1 AND id = ?2";
/// Past retention by the store's own clock.
pub(in super::super) const REMOVE: &str =
    "DELETE FROM record_settled WHERE seq = ?1 AND id = ?2 AND version = ?3 AND expires_at <= ?4";
const FIRST: &str = "SELECT seq FROM record_settled ORDER BY seq LIMIT 1";
const IDS: &str = "SELECT seq, id FROM record_settled WHERE seq >= ?1 AND seq < ?2 ORDER BY seq";
const SURVEY: &str =
    "SELECT seq, id, arrival, expires_at FROM record_settled WHERE seq >= ?1 AND seq < ?2 ORDER BY seq";
const RUN_IDS: &str = "SELECT ids FROM record_run_ids WHERE run = ?1";
const NEXT_RUN: &str = "SELECT run FROM record_run WHERE run >= ?1 ORDER BY run LIMIT 1";
const PUT_RUN: &str = "INSERT OR REPLACE INTO record_run (run, kept, first_end, last_end, first_arrival, last_arrival) \
     VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
const PUT_RUN_IDS: &str = "INSERT OR REPLACE INTO record_run_ids (run, ids) VALUES (?1, ?2)";
const WRITTEN: &str = "SELECT length(ids) FROM record_run_ids WHERE run = ?1";
const DROP_RUN: &str = "DELETE FROM record_run WHERE run = ?1";
const DROP_RUN_IDS: &str = "DELETE FROM record_run_ids WHERE run = ?1";

/// Appends rows.
pub(super) struct Appending<'c> {
    statement: CachedStatement<'c>,
    bytes: Vec<u8>,
}

impl<'c> Appending<'c> {
    pub(super) fn prepare(connection: &'c Connection) -> Result<Self, Failure> {
        Ok(Self { statement: connection.prepare_cached(ADD)?, bytes: Vec::with_capacity(1024) })
    }

    pub(super) fn add(&mut self, seq: i64, arrival: i64, record: &Record) -> Result<(), Failure> {
        self.bytes.clear();
        pack(record, &mut self.bytes);
        let statement = &mut self.statement;
        statement.raw_bind_parameter(1, seq)?;
        statement.raw_bind_parameter(2, &record.id.as_bytes()[..])?;
        statement.raw_bind_parameter(3, arrival)?;
        statement.raw_bind_parameter(4, record.version.as_raw())?;
        statement.raw_bind_parameter(5, record.expires_at.map(Timestamp::as_micros))?;
        statement.raw_bind_parameter(6, &self.bytes[..])?;
        statement.raw_execute()?;
        Ok(())
    }
}

/// What a row says without its contents.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Head {
    pub(in super::super) seq: i64,
    pub(in super::super) arrival: i64,
    pub(in super::super) version: Version,
}

/// The row of this id at this place, if it is still there.
pub(in super::super) fn head(
    connection: &Connection,
    seq: i64,
    id: RecordId,
) -> Result<Option<Head>, Failure> {
    let mut statement = connection.prepare_cached(HEAD)?;
    let head = |row: &rusqlite::Row<'_>| {
        Ok(Head { seq, arrival: row.get(0)?, version: Version::from_raw(row.get(1)?) })
    };
    Ok(statement.query_row(params![seq, &id.as_bytes()[..]], head).optional()?)
}

/// The same, whole. The outer error is the database's, the inner one the row's.
pub(in super::super) fn read(
    connection: &Connection,
    seq: i64,
    id: RecordId,
) -> Result<Option<Result<Record, Malformed>>, Failure> {
    let mut statement = connection.prepare_cached(READ)?;
    let mut rows = statement.query(params![seq, &id.as_bytes()[..]])?;
    let Some(row) = rows.next()? else { return Ok(None) };
    Ok(Some(unpack(id, row.get_ref(0)?.as_blob()?)))
}

/// Takes note of the ids of these places: of whole runs as they are written down, of the others row by row.
pub(super) fn read_ids(connection: &Connection, from: i64, to: i64, ids: &mut Ids) -> Result<(), Failure> {
    let mut next = from;
    while next < to {
        if next % RUN == 0 {
            // Runs in between have no row left; and behind the last one there is only what is not whole.
            let mut statement = connection.prepare_cached(NEXT_RUN)?;
            let run: Option<i64> = statement.query_row([next / RUN], |row| row.get(0)).optional()?;
            if let Some(run) = run.filter(|run| (run + 1) * RUN <= to) {
                read_run(connection, run, ids)?;
                next = (run + 1) * RUN;
                continue;
            }
            next = next.max(to - to % RUN);
        }
        let end = to.min((next / RUN + 1) * RUN);
        let mut statement = connection.prepare_cached(IDS)?;
        let mut rows = statement.query([next, end])?;
        while let Some(row) = rows.next()? {
            ids.insert(RecordId::from_bytes(row.get(1)?), row.get(0)?);
        }
        next = end;
    }
    Ok(())
}

fn read_run(connection: &Connection, run: i64, ids: &mut Ids) -> Result<(), Failure> {
    let mut statement = connection.prepare_cached(RUN_IDS)?;
    let mut rows = statement.query([run])?;
    let written: &[u8] = match rows.next()? {
        Some(row) => row.get_ref(0)?.as_blob()?,
        None => &[],
    };
    // What it does not say would be taken for absent, so nothing may be missing.
    if written.is_empty() || !written.len().is_multiple_of(WRITTEN_BYTES) {
        return Err(Malformed { what: "run of ids" }.into());
    }
    ids.insert_run(run, written);
    Ok(())
}

/// The first place that is taken.
pub(super) fn first(connection: &Connection) -> Result<Option<i64>, Failure> {
    Ok(connection.prepare_cached(FIRST)?.query_row([], |row| row.get(0)).optional()?)
}

/// Looks at a run whose places were all given away, and writes down what is there.
pub(super) fn survey(connection: &Connection, run: i64) -> Result<(), Failure> {
    let mut written = Vec::with_capacity(WRITTEN_BYTES * 4096);
    let mut ends: Option<(i64, i64)> = None;
    let mut arrivals = (i64::MAX, i64::MIN);
    let mut statement = connection.prepare_cached(SURVEY)?;
    let mut rows = statement.query([run * RUN, (run + 1) * RUN])?;
    while let Some(row) = rows.next()? {
        let (seq, arrival, end): (i64, i64, Option<i64>) = (row.get(0)?, row.get(2)?, row.get(3)?);
        written.extend_from_slice(&offset(seq).to_le_bytes());
        written.extend_from_slice(row.get_ref(1)?.as_blob()?);
        arrivals = (arrivals.0.min(arrival), arrivals.1.max(arrival));
        if let Some(end) = end {
            ends = Some(ends.map_or((end, end), |(first, last)| (first.min(end), last.max(end))));
        }
    }
    let count = written.len() / WRITTEN_BYTES;
    if count == 0 {
        connection.prepare_cached(DROP_RUN)?.execute([run])?;
        connection.prepare_cached(DROP_RUN_IDS)?.execute([run])?;
        return Ok(());
    }
    let (first_end, last_end) = (ends.map(|ends| ends.0), ends.map(|ends| ends.1));
    let rows = i64::try_from(count).unwrap_or(i64::MAX);
    let bound = params![run, rows, first_end, last_end, arrivals.0, arrivals.1];
    connection.prepare_cached(PUT_RUN)?.execute(bound)?;
    // Ids of rows that are gone hurt nobody: they are written down anew when they are half of all.
    let before: Option<i64> =
        connection.prepare_cached(WRITTEN)?.query_row([run], |row| row.get(0)).optional()?;
    let before = before.and_then(|bytes| usize::try_from(bytes).ok());
    if before.is_none_or(|before| written.len() * 2 <= before) {
        connection.prepare_cached(PUT_RUN_IDS)?.execute(params![run, written])?;
    }
    Ok(())
}
