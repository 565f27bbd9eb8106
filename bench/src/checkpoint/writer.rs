//! The bare loop under a checkpoint scheme: the writer's part, and the thread with its own connection.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;

use rusqlite::Connection;

use super::scheme::{LastStep, MIB, Scheme, Sync, Who};
use crate::Outcome;
use crate::bare::{Bare, Durability};
use crate::fill;
use crate::layouts::Layout;
use crate::rows::Row;
use crate::traffic::Subject;

/// What the writer may be asked to copy between two batches.
const LAST_STEP_BYTES: i64 = 2 * MIB;

/// The bare loop with a checkpoint scheme around it.
pub(crate) struct Checkpointed {
    bare: Bare,
    scheme: Scheme,
    frame_bytes: i64,
    wal: PathBuf,
    wal_longest: i64,
    thread: Option<Checkpointer>,
}

impl Checkpointed {
    /// Opens the file; starts the thread if the scheme has one.
    pub(crate) fn open(path: &Path, layout: Layout, scheme: Scheme) -> Outcome<Self> {
        let bare = Bare::open(path, layout, Durability::Full)?;
        let frame_bytes = i64::from(layout.page_bytes) + 24;
        let (autocheckpoint, thread) = match scheme.who {
            Who::Writer { at_bytes } => (at_bytes / frame_bytes, None),
            Who::Thread { .. } => (0, Some(Checkpointer::start(path, Sync::LastStep)?)),
            Who::Both { sync, .. } => (0, Some(Checkpointer::start(path, sync)?)),
        };
        bare.connection().pragma_update(None, "wal_autocheckpoint", autocheckpoint)?;
        Ok(Self { bare, scheme, frame_bytes, wal: fill::with_ending(path, "-wal"), wal_longest: 0, thread })
    }

    /// The longest the WAL has been, in bytes.
    pub(crate) fn wal_longest(&self) -> i64 {
        self.wal_longest
    }

    /// Wakes the thread if enough waits to be copied, and takes the last step if the log is too long.
    fn keep_short(&mut self) -> Outcome {
        let Some(thread) = &self.thread else { return Ok(()) };
        if thread.busy.load(Ordering::Acquire) {
            return Ok(());
        }
        let log = checkpoint(self.bare.connection(), "NOOP")?;
        let length_bytes = log.frames * self.frame_bytes;
        let waiting_bytes = (log.frames - log.copied) * self.frame_bytes;
        match self.scheme.who {
            Who::Both { restart_bytes, last, .. } if length_bytes > restart_bytes => {
                // Long enough to end it. The thread goes on until little is left, but not for ever.
                if waiting_bytes <= LAST_STEP_BYTES || length_bytes > 2 * restart_bytes {
                    let mode = if last == LastStep::Reuse { "PASSIVE" } else { "TRUNCATE" };
                    checkpoint(self.bare.connection(), mode)?;
                } else {
                    thread.wake()?;
                }
            }
            Who::Both { at_bytes, .. } | Who::Thread { at_bytes } if waiting_bytes > at_bytes => {
                thread.wake()?;
            }
            _ => {}
        }
        Ok(())
    }
}

impl Subject for Checkpointed {
    fn reserve(&mut self, rows: &mut [Row]) -> Outcome {
        self.bare.reserve(rows)
    }

    fn settle(&mut self, rows: &[Row]) -> Outcome {
        self.bare.settle(rows)
    }

    fn between(&mut self) -> Outcome {
        self.keep_short()?;
        let length = fs::metadata(&self.wal).map_or(0, |file| i64::try_from(file.len()).unwrap_or(i64::MAX));
        self.wal_longest = self.wal_longest.max(length);
        Ok(())
    }
}

/// The second connection and its thread.
struct Checkpointer {
    wake: Option<mpsc::Sender<()>>,
    /// Set by the writer with the wake-up, cleared by the thread when it has copied.
    busy: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Checkpointer {
    fn start(path: &Path, sync: Sync) -> Outcome<Self> {
        // Never closed while SQLite has the file open: closing any descriptor of a file drops all POSIX
        // locks the process holds on it, SQLite's too. The experiment leaks it; a store would hold it.
        let file = std::mem::ManuallyDrop::new(fs::File::open(path)?);
        let connection = Connection::open(path)?;
        connection.pragma_update(None, "synchronous", "FULL")?;
        let (wake, woken) = mpsc::channel();
        let busy = Arc::new(AtomicBool::new(false));
        let done = Arc::clone(&busy);
        let thread = std::thread::spawn(move || {
            while woken.recv().is_ok() {
                if let Err(error) = checkpoint(&connection, "PASSIVE") {
                    eprintln!("checkpoint: {error}");
                }
                if sync == Sync::Thread
                    && let Err(error) = file.sync_data()
                {
                    eprintln!("sync: {error}");
                }
                done.store(false, Ordering::Release);
            }
        });
        Ok(Self { wake: Some(wake), busy, thread: Some(thread) })
    }

    fn wake(&self) -> Outcome {
        self.busy.store(true, Ordering::Release);
        if let Some(wake) = &self.wake {
            wake.send(())?;
        }
        Ok(())
    }
}

impl Drop for Checkpointer {
    fn drop(&mut self) {
        drop(self.wake.take());
        if let Some(thread) = self.thread.take() {
            // A panic in there has been printed already.
            let _ = thread.join();
        }
    }
}

/// The log's length, and how much of it is already in the file.
struct Log {
    frames: i64,
    copied: i64,
}

fn checkpoint(connection: &Connection, mode: &str) -> Outcome<Log> {
    let mut statement = connection.prepare_cached(&format!("PRAGMA wal_checkpoint({mode})"))?;
    Ok(statement.query_row([], |row| Ok(Log { frames: row.get(1)?, copied: row.get(2)? }))?)
}
