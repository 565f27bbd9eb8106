//! Where the records of a history are, and how they are backed up and restored.

use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use oncegate_store::Store;
use oncegate_store_redis::{RedisOptions, RedisStore};
use oncegate_store_sql::{PostgresOptions, PostgresStore, SqliteStore};
use oncegate_test_servers::{Redis, shared};
use rusqlite::backup::Backup;
use rusqlite::{Connection, OpenFlags};
use tempfile::TempDir;

/// A place of its own, gone with its history.
pub(crate) trait Place: Send + Sync + 'static {
    type Store: Store;

    fn new() -> Self;

    /// The store in it, as one more node sees it.
    fn open(&self) -> impl Future<Output = Self::Store> + Send;

    /// Takes a backup, in place of the last one.
    fn back_up(&self);

    /// Restores the backup under the nodes that run.
    fn restore(&self);
}

pub(crate) struct InSqlite(TempDir);

impl InSqlite {
    fn file(&self) -> PathBuf {
        self.0.path().join("records.db")
    }

    fn backup(&self) -> PathBuf {
        self.0.path().join("backup.db")
    }
}

/// Copies one database into another, page by page, as `.backup` and `.restore` do.
fn copy(from: PathBuf, to: PathBuf) {
    let from = Connection::open_with_flags(from, OpenFlags::SQLITE_OPEN_READ_ONLY).unwrap();
    let mut to = Connection::open(to).unwrap();
    to.busy_timeout(Duration::from_secs(10)).unwrap();
    Backup::new(&from, &mut to).unwrap().run_to_completion(i32::MAX, Duration::ZERO, None).unwrap();
}

impl Place for InSqlite {
    type Store = SqliteStore;

    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    async fn open(&self) -> SqliteStore {
        SqliteStore::open(self.file()).unwrap()
    }

    fn back_up(&self) {
        copy(self.file(), self.backup());
    }

    fn restore(&self) {
        copy(self.backup(), self.file());
    }
}

/// A schema of the shared server.
pub(crate) struct InPostgres(String);

impl InPostgres {
    fn run(&self, text: &str) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let ran = runtime.block_on(async {
            let url = shared::postgres_url();
            let (client, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await?;
            tokio::spawn(connection);
            client.batch_execute(text).await
        });
        assert!(ran.is_ok() || std::thread::panicking(), "{}: {text}: {ran:?}", self.0);
    }
}

impl Place for InPostgres {
    type Store = PostgresStore;

    fn new() -> Self {
        let mut bytes = [0; 8];
        getrandom::fill(&mut bytes).unwrap();
        Self(format!("histories_{:016x}", u64::from_ne_bytes(bytes)))
    }

    async fn open(&self) -> PostgresStore {
        // Its connections bear the name of the history.
        let url = format!("{}?application_name={}", shared::postgres_url(), self.0);
        PostgresOptions::new(&url).unwrap().schema(&self.0).unwrap().open().await.unwrap()
    }

    /// All tables as of one moment, as `pg_dump` copies them: a backup in which a record and its
    /// mark disagree is a damaged one.
    fn back_up(&self) {
        let schema = &self.0;
        self.run(&format!(
            "BEGIN ISOLATION LEVEL REPEATABLE READ;
             DO $$ DECLARE name text; BEGIN
               DROP SCHEMA IF EXISTS {schema}_backup CASCADE;
               CREATE SCHEMA {schema}_backup;
               FOR name IN SELECT tablename FROM pg_tables WHERE schemaname = '{schema}' LOOP
                 EXECUTE format('CREATE TABLE {schema}_backup.%I AS TABLE {schema}.%I', name, name);
               END LOOP;
             END $$;
             COMMIT"
        ));
    }

    /// The rows of the backup in place of the present ones, and every other connection to them ended: as after a
    /// server was stopped, restored and started. Where the locks deadlock with a batch of a node,
    /// the server is to end the batch: the node notices first.
    fn restore(&self) {
        let schema = &self.0;
        self.run(&format!(
            "SET deadlock_timeout = '1min';
             DO $$ DECLARE name text; tables text; BEGIN
               SELECT string_agg(format('{schema}.%I', tablename), ', ') INTO tables
                 FROM pg_tables WHERE schemaname = '{schema}';
               EXECUTE 'LOCK TABLE ' || tables || ' IN ACCESS EXCLUSIVE MODE';
               EXECUTE 'TRUNCATE ' || tables || ' CASCADE';
               SET LOCAL session_replication_role = replica;
               FOR name IN SELECT tablename FROM pg_tables WHERE schemaname = '{schema}_backup' LOOP
                 EXECUTE format('INSERT INTO {schema}.%I OVERRIDING SYSTEM VALUE SELECT * FROM {schema}_backup.%I',
                                name, name);
               END LOOP;
               PERFORM pg_terminate_backend(pid) FROM pg_stat_activity
                 WHERE application_name = '{schema}';
             END $$"
        ));
    }
}

impl Drop for InPostgres {
    fn drop(&mut self) {
        let schema = &self.0;
        self.run(&format!(
            "DROP SCHEMA IF EXISTS {schema} CASCADE; DROP SCHEMA IF EXISTS {schema}_backup CASCADE"
        ));
    }
}

/// A server of its own, which is stopped for a restore.
pub(crate) struct InRedis(Mutex<Redis>);

impl InRedis {
    fn server(&self) -> MutexGuard<'_, Redis> {
        self.0.lock().unwrap()
    }
}

impl Place for InRedis {
    type Store = RedisStore;

    fn new() -> Self {
        Self(Mutex::new(Redis::start(&["--appendonly", "yes", "--appendfsync", "always"])))
    }

    async fn open(&self) -> RedisStore {
        let url = self.server().url();
        RedisOptions::new(url).open().await.unwrap()
    }

    fn back_up(&self) {
        self.server().back_up();
    }

    fn restore(&self) {
        self.server().restore();
    }
}
