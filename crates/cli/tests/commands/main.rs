//! Every command, as an operator runs it: stdout, stderr and exit code, for good and for bad input.
//!
//! `check` and `fingerprint` have files of their own.

#![expect(
    clippy::panic,
    clippy::unwrap_used,
    reason = "helpers of tests: what cannot be done should stop the test"
)]

mod acts;
mod audit;
mod completions;
mod dead;
mod desk;
#[path = "../payments/gateway.rs"]
mod gateway;
mod help;
mod list;
mod migrate;
mod quarantine;
mod records;
mod running;
mod show;
mod sources;
mod stats;
mod store;
mod stories;
mod terminal;
