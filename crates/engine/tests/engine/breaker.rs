//! The circuit breaker: while the store is down nobody waits to be told so.

use std::time::Duration;

use oncegate_engine::{Engine, Options, Route, Unavailable};
use oncegate_store::faulty::Fault;
use oncegate_test_servers::until;

use crate::world::{
    HOUR, Shaky, answer, complete, completed, done, granted, held, ietf, poll_once, replayed, request, shaky,
    soon, start,
};

const FAILURES: u32 = 3;

async fn fails(store: &Shaky, engine: &Engine<Shaky>, route: &Route, times: u32) {
    for n in 0..times {
        store.queue(Fault::BeforeWrite);
        let refused = engine.arrive(route, request(route, &format!("failing-{n}"))).await;
        assert!(matches!(refused, Err(Unavailable::Store { .. })), "{refused:?}");
    }
}

/// After so many failures in a row the store is left alone; cached answers are still given.
#[tokio::test]
async fn after_failures_in_a_row_the_store_is_left_alone() {
    let store = shaky();
    let options = Options { breaker_failures: FAILURES, breaker_pause: HOUR, ..Options::default() };
    let engine = start(store.clone(), options).await;
    let route = ietf();
    completed(&engine, &route, "k", "paid").await;
    fails(&store, &engine, &route, FAILURES - 1).await;
    drop(held(&engine, &route, "not in a row").await);
    engine.quiet().await;
    fails(&store, &engine, &route, FAILURES).await;
    let asked = store.applies();
    for n in 0..50 {
        let refused = engine.arrive(&route, request(&route, &format!("n-{n}"))).await;
        assert!(matches!(refused, Err(Unavailable::BreakerOpen { .. })), "{refused:?}");
        assert_eq!(*replayed(&engine, &route, "k").await, answer("paid"));
    }
    assert_eq!(store.applies(), asked, "nobody asked the store");
}

/// While open, one request each pause looks whether the store is back, and only one.
#[tokio::test]
async fn half_open_lets_one_through() {
    let store = shaky();
    let breaker_pause = Duration::from_secs(1);
    let options = Options { breaker_failures: FAILURES, breaker_pause, ..Options::default() };
    let engine = start(store.clone(), options).await;
    let route = ietf();
    fails(&store, &engine, &route, FAILURES).await;
    store.queue(Fault::Delayed);
    let mut admitted = Vec::new();
    until("somebody is admitted", async || {
        for n in 0..20 {
            let mut one = Box::pin(engine.arrive(&route, request(&route, &format!("n-{n}"))));
            match poll_once(&mut one).await {
                None => admitted.push(one),
                Some(refused) => assert!(refused.is_err(), "{refused:?}"),
            }
        }
        !admitted.is_empty()
    })
    .await;
    assert_eq!(admitted.len(), 1, "the others are refused while it looks");
    store.let_go();
    for one in admitted {
        done(granted(soon(one).await.unwrap()), complete("the store is back")).await;
    }
    // Closed again: everybody is admitted.
    for n in 0..20 {
        completed(&engine, &route, &format!("after-{n}"), "paid").await;
    }
}

/// The one that looks finds the store still dead: closed for another pause. Then the store is back, and one look is enough.
#[tokio::test]
async fn a_look_that_fails_costs_another_pause_and_one_that_succeeds_ends_it() {
    let store = shaky();
    let breaker_pause = Duration::from_millis(20);
    let options = Options { breaker_failures: FAILURES, breaker_pause, ..Options::default() };
    let engine = start(store.clone(), options).await;
    let route = ietf();
    fails(&store, &engine, &route, FAILURES).await;
    for round in 0..3 {
        store.queue(Fault::BeforeWrite);
        let asked = store.applies();
        until("the store is asked", async || {
            assert!(engine.arrive(&route, request(&route, "k")).await.is_err());
            store.applies() > asked
        })
        .await;
        assert_eq!(store.applies(), asked + 1, "round {round}");
    }
    let mut found = None;
    until("the store is found", async || {
        found = engine.arrive(&route, request(&route, "k")).await.ok();
        found.is_some()
    })
    .await;
    for n in 0..20 {
        completed(&engine, &route, &format!("after-{n}"), "paid").await;
    }
}

/// An attempt that was under way is settled although the breaker is open: only new requests are refused. Its success closes it.
#[tokio::test]
async fn settlements_are_not_held_back_and_their_success_closes_it() {
    let store = shaky();
    let options = Options { breaker_failures: FAILURES, breaker_pause: HOUR, ..Options::default() };
    let engine = start(store.clone(), options).await;
    let route = ietf();
    let holder = held(&engine, &route, "k").await;
    fails(&store, &engine, &route, FAILURES).await;
    assert!(engine.arrive(&route, request(&route, "n")).await.is_err());
    done(holder, complete("paid")).await;
    completed(&engine, &route, "n", "paid").await;
}

/// A store that hangs fails nobody by itself: those who give up waiting for it are its failures.
#[tokio::test]
async fn a_store_that_hangs_is_left_alone_too() {
    let store = shaky();
    let store_timeout = Duration::from_millis(20);
    let (breaker_failures, breaker_pause) = (FAILURES, HOUR);
    let options = Options {
        breaker_failures,
        breaker_pause,
        store_timeout,
        doubt_patience: Duration::ZERO,
        ..Options::default()
    };
    let engine = start(store.clone(), options).await;
    let route = ietf();
    store.queue(Fault::Delayed);
    for n in 0..FAILURES {
        let refused = engine.arrive(&route, request(&route, &format!("hanging-{n}"))).await;
        assert!(matches!(refused, Err(Unavailable::Store { .. })), "{refused:?}");
    }
    // Refused at once: it does not even wait.
    let mut next = Box::pin(engine.arrive(&route, request(&route, "next")));
    assert!(matches!(poll_once(&mut next).await, Some(Err(Unavailable::BreakerOpen { .. }))));
    drop(next);
    store.let_go();
    soon(engine.quiet()).await;
}
