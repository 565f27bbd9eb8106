//! Rows past retention go, exactly they, and whatever else goes on.

use std::time::Duration;

use oncegate_core::audit::{Act, Entry};
use oncegate_core::classify::CALLER_REFUSED;
use oncegate_core::decide::{Arrival, Decision, Event};
use oncegate_core::policy::Credentials;
use oncegate_core::record::{AfterRetention, Execution, GoneStatus, Reason, State, StateKind, StoredRequest};
use oncegate_core::time::Timestamp;
use oncegate_engine::{
    Arrived, BackgroundWorkers, Engine, NoProbe, Options, Pass, Route, Settlement, Worker, WorkerOptions,
};
use oncegate_store::faulty::Fault;
use oncegate_store::{Filter, Store};

use crate::crew::{acts, doubted, node, nodes, pass, story};
use crate::world::{
    HOUR, Hand, Shaky, answer, complete, completed, done, granted, held, id, release, replayed, request,
    route, row, shaky_on, soon, start, state,
};

const SECOND: Duration = Duration::from_secs(1);
/// Retention, and the reaper's grace.
const MICRO: Duration = Duration::from_micros(1);
const OVER: Duration = HOUR.saturating_add(SECOND);

fn hourly() -> Route {
    route(|policy| policy.retention = HOUR)
}

fn gone(status: GoneStatus) -> Route {
    route(|policy| {
        policy.retention = HOUR;
        policy.after_retention = AfterRetention::Gone { status, tombstone: 10 * HOUR };
    })
}

async fn keys(engine: &Engine<Shaky>) -> Vec<String> {
    let page = engine.store().browse(&Filter::default(), None, 10_000).await.unwrap();
    let mut keys: Vec<_> = page.records.iter().map(|row| row.address.key.as_str().to_owned()).collect();
    keys.sort();
    keys
}

#[tokio::test]
async fn a_row_is_removed_after_its_retention_and_grace_and_not_before() {
    let (engine, _, hand) = node().await;
    let route = hourly();
    completed(&engine, &route, "completed", "paid").await;
    done(held(&engine, &route, "released").await, release()).await;
    hand.turn(OVER);
    hand.turn_back(Duration::from_micros(1));
    assert_eq!(pass(&engine, Worker::Reaper).await.changed, 0);
    hand.turn(Duration::from_micros(1));
    completed(&engine, &route, "later", "paid").await;
    assert_eq!(pass(&engine, Worker::Reaper).await.changed, 2);
    assert_eq!(keys(&engine).await, ["later"]);
}

/// Anybody can invent credentials: what the upstream refuses leaves no row for the retention.
#[tokio::test]
async fn a_row_whose_caller_was_refused_is_removed_within_seconds() {
    let (engine, _, hand) = node().await;
    let route = hourly();
    let refused = || Settlement::Release {
        reason: Reason::new(CALLER_REFUSED, "401 refused before acting"),
        backoff: Duration::ZERO,
    };
    done(held(&engine, &route, "refused").await, refused()).await;
    done(held(&engine, &route, "released").await, release()).await;
    done(held(&engine, &route, "released").await, refused()).await;
    // Ten seconds, and the reaper's grace.
    hand.turn(11 * SECOND);
    hand.turn_back(MICRO);
    assert_eq!(pass(&engine, Worker::Reaper).await.changed, 0);
    hand.turn(SECOND);
    assert_eq!(pass(&engine, Worker::Reaper).await.changed, 1);
    assert_eq!(keys(&engine).await, ["released"], "another attempt of it ended otherwise");
    // A retry executes again.
    done(held(&engine, &route, "refused").await, complete("paid")).await;
    assert_eq!(keys(&engine).await, ["refused", "released"]);
}

/// Whatever has become of them, and however long ago.
#[tokio::test]
async fn what_is_in_progress_or_unknown_is_never_removed() {
    let (engine, _, hand) = node().await;
    let route = hourly();
    let held = held(&engine, &route, "running").await;
    doubted(&engine, &route, "doubted").await;
    // Promised to a second client, so that it has an end; and yet it runs.
    let later = Arrival { execution: Execution::Deferred, ..deferred(&route, "running") };
    assert!(matches!(engine.arrive(&route, later).await.unwrap(), Arrived::Accepted { .. }));
    assert!(row(&engine, held.id()).await.expires_at.is_some());
    for _ in 0..3 {
        hand.turn(87_600 * HOUR);
        assert_eq!(pass(&engine, Worker::Reaper).await.seen, 0);
    }
    let reap = Event::Reap { grace: Duration::ZERO };
    for id in [held.id(), id(&route, "doubted")] {
        assert_eq!(engine.drive(id, &reap).await.unwrap().decision, Decision::Nothing);
    }
    assert_eq!(state(&engine, held.id()).await, StateKind::InProgress);
    assert_eq!(state(&engine, id(&route, "doubted")).await, StateKind::Unknown);
}

/// While rows are removed, a few at a time, new keys come, kept ones are replayed, and old ones are used again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exactly_what_is_past_retention_is_removed_while_traffic_flows() {
    const MANY: usize = 200;
    let (engine, store, hand) = node().await;
    let route = hourly();
    for n in 0..MANY {
        completed(&engine, &route, &format!("old-{n:03}"), "old").await;
    }
    hand.turn(OVER);
    for n in 0..MANY {
        completed(&engine, &route, &format!("kept-{n:03}"), "kept").await;
    }
    let traffic = tokio::spawn({
        let (engine, route, store) = (engine.clone(), route.clone(), store.clone());
        async move {
            // Each client has a node of its own, so that nothing comes from this one's cache.
            let other = start(store, crate::crew::named("other")).await;
            for n in 0..MANY {
                completed(&engine, &route, &format!("fresh-{n:03}"), "fresh").await;
                assert_eq!(*replayed(&other, &route, &format!("kept-{n:03}")).await, answer("kept"));
                if n % 2 == 0 {
                    completed(&engine, &route, &format!("old-{n:03}"), "again").await;
                }
            }
        }
    });
    let options = WorkerOptions { batch: 4, ..WorkerOptions::default() };
    let mut removed = 0;
    loop {
        let is_last = traffic.is_finished();
        removed += engine.work(Worker::Reaper, &options, &NoProbe).await.unwrap().changed;
        if is_last {
            break;
        }
        tokio::task::yield_now().await;
    }
    traffic.await.unwrap();
    assert_eq!(pass(&engine, Worker::Reaper).await.seen, 0, "nothing is left to be done");
    let mut expected: Vec<_> = (0..MANY)
        .flat_map(|n| [format!("fresh-{n:03}"), format!("kept-{n:03}")])
        .chain((0..MANY).step_by(2).map(|n| format!("old-{n:03}")))
        .collect();
    expected.sort();
    assert_eq!(keys(&engine).await, expected);
    assert!((MANY / 2..=MANY).contains(&removed), "{removed}: a key used again before is none of them");
    for n in (0..MANY).step_by(2) {
        assert_eq!(*replayed(&engine, &route, &format!("old-{n:03}")).await, answer("again"));
    }
}

/// Found by reading: a scan stops at 8 MiB of answers, its few rows were taken for all there were, and the reaper paused until the next
/// minute, however much had piled up.
#[tokio::test]
async fn large_answers_are_removed_in_one_pass_as_small_ones_are() {
    const MANY: usize = 40;
    let (engine, _, hand) = node().await;
    let route = hourly();
    let large = "x".repeat(1 << 20);
    for n in 0..MANY {
        completed(&engine, &route, &format!("large-{n}"), &large).await;
    }
    hand.turn(OVER);
    let passed = pass(&engine, Worker::Reaper).await;
    assert_eq!(passed, Pass { seen: MANY, changed: MANY, more: false });
}

#[tokio::test]
async fn a_retry_after_removal_is_a_new_life() {
    let (engine, _, hand) = node().await;
    let route = hourly();
    completed(&engine, &route, "k", "life 1").await;
    let first = row(&engine, id(&route, "k")).await.life;
    hand.turn(OVER);
    pass(&engine, Worker::Reaper).await;
    assert!(engine.read(id(&route, "k")).await.unwrap().is_none());
    completed(&engine, &route, "k", "life 2").await;
    assert_ne!(row(&engine, id(&route, "k")).await.life, first);
    assert!(story(&engine, id(&route, "k")).await.is_empty(), "routine");
}

/// Shut for as long as the tombstone lives, whether or not the reaper has come by; then a new life, and that is told.
#[tokio::test]
async fn a_key_of_a_410_route_is_buried_and_later_removed() {
    for status in [GoneStatus::Gone, GoneStatus::NotFound] {
        let (engine, _, hand) = node().await;
        let route = gone(status);
        let is_gone = async || {
            let arrived = engine.arrive(&route, request(&route, "k")).await.unwrap();
            matches!(arrived, Arrived::Gone { status: said } if said == status)
        };
        completed(&engine, &route, "k", "paid").await;
        hand.turn(OVER);
        assert!(is_gone().await, "before the reaper");
        assert_eq!(pass(&engine, Worker::Reaper).await.changed, 1);
        assert_eq!(state(&engine, id(&route, "k")).await, StateKind::Expired);
        assert!(is_gone().await, "after it");
        assert_eq!(pass(&engine, Worker::Reaper).await.changed, 0);
        hand.turn(10 * HOUR);
        hand.turn_back(SECOND);
        assert_eq!(pass(&engine, Worker::Reaper).await.changed, 0, "its own lifetime, and the grace");
        hand.turn(SECOND);
        assert_eq!(pass(&engine, Worker::Reaper).await.changed, 1);
        assert!(engine.read(id(&route, "k")).await.unwrap().is_none());
        drop(held(&engine, &route, "k").await);
        engine.quiet().await;
    }
}

/// A tombstone that nobody has removed yet is a new key too, once its time is over; and that execution is told.
#[tokio::test]
async fn an_execution_out_of_a_tombstone_is_told() {
    let (engine, _, hand) = node().await;
    let route = gone(GoneStatus::Gone);
    completed(&engine, &route, "k", "paid").await;
    hand.turn(OVER);
    pass(&engine, Worker::Reaper).await;
    hand.turn(10 * HOUR);
    completed(&engine, &route, "k", "life 2").await;
    assert_eq!(acts(&engine, id(&route, "k")).await, [Act::RanAfterExpiry]);
}

/// A retry that came after retention was told while the old row was still there. Once it was
/// reaped, the same retry was executed in silence.
#[tokio::test]
async fn an_execution_after_the_row_was_removed_is_told() {
    let (a, b, _, hand) = nodes().await;
    let route = hourly();
    completed(&a, &route, "k", "life 1").await;
    hand.turn(OVER);
    assert_eq!(pass(&a, Worker::Reaper).await.changed, 1);
    // Three days later, and by another node.
    hand.turn(72 * HOUR);
    completed(&b, &route, "never seen", "paid").await;
    completed(&b, &route, "k", "life 2").await;
    let life = row(&b, id(&route, "k")).await.life;
    b.look_up_new_keys().await;
    assert_eq!(acts(&b, id(&route, "never seen")).await, []);
    let story = story(&b, id(&route, "k")).await;
    let [entry] = &story[..] else { panic!("{story:?}") };
    assert_eq!((entry.act, entry.life, entry.from), (Act::RanAfterExpiry, life, None));
    assert_eq!((entry.attempt, entry.to), (1, Some(StateKind::InProgress)));
    let subject = entry.subject.as_ref().unwrap();
    let scope = crate::world::scope(&route);
    assert_eq!((&*subject.scope, &*subject.operation), (scope.as_str(), route.operation().as_str()));
    let reason = entry.reason.as_ref().unwrap();
    assert_eq!(reason.code(), "removed");
    assert!(reason.detail().ends_with("3 days before"), "{reason:?}");
    b.look_up_new_keys().await;
    assert_eq!(acts(&b, id(&route, "k")).await, [Act::RanAfterExpiry], "once");
}

/// What was released had no effect: if its key runs later, it runs for the first time.
#[tokio::test]
async fn a_key_that_never_ran_is_not_told_when_it_runs() {
    let (engine, _, hand) = node().await;
    let route = hourly();
    done(held(&engine, &route, "k").await, release()).await;
    engine.look_up_new_keys().await;
    hand.turn(OVER);
    assert_eq!(pass(&engine, Worker::Reaper).await.changed, 1);
    completed(&engine, &route, "k", "paid").await;
    engine.look_up_new_keys().await;
    assert_eq!(acts(&engine, id(&route, "k")).await, [Act::Released]);
}

/// It is done without being asked for, too; and of work that is accepted for later.
#[tokio::test]
async fn new_keys_are_looked_up_in_the_background() {
    let (engine, _, hand) = node().await;
    let route = hourly();
    for key in ["run", "accepted"] {
        completed(&engine, &route, key, "life 1").await;
    }
    hand.turn(OVER);
    assert_eq!(pass(&engine, Worker::Reaper).await.changed, 2);
    drop(held(&engine, &route, "run").await);
    let arrival = Arrival { execution: Execution::Deferred, ..deferred(&route, "accepted") };
    let arrived = engine.arrive(&route, arrival).await.unwrap();
    assert!(matches!(arrived, Arrived::Accepted { is_new: true, .. }), "{arrived:?}");
    for key in ["run", "accepted"] {
        let told = async {
            while !acts(&engine, id(&route, key)).await.contains(&Act::RanAfterExpiry) {
                tokio::task::yield_now().await;
            }
        };
        soon(told).await;
    }
}

/// Nothing of it is kept longer than it is to be remembered, and nothing at all if it is not.
#[tokio::test]
async fn removed_keys_are_remembered_for_their_time_and_no_longer() {
    for (kept_for, days, is_told) in [(7, 6, true), (7, 9, false), (0, 1, false)] {
        let hand = Hand::new();
        let removed_keys_for = 24 * kept_for * HOUR;
        let options = Options { removed_keys_for, workers: BackgroundWorkers::None, ..Options::default() };
        let engine = start(shaky_on(&hand), options).await;
        let route = hourly();
        completed(&engine, &route, "k", "life 1").await;
        hand.turn(OVER);
        assert_eq!(pass(&engine, Worker::Reaper).await.changed, 1);
        hand.turn(24 * days * HOUR);
        pass(&engine, Worker::Reaper).await;
        let since = Timestamp::from_micros(0);
        let removed = engine.store().removed(&[id(&route, "k")], since).await.unwrap();
        assert_eq!(removed[0].is_some(), is_told, "{kept_for} and {days}");
        completed(&engine, &route, "k", "life 2").await;
        engine.look_up_new_keys().await;
        let told: &[Act] = if is_told { &[Act::RanAfterExpiry] } else { &[] };
        assert_eq!(acts(&engine, id(&route, "k")).await, told, "{kept_for} and {days}");
    }
}

/// It only informs: a store that cannot say does not keep a key from running.
#[tokio::test]
async fn a_look_up_that_fails_hinders_no_request() {
    let (engine, store, hand) = node().await;
    let route = hourly();
    completed(&engine, &route, "k", "life 1").await;
    hand.turn(OVER);
    assert_eq!(pass(&engine, Worker::Reaper).await.changed, 1);
    store.fail_reads(usize::MAX);
    let holder = held(&engine, &route, "k").await;
    engine.look_up_new_keys().await;
    done(holder, complete("life 2")).await;
    store.fail_reads(0);
    assert_eq!(*replayed(&engine, &route, "k").await, answer("life 2"));
}

fn deferred(route: &Route, key: &str) -> Arrival {
    let request = StoredRequest {
        method: "POST".into(),
        target: "/payments".into(),
        headers: vec![],
        body: b"{}".to_vec(),
        credentials: Some(Credentials::Kept),
    };
    Arrival { request: Some(request), ..crate::world::request(route, key) }
}

/// Accepted, and never run: its client is told so, for as long as any answer is kept.
#[tokio::test]
async fn accepted_work_past_its_limit_is_answered_with_408_whose_retention_starts_then() {
    let (engine, _, hand) = node().await;
    let route = route(|policy| (policy.retention, policy.execution) = (HOUR, Execution::Deferred));
    let arrived = engine.arrive(&route, deferred(&route, "k")).await.unwrap();
    assert!(matches!(arrived, Arrived::Accepted { .. }), "{arrived:?}");
    hand.turn(OVER);
    hand.turn_back(Duration::from_micros(1));
    assert_eq!(pass(&engine, Worker::Reaper).await.changed, 0);
    hand.turn(Duration::from_micros(1));
    assert_eq!(pass(&engine, Worker::Reaper).await.changed, 1);
    let given_up = row(&engine, id(&route, "k")).await;
    let State::Completed(kept) = &given_up.state else { panic!("{:?}", given_up.state) };
    assert_eq!(kept.status(), 408);
    assert_eq!(given_up.expires_at, Some(hand.now().plus(HOUR)));
    assert_eq!(acts(&engine, id(&route, "k")).await, [Act::GivenUp]);
    hand.turn(HOUR);
    hand.turn_back(SECOND);
    pass(&engine, Worker::Reaper).await;
    assert_eq!(replayed(&engine, &route, "k").await.status(), 408);
}

/// Stories outlive their records, but not for ever.
#[tokio::test]
async fn old_entries_of_the_audit_trail_are_dropped() {
    let (engine, _, hand) = node().await;
    let route = hourly();
    done(held(&engine, &route, "k").await, release()).await;
    hand.turn(OVER);
    pass(&engine, Worker::Reaper).await;
    assert!(engine.read(id(&route, "k")).await.unwrap().is_none());
    assert_eq!(acts(&engine, id(&route, "k")).await, [Act::Released], "it outlives its record");
    let kept_for = WorkerOptions::default().audit_retention;
    hand.turn(kept_for);
    hand.turn_back(2 * HOUR);
    done(held(&engine, &route, "k").await, release()).await;
    pass(&engine, Worker::Reaper).await;
    assert_eq!(acts(&engine, id(&route, "k")).await, [Act::Released; 2]);
    hand.turn(HOUR);
    pass(&engine, Worker::Reaper).await;
    assert_eq!(acts(&engine, id(&route, "k")).await, [Act::Released], "the younger one");
}

/// Where every execution is told, the trail grows as fast as the records: a thousand entries a minute would never have kept up.
#[tokio::test]
async fn the_reaper_goes_on_while_there_are_old_entries() {
    let (engine, store, hand) = node().await;
    let row = done(held(&engine, &hourly(), "k").await, release()).await;
    let entry = story(&engine, row.id).await.pop().unwrap();
    let more: Vec<_> =
        (1..=1_500).map(|n| Entry { attempt: n, at: entry.at.plus(n * MICRO), ..entry.clone() }).collect();
    store.tell(&more).await.unwrap();
    hand.turn(WorkerOptions::default().audit_retention + HOUR);
    assert!(pass(&engine, Worker::Reaper).await.more);
    assert!(!pass(&engine, Worker::Reaper).await.more);
    assert_eq!(acts(&engine, row.id).await, []);
}

/// A row is used again between the reaper's scan and its write: it stays.
#[tokio::test]
async fn a_row_that_begins_a_new_life_under_the_reapers_hands_stays() {
    let (a, b, store, hand) = nodes().await;
    let route = hourly();
    completed(&a, &route, "k", "life 1").await;
    hand.turn(OVER);
    store.queue(Fault::Delayed);
    let mut reaping = Box::pin(pass(&a, Worker::Reaper));
    tokio::select! {
        reaped = &mut reaping => panic!("{reaped:?}"),
        () = store.until_delayed(1) => (),
    }
    let second = granted(b.arrive(&route, request(&route, "k")).await.unwrap());
    store.let_go();
    assert_eq!(soon(reaping).await.changed, 0);
    done(second, complete("life 2")).await;
    assert_eq!(*replayed(&a, &route, "k").await, answer("life 2"));
}

/// Two nodes reap the same rows: each is removed once.
#[tokio::test]
async fn two_nodes_that_reap_at_the_same_time_reap_once() {
    let (a, b, store, hand) = nodes().await;
    let route = hourly();
    for n in 0..20 {
        completed(&a, &route, &format!("k-{n}"), "paid").await;
    }
    hand.turn(OVER);
    for _ in 0..20 {
        store.queue(Fault::Delayed);
    }
    let first = tokio::spawn({
        let a = a.clone();
        async move { pass(&a, Worker::Reaper).await }
    });
    soon(store.until_delayed(1)).await;
    let second = tokio::spawn({
        let b = b.clone();
        async move { pass(&b, Worker::Reaper).await }
    });
    soon(store.until_delayed(2)).await;
    for _ in 0..40 {
        store.let_go();
    }
    let (first, second) = (soon(first).await.unwrap(), soon(second).await.unwrap());
    assert_eq!(first.changed + second.changed, 20, "{first:?} {second:?}");
    assert!(keys(&a).await.is_empty());
}

/// The store fails in the middle: what was not removed is removed by the next pass.
#[tokio::test]
async fn what_a_failing_store_leaves_is_removed_later() {
    for fault in [Fault::BeforeWrite, Fault::ConnectionLost, Fault::AcknowledgementLost, Fault::Panics] {
        let (engine, store, hand) = node().await;
        let route = hourly();
        completed(&engine, &route, "k", "paid").await;
        hand.turn(OVER);
        store.queue(fault);
        assert!(engine.work(Worker::Reaper, &WorkerOptions::default(), &NoProbe).await.is_err(), "{fault:?}");
        pass(&engine, Worker::Reaper).await;
        assert!(keys(&engine).await.is_empty(), "{fault:?}");
    }
}

/// Answers leave the cache with their rows: a retry after removal runs again on this node too.
#[tokio::test]
async fn a_removed_answer_leaves_the_cache() {
    let (engine, _, hand) = node().await;
    let route = hourly();
    completed(&engine, &route, "k", "paid").await;
    assert!(engine.stats().cache_bytes > 0);
    hand.turn(OVER);
    pass(&engine, Worker::Reaper).await;
    assert_eq!(engine.stats().cache_bytes, 0);
}

/// A row that the database does not let go (another table refers to it) failed the reaper's whole pass,
/// and as it was the oldest, each later pass met it first: nothing was removed any more. Here more rows
/// are stuck than a pass can look at.
#[tokio::test]
async fn rows_that_the_database_does_not_let_go_hinder_no_others() {
    const STUCK: usize = 50;
    let (engine, store, hand) = node().await;
    let route = hourly();
    let stuck: Vec<_> = (0..STUCK).map(|n| format!("stuck-{n:02}")).collect();
    for key in &stuck {
        completed(&engine, &route, key, "paid").await;
        store.reject(id(&route, key), usize::MAX);
    }
    for n in 0..10 {
        completed(&engine, &route, &format!("other-{n}"), "paid").await;
    }
    hand.turn(OVER);
    let options = WorkerOptions { batch: 3, ..WorkerOptions::default() };
    let mut removed = 0;
    // 16 scans of three rows in each pass.
    for _ in 0..2 {
        removed += engine.work(Worker::Reaper, &options, &NoProbe).await.unwrap().changed;
    }
    assert_eq!(removed, 10);
    assert_eq!(keys(&engine).await, stuck);
    // Once the database lets them go, they are removed too.
    for key in &stuck {
        store.reject(id(&route, key), 0);
    }
    for _ in 0..3 {
        removed += engine.work(Worker::Reaper, &options, &NoProbe).await.unwrap().changed;
    }
    assert_eq!((removed, keys(&engine).await), (10 + STUCK, vec![]));
}
