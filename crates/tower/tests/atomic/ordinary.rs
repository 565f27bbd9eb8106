//! The same keys through the ordinary layer: whoever is second is answered from the row, and has no effect.

use axum::extract::Request;
use axum::http::StatusCode;
use oncegate_core::policy::Profile;
use oncegate_engine::Options;
use oncegate_tower::Routes;

use crate::base::{Base as _, OnPostgres, OnSqlite};
use crate::client::Call;
use crate::node::{Node, Work, gated, simple};
use crate::stage::{self, Gate, Stage};

fn call(amount: u32) -> Call {
    Call::post("/charges").key("k").json(&format!("{{\"amount\":{amount}}}"))
}

on_both! {
    async fn an_answer_of_one_layer_is_replayed_by_the_other<B: Base>() {
        let base = B::start().await;
        let (atomic, ordinary) =
            (simple(&base, Profile::Ietf).await, Box::pin(stage::simple(base.store().await, Profile::Ietf)).await);
        call(1).send(atomic.addr).await.expect_first(200, "run 1");
        call(1).send(ordinary.addr).await.expect_replay(200, "run 1");
        let other = Call::post("/charges").key("other");
        other.send(ordinary.addr).await.expect_first(200, "run 1");
        other.send(atomic.addr).await.expect_replay(200, "run 1");
        assert_eq!((base.charges().await, atomic.runs(), ordinary.runs()), (vec!["k".to_owned()], 1, 1));
    }

    async fn an_ordinary_request_that_runs_is_not_run_by_the_other<B: Base>() {
        let base = B::start().await;
        let atomic = simple(&base, Profile::Ietf).await;
        let (gate, ordinary) = stage::gated(base.store().await, Profile::Ietf).await;
        let mut first = call(1).open(ordinary.addr).await;
        gate.entered().await;
        call(1).send(atomic.addr).await.expect_problem(409, "in_progress");
        call(2).send(atomic.addr).await.expect_problem(422, "key_reused");
        gate.open();
        first.reply().await.unwrap().expect_first(200, "run 1");
        call(1).send_until_settled(atomic.addr).await.expect_replay(200, "run 1");
        assert_eq!((base.charges().await.len(), atomic.runs()), (0, 0));
    }
}

/// The atomic one has reserved nothing, so the other may come first; then its effect is rolled back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_was_overtaken_is_rolled_back_and_answered_from_the_row() {
    let base = OnPostgres::start().await;
    let (gate, atomic) = gated(&base, Profile::Ietf).await;
    let ordinary = Box::pin(stage::simple(base.store().await, Profile::Ietf)).await;
    let mut slow = call(1).open(atomic.addr).await;
    gate.entered().await;
    call(1).send(ordinary.addr).await.expect_first(200, "run 1");
    gate.open();
    slow.reply().await.unwrap().expect_replay(200, "run 1");
    assert_eq!((base.charges().await.len(), atomic.runs(), ordinary.runs()), (0, 1, 1));
}

/// It may have failed over the other's very rows. Its client is told what the key came to, and not that nothing was executed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_was_overtaken_and_fails_is_answered_from_the_row() {
    let base = OnPostgres::start().await;
    let gate = Gate::new();
    let at_gate = gate.clone();
    let fails = move |mut work: Work<OnPostgres>| {
        let gate = at_gate.clone();
        async move {
            work.charge().await.unwrap();
            gate.pass().await;
            StatusCode::INTERNAL_SERVER_ERROR
        }
    };
    let atomic = Node::new(&base, Profile::Ietf, fails).await;
    let ordinary = Box::pin(stage::simple(base.store().await, Profile::Ietf)).await;
    let mut slow = call(1).open(atomic.addr).await;
    gate.entered().await;
    call(1).send(ordinary.addr).await.expect_first(200, "run 1");
    gate.open();
    slow.reply().await.unwrap().expect_replay(200, "run 1");
    assert_eq!((base.charges().await.len(), atomic.runs(), ordinary.runs()), (0, 1, 1));
}

/// The answer of another request is nobody else's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_was_overtaken_by_another_request_is_told_that_its_key_is_used() {
    let base = OnPostgres::start().await;
    let (gate, atomic) = gated(&base, Profile::Ietf).await;
    let ordinary = Box::pin(stage::simple(base.store().await, Profile::Ietf)).await;
    let mut slow = call(1).open(atomic.addr).await;
    gate.entered().await;
    call(2).send(ordinary.addr).await.expect_first(200, "run 1");
    gate.open();
    slow.reply().await.unwrap().expect_problem(422, "key_reused");
    assert_eq!(base.charges().await.len(), 0);
}

/// On one file the ordinary one waits for its turn, and finds the answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_one_file_an_ordinary_request_waits_for_its_turn() {
    let base = OnSqlite::start().await;
    let (gate, atomic) = gated(&base, Profile::Ietf).await;
    let ordinary = Stage::with(
        base.store().await,
        Options::default(),
        Routes::none().otherwise(Profile::Ietf).unwrap(),
        |_: Request| std::future::ready("never"),
    )
    .await;
    let mut first = call(1).open(atomic.addr).await;
    gate.entered().await;
    let mut second = call(1).open(ordinary.addr).await;
    gate.open();
    first.reply().await.unwrap().expect_first(200, "run 1");
    second.reply().await.unwrap().expect_replay(200, "run 1");
    assert_eq!((base.charges().await.len(), ordinary.runs()), (1, 0));
}
