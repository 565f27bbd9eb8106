//! The embedded store: one SQLite file.
//!
//! **Invariant:** a key is admitted by what is in the file, inside a `BEGIN IMMEDIATE` transaction, whatever any process remembers: by the
//! unique index of `record`, and by an index in memory over the tables of the happy path that was brought up to date in that transaction (see
//! `append`). An outcome leaves only after `COMMIT` has returned, with `synchronous=FULL`.
//!
//! A batch is written on the thread that brings it, see [`Writing::Blocks`]; threads of the store's own read (WAL lets them)
//! and checkpoint. A file has one writer at a time: this store's writes and callers' transactions that join (see `join`) take turns,
//! in the order in which they came. Not here: batching (the engine).

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

mod append;
mod apply;
mod browse;
mod checkpoint;
mod connection;
mod error;
mod file;
mod history;
mod jobs;
mod join;
mod migrate;
mod places;
mod removed;
mod row;
mod scan;
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

use append::Shared;
use error::store_error;
use thread::ConnectionThread;
use writer::Writer;

/// How to open a file.
#[derive(Clone, Debug)]
pub struct SqliteOptions {
    path: PathBuf,
    clock: Clock,
    busy_timeout: Duration,
    is_existing: bool,
    /// How long a row may be in flight before it is moved to where it is indexed.
    in_flight_max: Duration,
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
            in_flight_max: Duration::from_secs(2),
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
        let shared = Shared::default();
        let warnings = self.warnings();
        Ok(SqliteStore {
            writer: Writer::start(&self, shared.clone())?,
            shared,
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
    /// What is in the tables that have no index over ids, and the watermark.
    shared: Shared,
    /// Reads by id, which somebody waits for.
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
        self.writer.apply(batch, || self.clock.now())
    }

    async fn read(&self, ids: &[RecordId]) -> Result<Vec<Result<Option<Record>>>> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let (ids, shared) = (ids.to_vec(), self.shared.clone());
        let read = move |connection: &mut _| scan::read(connection, &shared, &ids);
        let found = self.rows.run("read", read).await?;
        let row = |row: std::result::Result<_, _>| {
            row.map_err(|failure| store_error(failure, "read", Effect::None))
        };
        Ok(found.into_iter().map(row).collect())
    }

    async fn due_in(&self, what: Due, moments: Moments, limit: usize) -> Result<Scan> {
        let shared = self.shared.clone();
        let due = move |connection: &mut _| scan::due(connection, &shared, what, moments, limit);
        self.scans.run("due", due).await
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
        let (filter, after, shared) = (filter.clone(), after.cloned(), self.shared.clone());
        let job = move |connection: &mut _| browse::page(connection, &shared, &filter, after.as_ref(), limit);
        self.pages.run("browse", job).await
    }

    async fn counts(&self) -> Result<Counts> {
        let shared = self.shared.clone();
        self.pages.run("counts", move |connection| browse::counts(connection, &shared)).await
    }

    async fn tell(&self, entries: &[Entry]) -> Result<()> {
        if entries.is_empty() {
            return Ok(());
        }
        let _turn = self.turns.next().await;
        let tell = |connection: &_| entries.iter().try_for_each(|entry| trail::tell(connection, entry));
        self.writer.run("tell", tell)
    }

    async fn story(&self, id: RecordId, limit: usize) -> Result<Vec<Entry>> {
        self.pages.run("story", move |connection| trail::story(connection, id, limit)).await
    }

    async fn drop_entries(&self, before: Timestamp, limit: usize) -> Result<usize> {
        let _turn = self.turns.next().await;
        self.writer.run("drop_entries", |connection| trail::drop_entries(connection, before, limit))
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
        self.writer.run("drop_removed", |connection| removed::drop_removed(connection, before, limit))
    }

    async fn keep_apart(&self, apart: &Apart) -> Result<()> {
        let _turn = self.turns.next().await;
        self.writer.run("keep_apart", |connection| trail::keep_apart(connection, apart))
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
        self.writer.run("drop_apart", |connection| trail::drop_apart(connection, apart))
    }

    async fn check_history(&self) -> Result<History> {
        let _turn = self.turns.next().await;
        let Some(beat) = self.shared.watermark().beat() else { return Ok(History::Lost) };
        let (shared, now) = (&self.shared, self.clock.now());
        let written =
            self.writer.run("check_history", |connection| history::beat(connection, shared, beat, now))?;
        if let Some((from, to)) = written {
            shared.keep_stamp(from, to);
        }
        Ok(shared.watermark().took_effect(beat, written.is_some()))
    }

    async fn leave(&self) -> Result<()> {
        let Some(beat) = self.shared.watermark().beat() else { return Ok(()) };
        let _turn = self.turns.next().await;
        self.writer.run("leave", |connection| history::leave(connection, beat.node))
    }

    async fn declare_quarantine(&self, quarantine: &Quarantine) -> Result<()> {
        let _turn = self.turns.next().await;
        self.writer.run("declare_quarantine", |connection| history::declare(connection, quarantine))
    }

    async fn quarantines(&self) -> Result<Vec<Quarantine>> {
        self.pages.run("quarantines", |connection| history::quarantines(connection)).await
    }

    async fn release_quarantine(&self, id: &str, at: Timestamp) -> Result<bool> {
        let _turn = self.turns.next().await;
        self.writer.run("release_quarantine", |connection| history::release(connection, id, at))
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
