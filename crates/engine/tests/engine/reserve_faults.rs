//! The store fails while a request reserves its key: nothing runs unreserved, and no key stays stuck.

use std::time::Duration;

use oncegate_core::record::StateKind;
use oncegate_engine::{Arrived, Engine, Options, Route, Unavailable};
use oncegate_store::faulty::Fault;

use crate::world::{
    HOUR, SOON, Shaky, complete, completed, done, granted, held, id, ietf, impatient, must_wait, release,
    replayed, request, row, shaky, soon, start, state,
};

async fn unavailable(engine: &Engine<Shaky>, route: &Route, key: &str) {
    let refused = soon(engine.arrive(route, request(route, key))).await;
    assert!(matches!(refused, Err(Unavailable::Store { .. })), "{refused:?}");
}

/// An error that says that nothing was written: refused, and there is nothing to clean up.
#[tokio::test]
async fn an_error_before_the_write_grants_nothing_and_leaves_nothing() {
    let store = shaky();
    let engine = start(store.clone(), Options::default()).await;
    let route = ietf();
    store.queue(Fault::BeforeWrite);
    unavailable(&engine, &route, "k").await;
    assert_eq!(engine.stats().behind, 0, "nothing to clean up");
    assert!(engine.read(id(&route, "k")).await.unwrap().is_none());
    assert_eq!(held(&engine, &route, "k").await.lease().attempt, 1);
}

/// As long as a busy machine may take.
fn patient() -> Options {
    Options { doubt_patience: SOON, ..Options::default() }
}

/// The reserve has landed and its acknowledgement is lost. The same write again finds its own token: granted, not busy.
#[tokio::test]
async fn a_lost_acknowledgement_is_found_by_writing_again() {
    for fault in [Fault::AcknowledgementLost, Fault::ConnectionLost, Fault::Panics] {
        let store = shaky();
        let engine = start(store.clone(), patient()).await;
        let route = ietf();
        store.queue(fault);
        let first = held(&engine, &route, "k").await;
        assert_eq!(store.applies(), 2, "{fault:?}");
        assert_eq!(first.lease().attempt, 1, "{fault:?}: one attempt, however often it was written");
        let second = engine.arrive(&route, request(&route, "k")).await.unwrap();
        assert!(matches!(second, Arrived::Busy { .. }), "{fault:?}: {second:?}");
        done(first, complete("once")).await;
    }
}

/// The store stays silent for longer than the client is made to wait: 503. Whether the write had landed or not, the key is
/// free again as soon as the clean-up is through.
#[tokio::test]
async fn a_doubt_that_outlasts_the_patience_is_refused_and_cleaned_up() {
    for (fault, attempt) in [
        (Fault::AcknowledgementLost, 2),
        (Fault::ConnectionLost, 1),
        (Fault::LandsLate, 1),
        (Fault::Panics, 1),
    ] {
        let store = shaky();
        let engine = start(store.clone(), impatient()).await;
        let route = ietf();
        store.queue(fault);
        unavailable(&engine, &route, "k").await;
        soon(engine.quiet()).await;
        assert_eq!(state(&engine, id(&route, "k")).await, StateKind::FailedRetryable, "{fault:?}");
        let next = held(&engine, &route, "k").await;
        assert_eq!(next.lease().attempt, attempt, "{fault:?}");
        done(next, complete("once")).await;
    }
}

/// The patience is the operator's choice, however long: a store that is away for two seconds, and a client that may wait.
#[tokio::test]
async fn a_doubt_is_tried_again_for_as_long_as_the_patience_lasts() {
    let store = shaky();
    let options = Options { doubt_patience: HOUR, breaker_failures: 1_000, ..Options::default() };
    let engine = start(store.clone(), options).await;
    for _ in 0..100 {
        store.queue(Fault::ConnectionLost);
    }
    assert_eq!(held(&engine, &ietf(), "k").await.lease().attempt, 1);
}

/// The store dies in the middle of the reserve. While it is dead everybody is refused; after its return the key is free.
#[tokio::test]
async fn a_dead_store_refuses_and_the_key_is_free_after_its_return() {
    for fault in [Fault::CrashBefore, Fault::CrashAfter] {
        let store = shaky();
        let options = Options { doubt_patience: Duration::from_millis(30), ..Options::default() };
        let engine = start(store.clone(), options).await;
        let route = ietf();
        store.queue(fault);
        unavailable(&engine, &route, "k").await;
        unavailable(&engine, &route, "k").await;
        store.revive();
        soon(engine.quiet()).await;
        done(held(&engine, &route, "k").await, complete("once")).await;
    }
}

/// Attack 11: a doubted insert lands after the clean-up. There is a row in its place by then, so it cannot.
#[tokio::test]
async fn an_insert_that_lands_after_its_clean_up_grants_nothing() {
    let store = shaky();
    let engine = start(store.clone(), impatient()).await;
    let route = ietf();
    store.queue(Fault::LandsLate);
    unavailable(&engine, &route, "k").await;
    soon(engine.quiet()).await;
    let cleaned = row(&engine, id(&route, "k")).await;
    assert!(store.land().await.unwrap());
    assert_eq!(row(&engine, id(&route, "k")).await, cleaned);
    done(held(&engine, &route, "k").await, complete("once")).await;
}

/// Attack 11, as seen on PostgreSQL: the clean-up is already on its way when the insert lands.
#[tokio::test]
async fn an_insert_that_lands_before_its_clean_up_is_released() {
    let store = shaky();
    let engine = start(store.clone(), impatient()).await;
    let route = ietf();
    store.queue(Fault::LandsLate);
    store.queue(Fault::Delayed);
    unavailable(&engine, &route, "k").await;
    store.until_delayed(1).await;
    assert!(store.land().await.unwrap());
    assert_eq!(state(&engine, id(&route, "k")).await, StateKind::InProgress);
    store.let_go();
    soon(engine.quiet()).await;
    assert_eq!(held(&engine, &route, "k").await.lease().attempt, 2);
}

/// Attack 11 where the reserve is a swap, over a released record: its version is raised, so the late swap cannot land.
#[tokio::test]
async fn a_swap_that_lands_after_its_clean_up_grants_nothing() {
    let store = shaky();
    let engine = start(store.clone(), impatient()).await;
    let route = ietf();
    done(held(&engine, &route, "k").await, release()).await;
    store.queue(Fault::None);
    store.queue(Fault::LandsLate);
    unavailable(&engine, &route, "k").await;
    soon(engine.quiet()).await;
    assert!(store.land().await.unwrap());
    assert_eq!(state(&engine, id(&route, "k")).await, StateKind::FailedRetryable);
    done(held(&engine, &route, "k").await, complete("once")).await;
}

/// Attack 10: the acknowledgement is lost, the client is told 503, and only then the row is found. Nothing may run under that
/// token any more: a retry is told to wait until the clean-up is through.
#[tokio::test]
async fn once_refused_nothing_runs_under_that_token() {
    let store = shaky();
    let engine = start(store.clone(), impatient()).await;
    let route = ietf();
    store.queue(Fault::AcknowledgementLost);
    store.queue(Fault::Delayed);
    unavailable(&engine, &route, "k").await;
    store.until_delayed(1).await;
    let mut retry = Box::pin(engine.arrive(&route, request(&route, "k")));
    must_wait(&mut retry).await;
    store.let_go();
    match soon(retry).await.unwrap() {
        Arrived::Busy { .. } => (),
        Arrived::Execute(held) => assert_eq!(held.lease().attempt, 2),
        other => panic!("{other:?}"),
    }
    soon(engine.quiet()).await;
    assert_eq!(state(&engine, id(&route, "k")).await, StateKind::FailedRetryable);
}

/// Attack 10, the other half: the clean-up itself is in doubt and comes a second time, when a newer holder runs already. It
/// must not release that one.
#[tokio::test]
async fn a_clean_up_never_releases_a_newer_holder() {
    let store = shaky();
    let engine = start(store.clone(), impatient()).await;
    let route = ietf();
    // The reserve lands; of the clean-up the first write shows the row, and the second one lands without an answer.
    for fault in [Fault::AcknowledgementLost, Fault::None, Fault::AcknowledgementLost] {
        store.queue(fault);
    }
    unavailable(&engine, &route, "k").await;
    store.until_applied(3).await;
    let newer = held(&engine, &route, "k").await;
    assert_eq!(newer.lease().attempt, 2);
    soon(engine.quiet()).await;
    assert!(row(&engine, id(&route, "k")).await.is_held_by(&newer.lease().holder));
    assert_eq!(state(&engine, id(&route, "k")).await, StateKind::InProgress);
    done(newer, complete("the newer holder's")).await;
}

/// Two requests with one key share a commit that fails. The second was never written, and is not cleaned up as if it had been.
#[tokio::test]
async fn a_duplicate_in_a_failed_commit_is_refused_too() {
    let store = shaky();
    let engine = start(store.clone(), impatient()).await;
    let route = ietf();
    store.queue(Fault::Delayed);
    store.queue(Fault::AcknowledgementLost);
    let mut blocker = Box::pin(engine.arrive(&route, request(&route, "blocker")));
    must_wait(&mut blocker).await;
    store.until_delayed(1).await;
    let mut first = Box::pin(engine.arrive(&route, request(&route, "k")));
    let mut second = Box::pin(engine.arrive(&route, request(&route, "k")));
    must_wait(&mut first).await;
    must_wait(&mut second).await;
    store.let_go();
    let blocker = granted(soon(blocker).await.unwrap());
    assert!(soon(second).await.is_err());
    assert_eq!(engine.stats().behind, 0, "nothing of the second can be there");
    assert!(soon(first).await.is_err());
    soon(engine.quiet()).await;
    completed(&engine, &route, "k", "once").await;
    done(blocker, complete("as well")).await;
    replayed(&engine, &route, "k").await;
}

/// A store is away for so long that the clean-up waits its longest between two tries. When it is back, the key is free within two seconds.
#[tokio::test]
async fn a_key_is_free_within_two_seconds_of_the_stores_return() {
    let store = shaky();
    let engine = start(store.clone(), impatient()).await;
    let route = ietf();
    store.queue(Fault::CrashAfter);
    engine.arrive(&route, request(&route, "k")).await.unwrap_err();
    // 50, 100, 200, 400, 800, 1,000 ms: the next pauses are as long as they get.
    soon(store.until_applied(8)).await;
    store.revive();
    let back = std::time::Instant::now();
    soon(engine.quiet()).await;
    assert!(back.elapsed() < Duration::from_secs(2), "it took {:?}", back.elapsed());
    assert_eq!(held(&engine, &route, "k").await.lease().attempt, 2);
}
