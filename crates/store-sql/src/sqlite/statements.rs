//! The statements about `record`: everything but the happy path, see [`append`](super::append).

use std::sync::LazyLock;

use oncegate_core::identity::{RecordId, Version};
use oncegate_core::record::codec::state_number;
use oncegate_core::record::{Record, State, StateKind};
use oncegate_core::response::Answer;
use oncegate_core::scope::Operation;
use oncegate_store::query::answer_bytes;
use oncegate_store::{Due, Moments, SCAN_BYTES_MAX, Scan};
use rusqlite::{CachedStatement, Connection, OptionalExtension, Rows, params};

use super::error::Failure;
use super::places::Places;
use super::row::{self, COLUMNS, COMMON, FROZEN, IDENTITY, Part, decode};

/// Where it stands in the order of arrival is the last parameter.
static INSERT: LazyLock<String> = LazyLock::new(|| insert_of(&COLUMNS));
/// The usual reserve: what it leaves out is NULL.
static INSERT_COMMON: LazyLock<String> = LazyLock::new(|| insert_of(&COLUMNS[..COMMON]));

fn insert_of(columns: &[&str]) -> String {
    let places: Vec<_> = (1..=columns.len() + 1).map(|place| format!("?{place}")).collect();
    let (columns, places) = (columns.join(", "), places.join(", "));
    format!("INSERT INTO record ({columns}, seq) VALUES ({places}) ON CONFLICT (id) DO NOTHING")
}

/// Every column but the identity, where the row is what was read: its place is the last parameter but one, its version the
/// last.
pub(super) static SWAP: LazyLock<String> = LazyLock::new(|| {
    let set = COLUMNS.iter().zip(1..).skip(IDENTITY).map(|(column, place)| format!("{column} = ?{place}"));
    let set = set.collect::<Vec<_>>().join(", ");
    format!("UPDATE record SET {set} WHERE seq = ?{SEQ} AND id = ?1 AND version = ?{EXPECTED}")
});
const SEQ: usize = COLUMNS.len() + 1;
const EXPECTED: usize = COLUMNS.len() + 2;

/// The same where it is still the same life: what was frozen when it began is there already, see
/// [`oncegate_store::Change::Swap`].
pub(super) static SWAP_WITHIN_LIFE: LazyLock<String> = LazyLock::new(|| {
    let changing = COLUMNS.iter().zip(1..).skip(IDENTITY).filter(|(column, _)| !FROZEN.contains(column));
    let set = changing.map(|(column, place)| format!("{column} = ?{place}")).collect::<Vec<_>>().join(", ");
    let same_life = format!("created_at = ?{} AND coalesce(life, token) = ?{LIFE}", place_of("created_at"));
    format!(
        "UPDATE record SET {set} WHERE seq = ?{SEQ} AND id = ?1 AND version = ?{EXPECTED} AND {same_life}"
    )
});
const LIFE: usize = COLUMNS.len() + 3;

fn place_of(column: &str) -> usize {
    COLUMNS.iter().zip(1..).find(|(name, _)| **name == column).map_or(0, |(_, place)| place)
}

/// Where a row is: through the index alone.
pub(super) const FIND: &str = "SELECT seq FROM record WHERE id = ?1";

const KEEP_ANSWER: &str = "INSERT OR REPLACE INTO answer (seq, bytes) VALUES (?1, ?2)";
const DROP_ANSWER: &str = "DELETE FROM answer WHERE seq = ?1";

/// Settled states only, past retention by the store's own clock.
const REMOVABLE: &str = "id = ?1 AND version = ?2 AND state IN (2, 3, 5) AND expires_at <= ?3";
pub(super) static REMOVE: LazyLock<String> =
    LazyLock::new(|| format!("DELETE FROM record WHERE {REMOVABLE}"));
static REMOVE_ANSWER: LazyLock<String> =
    LazyLock::new(|| format!("DELETE FROM answer WHERE seq = (SELECT seq FROM record WHERE {REMOVABLE})"));

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
    format!("{} WHERE state = ?1 AND due_at BETWEEN ?2 AND ?3 ORDER BY due_at, record.seq", *SELECT)
});

/// The same of lapsed leases: those of the sweeper (`?3` is 0) or of the completer (1).
pub(super) static LAPSED: LazyLock<String> = LazyLock::new(|| {
    format!(
        "{} WHERE state = 1 AND due_at BETWEEN ?1 AND ?2 AND (crash = 1 AND request IS NOT NULL) = ?3 ORDER BY due_at, record.seq",
        *SELECT
    )
});

/// Waiting work past its limit, however much waits.
pub(super) static OVERDUE: LazyLock<String> = LazyLock::new(|| {
    let select = SELECT.replacen("FROM record", "FROM record INDEXED BY record_overdue", 1);
    format!("{select} WHERE state = 0 AND expires_at BETWEEN ?1 AND ?2 ORDER BY expires_at, record.seq")
});

/// The statements of a batch, looked up once.
pub(super) struct Table<'c> {
    connection: &'c Connection,
    places: &'c mut Places,
    insert: CachedStatement<'c>,
    insert_common: CachedStatement<'c>,
    swap: CachedStatement<'c>,
    swap_within_life: CachedStatement<'c>,
    keep_answer: CachedStatement<'c>,
}

impl<'c> Table<'c> {
    pub(super) fn prepare(connection: &'c Connection, places: &'c mut Places) -> Result<Self, Failure> {
        Ok(Self {
            connection,
            places,
            insert: connection.prepare_cached(&INSERT)?,
            insert_common: connection.prepare_cached(&INSERT_COMMON)?,
            swap: connection.prepare_cached(&SWAP)?,
            swap_within_life: connection.prepare_cached(&SWAP_WITHIN_LIFE)?,
            keep_answer: connection.prepare_cached(KEEP_ANSWER)?,
        })
    }

    /// At this place in the order of arrival.
    pub(super) fn insert(&mut self, record: &Record, seq: i64) -> Result<bool, Failure> {
        let (statement, part, columns) = if row::is_common(record) {
            (&mut self.insert_common, Part::Common, COMMON)
        } else {
            (&mut self.insert, Part::Whole, COLUMNS.len())
        };
        row::bind(record, statement, part)?;
        statement.raw_bind_parameter(columns + 1, seq)?;
        if statement.raw_execute()? == 0 {
            return Ok(false);
        }
        match &record.state {
            State::Completed(answer) => self.keep_answer(seq, answer)?,
            // It will be settled soon.
            _ => self.places.remember(record.id, seq),
        }
        Ok(true)
    }

    pub(super) fn swap(&mut self, expect: Version, record: &Record) -> Result<bool, Failure> {
        let id = record.id;
        let remembered = self.places.forget(id);
        if let Some(seq) = remembered
            && self.swap_at(seq, expect, record)?
        {
            return Ok(true);
        }
        // Not remembered, or the row is elsewhere by now, or its version is another.
        match find(self.connection, id)? {
            Some(seq) if remembered != Some(seq) => self.swap_at(seq, expect, record),
            _ => Ok(false),
        }
    }

    fn swap_at(&mut self, seq: i64, expect: Version, record: &Record) -> Result<bool, Failure> {
        if !self.swap_within_life(seq, expect, record)? && !self.swap_any(seq, expect, record)? {
            return Ok(false);
        }
        match &record.state {
            State::Completed(answer) => self.keep_answer(seq, answer)?,
            _ => drop(self.connection.prepare_cached(DROP_ANSWER)?.execute([seq])?),
        }
        Ok(true)
    }

    fn keep_answer(&mut self, seq: i64, answer: &Answer) -> Result<(), Failure> {
        self.keep_answer.raw_bind_parameter(1, seq)?;
        self.keep_answer.raw_bind_parameter(2, answer.encode())?;
        self.keep_answer.raw_execute()?;
        Ok(())
    }

    fn swap_within_life(&mut self, seq: i64, expect: Version, record: &Record) -> Result<bool, Failure> {
        let statement = &mut self.swap_within_life;
        row::bind(record, statement, Part::WithinLife)?;
        statement.raw_bind_parameter(SEQ, seq)?;
        statement.raw_bind_parameter(EXPECTED, expect.as_raw())?;
        statement.raw_bind_parameter(LIFE, &record.life.as_bytes()[..])?;
        Ok(statement.raw_execute()? == 1)
    }

    /// The answer first: it is found through the record, on the same conditions.
    pub(super) fn remove(&self, id: RecordId, expect: Version, before: i64) -> Result<bool, Failure> {
        let conditions = params![&id.as_bytes()[..], expect.as_raw(), before];
        self.connection.prepare_cached(&REMOVE_ANSWER)?.execute(conditions)?;
        Ok(self.connection.prepare_cached(&REMOVE)?.execute(conditions)? == 1)
    }

    fn swap_any(&mut self, seq: i64, expect: Version, record: &Record) -> Result<bool, Failure> {
        row::bind(record, &mut self.swap, Part::Changing)?;
        self.swap.raw_bind_parameter(SEQ, seq)?;
        self.swap.raw_bind_parameter(EXPECTED, expect.as_raw())?;
        Ok(self.swap.raw_execute()? == 1)
    }
}

pub(super) fn find(connection: &Connection, id: RecordId) -> Result<Option<i64>, Failure> {
    let mut statement = connection.prepare_cached(FIND)?;
    Ok(statement.query_row([&id.as_bytes()[..]], |row| row.get(0)).optional()?)
}

/// Runs a statement that gives nothing.
pub(super) fn run(connection: &Connection, sql: &str) -> Result<(), Failure> {
    connection.prepare_cached(sql)?.execute([])?;
    Ok(())
}

/// One row as it was found: the outer error is the database's, the inner one the row's.
pub(super) type Found = Result<Option<Record>, Failure>;

pub(super) fn read_one(connection: &Connection, id: RecordId) -> Result<Found, Failure> {
    let mut statement = connection.prepare_cached(&READ)?;
    let row = statement.query_row([&id.as_bytes()[..]], |row| Ok(decode(row))).optional()?;
    Ok(row.transpose())
}

pub(super) fn due(
    connection: &Connection,
    what: Due,
    moments: Moments,
    limit: usize,
) -> Result<Scan, Failure> {
    let mut scan = Scan::default();
    let (from, by) = (moments.from.as_micros(), moments.by.as_micros());
    let mut of_state = |state: StateKind| -> Result<(), Failure> {
        let mut statement = connection.prepare_cached(&DUE)?;
        collect(statement.query(params![state_number(state), from, by])?, limit, &mut scan)
    };
    match what {
        Due::Pending => of_state(StateKind::Pending)?,
        Due::Doubted => of_state(StateKind::Unknown)?,
        Due::Lapsed | Due::Resumable => {
            let mut statement = connection.prepare_cached(&LAPSED)?;
            let rows = statement.query(params![from, by, what == Due::Resumable])?;
            collect(rows, limit, &mut scan)?;
        }
        Due::Expired => {
            for state in [StateKind::Completed, StateKind::FailedRetryable, StateKind::Expired] {
                of_state(state)?;
            }
            let mut statement = connection.prepare_cached(&OVERDUE)?;
            collect(statement.query([from, by])?, limit, &mut scan)?;
        }
    }
    in_order(&mut scan, what, limit);
    Ok(scan)
}

/// Doubts that are due, but for those of some operations.
pub(super) fn doubted_except(
    connection: &Connection,
    except: &[Operation],
    moments: Moments,
    limit: usize,
) -> Result<Scan, Failure> {
    let mut scan = Scan::default();
    let mut statement = connection.prepare_cached(&DUE)?;
    let (from, by) = (moments.from.as_micros(), moments.by.as_micros());
    let rows = statement.query(params![state_number(StateKind::Unknown), from, by])?;
    collect_except(rows, except, limit, &mut scan)?;
    Ok(scan)
}

/// What several statements have found, as one scan.
pub(super) fn in_order(scan: &mut Scan, what: Due, limit: usize) {
    scan.records.sort_by_key(|record| what.moment(record));
    scan.is_cut |= scan.records.len() > limit;
    scan.records.truncate(limit);
}

/// Adds up to `limit` rows, and notes whether there were more. One that cannot be read is counted and passed over: it must not stand in the way of others.
fn collect(rows: Rows<'_>, limit: usize, into: &mut Scan) -> Result<(), Failure> {
    collect_except(rows, &[], limit, into)
}

/// The same, without rows of some operations: those are not decoded, so passing over them is cheap.
fn collect_except(
    mut rows: Rows<'_>,
    except: &[Operation],
    limit: usize,
    into: &mut Scan,
) -> Result<(), Failure> {
    let mut bytes = 0;
    let mut count = 0;
    while let Some(row) = rows.next()? {
        if !except.is_empty() {
            let operation = row.get_ref("operation")?.as_bytes().unwrap_or_default();
            if except.iter().any(|one| one.as_str().as_bytes() == operation) {
                continue;
            }
        }
        if count >= limit || bytes >= SCAN_BYTES_MAX {
            into.is_cut = true;
            break;
        }
        match decode(row) {
            Ok(record) => {
                bytes += answer_bytes(&record);
                count += 1;
                into.records.push(record);
            }
            Err(_) => into.unreadable += 1,
        }
    }
    Ok(())
}
