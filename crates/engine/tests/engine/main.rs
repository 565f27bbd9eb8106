//! The engine over real stores: races, faults at every step, and the attacks that need more than pure rules.

#![expect(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod abandoned;
mod breaker;
mod cache;
mod forgetting;
mod former;
mod group_commit;
mod hanging;
mod late_holder;
mod lease;
mod misuse;
mod once;
mod quarantine;
mod queue;
mod races;
mod rejected_writes;
mod renewal;
mod reserve_faults;
mod restored;
mod settle_faults;
mod tokens;
mod two_nodes;
mod waiting;
mod world;
