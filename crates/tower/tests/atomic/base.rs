//! The two databases as one: where the store and the service's own table are together.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use oncegate_store::jobs::Enqueue;
use oncegate_store::join::{Transaction, Transactions};
use oncegate_store_sql::sqlx::{PgDedicated, PgTransactions, SqliteDedicated, SqliteTransactions};
use oncegate_store_sql::{PostgresStore, SqliteStore};
use sqlx::postgres::PgPoolOptions;
use sqlx::sqlite::{SqliteConnectOptions, SqlitePoolOptions, SqliteSynchronous};
use sqlx::{AssertSqlSafe, PgConnection, PgPool, SqlitePool};
use tempfile::TempDir;

use crate::place::Place;

/// What the service's own statements run on.
pub(crate) type Inner<B> = <<<B as Base>::Pool as Transactions>::Transaction as Transaction>::Inner;

/// A database that holds Oncegate's tables and the service's own: `charge`, which has a row for each effect, and would hold two of a
/// key that had its effect twice.
pub(crate) trait Base: Clone + Send + Sync + 'static {
    type Store: Enqueue;
    type Pool: Transactions + Clone;
    /// Transactions that write may be open side by side.
    const HAS_MANY_WRITERS: bool;

    /// An empty one.
    fn start() -> impl Future<Output = Self> + Send;

    /// The store, as another node sees it.
    fn store(&self) -> impl Future<Output = Self::Store> + Send;

    /// The service's own connections.
    fn pool(&self) -> Self::Pool;

    /// The effect.
    fn charge(&self, on: &mut Inner<Self>, key: &str) -> impl Future<Output = sqlx::Result<()>> + Send;

    /// The keys that have had it, in order.
    fn charges(&self) -> impl Future<Output = Vec<String>> + Send;

    /// Removes what the store's processes wrote last, as a restore does.
    fn lose_watermarks(&self) -> impl Future<Output = ()> + Send;
}

/// One that is on another machine, as it were: the service goes to it by a way of its own.
pub(crate) trait Remote:
    Base<Store = PostgresStore, Pool: Transactions<Transaction: Transaction<Inner = PgConnection>>>
{
    /// This database, by that way and so many connections.
    fn by(of: &OnPostgres, url: &str, connections: u32) -> Self;

    /// The service's pool of them.
    fn connections(&self) -> PgPool;

    /// Where it is.
    fn place(&self) -> &Place;
}

#[derive(Clone)]
pub(crate) struct OnPostgres {
    pub(crate) place: Arc<Place>,
    pool: PgPool,
}

impl OnPostgres {
    pub(crate) async fn at(place: Place) -> Self {
        drop(place.open().await);
        let table = format!("CREATE TABLE {}.charge (key text NOT NULL)", place.schema);
        place.raw().await.batch_execute(&table).await.unwrap();
        Self::in_place(place)
    }

    /// What is there already.
    pub(crate) fn in_place(place: Place) -> Self {
        let pool = pool(&place.url, 8);
        Self { place: Arc::new(place), pool }
    }

    /// The same database; the service goes another way to it, by one connection.
    pub(crate) fn through_one(&self, url: &str) -> Self {
        Self::by(self, url, 1)
    }

    /// What was moved to a schema of another name, where it is now.
    pub(crate) fn moved_to(&self, schema: &str) -> Self {
        let place = Place { url: self.place.url.clone(), schema: schema.to_owned() };
        Self { place: Arc::new(place), pool: self.pool.clone() }
    }
}

fn pool(url: &str, connections: u32) -> PgPool {
    PgPoolOptions::new().max_connections(connections).test_before_acquire(false).connect_lazy(url).unwrap()
}

impl Base for OnPostgres {
    type Store = PostgresStore;
    type Pool = PgTransactions;
    const HAS_MANY_WRITERS: bool = true;

    async fn start() -> Self {
        Self::at(Place::shared()).await
    }

    async fn store(&self) -> PostgresStore {
        self.place.open().await
    }

    fn pool(&self) -> PgTransactions {
        PgTransactions(self.pool.clone())
    }

    async fn charge(&self, on: &mut PgConnection, key: &str) -> sqlx::Result<()> {
        let text = format!("INSERT INTO {}.charge (key) VALUES ($1)", self.place.schema);
        sqlx::query(AssertSqlSafe(text)).bind(key).execute(on).await.map(drop)
    }

    async fn charges(&self) -> Vec<String> {
        let text = format!("SELECT key FROM {}.charge ORDER BY key", self.place.schema);
        let rows = self.place.raw().await.query(&text, &[]).await.unwrap();
        rows.iter().map(|row| row.get(0)).collect()
    }

    async fn lose_watermarks(&self) {
        let text = format!("DELETE FROM {}.watermark", self.place.schema);
        self.place.raw().await.batch_execute(&text).await.unwrap();
    }
}

impl Remote for OnPostgres {
    fn by(of: &Self, url: &str, connections: u32) -> Self {
        Self { place: Arc::clone(&of.place), pool: pool(url, connections) }
    }

    fn connections(&self) -> PgPool {
        self.pool.clone()
    }

    fn place(&self) -> &Place {
        &self.place
    }
}

/// The same, by a pool that atomic handlers have to themselves.
#[derive(Clone)]
pub(crate) struct OnDedicated {
    pub(crate) of: OnPostgres,
    pool: PgDedicated,
}

impl OnDedicated {
    pub(crate) async fn with(connections: u32) -> Self {
        let of = OnPostgres::start().await;
        let pool = PgDedicated::new(pool(&of.place.url, connections));
        Self { of, pool }
    }

    /// Connections rest for ten seconds, which is longer than a test takes.
    pub(crate) async fn rested(connections: u32) -> Self {
        let of = OnPostgres::start().await;
        let pool = PgDedicated::resting_for(Duration::from_hours(1), pool(&of.place.url, connections));
        Self { of, pool }
    }
}

impl Base for OnDedicated {
    type Store = PostgresStore;
    type Pool = PgDedicated;
    const HAS_MANY_WRITERS: bool = true;

    async fn start() -> Self {
        Self::with(8).await
    }

    async fn store(&self) -> PostgresStore {
        self.of.store().await
    }

    fn pool(&self) -> PgDedicated {
        self.pool.clone()
    }

    async fn charge(&self, on: &mut PgConnection, key: &str) -> sqlx::Result<()> {
        self.of.charge(on, key).await
    }

    async fn charges(&self) -> Vec<String> {
        self.of.charges().await
    }

    async fn lose_watermarks(&self) {
        self.of.lose_watermarks().await;
    }
}

impl Remote for OnDedicated {
    fn by(of: &OnPostgres, url: &str, connections: u32) -> Self {
        Self { of: of.clone(), pool: PgDedicated::new(pool(url, connections)) }
    }

    fn connections(&self) -> PgPool {
        self.pool.pool().clone()
    }

    fn place(&self) -> &Place {
        &self.of.place
    }
}

#[derive(Clone)]
pub(crate) struct OnSqlite {
    folder: Arc<TempDir>,
    pool: SqlitePool,
}

impl OnSqlite {
    pub(crate) fn path(&self) -> PathBuf {
        self.folder.path().join("records.db")
    }

    /// One whose service waits so long where another writes.
    pub(crate) async fn patient_for(busy_timeout: Duration) -> Self {
        let folder = tempfile::tempdir().unwrap();
        drop(SqliteStore::open(folder.path().join("records.db")).unwrap());
        let base = Self::in_folder_patient_for(folder, busy_timeout).await;
        sqlx::query("CREATE TABLE charge (key TEXT NOT NULL)").execute(&base.pool).await.unwrap();
        base
    }

    /// What is there already.
    pub(crate) async fn in_folder(folder: TempDir) -> Self {
        Self::in_folder_patient_for(folder, Duration::from_secs(5)).await
    }

    async fn in_folder_patient_for(folder: TempDir, busy_timeout: Duration) -> Self {
        let path = folder.path().join("records.db");
        let options = SqliteConnectOptions::new().filename(&path).synchronous(SqliteSynchronous::Full);
        let options = options.busy_timeout(busy_timeout);
        let pool = SqlitePoolOptions::new().max_connections(8).connect_with(options).await.unwrap();
        Self { folder: Arc::new(folder), pool }
    }

    /// The same file, by connections of their own.
    pub(crate) async fn reopened(&self) -> Self {
        let options = SqliteConnectOptions::new().filename(self.path()).synchronous(SqliteSynchronous::Full);
        let pool = SqlitePoolOptions::new().max_connections(8).connect_with(options).await.unwrap();
        Self { folder: Arc::clone(&self.folder), pool }
    }

    /// Moves what is in the write-ahead log into the file.
    pub(crate) async fn checkpoint(&self) {
        sqlx::query("PRAGMA wal_checkpoint(TRUNCATE)").execute(&self.pool).await.unwrap();
    }
}

impl Base for OnSqlite {
    type Store = SqliteStore;
    type Pool = SqliteTransactions;
    const HAS_MANY_WRITERS: bool = false;

    async fn start() -> Self {
        Self::patient_for(Duration::from_secs(5)).await
    }

    async fn store(&self) -> SqliteStore {
        SqliteStore::open(self.path()).unwrap()
    }

    fn pool(&self) -> SqliteTransactions {
        SqliteTransactions(self.pool.clone())
    }

    async fn charge(&self, on: &mut sqlx::SqliteConnection, key: &str) -> sqlx::Result<()> {
        sqlx::query("INSERT INTO charge (key) VALUES (?1)").bind(key).execute(on).await.map(drop)
    }

    async fn charges(&self) -> Vec<String> {
        sqlx::query_scalar("SELECT key FROM charge ORDER BY key").fetch_all(&self.pool).await.unwrap()
    }

    async fn lose_watermarks(&self) {
        sqlx::query("DELETE FROM watermark").execute(&self.pool).await.unwrap();
    }
}

/// The same, by a pool of one connection that atomic handlers have to themselves.
#[derive(Clone)]
pub(crate) struct OnSqliteDedicated {
    of: OnSqlite,
    pool: SqliteDedicated,
}

impl OnSqliteDedicated {
    pub(crate) fn path(&self) -> PathBuf {
        self.of.path()
    }
}

impl Base for OnSqliteDedicated {
    type Store = SqliteStore;
    type Pool = SqliteDedicated;
    const HAS_MANY_WRITERS: bool = false;

    async fn start() -> Self {
        let of = OnSqlite::start().await;
        let options = SqliteConnectOptions::new().filename(of.path()).synchronous(SqliteSynchronous::Full);
        let pool = SqlitePoolOptions::new().max_connections(1).connect_with(options).await.unwrap();
        Self { of, pool: SqliteDedicated::new(pool) }
    }

    async fn store(&self) -> SqliteStore {
        self.of.store().await
    }

    fn pool(&self) -> SqliteDedicated {
        self.pool.clone()
    }

    async fn charge(&self, on: &mut sqlx::SqliteConnection, key: &str) -> sqlx::Result<()> {
        self.of.charge(on, key).await
    }

    async fn charges(&self) -> Vec<String> {
        self.of.charges().await
    }

    async fn lose_watermarks(&self) {
        self.of.lose_watermarks().await;
    }
}
