//! A service with atomic handlers, killed with SIGKILL at random instants under load, and started again on the same database.
//!
//! Business rows and completed keys match one to one after every kill, and what a client was told stays true. Nothing is ever in
//! doubt: a key that was cut off is free, or it has its answer.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::routing::post;
use libtest_mimic::{Arguments, Failed, Trial};
use oncegate_core::policy::Profile;
use oncegate_core::record::{self, StateKind};
use oncegate_core::response::Answer;
use oncegate_engine::{Engine, Options};
use oncegate_store::jobs::Enqueue;
use oncegate_store::join::Transactions;
use oncegate_store::{Filter, Store};
use oncegate_store_sql::sqlx::{PgDedicated, PgTransactions, SqliteDedicated, SqliteTransactions};
use oncegate_store_sql::{PostgresOptions, PostgresStore, SqliteStore};
use oncegate_test_servers::{Postgres, until};
use oncegate_tower::{Atomic, AtomicIdempotency, Routes, scope};
use sqlx::postgres::PgPoolOptions;
use sqlx::sqlite::{SqliteConnectOptions, SqlitePoolOptions};
use sqlx::{PgPool, SqlitePool};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

#[path = "killed/child.rs"]
mod child;
#[path = "layer/client.rs"]
#[expect(dead_code, reason = "another test needs more of it")]
mod client;
#[path = "killed/dice.rs"]
mod dice;
#[path = "layer/reply.rs"]
#[expect(dead_code, reason = "another test needs more of it")]
mod reply;

use child::{Service, runtime};
use client::{Call, Connection, within};
use dice::Dice;
use reply::Reply;

/// The database's URL, or the path of its file.
const PLACE: &str = "ONCEGATE_TEST_PLACE";
const SEED: &str = "ONCEGATE_TEST_SEED";
const KILLS: &str = "ONCEGATE_TEST_KILLS";
const CONNECTIONS: usize = 8;

fn main() -> ExitCode {
    if let Ok(place) = std::env::var(PLACE) {
        runtime().block_on(async {
            let dedicated = place.strip_prefix(DEDICATED);
            if let Some(place) = dedicated.filter(|place| place.starts_with("postgres://")) {
                serve::<OnDedicated>(place).await;
            } else if let Some(place) = dedicated {
                serve::<OnSqliteDedicated>(place).await;
            } else if place.starts_with("postgres://") {
                serve::<OnPostgres>(&place).await;
            } else {
                serve::<OnSqlite>(&place).await;
            }
        });
        return ExitCode::SUCCESS;
    }
    let on_postgres = || {
        let server = Postgres::start(&[]);
        kill_9::<OnPostgres>(&server.url());
        Ok::<(), Failed>(())
    };
    let on_dedicated = || {
        let server = Postgres::start(&[]);
        kill_9::<OnDedicated>(&format!("{DEDICATED}{}", server.url()));
        Ok::<(), Failed>(())
    };
    let on_sqlite = || {
        let folder = tempfile::tempdir().unwrap();
        kill_9::<OnSqlite>(folder.path().join("records.db").to_str().unwrap());
        Ok::<(), Failed>(())
    };
    let on_sqlite_dedicated = || {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("records.db");
        kill_9::<OnSqliteDedicated>(&format!("{DEDICATED}{}", path.to_str().unwrap()));
        Ok::<(), Failed>(())
    };
    let trials = vec![
        Trial::test("kill_9_leaves_rows_and_keys_one_to_one_on_postgres", on_postgres),
        Trial::test("kill_9_leaves_rows_and_keys_one_to_one_on_a_dedicated_pool", on_dedicated),
        Trial::test("kill_9_leaves_rows_and_keys_one_to_one_on_sqlite", on_sqlite),
        Trial::test(
            "kill_9_leaves_rows_and_keys_one_to_one_on_a_dedicated_pool_of_sqlite",
            on_sqlite_dedicated,
        ),
    ];
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

// ---- the databases ---------------------------------------------------------------------------------------------------

/// Where the service's `charge` and Oncegate's tables are together. A key that had its effect twice has two rows in `charge`.
trait Base: 'static {
    type Store: Enqueue;
    type Pool: Transactions;

    async fn store(place: &str) -> Self::Store;
    /// The service's own connections; makes its table where it is not there yet.
    async fn pool(place: &str) -> Self::Pool;
    fn charge(
        tx: &mut Atomic<Self::Pool>,
        key: &str,
        answer: &str,
    ) -> impl Future<Output = sqlx::Result<()>> + Send;
    /// The rows of `charge`, key and answer; nobody else's transaction is open.
    async fn charges(pool: &Self::Pool) -> Vec<(String, String)>;
}

const TABLE: &str = "CREATE TABLE IF NOT EXISTS charge (key TEXT NOT NULL, answer TEXT NOT NULL)";
const CHARGES: &str = "SELECT key, answer FROM charge";

/// Before the place of a database whose pool atomic handlers have to themselves.
const DEDICATED: &str = "dedicated ";

/// The same database, by such a pool.
struct OnDedicated;

impl Base for OnDedicated {
    type Store = PostgresStore;
    type Pool = PgDedicated;

    async fn store(place: &str) -> PostgresStore {
        OnPostgres::store(place.trim_start_matches(DEDICATED)).await
    }

    /// Of fewer connections than there are clients: what closes one transaction opens the next.
    async fn pool(place: &str) -> PgDedicated {
        let place = place.trim_start_matches(DEDICATED);
        drop(OnPostgres::pool(place).await);
        PgDedicated::new(PgPoolOptions::new().max_connections(3).connect(place).await.unwrap())
    }

    async fn charge(tx: &mut Atomic<PgDedicated>, key: &str, answer: &str) -> sqlx::Result<()> {
        insert(tx, key, answer).await
    }

    async fn charges(pool: &PgDedicated) -> Vec<(String, String)> {
        OnPostgres::charges(&PgTransactions(pool.pool().clone())).await
    }
}

async fn insert(on: &mut sqlx::PgConnection, key: &str, answer: &str) -> sqlx::Result<()> {
    let insert = sqlx::query("INSERT INTO charge (key, answer) VALUES ($1, $2)");
    insert.bind(key).bind(answer).execute(on).await.map(drop)
}

struct OnPostgres;

impl Base for OnPostgres {
    type Store = PostgresStore;
    type Pool = PgTransactions;

    async fn store(place: &str) -> PostgresStore {
        PostgresOptions::new(place).unwrap().open().await.unwrap()
    }

    async fn pool(place: &str) -> PgTransactions {
        let pool: PgPool = PgPoolOptions::new().max_connections(8).connect(place).await.unwrap();
        sqlx::query(TABLE).execute(&pool).await.unwrap();
        PgTransactions(pool)
    }

    async fn charge(tx: &mut Atomic<PgTransactions>, key: &str, answer: &str) -> sqlx::Result<()> {
        insert(tx, key, answer).await
    }

    async fn charges(PgTransactions(pool): &PgTransactions) -> Vec<(String, String)> {
        // The server may not have noticed yet that its client is gone.
        until("the killed service's sessions have ended", async || {
            let open = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() \
                        AND backend_type = 'client backend' AND xact_start IS NOT NULL AND pid <> pg_backend_pid()";
            sqlx::query_scalar::<_, i64>(open).fetch_one(pool).await.unwrap() == 0
        })
        .await;
        sqlx::query_as(CHARGES).fetch_all(pool).await.unwrap()
    }
}

struct OnSqlite;

impl Base for OnSqlite {
    type Store = SqliteStore;
    type Pool = SqliteTransactions;

    async fn store(place: &str) -> SqliteStore {
        SqliteStore::open(place).unwrap()
    }

    async fn pool(place: &str) -> SqliteTransactions {
        let options = SqliteConnectOptions::new().filename(place);
        let pool: SqlitePool =
            SqlitePoolOptions::new().max_connections(8).connect_with(options).await.unwrap();
        sqlx::query(TABLE).execute(&pool).await.unwrap();
        SqliteTransactions(pool)
    }

    async fn charge(tx: &mut Atomic<SqliteTransactions>, key: &str, answer: &str) -> sqlx::Result<()> {
        insert_in_sqlite(tx, key, answer).await
    }

    async fn charges(SqliteTransactions(pool): &SqliteTransactions) -> Vec<(String, String)> {
        sqlx::query_as(CHARGES).fetch_all(pool).await.unwrap()
    }
}

async fn insert_in_sqlite(on: &mut sqlx::SqliteConnection, key: &str, answer: &str) -> sqlx::Result<()> {
    let insert = sqlx::query("INSERT INTO charge (key, answer) VALUES (?1, ?2)");
    insert.bind(key).bind(answer).execute(on).await.map(drop)
}

/// The same file, by a pool of one connection that atomic handlers have to themselves.
struct OnSqliteDedicated;

impl Base for OnSqliteDedicated {
    type Store = SqliteStore;
    type Pool = SqliteDedicated;

    async fn store(place: &str) -> SqliteStore {
        OnSqlite::store(place.trim_start_matches(DEDICATED)).await
    }

    async fn pool(place: &str) -> SqliteDedicated {
        let place = place.trim_start_matches(DEDICATED);
        OnSqlite::pool(place).await.0.close().await;
        let options = SqliteConnectOptions::new().filename(place);
        SqliteDedicated::new(SqlitePoolOptions::new().max_connections(1).connect_with(options).await.unwrap())
    }

    async fn charge(tx: &mut Atomic<SqliteDedicated>, key: &str, answer: &str) -> sqlx::Result<()> {
        insert_in_sqlite(tx, key, answer).await
    }

    async fn charges(pool: &SqliteDedicated) -> Vec<(String, String)> {
        OnSqlite::charges(&SqliteTransactions(pool.pool().clone())).await
    }
}

// ---- the service -----------------------------------------------------------------------------------------------------

async fn serve<B: Base>(place: &str) {
    let store = B::store(place).await;
    let pool = B::pool(place).await;
    let engine = Engine::start(store, Options::default()).await.unwrap();
    let routes = Routes::none().otherwise(Profile::Ietf).unwrap();
    let layer = AtomicIdempotency::new(engine, pool, scope::header("x-tenant"), routes);
    let runs = Arc::new(AtomicU64::new(0));
    child::serve(Router::new().route("/charges", post(charge::<B>)).with_state(runs).layer(layer)).await;
}

/// Every fifth fails after its effect.
async fn charge<B: Base>(
    State(runs): State<Arc<AtomicU64>>,
    mut tx: Atomic<B::Pool>,
    request: Request,
) -> Result<String, StatusCode> {
    let run = runs.fetch_add(1, Ordering::Relaxed);
    let key = request.headers()["idempotency-key"].to_str().unwrap();
    let answer = format!("run {run} of process {}", std::process::id());
    B::charge(&mut tx, key, &answer).await.unwrap();
    if run % 5 == 4 { Err(StatusCode::INTERNAL_SERVER_ERROR) } else { Ok(answer) }
}

// ---- the clients -----------------------------------------------------------------------------------------------------

/// What clients know.
#[derive(Default)]
struct Told {
    sent: BTreeSet<u64>,
    answers: BTreeMap<u64, Reply>,
}

fn name(key: u64) -> String {
    format!("key-{key:06}")
}

/// Sends a key's request, and checks the reply against what was told before; `None`: the service is gone.
async fn ask(connection: &mut Connection, told: &Mutex<Told>, key: u64) -> Option<Reply> {
    let was_told = {
        let mut told = told.lock().unwrap();
        told.sent.insert(key);
        told.answers.contains_key(&key)
    };
    let call = Call::post("/charges").key(&name(key));
    connection.send(&call).await.ok()?;
    let reply = connection.reply().await.ok()?;
    assert!(!was_told || reply.is_replay(), "key {key} was told before, and is not replayed: {reply:?}");
    match reply.status {
        200 => {
            let mut told = told.lock().unwrap();
            let first = told.answers.entry(key).or_insert_with(|| reply.clone());
            assert_eq!(first.in_common(), reply.in_common(), "key {key}: another answer");
        }
        // The handler's own, of which nothing is kept.
        500 => assert!(!reply.is_replay(), "{reply:?}"),
        // Another client's, or one of before whose session the server has not ended yet.
        _ => drop(reply.expect_problem(409, "in_progress")),
    }
    Some(reply)
}

/// Fresh keys, and again such as were sent before, until the service is gone.
async fn client(addr: SocketAddr, told: Arc<Mutex<Told>>, answers: Arc<Semaphore>, mut dice: Dice) {
    let Ok(mut connection) = Connection::to(addr).await else { return };
    loop {
        let sent = told.lock().unwrap().sent.len() as u64;
        let key = dice.key(sent, CONNECTIONS as u64);
        if ask(&mut connection, &told, key).await.is_none() {
            return;
        }
        answers.add_permits(1);
    }
}

// ---- the test --------------------------------------------------------------------------------------------------------

fn kill_9<B: Base>(place: &str) {
    let number = |name: &str, otherwise| std::env::var(name).map_or(otherwise, |text| text.parse().unwrap());
    let (seed, kills) = (number(SEED, 1), number(KILLS, 30));
    let runtime = runtime();
    let (store, pool) = runtime.block_on(async { (B::store(place).await, B::pool(place).await) });
    let told = Arc::new(Mutex::new(Told::default()));
    let mut dice = Dice(seed);
    let mut cut_off = BTreeSet::new();
    for kill in 0..kills {
        // Shown only if it fails.
        println!("kill {kill}; again with {SEED}={seed}");
        let service = Service::start(&[(PLACE, place)]);
        runtime.block_on(load(service, &told, &mut dice));
        cut_off.extend(runtime.block_on(check::<B>(&store, &pool, &told)));
    }
    let service = Service::start(&[(PLACE, place)]);
    runtime.block_on(ask_for_all(service.addr, &told));
    drop(service);
    assert!(runtime.block_on(check::<B>(&store, &pool, &told)).is_empty(), "every answer was told");
    let told = told.lock().unwrap();
    assert_eq!(told.answers.len(), told.sent.len(), "nothing is left open");
    let (sent, cut_off) = (told.sent.len(), cut_off.len());
    println!("{sent} keys, {kills} kills, {cut_off} answers that were committed, and nobody was told");
    assert!(told.sent.len() as u64 > kills * 10, "there was some load");
}

/// Load from all connections, and the end somewhere in the middle of it: at some answer, and some turns of the scheduler later.
async fn load(service: Service, told: &Arc<Mutex<Told>>, dice: &mut Dice) {
    let answers = Arc::new(Semaphore::new(0));
    let last = 1 + u32::try_from(dice.roll(120)).unwrap();
    let mut clients = JoinSet::new();
    for _ in 0..CONNECTIONS {
        let dice = Dice(dice.roll(u64::MAX));
        clients.spawn(client(service.addr, Arc::clone(told), Arc::clone(&answers), dice));
    }
    tokio::select! {
        answered = within(answers.acquire_many(last)) => answered.unwrap().forget(),
        Some(client) = clients.join_next() => unreachable!("a client ended before the service: {client:?}"),
    }
    for _ in 0..dice.roll(400) {
        tokio::task::yield_now().await;
    }
    drop(service);
    while let Some(client) = within(clients.join_next()).await {
        client.unwrap();
    }
}

/// Business rows and completed keys match one to one, each row says what the kept answer says, and nothing else is there. Says which keys
/// have an answer that no client was told.
async fn check<B: Base>(store: &B::Store, pool: &B::Pool, told: &Mutex<Told>) -> BTreeSet<String> {
    let charges = B::charges(pool).await;
    let mut rows = BTreeMap::new();
    for (key, answer) in charges {
        assert!(rows.insert(key.clone(), answer).is_none(), "{key} had its effect twice");
    }
    let page = store.browse(&Filter::default(), None, 100_000).await.unwrap();
    let mut kept = BTreeMap::new();
    for record in &page.records {
        assert_eq!(record.state.kind(), StateKind::Completed, "nothing is ever in progress, or in doubt");
        let record::State::Completed(answer) = &record.state else { unreachable!("it is completed") };
        let Answer::Kept(answer) = &**answer else { unreachable!("it is small") };
        let said = String::from_utf8(answer.body.clone()).unwrap();
        kept.insert(record.address.key.as_str().to_owned(), said);
    }
    assert_eq!(rows, kept, "business rows and completed keys");
    let told = told.lock().unwrap();
    for (key, reply) in &told.answers {
        assert_eq!(kept.get(&name(*key)).map(String::as_bytes), Some(&*reply.body), "key {key} was answered");
    }
    let was_told: BTreeSet<String> = told.answers.keys().copied().map(name).collect();
    kept.into_keys().filter(|key| !was_told.contains(key)).collect()
}

/// Every key again, until each has its answer.
async fn ask_for_all(addr: SocketAddr, told: &Arc<Mutex<Told>>) {
    let keys: Vec<u64> = told.lock().unwrap().sent.iter().copied().collect();
    let mut connection = Connection::to(addr).await.unwrap();
    for key in keys {
        while ask(&mut connection, told, key).await.expect("the service is there").status != 200 {}
    }
}
