//! One write that the database rejects fails alone (attack 31).

use std::time::Duration;

use oncegate_engine::{Arrived, Engine, Options, Route, Unavailable};
use oncegate_store::faulty::Fault;

use crate::world::{
    HOUR, Shaky, complete, done, granted, held, id, ietf, must_wait, request, shaky, soon, start,
};

const FAILURES: u32 = 3;
const BYSTANDERS: usize = 63;

async fn node(store: &Shaky) -> Engine<Shaky> {
    let options = Options { breaker_failures: FAILURES, breaker_pause: HOUR, ..Options::default() };
    start(store.clone(), options).await
}

/// These keys arrive while a commit is under way, so that they share the next one.
async fn arrive_together(
    store: &Shaky,
    engine: &Engine<Shaky>,
    route: &Route,
    keys: &[String],
) -> Vec<Result<Arrived<Shaky>, Unavailable>> {
    store.queue(Fault::Delayed);
    let blocking = format!("before {}", keys[0]);
    let mut first = Box::pin(engine.arrive(route, request(route, &blocking)));
    must_wait(&mut first).await;
    store.until_delayed(1).await;
    let mut waiting = Vec::new();
    for key in keys {
        let mut one = Box::pin(engine.arrive(route, request(route, key)));
        must_wait(&mut one).await;
        waiting.push(one);
    }
    store.let_go();
    let first = granted(soon(first).await.unwrap());
    let mut arrived = Vec::new();
    for one in waiting {
        arrived.push(soon(one).await);
    }
    // Settled last: its settlement must not join the batch.
    done(first, complete("paid")).await;
    arrived
}

/// A foreign key of the user's own, or a corrupt row, makes the database reject one write. It rejected
/// the whole batch with it: up to 511 other requests got 503, and a few such batches opened the
/// breaker for all. Now the batch is divided until only the culprit fails, and the breaker stays
/// closed.
#[tokio::test]
async fn attack_31_a_rejected_write_fails_alone_and_the_breaker_stays_closed() {
    let store = shaky();
    let engine = node(&store).await;
    let route = ietf();
    store.reject(id(&route, "culprit"), usize::MAX);
    for round in 0..=FAILURES {
        let mut keys: Vec<_> = (0..BYSTANDERS).map(|n| format!("bystander-{round}-{n}")).collect();
        keys.insert(usize::try_from(round).unwrap() * 20, "culprit".to_owned());
        let arrived = arrive_together(&store, &engine, &route, &keys).await;
        for (key, arrived) in keys.iter().zip(arrived) {
            if key == "culprit" {
                let Err(Unavailable::Store { words }) = arrived else { panic!("{arrived:?}") };
                assert!(words.contains("the database rejected the write"), "{words}");
            } else {
                done(granted(arrived.unwrap()), complete("paid")).await;
            }
        }
    }
    for _ in 0..=FAILURES {
        assert!(engine.arrive(&route, request(&route, "culprit")).await.is_err(), "also by itself");
    }
    done(held(&engine, &route, "afterwards").await, complete("paid")).await;
}

/// Dividing a batch costs few commits: about twice the logarithm of its size for one culprit.
#[tokio::test]
async fn one_rejected_write_among_many_costs_few_commits() {
    let store = shaky();
    let engine = node(&store).await;
    let route = ietf();
    store.reject(id(&route, "culprit"), usize::MAX);
    let mut keys: Vec<_> = (0..BYSTANDERS).map(|n| format!("bystander-{n}")).collect();
    keys.insert(20, "culprit".to_owned());
    let arrived = arrive_together(&store, &engine, &route, &keys).await;
    // The blocking write and its settlement, the batch of 64, and two halves for each of its six divisions.
    assert_eq!(store.applies(), 2 + 1 + 2 * 6);
    assert_eq!(arrived.iter().filter(|arrived| arrived.is_err()).count(), 1);
}

/// A batch in doubt may have landed, so nothing of it is tried again by itself: all in it hear of the
/// doubt. If it were divided, its parts would succeed here.
#[tokio::test]
async fn a_batch_in_doubt_is_not_divided() {
    let store = shaky();
    let options = Options { doubt_patience: Duration::ZERO, ..Options::default() };
    let engine = start(store.clone(), options).await;
    let route = ietf();
    let keys: Vec<_> = (0..4).map(|n| format!("k-{n}")).collect();
    store.queue(Fault::Delayed);
    store.queue(Fault::ConnectionLost);
    let mut first = Box::pin(engine.arrive(&route, request(&route, "first")));
    must_wait(&mut first).await;
    store.until_delayed(1).await;
    let mut waiting = Vec::new();
    for key in &keys {
        let mut one = Box::pin(engine.arrive(&route, request(&route, key)));
        must_wait(&mut one).await;
        waiting.push(one);
    }
    store.let_go();
    drop(soon(first).await.unwrap());
    for one in waiting {
        let arrived = soon(one).await;
        let Err(Unavailable::Store { words }) = arrived else { panic!("{arrived:?}") };
        assert!(words.contains("it is not known whether it was written"), "{words}");
    }
    soon(engine.quiet()).await;
}

/// What the database rejects of one write, and no longer rejects later, is settled then: a holder keeps
/// trying, and its neighbours in the batch do not wait for it.
#[tokio::test]
async fn a_settlement_that_was_rejected_is_tried_again() {
    let store = shaky();
    let engine = node(&store).await;
    let route = ietf();
    let mut holder = held(&engine, &route, "culprit").await;
    holder.begin().unwrap();
    store.reject(id(&route, "culprit"), 5);
    done(holder, complete("paid")).await;
    done(held(&engine, &route, "afterwards").await, complete("paid")).await;
}
