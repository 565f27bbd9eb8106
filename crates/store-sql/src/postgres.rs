//! The store for many nodes: one PostgreSQL database, one schema in it.
//!
//! **Invariant:** a key is admitted by the unique index of the database, whatever any node remembers; an outcome leaves only
//! after the server has acknowledged the commit; and time is the server's clock.
//!
//! Not here: batching (the engine).

use std::sync::Arc;

use oncegate_core::audit::Entry;
use oncegate_core::identity::RecordId;
use oncegate_core::record::Record;
use oncegate_core::scope::Operation;
use oncegate_core::time::Timestamp;
use oncegate_store::clock::Clock;
use oncegate_store::shared_cache::Realm;
use oncegate_store::signals::Signals;
use oncegate_store::{
    Apart, Backlog, Capability, Counts, Cursor, Doubts, Due, Durability, Effect, EntryPage, EntryPlace,
    Filter, History, Moments, Outcome, Page, Quarantine, Result, Scan, Sharing, Store, TimeSpan, Turn,
    Waiting, Write, Writing,
};

mod apply;
mod batch;
mod browse;
mod check;
mod checks;
mod error;
mod history;
mod jobs;
mod join;
mod link;
mod migrate;
mod removed;
mod replication;
mod row;
mod scan;
mod session;
mod settings;
mod signals;
mod statements;
#[cfg(test)]
mod tests;
mod tls;
mod trail;
mod waiting;

use apply::Writers;
pub use checks::Warning;
use error::Failure;
pub use error::is_of_the_statement;
use link::Link;
use replication::{HAS_STANDBYS, Replication};
use session::{Pooling, Session};
pub use settings::Pooler;
use settings::{Schema, Settings};
use signals::PgSignals;
use statements::{SETUP_PAGES, SETUP_READ, Statements};

/// Sessions that write, for one store.
const WRITERS: usize = 2;

/// How to open a database.
#[derive(Debug)]
pub struct PostgresOptions {
    settings: Settings,
    writers: usize,
    is_existing: bool,
}

impl PostgresOptions {
    /// The database at `url`: `postgres://USER:PASSWORD@HOST:PORT,HOST:PORT/DATABASE?…`.
    ///
    /// Besides libpq's parameters: `schema` (default `oncegate`), `pooler` (`detect`, `none`, `transaction`), `sslmode`
    /// (`disable`, `prefer`, `require`, `verify-full`), `sslrootcert` (a file, or `system`). Of several hosts the first that
    /// takes writes is used, now and after every lost connection.
    pub fn new(url: &str) -> Result<Self> {
        Ok(Self { settings: Settings::from_url(url)?, writers: WRITERS, is_existing: false })
    }

    /// Keeps everything in this schema; created if need be.
    pub fn schema(mut self, name: &str) -> Result<Self> {
        self.settings.schema = Schema::new(name)?;
        Ok(self)
    }

    /// What is between this process and the server; found out by default.
    #[must_use]
    pub const fn pooler(mut self, pooler: Pooler) -> Self {
        self.settings.pooler = pooler;
        self
    }

    /// How many batches may be on their way at once; each needs a connection.
    #[must_use]
    pub fn writers(mut self, count: usize) -> Self {
        self.writers = count.max(1);
        self
    }

    /// Opens only a schema that is there and up to date, and neither creates nor migrates one: for people who look.
    #[must_use]
    pub const fn existing(mut self) -> Self {
        self.is_existing = true;
        self
    }

    /// Whether a server on another machine is spoken to without TLS that proves who it is.
    #[must_use]
    pub fn is_exposed(&self) -> bool {
        self.settings.is_exposed()
    }

    /// Connects, migrates, and looks at how safe the server is; what it finds is logged, see [`PostgresStore::warnings`].
    pub async fn open(self) -> Result<PostgresStore> {
        let failed = |failure: Failure| failure.during("open", Effect::None);
        let settings = Arc::new(self.settings);
        if self.is_existing {
            migrate::check(&settings).await?;
        } else {
            migrate::run(&settings).await?;
        }
        let reads = Link::new(Arc::clone(&settings), SETUP_READ);
        let session = reads.session().await.map_err(failed)?;
        let warnings = checks::run(&session).await.map_err(failed)?;
        for warning in &warnings {
            tracing::warn!(%warning, "acknowledged keys may be lost");
        }
        let realm = read_realm(&session, &settings.schema).await.map_err(failed)?;
        let has_standbys = read_has_standbys(&session).await.map_err(failed)?;
        let is_pooled = session.pooling() == Pooling::Pooled;
        Ok(PostgresStore {
            statements: Statements::new(&settings.schema),
            joining: join::Statements::new(&settings.schema),
            writers: Writers::new(&settings, self.writers),
            replication: Replication::new(&settings, has_standbys),
            reads,
            scans: Link::new(Arc::clone(&settings), SETUP_READ),
            pages: Link::new(Arc::clone(&settings), SETUP_PAGES),
            signals: (!is_pooled).then(|| Arc::new(PgSignals::new(Arc::clone(&settings)))),
            settings,
            warnings,
            realm,
        })
    }
}

async fn read_realm(session: &Session, schema: &Schema) -> std::result::Result<Realm, Failure> {
    let rows = session.query_once(&format!("SELECT id FROM {}.realm", schema.quoted()), &[]).await?;
    let bytes: &[u8] = rows.first().map_or(Ok(&[][..]), |row| row.try_get(0))?;
    let bytes = bytes.try_into().map_err(|_| Failure::Words("the schema has lost its realm".to_owned()))?;
    Ok(Realm::from_bytes(bytes))
}

async fn read_has_standbys(session: &Session) -> std::result::Result<bool, Failure> {
    let rows = session.query_once(&format!("SELECT {HAS_STANDBYS}"), &[]).await?;
    Ok(rows.first().map_or(Ok(false), |row| row.try_get(0))?)
}

/// A store in one schema of a PostgreSQL database. Connections are opened when they are needed, and again when they are lost.
#[derive(Debug)]
pub struct PostgresStore {
    statements: Statements,
    /// For a caller's transaction.
    joining: join::Statements,
    writers: Writers,
    replication: Replication,
    /// Reads by id, which somebody waits for.
    reads: Link,
    /// Workers' scans.
    scans: Link,
    /// Pages and counts for people, which may take longer.
    pages: Link,
    signals: Option<Arc<PgSignals>>,
    settings: Arc<Settings>,
    warnings: Vec<Warning>,
    realm: Realm,
}

impl PostgresStore {
    /// Opens the database at `url`, see [`PostgresOptions::new`].
    pub async fn open(url: &str) -> Result<Self> {
        PostgresOptions::new(url)?.open().await
    }

    /// What about the server would lose acknowledged keys, as it was when the store was opened.
    #[must_use]
    pub fn warnings(&self) -> &[Warning] {
        &self.warnings
    }

    async fn read_rows(
        &self,
        session: Arc<Session>,
        ids: &[RecordId],
    ) -> std::result::Result<Vec<Found>, Failure> {
        let keys: Vec<_> = ids.iter().map(|id| &id.as_bytes()[..]).collect();
        let rows = session.query(&self.statements.read, &[&keys]).await?;
        let mut found = std::collections::HashMap::with_capacity(rows.len());
        for row in &rows {
            let (id, record) = row::decode(row)?;
            found.insert(id, record);
        }
        let place = |id: &RecordId| match found.get(id) {
            None => Ok(None),
            Some(Ok(record)) => Ok(Some(record.clone())),
            Some(Err(malformed)) => Err(Failure::from(*malformed).during("read", Effect::None)),
        };
        Ok(ids.iter().map(place).collect())
    }
}

type Found = Result<Option<Record>>;

fn shows_a_row(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Refused { current: Some(_) } | Outcome::Unreadable { .. })
}

impl Store for PostgresStore {
    fn capability(&self) -> Capability {
        Capability {
            durability: Durability::Durable,
            sharing: Sharing::Network,
            writing: Writing::Awaits { at_once: self.writers.count() },
        }
    }

    async fn apply(&self, batch: &[Write]) -> Result<Vec<Outcome>> {
        if batch.is_empty() {
            return Ok(Vec::new());
        }
        let outcomes = self.writers.apply(&self.statements, batch).await?;
        if outcomes.iter().any(shows_a_row) {
            let confirmed = self.replication.confirm().await;
            confirmed.map_err(|failure| failure.during("apply", Effect::Unknown))?;
        }
        Ok(outcomes)
    }

    async fn read(&self, ids: &[RecordId]) -> Result<Vec<Result<Option<Record>>>> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let failed = |failure: Failure| failure.during("read", Effect::None);
        let rows = self.reads.read(|session| self.read_rows(session, ids)).await.map_err(failed)?;
        if rows.iter().any(|row| !matches!(row, Ok(None))) {
            self.replication.confirm().await.map_err(failed)?;
        }
        Ok(rows)
    }

    async fn due_in(&self, what: Due, moments: Moments, limit: usize) -> Result<Scan> {
        let statements = &self.statements;
        let scan = self.scans.read(|session| async move {
            scan::due(&session, statements, what, &[], moments, limit, scan::SCAN_TIME).await
        });
        scan.await.map_err(|failure| failure.during("due", Effect::None))
    }

    async fn doubted_except(&self, except: &[Operation], moments: Moments, limit: usize) -> Result<Scan> {
        let statements = &self.statements;
        let scan = self.scans.read(|session| async move {
            scan::due(&session, statements, Due::Doubted, except, moments, limit, scan::SCAN_TIME).await
        });
        scan.await.map_err(|failure| failure.during("due", Effect::None))
    }

    async fn waiting(&self, turn: &Turn, now: Timestamp) -> Result<Waiting> {
        let statements = &self.statements;
        let waiting =
            self.scans.read(|session| async move { waiting::waiting(&session, statements, turn, now).await });
        waiting.await.map_err(|failure| failure.during("waiting", Effect::None))
    }

    async fn backlog(&self) -> Result<Backlog> {
        let statements = &self.statements;
        let backlog = self.scans.read(|session| async move { waiting::backlog(&session, statements).await });
        backlog.await.map_err(|failure| failure.during("backlog", Effect::None))
    }

    async fn doubts(&self) -> Result<Doubts> {
        let statements = &self.statements;
        let doubts = self.scans.read(|session| async move { waiting::doubts(&session, statements).await });
        doubts.await.map_err(|failure| failure.during("doubts", Effect::None))
    }

    async fn browse(&self, filter: &Filter, after: Option<&Cursor>, limit: usize) -> Result<Page> {
        let statements = &self.statements;
        let page = self
            .pages
            .read(|session| async move { browse::page(&session, statements, filter, after, limit).await });
        page.await.map_err(|failure| failure.during("browse", Effect::None))
    }

    async fn counts(&self) -> Result<Counts> {
        let statements = &self.statements;
        let counts = self.pages.read(|session| async move { browse::counts(&session, statements).await });
        counts.await.map_err(|failure| failure.during("counts", Effect::None))
    }

    async fn tell(&self, entries: &[Entry]) -> Result<()> {
        trail::tell(&self.writers, &self.statements.trail, entries).await
    }

    async fn story(&self, id: RecordId, limit: usize) -> Result<Vec<Entry>> {
        let statements = &self.statements.trail;
        let story =
            self.reads.read(|session| async move { trail::story(&session, statements, id, limit).await });
        story.await.map_err(|failure| failure.during("story", Effect::None))
    }

    async fn drop_entries(&self, before: Timestamp, limit: usize) -> Result<usize> {
        trail::drop_entries(&self.writers, &self.statements.trail, before, limit).await
    }

    async fn entries(&self, span: TimeSpan, after: Option<EntryPlace>, limit: usize) -> Result<EntryPage> {
        let (statements, start) = (&self.statements.trail, span.start(after));
        let page = self.pages.read(|session| async move {
            trail::entries(&session, statements, start, span.before, limit).await
        });
        page.await.map_err(|failure| failure.during("entries", Effect::None))
    }

    async fn removed(&self, ids: &[RecordId], since: Timestamp) -> Result<Vec<Option<Timestamp>>> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let statements = &self.statements.removed;
        let removed = self
            .scans
            .read(|session| async move { removed::removed(&session, statements, ids, since).await });
        removed.await.map_err(|failure| failure.during("removed", Effect::None))
    }

    async fn drop_removed(&self, before: Timestamp, limit: usize) -> Result<usize> {
        removed::drop_removed(&self.writers, &self.statements.removed, before, limit).await
    }

    async fn keep_apart(&self, apart: &Apart) -> Result<()> {
        trail::keep_apart(&self.writers, &self.statements.trail, apart).await
    }

    async fn apart(&self, after: Option<&Apart>, limit: usize) -> Result<Vec<Apart>> {
        let statements = &self.statements.trail;
        let apart =
            self.scans.read(|session| async move { trail::apart(&session, statements, after, limit).await });
        apart.await.map_err(|failure| failure.during("apart", Effect::None))
    }

    async fn drop_apart(&self, apart: &[Apart]) -> Result<()> {
        trail::drop_apart(&self.writers, &self.statements.trail, apart).await
    }

    async fn check_history(&self) -> Result<History> {
        history::check(&self.writers, &self.statements.history, &self.settings.watermark).await
    }

    async fn leave(&self) -> Result<()> {
        history::leave(&self.writers, &self.statements.history, &self.settings.watermark).await
    }

    async fn declare_quarantine(&self, quarantine: &Quarantine) -> Result<()> {
        history::declare(&self.writers, &self.statements.history, quarantine).await
    }

    async fn quarantines(&self) -> Result<Vec<Quarantine>> {
        let statements = &self.statements.history;
        let all = self.scans.read(|session| async move { history::quarantines(&session, statements).await });
        all.await.map_err(|failure| failure.during("quarantines", Effect::None))
    }

    async fn release_quarantine(&self, id: &str, at: Timestamp) -> Result<bool> {
        history::release(&self.writers, &self.statements.history, id, at).await
    }

    async fn clock(&self) -> Result<Timestamp> {
        let statements = &self.statements;
        let clock = self.reads.read(|session| async move {
            let rows = session.query(&statements.clock, &[]).await?;
            let row = rows.first().ok_or_else(|| Failure::Words("no time".to_owned()))?;
            self.replication.set_has_standbys(row.try_get(1)?);
            Ok(Timestamp::from_micros(row.try_get(0)?))
        });
        clock.await.map_err(|failure| failure.during("clock", Effect::None))
    }

    fn local_clock(&self) -> Option<Clock> {
        None
    }

    fn signals(&self) -> Option<Arc<dyn Signals>> {
        self.signals.as_ref().map(|signals| Arc::clone(signals) as Arc<dyn Signals>)
    }

    fn realm(&self) -> Option<Realm> {
        Some(self.realm)
    }
}
