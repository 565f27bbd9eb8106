//! Many at once: one executes.

use std::sync::Arc;

use oncegate_engine::{Arrived, Engine, Options, Route};
use oncegate_store::Store;
use oncegate_store::memory::MemoryStore;
use oncegate_store_sql::sqlite::SqliteStore;
use tokio::sync::Barrier;

use crate::world::{
    HOUR, answer, complete, done, granted, held, ietf, lenient, replayed, request, soon, start,
};

const CROWD: usize = 100;

/// All arrive together, each in a task of its own.
async fn crowd<S: Store>(engine: &Engine<S>, route: &Route, key: &str) -> Vec<Arrived<S>> {
    let barrier = Arc::new(Barrier::new(CROWD));
    let tasks: Vec<_> = (0..CROWD)
        .map(|_| {
            let (engine, route, barrier) = (engine.clone(), route.clone(), Arc::clone(&barrier));
            let arrival = request(&route, key);
            tokio::spawn(async move {
                barrier.wait().await;
                engine.arrive(&route, arrival).await.unwrap()
            })
        })
        .collect();
    let mut arrived = Vec::new();
    for task in tasks {
        arrived.push(task.await.unwrap());
    }
    arrived
}

async fn one_of_a_hundred_executes_and_all_replay_it<S: Store>(engine: &Engine<S>) {
    let route = ietf();
    for key in ["k-1", "k-2", "k-3"] {
        let (executes, others): (Vec<_>, Vec<_>) =
            crowd(engine, &route, key).await.into_iter().partition(|a| matches!(a, Arrived::Execute(_)));
        assert_eq!(executes.len(), 1);
        let busy = others.iter().filter(|arrived| matches!(arrived, Arrived::Busy { .. })).count();
        assert_eq!(busy, CROWD - 1);
        for arrived in executes {
            done(granted(arrived), complete(key)).await;
        }
        for arrived in crowd(engine, &route, key).await {
            assert_eq!(*crate::world::replay(arrived), answer(key));
        }
    }
}

/// A client's retry logic went wild: the same request, a hundred times at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_a_hundred_at_once_one_executes_in_memory() {
    let engine = start(MemoryStore::new(), Options::default()).await;
    soon(one_of_a_hundred_executes_and_all_replay_it(&engine)).await;
}

/// The same on a file; and another process that opens it replays the same bytes.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_a_hundred_at_once_one_executes_on_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("oncegate.db");
    let engine = start(SqliteStore::open(&file).unwrap(), Options::default()).await;
    soon(one_of_a_hundred_executes_and_all_replay_it(&engine)).await;
    let other = start(SqliteStore::open(&file).unwrap(), Options::default()).await;
    assert_eq!(*replayed(&other, &ietf(), "k-2").await, answer("k-2"));
}

/// Two nodes share a store, and the crowd is spread over both: still one.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_a_crowd_on_two_nodes_one_executes() {
    let store = MemoryStore::new();
    let (a, b) = (start(store.clone(), Options::default()).await, start(store, Options::default()).await);
    let route = ietf();
    let (from_a, from_b) = soon(async { tokio::join!(crowd(&a, &route, "k"), crowd(&b, &route, "k")) }).await;
    let both = from_a.iter().chain(&from_b);
    assert_eq!(both.filter(|arrived| matches!(arrived, Arrived::Execute(_))).count(), 1);
}

async fn a_crowd_that_waits_is_answered<S: Store>(engine: &Engine<S>) {
    let route = lenient();
    // The holder settles at another moment each time: before the crowd asks, while it asks, while it waits.
    for round in 0..30 {
        let key = format!("k-{round}");
        let holder = held(engine, &route, &key).await;
        let tasks: Vec<_> = (1..CROWD)
            .map(|_| {
                let (engine, route) = (engine.clone(), route.clone());
                let arrival = request(&route, &key);
                tokio::spawn(async move { engine.arrive_or_wait(&route, arrival).await.unwrap() })
            })
            .collect();
        for _ in 0..round {
            tokio::task::yield_now().await;
        }
        done(holder, complete(&key)).await;
        for task in tasks {
            assert_eq!(*crate::world::replay(task.await.unwrap()), answer(&key), "round {round}");
        }
    }
}

/// Under `lenient` nobody is refused: everybody waits and gets the one answer. Nobody looks by itself here, so that a lost
/// wake-up would cost the whole wait limit.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_crowd_that_waits_gets_the_one_answer_in_memory() {
    let engine = start(MemoryStore::new(), Options { wait_poll: HOUR, ..Options::default() }).await;
    soon(a_crowd_that_waits_is_answered(&engine)).await;
}

/// The same on a file.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_crowd_that_waits_gets_the_one_answer_on_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(folder.path().join("oncegate.db")).unwrap();
    let engine = start(store, Options { wait_poll: HOUR, ..Options::default() }).await;
    soon(a_crowd_that_waits_is_answered(&engine)).await;
}

/// A hundred under `lenient`, and nobody holds the key yet: one of them executes, the others wait for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_a_crowd_that_waits_one_executes() {
    let engine = start(MemoryStore::new(), Options { wait_poll: HOUR, ..Options::default() }).await;
    let route = lenient();
    let tasks: Vec<_> = (0..CROWD)
        .map(|_| {
            let (engine, route) = (engine.clone(), route.clone());
            let arrival = request(&route, "k");
            tokio::spawn(async move {
                match engine.arrive_or_wait(&route, arrival).await.unwrap() {
                    Arrived::Execute(held) => {
                        done(*held, complete("once")).await;
                        1
                    }
                    arrived => {
                        assert_eq!(*crate::world::replay(arrived), answer("once"));
                        0
                    }
                }
            })
        })
        .collect();
    let mut executed = 0;
    for task in tasks {
        executed += soon(task).await.unwrap();
    }
    assert_eq!(executed, 1);
}
