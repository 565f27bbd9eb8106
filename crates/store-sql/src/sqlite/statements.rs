//! The statements about `record`.

use std::sync::LazyLock;

use oncegate_core::identity::{RecordId, Version};
use oncegate_core::record::{Record, StateKind};
use oncegate_core::scope::Operation;
use oncegate_store::query::answer_bytes;
use oncegate_store::row::{RESUMABLE, number_of};
use oncegate_store::{Due, Moments, SCAN_BYTES_MAX, Scan};
use rusqlite::{CachedStatement, Connection, OptionalExtension, Rows, params};

use super::error::Failure;
use super::row::{COLUMNS, RecordRow, decode};

const PENDING: i16 = number_of(StateKind::Pending);
const IN_PROGRESS: i16 = number_of(StateKind::InProgress);
const COMPLETED: i16 = number_of(StateKind::Completed);
const FAILED_RETRYABLE: i16 = number_of(StateKind::FailedRetryable);
const UNKNOWN: i16 = number_of(StateKind::Unknown);
const EXPIRED: i16 = number_of(StateKind::Expired);

/// `INSERT`, up to what a clash does.
pub(super) static INSERT_INTO: LazyLock<String> = LazyLock::new(|| {
    let places: Vec<_> = (1..=COLUMNS.len()).map(|place| format!("?{place}")).collect();
    format!("INSERT INTO record ({}) VALUES ({})", COLUMNS.join(", "), places.join(", "))
});
/// The unique index over `id` decides.
pub(super) static INSERT: LazyLock<String> =
    LazyLock::new(|| format!("{} ON CONFLICT (id) DO NOTHING", *INSERT_INTO));
/// The version that was decided upon is the last parameter.
pub(super) static SWAP: LazyLock<String> = LazyLock::new(|| {
    let set: Vec<_> =
        COLUMNS.iter().zip(1..).skip(1).map(|(column, place)| format!("{column} = ?{place}")).collect();
    format!("UPDATE record SET {} WHERE id = ?1 AND version = ?{EXPECTED}", set.join(", "))
});
pub(super) const EXPECTED: usize = COLUMNS.len() + 1;
/// Settled states only, past retention by the store's own clock.
pub(super) static REMOVE: LazyLock<String> = LazyLock::new(|| {
    format!(
        "DELETE FROM record WHERE id = ?1 AND version = ?2 \
         AND state IN ({COMPLETED}, {FAILED_RETRYABLE}, {EXPIRED}) AND due_at <= ?3"
    )
});
pub(super) const READ: &str = "SELECT id, body, response FROM record WHERE id = ?1";

/// What is due in one state, the longest first. `seq` settles ties, so that passes are repeatable.
pub(super) const DUE: &str = "SELECT id, body, response FROM record WHERE state = ?1 AND due_at BETWEEN ?2 AND ?3 \
     ORDER BY due_at, seq";
/// Waiting work that is past its limit, however much waits.
pub(super) static OVERDUE: LazyLock<String> = LazyLock::new(|| {
    format!(
        "SELECT id, body, response FROM record INDEXED BY record_overdue WHERE state = {PENDING} \
         AND give_up_at BETWEEN ?1 AND ?2 ORDER BY give_up_at, seq"
    )
});

/// The statements of a batch, looked up once.
pub(super) struct Table<'c> {
    insert: CachedStatement<'c>,
    swap: CachedStatement<'c>,
}

impl<'c> Table<'c> {
    pub(super) fn prepare(connection: &'c Connection) -> Result<Self, Failure> {
        Ok(Self { insert: connection.prepare_cached(&INSERT)?, swap: connection.prepare_cached(&SWAP)? })
    }

    /// Whether it was inserted.
    pub(super) fn insert(&mut self, record: &Record) -> Result<bool, Failure> {
        RecordRow::new(record).bind(&mut self.insert)?;
        Ok(self.insert.raw_execute()? == 1)
    }

    /// Whether the row was there with the expected version.
    pub(super) fn swap(&mut self, expect: Version, record: &Record) -> Result<bool, Failure> {
        RecordRow::new(record).bind(&mut self.swap)?;
        self.swap.raw_bind_parameter(EXPECTED, expect.as_raw())?;
        Ok(self.swap.raw_execute()? == 1)
    }
}

/// Whether a row that ended before this moment was removed.
pub(super) fn remove(
    connection: &Connection,
    id: RecordId,
    expect: Version,
    before: i64,
) -> Result<bool, Failure> {
    let bound = params![&id.as_bytes()[..], expect.as_raw(), before];
    Ok(connection.prepare_cached(&REMOVE)?.execute(bound)? == 1)
}

/// Runs a statement that gives nothing.
pub(super) fn run(connection: &Connection, sql: &str) -> Result<(), Failure> {
    connection.prepare_cached(sql)?.execute([])?;
    Ok(())
}

/// One row as it was found: the outer error is the database's, the inner one the row's.
pub(super) type Found = Result<Option<Record>, Failure>;

pub(super) fn read_one(connection: &Connection, id: RecordId) -> Result<Found, Failure> {
    let mut statement = connection.prepare_cached(READ)?;
    let row = statement.query_row([&id.as_bytes()[..]], |row| Ok(decode(row))).optional()?;
    Ok(row.transpose())
}

pub(super) fn due(
    connection: &Connection,
    what: Due,
    moments: Moments,
    limit: usize,
) -> Result<Scan, Failure> {
    let states: &[i16] = match what {
        Due::Pending => &[PENDING],
        Due::Lapsed => &[IN_PROGRESS],
        Due::Resumable => &[IN_PROGRESS | RESUMABLE],
        Due::Doubted => &[UNKNOWN],
        Due::Expired => &[COMPLETED, FAILED_RETRYABLE, EXPIRED],
    };
    let mut scan = Scan::default();
    let (from, by) = (moments.from.as_micros(), moments.by.as_micros());
    for state in states {
        let mut statement = connection.prepare_cached(DUE)?;
        collect(statement.query(params![state, from, by])?, &[], limit, &mut scan)?;
    }
    if what == Due::Expired {
        let mut statement = connection.prepare_cached(&OVERDUE)?;
        collect(statement.query([from, by])?, &[], limit, &mut scan)?;
    }
    scan.records.sort_by_key(|record| what.moment(record));
    scan.is_cut |= scan.records.len() > limit;
    scan.records.truncate(limit);
    Ok(scan)
}

/// Unknown outcomes that are due, except those of some operations.
pub(super) fn doubted_except(
    connection: &Connection,
    except: &[Operation],
    moments: Moments,
    limit: usize,
) -> Result<Scan, Failure> {
    let mut scan = Scan::default();
    let mut statement = connection.prepare_cached(DUE)?;
    let rows = statement.query(params![UNKNOWN, moments.from.as_micros(), moments.by.as_micros()])?;
    collect(rows, except, limit, &mut scan)?;
    Ok(scan)
}

/// Adds up to `limit` rows, without those of some operations, and notes whether there were more. A
/// row that cannot be read is counted and passed over: it must not stand in the way of others.
fn collect(mut rows: Rows<'_>, except: &[Operation], limit: usize, into: &mut Scan) -> Result<(), Failure> {
    let (mut bytes, mut count) = (0, 0);
    while let Some(row) = rows.next()? {
        if !except.is_empty() {
            // Only the operation is decoded, so that passing over a row is cheap.
            let operation = Record::operation_of_body(row.get_ref(1)?.as_blob().unwrap_or_default());
            if operation.is_ok_and(|operation| except.iter().any(|one| one.as_str() == operation)) {
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
