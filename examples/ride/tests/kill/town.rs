//! A provider, a database, a service that is killed, clients, and the judge.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use example_payments::Serving;
use example_payments::post::{self, NoReply};
use example_payments::provider::{self, Fault, Faults, Late};
use http::Request;
use oncegate_store::{Counts, Filter, Store};
use oncegate_store_sql::{PostgresStore, SqliteStore};
use oncegate_test_servers::{Database, until};
use sqlx::sqlite::SqliteConnectOptions;
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
    /// Kills at random that left such a ride behind, of those that were begun since the kill before.
    pub(crate) at_random: usize,
    /// Kills that came while a charge was under way, for certain.
    pub(crate) in_charge: usize,
    /// Of those, how many have no answer.
    pub(crate) left: usize,
    /// How often the provider was asked what became of a charge.
    pub(crate) asked: usize,
}

pub(crate) struct Town {
    database: Database,
    recovery: Recovery,
    provider: Serving,
    told: Arc<Mutex<Told>>,
    cut: usize,
    at_random: usize,
    /// Keys whose kill came while their charge was under way.
    in_charge: Vec<String>,
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
        Self {
            database,
            recovery,
            provider,
            told: Arc::default(),
            cut: 0,
            at_random: 0,
            in_charge: Vec::new(),
            folder,
        }
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

    /// Clients ask, and the service is killed, so often; at last, and a few times at least, in the middle of a charge.
    pub(crate) async fn kill(&mut self, kills: usize) {
        let in_charge = (kills / 10).max(2);
        self.kill_at_random(kills - in_charge).await;
        for round in 0..in_charge {
            let fault = [Fault::TimeoutAfterCharge, Fault::TimeoutBeforeCharge][round % 2];
            self.kill_in_charge(&format!("cut-{round:04}-{fault}"), fault).await;
        }
        self.behave(&Faults::default()).await;
        self.cut = self.rows("ride").await.0 - self.rows("receipt").await.0;
    }

    /// While the provider has charged, or has been asked to and has not, and does not say so.
    async fn kill_in_charge(&mut self, key: &str, fault: Fault) {
        self.behave(&Faults([(fault, 1.0)].into())).await;
        let records = self.records().await;
        let service = self.service();
        self.told.lock().unwrap().sent.insert(key.to_owned());
        let (address, of) = (service.address.clone(), key.to_owned());
        let client = tokio::spawn(async move { ask(&address, &of).await });
        until("its charge is begun", async || records.point(key).await.as_deref() == Some("charge_created"))
            .await;
        if fault == Fault::TimeoutAfterCharge {
            until("it is charged", async || self.is_charged(key).await).await;
        }
        drop(service);
        assert!(client.await.unwrap().is_err(), "{key} was answered, though nobody could know");
        self.in_charge.push(key.to_owned());
    }

    /// What goes wrong at the provider from now on.
    async fn behave(&self, faults: &Faults) {
        let request =
            Request::put("/faults").header("host", "provider").header("content-type", "application/json");
        let request = request.body(Bytes::from(serde_json::to_vec(faults).unwrap())).unwrap();
        let address = self.provider.address().to_string();
        let reply = post::send(&address, request, Duration::from_secs(10)).await.unwrap();
        assert!(reply.status.is_success(), "{reply:?}");
    }

    /// In the ledger itself: whoever asks the provider is counted.
    async fn is_charged(&self, key: &str) -> bool {
        let options = SqliteConnectOptions::new().filename(self.folder.path().join("ledger.db"));
        let pool = SqlitePool::connect_with(options.read_only(true)).await.unwrap();
        let sql = "SELECT count(*) FROM charge WHERE key = $1";
        let count: i64 = sqlx::query_scalar(sql).bind(key).fetch_one(&pool).await.unwrap();
        count == 1
    }

    async fn kill_at_random(&mut self, kills: usize) {
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
                        if ask_and_hear(&told, &address, &key).await.is_err() {
                            return;
                        }
                    }
                });
            }
            // With so many requests begun: one of them just now, the others in any phase.
            let mut enough = std::pin::pin!(begun.acquire_many(fastrand::u32(1..REQUESTS)));
            loop {
                tokio::select! {
                    _ = &mut enough => break,
                    // One that ends before has something to say.
                    Some(client) = clients.join_next() => client.unwrap(),
                    else => break,
                }
            }
            drop(service);
            while let Some(client) = clients.join_next().await {
                client.unwrap();
            }
            self.at_random += usize::from(self.is_cut(&format!("ride-{round:04}-")).await);
        }
    }

    /// Whether one of these rides has no receipt.
    async fn is_cut(&self, prefix: &str) -> bool {
        let sql = "SELECT count(*), count(*) FROM {}ride WHERE key LIKE '{prefix}%' AND key NOT IN (SELECT key FROM {}receipt)";
        self.numbers(&sql.replace("{prefix}", prefix)).await.0 > 0
    }

    /// Half of what is open is asked for again; of the other half nobody speaks any more. All of it comes to an end.
    pub(crate) async fn settle(&mut self) {
        let service = self.service();
        let open: Vec<_> = {
            let told = self.told.lock().unwrap();
            told.sent.iter().filter(|key| !told.answers.contains_key(*key)).cloned().collect()
        };
        for key in open.iter().step_by(2) {
            ask_and_hear(&self.told, &service.address, key).await.unwrap();
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
            ask_and_hear(&self.told, &service.address, &key).await.unwrap();
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
        let [charges, asked] =
            ["charges", "asked"].map(|name| usize::try_from(ledger[name].as_u64().unwrap()).unwrap());
        let parked = usize::try_from(self.records().await.counts().await.parked).unwrap();
        let (keys, answered, different, left) = {
            let told = self.told.lock().unwrap();
            let left = self.in_charge.iter().filter(|key| !told.answers.contains_key(*key)).count();
            (told.sent.len(), told.answers.len(), told.answers.values().collect::<BTreeSet<_>>().len(), left)
        };
        let count = Count {
            keys,
            charges,
            unanswered: keys - answered,
            parked,
            cut: self.cut,
            at_random: self.at_random,
            in_charge: self.in_charge.len(),
            left,
            asked,
        };
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
        self.numbers(&format!("SELECT count(*), count(DISTINCT key) FROM {{}}{table}")).await
    }

    /// Two numbers, out of the service's own tables: `{}` is what stands before their names.
    async fn numbers(&self, sql: &str) -> (usize, usize) {
        // The store's schema is called like the test's user, so that it comes first on PostgreSQL's search path.
        let schema = if matches!(self.database, Database::Postgres(_)) { "public." } else { "" };
        let sql = sqlx::AssertSqlSafe(sql.replace("{}", schema));
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

    /// The last phase that was begun under a key.
    async fn point(&self, key: &str) -> Option<Box<str>> {
        let filter = Filter { key: Some(key.to_owned()), ..Filter::default() };
        let page = match self {
            Self::Sqlite(store) => store.browse(&filter, None, 1).await.unwrap(),
            Self::Postgres(store) => store.browse(&filter, None, 1).await.unwrap(),
        };
        page.records.into_iter().next()?.recovery.map(|point| point.name)
    }
}

/// An answer is the same for everyone, for ever; anything else is said to be unfinished, and not to whoever asks when somebody has had the answer. (Two who ask at once may hear of it in
/// another order than that in which they were answered.)
async fn ask_and_hear(told: &Mutex<Told>, address: &str, key: &str) -> Result<(), NoReply> {
    let was_answered = told.lock().unwrap().answers.contains_key(key);
    let reply = ask(address, key).await?;
    match reply.status.as_u16() {
        201 => {
            let mut told = told.lock().unwrap();
            let first = told.answers.entry(key.to_owned()).or_insert_with(|| reply.body.clone());
            assert_eq!(*first, reply.body, "{key}: another answer");
        }
        // 504: the first who is told that nobody knows; whoever asks after that is told 409.
        409 | 503 | 504 => assert!(!was_answered, "{key} was answered, and is open again: {reply:?}"),
        _ => panic!("{key}: {reply:?}"),
    }
    Ok(())
}
