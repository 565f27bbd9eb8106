//! Callers go away: whatever they held or may have reserved is accounted for.

use oncegate_core::record::StateKind;
use oncegate_engine::{Arrived, Options};
use oncegate_store::faulty::Fault;
use oncegate_store::memory::MemoryStore;

use crate::world::{
    SOON, complete, done, granted, held, id, ietf, must_wait, request, row, shaky, soon, start, state,
};

/// A client hangs up while its reserve waits behind a slow commit.
#[tokio::test]
async fn a_caller_that_leaves_the_queue_leaves_the_key_free() {
    let store = shaky();
    let engine = start(store.clone(), Options::default()).await;
    let route = ietf();
    store.queue(Fault::Delayed);
    let mut blocker = Box::pin(engine.arrive(&route, request(&route, "blocker")));
    must_wait(&mut blocker).await;
    store.until_delayed(1).await;
    let mut leaver = Box::pin(engine.arrive(&route, request(&route, "k")));
    must_wait(&mut leaver).await;
    drop(leaver);
    store.let_go();
    let blocker = granted(soon(blocker).await.unwrap());
    soon(engine.quiet()).await;
    done(held(&engine, &route, "k").await, complete("once")).await;
    done(blocker, complete("as well")).await;
}

/// A client hangs up while its reserve is being written.
#[tokio::test]
async fn a_caller_that_leaves_during_the_write_leaves_the_key_free() {
    let store = shaky();
    let engine = start(store.clone(), Options::default()).await;
    let route = ietf();
    store.queue(Fault::Delayed);
    let mut leaver = Box::pin(engine.arrive(&route, request(&route, "k")));
    must_wait(&mut leaver).await;
    store.until_delayed(1).await;
    drop(leaver);
    store.let_go();
    soon(engine.quiet()).await;
    assert_eq!(state(&engine, id(&route, "k")).await, StateKind::FailedRetryable);
    assert_eq!(held(&engine, &route, "k").await.lease().attempt, 2);
}

/// A client hangs up after its reserve was acknowledged, and before anybody has read the acknowledgement.
#[tokio::test]
async fn a_caller_that_leaves_before_it_hears_leaves_the_key_free() {
    let store = shaky();
    let engine = start(store.clone(), Options::default()).await;
    let route = ietf();
    store.queue(Fault::Delayed);
    let mut leaver = Box::pin(engine.arrive(&route, request(&route, "k")));
    must_wait(&mut leaver).await;
    store.let_go();
    store.until_applied(1).await;
    drop(leaver);
    soon(engine.quiet()).await;
    assert_eq!(held(&engine, &route, "k").await.lease().attempt, 2);
}

/// A duplicate hangs up: the holder does not notice.
#[tokio::test]
async fn a_duplicate_that_leaves_does_not_touch_the_holder() {
    let store = shaky();
    let engine = start(store.clone(), Options::default()).await;
    let route = ietf();
    let holder = held(&engine, &route, "k").await;
    store.queue(Fault::Delayed);
    let mut leaver = Box::pin(engine.arrive(&route, request(&route, "k")));
    must_wait(&mut leaver).await;
    store.until_delayed(1).await;
    drop(leaver);
    store.let_go();
    soon(engine.quiet()).await;
    assert!(row(&engine, id(&route, "k")).await.is_held_by(&holder.lease().holder));
    done(holder, complete("once")).await;
}

/// A handler is cancelled before it has sent anything.
#[tokio::test]
async fn a_lease_dropped_before_it_began_is_released() {
    let engine = start(MemoryStore::new(), Options::default()).await;
    let route = ietf();
    drop(held(&engine, &route, "k").await);
    soon(engine.quiet()).await;
    assert_eq!(state(&engine, id(&route, "k")).await, StateKind::FailedRetryable);
    assert_eq!(held(&engine, &route, "k").await.lease().attempt, 2);
}

/// A handler is cancelled after the first byte may have left.
#[tokio::test]
async fn a_lease_dropped_after_it_began_is_a_doubt() {
    let engine = start(MemoryStore::new(), Options::default()).await;
    let route = ietf();
    let mut holder = held(&engine, &route, "k").await;
    holder.begin().unwrap();
    drop(holder);
    soon(engine.quiet()).await;
    assert_eq!(state(&engine, id(&route, "k")).await, StateKind::Unknown);
    let retry = engine.arrive(&route, request(&route, "k")).await.unwrap();
    assert!(matches!(retry, Arrived::Unsettled { .. }), "{retry:?}");
}

/// The store is down when the lease is dropped: it is released when the store is back.
#[tokio::test]
async fn a_lease_dropped_while_the_store_is_down_is_released_later() {
    let store = shaky();
    let engine = start(store.clone(), Options::default()).await;
    let route = ietf();
    let holder = held(&engine, &route, "k").await;
    store.queue(Fault::CrashBefore);
    drop(holder);
    store.until_applied(2).await;
    store.revive();
    soon(engine.quiet()).await;
    assert_eq!(held(&engine, &route, "k").await.lease().attempt, 2);
}

/// Who forgets to say that it begins has begun all the same: its work may have had its effect.
#[tokio::test]
async fn work_that_was_run_and_dropped_is_doubt_also_if_nobody_said_that_it_begins() {
    let engine = start(shaky(), Options::default()).await;
    let route = ietf();
    let mut holder = held(&engine, &route, "k").await;
    {
        let mut running = Box::pin(holder.run(std::future::pending::<()>()));
        must_wait(&mut running).await;
    }
    drop(holder);
    soon(engine.quiet()).await;
    assert_eq!(state(&engine, id(&route, "k")).await, StateKind::Unknown);
}

/// A caller asks about one arrival twice, as after an error: the token is another, so the second is a duplicate like any other.
#[tokio::test]
async fn one_arrival_asked_about_twice_is_granted_once() {
    let engine = start(shaky(), Options::default()).await;
    let route = ietf();
    let arrival = request(&route, "k");
    let holder = granted(engine.arrive(&route, arrival.clone()).await.unwrap());
    let second = engine.arrive(&route, arrival).await.unwrap();
    assert!(matches!(second, Arrived::Busy { .. }), "{second:?}");
    done(holder, complete("once")).await;
}

/// A server that has closed its connections asks whether it may end: not while an attempt is running.
#[tokio::test]
async fn a_shutdown_waits_for_attempts_that_nobody_waits_for() {
    let engine = start(shaky(), Options::default()).await;
    let route = ietf();
    assert!(engine.drain(SOON).await, "nothing is running");
    let holder = held(&engine, &route, "k").await;
    assert!(!engine.drain(std::time::Duration::ZERO).await, "somebody holds a lease");
    let drained = tokio::spawn({
        let engine = engine.clone();
        async move { engine.drain(SOON).await }
    });
    done(holder, complete("once")).await;
    assert!(drained.await.unwrap());
    assert_eq!(state(&engine, id(&route, "k")).await, StateKind::Completed);
}
