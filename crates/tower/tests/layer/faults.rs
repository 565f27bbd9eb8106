//! A store that fails: nothing runs unreserved, nothing is sent unrecorded, and no key stays stuck.

use std::time::Duration;

use oncegate_core::policy::{Policy, Profile};
use oncegate_core::record::StateKind;
use oncegate_engine::Options;
use oncegate_store::faulty::{Fault, Faulty};
use oncegate_store::memory::MemoryStore;
use oncegate_tower::Routes;

use crate::client::{Call, within};
use crate::reply::Reply;
use crate::stage::{Stage, gated, numbered, policy, simple};

fn call() -> Call {
    Call::post("/payments").key("one").json(r#"{"amount":100}"#)
}

#[track_caller]
fn expect_closed(reply: &Reply) {
    reply.expect_problem(503, "store_unavailable");
    assert_eq!(reply.header("retry-after"), Some("5"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reserve_that_fails_runs_nothing() {
    let store = Faulty::new(MemoryStore::new());
    let stage = simple(store.clone(), Profile::Ietf).await;
    store.queue(Fault::BeforeWrite);
    expect_closed(&call().send(stage.addr).await);
    assert_eq!(stage.runs(), 0);
    assert_eq!(stage.state(store.inner(), "one").await, None);
    call().send(stage.addr).await.expect_first(200, "run 1");
}

/// The row is there already, or comes later, or never did: it is the same reserve, tried again, and runs once.
#[tokio::test(flavor = "multi_thread")]
async fn a_reserve_in_doubt_runs_once() {
    for fault in [Fault::AcknowledgementLost, Fault::ConnectionLost, Fault::LandsLate] {
        let store = Faulty::new(MemoryStore::new());
        let stage = simple(store.clone(), Profile::Ietf).await;
        store.queue(fault);
        call().send(stage.addr).await.expect_first(200, "run 1");
        assert_eq!(store.land().await.unwrap(), fault == Fault::LandsLate);
        call().send(stage.addr).await.expect_replay(200, "run 1");
        stage.engine.quiet().await;
        assert_eq!(stage.runs(), 1, "{fault:?}");
        assert_eq!(stage.state(store.inner(), "one").await, Some(StateKind::Completed));
    }
}

/// The store dies over a reserve and stays dead: refused, cleaned up when it returns, and free again.
#[tokio::test(flavor = "multi_thread")]
async fn a_reserve_at_which_the_store_dies_is_taken_back_when_it_returns() {
    for fault in [Fault::CrashBefore, Fault::CrashAfter] {
        let store = Faulty::new(MemoryStore::new());
        let options = Options { doubt_patience: Duration::ZERO, ..Options::default() };
        let answer = numbered();
        let handler = move |_: axum::extract::Request| std::future::ready(answer());
        let stage = Stage::with(store.clone(), options, Routes::all(Profile::Ietf).unwrap(), handler).await;
        store.queue(fault);
        expect_closed(&call().send(stage.addr).await);
        expect_closed(&call().send(stage.addr).await);
        assert_eq!(stage.runs(), 0, "{fault:?}");
        store.revive();
        within(stage.engine.quiet()).await;
        assert_eq!(stage.state(store.inner(), "one").await, Some(StateKind::FailedRetryable), "{fault:?}");
        call().send(stage.addr).await.expect_first(200, "run 1");
    }
}

fn impatient() -> Policy {
    policy(Profile::Ietf, |policy| policy.patience = Duration::from_millis(50))
}

/// Attack 13. The handler has answered, and nobody may be told: it is not recorded. The holder goes on trying.
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_is_not_recorded_is_never_sent() {
    for fault in [Fault::CrashBefore, Fault::CrashAfter] {
        let store = Faulty::new(MemoryStore::new());
        let stage = simple(store.clone(), impatient()).await;
        store.queue(Fault::None);
        store.queue(fault);
        let first = call().send(stage.addr).await;
        first.expect_problem(504, "outcome_unknown");
        assert_eq!(first.header("retry-after"), Some("5"));
        assert!(!String::from_utf8_lossy(&first.body).contains("run 1"), "{first:?}");
        // The store is dead, so nobody is told anything.
        expect_closed(&call().send(stage.addr).await);
        assert_eq!(stage.engine.stats().behind, 1, "still trying");
        store.revive();
        within(stage.engine.quiet()).await;
        call().send(stage.addr).await.expect_replay(200, "run 1");
        assert_eq!(stage.runs(), 1, "{fault:?}");
    }
}

/// A refusal by the handler is told no earlier than a success: told refused, but charged, is the worst of all.
#[tokio::test(flavor = "multi_thread")]
async fn no_ending_is_told_before_it_is_recorded() {
    for (status, then) in [(402, Some(402)), (429, None), (500, None)] {
        let store = Faulty::new(MemoryStore::new());
        let handler =
            move |_: axum::extract::Request| async move { http::StatusCode::from_u16(status).unwrap() };
        let stage = Stage::new(store.clone(), impatient(), handler).await;
        store.queue(Fault::None);
        store.queue(Fault::CrashBefore);
        call().send(stage.addr).await.expect_problem(504, "outcome_unknown");
        store.revive();
        within(stage.engine.quiet()).await;
        let retry = call().send(stage.addr).await;
        assert_eq!((retry.status, retry.is_replay()), (then.unwrap_or(status), then.is_some()));
        assert_eq!(stage.runs(), if then.is_some() { 1 } else { 2 });
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn not_a_byte_leaves_while_the_answer_is_being_recorded() {
    let store = Faulty::new(MemoryStore::new());
    let stage = simple(store.clone(), Profile::Ietf).await;
    store.queue(Fault::None);
    store.queue(Fault::Delayed);
    let mut client = call().open(stage.addr).await;
    stage.commits(2).await;
    for _ in 0..20 {
        Call::anonymous("GET", "/").send(stage.addr).await;
    }
    assert!(client.is_silent());
    store.let_go();
    client.reply().await.unwrap().expect_first(200, "run 1");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_settlement_in_doubt_is_said_again() {
    let faults = [
        [Fault::AcknowledgementLost, Fault::None],
        [Fault::ConnectionLost, Fault::AcknowledgementLost],
        [Fault::LandsLate, Fault::BeforeWrite],
    ];
    for faults in faults {
        let store = Faulty::new(MemoryStore::new());
        let stage = simple(store.clone(), Profile::Ietf).await;
        store.queue(Fault::None);
        for fault in faults {
            store.queue(fault);
        }
        call().send(stage.addr).await.expect_first(200, "run 1");
        store.land().await.unwrap();
        call().send(stage.addr).await.expect_replay(200, "run 1");
        assert_eq!(stage.runs(), 1, "{faults:?}");
    }
}

/// What is in the cache is replayed though the store is dead: it never changes.
#[tokio::test(flavor = "multi_thread")]
async fn a_dead_store_hinders_neither_replays_nor_what_is_unprotected() {
    let store = Faulty::new(MemoryStore::new());
    let (gate, stage) = gated(store.clone(), Profile::Ietf).await;
    let other = Call::post("/payments").key("other");
    gate.open();
    call().send(stage.addr).await.expect_first(200, "run 1");
    store.queue(Fault::CrashBefore);
    expect_closed(&other.send(stage.addr).await);
    call().send(stage.addr).await.expect_replay(200, "run 1");
    gate.open();
    Call::anonymous("GET", "/").send(stage.addr).await.expect_first(200, "run 2");
    expect_closed(&other.send(stage.addr).await);
}
