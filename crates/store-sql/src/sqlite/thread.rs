//! A thread that owns a connection and reads with it, one job after the other.
//!
//! SQLite's calls block; an async caller hands them to such a thread and awaits the answer. Not here: writing, which is
//! done where the batch is, because the way to a thread and back would cost as much as a small batch.

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
            // Nobody may be waiting any more.
            let _ = answer.send(job(connection));
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
            // Its panic, if any, was reported to whoever waited.
            let _ = thread.join();
        }
    }
}
