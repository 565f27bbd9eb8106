//! A provider, a database, a service that is killed, clients, and the judge.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use example_payments::Serving;
use example_payments::post::{self, Reply};
use example_payments::provider::{self, Faults, Late};
use http::Request;
use oncegate_store::{Counts, Store};
use oncegate_store_sql::{PostgresStore, SqliteStore};
use oncegate_test_servers::{Database, until};
use sqlx::{PgPool, SqlitePool};
use tempfile::TempDir;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::service::{Recovery, Service, ask};

/// So short that what died lapses while the test goes on, and so long that a living one is rarely taken for dead.
const LEASE: Duration = Duration::from_secs(1);
/// A kill comes before so many requests have begun.
const REQUESTS: u32 = 40;
const CLIENTS: usize = 4;

/// What clients know.
#[derive(Default)]
struct Told {
    sent: BTreeSet<String>,
    /// The first answer of each key.
    answers: BTreeMap<String, Bytes>,
}

/// What became of everything.
#[derive(Debug)]
pub(crate) struct Count {
    pub(crate) keys: usize,
    pub(crate) charges: usize,
    pub(crate) unanswered: usize,
    pub(crate) parked: usize,
    /// Rides that had no receipt when the kills were over: cut between two phases, or in one.
    pub(crate) cut: usize,
}

pub(crate) struct Town {
    database: Database,
    recovery: Recovery,
    provider: Serving,
    told: Arc<Mutex<Told>>,
    cut: usize,
    folder: TempDir,
}

impl Town {
    pub(crate) async fn new(database: Database, recovery: Recovery) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let options = provider::Options {
            listen: ([127, 0, 0, 1], 0).into(),
            ledger: folder.path().join("ledger.db"),
            is_idempotent: recovery == Recovery::Retry,
            faults: Faults::default(),
            webhook: None,
            late: Late::By(Duration::ZERO),
        };
        let provider = provider::start(options).await.unwrap();
        Self { database, recovery, provider, told: Arc::default(), cut: 0, folder }
    }

    fn url(&self) -> String {
        match &self.database {
            Database::Sqlite => format!("sqlite://{}", self.file()),
            Database::Postgres(server) => server.url(),
        }
    }

    fn file(&self) -> String {
        self.folder.path().join("rides.db").display().to_string()
    }

    fn service(&self) -> Service {
        Service::start(&self.url(), &self.provider.address().to_string(), self.recovery, LEASE)
    }

    /// Clients ask, and the service is killed, so often.
    pub(crate) async fn kill(&mut self, kills: usize) {
        for round in 0..kills {
            let service = self.service();
            let begun = Arc::new(Semaphore::new(0));
            let mut clients = JoinSet::new();
            for client in 0..CLIENTS {
                let (address, told, begun) =
                    (service.address.clone(), Arc::clone(&self.told), Arc::clone(&begun));
                clients.spawn(async move {
                    for number in 0.. {
                        // Mostly new rides; some that were asked for before, which may be half done.
                        let old = told.lock().unwrap().sent.iter().nth(fastrand::usize(..200)).cloned();
                        let new = format!("ride-{round:04}-{client}-{number:04}");
                        let key = old.filter(|_| fastrand::u8(..4) == 0).unwrap_or(new);
                        told.lock().unwrap().sent.insert(key.clone());
                        begun.add_permits(1);
                        let Ok(reply) = ask(&address, &key).await else { return };
                        hear(&told, &key, &reply);
                    }
                });
            }
            // With so many requests begun: one of them just now, the others in any phase.
            drop(begun.acquire_many(fastrand::u32(1..REQUESTS)).await.unwrap());
            drop(service);
            while let Some(client) = clients.join_next().await {
                client.unwrap();
            }
        }
        self.cut = self.rows("ride").await.0 - self.rows("receipt").await.0;
    }

    /// Half of what is open is asked for again; of the other half nobody speaks any more. All of it comes to an end.
    pub(crate) async fn settle(&mut self) {
        let service = self.service();
        let open: Vec<_> = {
            let told = self.told.lock().unwrap();
            told.sent.iter().filter(|key| !told.answers.contains_key(*key)).cloned().collect()
        };
        for key in open.iter().step_by(2) {
            hear(&self.told, key, &ask(&service.address, key).await.unwrap());
        }
        let records = self.records().await;
        // By itself, or by the requests above.
        until("nothing is open any more", async || {
            let counts = records.counts().await;
            counts.pending + counts.in_progress + counts.unknown - counts.parked == 0
        })
        .await;
        let all: Vec<_> = self.told.lock().unwrap().sent.iter().cloned().collect();
        for key in all {
            hear(&self.told, &key, &ask(&service.address, &key).await.unwrap());
        }
    }

    async fn records(&self) -> Records {
        match &self.database {
            Database::Sqlite => Records::Sqlite(Box::new(SqliteStore::open(self.file()).unwrap())),
            Database::Postgres(server) => {
                Records::Postgres(Box::new(PostgresStore::open(&server.url()).await.unwrap()))
            }
        }
    }

    /// Counts everything, and judges what must hold whatever the recovery.
    pub(crate) async fn count(&self) -> Count {
        let request = Request::get("/ledger").header("host", "provider").body(Bytes::new()).unwrap();
        let address = self.provider.address().to_string();
        let ledger = post::send(&address, request, Duration::from_secs(10)).await.unwrap().json();
        assert_eq!(ledger["charged_twice"], serde_json::json!([]), "nobody was charged twice");
        let charges = usize::try_from(ledger["charges"].as_u64().unwrap()).unwrap();
        let parked = usize::try_from(self.records().await.counts().await.parked).unwrap();
        let (keys, answered, different) = {
            let told = self.told.lock().unwrap();
            (told.sent.len(), told.answers.len(), told.answers.values().collect::<BTreeSet<_>>().len())
        };
        let count = Count { keys, charges, unanswered: keys - answered, parked, cut: self.cut };
        println!("{:?}: {count:?}", self.recovery);
        assert_eq!(different, answered, "no two keys have one answer");
        for (table, expected) in [("ride", keys), ("receipt", answered)] {
            let (rows, distinct) = self.rows(table).await;
            assert_eq!((rows, distinct), (expected, expected), "{table}: once for every key: {count:?}");
        }
        count
    }

    /// How many rows a table has, and of how many keys.
    async fn rows(&self, table: &str) -> (usize, usize) {
        // The store's schema is called like the test's user, so that it comes first on PostgreSQL's search path.
        let schema = if matches!(self.database, Database::Postgres(_)) { "public." } else { "" };
        let sql = sqlx::AssertSqlSafe(format!("SELECT count(*), count(DISTINCT key) FROM {schema}{table}"));
        let (rows, keys): (i64, i64) = match &self.database {
            Database::Sqlite => {
                let pool = SqlitePool::connect(&self.url()).await.unwrap();
                sqlx::query_as(sql).fetch_one(&pool).await.unwrap()
            }
            Database::Postgres(server) => {
                let pool = PgPool::connect(&server.url()).await.unwrap();
                sqlx::query_as(sql).fetch_one(&pool).await.unwrap()
            }
        };
        (usize::try_from(rows).unwrap(), usize::try_from(keys).unwrap())
    }
}

/// The service's records, beside the service.
enum Records {
    Sqlite(Box<SqliteStore>),
    Postgres(Box<PostgresStore>),
}

impl Records {
    async fn counts(&self) -> Counts {
        match self {
            Self::Sqlite(store) => store.counts().await.unwrap(),
            Self::Postgres(store) => store.counts().await.unwrap(),
        }
    }
}

/// An answer is the same for everyone, for ever; anything else is said to be unfinished.
fn hear(told: &Mutex<Told>, key: &str, reply: &Reply) {
    let mut told = told.lock().unwrap();
    match reply.status.as_u16() {
        201 => {
            let first = told.answers.entry(key.to_owned()).or_insert_with(|| reply.body.clone());
            assert_eq!(*first, reply.body, "{key}: another answer");
        }
        409 | 503 => {
            assert!(!told.answers.contains_key(key), "{key} was answered, and is open again: {reply:?}");
        }
        _ => panic!("{key}: {reply:?}"),
    }
}
