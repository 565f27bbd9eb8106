//! The embedded store: one SQLite file.
//!
//! **Invariant:** the unique index over `record.id` decides who gets a key, inside a `BEGIN
//! IMMEDIATE` transaction, for every process that has the file open and for callers' transactions.
//! An outcome leaves only after `COMMIT` has returned, with `synchronous=FULL`.
//!
//! A batch is written on the thread that brings it, see [`Writing::Blocks`]; threads of the
//! store's own read (WAL lets them) and checkpoint. A file has one writer at a time: this store's
//! writes and callers' transactions that join (see `join`) take turns, in the order in which they
//! came. Not here: batching (the engine).

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use oncegate_core::audit::Entry;
use oncegate_core::identity::RecordId;
use oncegate_core::record::Record;
use oncegate_core::scope::Operation;
use oncegate_core::time::Timestamp;
use oncegate_store::clock::Clock;
use oncegate_store::join::Turns;
use oncegate_store::shared_cache::Realm;
use oncegate_store::signals::Signals;
use oncegate_store::{
    Apart, Backlog, Capability, Counts, Cursor, Doubts, Due, Durability, Effect, EntryPage, EntryPlace,
    Filter, History, Moments, Outcome, Page, Quarantine, Result, Scan, Sharing, Store, TimeSpan, Turn,
    Waiting, Write, Writing,
};

mod apply;
mod browse;
mod check;
mod checkpoint;
mod connection;
mod error;
mod file;
mod history;
mod jobs;
mod join;
mod legacy;
mod migrate;
mod removed;
mod row;
mod statements;
#[cfg(test)]
mod tests;
mod thread;
mod trail;
mod waiting;
mod writer;

pub use join::BEGIN_TO_JOIN;
#[cfg(feature = "sqlx-sqlite")]
pub(crate) use join::TAKE_BACK;

use error::{Restored, store_error};
use rusqlite::Connection;
use statements::Found;
use thread::ConnectionThread;
use writer::Writer;

/// How to open a file.
#[derive(Clone, Debug)]
pub struct SqliteOptions {
    path: PathBuf,
    clock: Clock,
    busy_timeout: Duration,
    is_existing: bool,
}

impl SqliteOptions {
    /// The file at `path`, created and migrated when opened.
    #[must_use]
    pub fn new(path: impl AsRef<Path>) -> Self {
        Self {
            path: path.as_ref().to_path_buf(),
            clock: Clock::system(),
            busy_timeout: Duration::from_secs(5),
            is_existing: false,
        }
    }

    /// Opens only a file that is there and up to date, and neither creates nor migrates one: for people who look.
    #[must_use]
    pub const fn existing(mut self) -> Self {
        self.is_existing = true;
        self
    }

    /// Uses this clock instead of the machine's.
    #[must_use]
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// How long a write waits for another process's transaction before it fails as contended.
    #[must_use]
    pub const fn busy_timeout(mut self, span: Duration) -> Self {
        self.busy_timeout = span;
        self
    }

    /// What others can do with the file as it is now, with the remedy; nothing if it is not there.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        file::mode_warnings(&self.path)
    }

    /// Opens the file. A new one has mode 0600. Blocks for as long as that takes: do it before
    /// serving.
    pub fn open(self) -> Result<SqliteStore> {
        migrate::run(&self)?;
        let warnings = self.warnings();
        Ok(SqliteStore {
            writer: Writer::start(&self)?,
            rows: ConnectionThread::start("rows", connection::for_reading(&self)?)?,
            scans: ConnectionThread::start("scans", connection::for_reading(&self)?)?,
            pages: ConnectionThread::start("pages", connection::for_reading(&self)?)?,
            turns: Turns::default(),
            warnings,
            clock: self.clock,
        })
    }
}

/// A store in one SQLite file. Share it by reference or `Arc`; open the file again for an independent handle.
#[derive(Debug)]
pub struct SqliteStore {
    writer: Writer,
    /// Reads by id, which a request waits for.
    rows: ConnectionThread,
    /// Workers' scans.
    scans: ConnectionThread,
    /// Pages and counts for people, which may take longer.
    pages: ConnectionThread,
    /// Whose turn it is to write, in this process.
    turns: Turns,
    /// What others could do with the file when it was opened.
    warnings: Vec<String>,
    clock: Clock,
}

impl SqliteStore {
    /// Opens the file at `path`, creating and migrating it.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        SqliteOptions::new(path).open()
    }

    /// What other users of the machine could do with the file when it was opened, with the remedy.
    #[must_use]
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }
}

impl Store for SqliteStore {
    fn capability(&self) -> Capability {
        Capability { durability: Durability::Durable, sharing: Sharing::Machine, writing: Writing::Blocks }
    }

    async fn apply(&self, batch: &[Write]) -> Result<Vec<Outcome>> {
        if batch.is_empty() {
            return Ok(Vec::new());
        }
        let _turn = self.turns.next().await;
        self.writer.apply(batch, self.clock.now())
    }

    async fn read(&self, ids: &[RecordId]) -> Result<Vec<Result<Option<Record>>>> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let ids = ids.to_vec();
        // Taken before the snapshot: what is read must have it.
        let (watermark, expected) = (Arc::clone(self.writer.watermark()), self.writer.expected());
        let read = move |connection: &mut Connection| {
            let tx = connection.unchecked_transaction()?;
            match history::look(&tx, &watermark, expected)? {
                History::Intact => ids.iter().map(|id| statements::read_one(&tx, *id)).collect(),
                History::Lost => Err(Restored.into()),
            }
        };
        let found: Vec<Found> = self.rows.run("read", read).await?;
        let row = |row: std::result::Result<_, _>| {
            row.map_err(|failure| store_error(failure, "read", Effect::None))
        };
        Ok(found.into_iter().map(row).collect())
    }

    async fn due_in(&self, what: Due, moments: Moments, limit: usize) -> Result<Scan> {
        self.scans.run("due", move |connection| statements::due(connection, what, moments, limit)).await
    }

    async fn doubted_except(&self, except: &[Operation], moments: Moments, limit: usize) -> Result<Scan> {
        let except = except.to_vec();
        let due = move |connection: &mut _| statements::doubted_except(connection, &except, moments, limit);
        self.scans.run("due", due).await
    }

    async fn waiting(&self, turn: &Turn, now: Timestamp) -> Result<Waiting> {
        let turn = turn.clone();
        self.scans.run("waiting", move |connection| waiting::waiting(connection, &turn, now)).await
    }

    async fn backlog(&self) -> Result<Backlog> {
        self.scans.run("backlog", |connection| waiting::backlog(connection)).await
    }

    async fn doubts(&self) -> Result<Doubts> {
        self.scans.run("doubts", |connection| waiting::doubts(connection)).await
    }

    async fn browse(&self, filter: &Filter, after: Option<&Cursor>, limit: usize) -> Result<Page> {
        let (filter, after) = (filter.clone(), after.cloned());
        let job = move |connection: &mut _| browse::page(connection, &filter, after.as_ref(), limit);
        self.pages.run("browse", job).await
    }

    async fn counts(&self) -> Result<Counts> {
        self.pages.run("counts", |connection| browse::counts(connection)).await
    }

    async fn tell(&self, entries: &[Entry]) -> Result<()> {
        if entries.is_empty() {
            return Ok(());
        }
        let _turn = self.turns.next().await;
        let tell = |connection: &_| entries.iter().try_for_each(|entry| trail::tell(connection, entry));
        self.writer.run("tell", self.clock.now(), tell)
    }

    async fn story(&self, id: RecordId, limit: usize) -> Result<Vec<Entry>> {
        self.pages.run("story", move |connection| trail::story(connection, id, limit)).await
    }

    async fn drop_entries(&self, before: Timestamp, limit: usize) -> Result<usize> {
        let _turn = self.turns.next().await;
        self.writer.run("drop_entries", self.clock.now(), |connection| {
            trail::drop_entries(connection, before, limit)
        })
    }

    async fn entries(&self, span: TimeSpan, after: Option<EntryPlace>, limit: usize) -> Result<EntryPage> {
        let start = span.start(after);
        self.pages
            .run("entries", move |connection| trail::entries(connection, start, span.before, limit))
            .await
    }

    async fn removed(&self, ids: &[RecordId], since: Timestamp) -> Result<Vec<Option<Timestamp>>> {
        let ids = ids.to_vec();
        self.scans.run("removed", move |connection| removed::removed(connection, &ids, since)).await
    }

    async fn drop_removed(&self, before: Timestamp, limit: usize) -> Result<usize> {
        let _turn = self.turns.next().await;
        self.writer.run("drop_removed", self.clock.now(), |connection| {
            removed::drop_removed(connection, before, limit)
        })
    }

    async fn keep_apart(&self, apart: &Apart) -> Result<()> {
        let _turn = self.turns.next().await;
        self.writer.run("keep_apart", self.clock.now(), |connection| trail::keep_apart(connection, apart))
    }

    async fn apart(&self, after: Option<&Apart>, limit: usize) -> Result<Vec<Apart>> {
        let after = after.cloned();
        self.scans.run("apart", move |connection| trail::apart(connection, after.as_ref(), limit)).await
    }

    async fn drop_apart(&self, apart: &[Apart]) -> Result<()> {
        if apart.is_empty() {
            return Ok(());
        }
        let _turn = self.turns.next().await;
        self.writer.run("drop_apart", self.clock.now(), |connection| trail::drop_apart(connection, apart))
    }

    async fn check_history(&self) -> Result<History> {
        let _turn = self.turns.next().await;
        self.writer.check_history(self.clock.now())
    }

    async fn leave(&self) -> Result<()> {
        let _turn = self.turns.next().await;
        self.writer.leave()
    }

    async fn declare_quarantine(&self, quarantine: &Quarantine) -> Result<()> {
        let _turn = self.turns.next().await;
        self.writer.run("declare_quarantine", self.clock.now(), |connection| {
            history::declare(connection, quarantine)
        })
    }

    async fn quarantines(&self) -> Result<Vec<Quarantine>> {
        self.pages.run("quarantines", |connection| history::quarantines(connection)).await
    }

    async fn release_quarantine(&self, id: &str, at: Timestamp) -> Result<bool> {
        let _turn = self.turns.next().await;
        self.writer
            .run("release_quarantine", self.clock.now(), |connection| history::release(connection, id, at))
    }

    async fn clock(&self) -> Result<Timestamp> {
        Ok(self.clock.now())
    }

    fn local_clock(&self) -> Option<Clock> {
        Some(self.clock.clone())
    }

    fn signals(&self) -> Option<Arc<dyn Signals>> {
        None
    }

    fn realm(&self) -> Option<Realm> {
        None
    }
}
