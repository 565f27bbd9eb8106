//! `Engine::start` alone runs the sweeper and the reaper; options outside their range are refused.

use std::sync::Arc;
use std::time::Duration;

use oncegate_core::duration::DURATION_MAX;
use oncegate_core::record::StateKind;
use oncegate_core::time::Timestamp;
use oncegate_engine::{
    BackgroundWorkers, Engine, Options, OutboxOptions, Patience, StartError, WorkerOptions,
};
use oncegate_store::clock::Clock;
use oncegate_store::memory::MemoryStore;
use oncegate_test_servers::until;

use crate::crew::node;
use crate::world::{HOUR, completed, held, id, route, state};

/// The README's snippet and three examples start an engine and no workers. Their expired rows stayed in
/// the store for ever, and a lease whose process had died stayed `in_progress` for ever. `Engine::start`
/// alone now runs the sweeper and the reaper.
#[tokio::test]
async fn an_engine_that_was_only_started_reaps_expired_rows_and_ends_lapsed_leases() {
    let (before, store, hand) = node().await;
    let hourly = route(|policy| policy.retention = HOUR);
    completed(&before, &hourly, "expired", "paid").await;
    let mut lapsed = held(&before, &hourly, "lapsed").await;
    lapsed.begin().unwrap();
    // Its process dies.
    std::mem::forget(lapsed);
    hand.turn(2 * HOUR);
    let engine = Engine::start(store, Options::default()).await.unwrap();
    until("the expired row is removed", async || {
        engine.read(id(&hourly, "expired")).await.unwrap().is_none()
    })
    .await;
    until("the lapsed lease is unknown", async || {
        state(&engine, id(&hourly, "lapsed")).await == StateKind::Unknown
    })
    .await;
}

/// An engine's last handle is dropped: its workers hold none, so its store is closed.
#[tokio::test]
async fn default_workers_do_not_keep_the_engine_alive() {
    let open = Arc::new(Timestamp::from_micros(1_800_000_000_000_000));
    let clock = Arc::clone(&open);
    let store = MemoryStore::with_clock(Clock::from_fn(move || *clock));
    let quick = WorkerOptions {
        sweep_every: Duration::from_millis(1),
        reap_every: Duration::from_millis(1),
        ..WorkerOptions::default()
    };
    let options = Options { workers: BackgroundWorkers::Default(quick), ..Options::default() };
    let engine = Engine::start(store, options).await.unwrap();
    assert!(Arc::strong_count(&open) > 1);
    drop(engine);
    until("the store is closed", async || Arc::strong_count(&open) == 1).await;
}

#[tokio::test]
async fn durations_outside_their_range_are_refused_when_an_engine_starts() {
    let too_long = DURATION_MAX + Duration::from_secs(1);
    let workers = |workers| Options { workers: BackgroundWorkers::Default(workers), ..Options::default() };
    for (options, words) in [
        (
            Options { cache_age_max: too_long, ..Options::default() },
            "invalid option: `cache_age_max` is 3155760001s; it must be at most 3155760000s (100 years)",
        ),
        (
            Options { store_timeout: Duration::ZERO, ..Options::default() },
            "invalid option: `store_timeout` is 0s; it must be greater than zero",
        ),
        (
            workers(WorkerOptions { reap_every: Duration::MAX, ..WorkerOptions::default() }),
            "invalid option: `reap_every` is 18446744073709551615s; it must be at most 3155760000s (100 years)",
        ),
    ] {
        let refused = Engine::start(MemoryStore::new(), options).await.unwrap_err();
        assert!(matches!(refused, StartError::Options(_)));
        assert_eq!(refused.to_string(), words);
    }
    let outbox = OutboxOptions { retention: Duration::MAX, ..OutboxOptions::default() };
    assert_eq!(outbox.check().unwrap_err().field, "retention");
    let patience = Patience { backoff_max: Duration::MAX, ..Patience::default() };
    assert_eq!(patience.check().unwrap_err().field, "backoff_max");
}
