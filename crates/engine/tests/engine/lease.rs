//! Attack 2: nothing is sent once the lease may have ended, and what was never sent is not left in doubt.

use std::time::Duration;

use oncegate_core::record::StateKind;
use oncegate_engine::{LeaseEnded, Options, Unavailable};
use oncegate_store::faulty::Fault;
use oncegate_test_servers::until;

use crate::world::{
    HOUR, Hand, complete, done, doubt, held, id, ietf, must_wait, request, route, shaky_on, soon, start,
    state, sweep,
};

/// The store acknowledges a reserve after its lease has ended: by then anybody may have swept it, so nothing is granted. It did
/// not run either, so the key is free.
#[tokio::test]
async fn a_reserve_that_is_acknowledged_too_late_grants_nothing() {
    let hand = Hand::new();
    let store = shaky_on(&hand);
    let engine = start(store.clone(), Options::default()).await;
    let route = ietf();
    store.queue(Fault::Delayed);
    let mut reserve = Box::pin(engine.arrive(&route, request(&route, "k")));
    must_wait(&mut reserve).await;
    store.until_delayed(1).await;
    hand.turn(HOUR);
    store.let_go();
    let refused = soon(reserve).await;
    assert!(matches!(refused, Err(Unavailable::Store { .. })), "{refused:?}");
    soon(engine.quiet()).await;
    assert_eq!(state(&engine, id(&route, "k")).await, StateKind::FailedRetryable);
    done(held(&engine, &route, "k").await, complete("once")).await;
}

/// The same where the acknowledgement was lost, and the second try finds the own row with a lease that has ended: whether others
/// would already call it lapsed or not, nothing ran under it, so it is released and not left to be reconciled.
#[tokio::test]
async fn an_own_reserve_that_is_found_too_late_is_released() {
    for error in [Duration::ZERO, Duration::from_secs(30)] {
        let hand = Hand::new();
        let store = shaky_on(&hand);
        let clock = Some(hand.late(Duration::ZERO, error));
        let engine = start(store.clone(), Options { clock, ..Options::default() }).await;
        let route = ietf();
        store.queue(Fault::AcknowledgementLost);
        store.queue(Fault::Delayed);
        let mut reserve = Box::pin(engine.arrive(&route, request(&route, "k")));
        tokio::select! {
            arrived = &mut reserve => panic!("{arrived:?}"),
            () = store.until_delayed(1) => (),
        }
        hand.turn(route.policy().lease);
        store.let_go();
        let refused = soon(reserve).await;
        assert!(matches!(refused, Err(Unavailable::Store { .. })), "{refused:?}");
        soon(engine.quiet()).await;
        assert_eq!(state(&engine, id(&route, "k")).await, StateKind::FailedRetryable, "ε = {error:?}");
    }
}

/// A holder is paused between its grant and its first byte, for longer than its lease. It may not begin; and because it has sent
/// nothing, the key is free for the retry.
#[tokio::test]
async fn a_holder_that_wakes_after_its_lease_may_not_begin() {
    let hand = Hand::new();
    let engine = start(shaky_on(&hand), Options::default()).await;
    let route = ietf();
    let mut holder = held(&engine, &route, "k").await;
    let permit = holder.permit();
    assert_eq!(permit.check(), Ok(()));
    hand.turn(route.policy().lease);
    assert_eq!(permit.check(), Err(LeaseEnded));
    assert_eq!(holder.begin(), Err(LeaseEnded));
    // Even if somebody has swept it meanwhile: nobody but the holder can know that nothing was sent.
    let _ = sweep(&engine, id(&route, "k")).await;
    assert_eq!(state(&engine, id(&route, "k")).await, StateKind::Unknown);
    drop(holder);
    soon(engine.quiet()).await;
    assert_eq!(held(&engine, &route, "k").await.lease().attempt, 2);
}

/// A holder stops by its own clock's error before the end, because others may be ahead of it.
#[tokio::test]
async fn a_holder_stops_within_its_clock_error_of_the_end() {
    let hand = Hand::new();
    let error = Duration::from_secs(1);
    let options = Options { clock: Some(hand.late(Duration::ZERO, error)), ..Options::default() };
    let engine = start(shaky_on(&hand), options).await;
    let route = ietf();
    let mut holder = held(&engine, &route, "k").await;
    hand.turn(route.policy().lease);
    hand.turn_back(error + Duration::from_micros(1));
    assert_eq!(holder.permit().check(), Ok(()));
    hand.turn(Duration::from_micros(1));
    assert_eq!(holder.begin(), Err(LeaseEnded));
}

/// A renewal finds that the lease is no longer ours. By the clock it would still hold, but nothing may be sent any more.
#[tokio::test]
async fn a_fenced_renewal_ends_the_permit() {
    let hand = Hand::new();
    let engine = start(shaky_on(&hand), Options::default()).await;
    let route = route(|policy| policy.lease = Duration::from_millis(60));
    let mut holder = held(&engine, &route, "k").await;
    holder.begin().unwrap();
    let permit = holder.permit();
    // Somebody whose clock is ahead has swept it.
    hand.turn(HOUR);
    let _ = sweep(&engine, id(&route, "k")).await;
    hand.turn_back(HOUR);
    assert_eq!(permit.check(), Ok(()), "not known here yet");
    let noticed = until("the holder has noticed", async || permit.check().is_err());
    soon(holder.run(noticed)).await;
    assert_eq!(holder.begin(), Err(LeaseEnded));
    done(holder, doubt()).await;
}
