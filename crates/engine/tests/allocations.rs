//! What a replay from the cache allocates, counted. In a binary of its own, because the counting allocator is the whole process's.

#![expect(clippy::unwrap_used, clippy::panic, reason = "tests")]

#[expect(dead_code, reason = "shared with the other tests, which use all of it")]
#[path = "engine/world.rs"]
mod world;

use std::pin::pin;
use std::task::{Context, Poll, Waker};

use allocation_counter::measure;
use oncegate_engine::{Options, Route};
use oncegate_store::memory::MemoryStore;

use world::{completed, ietf, lenient, replay, request, request_of, start};

/// All of them the record's id: the frame over scope and key that is hashed grows while it is filled. Looking it up, deciding,
/// counting and handing the answer out allocate nothing.
const BUDGET: u64 = 3;
/// Once more for a scope that names the operation too.
const BUDGET_WITH_OPERATION: u64 = 4;

/// Under a policy that refuses duplicates as under one that lets them wait: what is over is replayed alike.
#[test]
fn a_replay_from_the_cache_stays_within_its_budget() {
    for (route, budget) in [(ietf(), BUDGET), (lenient(), BUDGET_WITH_OPERATION)] {
        let counted = replays(&route);
        assert!(counted <= budget, "{route:?}: {counted} and not {budget}");
    }
}

/// What the last of many replays allocated: the first ones make meters, and labels of busy scopes.
fn replays(route: &Route) -> u64 {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let engine = runtime.block_on(start(MemoryStore::new(), Options::default()));
    runtime.block_on(completed(&engine, route, "k", "paid"));
    let mut counts = (0..500).map(|_| {
        let arrival = request(route, "k");
        let counted = measure(|| drop(replay(at_once(engine.arrive_or_wait(route, arrival)).unwrap())));
        counted.count_total
    });
    counts.by_ref().last().unwrap()
}

/// Asks nobody, so it is ready at once.
fn at_once<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("it asks the store"),
    }
}

/// A refused misuse costs no more: it is what an attacker would send.
#[test]
fn a_misuse_found_in_the_cache_stays_within_the_budget() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let engine = runtime.block_on(start(MemoryStore::new(), Options::default()));
    let route = ietf();
    runtime.block_on(completed(&engine, &route, "k", "paid"));
    for round in 0..500 {
        let arrival = request_of(&route, "acme", "k", "other");
        let counted = measure(|| drop(at_once(engine.arrive(&route, arrival)).unwrap()));
        assert!(round < 200 || counted.count_total <= BUDGET, "{counted:?}");
    }
}
