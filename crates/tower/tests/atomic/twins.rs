//! Duplicates that come while the first one's transaction is open.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use axum::http::StatusCode;
use oncegate_core::policy::{Policy, Profile};
use oncegate_test_servers::until;
use tokio::task::JoinSet;

use crate::base::{Base as _, OnPostgres, OnSqlite};
use crate::client::{Call, within};
use crate::counted::{Count, Counted};
use crate::node::{LONG, Node, Work, gated, simple};
use crate::stage::{Gate, policy};

fn call() -> Call {
    Call::post("/charges").key("k").json(r#"{"amount":1}"#)
}

/// Waits for the answer for as long as the test may take.
fn waiting() -> Policy {
    policy(Profile::Lenient, |policy| policy.wait_limit = Duration::from_mins(1))
}

on_both! {
    async fn a_duplicate_on_the_same_node_is_told_at_once<B: Base>() {
        let base = B::start().await;
        let (gate, node) = gated(&base, Profile::Ietf).await;
        let mut first = call().open(node.addr).await;
        gate.entered().await;
        call().send(node.addr).await.expect_problem(409, "in_progress");
        // What the first one is about cannot be seen before its commit.
        let other = Call::post("/charges").key("k").json(r#"{"amount":2}"#);
        other.send(node.addr).await.expect_problem(409, "in_progress");
        gate.open();
        first.reply().await.unwrap().expect_first(200, "run 1");
        call().send(node.addr).await.expect_replay(200, "run 1");
        other.send(node.addr).await.expect_problem(422, "key_reused");
        assert_eq!(base.charges().await, ["k"]);
    }

    async fn a_duplicate_that_waits_is_given_the_answer<B: Base>() {
        let base = B::start().await;
        let (gate, node) = gated(&base, waiting()).await;
        let mut first = call().open(node.addr).await;
        gate.entered().await;
        let mut duplicate = call().open(node.addr).await;
        // Another key's request that was sent later has come in: so has this one.
        if B::HAS_MANY_WRITERS {
            let mut other = Call::post("/charges").key("other").open(node.addr).await;
            gate.entered().await;
            assert!(duplicate.is_silent());
            gate.open();
            gate.open();
            drop(other.reply().await.unwrap());
        } else {
            gate.open();
        }
        first.reply().await.unwrap().expect_first(200, "run 1");
        duplicate.reply().await.unwrap().expect_replay(200, "run 1");
        assert_eq!(base.charges().await.iter().filter(|key| *key == "k").count(), 1);
    }

    /// The first one fails, and the one that waited runs in its place.
    async fn a_duplicate_that_waits_for_one_that_is_rolled_back_runs<B: Base>() {
        let base = B::start().await;
        let gate = Gate::new();
        let at_gate = gate.clone();
        let node = Node::new(&base, waiting(), move |mut work: Work<B>| {
            let gate = at_gate.clone();
            async move {
                work.charge().await.unwrap();
                gate.pass().await;
                let status = if work.run == 1 { 500 } else { 200 };
                (StatusCode::from_u16(status).unwrap(), format!("run {}", work.run))
            }
        })
        .await;
        let mut first = call().open(node.addr).await;
        gate.entered().await;
        let mut duplicate = call().open(node.addr).await;
        gate.open();
        first.reply().await.unwrap().expect_first(500, "run 1");
        gate.entered().await;
        gate.open();
        duplicate.reply().await.unwrap().expect_first(200, "run 2");
        assert_eq!(base.charges().await, ["k"]);
    }

    /// Neither stands in the other's way, although each takes the key to read its row.
    async fn replays_at_the_same_time_are_all_answered<B: Base>() {
        let base = B::start().await;
        let node = simple(&base, Profile::Ietf).await;
        for round in 0..5 {
            let call = Call::post("/charges").key(&format!("key-{round}"));
            let first = call.send(node.addr).await;
            // They have nothing in their caches.
            let fresh = [simple(&base, Profile::Ietf).await, simple(&base, Profile::Ietf).await];
            let mut rush = JoinSet::new();
            for n in 0..16 {
                let (call, addr) = (call.clone(), fresh[n % 2].addr);
                rush.spawn(async move { call.send(addr).await });
            }
            while let Some(reply) = within(rush.join_next()).await {
                let reply = reply.unwrap();
                assert!(reply.is_replay() && reply.in_common() == first.in_common(), "{reply:?}");
            }
        }
    }

    async fn of_a_rush_on_two_nodes_one_has_its_effect<B: Base>() {
        let base = B::start().await;
        let nodes = [simple(&base, Profile::Ietf).await, simple(&base, Profile::Ietf).await];
        for round in 0..10 {
            let call = Call::post("/charges").key(&format!("key-{round}"));
            let mut rush = JoinSet::new();
            for n in 0..16 {
                let (call, addr) = (call.clone(), nodes[n % 2].addr);
                rush.spawn(async move { call.send_until_settled(addr).await });
            }
            let mut answers = BTreeSet::new();
            while let Some(reply) = within(rush.join_next()).await {
                let reply = reply.unwrap();
                assert_eq!(reply.status, 200, "{reply:?}");
                answers.insert(reply.body);
            }
            assert_eq!(answers.len(), 1, "one answer for all");
        }
        let keys: Vec<String> = (0..10).map(|round| format!("key-{round}")).collect();
        assert_eq!(base.charges().await, keys);
    }
}

/// It does not queue behind the first one's transaction. (Of SQLite's one writer see `turns`.)
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_duplicate_on_another_node_is_told_at_once() {
    let base = OnPostgres::start().await;
    let (gate, node) = gated(&base, Profile::Ietf).await;
    let another = simple(&base, Profile::Ietf).await;
    let mut first = call().open(node.addr).await;
    gate.entered().await;
    call().send(another.addr).await.expect_problem(409, "in_progress");
    gate.open();
    first.reply().await.unwrap().expect_first(200, "run 1");
    call().send(another.addr).await.expect_replay(200, "run 1");
    assert_eq!((base.charges().await.len(), another.runs()), (1, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_duplicate_that_waits_on_another_node_is_given_the_answer() {
    let base = OnPostgres::start().await;
    let (gate, node) = gated(&base, waiting()).await;
    let looked = Arc::new(Count::default());
    let pool = Counted { inner: base.pool(), count: Arc::clone(&looked) };
    let another = Node::with(&base, pool, waiting(), LONG, Work::done).await;
    let mut first = call().open(node.addr).await;
    gate.entered().await;
    let mut duplicate = call().open(another.addr).await;
    // It has asked the database, and was told that there is a twin. One that asks while the first commits may run, and is rolled back.
    until("it has looked", async || looked.occupied() > 0).await;
    assert!(duplicate.is_silent());
    gate.open();
    first.reply().await.unwrap().expect_first(200, "run 1");
    duplicate.reply().await.unwrap().expect_replay(200, "run 1");
    assert_eq!((base.charges().await.len(), another.runs()), (1, 0));
}

/// A file has one writer: a duplicate in another process waits until the first one has ended, as every other write there does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_duplicate_on_another_node_of_a_file_waits_for_its_writer() {
    let base = OnSqlite::start().await;
    let (gate, node) = gated(&base, Profile::Ietf).await;
    let another = simple(&base, Profile::Ietf).await;
    let mut first = call().open(node.addr).await;
    gate.entered().await;
    let mut duplicate = call().open(another.addr).await;
    assert!(duplicate.is_silent());
    gate.open();
    first.reply().await.unwrap().expect_first(200, "run 1");
    duplicate.reply().await.unwrap().expect_replay(200, "run 1");
    // It had looked at the key before the first was done, and ran; but it was overtaken, and what it did is rolled back.
    assert_eq!(base.charges().await.len(), 1);
}
