//! The service killed with SIGKILL at random instants of a three-phase operation, over SQLite and over PostgreSQL; afterwards the client
//! comes back, or nobody does and the completer goes on. Then everything is counted, beside the service: rides and receipts in its
//! database, charges in the provider's ledger.
//!
//! Most instants are drawn, not waited for: a kill may come before, in, between and after any phase. Some are not: the service is killed
//! while it waits for a provider that has charged and does not say so, and for one that has not. So what each recovery is for has
//! happened, however the dice fall, and each test says so.

#![expect(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod service;
mod town;

use oncegate_test_servers::Database;
use service::Recovery;
use town::Town;

/// How many kills the tests of one database share.
const KILLS: &str = "ONCEGATE_TEST_KILLS";

/// Most where the provider dedupes; of the others each a tenth.
fn kills(recovery: Recovery) -> usize {
    let all: usize = std::env::var(KILLS).map_or(100, |kills| kills.parse().unwrap());
    match recovery {
        Recovery::Retry => all - 2 * (all / 10),
        Recovery::Probe | Recovery::Park => all / 10,
    }
}

/// Where the provider dedupes: every effect exactly once, and everybody gets the answer.
async fn exactly_once(database: Database) {
    let mut town = Town::new(database, Recovery::Retry).await;
    town.kill(kills(Recovery::Retry)).await;
    town.settle().await;
    let count = town.count().await;
    assert_eq!((count.unanswered, count.charges), (0, count.keys), "every key was charged once: {count:?}");
    assert!(count.cut > 0 && count.in_charge >= 2, "the kills came in the middle of work: {count:?}");
    // Two of three do.
    assert!(count.at_random > kills(Recovery::Retry) / 20, "also those at random: {count:?}");
    assert_eq!(count.asked, 0, "nobody was asked: {count:?}");
}

/// Where it does not, and is asked: the same.
async fn found_out(database: Database) {
    let mut town = Town::new(database, Recovery::Probe).await;
    town.kill(kills(Recovery::Probe)).await;
    town.settle().await;
    let count = town.count().await;
    assert_eq!((count.unanswered, count.charges), (0, count.keys), "every key was charged once: {count:?}");
    assert!(count.cut > 0 && count.in_charge >= 2, "the kills came in the middle of charges: {count:?}");
    assert!(count.asked >= count.in_charge, "of each of those the provider was asked: {count:?}");
}

/// Where it does not, and cannot be asked: at most once, and what nobody knows is before an operator.
async fn at_most_once(database: Database) {
    let mut town = Town::new(database, Recovery::Park).await;
    town.kill(kills(Recovery::Park)).await;
    town.settle().await;
    let count = town.count().await;
    assert_eq!(count.unanswered, count.parked, "whoever gets no answer is before an operator: {count:?}");
    assert!(count.charges >= count.keys - count.parked && count.charges < count.keys, "{count:?}");
    assert!(count.cut > 0 && count.in_charge >= 2, "the kills came in the middle of charges: {count:?}");
    assert!(count.parked >= count.in_charge, "each of those is before an operator: {count:?}");
    assert_eq!(count.left, count.in_charge, "and none of them has an answer: {count:?}");
    assert_eq!(count.asked, 0, "nobody could be asked: {count:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn kill_9_over_sqlite_every_phase_takes_effect_once_where_the_provider_dedupes() {
    exactly_once(Database::sqlite()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn kill_9_over_postgres_every_phase_takes_effect_once_where_the_provider_dedupes() {
    exactly_once(Database::postgres()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn kill_9_over_sqlite_every_phase_takes_effect_once_where_the_provider_is_asked() {
    found_out(Database::sqlite()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn kill_9_over_postgres_every_phase_takes_effect_once_where_the_provider_is_asked() {
    found_out(Database::postgres()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn kill_9_over_sqlite_nothing_takes_effect_twice_where_nobody_can_be_asked() {
    at_most_once(Database::sqlite()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn kill_9_over_postgres_nothing_takes_effect_twice_where_nobody_can_be_asked() {
    at_most_once(Database::postgres()).await;
}
