//! The gateway as an operator runs it: the real binary, killed, drained, restarted, reloaded, in front of servers that were not made
//! for it. What the upstream did is counted at the upstream, never by the gateway.

#![expect(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

#[path = "../../../tower/tests/layer/client.rs"]
#[expect(dead_code, reason = "the layer's tests need more of it")]
mod client;
#[path = "../../../tower/tests/layer/reply.rs"]
#[expect(dead_code, reason = "the layer's tests need more of it")]
mod reply;

mod admin;
mod process;
mod upstream;
mod world;

mod backlog;
mod crash;
mod languages;
mod memory;
mod operators;
mod reload;
mod secrets;
mod shutdown;
mod starting;
mod two_gateways;
