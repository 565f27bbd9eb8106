//! A ride in three phases, a provider that remembers its calls, and a file in which every effect is a row.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use oncegate_core::policy::{Policy, Profile};
use oncegate_core::record::{Record, State, StateKind};
use oncegate_core::scope::Operation;
use oncegate_engine::phases::{DownstreamKey, PhaseError, Recovery, Run};
use oncegate_engine::{Arrived, Engine, Held, JobError, Options, Route, Settled, Settlement};
use oncegate_store_sql::SqliteStore;
use oncegate_store_sql::sqlite::SqliteOptions;
use oncegate_store_sql::sqlx::SqliteTransactions;
use rusqlite::Connection;
use rusqlite::backup::Backup;
use sqlx::sqlite::{SqliteConnectOptions, SqlitePool};
use sqlx::{Row as _, SqliteConnection};
use tempfile::TempDir;

use crate::world::{Hand, complete, id, request, start};

pub(crate) const LEASE: Duration = Duration::from_secs(90);
pub(crate) const KEY: &str = "ride-17-of-november";

/// What a test holds in its hands.
pub(crate) struct Town {
    pub(crate) engine: Engine<SqliteStore>,
    pub(crate) hand: Hand,
    pub(crate) route: Route,
    pub(crate) provider: Provider,
    pub(crate) pool: SqlitePool,
    folder: TempDir,
}

impl Town {
    pub(crate) async fn new() -> Self {
        Self::under(|_| ()).await
    }

    pub(crate) async fn under(change: impl FnOnce(&mut Policy)) -> Self {
        let (folder, hand) = (tempfile::tempdir().unwrap(), Hand::new());
        let store = SqliteOptions::new(folder.path().join("rides.db")).clock(hand.clock()).open().unwrap();
        Self::over(store, folder, hand, change).await
    }

    /// By the machine's clock.
    pub(crate) async fn in_real_time(change: impl FnOnce(&mut Policy)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store = SqliteStore::open(folder.path().join("rides.db")).unwrap();
        Self::over(store, folder, Hand::new(), change).await
    }

    async fn over(store: SqliteStore, folder: TempDir, hand: Hand, change: impl FnOnce(&mut Policy)) -> Self {
        let pool = pool(&folder).await;
        sqlx::raw_sql("CREATE TABLE effect (what TEXT NOT NULL)").execute(&pool).await.unwrap();
        let mut policy = Policy { horizon: Some(Duration::ZERO), ..Profile::Resume.policy() };
        change(&mut policy);
        let route = Route::new("resume", policy, Operation::new("POST /payments").unwrap());
        let engine = start(store, Options::default()).await;
        Self { engine, hand, route, provider: Provider::default(), pool, folder }
    }

    /// Another node over the same file, by the same clock.
    pub(crate) async fn another_node(&self) -> Engine<SqliteStore> {
        start(SqliteOptions::new(self.file()).clock(self.hand.clock()).open().unwrap(), Options::default())
            .await
    }

    /// The file as it is now, records and effects.
    pub(crate) fn backup(&self) -> Connection {
        let mut backup = Connection::open_in_memory().unwrap();
        copy(&Connection::open(self.file()).unwrap(), &mut backup);
        backup
    }

    /// Puts a backup in the file's place, under those who use it.
    pub(crate) fn restore(&self, backup: &Connection) {
        copy(backup, &mut Connection::open(self.file()).unwrap());
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("rides.db")
    }

    /// The next attempt, which must be granted.
    pub(crate) async fn attempt(&self) -> Held<SqliteStore> {
        crate::world::held(&self.engine, &self.route, KEY).await
    }

    pub(crate) async fn arrive(&self) -> Arrived<SqliteStore> {
        self.engine.arrive(&self.route, request(&self.route, KEY)).await.unwrap()
    }

    pub(crate) fn run(&self, held: &Held<SqliteStore>) -> Run<SqliteTransactions> {
        held.phases().run(Arc::new(SqliteTransactions(self.pool.clone()))).unwrap()
    }

    /// One attempt of the ride, from its grant to its settlement.
    pub(crate) async fn ride(
        &self,
        recovery: impl Recovery<String>,
    ) -> (Result<String, PhaseError>, Settled) {
        let mut held = self.attempt().await;
        let mut run = self.run(&held);
        let work = async {
            let ride = run.atomic("ride", async |tx| insert(tx, "ride").await).await?;
            let call = async |key: DownstreamKey| self.provider.charge(&key);
            let charge = run.foreign("charge", recovery, call).await?;
            let receipt = run.atomic("receipt", async |tx| insert(tx, "receipt").await).await?;
            run.finish(format!("{ride} {charge} {receipt}"))
        };
        let ended = held.run(work).await;
        let settlement = match &ended {
            Ok(answer) => complete(answer),
            Err(_) => Settlement::Doubt(oncegate_core::record::Reason::new("answered", "500")),
        };
        let settlement = held.as_its_phases_say(settlement);
        (ended, held.settle(settlement).await)
    }

    /// An attempt whose process dies: nobody settles it, and its lease lapses.
    pub(crate) fn dies(&self, held: Held<SqliteStore>) {
        std::mem::forget(held);
        self.hand.turn(2 * LEASE);
    }

    /// Everything that took effect here, in order.
    pub(crate) async fn effects(&self) -> Vec<String> {
        let rows = sqlx::query("SELECT what FROM effect ORDER BY rowid").fetch_all(&self.pool).await.unwrap();
        rows.iter().map(|row| row.get(0)).collect()
    }

    pub(crate) async fn record(&self) -> Record {
        crate::world::row(&self.engine, id(&self.route, KEY)).await
    }

    /// It must be before an operator; gives the reason.
    pub(crate) async fn parked(&self) -> String {
        let record = self.record().await;
        match record.state {
            State::Unknown(doubt) if doubt.parked => record.last_error.unwrap().to_string(),
            other => panic!("not parked but {other:?}"),
        }
    }

    pub(crate) async fn state(&self) -> StateKind {
        self.record().await.state.kind()
    }
}

fn copy(from: &Connection, to: &mut Connection) {
    Backup::new(from, to).unwrap().run_to_completion(i32::MAX, Duration::ZERO, None).unwrap();
}

async fn pool(folder: &TempDir) -> SqlitePool {
    let options = SqliteConnectOptions::new().filename(folder.path().join("rides.db"));
    SqlitePool::connect_with(options).await.unwrap()
}

pub(crate) async fn insert(connection: &mut SqliteConnection, what: &str) -> Result<String, JobError> {
    sqlx::query("INSERT INTO effect (what) VALUES (?1)").bind(what).execute(connection).await?;
    Ok(what.to_owned())
}

/// Whoever is called: it keeps every call's key, and fails as it is told.
#[derive(Default)]
pub(crate) struct Provider {
    pub(crate) calls: Mutex<Vec<String>>,
    pub(crate) fails: Mutex<Option<JobError>>,
}

impl Provider {
    pub(crate) fn charge(&self, key: &DownstreamKey) -> Result<String, JobError> {
        self.calls.lock().unwrap().push(key.to_string());
        match self.fails.lock().unwrap().take() {
            None => Ok("charge".to_owned()),
            Some(error) => Err(error),
        }
    }

    pub(crate) fn fail(&self, error: JobError) {
        *self.fails.lock().unwrap() = Some(error);
    }

    pub(crate) fn calls(&self) -> usize {
        self.calls.lock().unwrap().len()
    }
}
