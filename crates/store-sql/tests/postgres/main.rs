//! The PostgreSQL store against real servers: what its statements cost, what it says when a connection or a server is lost, who
//! may open it, and what it hears. The suite that every store passes is in `postgres_conformance.rs`.

#![expect(clippy::expect_used, clippy::panic, clippy::large_futures, reason = "tests")]

mod checks;
mod deadlocks;
mod doubt;
mod failover;
mod hot;
mod place;
mod pooled;
mod round_trips;
mod scans;
mod signals;
mod sound;
mod startup;
mod tls;
mod upgrade;
mod waiting;
