//! Operations in phases over a SQLite file and a pool of the service's own: every effect is a row that can be counted.

#![expect(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod changed;
mod completer;
mod fencing;
mod foreign;
mod handing_back;
mod renewing;
mod restored;
mod ride;
#[expect(dead_code, reason = "shared with the other tests, which use all of it")]
#[path = "../outbox/stores.rs"]
mod stores;
mod strangers;
#[expect(dead_code, reason = "shared with the other tests, which use all of it")]
#[path = "../engine/world.rs"]
mod world;
