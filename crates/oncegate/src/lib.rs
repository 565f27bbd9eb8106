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

mod any;
mod open;

/// The client that asks again, and says whether an operation did, did not or may have happened.
#[cfg(feature = "client")]
pub use oncegate_client as client;

pub use any::AnyStore;
pub use open::{OpenError, open, open_existing};

pub use oncegate_core::policy::{self, Policy, Profile};
pub use oncegate_core::scope::{Address, Operation, Scope};
pub use oncegate_core::{classify, decide, fingerprint, identity, key, problem, record, response, time};
pub use oncegate_engine::{
    Arrived, Engine, Held, JobError, LeaseEnded, NodeClock, Once, OnceError, Options, Route, Runner,
    SendPermit, Settled, Settlement, StartError, Stats, StillSettling, Unavailable, names,
};
pub use oncegate_engine::{Delivering, Delivery, Effect, Effects, Outbox, OutboxOptions, Patience, Sent};
pub use oncegate_store::{Store, StoreError, jobs, join};
#[cfg(feature = "sqlx-postgres")]
pub use oncegate_store_sql::sqlx::PgTransactions;
#[cfg(feature = "sqlx-sqlite")]
pub use oncegate_store_sql::sqlx::SqliteTransactions;
#[cfg(feature = "postgres")]
pub use oncegate_store_sql::{PostgresOptions, PostgresStore};
#[cfg(feature = "sqlite")]
pub use oncegate_store_sql::{SqliteOptions, SqliteStore};
#[cfg(feature = "tower")]
pub use oncegate_tower::{
    Atomic, AtomicIdempotency, Attempt, Failed, Idempotency, Named, NotAtomic, OriginalAddress, Promise,
    RouteError, Routes, scope,
};
