//! The store: rows in one Redis, for low stakes.
//!
//! **Invariant:** a key is admitted by one Lua script on the server, which runs alone. An outcome is as durable as the server's own
//! settings make it: [`RedisStore::warnings`] says what they would lose. Rows have no time to live in Redis; they leave by
//! [`oncegate_store::Change::Remove`] only.
//!
//! Not here: batching (the engine), failing over (whoever runs Redis), locks (nobody, see `docs/decisions/0008-redis.md`).

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use oncegate_core::audit::Entry;
use oncegate_core::identity::RecordId;
use oncegate_core::record::Record;
use oncegate_core::scope::Operation;
use oncegate_core::time::Timestamp;
use oncegate_store::clock::Clock;
use oncegate_store::history::Watermark;
use oncegate_store::shared_cache::Realm;
use oncegate_store::signals::Signals;
use oncegate_store::{
    Apart, Backlog, Capability, Counts, Cursor, Doubts, Due, Durability, Effect, EntryPage, EntryPlace,
    Filter, History, Kind, Moments, Outcome, Page, Quarantine, Result, Scan, Sharing, Store, StoreError,
    TimeSpan, Turn, Waiting, Write, Writing,
};

use crate::address::{Address, BAD_PREFIX, is_prefix, refused};
use crate::error::Nature;
use crate::history::{self, Checks};
use crate::io::{Io, bounded};
use crate::keys::Keys;
use crate::link::Link;
use crate::settings::Settings;
use crate::signals::RedisSignals;
use crate::warning::Warning;
use crate::{apply, ask, removed, row, trail, waiting};

/// How to open a store.
#[derive(Clone)]
pub struct RedisOptions {
    url: String,
    prefix: Option<String>,
    limit: Duration,
}

impl RedisOptions {
    /// The server at `redis://[user:password@]host[:port][/database][?prefix=…]`, or `rediss://…`
    /// for TLS, which is verified;
    /// its option `tls_ca=FILE` names certificates to trust instead of the system's.
    #[must_use]
    pub fn new(url: impl Into<String>) -> Self {
        Self { url: url.into(), prefix: None, limit: Duration::from_secs(2) }
    }

    /// What the store's keys begin with, `oncegate` unless told; goes before the URL's. One prefix is one store.
    #[must_use]
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = Some(prefix.into());
        self
    }

    /// How long a call may take, two seconds unless told. A write that takes longer is in doubt.
    #[must_use]
    pub const fn limit(mut self, span: Duration) -> Self {
        self.limit = span;
        self
    }

    /// Connects, and reads the server's settings. A server that may throw keys away, or that is a replica, is refused.
    pub async fn open(self) -> Result<RedisStore> {
        let address = Address::parse(&self.url)?;
        let prefix = self.prefix.as_deref().or(address.prefix.as_deref()).unwrap_or("oncegate");
        if !is_prefix(prefix) {
            return Err(refused(BAD_PREFIX));
        }
        let keys = Keys::new(prefix);
        let limit = bounded(self.limit);
        let io = Arc::new(Io::start("oncegate-redis")?);
        let checks =
            Checks { settings: Settings::default(), watermark: Watermark::default(), keys: keys.clone() };
        let link = Link::new(io.handle().clone(), address.clone(), limit, checks);
        let link = Arc::new(link);
        link.connect().await?;
        // Whoever may not run scripts, or finds foreign values under our names, learns it now.
        ask::counts(&link, &keys).await?;
        let warnings = link.look_over().settings.warnings();
        let signals = RedisSignals::new(io, Arc::clone(&link), address.clone(), keys.signals(), limit);
        Ok(RedisStore { link, keys, warnings, signals: Arc::new(signals), address })
    }
}

impl fmt::Debug for RedisOptions {
    /// Without the URL, which may hold a password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisOptions")
            .field("prefix", &self.prefix)
            .field("limit", &self.limit)
            .finish_non_exhaustive()
    }
}

/// A store in Redis. Share it by reference or `Arc`; open the URL again for an independent handle.
pub struct RedisStore {
    link: Arc<Link<Checks>>,
    keys: Keys,
    warnings: Vec<Warning>,
    /// Holds the thread that everything runs on.
    signals: Arc<RedisSignals>,
    address: Address,
}

impl RedisStore {
    /// Opens the store at `url`, see [`RedisOptions::new`].
    pub async fn open(url: impl Into<String>) -> Result<Self> {
        RedisOptions::new(url).open().await
    }

    /// What the server's settings would lose, as they were when the store was opened. They were logged too, and what is new
    /// is logged at each new connection.
    #[must_use]
    pub fn warnings(&self) -> &[Warning] {
        &self.warnings
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RedisStore({:?}, {})", self.address, self.keys.rows())
    }
}

impl Store for RedisStore {
    /// Durable only where nothing warns: everything else may lose what it has acknowledged, and says so.
    fn capability(&self) -> Capability {
        let durability = if self.warnings.is_empty() { Durability::Durable } else { Durability::None };
        // One batch is on its way while another runs: the server runs one at a time.
        Capability { durability, sharing: Sharing::Network, writing: Writing::Awaits { at_once: 2 } }
    }

    async fn apply(&self, batch: &[Write]) -> Result<Vec<Outcome>> {
        if batch.is_empty() {
            return Ok(Vec::new());
        }
        let call = apply::call(&self.keys, batch);
        let run = async move |mut connection| call.run(&mut connection).await;
        apply::outcomes(batch, self.link.call("apply", Nature::Writes, run).await?)
    }

    async fn read(&self, ids: &[RecordId]) -> Result<Vec<Result<Option<Record>>>> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let names: Vec<_> = ids.iter().map(|id| self.keys.row(*id)).collect();
        let get = async move |mut connection| {
            redis::cmd("MGET").arg(names).query_async::<Vec<Option<Vec<u8>>>>(&mut connection).await
        };
        let found = self.link.call("read", Nature::Reads, get).await?;
        let unreadable = |problem| StoreError::new(Kind::Unreadable, Effect::None, "read").because(problem);
        let row = |(id, row): (&RecordId, Option<Vec<u8>>)| {
            row.map(|row| row::decode(&row, *id).map_err(unreadable)).transpose()
        };
        Ok(ids.iter().zip(found).map(row).collect())
    }

    async fn due_in(&self, what: Due, moments: Moments, limit: usize) -> Result<Scan> {
        ask::due(&self.link, &self.keys, what, &[], moments, limit).await
    }

    async fn doubted_except(&self, except: &[Operation], moments: Moments, limit: usize) -> Result<Scan> {
        ask::due(&self.link, &self.keys, Due::Doubted, except, moments, limit).await
    }

    async fn waiting(&self, turn: &Turn, now: Timestamp) -> Result<Waiting> {
        waiting::waiting(&self.link, &self.keys, turn, now).await
    }

    async fn backlog(&self) -> Result<Backlog> {
        waiting::backlog(&self.link, &self.keys).await
    }

    async fn doubts(&self) -> Result<Doubts> {
        waiting::doubts(&self.link, &self.keys).await
    }

    async fn browse(&self, filter: &Filter, after: Option<&Cursor>, limit: usize) -> Result<Page> {
        ask::browse(&self.link, &self.keys, filter, after, limit).await
    }

    async fn counts(&self) -> Result<Counts> {
        ask::counts(&self.link, &self.keys).await
    }

    async fn tell(&self, entries: &[Entry]) -> Result<()> {
        trail::tell(&self.link, &self.keys, entries).await
    }

    async fn story(&self, id: RecordId, limit: usize) -> Result<Vec<Entry>> {
        trail::story(&self.link, &self.keys, id, limit).await
    }

    async fn drop_entries(&self, before: Timestamp, limit: usize) -> Result<usize> {
        trail::drop_entries(&self.link, &self.keys, before, limit).await
    }

    async fn entries(&self, span: TimeSpan, after: Option<EntryPlace>, limit: usize) -> Result<EntryPage> {
        trail::entries(&self.link, &self.keys, span.start(after), span.before, limit).await
    }

    async fn removed(&self, ids: &[RecordId], since: Timestamp) -> Result<Vec<Option<Timestamp>>> {
        removed::removed(&self.link, &self.keys, ids, since).await
    }

    async fn drop_removed(&self, before: Timestamp, _limit: usize) -> Result<usize> {
        removed::drop_removed(&self.link, &self.keys, before).await
    }

    async fn keep_apart(&self, apart: &Apart) -> Result<()> {
        trail::keep_apart(&self.link, &self.keys, apart).await
    }

    async fn apart(&self, after: Option<&Apart>, limit: usize) -> Result<Vec<Apart>> {
        trail::apart(&self.link, &self.keys, after, limit).await
    }

    async fn drop_apart(&self, apart: &[Apart]) -> Result<()> {
        trail::drop_apart(&self.link, &self.keys, apart).await
    }

    async fn check_history(&self) -> Result<History> {
        history::check(&self.link, &self.keys).await
    }

    async fn leave(&self) -> Result<()> {
        history::leave(&self.link, &self.keys).await
    }

    async fn declare_quarantine(&self, quarantine: &Quarantine) -> Result<()> {
        history::declare(&self.link, &self.keys, quarantine).await
    }

    async fn quarantines(&self) -> Result<Vec<Quarantine>> {
        history::quarantines(&self.link, &self.keys).await
    }

    async fn release_quarantine(&self, id: &str, at: Timestamp) -> Result<bool> {
        history::release(&self.link, &self.keys, id, at).await
    }

    async fn clock(&self) -> Result<Timestamp> {
        let time =
            async move |mut connection| redis::cmd("TIME").query_async::<(i64, i64)>(&mut connection).await;
        let (seconds, micros) = self.link.call("clock", Nature::Reads, time).await?;
        // As the server says it, also if that is earlier than before: the engine must see a step.
        Ok(Timestamp::from_micros(seconds.saturating_mul(1_000_000).saturating_add(micros)))
    }

    fn local_clock(&self) -> Option<Clock> {
        None
    }

    fn signals(&self) -> Option<Arc<dyn Signals>> {
        Some(Arc::<RedisSignals>::clone(&self.signals))
    }

    fn realm(&self) -> Option<Realm> {
        None
    }
}
