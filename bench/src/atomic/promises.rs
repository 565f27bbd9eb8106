//! The outbox at work while atomic handlers promise: handlers, delivery, the database and the load share the machine's cores.
//!
//! How many of the jobs that were promised while the load lasted were delivered while it lasted, how long the rest took, and what
//! delivery costs the handlers. The effect does nothing: what is measured is the outbox.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use axum::Router;
use axum::http::StatusCode;
use axum::routing::post;
use oncegate_core::policy::Profile;
use oncegate_engine::{
    Delivering, Delivery, Effect, Effects, Engine, Options as EngineOptions, OutboxOptions, Sent,
};
use oncegate_store::jobs::{Enqueue, Jobs};
use oncegate_store::join::{Transaction, Transactions};
use oncegate_store_sql::sqlx::{PgTransactions, SqliteTransactions};
use oncegate_store_sql::{PostgresOptions, SqliteStore};
use oncegate_test_servers::Postgres;
use oncegate_tower::{Atomic, AtomicIdempotency, Routes, scope};
use sqlx::postgres::PgPoolOptions;
use tokio::runtime::Runtime;

use super::{ACCOUNTS_ON_POSTGRES, POOL, Pay, TABLES, answer, runtime, serve, sqlite};
use crate::cost::Turn;
use crate::gateway::load::{Kind, Load};
use crate::measure::{Summary, interleave};
use crate::options::Options;
use crate::outbox::until_marked;
use crate::postgres::SETTINGS;
use crate::{Outcome, fill};

/// Measures both databases.
pub(super) fn run(options: &Options) -> Outcome {
    keeping_up_on_postgres(options)?;
    keeping_up_on_sqlite(options)
}

/// Kept connections of the load.
const CONNECTIONS: usize = 16;
/// Of the handler, beside the promise.
const STATEMENTS: usize = 2;

/// A turn of a service whose handler promises a job.
#[derive(Clone, Copy)]
struct Kept {
    turn: Turn,
    /// Of the jobs that were promised while the load lasted.
    delivered: f64,
    /// Until the last of them was marked.
    rest_s: f64,
}

type Keep = (&'static str, Box<dyn FnMut() -> Outcome<Kept>>);

const NOBODY: &str = "handlers promise, nobody delivers";
const DELIVERED: &str = "handlers promise, the outbox delivers";

fn keeping_up_on_postgres(options: &Options) -> Outcome {
    let server = Postgres::start(&SETTINGS);
    let runtime = Arc::new(runtime()?);
    let pool = || {
        let pool = PgPoolOptions::new().max_connections(POOL).test_before_acquire(false);
        pool.connect_lazy(&server.url())
    };
    let [nobody, outbox] = runtime.block_on(async {
        let tables = pool()?;
        for text in TABLES.into_iter().chain([ACCOUNTS_ON_POSTGRES]) {
            sqlx::query(text).execute(&tables).await?;
        }
        let service = async |schema: &str| {
            let store = PostgresOptions::new(&server.url())?.schema(schema)?.open().await?;
            promising(store, PgTransactions(pool()?)).await
        };
        Outcome::Ok([service("nobody").await?, service("delivered").await?])
    })?;
    let contenders = vec![(NOBODY, keep(&runtime, nobody, false)), (DELIVERED, keep(&runtime, outbox, true))];
    keeping_up(options, "PostgreSQL", contenders)
}

fn keeping_up_on_sqlite(options: &Options) -> Outcome {
    let files = ["nobody", "delivered"].map(|name| options.dir.join(format!("promises-{name}.db")));
    for file in &files {
        fill::remove(file)?;
    }
    let runtime = Arc::new(runtime()?);
    let [nobody, outbox] = runtime.block_on(async {
        let service = async |file: &std::path::Path| {
            let store = SqliteStore::open(file)?;
            promising(store, SqliteTransactions(sqlite(file, POOL).await?)).await
        };
        Outcome::Ok([service(&files[0]).await?, service(&files[1]).await?])
    })?;
    let contenders = vec![(NOBODY, keep(&runtime, nobody, false)), (DELIVERED, keep(&runtime, outbox, true))];
    keeping_up(options, "SQLite", contenders)?;
    drop(runtime);
    files.iter().try_for_each(|file| fill::remove(file))
}

fn keeping_up(options: &Options, database: &str, mut contenders: Vec<Keep>) -> Outcome {
    contenders.retain(|(name, _)| options.admits(name));
    let turns: Vec<Vec<Kept>> = interleave(options.rounds, &mut contenders, |(_, turn)| turn())?;
    println!(
        "\n| {database}, {STATEMENTS} statements and a promise, {CONNECTIONS} connections | requests/s | : {NOBODY} | delivered : promised while the load lasted | the rest took, s |"
    );
    println!("| --- | --- | --- | --- | --- |");
    let speeds = |turns: &[Kept]| turns.iter().map(|kept| kept.turn.requests_per_s).collect::<Vec<_>>();
    let base = contenders.iter().position(|(name, _)| *name == NOBODY).map(|place| speeds(&turns[place]));
    for ((name, _), turns) in contenders.iter().zip(&turns) {
        let speed = speeds(turns);
        let ratio =
            base.as_ref().map_or_else(String::new, |base| Summary::of_ratio(&speed, base).to_string());
        let column = |of: fn(&Kept) -> f64| Summary::of(&turns.iter().map(of).collect::<Vec<_>>());
        let (delivered, rest) = (column(|kept| kept.delivered), column(|kept| kept.rest_s));
        println!("| {name} | {:.0} | {ratio} | {delivered} | {rest} |", Summary::of(&speed).median);
    }
    Ok(())
}

/// A service whose handler pays and promises a charge, and does not wait for it.
async fn promising<S: Enqueue, T>(store: S, pool: T) -> Outcome<(Engine<S>, SocketAddr)>
where
    T: Transactions<Transaction: Transaction<Inner: Pay>>,
{
    let engine = Engine::start(store, EngineOptions::default()).await?;
    let routes = Routes::all(Profile::Ietf)?;
    let layer = AtomicIdempotency::new(engine.clone(), pool, scope::authorization(), routes);
    let handler = async |mut tx: Atomic<T>| match tx
        .enqueue("charge", &"payment pay_0123456789abcdef over 42.00 EUR")
    {
        Ok(_) => answer(tx.pay(STATEMENTS).await),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    };
    let address = serve(Router::new().route("/payments", post(handler)).layer(layer)).await?;
    Ok((engine, address))
}

/// Delivered so often.
#[derive(Clone, Default)]
struct Counted(Arc<AtomicUsize>);

impl Effect for Counted {
    fn deliver<'a>(&'a self, _: &'a Delivery<'a>) -> Delivering<'a> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Box::pin(std::future::ready(Sent::Delivered {
            reference: Some("ch_0123456789".into()),
            answer: None,
        }))
    }
}

fn keep<S: Jobs>(
    runtime: &Arc<Runtime>,
    (engine, address): (Engine<S>, SocketAddr),
    is_delivered: bool,
) -> Box<dyn FnMut() -> Outcome<Kept>> {
    let (runtime, counted) = (Arc::clone(runtime), Counted::default());
    let effects = Effects::new().with("charge", counted.clone());
    let outbox = is_delivered.then(|| engine.start_outbox(&effects, &OutboxOptions::default()));
    Box::new(move || {
        let requests = Options::requests_per_turn(CONNECTIONS) / 2;
        let before = counted.0.load(Ordering::Relaxed);
        let turn = Load { address, kind: Kind::Fresh, connections: CONNECTIONS, requests }.run()?;
        let (ended, delivered) = (Instant::now(), counted.0.load(Ordering::Relaxed) - before);
        if outbox.is_some() {
            runtime.block_on(until_marked(&engine))?;
        }
        #[expect(clippy::cast_precision_loss, reason = "counts of one turn are far below 2^52")]
        let delivered = delivered as f64 / requests as f64;
        Ok(Kept { turn, delivered, rest_s: ended.elapsed().as_secs_f64() })
    })
}
