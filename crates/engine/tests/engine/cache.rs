//! Replays that touch nothing.

use std::time::Duration;

use oncegate_core::duration::DURATION_MAX;
use oncegate_engine::{Arrived, Engine, Options, Route, Unavailable};
use oncegate_store::faulty::Fault;
use oncegate_store::memory::MemoryStore;

use crate::world::{
    HOUR, Hand, Shaky, answer, complete, completed, done, held, id, ietf, release, replayed, request,
    request_of, shaky, shaky_on, start,
};

/// The store dies; the arrival that notices is refused.
async fn dies(store: &Shaky, engine: &Engine<Shaky>, route: &Route) {
    store.queue(Fault::CrashBefore);
    let refused = engine.arrive(route, request(route, "somebody else's")).await;
    assert!(matches!(refused, Err(Unavailable::Store { .. })), "{refused:?}");
}

/// The database is gone. What is in the cache is still answered; everything else fails closed.
#[tokio::test]
async fn cached_answers_are_replayed_while_the_store_is_dead() {
    let store = shaky();
    let options = Options { doubt_patience: Duration::ZERO, ..Options::default() };
    let engine = start(store.clone(), options).await;
    let route = ietf();
    completed(&engine, &route, "k", "paid").await;
    let released = held(&engine, &route, "released").await;
    done(released, release()).await;
    dies(&store, &engine, &route).await;
    for _ in 0..100 {
        assert_eq!(*replayed(&engine, &route, "k").await, answer("paid"));
    }
    let misused = engine.arrive(&route, request_of(&route, "acme", "k", "other")).await.unwrap();
    assert!(matches!(misused, Arrived::Mismatch { .. }), "{misused:?}");
    for key in ["released", "new"] {
        assert!(engine.arrive(&route, request(&route, key)).await.is_err(), "{key}");
    }
}

/// A replay asks nobody, be it of an answer that was recorded here or of one that the store has shown.
#[tokio::test]
async fn a_replay_does_not_touch_the_store() {
    let store = shaky();
    let engine = start(store.clone(), Options::default()).await;
    let other = start(store.clone(), Options::default()).await;
    let route = ietf();
    completed(&engine, &route, "k", "paid").await;
    assert_eq!(store.applies(), 2, "a reserve and a settlement");
    for _ in 0..100 {
        replayed(&engine, &route, "k").await;
    }
    assert_eq!(store.applies(), 2);
    for _ in 0..100 {
        replayed(&other, &route, "k").await;
    }
    assert_eq!(store.applies(), 3, "shown once");
}

/// Answers come and go; what is kept of them stays within the bound.
#[tokio::test]
async fn the_cache_is_bounded_by_bytes() {
    let cache_bytes = 256 << 10;
    let engine = start(MemoryStore::new(), Options { cache_bytes, ..Options::default() }).await;
    let route = ietf();
    for n in 0..500 {
        completed(&engine, &route, &format!("k-{n}"), &"x".repeat(4 << 10)).await;
        assert!(engine.stats().cache_bytes <= cache_bytes, "after {n}");
    }
    assert!(engine.stats().cache_bytes > cache_bytes / 2, "and it is used");
}

/// One answer is larger than the whole cache: it is replayed from the store.
#[tokio::test]
async fn an_answer_larger_than_the_cache_is_replayed_all_the_same() {
    let options = Options { cache_bytes: 64 << 10, ..Options::default() };
    let engine = start(MemoryStore::new(), options).await;
    let route = ietf();
    let large = "x".repeat(1 << 20);
    completed(&engine, &route, "k", &large).await;
    assert!(engine.stats().cache_bytes <= 64 << 10);
    assert_eq!(*replayed(&engine, &route, "k").await, answer(&large));
}

/// An entry is believed for so long and no longer; then the store is asked again.
#[tokio::test]
async fn an_entry_is_believed_until_its_age_limit() {
    let hand = Hand::new();
    let store = shaky_on(&hand);
    let cache_age_max = Duration::from_mins(10);
    let engine = start(store.clone(), Options { cache_age_max, ..Options::default() }).await;
    let route = ietf();
    completed(&engine, &route, "k", "paid").await;
    let asked = store.applies();
    hand.turn(cache_age_max);
    hand.turn_back(Duration::from_micros(1));
    replayed(&engine, &route, "k").await;
    assert_eq!(store.applies(), asked);
    hand.turn(Duration::from_micros(1));
    replayed(&engine, &route, "k").await;
    assert_eq!(store.applies(), asked + 1);
    replayed(&engine, &route, "k").await;
    assert_eq!(store.applies(), asked + 1, "believed anew");
}

/// The age counts from before the store was asked, not from when it answered: a forgotten answer must be gone everywhere when its
/// tombstone ends.
#[tokio::test]
async fn the_age_counts_from_before_the_store_was_asked() {
    let hand = Hand::new();
    let store = shaky_on(&hand);
    let cache_age_max = Duration::from_mins(10);
    let engine = start(store.clone(), Options { cache_age_max, ..Options::default() }).await;
    let route = ietf();
    let holder = held(&engine, &route, "k").await;
    store.queue(Fault::Delayed);
    let mut settling = Box::pin(done(holder, complete("paid")));
    tokio::select! {
        row = &mut settling => panic!("{row:?}"),
        () = store.until_delayed(1) => (),
    }
    hand.turn(cache_age_max);
    store.let_go();
    settling.await;
    let asked = store.applies();
    replayed(&engine, &route, "k").await;
    assert_eq!(store.applies(), asked + 1);
}

/// Only what is over for good is cached: not a release, not a doubt, not a lease.
#[tokio::test]
async fn nothing_but_completed_records_is_cached() {
    let engine = start(MemoryStore::new(), Options::default()).await;
    let route = ietf();
    done(held(&engine, &route, "released").await, release()).await;
    done(held(&engine, &route, "doubted").await, crate::world::doubt()).await;
    let holder = held(&engine, &route, "held").await;
    for key in ["released", "doubted", "held"] {
        drop(engine.arrive(&route, request(&route, key)).await.unwrap());
        engine.quiet().await;
    }
    assert_eq!(engine.stats().cache_bytes, 0);
    done(holder, complete("paid")).await;
    assert!(engine.stats().cache_bytes > 0);
    assert!(engine.read(id(&route, "held")).await.unwrap().is_some());
}

/// Past retention a cached answer is not replayed, whatever its age.
#[tokio::test]
async fn a_cached_answer_ends_with_its_retention() {
    let hand = Hand::new();
    let options = Options { cache_age_max: DURATION_MAX, ..Options::default() };
    let engine = start(shaky_on(&hand), options).await;
    let route = crate::world::route(|policy| policy.retention = HOUR);
    completed(&engine, &route, "k", "life 1").await;
    hand.turn(HOUR);
    done(held(&engine, &route, "k").await, complete("life 2")).await;
    assert_eq!(*replayed(&engine, &route, "k").await, answer("life 2"));
}
