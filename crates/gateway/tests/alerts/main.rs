//! The alerts that are shipped: each fires when its condition is produced in a real engine or gateway and scraped by a real
//! Prometheus, and none does while all is well.
//!
//! A rule waits for minutes; here every duration in the file is shortened by one factor (`hurried.rs`), and nothing else is changed.
//! What happens at the true durations, at the edges of a rule, is in `edges.yml`, run by `promtool`.

#![expect(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod by_gateway;
mod by_outbox;
mod by_requests;
mod by_workers;
mod healthy;
mod hurried;
mod pages;
mod watched;

#[expect(dead_code, reason = "shared with the gateway's tests, which use all of it")]
#[path = "../gateway/client.rs"]
mod client;
#[expect(dead_code, reason = "shared with the gateway's tests, which use all of it")]
#[path = "../gateway/reply.rs"]
mod reply;
#[expect(dead_code, reason = "shared with the gateway's tests, which use all of it")]
#[path = "../gateway/upstream.rs"]
mod upstream;
#[path = "../gateway/wire.rs"]
mod wire;
#[expect(dead_code, reason = "shared with the engine's tests, which use all of it")]
#[path = "../../../engine/tests/engine/world.rs"]
mod world;
