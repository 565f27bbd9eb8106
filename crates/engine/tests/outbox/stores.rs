//! The stores that keep an outbox, each in a place of its own.

use oncegate_core::identity::Token;
use oncegate_engine::{Engine, Options};
use oncegate_store::clock::Clock;
use oncegate_store::jobs::{Job, JobId, Jobs};
use oncegate_store_sql::{PostgresOptions, PostgresStore, SqliteOptions, SqliteStore};
use oncegate_test_servers::{shared, until};
use tempfile::TempDir;

use crate::world::{Hand, id, ietf, start};

/// A file of its own, on the machine's clock or on one that is turned by hand.
pub(crate) async fn sqlite(hand: Option<&Hand>) -> (Engine<SqliteStore>, TempDir) {
    let place = tempfile::tempdir().unwrap();
    let clock = hand.map_or_else(Clock::system, Hand::clock);
    let store = SqliteOptions::new(place.path().join("records.db")).clock(clock).open().unwrap();
    (start(store, Options::default()).await, place)
}

/// A schema of its own in the shared server.
pub(crate) struct Schema(String);

impl Schema {
    pub(crate) fn new() -> Self {
        let mut bytes = [0; 8];
        getrandom::fill(&mut bytes).unwrap();
        Self(format!("outbox_{:016x}", u64::from_ne_bytes(bytes)))
    }

    /// One more node on it.
    pub(crate) async fn node(&self) -> Engine<PostgresStore> {
        let options = PostgresOptions::new(&shared::postgres_url()).unwrap().schema(&self.0).unwrap();
        start(options.open().await.unwrap(), Options::default()).await
    }
}

impl Drop for Schema {
    fn drop(&mut self) {
        let text = format!("DROP SCHEMA IF EXISTS {} CASCADE", self.0);
        let dropped = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let url = shared::postgres_url();
                let (client, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await?;
                tokio::spawn(connection);
                client.batch_execute(&text).await
            })
        });
        assert!(
            matches!(dropped.join(), Ok(Ok(()))) || std::thread::panicking(),
            "{} is left behind",
            self.0
        );
    }
}

/// The `n`th promise of a request that has been answered already.
pub(crate) fn job<S: Jobs>(engine: &Engine<S>, n: u32) -> Job {
    let life = Token::from_bytes([9; 16]);
    let payload = format!("{{\"n\":{n}}}").into_bytes();
    let whose = (id(&ietf(), "order"), life);
    Job::promised(JobId::of(life, n), "charge", payload, whose, engine.now().at)
}

/// Promises, and says so.
pub(crate) async fn promise<S: Jobs>(engine: &Engine<S>, jobs: &[Job]) {
    engine.store().promise(jobs).await.unwrap();
    engine.wake_outbox();
}

/// Returns when nothing waits any more.
pub(crate) async fn until_empty<S: Jobs>(engine: &Engine<S>) {
    let is_empty = async || engine.store().depth().await.unwrap().iter().all(|depth| depth.waiting == 0);
    until("nothing waits", is_empty).await;
}
