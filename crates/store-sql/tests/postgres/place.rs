//! A schema of one's own, and the few words that all themes share.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use oncegate_conformance::samples::{FAR_AHEAD, LONG_AGO, entry, id, moved_to, reserved};
use oncegate_core::audit::{Act, Entry};
use oncegate_core::record::{Record, StateKind};
use oncegate_store::{Outcome, Store, Write};
use oncegate_store_sql::PostgresStore;
use oncegate_store_sql::postgres::PostgresOptions;
use oncegate_test_servers::{shared, until};
use tokio_postgres::{Client, NoTls};

/// How long anything may take; reached only if something is broken.
const PATIENCE: Duration = Duration::from_mins(1);

/// A schema in a server; removed at the end, because the server may be somebody's own.
pub(crate) struct Place {
    pub(crate) url: String,
    pub(crate) schema: String,
}

impl Place {
    /// In the shared server.
    pub(crate) fn shared() -> Self {
        Self::at(&shared::postgres_url())
    }

    /// In the server at `url`.
    pub(crate) fn at(url: &str) -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
        let (id, count) = (std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        Self { url: url.to_owned(), schema: format!("p{id}_{}_{count}", now.as_micros()) }
    }

    /// The store in it.
    pub(crate) async fn open(&self) -> PostgresStore {
        self.open_through(&self.url).await
    }

    /// The same by another way.
    pub(crate) async fn open_through(&self, url: &str) -> PostgresStore {
        self.try_open_through(url).await.expect("the store opens")
    }

    pub(crate) async fn try_open_through(&self, url: &str) -> oncegate_store::Result<PostgresStore> {
        PostgresOptions::new(url)?.schema(&self.schema)?.open().await
    }

    /// A session for the test itself.
    pub(crate) async fn raw(&self) -> Client {
        raw(&self.url).await
    }

    /// One number, of a table in this schema: `{}` is the schema.
    pub(crate) async fn number(&self, text: &str) -> i64 {
        number(&self.raw().await, &text.replace("{}", &self.schema)).await
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // A standby that commits wait for may be gone before its primary.
        let text = format!("SET synchronous_commit = local; DROP SCHEMA IF EXISTS {} CASCADE", self.schema);
        let url = self.url.clone();
        let dropped = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime starts").block_on(async {
                // A server of the test's own may be down by now, and its schema with it.
                let Ok((client, connection)) = tokio_postgres::connect(&url, NoTls).await else { return };
                tokio::spawn(connection);
                let _gone = client.batch_execute(&text).await;
            });
        });
        let _ended = dropped.join();
    }
}

pub(crate) async fn raw(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.expect("the server lets us in");
    tokio::spawn(connection);
    client
}

pub(crate) async fn number(client: &Client, text: &str) -> i64 {
    client.query_one(text, &[]).await.expect("the question is answered").get(0)
}

/// Waits until as many sessions that name `schema` wait for a lock.
pub(crate) async fn until_waiting(client: &Client, schema: &str, sessions: i64) {
    let text = format!(
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%{schema}%' \
         AND pid <> pg_backend_pid()"
    );
    until("somebody waits for a lock", async || number(client, &text).await == sessions).await;
}

/// Bounds what must end by itself.
pub(crate) async fn in_time<F: Future>(future: F) -> F::Output {
    tokio::time::timeout(PATIENCE, future).await.expect("it ends by itself")
}

pub(crate) fn insert(record: &Record) -> Write {
    Write::insert(Arc::new(record.clone()))
}

pub(crate) fn swap(from: &Record, to: &Record) -> Write {
    Write::swap(from.version, Arc::new(to.clone()))
}

/// The same write, told of by `node`.
pub(crate) fn told(write: Write, row: &Record, node: &str) -> Write {
    let told = Entry { node: node.into(), ..entry(row, LONG_AGO, Act::Doubted) };
    write.telling(Some(told))
}

/// A reserved row whose lease has lapsed long ago.
pub(crate) fn lapsed(key: &str) -> Record {
    reserved(key, 1, LONG_AGO)
}

/// A reserved row whose lease lives.
pub(crate) fn leased(key: &str) -> Record {
    reserved(key, 1, FAR_AHEAD)
}

/// The same row with its answer, kept for long.
pub(crate) fn completed(record: &Record) -> Record {
    moved_to(record, StateKind::Completed, FAR_AHEAD)
}

/// Applies a batch of which all must take effect.
pub(crate) async fn apply_all(store: &PostgresStore, batch: &[Write]) {
    let outcomes = store.apply(batch).await.expect("the batch is applied");
    assert!(outcomes.iter().all(|outcome| *outcome == Outcome::Applied), "{outcomes:?}");
}

pub(crate) async fn read(store: &PostgresStore, key: &str) -> Option<Record> {
    let mut rows = store.read(&[id(key)]).await.expect("it is read");
    rows.remove(0).expect("the row is whole")
}
