//! The one writer: a batch is a transaction, and its outcomes leave after the commit.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use oncegate_core::time::Timestamp;
use oncegate_store::{Effect, Kind, Outcome, Result, StoreError, Write};
use rusqlite::Connection;

use super::SqliteOptions;
use super::append::Shared;
use super::apply::apply_in;
use super::checkpoint::Checkpointer;
use super::connection;
use super::error::{Failure, is_deferred_violation, store_error};
use super::file::{Identity, identity};
use super::places::Places;
use super::statements::run;

/// Writes batches, one after the other, each on the thread that brings it.
#[derive(Debug)]
pub(super) struct Writer {
    inner: Mutex<Inner>,
    checkpointer: Checkpointer,
    file: OpenedFile,
}

#[derive(Debug)]
pub(super) struct Inner {
    pub(super) connection: Connection,
    pub(super) places: Places,
    /// What is in the tables that have no index over ids.
    pub(super) shared: Shared,
    /// How long a row may be in flight before it is moved to where it is indexed.
    pub(super) age: Duration,
}

impl Writer {
    pub(super) fn start(options: &SqliteOptions, shared: Shared) -> Result<Self> {
        let inner = Inner {
            connection: connection::for_writing(options)?,
            places: Places::default(),
            shared,
            age: options.in_flight_max,
        };
        Ok(Self {
            inner: Mutex::new(inner),
            checkpointer: Checkpointer::start(connection::for_writing(options)?, options.path.clone())?,
            file: OpenedFile::new(&options.path)?,
        })
    }

    /// Blocks until the batch is durable. A panic in an earlier batch left at most a transaction open, which is rolled back.
    pub(super) fn apply(&self, batch: &[Write], now: impl FnOnce() -> Timestamp) -> Result<Vec<Outcome>> {
        self.write(|inner| commit(inner, batch, now()))
    }

    /// The same with what is not a batch: `job` is one transaction.
    pub(super) fn run<T>(
        &self,
        operation: &'static str,
        job: impl FnOnce(&Connection) -> std::result::Result<T, Failure>,
    ) -> Result<T> {
        self.write(|inner| transact(&inner.connection, operation, job))
    }

    #[cfg(test)]
    pub(super) fn inner_for_tests(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks at the file through the connection that writes, while somebody else has begun to write: what it sees is what that one would.
    pub(super) fn look<T>(
        &self,
        operation: &'static str,
        job: impl FnOnce(&Connection, &Shared) -> std::result::Result<T, Failure>,
    ) -> Result<T> {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        roll_back(&inner.connection);
        job(&inner.connection, &inner.shared).map_err(|failure| store_error(failure, operation, Effect::None))
    }

    /// Whether the file is still the one that was opened. A caller that commits into it by a
    /// connection of its own asks just before.
    pub(super) fn check_file(&self) -> Result<()> {
        self.file.check()
    }

    fn write<T>(&self, job: impl FnOnce(&mut Inner) -> Result<T>) -> Result<T> {
        let inner = &mut *self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        self.file.check()?;
        let done = job(inner)?;
        self.checkpointer.keep_short(&inner.connection);
        Ok(done)
    }
}

/// The file as it was when the store was opened. SQLite goes on writing into one that was removed or replaced, where another
/// process would no longer see it: both would admit the same key.
#[derive(Debug)]
struct OpenedFile {
    path: PathBuf,
    identity: Option<Identity>,
}

impl OpenedFile {
    fn new(path: &Path) -> Result<Self> {
        let identity = identity(path)
            .map_err(|error| StoreError::new(Kind::Unavailable, Effect::None, "open").because(error))?;
        Ok(Self { path: path.to_path_buf(), identity })
    }

    fn check(&self) -> Result<()> {
        match identity(&self.path) {
            Ok(identity) if identity == self.identity => Ok(()),
            _ => {
                let words =
                    format!("{} was removed or replaced while it was open; restart", self.path.display());
                Err(StoreError::new(Kind::Unavailable, Effect::None, "apply").because(words))
            }
        }
    }
}

/// A batch is one transaction. The memory follows it, and never goes before: a commit in doubt changes nothing in it, and the file shows what
/// became of it.
pub(super) fn commit(inner: &mut Inner, batch: &[Write], now: Timestamp) -> Result<Vec<Outcome>> {
    let Inner { connection, places, shared, age } = inner;
    let apply = |connection: &Connection| apply_in(connection, places, shared, *age, (batch, now));
    let (outcomes, changed) = transact(connection, "apply", apply)?;
    shared.keep(changed);
    Ok(outcomes)
}

/// What fails before `COMMIT` is rolled back and was never written; what fails in it may have been: the log's frames can be
/// whole on disk although the call that made them durable failed, and a restart would find them. Only a deferred foreign key is known to have
/// prevented it.
fn transact<T>(
    connection: &Connection,
    operation: &'static str,
    job: impl FnOnce(&Connection) -> std::result::Result<T, Failure>,
) -> Result<T> {
    let none = |failure: Failure| store_error(failure, operation, Effect::None);
    // A rollback that failed once is tried again, or no transaction could begin any more.
    roll_back(connection);
    run(connection, "BEGIN IMMEDIATE").map_err(none)?;
    let done = match job(connection) {
        Ok(done) => done,
        Err(failure) => {
            roll_back(connection);
            return Err(none(failure));
        }
    };
    match run(connection, "COMMIT") {
        Ok(()) => Ok(done),
        Err(failure) => {
            roll_back(connection);
            let effect = if is_deferred_violation(&failure) { Effect::None } else { Effect::Unknown };
            Err(store_error(failure, "commit", effect))
        }
    }
}

fn roll_back(connection: &Connection) {
    // Many errors have rolled back already; then there is nothing to do.
    if !connection.is_autocommit() {
        let _ = run(connection, "ROLLBACK");
    }
}
