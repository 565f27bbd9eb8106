//! A thread that owns a connection and reads with it, one job after the other.
//!
//! SQLite's calls block; an async caller hands them to such a thread and awaits the answer. Not here: writing, which is
//! done where the batch is, because the way to a thread and back would cost as much as a small batch.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc;
use std::thread::JoinHandle;

use oncegate_store::{Effect, Kind, Result, StoreError};
use rusqlite::Connection;
use tokio::sync::oneshot;

use super::error::{Failure, store_error};

type Job = Box<dyn FnOnce(&mut Connection) + Send>;

/// Owns a connection; dropped, it finishes what was submitted and closes it.
#[derive(Debug)]
pub(super) struct ConnectionThread {
    jobs: Option<mpsc::Sender<Job>>,
    thread: Option<JoinHandle<()>>,
}

impl ConnectionThread {
    pub(super) fn start(name: &str, mut connection: Connection) -> Result<Self> {
        let (jobs, submitted) = mpsc::channel::<Job>();
        let thread = std::thread::Builder::new()
            .name(format!("sqlite {name}"))
            .spawn(move || {
                for job in submitted {
                    job(&mut connection);
                }
            })
            .map_err(|error| StoreError::new(Kind::Unavailable, Effect::None, "open").because(error))?;
        Ok(Self { jobs: Some(jobs), thread: Some(thread) })
    }

    /// Runs `job`, which only reads, and awaits its answer.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        operation: &'static str,
        job: impl FnOnce(&mut Connection) -> std::result::Result<T, Failure> + Send + 'static,
    ) -> Result<T> {
        let gone =
            || StoreError::new(Kind::Unavailable, Effect::None, operation).because("its thread has ended");
        let (answer, answered) = oneshot::channel();
        let job: Job = Box::new(move |connection| {
            // A panic must end neither the thread nor the reads after this one.
            let done = catch_unwind(AssertUnwindSafe(|| job(connection))).unwrap_or_else(|_| {
                roll_back(connection);
                Err("the read panicked; see the log".into())
            });
            // The caller may have given up.
            let _ = answer.send(done);
        });
        let submitted = self.jobs.as_ref().is_some_and(|jobs| jobs.send(job).is_ok());
        if !submitted {
            return Err(gone());
        }
        let answer = answered.await.map_err(|_| gone())?;
        answer.map_err(|failure| store_error(failure, operation, Effect::None))
    }
}

impl Drop for ConnectionThread {
    fn drop(&mut self) {
        drop(self.jobs.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn roll_back(connection: &Connection) {
    if !connection.is_autocommit()
        && let Err(error) = connection.execute_batch("ROLLBACK")
    {
        tracing::error!(%error, "cannot roll back the transaction of a read that panicked");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A read that panicked ended its thread, and with it all later reads of the process: every duplicate got 503
    /// until a restart.
    #[tokio::test]
    async fn a_read_that_panics_ends_neither_its_thread_nor_later_reads() {
        let thread = ConnectionThread::start("test", Connection::open_in_memory().unwrap()).unwrap();
        let panicked = thread
            .run("read", |connection| -> std::result::Result<i64, Failure> {
                connection.execute_batch("BEGIN")?;
                panic!("as the test asked for")
            })
            .await;
        let error = panicked.unwrap_err();
        assert_eq!((error.effect(), error.operation()), (Effect::None, "read"));
        assert!(error.to_string().contains("the read panicked"), "{error}");
        let read = |connection: &mut Connection| {
            assert!(connection.is_autocommit(), "the transaction was rolled back");
            Ok(connection.query_row("SELECT 7", [], |row| row.get::<_, i64>(0))?)
        };
        assert_eq!(thread.run("read", read).await.unwrap(), 7);
    }
}
