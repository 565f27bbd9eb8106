//! Brings records of schemas 1 to 11 into the present table. Those had a column per field and,
//! from schema 8 on, two more tables without an index over ids.
//!
//! **Invariant:** every id of the file has one row afterwards. A row that cannot be decoded keeps
//! its id, and its bytes, and refuses its key. Not here: when this runs, and what else a migration
//! does (`migrate`).

use std::sync::LazyLock;

use oncegate_core::identity::RecordId;
use oncegate_core::record::{Record, StateKind};
use oncegate_store::row::number_of;
use rusqlite::{Connection, OptionalExtension, Statement, params};

use super::error::Failure;
use super::row::{COLUMNS, RecordRow};

mod columns;
mod packed;

/// Progress is logged each time so many records were moved.
const PROGRESS_ROWS: u64 = 100_000;

/// The new table, until the old one is gone.
pub(super) const NEW_TABLE: &str = "record_new";

static INSERT: LazyLock<String> = LazyLock::new(|| {
    let places: Vec<_> = (1..=COLUMNS.len() + 1).map(|place| format!("?{place}")).collect();
    format!("INSERT INTO {NEW_TABLE} ({}, seq) VALUES ({})", COLUMNS.join(", "), places.join(", "))
});
/// For a row that cannot be decoded.
const INSERT_UNREADABLE: &str =
    "INSERT INTO record_new (id, version, state, body, seq) VALUES (?1, ?2, ?3, ?4, ?5)";
const BATCHES: &str = "SELECT seq, bytes FROM record_reserved WHERE seq > 0 ORDER BY seq";
const SETTLED: &str = "SELECT id, arrival, version, bytes FROM record_settled ORDER BY seq";
const COUNT: &str = "SELECT (SELECT count(*) FROM record) + (SELECT count(*) FROM record_settled)";

/// Moves every record into [`NEW_TABLE`], inside the transaction that `connection` is in.
pub(super) fn move_records(connection: &Connection) -> Result<(), Failure> {
    let total: i64 = connection.query_row(COUNT, [], |row| row.get(0))?;
    let mut moving = Moving {
        insert: connection.prepare(&INSERT)?,
        insert_unreadable: connection.prepare(INSERT_UNREADABLE)?,
        is_moved: connection.prepare("SELECT 1 FROM record_new WHERE id = ?1")?,
        moved: 0,
        total: u64::try_from(total).unwrap_or(0),
    };
    moving.move_columns(connection)?;
    moving.move_settled(connection)?;
    // Last: a batch goes on naming records that were settled meanwhile, and those have been moved
    // by now.
    moving.move_reserved(connection)?;
    let moved = moving.moved;
    if moved > 0 {
        tracing::info!(moved, "brought stored records to the present layout");
    }
    Ok(())
}

struct Moving<'c> {
    insert: Statement<'c>,
    insert_unreadable: Statement<'c>,
    is_moved: Statement<'c>,
    moved: u64,
    total: u64,
}

impl Moving<'_> {
    fn move_columns(&mut self, connection: &Connection) -> Result<(), Failure> {
        let columns = columns::COLUMNS.map(|column| format!("record.{column}"));
        let raw = columns.clone().map(|column| format!("quote({column})")).join(" || ',' || ");
        let sql = format!(
            "SELECT {}, answer.bytes, record.seq FROM record LEFT JOIN answer ON answer.seq = record.seq \
             ORDER BY record.seq",
            columns.join(", ")
        );
        let mut raw =
            connection.prepare(&format!("SELECT id, version, state, {raw} FROM record WHERE seq = ?1"))?;
        let mut statement = connection.prepare(&sql)?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            let seq: i64 = row.get("seq")?;
            match columns::decode(row) {
                Ok(record) => self.put(&record, seq)?,
                Err(problem) => {
                    let (id, version, state, text) = raw.query_row([seq], |row| {
                        Ok((row.get::<_, [u8; 16]>(0)?, row.get(1)?, row.get(2)?, row.get::<_, String>(3)?))
                    })?;
                    let damaged =
                        Damaged { id: RecordId::from_bytes(id), version, state, bytes: text.as_bytes() };
                    self.put_unreadable(&damaged, seq, &problem)?;
                }
            }
        }
        Ok(())
    }

    fn move_settled(&mut self, connection: &Connection) -> Result<(), Failure> {
        let mut statement = connection.prepare(SETTLED)?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            let (id, seq) = (RecordId::from_bytes(row.get(0)?), row.get(1)?);
            let bytes = row.get_ref(3)?.as_blob()?;
            match packed::unpack(id, bytes) {
                Ok(record) => self.put(&record, seq)?,
                Err(problem) => {
                    let state = number_of(StateKind::Completed);
                    let damaged = Damaged { id, version: row.get(2)?, state, bytes };
                    self.put_unreadable(&damaged, seq, &problem.into())?;
                }
            }
        }
        Ok(())
    }

    fn move_reserved(&mut self, connection: &Connection) -> Result<(), Failure> {
        let mut statement = connection.prepare(BATCHES)?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            let bytes = row.get_ref(1)?.as_blob()?;
            let batch =
                packed::reservations(bytes).map_err(|_| DamagedBatch { seq: row.get(0).unwrap_or(0) })?;
            for (id, seq, bytes) in batch {
                if self.is_moved.query_row([&id.as_bytes()[..]], |_| Ok(())).optional()?.is_some() {
                    continue;
                }
                match packed::unpack(id, bytes) {
                    Ok(record) => self.put(&record, seq)?,
                    Err(problem) => {
                        let state = number_of(StateKind::InProgress);
                        let damaged = Damaged { id, version: 0, state, bytes };
                        self.put_unreadable(&damaged, seq, &problem.into())?;
                    }
                }
            }
        }
        Ok(())
    }

    fn put(&mut self, record: &Record, seq: i64) -> Result<(), Failure> {
        RecordRow::new(record).bind(&mut self.insert)?;
        self.insert.raw_bind_parameter(COLUMNS.len() + 1, seq)?;
        self.insert.raw_execute()?;
        self.count();
        Ok(())
    }

    fn put_unreadable(&mut self, row: &Damaged<'_>, seq: i64, problem: &Failure) -> Result<(), Failure> {
        tracing::error!(record = %row.id, %problem, "a stored record is damaged; its key stays refused");
        let bound = params![&row.id.as_bytes()[..], row.version, row.state, row.bytes, seq];
        self.insert_unreadable.execute(bound)?;
        self.count();
        Ok(())
    }

    fn count(&mut self) {
        self.moved += 1;
        if self.moved.is_multiple_of(PROGRESS_ROWS) {
            tracing::info!(
                moved = self.moved,
                total = self.total,
                "bringing stored records to the present layout"
            );
        }
    }
}

/// A row that cannot be decoded. Its bytes are kept.
struct Damaged<'b> {
    id: RecordId,
    version: i64,
    state: i16,
    bytes: &'b [u8],
}

/// A row of `record_reserved` is damaged, so some of its keys are not known, and none may be taken
/// for free.
#[derive(Debug)]
struct DamagedBatch {
    seq: i64,
}

impl std::fmt::Display for DamagedBatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "the row {} of record_reserved is damaged: which keys it reserved is not known for sure. The file was \
             not changed. Restore a backup; or, once no operation from that time can still be retried, delete \
             this row and start again",
            self.seq
        )
    }
}

impl std::error::Error for DamagedBatch {}
