//! Alerts about what goes on without any request.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use oncegate_core::audit::Comparison;
use oncegate_core::decide::Arrival;
use oncegate_core::record::{Execution, Record};
use oncegate_core::time::Timestamp;
use oncegate_engine::{
    About, Arrived, Asking, Engine, Found, Life, Message, NoProbe, Options, Patience, Probe, Route, Says,
    Worker, WorkerOptions,
};

use oncegate_store::Store as _;

use crate::watched::Counting;
use crate::world::{
    HOUR, Hand, Shaky, answer, completed, done, doubt, held, id, ietf, request, route, shaky, shaky_on, start,
};

/// All of them several times a scrape, by a clock that runs as fast as the rules.
pub(crate) fn quick() -> WorkerOptions {
    let often = Duration::from_millis(50);
    WorkerOptions {
        sweep_every: often,
        reap_every: often,
        reconcile_every: often,
        apart_every: often,
        watch_every: often,
        reap_grace: Duration::ZERO,
        ..WorkerOptions::default()
    }
}

/// A provider that can never say.
struct Clueless;

impl Probe for Clueless {
    fn ask<'a>(&'a self, _: &'a Record) -> Asking<'a> {
        Box::pin(std::future::ready(Found::NotKnown("it is down".into())))
    }

    fn patience(&self, _: &Record) -> Patience {
        Patience { park_after: u32::MAX, ..Patience::default() }
    }
}

fn clueless() -> Arc<dyn Probe> {
    Arc::new(Clueless)
}

/// A provider is down for longer than anybody should wait.
#[tokio::test(flavor = "multi_thread")]
async fn a_doubt_grows_old() {
    let counting = Counting::start().await;
    let hand = Hand::new();
    let engine = start(shaky_on(&hand), Options::default()).await;
    let route = ietf();
    done(held(&engine, &route, "k").await, doubt()).await;
    hand.turn(Duration::from_mins(20));
    let _workers = engine.start_workers(&quick(), &clueless());
    counting.watched().await.until_firing("OncegateUnknownOld", async || ()).await;
}

/// Accepts a request that no worker runs.
async fn accept(engine: &Engine<Shaky>, route: &Route, key: &str) {
    let arrival = Arrival { execution: Execution::Deferred, ..request(route, key) };
    let arrived = engine.arrive(route, arrival).await.unwrap();
    assert!(matches!(arrived, Arrived::Accepted { .. }), "{arrived:?}");
}

fn accepting() -> Route {
    route(|policy| policy.respond_async = true)
}

/// No completer runs what was accepted twenty minutes ago.
#[tokio::test(flavor = "multi_thread")]
async fn accepted_work_grows_old() {
    let counting = Counting::start().await;
    let hand = Hand::new();
    let engine = start(shaky_on(&hand), Options::default()).await;
    accept(&engine, &accepting(), "k").await;
    hand.turn(Duration::from_mins(20));
    let _workers = engine.start_workers(&quick(), &clueless());
    counting.watched().await.until_firing("OncegatePendingOld", async || ()).await;
}

/// More is accepted than run.
#[tokio::test(flavor = "multi_thread")]
async fn accepted_work_piles_up() {
    let counting = Counting::start().await;
    let engine = start(shaky(), Options::default()).await;
    let _workers = engine.start_workers(&quick(), &clueless());
    let mut watched = counting.watched().await;
    watched.until_found("oncegate_pending_waiting").await;
    let (route, mut keys) = (accepting(), 0..);
    watched
        .until_firing("OncegatePendingGrowing", async || {
            for key in keys.by_ref().take(100) {
                accept(&engine, &route, &format!("k-{key}")).await;
            }
        })
        .await;
}

/// A run of `oncegate compare` that ended so long ago.
pub(crate) async fn compared(engine: &Engine<Shaky>, hours_ago: u32, differences: u64) {
    let run = Comparison { name: "acme-pay".into(), charges: 120, records: 118, differences, unreadable: 0 };
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let at = Timestamp::from_micros(i64::try_from(now.as_micros()).unwrap()).minus(hours_ago * HOUR);
    engine.store().tell(&[run.entry(at, "command line")]).await.unwrap();
}

/// It ran every night, and not in the last one.
#[tokio::test(flavor = "multi_thread")]
async fn a_comparison_has_not_run() {
    let counting = Counting::start().await;
    let engine = start(shaky(), Options::default()).await;
    compared(&engine, 27, 0).await;
    let _workers = engine.start_workers(&quick(), &clueless());
    counting.watched().await.until_firing("OncegateCompareMissing", async || ()).await;
}

/// The last run found one; the run before it did not.
#[tokio::test(flavor = "multi_thread")]
async fn a_comparison_has_found_differences() {
    let counting = Counting::start().await;
    let engine = start(shaky(), Options::default()).await;
    compared(&engine, 25, 0).await;
    compared(&engine, 1, 1).await;
    let _workers = engine.start_workers(&quick(), &clueless());
    counting.watched().await.until_firing("OncegateCompareDifferences", async || ()).await;
}

/// A backup is restored under a running node.
#[tokio::test(flavor = "multi_thread")]
async fn the_store_is_restored() {
    let counting = Counting::start().await;
    let store = oncegate_store::memory::MemoryStore::new();
    let engine = start(store.clone(), Options::default()).await;
    let backup = store.backup();
    engine.check_history().await.unwrap();
    store.restore(&backup);
    engine.check_history().await.unwrap();
    counting.watched().await.until_firing("OncegateStoreRestored", async || ()).await;
}

/// There is nobody to ask about a doubt, and it is put before a person.
#[tokio::test(flavor = "multi_thread")]
async fn a_doubt_is_parked() {
    let counting = Counting::start().await;
    let hand = Hand::new();
    let engine = start(shaky_on(&hand), Options::default()).await;
    let route = ietf();
    done(held(&engine, &route, "k").await, doubt()).await;
    hand.turn(Duration::from_mins(1));
    let nobody: Arc<dyn Probe> = Arc::new(NoProbe);
    let _workers = engine.start_workers(&quick(), &nobody);
    counting.watched().await.until_firing("OncegateDeadLetters", async || ()).await;
}

/// The store answers no scan, and the workers go on trying.
#[tokio::test(flavor = "multi_thread")]
async fn passes_keep_failing() {
    let counting = Counting::start().await;
    let store = shaky();
    let engine = start(store.clone(), Options::default()).await;
    store.fail_reads(usize::MAX);
    let _workers = engine.start_workers(&quick(), &clueless());
    counting.watched().await.until_firing("OncegateWorkerErrors", async || ()).await;
}

/// The workers ran, and do so no more.
#[tokio::test(flavor = "multi_thread")]
async fn the_workers_have_ended() {
    let counting = Counting::start().await;
    let engine = start(shaky(), Options::default()).await;
    let workers = engine.start_workers(&quick(), &clueless());
    let mut watched = counting.watched().await;
    watched.until_found("rate(oncegate_worker_pass_count[2s])%3E0").await;
    drop(workers);
    watched.until_firing("OncegateWorkerStopped", async || ()).await;
}

/// An engine without workers.
#[tokio::test(flavor = "multi_thread")]
async fn nobody_starts_the_workers() {
    let counting = Counting::start().await;
    let engine = start(shaky(), Options::default()).await;
    completed(&engine, &ietf(), "k", "paid").await;
    counting.watched().await.until_firing("OncegateWorkersMissing", async || ()).await;
}

/// The reaper comes by so seldom that rows outlive their retention by two hours.
#[tokio::test(flavor = "multi_thread")]
async fn rows_outlive_their_retention() {
    let counting = Counting::start().await;
    let hand = Hand::new();
    let engine = start(shaky_on(&hand), Options::default()).await;
    let route = route(|policy| policy.retention = HOUR);
    let mut keys = 0..;
    counting
        .watched()
        .await
        .until_firing("OncegateReaperLag", async || {
            completed(&engine, &route, &format!("k-{}", keys.next().unwrap()), "paid").await;
            hand.turn(3 * HOUR);
            assert_eq!(engine.work(Worker::Reaper, &quick(), &Clueless).await.unwrap().changed, 1);
        })
        .await;
}

/// A provider tells of a charge under a key that never comes.
#[tokio::test(flavor = "multi_thread")]
async fn a_message_is_never_claimed() {
    let counting = Counting::start().await;
    let hand = Hand::new();
    let engine = start(shaky_on(&hand), Options::default()).await;
    let message = Message {
        name: "evt_1".into(),
        about: About::Record(id(&ietf(), "never-seen")),
        life: Life::Any,
        source: "webhook".into(),
        reference: None,
        says: Says::Happened(Arc::new(answer("charged"))),
    };
    let _ = engine.hear(&message, HOUR, &Clueless).await.unwrap();
    hand.turn(2 * HOUR);
    let _ = engine.work(Worker::Apart, &quick(), &Clueless).await.unwrap();
    counting.watched().await.until_firing("OncegateUnclaimedMessages", async || ()).await;
}

/// The clock of the machine is set while a node is running.
#[tokio::test(flavor = "multi_thread")]
async fn the_clock_is_set_back() {
    let counting = Counting::start().await;
    let store = shaky();
    let engine = start(store.clone(), Options::default()).await;
    let mut watched = counting.watched().await;
    watched.until_found("oncegate_clock_step_count%7Bdirection=%22back%22%7D==0").await;
    store.set_clock_off(-3_600);
    let _ = engine.now();
    watched.until_firing("OncegateClockStep", async || ()).await;
}
