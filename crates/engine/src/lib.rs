#![doc = include_str!("../README.md")]
//!
//! # One job, once
//!
//! ```
//! use oncegate_engine::{Engine, Options};
//! use oncegate_store::memory::MemoryStore;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let engine = Engine::start(MemoryStore::new(), Options::default()).await?;
//! let invoice = serde_json::json!({ "order": 17, "amount": 100 });
//! for _ in 0..3 {
//!     let job = || async { Ok("sent as 2026-0042".to_owned()) };
//!     let sent = engine.once("billing", "invoice-17", &invoice, job).await?;
//!     assert_eq!(sent.value, "sent as 2026-0042");
//! }
//! # Ok(())
//! # }
//! ```

mod after_expiry;
mod arrive;
mod atomic;
mod breaker;
mod cache;
mod cancel;
mod clean_up;
mod clock;
mod drive;
mod engine;
mod held;
mod herald;
mod history;
mod meters;
mod once;
mod operate;
mod options;
mod outbox;
pub mod phases;
mod probe;
mod reuse;
mod route;
mod settle;
mod token;
mod wait;
mod workers;
mod writer;

pub use arrive::{Arrived, Asked, Unavailable};
pub use atomic::{ArrivedIn, EndedIn, InTransaction};
pub use cancel::Cancelled;
pub use clock::{ClockSteps, NodeClock};
pub use engine::{Engine, StartError, Stats};
pub use held::{Held, LeaseEnded, SendPermit};
pub use history::ReleasedQuarantine;
pub use meters::{count_refusal, names};
pub use once::{JobError, Once, OnceError, Runner};
pub use operate::{Act, Operator, Told};
pub use options::{BackgroundWorkers, NoRandomness, Options, REMOVED_KEYS_MAX, Randomness, Shared};
pub use outbox::{Delivering, Delivery, Effect, Effects, OUTAGE, Outbox, OutboxOptions, Sent};
pub use probe::{Asking, Found, NoProbe, OnlyOf, Patience, Probe};
pub use reuse::KeyReuse;
pub use route::{FormerAddress, FormerRecords, ReadBy, RequestIdentity, Route};
pub use settle::{Settled, Settlement, StillSettling};
pub use workers::{
    About, Finisher, Finishing, Heard, Left, Life, Message, Pass, Runs, Says, Worker, WorkerOptions, Workers,
};
