//! The store fails while an attempt is settled: it is tried until it is recorded, and nothing is told before.

use std::time::Duration;

use oncegate_core::record::StateKind;
use oncegate_engine::{Arrived, Options, StillSettling};
use oncegate_store::faulty::Fault;

use crate::world::{
    HOUR, Hand, answer, complete, done, doubt, held, id, ietf, must_wait, poll_once, release, replayed,
    request, shaky, shaky_on, soon, start, state,
};

/// Every way in which one write can fail, and the settlement is recorded all the same: another node replays it.
#[tokio::test]
async fn a_settlement_is_tried_until_it_is_recorded() {
    for fault in [
        Fault::BeforeWrite,
        Fault::AcknowledgementLost,
        Fault::ConnectionLost,
        Fault::LandsLate,
        Fault::Panics,
    ] {
        let store = shaky();
        let engine = start(store.clone(), Options::default()).await;
        let route = ietf();
        let holder = held(&engine, &route, "k").await;
        store.queue(fault);
        soon(done(holder, complete("paid"))).await;
        store.land().await.unwrap();
        let other = start(store, Options::default()).await;
        assert_eq!(*replayed(&other, &route, "k").await, answer("paid"), "{fault:?}");
    }
}

/// A release and a doubt are no less stubborn.
#[tokio::test]
async fn a_release_and_a_doubt_are_recorded_too() {
    for fault in [Fault::BeforeWrite, Fault::AcknowledgementLost, Fault::ConnectionLost] {
        let store = shaky();
        let engine = start(store.clone(), Options::default()).await;
        let route = ietf();
        for (key, settlement, kind) in
            [("r", release(), StateKind::FailedRetryable), ("d", doubt(), StateKind::Unknown)]
        {
            let holder = held(&engine, &route, key).await;
            store.queue(fault);
            soon(done(holder, settlement)).await;
            assert_eq!(state(&engine, id(&route, key)).await, kind, "{fault:?}");
        }
    }
}

/// The store dies, before or after the write, and stays away past the lease's end. The holder knows what happened, and says
/// so when the store is back.
#[tokio::test]
async fn a_settlement_outlasts_a_dead_store_and_its_own_lease() {
    for fault in [Fault::CrashBefore, Fault::CrashAfter] {
        let hand = Hand::new();
        let store = shaky_on(&hand);
        let engine = start(store.clone(), Options::default()).await;
        let route = ietf();
        let mut holder = held(&engine, &route, "k").await;
        holder.begin().unwrap();
        store.queue(fault);
        let mut settling = Box::pin(done(holder, complete("paid")));
        must_wait(&mut settling).await;
        store.until_applied(2).await;
        must_wait(&mut settling).await;
        hand.turn(HOUR);
        store.revive();
        soon(settling).await;
        assert_eq!(*replayed(&engine, &route, "k").await, answer("paid"), "{fault:?}");
    }
}

/// Attack 13: the client's patience ends before its answer is recorded. It is told that the outcome is unknown, not the answer;
/// a retry is not told either; and once it is recorded, the retry gets it.
#[tokio::test]
async fn what_is_not_recorded_is_not_told() {
    let store = shaky();
    let engine = start(store.clone(), Options { breaker_failures: 1_000, ..Options::default() }).await;
    let route = ietf();
    let mut holder = held(&engine, &route, "k").await;
    holder.begin().unwrap();
    store.queue(Fault::CrashBefore);
    let patience = Duration::from_millis(50);
    let settled = holder.settle_within(complete("refused by the bank"), patience).await;
    assert!(matches!(settled, Err(StillSettling)), "{settled:?}");
    assert_eq!(engine.stats().behind, 1, "settling goes on");
    assert!(engine.arrive(&route, request(&route, "k")).await.is_err(), "the store is down");
    store.revive();
    let retry = engine.arrive(&route, request(&route, "k")).await.unwrap();
    assert!(matches!(retry, Arrived::Busy { .. } | Arrived::Replay { .. }), "{retry:?}");
    soon(engine.quiet()).await;
    assert_eq!(*replayed(&engine, &route, "k").await, answer("refused by the bank"));
}

/// The store answers in time: no patience is needed.
#[tokio::test]
async fn settling_within_a_patience_is_settling() {
    let engine = start(shaky(), Options::default()).await;
    let route = ietf();
    let holder = held(&engine, &route, "k").await;
    assert!(holder.settle_within(complete("paid"), HOUR).await.is_ok());
    assert_eq!(engine.stats().behind, 0);
    assert_eq!(*replayed(&engine, &route, "k").await, answer("paid"));
}

/// While a completion waits in a store that hangs, nobody is answered from it: the cache learns of it after the commit.
#[tokio::test]
async fn nothing_is_replayed_before_its_commit() {
    let store = shaky();
    let engine = start(store.clone(), Options::default()).await;
    let route = ietf();
    let holder = held(&engine, &route, "k").await;
    store.queue(Fault::Delayed);
    let mut settling = Box::pin(done(holder, complete("paid")));
    must_wait(&mut settling).await;
    store.until_delayed(1).await;
    let mut duplicate = Box::pin(engine.arrive(&route, request(&route, "k")));
    assert!(poll_once(&mut duplicate).await.is_none(), "it must ask the store");
    store.let_go();
    soon(settling).await;
    assert!(matches!(soon(duplicate).await.unwrap(), Arrived::Replay { .. }));
}

/// Whoever settles goes away in the middle of it, with the store down. What it said is recorded all the same, and not a doubt, or
/// worse a release, in its place.
#[tokio::test]
async fn a_settlement_whose_caller_goes_away_is_recorded_as_it_was_said() {
    let route = ietf();
    for begins in [true, false] {
        let store = shaky();
        let engine = start(store.clone(), Options::default()).await;
        let mut holder = held(&engine, &route, "k").await;
        if begins {
            holder.begin().unwrap();
        }
        store.queue(Fault::CrashBefore);
        let mut settling = Box::pin(holder.settle(complete("paid")));
        must_wait(&mut settling).await;
        store.until_applied(2).await;
        must_wait(&mut settling).await;
        drop(settling);
        store.revive();
        soon(engine.quiet()).await;
        assert_eq!(*replayed(&engine, &route, "k").await, answer("paid"), "begun: {begins}");
    }
}
