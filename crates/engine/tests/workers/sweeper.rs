//! Lapsed leases become what their crash policy says, soon after their end and never before.

use std::time::Duration;

use oncegate_core::audit::Act;
use oncegate_core::decide::Arrival;
use oncegate_core::policy::Credentials;
use oncegate_core::record::{CrashPolicy, StateKind, StoredRequest};
use oncegate_engine::{NoProbe, Options, Pass, Route, Worker, WorkerOptions};
use oncegate_store::faulty::Fault;

use crate::crew::{acts, node, nodes, pass, story};
use crate::world::{HOUR, Hand, granted, held, id, ietf, request, route, shaky_on, soon, start, state};

const ERROR: Duration = Duration::from_secs(1);

/// The holder's clock and the sweeper's are each as far off as they may be. As long as the holder may still send, its lease is not swept;
/// and it is swept by the first pass after its end by every clock.
#[tokio::test]
async fn a_lease_is_swept_after_its_end_by_every_clock_and_not_before() {
    let clocks: [fn(&Hand) -> oncegate_engine::NodeClock; 2] =
        [|hand| hand.late(ERROR, ERROR), |hand| hand.early(ERROR, ERROR)];
    for (of_holder, of_sweeper) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        let hand = Hand::new();
        let store = shaky_on(&hand);
        let with = |clock: usize| Options { clock: Some(clocks[clock](&hand)), ..Options::default() };
        let holder = start(store.clone(), with(of_holder)).await;
        let sweeper = start(store.clone(), with(of_sweeper)).await;
        let route = ietf();
        let held = held(&holder, &route, "k").await;
        let began = hand.now();
        let lease = route.policy().lease;
        hand.turn(lease);
        hand.turn_back(4 * ERROR);
        let swept = loop {
            hand.turn(Duration::from_millis(100));
            let may_send = held.permit().check().is_ok();
            if pass(&sweeper, Worker::Sweeper).await.changed == 1 {
                assert!(!may_send, "swept from under its holder");
                break hand.now();
            }
        };
        assert_eq!(state(&sweeper, held.id()).await, StateKind::Unknown);
        // The holder's clock, the sweeper's, and what the sweeper allows for.
        assert!(swept.since(began) <= lease + 3 * ERROR + Duration::from_millis(100), "too late");
    }
}

fn stored(route: &Route, key: &str) -> Arrival {
    let request = StoredRequest {
        method: "POST".into(),
        target: "/payments".into(),
        headers: vec![],
        body: b"{}".to_vec(),
        credentials: Some(Credentials::Kept),
    };
    Arrival { request: Some(request), ..crate::world::request(route, key) }
}

/// What can only wait is not even looked at: it would stand in front of what can be swept.
#[tokio::test]
async fn a_lapsed_lease_becomes_what_its_crash_policy_says() {
    let cases = [
        (CrashPolicy::Reconcile, false, StateKind::Unknown),
        (CrashPolicy::Reconcile, true, StateKind::Unknown),
        (CrashPolicy::Restart, true, StateKind::Pending),
        (CrashPolicy::Restart, false, StateKind::InProgress),
        (CrashPolicy::Resume, true, StateKind::InProgress),
        (CrashPolicy::Resume, false, StateKind::InProgress),
    ];
    for (crash, is_stored, becomes) in cases {
        let (engine, _, hand) = node().await;
        let route = route(|policy| policy.crash = crash);
        let arrival = if is_stored { stored(&route, "k") } else { request(&route, "k") };
        let held = granted(engine.arrive(&route, arrival).await.unwrap());
        hand.turn(2 * route.policy().lease);
        let is_swept = becomes != StateKind::InProgress;
        let seen = usize::from(is_swept);
        let expected = Pass { seen, changed: seen, more: false };
        assert_eq!(pass(&engine, Worker::Sweeper).await, expected, "{crash:?}, stored: {is_stored}");
        assert_eq!(state(&engine, held.id()).await, becomes, "{crash:?}, stored: {is_stored}");
        let told: &[Act] = if is_swept { &[Act::Lapsed] } else { &[] };
        assert_eq!(acts(&engine, held.id()).await, told, "{crash:?}, stored: {is_stored}");
    }
}

/// Without its client nobody can go on with it. When retention is over too, no client is to be expected.
#[tokio::test]
async fn what_waits_for_its_client_is_unknown_past_retention() {
    for crash in [CrashPolicy::Restart, CrashPolicy::Resume] {
        let (engine, _, hand) = node().await;
        let route = route(|policy| (policy.crash, policy.retention) = (crash, HOUR));
        let held = held(&engine, &route, "k").await;
        hand.turn(route.policy().lease + HOUR);
        hand.turn_back(Duration::from_micros(1));
        assert_eq!(pass(&engine, Worker::Sweeper).await, Pass::default(), "{crash:?}");
        hand.turn(Duration::from_micros(1));
        assert_eq!(pass(&engine, Worker::Sweeper).await.changed, 1, "{crash:?}");
        assert_eq!(state(&engine, held.id()).await, StateKind::Unknown, "{crash:?}");
    }
}

/// Many at once: a pass takes so many and no more, and the next one follows at once.
#[tokio::test]
async fn a_thousand_lapsed_leases_are_swept_in_bounded_passes() {
    const ROWS: usize = 1_000;
    const BATCH: usize = 16;
    let (engine, _, hand) = node().await;
    let route = ietf();
    let mut held_all = Vec::new();
    for n in 0..ROWS {
        held_all.push(held(&engine, &route, &format!("k-{n}")).await);
    }
    hand.turn(2 * route.policy().lease);
    let options = WorkerOptions { batch: BATCH, ..WorkerOptions::default() };
    let mut passes = Vec::new();
    loop {
        let pass = engine.work(Worker::Sweeper, &options, &NoProbe).await.unwrap();
        passes.push(pass.changed);
        assert_eq!(pass.seen, pass.changed);
        if !pass.more {
            break;
        }
    }
    assert_eq!(passes, [256, 256, 256, 232]);
    for held in &held_all {
        assert_eq!(state(&engine, held.id()).await, StateKind::Unknown);
    }
}

/// Whatever is found by one scan is written together: what waits while a commit is under way shares the next one.
#[tokio::test]
async fn leases_that_are_swept_together_share_commits() {
    let (engine, store, hand) = node().await;
    let route = ietf();
    let mut held_all = Vec::new();
    for n in 0..100 {
        held_all.push(held(&engine, &route, &format!("k-{n}")).await);
    }
    hand.turn(2 * route.policy().lease);
    let commits = engine.stats().commits;
    store.queue(Fault::Delayed);
    let sweeping = tokio::spawn({
        let engine = engine.clone();
        async move { pass(&engine, Worker::Sweeper).await }
    });
    // By then all of them wait to be written: they are submitted without a pause.
    soon(store.until_delayed(1)).await;
    store.let_go();
    assert_eq!(soon(sweeping).await.unwrap().changed, 100);
    let commits = engine.stats().commits - commits;
    assert!(commits <= 3, "{commits} commits");
}

/// Two nodes find the same lapsed leases. What a row becomes is one conditional write: the second changes nothing, and tells nothing.
#[tokio::test]
async fn two_nodes_that_sweep_at_the_same_time_sweep_once() {
    let (a, b, store, hand) = nodes().await;
    let route = ietf();
    let mut held_all = Vec::new();
    for n in 0..20 {
        held_all.push(held(&a, &route, &format!("k-{n}")).await);
    }
    hand.turn(2 * route.policy().lease);
    // A's commits hang; meanwhile B sweeps.
    for _ in 0..20 {
        store.queue(Fault::Delayed);
    }
    let mut first = Box::pin(pass(&a, Worker::Sweeper));
    tokio::select! {
        swept = &mut first => panic!("{swept:?}"),
        () = store.until_delayed(1) => (),
    }
    let second = tokio::spawn({
        let b = b.clone();
        async move { pass(&b, Worker::Sweeper).await }
    });
    soon(store.until_delayed(2)).await;
    for _ in 0..40 {
        store.let_go();
    }
    let (first, second) = (soon(first).await, soon(second).await.unwrap());
    assert_eq!((first.seen, second.seen), (20, 20), "both have found all");
    assert_eq!(first.changed + second.changed, 20);
    for held in &held_all {
        assert_eq!(story(&a, held.id()).await.len(), 1);
    }
}

/// The first pass of a node comes at once: what lapsed while nobody was there is not left for another interval.
#[tokio::test]
async fn what_lapsed_while_no_node_was_there_is_swept_at_the_start() {
    let (a, b, _, hand) = nodes().await;
    let route = ietf();
    let held = held(&a, &route, "k").await;
    hand.turn(2 * route.policy().lease);
    let options = WorkerOptions { sweep_every: HOUR, ..WorkerOptions::default() };
    let mut workers = b.start_workers(&options, &(std::sync::Arc::new(NoProbe) as _));
    soon(workers.until_passes(Worker::Sweeper, 1)).await;
    assert_eq!(state(&b, id(&route, "k")).await, StateKind::Unknown);
    drop(held);
}

/// The database rejects the oldest lapsed rows, more of them than a scan shows. They were the first in every pass, and no
/// other lapsed lease was ever swept.
#[tokio::test]
async fn rows_that_the_database_rejects_hinder_no_other_lapsed_lease() {
    let (engine, store, hand) = node().await;
    let route = ietf();
    let mut holders = Vec::new();
    for n in 0..5 {
        let key = format!("stuck-{n}");
        holders.push(held(&engine, &route, &key).await);
        store.reject(id(&route, &key), usize::MAX);
    }
    holders.push(held(&engine, &route, "other").await);
    hand.turn(HOUR);
    let options = WorkerOptions { batch: 3, ..WorkerOptions::default() };
    let pass = engine.work(Worker::Sweeper, &options, &NoProbe).await.unwrap();
    assert_eq!(pass.changed, 1);
    assert_eq!(state(&engine, id(&route, "other")).await, StateKind::Unknown);
}
