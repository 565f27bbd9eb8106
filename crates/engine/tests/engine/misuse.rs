//! Same key, other request; same key, other tenant.

use oncegate_engine::{Arrived, Engine, Options, Route};
use oncegate_store::Store;
use oncegate_store::memory::MemoryStore;

use crate::world::{
    answer, complete, completed, did_not_happen, done, doubt, granted, happened, held, id, ietf, lenient,
    release, replayed, request_of, start,
};

async fn is_refused<S: Store>(engine: &Engine<S>, route: &Route) -> bool {
    let arrived = engine.arrive(route, request_of(route, "acme", "k", "100 for Eve")).await.unwrap();
    matches!(arrived, Arrived::Mismatch { .. })
}

/// A key is used again for another request, at every moment of the first one's life. It is always told, it never runs, and
/// it never changes what becomes of the first.
#[tokio::test]
async fn another_request_is_refused_in_every_state() {
    let store = MemoryStore::new();
    let engine = start(store.clone(), Options::default()).await;
    let route = ietf();
    let first = held(&engine, &route, "k").await;
    assert!(is_refused(&engine, &route).await, "in progress");
    done(first, release()).await;
    assert!(is_refused(&engine, &route).await, "released");
    let second = held(&engine, &route, "k").await;
    assert_eq!(second.lease().attempt, 2);
    done(second, doubt()).await;
    assert!(is_refused(&engine, &route).await, "unknown");
    let _ = did_not_happen(&engine, id(&route, "k")).await;
    assert!(is_refused(&engine, &route).await, "reconciled");
    let third = held(&engine, &route, "k").await;
    done(third, complete("for Ada")).await;
    assert!(is_refused(&engine, &route).await, "completed, from the cache");
    let other = start(store, Options::default()).await;
    assert!(is_refused(&other, &route).await, "completed, from the store");
    for engine in [&engine, &other] {
        assert_eq!(*replayed(engine, &route, "k").await, answer("for Ada"), "the first answer still replays");
    }
}

/// A probe completed it: still only for the request that it was.
#[tokio::test]
async fn another_request_is_refused_after_a_verdict() {
    let engine = start(MemoryStore::new(), Options::default()).await;
    let route = ietf();
    done(held(&engine, &route, "k").await, doubt()).await;
    let _ = happened(&engine, id(&route, "k"), "found").await;
    assert!(is_refused(&engine, &route).await);
    assert_eq!(*replayed(&engine, &route, "k").await, answer("found"));
}

/// Two tenants chose the same key, as UUIDs from a bad generator do.
#[tokio::test]
async fn another_tenant_has_keys_of_its_own() {
    let engine = start(MemoryStore::new(), Options::default()).await;
    let route = ietf();
    completed(&engine, &route, "k", "for acme").await;
    let theirs = engine.arrive(&route, request_of(&route, "umbrella", "k", "100 for Ada")).await.unwrap();
    done(granted(theirs), complete("for umbrella")).await;
    assert_eq!(*replayed(&engine, &route, "k").await, answer("for acme"));
}

/// `lenient` is for clients that one cannot change: misuse is replayed, and counted.
#[tokio::test]
async fn under_lenient_another_request_gets_the_first_answer() {
    let engine = start(MemoryStore::new(), Options::default()).await;
    let route = lenient();
    completed(&engine, &route, "k", "for Ada").await;
    let arrived = engine.arrive(&route, request_of(&route, "acme", "k", "100 for Eve")).await.unwrap();
    assert_eq!(*crate::world::replay(arrived), answer("for Ada"));
}
