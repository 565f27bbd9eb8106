//! Connections, and the settings without which the promises do not hold.

use std::time::Instant;

use oncegate_store::{Effect, Kind, Result, StoreError};
use rusqlite::{Connection, ErrorCode, OpenFlags};

use super::error::{CannotOpen, Failure, store_error};
use super::{SqliteOptions, file};

/// Pages that a connection may keep, in KiB. The happy path appends, and reads what it has just written; whatever else is read is in the system's own cache, one
/// call away. (2 and 64 MiB were equally quick; see docs/decisions/0018-stores.md.)
const CACHE_KIB: i64 = 2 * 1024;

/// For the one thread that writes: durable at every commit, and never stopping to checkpoint by itself.
pub(super) fn for_writing(options: &SqliteOptions) -> Result<Connection> {
    let open = || -> std::result::Result<Connection, Failure> {
        let connection = open(options)?;
        connection.pragma_update(None, "wal_autocheckpoint", 0)?;
        let synchronous: i64 = connection.pragma_query_value(None, "synchronous", |row| row.get(0))?;
        if synchronous != SYNCHRONOUS_FULL {
            return Err("SQLite did not accept synchronous=FULL".into());
        }
        Ok(connection)
    };
    open().map_err(failed)
}

/// For threads that only read.
pub(super) fn for_reading(options: &SqliteOptions) -> Result<Connection> {
    let open = || -> std::result::Result<Connection, Failure> {
        let connection = open(options)?;
        connection.pragma_update(None, "query_only", true)?;
        Ok(connection)
    };
    open().map_err(failed)
}

const SYNCHRONOUS_FULL: i64 = 2;

/// Opens the file, creating it if need be and allowed, and changes nothing in it.
pub(super) fn open(options: &SqliteOptions) -> std::result::Result<Connection, Failure> {
    let mut flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    if !options.is_existing {
        file::create_private(&options.path);
        flags |= OpenFlags::SQLITE_OPEN_CREATE;
    }
    let connection = Connection::open_with_flags(&options.path, flags)
        .map_err(|error| CannotOpen { path: options.path.clone(), error })?;
    connection.busy_timeout(options.busy_timeout)?;
    connection.pragma_update(None, "synchronous", SYNCHRONOUS_FULL)?;
    connection.pragma_update(None, "cache_size", -CACHE_KIB)?;
    connection.set_prepared_statement_cache_capacity(64);
    Ok(connection)
}

/// Puts the file into WAL mode, for good.
pub(super) fn use_wal(connection: &Connection, options: &SqliteOptions) -> Result<()> {
    let mode = wal_mode(connection, options).map_err(|error| failed(error.into()))?;
    if mode == "wal" {
        return Ok(());
    }
    let words = format!(
        "the file system of {} gives journal mode {mode:?}, and WAL is needed; put the file on a local disk",
        options.path.display()
    );
    Err(StoreError::new(Kind::Misconfigured, Effect::None, "open").because(words))
}

/// Going over to WAL wants the file for itself for a moment, and does not wait for it by itself where two processes do
/// so at once: wait here.
fn wal_mode(connection: &Connection, options: &SqliteOptions) -> rusqlite::Result<String> {
    let started = Instant::now();
    loop {
        let mode = connection.pragma_update_and_check(None, "journal_mode", "wal", |row| row.get(0));
        match mode {
            Err(error)
                if error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy)
                    && started.elapsed() < options.busy_timeout =>
            {
                std::thread::sleep(std::time::Duration::from_millis(2));
            }
            mode => return mode,
        }
    }
}

fn failed(failure: Failure) -> StoreError {
    store_error(failure, "open", Effect::None)
}
