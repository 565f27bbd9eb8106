#![doc = include_str!("../README.md")]
//!
//! ```
//! use axum::{Router, routing::post};
//! use oncegate_core::policy::Profile;
//! use oncegate_engine::{Engine, Options};
//! use oncegate_store::memory::MemoryStore;
//! use oncegate_tower::{Idempotency, Routes, scope};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let engine = Engine::start(MemoryStore::new(), Options::default()).await?;
//! let idempotency = Idempotency::new(engine, scope::authorization(), Routes::all(Profile::Ietf)?);
//! let app: Router = Router::new().route("/payments", post(|| async { "charged" })).layer(idempotency);
//! # Ok(())
//! # }
//! ```

mod answer;
mod atomic;
mod attempt;
mod authorize;
mod body;
mod classify;
mod complete;
pub mod described;
mod execute;
mod fingerprint;
pub mod headers;
mod key;
mod layer;
mod limit;
mod operations;
pub mod phased;
mod prefer;
mod read;
mod refusals;
mod reuse;
mod route;
pub mod scope;
mod sent_at;
mod service;
mod settle;
mod stored;

pub use answer::refusal;
pub use atomic::{Atomic, AtomicIdempotency, AtomicService, NotAtomic, Promise};
pub use attempt::{Attempt, Failed};
pub use authorize::{Authorize, Checking, Denied};
pub use body::{BoxError, RequestBody, ResponseBody};
pub use complete::NoBody;
pub use fingerprint::TargetHost;
pub use layer::Idempotency;
pub use limit::RequestLimit;
pub use read::{RefusedBody, is_malformed, leave};
pub use refusals::{Refusal, count_refusal};
pub use reuse::Peer;
pub use route::{Named, OriginalAddress, RouteError, Routes};
pub use service::Idempotent;
pub use stored::AlsoKept;
