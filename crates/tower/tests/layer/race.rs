//! Many at once, with one key.

use std::time::Duration;

use axum::extract::Request;
use oncegate_core::policy::Profile;
use oncegate_engine::Options;
use oncegate_store::Store;
use oncegate_store::memory::MemoryStore;
use oncegate_store_sql::SqliteStore;
use oncegate_test_servers::until;
use oncegate_tower::Routes;
use tokio::task::JoinSet;

use crate::client::{Call, within};
use crate::stage::{Gate, Stage, gated, numbered, policy};

const CLIENTS: usize = 100;

#[tokio::test(flavor = "multi_thread")]
async fn under_ietf_one_of_a_hundred_runs_and_the_others_are_told_so_in_memory() {
    under_ietf(MemoryStore::new()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn under_ietf_one_of_a_hundred_runs_and_the_others_are_told_so_on_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    under_ietf(SqliteStore::open(folder.path().join("records.db")).unwrap()).await;
}

async fn under_ietf(store: impl Store) {
    let (gate, stage) = gated(store, Profile::Ietf).await;
    let call = Call::post("/payments").key("one").json(r#"{"amount":100}"#);
    let mut calls = JoinSet::new();
    for _ in 0..CLIENTS {
        let (call, addr) = (call.clone(), stage.addr);
        calls.spawn(async move { call.send(addr).await });
    }
    // The handler waits at the gate, so all of these were answered while it ran.
    for _ in 1..CLIENTS {
        let reply = within(calls.join_next()).await.unwrap().unwrap();
        reply.expect_problem(409, "in_progress");
        assert_eq!(reply.header("retry-after"), Some("1"));
    }
    gate.open();
    within(calls.join_next()).await.unwrap().unwrap().expect_first(200, "run 1");
    call.send(stage.addr).await.expect_replay(200, "run 1");
    assert_eq!(stage.runs(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn under_lenient_a_hundred_get_the_one_answer_in_memory() {
    under_lenient(MemoryStore::new()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn under_lenient_a_hundred_get_the_one_answer_on_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    under_lenient(SqliteStore::open(folder.path().join("records.db")).unwrap()).await;
}

async fn under_lenient(store: impl Store) {
    let (gate, stage) = gated(store, Profile::Lenient).await;
    let call = Call::post("/payments").key("one").json(r#"{"amount":100}"#);
    let mut connections = Vec::new();
    for _ in 0..CLIENTS {
        connections.push(call.open(stage.addr).await);
    }
    gate.entered().await;
    // Besides the reserve of the one that runs, the store has seen one of those that wait.
    until("a duplicate has met the reserve", async || stage.engine.stats().writes > 1).await;
    gate.open();
    let mut replies = Vec::new();
    for connection in &mut connections {
        replies.push(connection.reply().await.unwrap());
    }
    assert_eq!(replies.iter().filter(|reply| reply.is_replay()).count(), CLIENTS - 1);
    for reply in &replies {
        assert_eq!((reply.status, &*reply.body), (200, &b"run 1"[..]));
        assert_eq!(reply.in_common(), replies[0].in_common());
    }
    assert_eq!(stage.runs(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_duplicate_that_hangs_up_while_it_waits_leaves_nothing_behind() {
    let gate = Gate::new();
    let (at_gate, answer) = (gate.clone(), numbered());
    let handler = move |request: Request| {
        let (gate, answer) = (at_gate.clone(), answer.clone());
        async move {
            if request.uri().path() == "/slow" {
                gate.pass().await;
            }
            answer()
        }
    };
    let routes = Routes::none().otherwise(Profile::Lenient).unwrap();
    // It looks all the time: if it goes on looking after its client is gone, the writes show it.
    let options = Options { wait_poll: Duration::from_millis(1), ..Options::default() };
    let stage = Stage::with(MemoryStore::new(), options, routes, handler).await;
    let slow = Call::post("/slow").key("one");

    let mut first = slow.open(stage.addr).await;
    gate.entered().await;
    let duplicate = slow.open(stage.addr).await;
    until("the duplicate looks", async || stage.engine.stats().writes > 3).await;
    drop(duplicate);
    stage.ended(1).await;
    // It may have had a look on its way to the store, which is then made sure of; after that there is nothing of it.
    within(stage.engine.quiet()).await;
    Call::post("/quick").key("quick").send(stage.addr).await;
    let before = stage.engine.stats().writes;
    for n in 0..50 {
        Call::post("/quick").key(&format!("quick-{n}")).send(stage.addr).await;
    }
    assert_eq!(stage.engine.stats().writes - before, 2 * 50, "nobody else writes");
    assert_eq!(stage.engine.stats().behind, 0);

    gate.open();
    let answered = first.reply().await.unwrap();
    assert!(answered.status == 200 && !answered.is_replay(), "the first is not disturbed: {answered:?}");
    assert!(slow.send(stage.addr).await.is_replay());
    assert_eq!(stage.runs(), 52);
}

/// No 409 at all under `lenient`, but not for ever: past the limit the client is told to ask again.
#[tokio::test(flavor = "multi_thread")]
async fn a_duplicate_waits_no_longer_than_the_limit() {
    let lenient = policy(Profile::Lenient, |policy| policy.wait_limit = Duration::from_millis(20));
    let (gate, stage) = gated(MemoryStore::new(), lenient).await;
    let call = Call::post("/payments").key("one");
    let mut first = call.open(stage.addr).await;
    gate.entered().await;
    call.send(stage.addr).await.expect_problem(409, "in_progress");
    gate.open();
    first.reply().await.unwrap().expect_first(200, "run 1");
    assert_eq!(stage.runs(), 1);
}
