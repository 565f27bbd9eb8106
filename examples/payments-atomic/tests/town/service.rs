//! The service's process, its client, and the judge.

use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use bytes::Bytes;
use example_payments::Serving;
use example_payments::post::{self, NoReply, Reply};
use example_payments::provider::{self, Faults, Late};
use http::Request;
use oncegate::decide::{Decision, Event};
use oncegate::jobs::Jobs;
use oncegate::record::Reason;
use oncegate::{Engine, Options, PostgresStore, SqliteStore};
use oncegate_store::Filter;
use oncegate_test_servers::{Database, until_some};
use serde_json::Value;
use sqlx::{PgPool, SqlitePool};
use tempfile::TempDir;

/// A provider, a database, and a place for both.
pub(crate) struct Town {
    database: Database,
    provider: Serving,
    folder: TempDir,
}

impl Town {
    pub(crate) async fn new(database: Database, faults: Faults) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let options = provider::Options {
            listen: ([127, 0, 0, 1], 0).into(),
            ledger: folder.path().join("ledger.db"),
            is_idempotent: true,
            faults,
            webhook: None,
            late: Late::By(Duration::from_millis(100)),
        };
        Self { database, provider: provider::start(options).await.unwrap(), folder }
    }

    pub(crate) fn service(&self) -> Service {
        Service::start(&self.url(), &self.provider.address().to_string())
    }

    fn url(&self) -> String {
        match &self.database {
            Database::Sqlite => format!("sqlite:{}", self.file().display()),
            Database::Postgres(server) => server.url(),
        }
    }

    /// What goes wrong from now on.
    pub(crate) async fn behave(&self, faults: &Faults) {
        let body = Bytes::from(serde_json::to_vec(faults).unwrap());
        let request = Request::put("/faults").header("content-type", "application/json");
        let reply = self.ask(request, body).await;
        assert!(reply.status.is_success(), "{reply:?}");
    }

    pub(crate) async fn ledger(&self) -> Value {
        self.ask(Request::get("/ledger"), Bytes::new()).await.json()
    }

    async fn ask(&self, request: http::request::Builder, body: Bytes) -> Reply {
        let address = self.provider.address().to_string();
        let request = request.header("host", &address).body(body).unwrap();
        post::send(&address, request, Duration::from_secs(10)).await.unwrap()
    }

    /// Says of the attempt that runs under this key that it did not happen, as an operator would once its charge was given up.
    pub(crate) async fn release(&self, key: &str) {
        match &self.database {
            Database::Sqlite => release(SqliteStore::open(self.file()).unwrap(), key).await,
            Database::Postgres(server) => {
                Box::pin(release(PostgresStore::open(&server.url()).await.unwrap(), key)).await;
            }
        }
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("payments.db")
    }

    /// Each key is one payment, each that succeeded one charge, and what is written down is what the provider holds.
    pub(crate) async fn judge(&self, keys: usize) {
        let ledger = self.ledger().await;
        assert_eq!(ledger["charged_twice"], serde_json::json!([]), "nobody was charged twice");
        let (all, succeeded, pending) = self.payments().await;
        println!("{keys} keys, {all} payments, {succeeded} succeeded; the ledger: {ledger}");
        assert_eq!((all, pending), (keys, 0), "a payment for every key, and all of them settled");
        assert_eq!(ledger["charges"].as_u64(), Some(u64::try_from(succeeded).unwrap()));
    }

    /// How many there are, how many of them succeeded, and how many are open.
    pub(crate) async fn payments(&self) -> (usize, usize, usize) {
        let sql = "SELECT count(*), count(CASE WHEN status = 'succeeded' THEN 1 END), \
                   count(CASE WHEN status = 'pending' THEN 1 END) FROM payment";
        let (all, succeeded, pending): (i64, i64, i64) = match &self.database {
            Database::Sqlite => {
                let pool = SqlitePool::connect(&self.url()).await.unwrap();
                sqlx::query_as(sql).fetch_one(&pool).await.unwrap()
            }
            Database::Postgres(server) => {
                let pool = PgPool::connect(&server.url()).await.unwrap();
                sqlx::query_as(sql).fetch_one(&pool).await.unwrap()
            }
        };
        let count = |count: i64| usize::try_from(count).unwrap();
        (count(all), count(succeeded), count(pending))
    }
}

async fn release<S: Jobs>(store: S, key: &str) {
    let engine = Engine::start(store, Options::default()).await.unwrap();
    let filter = Filter { key: Some(key.to_owned()), ..Filter::default() };
    let record = engine.store().browse(&filter, None, 1).await.unwrap().records.pop().unwrap();
    let job = engine.store().jobs_of(record.id).await.unwrap().pop().unwrap();
    let reason = Reason::new("operator", "it did not happen");
    let release = Event::Release { holder: job.answers.unwrap(), reason, backoff: Duration::ZERO };
    assert_eq!(engine.drive(record.id, &release).await.unwrap().decision, Decision::Done);
}

/// A running service. Dropped, it is killed.
pub(crate) struct Service {
    process: Child,
    pub(crate) address: String,
}

impl Service {
    fn start(database: &str, provider: &str) -> Self {
        let mut process = Command::new(env!("CARGO_BIN_EXE_example-payments-atomic"))
            .args(["--database", database, "--provider", provider, "--listen", "127.0.0.1:0"])
            .args(["--patience-ms", "500", "--slack-ms", "500"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().rsplit("http://").next().unwrap().to_owned();
        assert!(address.starts_with("127.0.0.1:"), "{line:?}");
        Self { process, address }
    }
}

impl Drop for Service {
    /// SIGKILL.
    fn drop(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

/// Pays under a key.
pub(crate) async fn pay(address: &str, key: &str) -> Result<Reply, NoReply> {
    let request = Request::post("/payments")
        .header("host", address)
        .header("authorization", "Bearer test")
        .header("idempotency-key", key)
        .header("content-type", "application/json")
        .body(Bytes::from_static(br#"{"amount": 4200, "currency": "EUR"}"#))
        .unwrap();
    post::send(address, request, Duration::from_mins(1)).await
}

/// Whether it says what became of the payment; if not, it must say that this is not known yet, or that nothing was done.
pub(crate) fn outcome(reply: &Reply) -> bool {
    match reply.status.as_u16() {
        201 | 402 => true,
        202 | 409 | 503 => false,
        _ => panic!("{reply:?}"),
    }
}

/// Asks until it is told.
pub(crate) async fn until_told(address: &str, key: &str) -> Reply {
    until_some("every key has an answer", async || pay(address, key).await.ok().filter(outcome)).await
}
