//! Windows of time whose keys may have been lost: such a key does not run until an operator says what became of it.

use std::time::Duration;

use oncegate_core::audit::Act as Told;
use oncegate_core::decide::{Arrival, QUARANTINED};
use oncegate_core::policy::Credentials;
use oncegate_core::record::{CrashPolicy, Execution, Reason, State, StateKind, StoredRequest};
use oncegate_core::time::Timestamp;
use oncegate_engine::{
    Arrived, Engine, NoProbe, OnceError, Operator, Options, Settlement, Worker, WorkerOptions,
};
use oncegate_store::Store;
use oncegate_store::faulty::Fault;
use oncegate_store::memory::MemoryStore;

use crate::world::{HOUR, completed, held, id, ietf, impatient, replayed, request, route, row, shaky, start};

fn ada() -> Operator {
    Operator { name: "ada".into(), reason: "restored last night's backup".into() }
}

/// A UUID of version 7, made at this moment.
fn key_of(at: Timestamp, n: u8) -> String {
    let millis = at.as_micros() / 1_000;
    format!("{:08x}-{:04x}-7abc-8def-0123456789{n:02x}", millis >> 16, millis & 0xffff)
}

/// From two hours ago to one hour ago.
async fn quarantine<S: Store>(engine: &Engine<S>) -> (Timestamp, Timestamp, Box<str>) {
    let now = engine.now().at;
    let (since, until) = (now.minus(2 * HOUR), now.minus(HOUR));
    let window = engine.declare_quarantine(since, until, &ada()).await.unwrap();
    (since, until, window.id)
}

async fn is_held_back<S: Store>(engine: &Engine<S>, key: &str) {
    for _ in 0..2 {
        let arrived = engine.arrive(&ietf(), request(&ietf(), key)).await.unwrap();
        assert!(matches!(arrived, Arrived::Unsettled { parked: true, .. }), "{key}: {arrived:?}");
    }
    let row = row(engine, id(&ietf(), key)).await;
    assert!(row.grant.is_none(), "nothing may run under it");
    assert_eq!(row.last_error.unwrap().code(), QUARANTINED);
    let told: Vec<_> = engine.story(row.id, 10).await.unwrap().iter().map(|entry| entry.act).collect();
    assert_eq!(told, [Told::Doubted]);
}

/// After a restore, keys that were granted since the backup had no record, and ran a second time. Those of the lost time are held back now, and those
/// that cannot be of it run.
#[tokio::test]
async fn keys_of_the_window_and_keys_without_a_time_are_held_back() {
    let engine = start(MemoryStore::new(), Options::default()).await;
    completed(&engine, &ietf(), "recorded", "paid").await;
    let (since, until, _) = quarantine(&engine).await;
    let (minute, skew) = (Duration::from_mins(1), Options::default().quarantine_skew);
    for (n, at) in
        [since, until, since.plus(minute), since.minus(minute), until.plus(skew)].into_iter().enumerate()
    {
        is_held_back(&engine, &key_of(at, u8::try_from(n).unwrap())).await;
    }
    is_held_back(&engine, "no-time-at-all").await;
    for at in [since.minus(skew + minute), until.plus(skew + minute), engine.now().at] {
        drop(held(&engine, &ietf(), &key_of(at, 99)).await);
    }
    // What has a record was not lost.
    replayed(&engine, &ietf(), "recorded").await;
}

/// Other keys are placed by the time that the client declares; a UUID of version 7 by its own, whatever is declared.
#[tokio::test]
async fn a_declared_time_places_a_key_that_has_none() {
    let engine = start(MemoryStore::new(), Options::default()).await;
    let (since, until, _) = quarantine(&engine).await;
    let inside = Some(since.plus(Duration::from_mins(1)));
    let after = Some(until.plus(Duration::from_mins(30)));
    for (key, sent_at, runs) in [
        ("inside", inside, false),
        ("after", after, true),
        (&key_of(since, 1), after, false),
        (&key_of(engine.now().at, 2), inside, true),
    ] {
        let arrived = engine.arrive(&ietf(), Arrival { sent_at, ..request(&ietf(), key) }).await.unwrap();
        assert_eq!(matches!(arrived, Arrived::Execute(_)), runs, "{key}: {arrived:?}");
    }
}

#[tokio::test]
async fn a_release_lets_its_keys_run_and_no_others() {
    let engine = start(MemoryStore::new(), Options::default()).await;
    let (since, until, first) = quarantine(&engine).await;
    is_held_back(&engine, &key_of(since, 1)).await;
    let second = engine.declare_quarantine(until, until, &ada()).await.unwrap();
    // Held back by both.
    is_held_back(&engine, &key_of(until, 2)).await;
    // Parked for another reason, and never this release's business.
    let doubted = held(&engine, &ietf(), &key_of(engine.now().at, 3)).await;
    drop(doubted.settle(crate::world::doubt()).await);

    let released = engine.release_quarantine(&first, &ada()).await.unwrap();
    assert_eq!((released.was_active, released.keys), (true, 1));
    drop(held(&engine, &ietf(), &key_of(since, 1)).await);
    let arrived = engine.arrive(&ietf(), request(&ietf(), &key_of(until, 2))).await.unwrap();
    assert!(matches!(arrived, Arrived::Unsettled { parked: true, .. }), "{arrived:?}");

    let released = engine.release_quarantine(&second.id, &ada()).await.unwrap();
    assert_eq!((released.was_active, released.keys), (true, 1));
    drop(held(&engine, &ietf(), &key_of(until, 2)).await);
    drop(held(&engine, &ietf(), "no-time-at-all").await);
    let again = engine.release_quarantine(&first, &ada()).await.unwrap();
    assert_eq!((again.was_active, again.keys), (false, 0));
    let unknown = engine.release_quarantine("none", &ada()).await.unwrap();
    assert_eq!((unknown.was_active, unknown.keys), (false, 0));
}

/// Nodes that run already hear of a window with their next look, and one that starts with its first.
#[tokio::test]
async fn every_node_learns_of_a_window() {
    let store = MemoryStore::new();
    let (one, two) = (
        start(store.clone(), Options::default()).await,
        start(store.another_handle(), Options::default()).await,
    );
    let (since, _, id) = quarantine(&one).await;
    two.check_history().await.unwrap();
    is_held_back(&two, &key_of(since, 1)).await;
    let three = start(store.another_handle(), Options::default()).await;
    is_held_back(&three, &key_of(since, 2)).await;
    assert_eq!(three.release_quarantine(&id, &ada()).await.unwrap().keys, 2);
    two.check_history().await.unwrap();
    drop(held(&two, &ietf(), &key_of(since, 1)).await);
}

/// A probe that finds nothing has asked about a life that never ran; the one that was lost may have had its effect.
#[tokio::test]
async fn no_worker_settles_what_is_held_back() {
    let engine = start(MemoryStore::new(), Options::default()).await;
    let (since, ..) = quarantine(&engine).await;
    is_held_back(&engine, &key_of(since, 1)).await;
    let before = row(&engine, id(&ietf(), &key_of(since, 1))).await;
    for worker in Worker::ALL {
        engine.work(worker, &WorkerOptions::default(), &NoProbe).await.unwrap();
    }
    assert_eq!(row(&engine, before.id).await, before);
}

/// Work for later, and jobs, are held back too.
#[tokio::test]
async fn deferred_work_and_jobs_are_held_back() {
    let engine = start(MemoryStore::new(), Options::default()).await;
    quarantine(&engine).await;
    let deferred = route(|policy| policy.execution = Execution::Deferred);
    let stored = StoredRequest {
        method: "POST".into(),
        target: "/payments".into(),
        headers: vec![],
        body: b"{}".to_vec(),
        credentials: Some(Credentials::Kept),
    };
    let arrival = Arrival { request: Some(stored), ..request(&deferred, "later") };
    let arrived = engine.arrive(&deferred, arrival).await.unwrap();
    assert!(matches!(arrived, Arrived::Unsettled { parked: true, .. }), "{arrived:?}");
    let job = engine.once("billing", "job", &serde_json::json!({}), || async { panic!("it ran") }).await;
    assert!(matches!(job, Err::<oncegate_engine::Once<String>, _>(OnceError::Unknown(_))), "{job:?}");
}

/// The write that holds a key back is in doubt, and its client is told 503. To clean it up, as a reserve is cleaned up, would free the key: the retry would run.
#[tokio::test]
async fn a_key_whose_record_is_in_doubt_is_not_freed_by_a_clean_up() {
    for fault in [Fault::ConnectionLost, Fault::AcknowledgementLost, Fault::LandsLate] {
        let store = shaky();
        let engine = start(store.clone(), impatient()).await;
        let (since, ..) = quarantine(&engine).await;
        store.queue(fault);
        let key = key_of(since, 1);
        assert!(engine.arrive(&ietf(), request(&ietf(), &key)).await.is_err());
        engine.quiet().await;
        let arrived = engine.arrive(&ietf(), request(&ietf(), &key)).await.unwrap();
        assert!(matches!(arrived, Arrived::Unsettled { parked: true, .. }), "{fault:?}: {arrived:?}");
        store.land().await.unwrap();
        let row = row(&engine, id(&ietf(), &key)).await;
        assert!(matches!(&row.state, State::Unknown(doubt) if doubt.parked), "{fault:?}: {row:?}");
    }
}

/// Past retention a record counts as none: also then the key is held back.
#[tokio::test]
async fn a_key_past_retention_is_held_back_too() {
    let hand = crate::world::Hand::new();
    let engine = start(crate::world::shaky_on(&hand), Options::default()).await;
    completed(&engine, &ietf(), "k", "paid").await;
    hand.turn(ietf().policy().retention + HOUR);
    quarantine(&engine).await;
    let arrived = engine.arrive(&ietf(), request(&ietf(), "k")).await.unwrap();
    assert!(matches!(arrived, Arrived::Unsettled { parked: true, .. }), "{arrived:?}");
    assert_eq!(row(&engine, id(&ietf(), "k")).await.state.kind(), StateKind::Unknown);
}

/// A backup had a key as released. In the time that a restore lost, its retry had run. After the restore it was
/// still released, so the next retry ran it a second time, although a quarantine was declared.
#[tokio::test]
async fn a_released_key_is_held_back_because_it_may_have_run_in_the_lost_time() {
    let engine = start(MemoryStore::new(), Options::default()).await;
    let (released, refused) =
        (held(&engine, &ietf(), "released").await, Reason::new("refused", "nothing sent"));
    drop(released.settle(Settlement::Release { reason: refused, backoff: Duration::ZERO }).await);
    let (.., window) = quarantine(&engine).await;
    let arrived = engine.arrive(&ietf(), request(&ietf(), "released")).await.unwrap();
    assert!(matches!(arrived, Arrived::Unsettled { parked: true, .. }), "{arrived:?}");
    // An operator says that it did not run.
    assert_eq!(engine.release_quarantine(&window, &ada()).await.unwrap().keys, 1);
    drop(held(&engine, &ietf(), "released").await);
}

/// The same of work that a backup had as accepted, and that a worker had run since.
#[tokio::test]
async fn accepted_work_is_held_back_because_it_may_have_run_in_the_lost_time() {
    let engine = start(MemoryStore::new(), Options::default()).await;
    let deferred = route(|policy| policy.execution = Execution::Deferred);
    let stored = StoredRequest {
        method: "POST".into(),
        target: "/x".into(),
        headers: vec![],
        body: vec![],
        credentials: Some(Credentials::Kept),
    };
    let arrival = Arrival { request: Some(stored), ..request(&deferred, "later") };
    assert!(matches!(engine.arrive(&deferred, arrival).await, Ok(Arrived::Accepted { .. })));
    let (.., window) = quarantine(&engine).await;
    let id = id(&deferred, "later");
    assert!(matches!(row(&engine, id).await.state, State::Unknown(doubt) if doubt.parked));
    assert_eq!(engine.release_quarantine(&window, &ada()).await.unwrap().keys, 1);
    assert_eq!(row(&engine, id).await.state.kind(), StateKind::Pending, "a worker runs it");
}

/// A key is held back by one window, and then a second restore is declared that may have lost it too. A release of
/// the first window freed it, although the second was active.
#[tokio::test]
async fn a_key_that_is_held_back_stays_so_under_a_second_window() {
    let engine = start(MemoryStore::new(), Options::default()).await;
    let (since, until, first) = quarantine(&engine).await;
    is_held_back(&engine, &key_of(since, 1)).await;
    let second = engine.declare_quarantine(since, until, &ada()).await.unwrap();
    assert_eq!(engine.release_quarantine(&first, &ada()).await.unwrap().keys, 0);
    let arrived = engine.arrive(&ietf(), request(&ietf(), &key_of(since, 1))).await.unwrap();
    assert!(matches!(arrived, Arrived::Unsettled { parked: true, .. }), "{arrived:?}");
    assert_eq!(engine.release_quarantine(&second.id, &ada()).await.unwrap().keys, 1);
    drop(held(&engine, &ietf(), &key_of(since, 1)).await);
}

/// The same of work that was in progress under `restart`: its lease lapsed after the restore, and
/// its client's retry ran it, although its holder may have had its effect in the lost time.
#[tokio::test]
async fn attack_29_work_in_progress_is_held_back_and_its_live_holder_settles_it() {
    for settles in [false, true] {
        let hand = crate::world::Hand::new();
        let engine = start(crate::world::shaky_on(&hand), Options::default()).await;
        let restart = route(|policy| policy.crash = CrashPolicy::Restart);
        let mut holder = held(&engine, &restart, "k").await;
        holder.begin().unwrap();
        let (.., window) = quarantine(&engine).await;
        hand.turn(2 * restart.policy().lease);
        let arrived = engine.arrive(&restart, request(&restart, "k")).await.unwrap();
        assert!(matches!(arrived, Arrived::Unsettled { parked: true, .. }), "{arrived:?}");
        if settles {
            // The restore left its process alone.
            drop(holder.settle(crate::world::complete("paid")).await);
            assert_eq!(replayed(&engine, &restart, "k").await.status(), 201);
            continue;
        }
        std::mem::forget(holder);
        assert_eq!(engine.release_quarantine(&window, &ada()).await.unwrap().keys, 1);
        drop(held(&engine, &restart, "k").await);
    }
}
