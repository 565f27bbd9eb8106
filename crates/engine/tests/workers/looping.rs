//! One loop for all workers: nothing ends it but its own drop.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use oncegate_core::record::{Record, StateKind};
use oncegate_engine::{Asking, NoProbe, Options, Patience, Probe, Worker, WorkerOptions};
use oncegate_store::faulty::Fault;

use crate::crew::{Script, doubted, found, node};
use crate::world::{HOUR, completed, held, ietf, route, soon, start, state};

const TICK: Duration = Duration::from_millis(1);

fn ticking() -> WorkerOptions {
    WorkerOptions {
        sweep_every: TICK,
        reap_every: TICK,
        reconcile_every: TICK,
        apart_every: TICK,
        watch_every: TICK,
        ..WorkerOptions::default()
    }
}

/// Reads, scans and writes fail for a while; then all is done that was left undone.
#[tokio::test]
async fn a_store_that_fails_ends_no_worker() {
    let (engine, store, hand) = node().await;
    let route = route(|policy| policy.retention = HOUR);
    completed(&engine, &route, "old", "paid").await;
    let holder = held(&engine, &route, "lapsed").await;
    hand.turn(2 * HOUR);
    // Dead until it is revived: it takes a write to kill it.
    store.queue(Fault::CrashBefore);
    let probe = Arc::new(Script::finding([found(201)]));
    let mut workers = engine.start_workers(&ticking(), &(Arc::clone(&probe) as _));
    for worker in Worker::ALL {
        soon(workers.until_passes(worker, 6)).await;
    }
    assert_eq!(probe.questions(), 0);
    store.revive();
    soon(probe.until_asked(1)).await;
    for worker in Worker::ALL {
        let passes = workers.passes(worker);
        soon(workers.until_passes(worker, passes + 2)).await;
    }
    assert_eq!(state(&engine, holder.id()).await, StateKind::Completed);
    assert!(engine.read(crate::world::id(&route, "old")).await.unwrap().is_none());
}

/// Panics where no question can be excused for it.
struct Rude(AtomicUsize);

impl Probe for Rude {
    fn ask<'a>(&'a self, _record: &'a Record) -> Asking<'a> {
        Box::pin(std::future::ready(found(201)))
    }

    fn patience(&self, _record: &Record) -> Patience {
        let asked = self.0.fetch_add(1, Ordering::SeqCst);
        assert!(asked >= 5, "as the test asked for");
        Patience::default()
    }
}

#[tokio::test]
async fn a_panic_ends_no_worker() {
    let (engine, _, _) = node().await;
    let id = doubted(&engine, &ietf(), "k").await;
    let rude = Arc::new(Rude(AtomicUsize::new(0)));
    let mut workers = engine.start_workers(&ticking(), &(Arc::clone(&rude) as _));
    soon(async {
        while state(&engine, id).await != StateKind::Completed {
            let passes = workers.passes(Worker::Reconciler);
            workers.until_passes(Worker::Reconciler, passes + 1).await;
        }
    })
    .await;
    assert!(rude.0.load(Ordering::SeqCst) > 5, "five panics, and then a question");
}

/// The store panics in the writer's hands: the pass fails, and the next one does its work.
#[tokio::test]
async fn a_store_that_panics_ends_no_worker() {
    let (engine, store, hand) = node().await;
    let route = ietf();
    let holder = held(&engine, &route, "k").await;
    hand.turn(HOUR);
    store.queue(Fault::Panics);
    let probe = Arc::new(Script::finding([found(201)]));
    let _workers = engine.start_workers(&ticking(), &(Arc::clone(&probe) as _));
    soon(probe.until_asked(1)).await;
    assert_ne!(state(&engine, holder.id()).await, StateKind::InProgress);
}

#[tokio::test]
async fn dropped_workers_end() {
    let (engine, _, _) = node().await;
    let probe: Arc<dyn Probe> = Arc::new(NoProbe);
    let mut workers = engine.start_workers(&ticking(), &probe);
    soon(workers.until_passes(Worker::Sweeper, 2)).await;
    assert_eq!(Arc::strong_count(&probe), 1 + Worker::ALL.len());
    drop(workers);
    // Each of them lets go of the probe when its task has ended.
    soon(async {
        while Arc::strong_count(&probe) > 1 {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

/// Who waits for passes of workers that have ended is not left waiting.
#[tokio::test]
async fn passes_are_counted_for_each_worker() {
    let (engine, _, _) = node().await;
    let options = WorkerOptions { sweep_every: HOUR, ..ticking() };
    let mut workers = engine.start_workers(&options, &(Arc::new(NoProbe) as _));
    soon(workers.until_passes(Worker::Watcher, 3)).await;
    soon(workers.until_passes(Worker::Sweeper, 1)).await;
    assert_eq!(workers.passes(Worker::Sweeper), 1);
    assert!(workers.passes(Worker::Watcher) >= 3);
}

/// The moments of the passes, on tokio's own clock: nothing here waits for a thread. Between two of them lies the pause, or half of it,
/// or anything in between.
#[tokio::test(start_paused = true)]
async fn passes_come_within_their_interval_and_not_in_step() {
    let hand = crate::world::Hand::new();
    let engine = start(crate::world::shaky_on(&hand), Options::default()).await;
    let every = Duration::from_secs(10);
    let options = WorkerOptions { sweep_every: every, ..WorkerOptions::default() };
    let mut workers = engine.start_workers(&options, &(Arc::new(NoProbe) as _));
    let began = tokio::time::Instant::now();
    workers.until_passes(Worker::Sweeper, 1).await;
    assert!(began.elapsed() < Duration::from_secs(1), "the first one at once");
    let mut pauses = Vec::new();
    for pass in 2..60 {
        let last = tokio::time::Instant::now();
        workers.until_passes(Worker::Sweeper, pass).await;
        pauses.push(last.elapsed());
    }
    // Timers are exact to a millisecond, rounded up.
    let within = every / 2..=every + Duration::from_millis(2);
    assert!(pauses.iter().all(|pause| within.contains(pause)), "{pauses:?}");
    pauses.sort();
    pauses.dedup();
    assert!(pauses.len() > 30, "{pauses:?}");
}

/// After a failure the next pass comes sooner than the interval, and then later and later, up to it.
#[tokio::test(start_paused = true)]
async fn a_failed_pass_is_followed_soon_and_then_later_and_later() {
    let hand = crate::world::Hand::new();
    let store = crate::world::shaky_on(&hand);
    let engine = start(store.clone(), Options::default()).await;
    store.fail_reads(usize::MAX);
    let options = WorkerOptions { sweep_every: Duration::from_secs(10), ..WorkerOptions::default() };
    let mut workers = engine.start_workers(&options, &(Arc::new(NoProbe) as _));
    workers.until_passes(Worker::Sweeper, 1).await;
    for (pass, pause_ms) in (2..).zip([200, 400, 800, 1_600, 3_200, 6_400, 10_000, 10_000]) {
        let last = tokio::time::Instant::now();
        workers.until_passes(Worker::Sweeper, pass).await;
        let pause = Duration::from_millis(pause_ms);
        let within = pause / 2..=pause + Duration::from_millis(2);
        assert!(within.contains(&last.elapsed()), "pass {pass}: {:?}", last.elapsed());
    }
}
