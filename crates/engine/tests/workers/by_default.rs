//! `Engine::start` alone runs the sweeper and the reaper; options outside their range are refused.

use std::sync::{Arc, Mutex};
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
use tracing::field::{Field, Visit};
use tracing::{Event, Metadata, Subscriber, span};

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

/// Keeps the messages of all log events.
#[derive(Clone, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    pub(crate) fn with(&self, words: &str) -> usize {
        self.0.lock().unwrap().iter().filter(|line| line.contains(words)).count()
    }
}

impl Visit for Log {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        if field.name() == "message" {
            self.0.lock().unwrap().push(format!("{value:?}"));
        }
    }
}

impl Subscriber for Log {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }
    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }
    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn event(&self, event: &Event<'_>) {
        event.record(&mut self.clone());
    }
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

/// A service that starts an engine alone learns which workers it lacks, and how to start them.
#[tokio::test]
async fn what_is_not_running_is_logged_once_at_start() {
    let log = Log::default();
    let _here = tracing::subscriber::set_default(log.clone());
    let engine = Engine::start(MemoryStore::new(), Options::default()).await.unwrap();
    let told = "started background workers: sweeper, reaper; not started: reconciler";
    assert_eq!(log.with(told), 1);
    // By its own wish it has none, and is told nothing.
    let alone = Options { workers: BackgroundWorkers::None, ..Options::default() };
    let other = Engine::start(MemoryStore::new(), alone).await.unwrap();
    assert_eq!(log.with(told), 1);
    drop((engine, other));
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
