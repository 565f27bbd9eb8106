#![doc = include_str!("../README.md")]
//!
//! # A service
//!
//! ```
//! use axum::{Router, routing::post};
//! use oncegate::{Engine, Idempotency, Options, Profile, Routes, open, scope};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // `sqlite://payments.db` for one that survives.
//! let engine = Engine::start(open("memory:").await?, Options::default()).await?;
//! let idempotency = Idempotency::new(engine, scope::authorization(), Routes::all(Profile::Ietf)?);
//! let app: Router = Router::new().route("/payments", post(|| async { "charged" })).layer(idempotency);
//! # Ok(())
//! # }
//! ```
//!
//! # A job
//!
//! ```
//! use oncegate::{Engine, JobError, Options, open};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let engine = Engine::start(open("memory:").await?, Options::default()).await?;
//! let message = serde_json::json!({ "invoice": 17 });
//! let sent = engine.once("mailer", "message-17", &message, || async { Ok::<_, JobError>(1_u32) }).await?;
//! let again = engine.once("mailer", "message-17", &message, || async { Ok::<_, JobError>(2_u32) }).await?;
//! assert_eq!((sent.value, again.value, again.replayed), (1, 1, true));
//! # Ok(())
//! # }
//! ```
//!
//! # Work that is accepted now, and run later
//!
//! ```
//! use std::sync::Arc;
//!
//! use axum::{Router, routing::post};
//! use oncegate::{Engine, Idempotency, NoProbe, Options, Probe, Profile, Routes, WorkerOptions, open, scope};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let engine = Engine::start(open("memory:").await?, Options::default()).await?;
//! let tenant = scope::authorization();
//! let inner: Router = Router::new().route("/reports", post(|| async { "written" }));
//! let routes = Routes::none().route("POST /reports", Profile::Accepted)?;
//! let idempotency = Idempotency::new(engine, tenant, routes).serve_operations_at("/operations/"); // else at /.oncegate/operations/
//! let probe: Arc<dyn Probe> = Arc::new(NoProbe); // or somebody who can be asked what became of a report
//! let workers = idempotency.start_workers(inner.clone(), &WorkerOptions::default(), &probe);
//! let app: Router = inner.layer(idempotency);
//! # Ok(())
//! # }
//! ```
//!
//! # An operation in phases
//!
//! ```
//! use std::sync::Arc;
//!
//! use axum::{Router, routing::post};
//! use oncegate::phased::{DownstreamKey, Phased, Retry, Stopped};
//! use oncegate::{Engine, Idempotency, NoProbe, Options, Probe, Profile, Routes, WorkerOptions, scope};
//! use oncegate::{SqliteStore, SqliteTransactions};
//!
//! async fn ride(Phased(mut run): Phased<SqliteTransactions>) -> Result<String, Stopped> {
//!     let insert = "INSERT INTO ride DEFAULT VALUES RETURNING rowid";
//!     let ride: i64 = run.atomic("created", async |tx| Ok(sqlx::query_scalar(insert).fetch_one(tx).await?)).await?;
//!     let charge = run.foreign("charged", Retry, async |key: DownstreamKey| Ok(format!("charged under {key}"))).await?;
//!     Ok(run.finish(format!("ride {ride}: {charge}"))?)
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let file = folder.path().join("rides.db");
//! let engine = Engine::start(SqliteStore::open(&file)?, Options::default()).await?;
//! // A pool of the service's own, on the same file.
//! let pool = sqlx::SqlitePool::connect(&format!("sqlite://{}", file.display())).await?;
//! let routes = Routes::none().phased("POST /rides", Profile::Resume)?;
//! let idempotency = Idempotency::new(engine, scope::authorization(), routes).phases(SqliteTransactions(pool));
//! let inner: Router = Router::new().route("/rides", post(ride));
//! // Go on with what clients have left, and find out what became of what was left in the middle.
//! let probe: Arc<dyn Probe> = Arc::new(NoProbe);
//! let workers = idempotency.start_workers(inner.clone(), &WorkerOptions::default(), &probe);
//! let app: Router = inner.layer(idempotency);
//! # Ok(())
//! # }
//! ```

mod any;
mod open;

/// The client that asks again, and says whether an operation did, did not or may have happened.
#[cfg(feature = "client")]
pub use oncegate_client as client;

pub use any::AnyStore;
pub use open::{OpenError, is_exposed, open, open_existing, warnings_of};

pub use oncegate_core::policy::{self, Policy, Profile};
pub use oncegate_core::scope::{Address, Operation, Scope};
pub use oncegate_core::{
    classify, decide, duration, fingerprint, identity, key, problem, record, response, time,
};
pub use oncegate_engine::{
    Arrived, Engine, Held, JobError, LeaseEnded, NodeClock, Once, OnceError, Options, Route, Runner,
    SendPermit, Settled, Settlement, StartError, Stats, StillSettling, Unavailable, names,
};
pub use oncegate_engine::{BackgroundWorkers, NoProbe, OnlyOf, Probe, Worker, WorkerOptions, Workers};
pub use oncegate_engine::{Delivering, Delivery, Effect, Effects, Outbox, OutboxOptions, Patience, Sent};
/// The contract of stores, and the words of errors: for whoever joins transactions of another library, see [`join`].
pub use oncegate_store as store;
pub use oncegate_store::{Store, StoreError, jobs, join};
#[cfg(feature = "postgres")]
pub use oncegate_store_sql::postgres::is_of_the_statement;
#[cfg(feature = "sqlx-postgres")]
pub use oncegate_store_sql::sqlx::{PgDedicated, PgTransactions};
#[cfg(feature = "sqlx-sqlite")]
pub use oncegate_store_sql::sqlx::{SqliteDedicated, SqliteTransactions};
#[cfg(feature = "postgres")]
pub use oncegate_store_sql::{PostgresOptions, PostgresStore};
#[cfg(feature = "sqlite")]
pub use oncegate_store_sql::{SqliteOptions, SqliteStore};
#[cfg(feature = "tower")]
pub use oncegate_tower::{
    Atomic, AtomicIdempotency, Attempt, Failed, Idempotency, Named, NotAtomic, OriginalAddress, Promise,
    RouteError, Routes, phased, scope,
};
