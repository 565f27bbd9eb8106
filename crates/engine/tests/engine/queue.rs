//! What waits to be written is bounded.

use oncegate_engine::{Arrived, Options, Unavailable};
use oncegate_store::faulty::Fault;

use crate::world::{
    answer, complete, done, granted, held, ietf, must_wait, poll_once, replayed, request, shaky, soon, start,
};

/// The store stands still. New requests are refused once the queue is full; a settlement is not refused but waits for room, because
/// nobody else knows what it knows; and when the store goes on, everything drains.
#[tokio::test]
async fn past_the_bound_requests_are_refused_and_settlements_wait() {
    let store = shaky();
    let engine = start(store.clone(), Options { queue_bytes: 64 << 10, ..Options::default() }).await;
    let route = ietf();
    let holder = held(&engine, &route, "held").await;
    store.queue(Fault::Delayed);
    let mut waiting = Vec::new();
    let refused = loop {
        let key = format!("k-{}", waiting.len());
        let mut one = Box::pin(engine.arrive(&route, request(&route, &key)));
        if let Some(refused) = poll_once(&mut one).await {
            break refused;
        }
        waiting.push(one);
        assert!(waiting.len() <= 64, "the queue has no bound");
    };
    assert!(matches!(refused, Err(Unavailable::Overloaded)), "{refused:?}");
    assert_eq!(waiting.len(), 64, "one unit of a KiB each");
    let mut settling = Box::pin(holder.settle(complete(&"x".repeat(10 << 10))));
    must_wait(&mut settling).await;
    store.until_delayed(1).await;
    assert!(engine.arrive(&route, request(&route, "one more")).await.is_err(), "still full");
    store.let_go();
    for one in waiting {
        done(granted(soon(one).await.unwrap()), complete("paid")).await;
    }
    drop(soon(settling).await);
    assert_eq!(*replayed(&engine, &route, "held").await, answer(&"x".repeat(10 << 10)));
    let after = engine.arrive(&route, request(&route, "one more")).await.unwrap();
    assert!(matches!(after, Arrived::Execute(_)), "there is room again");
}

/// An answer larger than the whole queue takes all of it, and is written.
#[tokio::test]
async fn an_answer_larger_than_the_queue_is_written() {
    let engine = start(shaky(), Options { queue_bytes: 16 << 10, ..Options::default() }).await;
    let route = ietf();
    let large = "x".repeat(1 << 20);
    let holder = held(&engine, &route, "k").await;
    soon(done(holder, complete(&large))).await;
    assert_eq!(*replayed(&engine, &route, "k").await, answer(&large));
}

/// Requests whose callers have gone still take room until the writer has passed them, and no longer.
#[tokio::test]
async fn callers_that_leave_give_their_room_back() {
    let store = shaky();
    let engine = start(store.clone(), Options { queue_bytes: 16 << 10, ..Options::default() }).await;
    let route = ietf();
    for round in 0..5 {
        store.queue(Fault::Delayed);
        let mut all = Vec::new();
        for n in 0..16 {
            let mut one = Box::pin(engine.arrive(&route, request(&route, &format!("k-{round}-{n}"))));
            must_wait(&mut one).await;
            all.push(one);
        }
        store.until_delayed(1).await;
        drop(all);
        store.let_go();
        soon(engine.quiet()).await;
    }
    done(held(&engine, &route, "k").await, complete("paid")).await;
}
