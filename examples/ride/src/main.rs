//! A ride in three phases: created, charged for, and a receipt written. See the README.

mod book;
mod provider;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Extension, State};
use axum::http::StatusCode;
use axum::routing::post;
use axum::{Json, Router};
use clap::Parser;
use oncegate_core::policy::{Policy, Profile};
use oncegate_engine::{Engine, NoProbe, Options, WorkerOptions};
use oncegate_store::join::{Join, Transactions};
use oncegate_store_sql::sqlx::{PgTransactions, SqliteTransactions};
use oncegate_store_sql::{PostgresStore, SqliteStore};
use oncegate_tower::phased::{DownstreamKey, Park, Phased, Probe, Retry, Stopped};
use oncegate_tower::{Attempt, Idempotency, Routes, scope};
use serde::{Deserialize, Serialize};
use sqlx::postgres::{PgConnectOptions, PgPool};
use sqlx::sqlite::{SqliteConnectOptions, SqlitePool};

use book::{Book, InnerOf};
use provider::{Charged, Provider};

/// A service that goes on where it was interrupted.
#[derive(Debug, Parser)]
struct Arguments {
    /// sqlite://FILE or postgres://…
    #[arg(long)]
    database: String,
    /// The payment provider's host and port.
    #[arg(long)]
    provider: String,
    /// Where it listens.
    #[arg(long, default_value = "127.0.0.1:3000")]
    listen: SocketAddr,
    /// What is done about a charge that was begun and never heard of again.
    #[arg(long, value_enum, default_value = "retry")]
    recovery: Recovery,
    /// How long an attempt that has died keeps others out.
    #[arg(long, value_parser = humantime::parse_duration, default_value = "90s")]
    lease: Duration,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Recovery {
    Retry,
    Probe,
    Park,
}

/// What a client asks for.
#[derive(Clone, Debug, Deserialize)]
struct Order {
    to: String,
    amount: i64,
}

/// What it gets.
#[derive(Debug, Serialize)]
struct Receipt {
    ride: i64,
    to: String,
    charge: String,
    number: i64,
}

struct Town {
    provider: Provider,
    recovery: Recovery,
}

/// The whole operation. Whatever it does is in a phase; what is between them is done again by every attempt.
async fn ride<T>(
    State(town): State<Arc<Town>>,
    Extension(attempt): Extension<Attempt>,
    Phased(mut run): Phased<T>,
    Json(order): Json<Order>,
) -> Result<(StatusCode, Json<Receipt>), Stopped>
where
    T: Transactions,
    InnerOf<T>: Book,
{
    let key = attempt.key.as_str();
    let ride = run.atomic("ride_created", async |tx| tx.create_ride(key, &order.to).await).await?;

    let call = async |downstream: DownstreamKey| town.provider.charge(&downstream, key, order.amount).await;
    let charged = match town.recovery {
        Recovery::Retry => run.foreign("charge_created", Retry, call).await?,
        Recovery::Probe => {
            let ask = |downstream: DownstreamKey| {
                let provider = &town.provider;
                async move { provider.find(&downstream).await }
            };
            run.foreign("charge_created", Probe(ask), call).await?
        }
        Recovery::Park => run.foreign("charge_created", Park, call).await?,
    };
    let Charged { id: charge } = charged;

    let number = run.atomic("receipt_written", async |tx| tx.write_receipt(key, ride, &charge).await).await?;
    let answer = Receipt { ride, to: order.to, charge, number };
    Ok(run.finish((StatusCode::CREATED, Json(answer)))?)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    tracing_subscriber::fmt().with_writer(std::io::stderr).with_max_level(level()).init();
    let arguments = Arguments::parse();
    let Some(file) = arguments.database.strip_prefix("sqlite://").map(str::to_owned) else {
        // Not in the store's schema, which comes first where the database's user is called like it.
        let options = arguments.database.parse::<PgConnectOptions>()?.options([("search_path", "public")]);
        let pool = PgPool::connect_with(options).await?;
        sqlx::raw_sql(book::POSTGRES).execute(&pool).await?;
        let store = PostgresStore::open(&arguments.database).await?;
        return Box::pin(serve(store, PgTransactions(pool), arguments)).await;
    };
    let store = SqliteStore::open(&file)?;
    let pool = SqlitePool::connect_with(SqliteConnectOptions::new().filename(&file)).await?;
    sqlx::raw_sql(book::SQLITE).execute(&pool).await?;
    serve(store, SqliteTransactions(pool), arguments).await
}

/// `RUST_LOG`, as far as it is a level.
fn level() -> tracing_subscriber::filter::LevelFilter {
    std::env::var("RUST_LOG")
        .ok()
        .and_then(|level| level.parse().ok())
        .unwrap_or(tracing_subscriber::filter::LevelFilter::INFO)
}

async fn serve<S, T>(
    store: S,
    transactions: T,
    arguments: Arguments,
) -> Result<(), Box<dyn std::error::Error>>
where
    S: Join,
    T: Transactions,
    InnerOf<T>: Book,
{
    let policy = Policy {
        lease: arguments.lease,
        // The provider acts at once or never; only `probe` needs to know.
        horizon: Some(arguments.lease),
        ..Profile::Resume.policy()
    };
    let engine = Engine::start(store, Options::default()).await?;
    let routes = Routes::none().phased("POST /rides", policy)?;
    let idempotency = Idempotency::new(engine, scope::authorization(), routes).phases(transactions);

    let town = Town { provider: Provider { address: arguments.provider }, recovery: arguments.recovery };
    let inner = Router::new().route("/rides", post(ride::<T>)).with_state(Arc::new(town));
    // Rides that their client has left go on by themselves.
    let workers = WorkerOptions { complete_every: Duration::from_millis(200), ..WorkerOptions::default() };
    let _workers = idempotency.start_workers(inner.clone(), &workers, &(Arc::new(NoProbe) as _));

    let listener = tokio::net::TcpListener::bind(arguments.listen).await?;
    println!("listening on http://{}", listener.local_addr()?);
    Ok(axum::serve(listener, inner.layer(idempotency)).await?)
}
