//! A client that hangs up cancels nothing that has begun, and leaves nothing that has not.

use oncegate_core::policy::Profile;
use oncegate_core::record::StateKind;
use oncegate_store::faulty::{Fault, Faulty};
use oncegate_store::memory::MemoryStore;
use oncegate_store_sql::SqliteStore;

use crate::client::{Call, Connection};
use crate::stage::{Gate, Stage, gated, simple};

fn call() -> Call {
    Call::post("/payments").key("one").json(r#"{"amount":100}"#)
}

#[tokio::test(flavor = "multi_thread")]
async fn before_the_body_is_complete() {
    let store = MemoryStore::new();
    let stage = simple(store.clone(), Profile::Ietf).await;
    let mut half = Connection::to(stage.addr).await.unwrap();
    half.write(&call().head()).await.unwrap();
    half.write(b"{\"amount\"").await.unwrap();
    drop(half);
    stage.ended(1).await;
    assert_eq!(stage.state(&store, "one").await, None, "nothing is reserved for half a request");
    call().send(stage.addr).await.expect_first(200, "run 1");
    assert_eq!(stage.runs(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn while_the_reserve_is_on_its_way() {
    let store = Faulty::new(MemoryStore::new());
    let stage = simple(store.clone(), Profile::Ietf).await;
    store.queue(Fault::Delayed);
    let client = call().open(stage.addr).await;
    stage.commits(1).await;
    drop(client);
    stage.ended(1).await;
    store.let_go();
    // The reserve lands with nobody to run it, and is taken back.
    stage.engine.quiet().await;
    assert_eq!(stage.state(store.inner(), "one").await, Some(StateKind::FailedRetryable));
    assert_eq!(stage.runs(), 0);
    call().send(stage.addr).await.expect_first(200, "run 1");
    call().send(stage.addr).await.expect_replay(200, "run 1");
    assert_eq!(stage.runs(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn while_the_handler_runs() {
    let (gate, stage) = gated(MemoryStore::new(), Profile::Ietf).await;
    hang_up_in_the_handler(&gate, &stage).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn while_the_handler_runs_on_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(folder.path().join("records.db")).unwrap();
    let (gate, stage) = gated(store, Profile::Payments).await;
    hang_up_in_the_handler(&gate, &stage).await;
}

async fn hang_up_in_the_handler<S: oncegate_store::Store>(gate: &Gate, stage: &Stage<S>) {
    let call = Call::post("/payments").key("key-of-sixteen-or-more").json(r#"{"amount":100}"#);
    let client = call.open(stage.addr).await;
    gate.entered().await;
    drop(client);
    stage.ended(1).await;
    // It comes back before the end, and after it.
    call.send(stage.addr).await.expect_problem(409, "in_progress");
    gate.open();
    call.send_until_settled(stage.addr).await.expect_replay(200, "run 1");
    assert_eq!(stage.runs(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn while_the_answer_is_being_recorded() {
    let store = Faulty::new(MemoryStore::new());
    let stage = simple(store.clone(), Profile::Ietf).await;
    store.queue(Fault::None);
    store.queue(Fault::Delayed);
    let client = call().open(stage.addr).await;
    stage.commits(2).await;
    drop(client);
    stage.ended(1).await;
    store.let_go();
    call().send_until_settled(stage.addr).await.expect_replay(200, "run 1");
    assert_eq!(stage.runs(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn after_the_handler_before_the_answer_is_read() {
    let stage = simple(MemoryStore::new(), Profile::Ietf).await;
    let client = call().open(stage.addr).await;
    stage.ended(1).await;
    drop(client);
    call().send(stage.addr).await.expect_replay(200, "run 1");
    assert_eq!(stage.runs(), 1);
}
