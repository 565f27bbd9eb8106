//! The one writer: a batch is a transaction, and its outcomes leave after the commit.

use oncegate_core::time::Timestamp;
use oncegate_store::{Effect, Outcome, Result};
use rusqlite::Connection;

use super::SqliteOptions;
use super::checkpoint::Checkpointer;
use super::connection;
use super::error::{Failure, store_error};
use super::row::EncodedWrite;
use super::statements::apply_in;
use super::thread::ConnectionThread;
use std::sync::Arc;

/// Writes batches, one after the other.
#[derive(Debug)]
pub(super) struct Writer {
    thread: ConnectionThread,
    checkpointer: Arc<Checkpointer>,
}

impl Writer {
    pub(super) fn start(options: &SqliteOptions) -> Result<Self> {
        Ok(Self {
            thread: ConnectionThread::start("writer", connection::for_writing(options)?)?,
            checkpointer: Arc::new(Checkpointer::start(
                connection::for_writing(options)?,
                options.path.clone(),
            )?),
        })
    }

    pub(super) async fn apply(&self, batch: Vec<EncodedWrite>, now: Timestamp) -> Result<Vec<Outcome>> {
        let checkpointer = Arc::clone(&self.checkpointer);
        let job = move |connection: &mut Connection| {
            let outcomes = commit(connection, &batch, now);
            checkpointer.keep_short(connection);
            outcomes
        };
        // A thread that ends before it answers may have committed.
        self.thread.submit("apply", Effect::Unknown, job).await
    }
}

/// One transaction. What fails before `COMMIT` is rolled back and was never written; what fails in it may have been: the
/// log's frames can be whole on disk although the call that made them durable failed, and a restart would find them.
pub(super) fn commit(
    connection: &Connection,
    batch: &[EncodedWrite],
    now: Timestamp,
) -> Result<Vec<Outcome>> {
    let none = |failure: Failure| store_error(failure, "apply", Effect::None);
    run(connection, "BEGIN IMMEDIATE").map_err(none)?;
    let outcomes = match apply_in(connection, batch, now) {
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

fn run(connection: &Connection, sql: &str) -> std::result::Result<(), Failure> {
    connection.prepare_cached(sql)?.execute([])?;
    Ok(())
}
