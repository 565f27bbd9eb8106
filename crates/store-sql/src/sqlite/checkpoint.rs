//! Keeps the write-ahead log short without stopping the writer.
//!
//! A thread copies the log into the file while the writer goes on (`PASSIVE` takes no lock that
//! the writer needs). But as long as frames keep arriving it never reaches the log's end, so the
//! log would never start over: the writer takes the last step itself, between two batches, when
//! little is left to copy and, because the thread syncs after each pass, little to wait for. The
//! log's file is reused, not truncated: writing into allocated space is faster. Numbers in
//! docs/decisions/0018-stores.md.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, SyncSender};
use std::thread::JoinHandle;

use oncegate_store::{Effect, Kind, Result, StoreError};
use rusqlite::Connection;

use super::file::sync;

/// So much waiting in the log wakes the thread.
const WAKE_BYTES: i64 = 16 << 20;
/// Over this length the log must start over.
pub(super) const RESTART_BYTES: i64 = 64 << 20;
/// So little left to copy is the writer's last step.
const LAST_STEP_BYTES: i64 = 2 << 20;
/// A page and its header, as the log keeps them.
const FRAME_BYTES: i64 = 4096 + 24;

/// The thread that copies.
#[derive(Debug)]
pub(super) struct Checkpointer {
    wake: Option<SyncSender<()>>,
    is_copying: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Checkpointer {
    pub(super) fn start(connection: Connection, file: PathBuf) -> Result<Self> {
        let (wake, woken) = mpsc::sync_channel(1);
        let is_copying = Arc::new(AtomicBool::new(false));
        let done = Arc::clone(&is_copying);
        let thread = std::thread::Builder::new()
            .name("sqlite checkpoints".to_owned())
            .spawn(move || {
                while woken.recv().is_ok() {
                    // A failure costs nothing but length: the log keeps what was not copied, and the next turn tries again.
                    let _ = checkpoint(&connection, "PASSIVE");
                    let _ = sync(&file);
                    done.store(false, Ordering::Release);
                }
            })
            .map_err(|error| StoreError::new(Kind::Unavailable, Effect::None, "open").because(error))?;
        Ok(Self { wake: Some(wake), is_copying, thread: Some(thread) })
    }

    /// Called by the writer after a commit, on its own connection. Its failure costs length, and no batch.
    pub(super) fn keep_short(&self, writer: &Connection) {
        if self.is_copying.load(Ordering::Acquire) {
            return;
        }
        let Ok(log) = checkpoint(writer, "NOOP") else { return };
        let length_bytes = log.frames * FRAME_BYTES;
        let waiting_bytes = (log.frames - log.copied) * FRAME_BYTES;
        let is_too_long = length_bytes > RESTART_BYTES;
        if is_too_long && (waiting_bytes <= LAST_STEP_BYTES || length_bytes > 2 * RESTART_BYTES) {
            // After it the next commit starts the log over, in the same file.
            let _ = checkpoint(writer, "PASSIVE");
        } else if is_too_long || waiting_bytes > WAKE_BYTES {
            self.wake();
        }
    }

    fn wake(&self) {
        self.is_copying.store(true, Ordering::Release);
        let is_woken = self.wake.as_ref().is_some_and(|wake| wake.try_send(()).is_ok());
        if !is_woken {
            self.is_copying.store(false, Ordering::Release);
        }
    }
}

impl Drop for Checkpointer {
    fn drop(&mut self) {
        drop(self.wake.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The log's length, and how much of it is in the file already.
struct Log {
    frames: i64,
    copied: i64,
}

fn checkpoint(connection: &Connection, mode: &'static str) -> rusqlite::Result<Log> {
    let mut statement = connection.prepare_cached(&format!("PRAGMA wal_checkpoint({mode})"))?;
    statement.query_row([], |row| Ok(Log { frames: row.get(1)?, copied: row.get(2)? }))
}
