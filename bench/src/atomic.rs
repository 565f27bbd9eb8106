//! An atomic handler beside the same handler in a plain transaction, on the same database, in one interleaved run.
//!
//! The handler inserts a payment (which has a primary key) and adds to one of many accounts: once, the least that a handler can do, and
//! five times, which is more like what they do. Load, service and server share the machine's cores; the load speaks
//! HTTP/1.1 over so many kept connections, each waiting for its answer. Both services use pools of the same size.
//!
//! On SQLite each is measured twice: with one pooled connection, and with 16, where plain ones meet at SQLite's own lock. Neither is always the faster
//! one, so there is a table of ratios to each of the plain ones.

mod promises;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::IntoResponse;
use axum::routing::post;
use oncegate_core::policy::Profile;
use oncegate_engine::{Engine, Options as EngineOptions};
use oncegate_store::jobs::Enqueue;
use oncegate_store::join::{Transaction, Transactions};
use oncegate_store_sql::sqlx::{PgDedicated, PgTransactions, SqliteDedicated, SqliteTransactions};
use oncegate_store_sql::{PostgresOptions, SqliteStore};
use oncegate_test_servers::Postgres;
use oncegate_tower::{Atomic, AtomicIdempotency, Routes, scope};
use sqlx::postgres::PgPoolOptions;
use sqlx::sqlite::{SqliteConnectOptions, SqlitePoolOptions, SqliteSynchronous};
use sqlx::{PgConnection, PgPool, SqliteConnection, SqlitePool};
use tokio::runtime::Runtime;

use crate::cost::{Turn, column};
use crate::engine::Contender;
use crate::gateway::load::{Kind, Load};
use crate::measure::{Summary, interleave};
use crate::options::Options;
use crate::postgres::SETTINGS;
use crate::{Outcome, fill};

/// Kept connections of the load.
const CONNECTIONS: [usize; 2] = [16, 64];
/// Of a service's own pool.
const POOL: u32 = 16;
const ACCOUNTS: i64 = 10_000;
const PLAIN: &str = "plain transaction";
const PLAIN_MANY: &str = "plain transaction (16 connections)";
const TABLES: [&str; 2] = [
    "CREATE TABLE account (id BIGINT PRIMARY KEY, balance BIGINT NOT NULL)",
    "CREATE TABLE payment (id BIGINT PRIMARY KEY, account BIGINT NOT NULL, amount BIGINT NOT NULL)",
];

const ACCOUNTS_ON_POSTGRES: &str = "INSERT INTO account SELECT n, 0 FROM generate_series(0, 9999) n";

/// Measures both databases.
pub(crate) fn run(options: &Options) -> Outcome {
    let asked = |database: &str| options.only.iter().any(|only| only == database);
    let (sqlite, postgres) = (asked("sqlite"), asked("postgres"));
    if postgres || !sqlite {
        on_postgres(options)?;
    }
    if sqlite || !postgres {
        on_sqlite(options)?;
    }
    if sqlite || postgres { Ok(()) } else { promises::run(options) }
}

fn on_postgres(options: &Options) -> Outcome {
    let server = Postgres::start(&SETTINGS);
    let runtime = runtime()?;
    let pool = |connections: u32| {
        PgPoolOptions::new()
            .max_connections(connections)
            .test_before_acquire(false)
            .connect_lazy(&server.url())
    };
    let services = runtime.block_on(async {
        let plain = pool(options.pool)?;
        for text in TABLES.into_iter().chain([ACCOUNTS_ON_POSTGRES]) {
            sqlx::query(text).execute(&plain).await?;
        }
        let open = async || Outcome::Ok(PostgresOptions::new(&server.url())?.open().await?);
        Outcome::Ok([
            (
                PLAIN,
                serve(Router::new().route("/payments", post(plain_on_postgres)).with_state(plain)).await?,
            ),
            ("atomic handler", atomic(open().await?, PgTransactions(pool(options.pool)?)).await?),
            (
                "atomic handler (dedicated pool)",
                atomic(open().await?, PgDedicated::new(pool(options.pool)?)).await?,
            ),
        ])
    })?;
    measure(options, "PostgreSQL", &services)
}

fn on_sqlite(options: &Options) -> Outcome {
    let files = ["plain", "many", "one", "dedicated", "atomic"];
    let files = files.map(|name| options.dir.join(format!("atomic-{name}.db")));
    let [plain, many, one, dedicated, joined] = &files;
    for file in &files {
        fill::remove(file)?;
    }
    let runtime = runtime()?;
    let services = runtime.block_on(async {
        let plainly = async |file: &Path, connections: u32| {
            drop(SqliteStore::open(file)?);
            let pool = sqlite(file, connections).await?;
            serve(Router::new().route("/payments", post(plain_on_sqlite)).with_state(pool)).await
        };
        let atomically = async |file: &Path, connections: u32| {
            let store = SqliteStore::open(file)?;
            atomic(store, SqliteTransactions(sqlite(file, connections).await?)).await
        };
        Outcome::Ok([
            (PLAIN, plainly(plain, 1).await?),
            (PLAIN_MANY, plainly(many, POOL).await?),
            ("atomic handler", atomically(one, 1).await?),
            (
                "atomic handler (dedicated pool)",
                atomic(SqliteStore::open(dedicated)?, SqliteDedicated::new(sqlite(dedicated, 1).await?))
                    .await?,
            ),
            ("atomic handler (16 connections)", atomically(joined, POOL).await?),
        ])
    })?;
    measure(options, "SQLite", &services)?;
    drop(runtime);
    files.iter().try_for_each(|file| fill::remove(file))
}

fn measure(options: &Options, database: &str, services: &[(&'static str, SocketAddr)]) -> Outcome {
    let tables =
        [2, 6].into_iter().flat_map(|statements| CONNECTIONS.map(|connections| (statements, connections)));
    for (statements, connections) in tables {
        STATEMENTS.store(statements, Ordering::Relaxed);
        let requests = Options::requests_per_turn(connections) / 2;
        let contender = |(name, address): &(&'static str, SocketAddr)| -> Contender {
            let load = Load { address: *address, kind: Kind::Fresh, connections, requests };
            (*name, Box::new(move || load.run()))
        };
        let mut contenders: Vec<Contender> = services.iter().map(contender).collect();
        let by_name = options.only.iter().any(|only| services.iter().any(|(name, _)| name == only));
        contenders.retain(|(name, _)| !by_name || options.admits(name));
        let turns: Vec<Vec<Turn>> = interleave(options.rounds, &mut contenders, |(_, turn)| turn())?;
        let names: Vec<_> = contenders.iter().map(|(name, _)| *name).collect();
        for base in [PLAIN, PLAIN_MANY].into_iter().filter(|base| names.contains(base)) {
            println!(
                "\n| {database}, {statements} statements, {connections} connections | requests/s | : {base} | CPU µs, load included | machine's µs | : {base} |"
            );
            println!("| --- | --- | --- | --- | --- | --- |");
            print(&names, &turns, base);
        }
    }
    Ok(())
}

/// What the machine spends on a request is told too: on a noisy one it says more than how many there were.
fn print(names: &[&str], turns: &[Vec<Turn>], base: &str) {
    let of = |what: fn(&Turn) -> f64| turns.iter().map(|turns| column(turns, what)).collect::<Vec<_>>();
    let (speeds, machine) = (of(|turn| turn.requests_per_s), of(|turn| turn.machine_us));
    let Some(base) = names.iter().position(|name| *name == base) else { return };
    for (place, name) in names.iter().enumerate() {
        println!(
            "| {name} | {:.0} | {} | {} | {} | {} |",
            Summary::of(&speeds[place]).median,
            Summary::of_ratio(&speeds[place], &speeds[base]),
            Summary::of(&column(&turns[place], |turn| turn.cpu_us)),
            Summary::of(&machine[place]),
            Summary::of_ratio(&machine[base], &machine[place]),
        );
    }
}

fn runtime() -> Outcome<Runtime> {
    Ok(tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?)
}

async fn sqlite(file: &Path, connections: u32) -> Outcome<SqlitePool> {
    let options = SqliteConnectOptions::new().filename(file).synchronous(SqliteSynchronous::Full);
    let pool = SqlitePoolOptions::new().max_connections(connections).test_before_acquire(false);
    let pool = pool.connect_with(options).await?;
    for text in TABLES {
        sqlx::query(text).execute(&pool).await?;
    }
    let accounts = "WITH RECURSIVE n (id) AS (SELECT 0 UNION ALL SELECT id + 1 FROM n WHERE id < 9999) \
                INSERT INTO account SELECT id, 0 FROM n";
    sqlx::query(accounts).execute(&pool).await?;
    Ok(pool)
}

async fn serve(app: Router) -> Outcome<SocketAddr> {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move { axum::serve(listener, app).await });
    Ok(address)
}

async fn atomic<S: Enqueue, T>(store: S, pool: T) -> Outcome<SocketAddr>
where
    T: Transactions<Transaction: Transaction<Inner: Pay>>,
{
    let engine = Engine::start(store, EngineOptions::default()).await?;
    let layer = AtomicIdempotency::new(engine, pool, scope::authorization(), Routes::all(Profile::Ietf)?);
    let handler = async |mut tx: Atomic<T>| answer(tx.pay(statements()).await);
    serve(Router::new().route("/payments", post(handler)).layer(layer)).await
}

async fn plain_on_postgres(State(pool): State<PgPool>) -> impl IntoResponse {
    let paid = async {
        let mut transaction = pool.begin().await?;
        transaction.pay(statements()).await?;
        transaction.commit().await
    };
    answer(paid.await)
}

async fn plain_on_sqlite(State(pool): State<SqlitePool>) -> impl IntoResponse {
    let paid = async {
        let mut transaction = pool.begin_with("BEGIN IMMEDIATE").await?;
        transaction.pay(statements()).await?;
        transaction.commit().await
    };
    answer(paid.await)
}

fn answer(paid: sqlx::Result<()>) -> (StatusCode, String) {
    match paid {
        Ok(()) => (StatusCode::CREATED, r#"{"status":"paid","amount":100}"#.to_owned()),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    }
}

/// How many statements the handler runs in its transaction; the same for all contenders of a table.
static STATEMENTS: AtomicUsize = AtomicUsize::new(2);

fn statements() -> usize {
    STATEMENTS.load(Ordering::Relaxed)
}

/// The handler's own work.
trait Pay: Send {
    fn pay(&mut self, statements: usize) -> impl Future<Output = sqlx::Result<()>> + Send;
}

/// A payment's number, and its account: one after the other, so that nobody waits for another's row.
fn next() -> (i64, i64) {
    static NEXT: AtomicI64 = AtomicI64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    (number, number % ACCOUNTS)
}

impl Pay for PgConnection {
    async fn pay(&mut self, statements: usize) -> sqlx::Result<()> {
        let (number, account) = next();
        let payment = sqlx::query("INSERT INTO payment (id, account, amount) VALUES ($1, $2, 100)")
            .bind(number)
            .bind(account);
        payment.execute(&mut *self).await?;
        for _ in 1..statements {
            let balance =
                sqlx::query("UPDATE account SET balance = balance + 100 WHERE id = $1").bind(account);
            balance.execute(&mut *self).await?;
        }
        Ok(())
    }
}

impl Pay for SqliteConnection {
    async fn pay(&mut self, statements: usize) -> sqlx::Result<()> {
        let (number, account) = next();
        let payment = sqlx::query("INSERT INTO payment (id, account, amount) VALUES (?1, ?2, 100)")
            .bind(number)
            .bind(account);
        payment.execute(&mut *self).await?;
        for _ in 1..statements {
            let balance =
                sqlx::query("UPDATE account SET balance = balance + 100 WHERE id = ?1").bind(account);
            balance.execute(&mut *self).await?;
        }
        Ok(())
    }
}
