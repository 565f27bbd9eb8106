//! Creates the file and brings its schema up to date, once, however many processes start together.

use oncegate_store::{Effect, Kind, Result, StoreError};
use rusqlite::{Connection, TransactionBehavior};

use super::SqliteOptions;
use super::connection;
use super::error::{Failure, store_error};
use super::legacy;

/// The tables of a new file: that of records, its indexes, and all others.
const RECORD: &str = include_str!("../../migrations/sqlite/record.sql");
const RECORD_INDEXES: &str = include_str!("../../migrations/sqlite/record_indexes.sql");
const SCHEMA: &str = include_str!("../../migrations/sqlite/schema.sql");
/// What brought files of earlier releases forward, in order. A file's `user_version` says how many
/// it has had.
const OLDER: [&str; 11] = [
    include_str!("../../migrations/sqlite/0001_records.sql"),
    include_str!("../../migrations/sqlite/0002_trail.sql"),
    include_str!("../../migrations/sqlite/0003_references.sql"),
    include_str!("../../migrations/sqlite/0004_jobs.sql"),
    include_str!("../../migrations/sqlite/0005_forward_key.sql"),
    include_str!("../../migrations/sqlite/0006_waiting.sql"),
    include_str!("../../migrations/sqlite/0007_doubts.sql"),
    include_str!("../../migrations/sqlite/0008_append.sql"),
    include_str!("../../migrations/sqlite/0009_jobs_apart.sql"),
    include_str!("../../migrations/sqlite/0010_restore.sql"),
    include_str!("../../migrations/sqlite/0011_removed.sql"),
];
/// Makes the table of records that [`SCHEMA`] has out of the older ones.
const ONE_TABLE: &str = include_str!("../../migrations/sqlite/0012_one_table.sql");
/// The present schema.
const VERSION: usize = OLDER.len() + 1;

/// Marks a file as ours: "Once" in ASCII.
const APPLICATION_ID: i32 = 0x4F6E_6365;

/// Migrates the file at the options' path, creating it if need be.
pub(super) fn run(options: &SqliteOptions) -> Result<()> {
    let failed = |failure: Failure| store_error(failure, "open", Effect::None);
    let mut connection = connection::open(options).map_err(failed)?;
    // Looked at before anything is changed: going over to WAL already writes.
    let done = look(&mut connection).map_err(failed)??;
    if options.is_existing && done < VERSION {
        let words = "the file is not up to date with this release; it was not touched. Run `oncegate migrate` on it first.";
        return Err(StoreError::new(Kind::Misconfigured, Effect::None, "open").because(words));
    }
    connection::use_wal(&connection, options)?;
    if done == VERSION {
        return Ok(());
    }
    migrate(&mut connection).map_err(failed)?
}

/// In one transaction: another process may be migrating, and half of what it does must not be seen.
fn look(connection: &mut Connection) -> std::result::Result<Result<usize>, Failure> {
    let tx = connection.transaction()?;
    applied(&tx)
}

/// One transaction, so that half of it is never seen: until its end other processes wait, and then
/// fail as contended. The log grows to the size of the file. The outer error is SQLite's, the
/// inner one ours.
fn migrate(connection: &mut Connection) -> std::result::Result<Result<()>, Failure> {
    // A service's own tables may refer to `record`, which is made anew. Outside of a transaction,
    // or it has no effect.
    connection.pragma_update(None, "foreign_keys", false)?;
    let tx = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    // Looked at again: another process may have migrated it meanwhile.
    let applied = match applied(&tx)? {
        Ok(applied) => applied,
        Err(refused) => return Ok(Err(refused)),
    };
    match applied {
        0 => {
            for text in [RECORD, RECORD_INDEXES, SCHEMA] {
                tx.execute_batch(text)?;
            }
        }
        VERSION => {}
        _ => {
            for script in &OLDER[applied..] {
                tx.execute_batch(script)?;
            }
            tx.execute_batch(&RECORD.replace("TABLE record ", "TABLE record_new "))?;
            legacy::move_records(&tx)?;
            tx.execute_batch(ONE_TABLE)?;
            tx.execute_batch(RECORD_INDEXES)?;
        }
    }
    tx.pragma_update(None, "user_version", i64::try_from(VERSION).unwrap_or(i64::MAX))?;
    tx.pragma_update(None, "application_id", APPLICATION_ID)?;
    tx.commit()?;
    Ok(Ok(()))
}

/// How many scripts the file has had; refuses a file that is not ours, or of a newer release.
fn applied(connection: &Connection) -> std::result::Result<Result<usize>, Failure> {
    let version: i64 = connection.pragma_query_value(None, "user_version", |row| row.get(0))?;
    let application: i32 = connection.pragma_query_value(None, "application_id", |row| row.get(0))?;
    let tables: i64 = connection.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
    let is_ours = application == APPLICATION_ID;
    let is_empty = application == 0 && version == 0 && tables == 0;
    if !is_ours && !is_empty {
        let words = "the file is a SQLite database of something else; it was not touched. Name another file.";
        return Ok(Err(StoreError::new(Kind::Misconfigured, Effect::None, "open").because(words)));
    }
    let applied = usize::try_from(version).unwrap_or(usize::MAX);
    if applied > VERSION {
        let words = format!(
            "the file has schema {version}, and this release knows {VERSION}; it was not touched. Run the newer release."
        );
        return Ok(Err(StoreError::new(Kind::Unreadable, Effect::None, "open").because(words)));
    }
    Ok(Ok(applied))
}
