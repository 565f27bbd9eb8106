#![doc = include_str!("../README.md")]
// Test support speaks by panicking, as tests do.
#![expect(
    clippy::expect_used,
    clippy::panic,
    reason = "a server that cannot be had must fail the test; each message says what to do"
)]
#![expect(clippy::missing_panics_doc, reason = "everything here panics when the machine does not play along")]

mod certificate;
mod database;
mod fake_clock;
mod pgbouncer;
mod place;
mod postgres;
mod process;
pub mod programs;
pub mod prometheus;
mod proxy;
mod redis;
mod redis_clock;
pub mod shared;
mod wait;

pub use certificate::Certificate;
pub use database::Database;
pub use fake_clock::FakeClock;
pub use pgbouncer::PgBouncer;
pub use place::{DIRECTORY, choose_directory, end_leftovers};
pub use postgres::{Postgres, Replication};
pub use prometheus::Prometheus;
pub use proxy::{Cut, TcpProxy};
pub use redis::Redis;
pub use redis_clock::RedisClock;
pub use wait::{until, until_some, wait_until};
