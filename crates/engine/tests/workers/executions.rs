//! By option the audit trail tells of every first execution too.

use oncegate_core::audit::Act;
use oncegate_engine::{Options, Worker};

use crate::crew::{Script, acts, doubted, found, named, pass, reconcile};
use crate::world::{
    Hand, complete, completed, done, held, id, ietf, release, replayed, request, route, shaky_on, start,
};

#[tokio::test]
async fn a_first_execution_is_told_once_if_it_is_wanted() {
    for is_wanted in [true, false] {
        let hand = Hand::new();
        let options = Options { audit_executions: is_wanted, ..named("a") };
        let engine = start(shaky_on(&hand), options).await;
        let route = ietf();
        let began: &[Act] = if is_wanted { &[Act::Began] } else { &[] };
        completed(&engine, &route, "paid", "paid").await;
        for _ in 0..3 {
            replayed(&engine, &route, "paid").await;
        }
        assert_eq!(acts(&engine, id(&route, "paid")).await, began, "and nothing of replays");
        // A retry is told anyway, as what it is.
        done(held(&engine, &route, "retried").await, release()).await;
        let retry = held(&engine, &route, "retried").await;
        drop(engine.arrive(&route, request(&route, "retried")).await.unwrap());
        done(retry, complete("paid")).await;
        let expected = [began, &[Act::Released, Act::RanAgain]].concat();
        assert_eq!(acts(&engine, id(&route, "retried")).await, expected);
    }
}

/// A renewal, a claim and a sweep that finds nothing are no story either.
#[tokio::test]
async fn a_new_life_is_told_and_routine_is_not() {
    let hand = Hand::new();
    let engine = start(shaky_on(&hand), named("a")).await;
    let route = route(|policy| policy.retention = crate::world::HOUR);
    completed(&engine, &route, "k", "life 1").await;
    pass(&engine, Worker::Sweeper).await;
    pass(&engine, Worker::Reaper).await;
    hand.turn(crate::world::HOUR);
    // Not reaped yet: the second life begins over the first one's row.
    completed(&engine, &route, "k", "life 2").await;
    assert_eq!(acts(&engine, id(&route, "k")).await, [Act::RanAfterExpiry]);
    let doubted = doubted(&engine, &route, "doubted").await;
    hand.turn(crate::world::HOUR);
    reconcile(&engine, &Script::finding([found(201)])).await;
    assert_eq!(acts(&engine, doubted).await, [Act::Doubted, Act::Happened], "and no claim");
}
