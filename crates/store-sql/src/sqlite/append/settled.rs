//! What was completed: rows in the order of completion, and what is known of every run of them.
//!
//! A run is 4,096 places. Once they were all given away its ids are written down, and what its rows have in common: how many there are, when
//! the first of them ends. So a process that starts reads ids and not answers, and a scan looks into the runs that have something for it.

use std::borrow::Cow;

use oncegate_core::codec::Malformed;
use oncegate_core::identity::{RecordId, Version};
use oncegate_core::record::Record;
use oncegate_core::time::Timestamp;
use rusqlite::{CachedStatement, Connection, OptionalExtension, params};

use super::super::error::Failure;
use super::ids::{Ids, RUN, WRITTEN_BYTES};
use super::packed::{is_settlement, pack, unpack};

pub(in super::super) const ADD: &str = "INSERT INTO record_settled (seq, id, arrival, version, expires_at, bytes) VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
pub(in super::super) const HEAD: &str =
    "SELECT arrival, version FROM record_settled WHERE seq = ?1 AND id = ?2";
pub(in super::super) const READ: &str = "SELECT bytes FROM record_settled WHERE seq = ?1 AND id = ?2";
pub(in super::super) const DROP: &str = "DELETE FROM record_settled WHERE seq = ?1 AND id = ?2";
/// Past retention by the store's own clock.
pub(in super::super) const REMOVE: &str =
    "DELETE FROM record_settled WHERE seq = ?1 AND id = ?2 AND version = ?3 AND expires_at <= ?4";
const FIRST: &str = "SELECT seq FROM record_settled ORDER BY seq LIMIT 1";
const LAST: &str = "SELECT seq, id FROM record_settled ORDER BY seq DESC LIMIT 1";
const IDS: &str = "SELECT seq, id FROM record_settled WHERE seq >= ?1 AND seq < ?2 ORDER BY seq";
const RUN_IDS: &str = "SELECT ids FROM record_run_ids WHERE run = ?1";
const NEXT_RUN: &str = "SELECT run FROM record_run WHERE run >= ?1 ORDER BY run LIMIT 1";
/// What the rows of the run `?1` have in common. Nothing, if there are none.
const PUT_RUN: &str = "INSERT OR REPLACE INTO record_run (run, kept, first_end, last_end, first_arrival, last_arrival) \
     SELECT ?1, count(*), min(expires_at), max(expires_at), min(arrival), max(arrival) FROM record_settled \
     WHERE seq >= ?1 * 4096 AND seq < (?1 + 1) * 4096 HAVING count(*) > 0 RETURNING kept";
/// Its ids, each behind its place in two bytes, the lower one first.
const PUT_RUN_IDS: &str = "INSERT OR REPLACE INTO record_run_ids (run, ids) \
     SELECT ?1, unhex(group_concat(printf('%02x%02x', seq & 255, (seq >> 8) & 15) || hex(id), '')) FROM record_settled \
     WHERE seq >= ?1 * 4096 AND seq < (?1 + 1) * 4096 HAVING count(*) > 0";
/// How many ids are written down.
const WRITTEN: &str = "SELECT length(ids) / 18 FROM record_run_ids WHERE run = ?1";
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

/// Whether the file is at the mark `?1`, at which the two tables lacked this id, and `record` lacks it too.
pub(in super::super) const IS_NEW: &str = "SELECT count(*) AS number FROM record_reserved \
     WHERE seq = 0 AND mark = ?1 AND NOT EXISTS (SELECT 1 FROM record WHERE id = ?2)";

/// The same of the id `?7`, in a transaction that begins after [`ADD_JOINED`] was committed, in the same call and with its values:
/// the file is at the mark that it has set, and the two tables have one row more.
pub(in super::super) const IS_NEW_AFTER: &str = "SELECT count(*) AS number FROM record_reserved \
     WHERE seq = 0 AND mark = ?2 AND NOT EXISTS (SELECT 1 FROM record WHERE id = ?7)";

/// Appends a row in a caller's transaction, where the file is at the mark `?1` and `record` has
/// none of this id; the mark is `?2` from then on. (sqlx counts the places that a statement leaves
/// out, and binds those of later ones further on: hence their order.) Otherwise the row is
/// nothing, which its column refuses: it fails, and a call of several statements runs none after
/// it.
const ADD_JOINED: &str = "UPDATE record_reserved SET generation = generation + 1, mark = ?2, arrived = 1 + max(arrived, coalesce((SELECT max(seq) FROM record), 0)), \
     settled = settled + 1 WHERE seq = 0 AND mark = ?1; \
     INSERT INTO record_settled (seq, id, arrival, version, expires_at, bytes) SELECT settled - 1, ?3, arrived, ?4, ?5, \
     CASE WHEN changes() = 1 AND NOT EXISTS (SELECT 1 FROM record WHERE id = ?3) THEN ?6 END FROM record_reserved WHERE seq = 0";

/// The statements by which a caller's transaction appends a row at this place: [`ADD_JOINED`], and where it is the last one of its run, the [`survey`] of that. What is bound is the
/// mark as it was and as it becomes, the id, the version, the end of its retention, and [`packed`].
pub(in super::super) fn add_joined(place: i64) -> Cow<'static, str> {
    if place % RUN < RUN - 1 {
        return Cow::Borrowed(ADD_JOINED);
    }
    // The number is written out: `?1` is another one here.
    let run = (place / RUN).to_string();
    let [put, put_ids] = [PUT_RUN, PUT_RUN_IDS].map(|sql| sql.replace("?1", &run));
    Cow::Owned([ADD_JOINED, &put, &put_ids].join("; "))
}

/// A row as it is kept, if it may be kept here.
pub(in super::super) fn packed(record: &Record) -> Option<Vec<u8>> {
    is_settlement(record).then(|| {
        let mut bytes = Vec::with_capacity(512);
        pack(record, &mut bytes);
        bytes
    })
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

/// The last row there is: its place and its id.
pub(super) fn last(connection: &Connection) -> Result<Option<(i64, RecordId)>, Failure> {
    let last = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?));
    let found: Option<(i64, [u8; 16])> = connection.prepare_cached(LAST)?.query_row([], last).optional()?;
    Ok(found.map(|(seq, id)| (seq, RecordId::from_bytes(id))))
}

/// Looks at a run whose places were all given away, and writes down what is there.
pub(super) fn survey(connection: &Connection, run: i64) -> Result<(), Failure> {
    let kept: Option<i64> =
        connection.prepare_cached(PUT_RUN)?.query_row([run], |row| row.get(0)).optional()?;
    let Some(kept) = kept else {
        connection.prepare_cached(DROP_RUN)?.execute([run])?;
        connection.prepare_cached(DROP_RUN_IDS)?.execute([run])?;
        return Ok(());
    };
    // Ids of rows that are gone hurt nobody: they are written down anew when they are half of all.
    let before: Option<i64> =
        connection.prepare_cached(WRITTEN)?.query_row([run], |row| row.get(0)).optional()?;
    if before.is_none_or(|before| kept * 2 <= before) {
        connection.prepare_cached(PUT_RUN_IDS)?.execute([run])?;
    }
    Ok(())
}
