//! One type for all stores, so that a service can choose by its configuration.

use std::sync::Arc;

use oncegate_core::audit::Entry;
use oncegate_core::identity::{RecordId, Token};
use oncegate_core::record::{Reason, Record};
use oncegate_core::scope::Operation;
use oncegate_core::time::Timestamp;
#[cfg(any(feature = "sqlite", feature = "postgres"))]
use oncegate_store::Check as _;
use oncegate_store::check::check_pages;
use oncegate_store::clock::Clock;
use oncegate_store::jobs::{Claim, Depth, Job, JobId, Jobs, Report};
use oncegate_store::memory::MemoryStore;
use oncegate_store::shared_cache::Realm;
use oncegate_store::signals::Signals;
use oncegate_store::{
    Apart, Backlog, Capability, CheckedPart, Counts, Cursor, Doubts, Due, EntryPage, EntryPlace, Filter,
    History, Moments, Outcome, Page, Quarantine, Result, Scan, Store, TimeSpan, Turn, Waiting, Write,
};
#[cfg(feature = "redis")]
use oncegate_store::{Effect, Kind, StoreError};
#[cfg(feature = "redis")]
use oncegate_store_redis::RedisStore;
#[cfg(feature = "postgres")]
use oncegate_store_sql::PostgresStore;
#[cfg(feature = "sqlite")]
use oncegate_store_sql::SqliteStore;

/// Any of the stores that this build has.
#[derive(Debug)]
pub enum AnyStore {
    /// In this process's memory.
    Memory(MemoryStore),
    /// One file.
    #[cfg(feature = "sqlite")]
    Sqlite(Box<SqliteStore>),
    /// A schema of a PostgreSQL database.
    #[cfg(feature = "postgres")]
    Postgres(Box<PostgresStore>),
    /// One Redis.
    #[cfg(feature = "redis")]
    Redis(Box<RedisStore>),
}

/// The same call on whichever store it is. One that is awaited is boxed: its future would be as large as the largest store's, and with it that
/// of whoever calls, which is moved and copied on the way of every request.
macro_rules! on_any {
    ($store:expr, $inner:ident => $call:expr) => {
        match $store {
            AnyStore::Memory($inner) => $call,
            #[cfg(feature = "sqlite")]
            AnyStore::Sqlite($inner) => $call,
            #[cfg(feature = "postgres")]
            AnyStore::Postgres($inner) => $call,
            #[cfg(feature = "redis")]
            AnyStore::Redis($inner) => $call,
        }
    };
}

impl AnyStore {
    /// What about the store, as it is set up, would lose acknowledged keys or show them to
    /// others: for
    /// the start of a service to say.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        match self {
            Self::Memory(_) => {
                vec!["memory: everything is lost when this process ends, and every key runs again".to_owned()]
            }
            #[cfg(feature = "sqlite")]
            Self::Sqlite(store) => store.warnings().to_vec(),
            #[cfg(feature = "postgres")]
            Self::Postgres(store) => store.warnings().iter().map(ToString::to_string).collect(),
            #[cfg(feature = "redis")]
            Self::Redis(store) => store.warnings().iter().map(ToString::to_string).collect(),
        }
    }
}

impl AnyStore {
    /// Checks the part of the store behind `after` for contradictions; `None` begins with the
    /// first part.
    pub async fn check(&self, after: Option<&Cursor>) -> Result<CheckedPart> {
        match self {
            Self::Memory(store) => check_pages(store, after).await,
            #[cfg(feature = "sqlite")]
            Self::Sqlite(store) => store.check(after).await,
            #[cfg(feature = "postgres")]
            Self::Postgres(store) => store.check(after).await,
            #[cfg(feature = "redis")]
            Self::Redis(store) => check_pages(&**store, after).await,
        }
    }
}

impl Store for AnyStore {
    fn capability(&self) -> Capability {
        on_any!(self, store => store.capability())
    }

    async fn apply(&self, batch: &[Write]) -> Result<Vec<Outcome>> {
        on_any!(self, store => Box::pin(store.apply(batch)).await)
    }

    async fn read(&self, ids: &[RecordId]) -> Result<Vec<Result<Option<Record>>>> {
        on_any!(self, store => Box::pin(store.read(ids)).await)
    }

    async fn due_in(&self, what: Due, moments: Moments, limit: usize) -> Result<Scan> {
        on_any!(self, store => Box::pin(store.due_in(what, moments, limit)).await)
    }

    async fn doubted_except(&self, except: &[Operation], moments: Moments, limit: usize) -> Result<Scan> {
        on_any!(self, store => Box::pin(store.doubted_except(except, moments, limit)).await)
    }

    async fn waiting(&self, turn: &Turn, now: Timestamp) -> Result<Waiting> {
        on_any!(self, store => Box::pin(store.waiting(turn, now)).await)
    }

    async fn backlog(&self) -> Result<Backlog> {
        on_any!(self, store => Box::pin(store.backlog()).await)
    }

    async fn doubts(&self) -> Result<Doubts> {
        on_any!(self, store => Box::pin(store.doubts()).await)
    }

    async fn browse(&self, filter: &Filter, after: Option<&Cursor>, limit: usize) -> Result<Page> {
        on_any!(self, store => Box::pin(store.browse(filter, after, limit)).await)
    }

    async fn counts(&self) -> Result<Counts> {
        on_any!(self, store => Box::pin(store.counts()).await)
    }

    async fn tell(&self, entries: &[Entry]) -> Result<()> {
        on_any!(self, store => Box::pin(store.tell(entries)).await)
    }

    async fn story(&self, id: RecordId, limit: usize) -> Result<Vec<Entry>> {
        on_any!(self, store => Box::pin(store.story(id, limit)).await)
    }

    async fn drop_entries(&self, before: Timestamp, limit: usize) -> Result<usize> {
        on_any!(self, store => Box::pin(store.drop_entries(before, limit)).await)
    }

    async fn entries(&self, span: TimeSpan, after: Option<EntryPlace>, limit: usize) -> Result<EntryPage> {
        on_any!(self, store => Box::pin(store.entries(span, after, limit)).await)
    }

    async fn removed(&self, ids: &[RecordId], since: Timestamp) -> Result<Vec<Option<Timestamp>>> {
        on_any!(self, store => Box::pin(store.removed(ids, since)).await)
    }

    async fn drop_removed(&self, before: Timestamp, limit: usize) -> Result<usize> {
        on_any!(self, store => Box::pin(store.drop_removed(before, limit)).await)
    }

    async fn keep_apart(&self, apart: &Apart) -> Result<()> {
        on_any!(self, store => Box::pin(store.keep_apart(apart)).await)
    }

    async fn apart(&self, after: Option<&Apart>, limit: usize) -> Result<Vec<Apart>> {
        on_any!(self, store => Box::pin(store.apart(after, limit)).await)
    }

    async fn drop_apart(&self, apart: &[Apart]) -> Result<()> {
        on_any!(self, store => Box::pin(store.drop_apart(apart)).await)
    }

    async fn check_history(&self) -> Result<History> {
        on_any!(self, store => Box::pin(store.check_history()).await)
    }

    async fn leave(&self) -> Result<()> {
        on_any!(self, store => Box::pin(store.leave()).await)
    }

    async fn declare_quarantine(&self, quarantine: &Quarantine) -> Result<()> {
        on_any!(self, store => Box::pin(store.declare_quarantine(quarantine)).await)
    }

    async fn quarantines(&self) -> Result<Vec<Quarantine>> {
        on_any!(self, store => Box::pin(store.quarantines()).await)
    }

    async fn release_quarantine(&self, id: &str, at: Timestamp) -> Result<bool> {
        on_any!(self, store => Box::pin(store.release_quarantine(id, at)).await)
    }

    async fn clock(&self) -> Result<Timestamp> {
        on_any!(self, store => Box::pin(store.clock()).await)
    }

    fn local_clock(&self) -> Option<Clock> {
        on_any!(self, store => store.local_clock())
    }

    fn signals(&self) -> Option<Arc<dyn Signals>> {
        on_any!(self, store => store.signals())
    }

    fn realm(&self) -> Option<Realm> {
        on_any!(self, store => store.realm())
    }
}

/// The same call on whichever store it is that keeps an outbox.
macro_rules! on_any_outbox {
    ($store:expr, $operation:literal, $inner:ident => $call:expr) => {
        match $store {
            AnyStore::Memory($inner) => $call,
            #[cfg(feature = "sqlite")]
            AnyStore::Sqlite($inner) => $call,
            #[cfg(feature = "postgres")]
            AnyStore::Postgres($inner) => $call,
            #[cfg(feature = "redis")]
            AnyStore::Redis(_) => Err(no_outbox($operation)),
        }
    };
}

#[cfg(feature = "redis")]
fn no_outbox(operation: &'static str) -> StoreError {
    let words = "Redis keeps no outbox, because a promise must be written in the transaction that makes it. Keep the records in \
                 PostgreSQL or SQLite to use one";
    StoreError::new(Kind::Misconfigured, Effect::None, operation).because(words)
}

impl AnyStore {
    /// Whether it has an outbox; where it has none, everything that is asked of it fails.
    #[must_use]
    pub const fn keeps_outbox(&self) -> bool {
        match self {
            Self::Memory(_) => true,
            #[cfg(feature = "sqlite")]
            Self::Sqlite(_) => true,
            #[cfg(feature = "postgres")]
            Self::Postgres(_) => true,
            #[cfg(feature = "redis")]
            Self::Redis(_) => false,
        }
    }
}

impl Jobs for AnyStore {
    async fn promise(&self, jobs: &[Job]) -> Result<()> {
        on_any_outbox!(self, "promise", store => store.promise(jobs).await)
    }

    async fn claim(&self, claim: &Claim<'_>) -> Result<Vec<Job>> {
        on_any_outbox!(self, "claim", store => store.claim(claim).await)
    }

    async fn report(&self, token: Token, reports: &[Report]) -> Result<Vec<bool>> {
        on_any_outbox!(self, "report", store => store.report(token, reports).await)
    }

    async fn job(&self, id: JobId) -> Result<Option<Job>> {
        on_any_outbox!(self, "job", store => store.job(id).await)
    }

    async fn jobs_of(&self, record: RecordId) -> Result<Vec<Job>> {
        on_any_outbox!(self, "jobs_of", store => store.jobs_of(record).await)
    }

    async fn parked(&self, after: Option<JobId>, limit: usize) -> Result<Vec<Job>> {
        on_any_outbox!(self, "parked", store => store.parked(after, limit).await)
    }

    async fn unpark(&self, id: JobId) -> Result<bool> {
        on_any_outbox!(self, "unpark", store => store.unpark(id).await)
    }

    async fn withdraw(&self, parked: &Job, why: &Reason) -> Result<bool> {
        on_any_outbox!(self, "withdraw", store => store.withdraw(parked, why).await)
    }

    async fn depth(&self) -> Result<Vec<Depth>> {
        on_any_outbox!(self, "depth", store => store.depth().await)
    }

    async fn drop_jobs(&self, before: Timestamp, limit: usize) -> Result<usize> {
        on_any_outbox!(self, "drop_jobs", store => store.drop_jobs(before, limit).await)
    }
}
