//! Attack 15: two nodes on one store, with clocks apart.

use std::time::Duration;

use oncegate_core::duration::DURATION_MAX;
use oncegate_engine::{Arrived, Engine, Options};
use oncegate_store::faulty::Fault;

use crate::world::{
    HOUR, Hand, Shaky, answer, complete, completed, done, held, ietf, replayed, request, route, shaky_on,
    soon, start,
};

const ERROR: Duration = Duration::from_secs(1);
const RETENTION: Duration = Duration::from_hours(1);

fn short() -> oncegate_engine::Route {
    route(|policy| policy.retention = RETENTION)
}

/// Nodes whose clocks are as far apart as their errors allow, and whose caches keep everything.
async fn nodes(store: &Shaky, hand: &Hand) -> (Engine<Shaky>, Engine<Shaky>) {
    let late =
        Options { clock: Some(hand.late(ERROR, ERROR)), cache_age_max: DURATION_MAX, ..Options::default() };
    let early =
        Options { clock: Some(hand.early(ERROR, ERROR)), cache_age_max: DURATION_MAX, ..Options::default() };
    (start(store.clone(), late).await, start(store.clone(), early).await)
}

/// Node A is slow and has an answer in its cache; for node B its retention is over, and a new life begins. From then on A must not
/// replay the old one, although by its own clock it would still be kept.
#[tokio::test]
async fn a_slow_node_never_replays_what_a_fast_one_has_outlived() {
    let hand = Hand::new();
    let store = shaky_on(&hand);
    let (a, b) = nodes(&store, &hand).await;
    let route = short();
    completed(&a, &route, "k", "life 1").await;
    assert_eq!(*replayed(&a, &route, "k").await, answer("life 1"));
    hand.turn(RETENTION);
    hand.turn_back(4 * ERROR);
    // Step by step over the end of retention: whenever B may begin, A has already stopped.
    let second = loop {
        hand.turn(Duration::from_millis(100));
        match b.arrive(&route, request(&route, "k")).await.unwrap() {
            Arrived::Execute(held) => break *held,
            arrived => assert_eq!(*crate::world::replay(arrived), answer("life 1")),
        }
    };
    let seen = a.arrive(&route, request(&route, "k")).await.unwrap();
    assert!(matches!(seen, Arrived::Busy { .. }), "{seen:?}");
    done(second, complete("life 2")).await;
    assert_eq!(*replayed(&a, &route, "k").await, answer("life 2"));
}

/// The guard in numbers: a hit is refused within 2 ε of its expiry, so that the store is asked; before that it is not.
#[tokio::test]
async fn a_hit_is_refused_within_two_errors_of_its_expiry() {
    let hand = Hand::new();
    let store = shaky_on(&hand);
    let options = Options {
        clock: Some(hand.late(Duration::ZERO, ERROR)),
        cache_age_max: DURATION_MAX,
        ..Options::default()
    };
    let engine = start(store.clone(), options).await;
    let route = short();
    completed(&engine, &route, "k", "paid").await;
    let asked = store.applies();
    hand.turn(RETENTION);
    hand.turn_back(2 * ERROR + Duration::from_micros(1));
    replayed(&engine, &route, "k").await;
    assert_eq!(store.applies(), asked, "from the cache");
    hand.turn(Duration::from_micros(1));
    replayed(&engine, &route, "k").await;
    assert_eq!(store.applies(), asked + 1, "from the store");
}

/// A completion is acknowledged only after its retention is over; at once, or when it is tried again. It must not come into the cache
/// then: another node may have begun a new life.
#[tokio::test]
async fn a_completion_acknowledged_after_retention_does_not_refill_the_cache() {
    for faults in [&[Fault::Delayed][..], &[Fault::AcknowledgementLost, Fault::Delayed]] {
        let hand = Hand::new();
        let store = shaky_on(&hand);
        let (a, b) = nodes(&store, &hand).await;
        let route = short();
        let holder = held(&a, &route, "k").await;
        for fault in faults {
            store.queue(*fault);
        }
        let mut settling = Box::pin(done(holder, complete("life 1")));
        tokio::select! {
            row = &mut settling => panic!("{row:?}"),
            () = store.until_delayed(1) => (),
        }
        hand.turn(2 * RETENTION);
        store.let_go();
        soon(settling).await;
        assert_eq!(a.stats().cache_bytes, 0);
        let second = held(&b, &route, "k").await;
        let seen = a.arrive(&route, request(&route, "k")).await.unwrap();
        assert!(matches!(seen, Arrived::Busy { .. }), "{seen:?}");
        done(second, complete("life 2")).await;
    }
}

/// While a reserve is in doubt this node's clock becomes less certain, as it does when the store cannot be sampled: what was surely
/// past is no longer. The doubted write may land all the same, and is cleaned up.
#[tokio::test]
async fn a_doubt_is_not_forgotten_when_the_clock_becomes_less_certain() {
    let hand = Hand::new();
    let store = shaky_on(&hand);
    let unsure = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let clock = {
        let (hand, unsure) = (hand.clone(), std::sync::Arc::clone(&unsure));
        oncegate_engine::NodeClock::from_fn(move || {
            let is_unsure = unsure.load(std::sync::atomic::Ordering::SeqCst);
            let error = if is_unsure { HOUR } else { Duration::ZERO };
            oncegate_core::time::Now { at: hand.now(), error }
        })
    };
    let engine = start(store.clone(), Options { clock: Some(clock), ..Options::default() }).await;
    let route = short();
    completed(&engine, &route, "k", "life 1").await;
    hand.turn(RETENTION + Duration::from_secs(1));
    // The insert shows the old row; the swap that begins life 2 hangs and then loses its acknowledgement.
    for fault in [Fault::None, Fault::AcknowledgementLost] {
        store.queue(fault);
    }
    let mut reserve = Box::pin(engine.arrive(&route, request(&route, "k")));
    tokio::select! {
        biased;
        () = store.until_applied(4) => (),
        arrived = &mut reserve => panic!("{arrived:?}"),
    }
    unsure.store(true, std::sync::atomic::Ordering::SeqCst);
    let arrived = soon(reserve).await;
    assert!(!matches!(arrived, Ok(Arrived::Execute(_))), "{arrived:?}");
    unsure.store(false, std::sync::atomic::Ordering::SeqCst);
    soon(engine.quiet()).await;
    done(held(&engine, &route, "k").await, complete("life 2")).await;
}

/// Nodes whose clocks agree share what is recorded, whoever recorded it.
#[tokio::test]
async fn what_one_node_recorded_the_other_replays() {
    let hand = Hand::new();
    let store = shaky_on(&hand);
    let (a, b) = nodes(&store, &hand).await;
    let route = ietf();
    completed(&a, &route, "k", "paid").await;
    let asked = store.applies();
    for _ in 0..3 {
        assert_eq!(*replayed(&b, &route, "k").await, answer("paid"));
    }
    assert_eq!(store.applies(), asked + 1, "asked once, then cached");
}
