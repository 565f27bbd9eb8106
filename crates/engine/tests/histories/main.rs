//! Random histories of whole nodes over a real store: SQLite, PostgreSQL and Redis.
//!
//! Two nodes serve clients that retry until they know. Meanwhile the dice decide what goes wrong:
//! lost acknowledgements, late writes, writes that the database rejects, clocks that are stepped
//! forward and back, nodes that are killed, backups that are restored under running nodes, a
//! provider that is silent, late or away. The provider dedupes nothing and keeps a ledger, which
//! is the judge: no key has two effects, no client is told an outcome that the ledger does not
//! show, and nothing stays open. Keys that are held back after a restore are settled by an
//! operator who looks into the ledger.
//!
//! The seed is printed. `ONCEGATE_SEED=n` runs one history again.

#![expect(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod history;
mod node;
mod places;
mod provider;

use history::History;
use places::{InPostgres, InRedis, InSqlite, Place};

/// Each history has its own seed, chosen anew in every run.
const HISTORIES: u64 = 2;

fn histories<P: Place>() {
    let given = std::env::var("ONCEGATE_SEED").ok().map(|seed| seed.parse().unwrap());
    let seeds: Vec<u64> = match given {
        Some(seed) => vec![seed],
        None => (0..HISTORIES).map(|_| fresh_seed()).collect(),
    };
    for seed in seeds {
        println!("ONCEGATE_SEED={seed}");
        let summary = History::<P>::begin(seed).run();
        println!("{summary}");
    }
}

fn fresh_seed() -> u64 {
    let mut bytes = [0; 4];
    getrandom::fill(&mut bytes).unwrap();
    u64::from(u32::from_ne_bytes(bytes))
}

#[test]
fn no_history_on_sqlite_has_a_second_effect() {
    histories::<InSqlite>();
}

#[test]
fn no_history_on_postgres_has_a_second_effect() {
    histories::<InPostgres>();
}

#[test]
fn no_history_on_redis_has_a_second_effect() {
    histories::<InRedis>();
}
