//! The one writer: a batch is a transaction, and its outcomes leave after the commit.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use oncegate_core::time::Timestamp;
use oncegate_store::{Effect, Kind, Outcome, Result, StoreError};
use rusqlite::Connection;

use super::SqliteOptions;
use super::checkpoint::Checkpointer;
use super::connection;
use super::error::{Failure, store_error};
use super::file::{Identity, identity};
use super::places::Places;
use super::row::EncodedWrite;
use super::statements::{apply_in, run};
use super::thread::ConnectionThread;

/// Writes batches, one after the other.
#[derive(Debug)]
pub(super) struct Writer {
    thread: ConnectionThread,
    checkpointer: Arc<Checkpointer>,
    file: Arc<OpenedFile>,
    places: Arc<Mutex<Places>>,
}

impl Writer {
    pub(super) fn start(options: &SqliteOptions) -> Result<Self> {
        let connection = connection::for_writing(options)?;
        Ok(Self {
            thread: ConnectionThread::start("writer", connection)?,
            checkpointer: Arc::new(Checkpointer::start(
                connection::for_writing(options)?,
                options.path.clone(),
            )?),
            file: Arc::new(OpenedFile::new(&options.path)?),
            places: Arc::default(),
        })
    }

    pub(super) async fn apply(&self, batch: Vec<EncodedWrite>, now: Timestamp) -> Result<Vec<Outcome>> {
        let (file, checkpointer) = (Arc::clone(&self.file), Arc::clone(&self.checkpointer));
        let places = Arc::clone(&self.places);
        let write = move |connection: &mut Connection| {
            file.check()?;
            // Only this thread takes the lock.
            let mut places = places.lock().unwrap_or_else(PoisonError::into_inner);
            let outcomes = commit(connection, &mut places, &batch, now)?;
            // Back to where it was made: freeing it is not this thread's work.
            Ok((outcomes, batch))
        };
        // The log is looked after when the outcomes have left.
        let look_after = move |connection: &Connection| checkpointer.keep_short(connection);
        // A thread that ends before it answers may have committed.
        let (outcomes, _batch) = self.thread.submit("apply", Effect::Unknown, write, look_after).await?;
        Ok(outcomes)
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

/// One transaction. What fails before `COMMIT` is rolled back and was never written; what fails in it may have been: the
/// log's frames can be whole on disk although the call that made them durable failed, and a restart would find them.
pub(super) fn commit(
    connection: &Connection,
    places: &mut Places,
    batch: &[EncodedWrite],
    now: Timestamp,
) -> Result<Vec<Outcome>> {
    let none = |failure: Failure| store_error(failure, "apply", Effect::None);
    // A rollback that failed once is tried again, or no transaction could begin any more.
    roll_back(connection);
    run(connection, "BEGIN IMMEDIATE").map_err(none)?;
    let outcomes = match apply_in(connection, places, batch, now) {
        Ok(outcomes) => outcomes,
        Err(failure) => {
            roll_back(connection);
            return Err(none(failure));
        }
    };
    match run(connection, "COMMIT") {
        Ok(()) => Ok(outcomes),
        Err(failure) => {
            roll_back(connection);
            Err(store_error(failure, "commit", Effect::Unknown))
        }
    }
}

fn roll_back(connection: &Connection) {
    // Many errors have rolled back already; then there is nothing to do.
    if !connection.is_autocommit() {
        let _ = run(connection, "ROLLBACK");
    }
}
