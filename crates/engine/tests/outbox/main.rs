//! The outbox over real stores: what was promised is done, once where the provider dedupes, and nobody holds up anybody else.
//!
//! A worker that is killed is in the tests of nodes, which have processes of their own.

#![expect(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod answering;
mod claims;
mod delivering;
mod provider;
mod stores;
#[expect(dead_code, reason = "shared with the other tests, which use all of it")]
#[path = "../engine/world.rs"]
mod world;
