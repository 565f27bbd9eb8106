//! The one writer: a batch is a transaction, and its outcomes leave after the commit.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use oncegate_core::time::Timestamp;
use oncegate_store::history::{Beat, Expected, Watermark};
use oncegate_store::{Effect, History, Kind, Outcome, Result, StoreError, Write};
use rusqlite::Connection;

use super::SqliteOptions;
use super::apply::apply_in;
use super::checkpoint::Checkpointer;
use super::connection;
use super::error::{Failure, Restored, is_deferred_violation, store_error};
use super::file::{Identity, identity};
use super::history;
use super::statements::run;

/// Writes batches, one after the other, each on the thread that brings it.
#[derive(Debug)]
pub(super) struct Writer {
    connection: Mutex<Connection>,
    /// What this process has written last.
    watermark: Arc<Watermark>,
    /// The process ends: its watermark is gone, and late settlements are written without one.
    has_left: AtomicBool,
    checkpointer: Checkpointer,
    file: OpenedFile,
}

impl Writer {
    pub(super) fn start(options: &SqliteOptions) -> Result<Self> {
        Ok(Self {
            connection: Mutex::new(connection::for_writing(options)?),
            watermark: Arc::default(),
            has_left: AtomicBool::new(false),
            checkpointer: Checkpointer::start(connection::for_writing(options)?, options.path.clone())?,
            file: OpenedFile::new(&options.path)?,
        })
    }

    /// Blocks until the batch is durable. A panic in an earlier batch left at most a transaction
    /// open, which is rolled back.
    pub(super) fn apply(&self, batch: &[Write], now: Timestamp) -> Result<Vec<Outcome>> {
        self.run("apply", now, |connection| apply_in(connection, batch, now))
    }

    /// Runs `job` as one transaction.
    pub(super) fn run<T>(
        &self,
        operation: &'static str,
        now: Timestamp,
        job: impl FnOnce(&Connection) -> std::result::Result<T, Failure>,
    ) -> Result<T> {
        let connection = self.connection.lock().unwrap_or_else(PoisonError::into_inner);
        self.file.check()?;
        let watermark = (!self.has_left.load(Ordering::Acquire)).then_some(&*self.watermark);
        let done = transact(&connection, watermark, operation, now, job)?;
        self.checkpointer.keep_short(&connection);
        Ok(done)
    }

    /// Rewrites the watermark, and says whether the file had what this process wrote last.
    pub(super) fn check_history(&self, now: Timestamp) -> Result<History> {
        if self.has_left.load(Ordering::Acquire) {
            return Ok(History::Lost);
        }
        match self.run("check_history", now, |_| Ok(())) {
            Ok(()) => Ok(History::Intact),
            Err(error) if error.kind() == Kind::Restored => Ok(History::Lost),
            Err(error) => Err(error),
        }
    }

    /// Removes the watermark: this process ends.
    pub(super) fn leave(&self) -> Result<()> {
        let connection = self.connection.lock().unwrap_or_else(PoisonError::into_inner);
        self.has_left.store(true, Ordering::Release);
        let Some(beat) = self.watermark.beat() else { return Ok(()) };
        self.file.check()?;
        let failed = |failure| store_error(failure, "leave", Effect::Unknown);
        history::leave(&connection, beat.node).map_err(failed)
    }

    /// What a read that begins now must find; `None` where nothing is known of that.
    pub(super) fn expected(&self) -> Option<Expected> {
        if self.has_left.load(Ordering::Acquire) { None } else { self.watermark.expected() }
    }

    pub(super) const fn watermark(&self) -> &Arc<Watermark> {
        &self.watermark
    }

    /// Whether the file is still the one that was opened. A caller that commits into it by a
    /// connection of its own asks just before.
    pub(super) fn check_file(&self) -> Result<()> {
        self.file.check()
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

/// One transaction, which also rewrites this process's watermark: if the file was restored to an
/// earlier state, the watermark is not the one that was written last, and nothing is decided by
/// this file any more.
///
/// What fails before `COMMIT` is rolled back and was never written. What fails in it may have been
/// written: the log's frames can be whole on disk although the call that made them durable failed,
/// and a restart would find them. Only a deferred foreign key is known to have prevented it.
pub(super) fn transact<T>(
    connection: &Connection,
    watermark: Option<&Watermark>,
    operation: &'static str,
    now: Timestamp,
    job: impl FnOnce(&Connection) -> std::result::Result<T, Failure>,
) -> Result<T> {
    let none = |failure: Failure| store_error(failure, operation, Effect::None);
    // A rollback that failed once is tried again, or no transaction could begin any more.
    roll_back(connection);
    run(connection, "BEGIN IMMEDIATE").map_err(none)?;
    let rewritten = watermark.map_or(Ok(None), |watermark| rewrite(connection, watermark, now).map(Some));
    let (beat, done) = match rewritten.and_then(|beat| Ok((beat, job(connection)?))) {
        Ok(done) => done,
        Err(failure) => {
            roll_back(connection);
            return Err(none(failure));
        }
    };
    if let Err(failure) = run(connection, "COMMIT") {
        roll_back(connection);
        let effect = if is_deferred_violation(&failure) { Effect::None } else { Effect::Unknown };
        return Err(store_error(failure, "commit", effect));
    }
    if let (Some(watermark), Some(beat)) = (watermark, beat) {
        let _intact = watermark.took_effect(beat, true);
    }
    Ok(done)
}

/// Rewrites the watermark, or fails and remembers that the file was restored.
fn rewrite(
    connection: &Connection,
    watermark: &Watermark,
    now: Timestamp,
) -> std::result::Result<Beat, Failure> {
    let beat = watermark.beat().ok_or(Restored)?;
    if history::rewrite(connection, beat, now)? {
        return Ok(beat);
    }
    let _lost = watermark.took_effect(beat, false);
    Err(Restored.into())
}

fn roll_back(connection: &Connection) {
    // Many errors have rolled back already; then there is nothing to do.
    if !connection.is_autocommit() {
        let _ = run(connection, "ROLLBACK");
    }
}
