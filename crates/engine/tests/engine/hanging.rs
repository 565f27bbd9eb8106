//! A store that hangs, or panics.

use std::time::{Duration, Instant};

use oncegate_core::record::StateKind;
use oncegate_engine::{Arrived, Options, Unavailable};
use oncegate_store::faulty::Fault;

use crate::world::{
    Hand, complete, done, granted, held, id, ietf, impatient, must_wait, request, shaky, shaky_on, soon,
    start, state,
};

/// A store that answers no more. Its clients are told so within the timeout, not twice or thrice that; what the writer had not
/// begun is withdrawn and never lands; what it had begun is cleaned up.
#[tokio::test]
async fn a_store_that_hangs_refuses_within_the_timeout() {
    let store = shaky();
    let store_timeout = Duration::from_millis(500);
    let engine = start(store.clone(), Options { store_timeout, ..impatient() }).await;
    let route = ietf();
    store.queue(Fault::Delayed);
    let started = Instant::now();
    let mut taken = Box::pin(engine.arrive(&route, request(&route, "taken")));
    must_wait(&mut taken).await;
    store.until_delayed(1).await;
    let queued = engine.arrive(&route, request(&route, "queued"));
    let (taken, queued) = tokio::join!(taken, queued);
    assert!(matches!(taken, Err(Unavailable::Store { .. })), "{taken:?}");
    assert!(matches!(queued, Err(Unavailable::Store { .. })), "{queued:?}");
    assert!(started.elapsed() < 10 * store_timeout, "{:?}", started.elapsed());
    assert_eq!(engine.stats().behind, 1, "only what was begun can be there");
    store.let_go();
    soon(engine.quiet()).await;
    assert!(engine.read(id(&route, "queued")).await.unwrap().is_none(), "it was withdrawn");
    assert_eq!(state(&engine, id(&route, "taken")).await, StateKind::FailedRetryable);
    for key in ["taken", "queued"] {
        done(held(&engine, &route, key).await, complete("once")).await;
    }
}

/// The timeout is the whole wait of a client, also where the patience with a doubt has not been used up by an error.
#[tokio::test]
async fn a_timeout_uses_up_the_patience_with_a_doubt() {
    let store = shaky();
    let store_timeout = Duration::from_secs(2);
    let options = Options { store_timeout, doubt_patience: Duration::from_millis(50), ..Options::default() };
    let engine = start(store.clone(), options).await;
    let route = ietf();
    store.queue(Fault::Delayed);
    let started = Instant::now();
    let refused = soon(engine.arrive(&route, request(&route, "k"))).await;
    assert!(refused.is_err());
    assert!(started.elapsed() < 2 * store_timeout, "{:?}", started.elapsed());
    assert_eq!(engine.stats().behind, 1, "it is not asked again, but cleaned up");
    store.let_go();
    soon(engine.quiet()).await;
    assert_eq!(store.applies(), 3, "the reserve, and a clean-up that finds it and releases it");
    done(held(&engine, &route, "k").await, complete("once")).await;
}

/// A reserve whose second try hangs and is then withdrawn: the first one may have landed, so it is cleaned up.
#[tokio::test]
async fn a_withdrawn_second_try_does_not_hide_the_doubt_of_the_first() {
    let store = shaky();
    let store_timeout = Duration::from_millis(500);
    let options = Options { store_timeout, doubt_patience: Duration::from_secs(5), ..Options::default() };
    let engine = start(store.clone(), options).await;
    let route = ietf();
    store.queue(Fault::AcknowledgementLost);
    store.queue(Fault::Delayed);
    let mut reserve = Box::pin(engine.arrive(&route, request(&route, "k")));
    must_wait(&mut reserve).await;
    store.until_applied(1).await;
    // The writer takes this one next and hangs in it, before the reserve is tried again.
    let mut blocker = Box::pin(engine.arrive(&route, request(&route, "blocker")));
    must_wait(&mut blocker).await;
    store.until_delayed(1).await;
    assert!(soon(reserve).await.is_err());
    drop(blocker);
    store.let_go();
    soon(engine.quiet()).await;
    assert_eq!(held(&engine, &route, "k").await.lease().attempt, 2);
}

/// A panic of the store is one more error whose effect nobody knows; the writer goes on.
#[tokio::test]
async fn the_writer_survives_a_store_that_panics() {
    let store = shaky();
    let engine = start(store.clone(), Options { breaker_failures: 1_000, ..impatient() }).await;
    let route = ietf();
    for round in 0..5 {
        store.queue(Fault::Panics);
        let key = format!("k-{round}");
        let refused = soon(engine.arrive(&route, request(&route, &key))).await;
        assert!(matches!(refused, Err(Unavailable::Store { .. })), "{refused:?}");
        // Its clean-up, or that would meet the next round's fault in its place.
        soon(engine.quiet()).await;
    }
    for round in 0..5 {
        done(held(&engine, &route, &format!("k-{round}")).await, complete("once")).await;
    }
}

/// A retry comes while a write of the first hangs. It is not granted what the first may have reserved, and when all is over
/// exactly one of both can run.
#[tokio::test]
async fn a_retry_while_the_first_hangs_runs_only_after_its_clean_up() {
    let hand = Hand::new();
    let store = shaky_on(&hand);
    let engine =
        start(store.clone(), Options { store_timeout: Duration::from_millis(500), ..impatient() }).await;
    let route = ietf();
    store.queue(Fault::Delayed);
    assert!(soon(engine.arrive(&route, request(&route, "k"))).await.is_err());
    let mut retry = Box::pin(engine.arrive(&route, request(&route, "k")));
    must_wait(&mut retry).await;
    store.let_go();
    match soon(retry).await.unwrap() {
        Arrived::Busy { .. } => (),
        arrived => assert_eq!(granted(arrived).lease().attempt, 2, "after the clean-up"),
    }
    soon(engine.quiet()).await;
}
