//! A duplicate waits for another's answer, and no wake-up is lost.

use std::time::{Duration, Instant};

use oncegate_core::policy::AfterDoubt;
use oncegate_engine::{Arrived, Options};
use oncegate_store::faulty::Fault;
use oncegate_store::memory::MemoryStore;

use crate::world::{
    HOUR, Hand, SOON, answer, complete, done, doubt, granted, happened, held, id, lenient, lenient_but,
    must_wait, release, replay, request, shaky, shaky_on, soon, start, sweep,
};

/// Nobody looks by itself, so that only a wake-up helps.
fn woken_only() -> Options {
    Options { wait_poll: HOUR, ..Options::default() }
}

/// The holder settles exactly between the waiter's look at the row and its wait: the store has answered "in progress", the
/// waiter has not heard it yet, and the wake-up comes meanwhile.
#[tokio::test]
async fn a_settlement_between_the_look_and_the_wait_wakes_the_waiter() {
    let store = shaky();
    let engine = start(store.clone(), woken_only()).await;
    let route = lenient_but(|policy| policy.wait_limit = HOUR);
    let holder = held(&engine, &route, "k").await;
    store.queue(Fault::Delayed);
    let mut waiter = Box::pin(engine.arrive_or_wait(&route, request(&route, "k")));
    must_wait(&mut waiter).await;
    store.let_go();
    store.until_applied(2).await;
    done(holder, complete("paid")).await;
    assert_eq!(*replay(soon(waiter).await.unwrap()), answer("paid"));
}

/// The holder dies. Nobody is told of a lapse, so the waiter looks when the lease ends.
#[tokio::test]
async fn a_waiter_looks_when_the_lease_lapses() {
    let engine = start(MemoryStore::new(), woken_only()).await;
    let route = lenient_but(|policy| {
        policy.lease = Duration::from_millis(100);
        policy.wait_limit = HOUR;
        policy.after_doubt = AfterDoubt::Reject;
    });
    let holder = held(&engine, &route, "k").await;
    let arrived = soon(engine.arrive_or_wait(&route, request(&route, "k"))).await.unwrap();
    assert!(matches!(arrived, Arrived::Unsettled { .. }), "{arrived:?}");
    drop(holder);
}

/// A client's patience has a limit: then it is told that somebody else is at it.
#[tokio::test]
async fn a_waiter_gives_up_at_the_wait_limit() {
    let engine = start(MemoryStore::new(), woken_only()).await;
    let route = lenient_but(|policy| policy.wait_limit = Duration::from_millis(50));
    let holder = held(&engine, &route, "k").await;
    let started = Instant::now();
    let arrived = soon(engine.arrive_or_wait(&route, request(&route, "k"))).await.unwrap();
    assert!(matches!(arrived, Arrived::Busy { .. }), "{arrived:?}");
    assert!(started.elapsed() >= Duration::from_millis(50));
    done(holder, complete("paid")).await;
}

/// The answer is recorded through another node, which cannot wake anybody here.
#[tokio::test]
async fn an_answer_that_another_node_recorded_is_found_by_looking() {
    let store = MemoryStore::new();
    let here = Options { wait_poll: Duration::from_millis(20), ..Options::default() };
    let (there, here) = (start(store.clone(), woken_only()).await, start(store, here).await);
    let route = lenient_but(|policy| policy.wait_limit = HOUR);
    let holder = held(&there, &route, "k").await;
    let mut waiter = Box::pin(here.arrive_or_wait(&route, request(&route, "k")));
    must_wait(&mut waiter).await;
    done(holder, complete("paid")).await;
    assert_eq!(*replay(soon(waiter).await.unwrap()), answer("paid"));
}

/// The outcome is unknown; the waiter waits on, and a probe finds the answer.
#[tokio::test]
async fn a_verdict_wakes_those_who_wait() {
    let store = shaky();
    let engine = start(store.clone(), woken_only()).await;
    let route = lenient_but(|policy| policy.wait_limit = HOUR);
    let holder = held(&engine, &route, "k").await;
    done(holder, doubt()).await;
    let mut waiter = Box::pin(engine.arrive_or_wait(&route, request(&route, "k")));
    must_wait(&mut waiter).await;
    store.until_applied(3).await;
    must_wait(&mut waiter).await;
    let _ = happened(&engine, id(&route, "k"), "found").await;
    assert_eq!(*replay(soon(waiter).await.unwrap()), answer("found"));
}

/// The holder could not even connect. One of those who wait runs it instead, and the others get its answer.
#[tokio::test]
async fn a_release_lets_one_of_those_who_wait_execute() {
    let engine = start(MemoryStore::new(), woken_only()).await;
    let route = lenient_but(|policy| policy.wait_limit = HOUR);
    let holder = held(&engine, &route, "k").await;
    let waiters = (0..20).map(|_| {
        let (engine, route) = (engine.clone(), route.clone());
        tokio::spawn(async move {
            match engine.arrive_or_wait(&route, request(&route, "k")).await.unwrap() {
                Arrived::Execute(held) => {
                    assert_eq!(held.lease().attempt, 2);
                    done(*held, complete("second try")).await;
                    1
                }
                arrived => {
                    assert_eq!(*replay(arrived), answer("second try"));
                    0
                }
            }
        })
    });
    let waiters: Vec<_> = waiters.collect();
    tokio::task::yield_now().await;
    done(holder, release()).await;
    let mut executed = 0;
    for waiter in waiters {
        executed += soon(waiter).await.unwrap();
    }
    assert_eq!(executed, 1);
}

/// The sweeper of this node finds the lapse: those who wait hear of it, also if their own timer is far away.
#[tokio::test]
async fn a_sweep_wakes_those_who_wait() {
    let hand = Hand::new();
    let store = shaky_on(&hand);
    let engine = start(store.clone(), woken_only()).await;
    let route = lenient_but(|policy| {
        policy.wait_limit = HOUR;
        policy.after_doubt = AfterDoubt::Reject;
    });
    let holder = held(&engine, &route, "k").await;
    let mut waiter = Box::pin(engine.arrive_or_wait(&route, request(&route, "k")));
    must_wait(&mut waiter).await;
    store.until_applied(2).await;
    must_wait(&mut waiter).await;
    hand.turn(HOUR);
    let _ = sweep(&engine, id(&route, "k")).await;
    let arrived = tokio::time::timeout(SOON, waiter).await.unwrap().unwrap();
    assert!(matches!(arrived, Arrived::Unsettled { .. }), "{arrived:?}");
    drop(holder);
}

/// A waiter whose client hangs up takes nothing with it and leaves nothing behind.
#[tokio::test]
async fn a_waiter_that_goes_away_reserves_nothing() {
    let store = shaky();
    let engine = start(store.clone(), woken_only()).await;
    let route = lenient();
    let holder = held(&engine, &route, "k").await;
    let mut waiter = Box::pin(engine.arrive_or_wait(&route, request(&route, "k")));
    must_wait(&mut waiter).await;
    store.until_applied(2).await;
    must_wait(&mut waiter).await;
    drop(waiter);
    engine.quiet().await;
    done(holder, release()).await;
    let next = engine.arrive(&route, request(&route, "k")).await.unwrap();
    assert_eq!(granted(next).lease().attempt, 2);
}
