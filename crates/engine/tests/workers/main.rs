//! The workers over real stores: what goes on without any request, and what others say of an attempt.

#![expect(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod by_default;
mod clock_steps;
mod contended;
mod crew;
mod deferred;
mod executions;
mod failing;
mod fairness;
mod looping;
mod messages;
mod operators;
mod reaper;
mod reconciler;
mod strangers;
mod sweeper;
#[expect(dead_code, reason = "shared with the other tests, which use all of it")]
#[path = "../engine/world.rs"]
mod world;
