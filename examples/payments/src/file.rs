//! A SQLite file, durable at every commit, used from async code.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use rusqlite::Connection;

/// One file. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct File(Arc<Mutex<Connection>>);

impl File {
    /// Opens it, and makes its tables.
    pub(crate) fn open(path: &Path, tables: &str) -> rusqlite::Result<Self> {
        let connection = Connection::open(path)?;
        connection.pragma_update(None, "journal_mode", "WAL")?;
        connection.pragma_update(None, "synchronous", "FULL")?;
        connection.busy_timeout(std::time::Duration::from_secs(5))?;
        connection.execute_batch(tables)?;
        Ok(Self(Arc::new(Mutex::new(connection))))
    }

    /// Runs `work` in one transaction, off the async threads.
    pub(crate) async fn with<T: Send + 'static>(
        &self,
        work: impl FnOnce(&rusqlite::Transaction<'_>) -> rusqlite::Result<T> + Send + 'static,
    ) -> rusqlite::Result<T> {
        let file = self.clone();
        let done = tokio::task::spawn_blocking(move || {
            let mut connection = file.0.lock().unwrap_or_else(PoisonError::into_inner);
            let transaction = connection.transaction()?;
            let value = work(&transaction)?;
            transaction.commit()?;
            Ok(value)
        });
        done.await.unwrap_or(Err(rusqlite::Error::UnwindingPanic))
    }
}
