//! A table of the user's own refers to Oncegate's records without `ON DELETE SET NULL`: the database rejects
//! the removal of such a record.
//!
//! The whole batch was rejected with it. The reaper failed in every pass and removed nothing, requests that
//! shared its batches got 503, and five such batches opened the breaker (attack 31).

use std::time::Duration;

use futures_util::future::join_all;
use oncegate_core::policy::Profile;
use oncegate_core::record::Reason;
use oncegate_engine::{Engine, NoProbe, Options, Route, Settlement, Worker, WorkerOptions};
use oncegate_store::{Filter, Store};
use oncegate_store_sql::{PostgresStore, SqliteStore};
use oncegate_test_servers::{shared, until};
use sqlx::{Connection as _, SqliteConnection};

use crate::actor::block_on;
use crate::schema::own_schema;
use crate::world::{completed, connect, granted, id, request, route};

const CULPRIT: &str = "key-7";

pub(crate) fn on_postgres() {
    referring_on_postgres("");
}

/// The violation is found by the commit, as with the reference that `docs/atomic.md` shows.
pub(crate) fn on_postgres_deferred() {
    referring_on_postgres("DEFERRABLE INITIALLY DEFERRED");
}

fn referring_on_postgres(when: &str) {
    let schema = own_schema(&shared::postgres_url());
    block_on(async {
        let engine = start(PostgresStore::open(&schema.url).await.unwrap()).await;
        released(&engine).await;
        let name = &schema.name;
        let create =
            format!("CREATE TABLE {name}.invoice (record bytea REFERENCES {name}.record (id) {when})");
        let client = connect(&schema.server).await;
        client.batch_execute(&create).await.unwrap();
        let culprit = id(&briefly(), CULPRIT).as_bytes().to_vec();
        client.execute(&format!("INSERT INTO {name}.invoice VALUES ($1)"), &[&culprit]).await.unwrap();
        let let_go = format!("DELETE FROM {name}.invoice");
        reap(&engine, async || client.batch_execute(&let_go).await.unwrap()).await;
    });
}

/// A row is corrupt: PostgreSQL answers each write of it with `XX001`. The requests that share its
/// batches are served. A trigger stands for the damaged disk.
pub(crate) fn corrupt_on_postgres() {
    let schema = own_schema(&shared::postgres_url());
    block_on(async {
        let engine = start(PostgresStore::open(&schema.url).await.unwrap()).await;
        let lasting = route(Profile::Ietf, |_| ());
        let culprit = id(&lasting, CULPRIT);
        let bytes = culprit.as_bytes().iter().map(|byte| format!("{byte:02x}"));
        let (name, culprit) = (&schema.name, bytes.collect::<String>());
        let corrupt = format!(
            "CREATE FUNCTION {name}.corrupt() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF NEW.id = '\\x{culprit}' \
             THEN RAISE EXCEPTION 'missing chunk number 0' USING ERRCODE = 'XX001'; END IF; RETURN NEW; END $$; \
             CREATE TRIGGER corrupt BEFORE INSERT ON {name}.record FOR EACH ROW EXECUTE FUNCTION {name}.corrupt()"
        );
        connect(&schema.server).await.batch_execute(&corrupt).await.unwrap();
        for round in 0..10 {
            let key = |n| if n == 7 { CULPRIT.to_owned() } else { format!("key-{round}-{n}") };
            let arriving = (0..20).map(|n| engine.arrive(&lasting, request(&lasting, &key(n))));
            for (n, arrived) in join_all(arriving).await.into_iter().enumerate() {
                assert_eq!(arrived.is_err(), n == 7, "{round}, {n}: {arrived:?}");
            }
        }
    });
}

pub(crate) fn on_sqlite() {
    referring_on_sqlite("");
}

pub(crate) fn on_sqlite_deferred() {
    referring_on_sqlite("DEFERRABLE INITIALLY DEFERRED");
}

fn referring_on_sqlite(when: &str) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("records.db");
    block_on(async {
        let engine = start(SqliteStore::open(&file).unwrap()).await;
        released(&engine).await;
        let create = format!("CREATE TABLE invoice (record BLOB REFERENCES record (id) {when})");
        let mut client = SqliteConnection::connect(file.to_str().unwrap()).await.unwrap();
        sqlx::query(sqlx::AssertSqlSafe(create)).execute(&mut client).await.unwrap();
        let culprit = id(&briefly(), CULPRIT).as_bytes().to_vec();
        sqlx::query("INSERT INTO invoice VALUES (?)").bind(culprit).execute(&mut client).await.unwrap();
        let client = tokio::sync::Mutex::new(client);
        let let_go = async || {
            sqlx::query("DELETE FROM invoice").execute(&mut *client.lock().await).await.unwrap();
        };
        reap(&engine, let_go).await;
    });
}

async fn start<S: Store>(store: S) -> Engine<S> {
    // A breaker that has opened would stay open.
    let options = Options { breaker_pause: Duration::from_hours(1), ..Options::default() };
    Engine::start(store, options).await.unwrap()
}

fn briefly() -> Route {
    route(Profile::Ietf, |policy| policy.retention = Duration::from_micros(1))
}

/// Twenty records that are soon past retention.
async fn released<S: Store>(engine: &Engine<S>) {
    let route = briefly();
    for n in 0..20 {
        let held = granted(engine.arrive(&route, request(&route, &format!("key-{n}"))).await.unwrap());
        let reason = Reason::new("refused", "connection refused");
        drop(held.settle(Settlement::Release { reason, backoff: Duration::ZERO }).await);
    }
}

async fn keys<S: Store>(engine: &Engine<S>) -> Vec<String> {
    let page = engine.store().browse(&Filter::default(), None, 100).await.unwrap();
    page.records.iter().map(|row| row.address.key.as_str().to_owned()).collect()
}

async fn reap<S: Store>(engine: &Engine<S>, let_go: impl AsyncFn()) {
    let options = WorkerOptions { reap_grace: Duration::from_micros(1), ..WorkerOptions::default() };
    let pass = async || engine.work(Worker::Reaper, &options, &NoProbe).await.unwrap();
    until("all but the culprit are removed", async || {
        pass().await;
        keys(engine).await == [CULPRIT]
    })
    .await;
    for _ in 0..10 {
        assert_eq!(pass().await.changed, 0, "it is still referred to");
    }
    let lasting = route(Profile::Ietf, |_| ());
    let fresh = engine.arrive(&lasting, request(&lasting, "fresh")).await;
    assert!(fresh.is_ok(), "the breaker is closed: {fresh:?}");
    completed(granted(fresh.unwrap()), "paid").await;
    let_go().await;
    until("the culprit is removed once nothing refers to it", async || {
        pass().await;
        keys(engine).await == ["fresh"]
    })
    .await;
}
