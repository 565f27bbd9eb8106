//! `oncegate compare`: every kind of difference, every bad input, both formats, both sources, and a bound on memory.

#![expect(
    clippy::panic,
    clippy::unwrap_used,
    reason = "helpers of tests: what cannot be done should stop the test"
)]

mod amounts;
mod bad_input;
mod deployed;
#[path = "../commands/desk.rs"]
mod desk;
mod differences;
#[path = "../payments/gateway.rs"]
mod gateway;
mod ledger;
mod matching;
mod memory;
mod output;
mod recorded;
#[path = "../commands/running.rs"]
mod running;
mod sources;
mod times;
