//! Creates the file and brings its schema up to date, once, however many processes start together.

use oncegate_store::{Effect, Kind, Result, StoreError};
use rusqlite::{Connection, TransactionBehavior};

use super::SqliteOptions;
use super::connection;
use super::error::{Failure, store_error};

/// The scripts, in order; a file's `user_version` says how many it has had.
const MIGRATIONS: [&str; 11] = [
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

/// Marks a file as ours: "Once" in ASCII.
const APPLICATION_ID: i32 = 0x4F6E_6365;

/// Migrates the file at the options' path, creating it if need be.
pub(super) fn run(options: &SqliteOptions) -> Result<()> {
    let failed = |failure: Failure| store_error(failure, "open", Effect::None);
    let mut connection = connection::open(options).map_err(failed)?;
    // Looked at before anything is changed: going over to WAL already writes.
    let done = look(&mut connection).map_err(failed)??;
    if options.is_existing && done < MIGRATIONS.len() {
        let words = "the file is not up to date with this release; it was not touched. Run `oncegate migrate` on it first.";
        return Err(StoreError::new(Kind::Misconfigured, Effect::None, "open").because(words));
    }
    connection::use_wal(&connection, options)?;
    if done == MIGRATIONS.len() {
        return Ok(());
    }
    migrate(&mut connection).map_err(failed)?
}

/// In one transaction: another process may be migrating, and half of what it does must not be seen.
fn look(connection: &mut Connection) -> std::result::Result<Result<usize>, Failure> {
    let tx = connection.transaction()?;
    applied(&tx)
}

/// The outer error is SQLite's, the inner one ours.
fn migrate(connection: &mut Connection) -> std::result::Result<Result<()>, Failure> {
    let tx = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    // Looked at again: another process may have migrated it meanwhile.
    let applied = match applied(&tx)? {
        Ok(applied) => applied,
        Err(refused) => return Ok(Err(refused)),
    };
    for script in &MIGRATIONS[applied..] {
        tx.execute_batch(script)?;
    }
    tx.pragma_update(None, "user_version", i64::try_from(MIGRATIONS.len()).unwrap_or(i64::MAX))?;
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
    if applied > MIGRATIONS.len() {
        let words = format!(
            "the file has schema {version}, and this release knows {}; it was not touched. Run the newer release.",
            MIGRATIONS.len()
        );
        return Ok(Err(StoreError::new(Kind::Unreadable, Effect::None, "open").because(words)));
    }
    Ok(Ok(applied))
}
