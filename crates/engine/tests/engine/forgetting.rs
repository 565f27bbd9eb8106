//! Attack 16: an operator drops an answer, and it is gone everywhere before the key can run again.

use std::time::Duration;

use oncegate_core::decide::{Decision, Refusal};
use oncegate_core::key::Key;
use oncegate_core::record::Reason;
use oncegate_engine::{Arrived, Engine, Options, Route};
use oncegate_store::Store;
use oncegate_store::faulty::Fault;

use crate::world::{
    Hand, Shaky, answer, complete, completed, done, held, ietf, must_wait, replay, replayed, request, scope,
    shaky, shaky_on, soon, start,
};

const AGE: Duration = Duration::from_mins(10);

fn aging() -> Options {
    Options { cache_age_max: AGE, ..Options::default() }
}

async fn forget<S: Store>(engine: &Engine<S>, route: &Route) -> Decision {
    let key = Key::from_text("k").unwrap();
    engine.forget(scope(route), key, Reason::new("privacy", "asked for")).await.unwrap()
}

async fn is_gone(engine: &Engine<Shaky>, route: &Route) -> bool {
    matches!(engine.arrive(route, request(route, "k")).await.unwrap(), Arrived::Gone { .. })
}

/// On the node where it is forgotten nothing is replayed from then on.
#[tokio::test]
async fn a_forgotten_answer_is_gone_here_at_once() {
    let engine = start(shaky(), Options::default()).await;
    let route = ietf();
    completed(&engine, &route, "k", "paid").await;
    replayed(&engine, &route, "k").await;
    assert_eq!(forget(&engine, &route).await, Decision::Done);
    assert_eq!(engine.stats().cache_bytes, 0);
    assert!(is_gone(&engine, &route).await);
    assert_eq!(forget(&engine, &route).await, Decision::Nothing, "twice is once");
}

/// Another node may replay it until its entry is too old, and the key stays shut for at least as long: whenever somebody may begin a
/// new life, nobody replays the old one.
#[tokio::test]
async fn a_forgotten_answer_is_gone_everywhere_before_the_key_opens() {
    let hand = Hand::new();
    let store = shaky_on(&hand);
    let (here, there) = (start(store.clone(), aging()).await, start(store.clone(), aging()).await);
    let route = ietf();
    completed(&here, &route, "k", "paid").await;
    hand.turn(AGE);
    replayed(&there, &route, "k").await;
    assert_eq!(forget(&here, &route).await, Decision::Done);
    let mut replays = 0;
    let opened_after = loop {
        hand.turn(Duration::from_secs(1));
        match here.arrive(&route, request(&route, "k")).await.unwrap() {
            Arrived::Gone { .. } => (),
            arrived => break crate::world::granted(arrived),
        }
        match there.arrive(&route, request(&route, "k")).await.unwrap() {
            Arrived::Gone { .. } => (),
            arrived => {
                assert_eq!(*replay(arrived), answer("paid"));
                replays += 1;
            }
        }
    };
    assert_eq!(replays, AGE.as_secs() - 1, "up to its age limit and no longer");
    let seen = there.arrive(&route, request(&route, "k")).await.unwrap();
    assert!(matches!(seen, Arrived::Busy { .. }), "{seen:?}");
    drop(opened_after);
}

/// The store is slow to forget: meanwhile another node reads the answer and caches it. Its age counts from then, so the tombstone must
/// last a little longer than the age limit counted from the operator's act.
#[tokio::test]
async fn an_answer_read_while_it_is_being_forgotten_is_gone_before_the_key_opens() {
    let hand = Hand::new();
    let store = shaky_on(&hand);
    let (here, there) = (start(store.clone(), aging()).await, start(store.clone(), aging()).await);
    let route = ietf();
    completed(&here, &route, "k", "paid").await;
    store.queue(Fault::Delayed);
    let mut forgetting = Box::pin(forget(&here, &route));
    must_wait(&mut forgetting).await;
    store.until_delayed(1).await;
    hand.turn(Duration::from_secs(3));
    replayed(&there, &route, "k").await;
    store.let_go();
    assert_eq!(soon(forgetting).await, Decision::Done);
    hand.turn(AGE);
    hand.turn_back(Duration::from_secs(1));
    replayed(&there, &route, "k").await;
    assert!(is_gone(&here, &route).await, "somebody still replays it");
}

/// The acknowledgement of the forgetting is lost. It may have landed, so this node stops replaying in any case.
#[tokio::test]
async fn a_forgetting_in_doubt_stops_the_replays_here() {
    let store = shaky();
    let engine = start(store.clone(), Options::default()).await;
    let route = ietf();
    completed(&engine, &route, "k", "paid").await;
    store.queue(Fault::AcknowledgementLost);
    let key = Key::from_text("k").unwrap();
    assert!(engine.forget(scope(&route), key, Reason::new("privacy", "asked for")).await.is_err());
    assert!(is_gone(&engine, &route).await);
}

/// A duplicate has been shown the answer and has not yet put it into the cache when it is forgotten. It may still answer its own
/// client, who came before; but it must not bring the answer back for others.
#[tokio::test]
async fn a_read_that_raced_with_forgetting_resurrects_nothing() {
    let store = shaky();
    let recorder = start(store.clone(), Options::default()).await;
    let engine = start(store.clone(), Options::default()).await;
    let route = ietf();
    completed(&recorder, &route, "k", "paid").await;
    store.queue(Fault::Delayed);
    let mut duplicate = Box::pin(engine.arrive(&route, request(&route, "k")));
    must_wait(&mut duplicate).await;
    store.let_go();
    store.until_applied(3).await;
    assert_eq!(forget(&engine, &route).await, Decision::Done);
    assert_eq!(*replay(soon(duplicate).await.unwrap()), answer("paid"));
    assert_eq!(engine.stats().cache_bytes, 0);
    assert!(is_gone(&engine, &route).await);
}

/// Only what is settled can be forgotten: a lease is somebody's.
#[tokio::test]
async fn what_is_not_settled_is_not_forgotten() {
    let engine = start(shaky(), Options::default()).await;
    let route = ietf();
    assert_eq!(forget(&engine, &route).await, Decision::Nothing, "no row");
    let holder = held(&engine, &route, "k").await;
    assert_eq!(forget(&engine, &route).await, Decision::Refused(Refusal::NotSettled));
    done(holder, complete("paid")).await;
    replayed(&engine, &route, "k").await;
}
