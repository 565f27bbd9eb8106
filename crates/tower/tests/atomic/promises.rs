//! A request that is run once more, after the call that its first run promised was given up.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::http::StatusCode;
use oncegate_core::decide::{Decision, Event};
use oncegate_core::policy::Profile;
use oncegate_core::record::{Reason, StateKind};
use oncegate_core::response::{Answer, Response};
use oncegate_engine::{Act, Delivering, Delivery, Effect, Effects, Operator, Outbox, OutboxOptions, Sent};
use oncegate_store::jobs::{Job, JobId, Jobs as _, Stage};
use oncegate_test_servers::until;

use crate::client::Call;
use crate::node::{Node, Work};
use crate::stage::{Gate, id_of};

const KEY: &str = "a-key-of-some-length";

/// A provider that refuses the first call, at a gate, and does what the others ask for.
#[derive(Clone)]
struct Provider {
    calls: Arc<AtomicUsize>,
    keys: Arc<std::sync::Mutex<Vec<String>>>,
    gate: Gate,
}

impl Provider {
    fn new() -> Self {
        Self { calls: Arc::default(), keys: Arc::default(), gate: Gate::new() }
    }

    fn start<B: crate::base::Base>(&self, node: &Node<B>) -> Outbox {
        let effects = Effects::new().with("charge", self.clone()).with("receipt", Mail);
        node.engine.start_outbox(&effects, &OutboxOptions::default())
    }

    /// What it was to dedupe by, call by call.
    fn keys(&self) -> Vec<String> {
        self.keys.lock().unwrap().clone()
    }
}

impl Effect for Provider {
    fn deliver<'a>(&'a self, delivery: &'a Delivery<'a>) -> Delivering<'a> {
        Box::pin(async move {
            self.keys.lock().unwrap().push(delivery.downstream_key.to_owned());
            if self.calls.fetch_add(1, Ordering::SeqCst) == 0 {
                self.gate.pass().await;
                return Sent::Refused("no such account".into());
            }
            let body = delivery.payload.to_vec();
            let answer = Answer::Kept(Response { status: 201, headers: Vec::new(), body });
            Sent::Delivered { reference: Some("ch_1".into()), answer: Some(Box::new(answer)) }
        })
    }
}

/// Takes everything.
struct Mail;

impl Effect for Mail {
    fn deliver<'a>(&'a self, _: &'a Delivery<'a>) -> Delivering<'a> {
        Box::pin(async { Sent::Delivered { reference: None, answer: None } })
    }
}

/// A service that writes its row, and promises a call that answers, and a mail.
async fn service<B: crate::base::Base>(base: &B) -> Node<B> {
    let handler = async |mut work: Work<B>| {
        work.charge().await.unwrap();
        let run = work.run;
        work.tx.enqueue("charge", &format!("run {run}")).unwrap().answers();
        work.tx.enqueue("receipt", &"the same each time").unwrap();
        (StatusCode::ACCEPTED, "wait")
    };
    Node::new(base, Profile::Payments, handler).await
}

fn call() -> Call {
    Call::post("/charges").key(KEY)
}

/// The promise that answers.
async fn charge<B: crate::base::Base>(node: &Node<B>) -> Job {
    let life = node.record(KEY).await.unwrap().life;
    node.engine.store().job(JobId::of(life, 0)).await.unwrap().unwrap()
}

async fn until_parked<B: crate::base::Base>(node: &Node<B>) {
    until("the job is parked", async || charge(node).await.stage == Stage::Parked).await;
}

on_both! {
    /// The second run's promise was dropped, because a job of the first had its name, while the key was entrusted to it: 409 for ever.
    async fn a_call_that_did_not_happen_is_promised_again_and_its_answer_is_the_answer<B: Base>() {
        let base = B::start().await;
        let (node, provider) = (service(&base).await, Provider::new());
        let _outbox = provider.start(&node);
        provider.gate.open();
        call().send(node.addr).await;
        until_parked(&node).await;
        let doubted = node.record(KEY).await.unwrap();
        assert_eq!(doubted.state.kind(), StateKind::Unknown);
        let operator = Operator { name: "ann".into(), reason: "the provider has no such charge".into() };
        let decided = node.engine.operate(doubted.id, doubted.version, Act::DidNotHappen, &operator).await;
        assert!(matches!(decided, Ok(Decision::Done)), "{decided:?}");
        call().send(node.addr).await.expect_first(201, "\"run 2\"");
        call().send(node.addr).await.expect_replay(201, "\"run 2\"");
        let derived = id_of(KEY).derived_key(doubted.life);
        assert_eq!(provider.keys(), [derived.clone(), derived], "whoever dedupes still can");
        assert_eq!(base.charges().await, [KEY, KEY], "each run's rows are there");
    }

    async fn while_the_first_promise_stands_nothing_is_executed_and_the_client_is_told_so<B: Base>() {
        let base = B::start().await;
        let (node, provider) = (service(&base).await, Provider::new());
        let _outbox = provider.start(&node);
        let addr = node.addr;
        let first = tokio::spawn(async move { call().send(addr).await });
        provider.gate.entered().await;
        let holder = charge(&node).await.answers.unwrap();
        let reason = Reason::new("test", "settled otherwise while the call is under way");
        let release = Event::Release { holder, reason, backoff: Duration::ZERO };
        let _ = node.engine.drive(id_of(KEY), &release).await.unwrap();
        call().send(node.addr).await.expect_problem(503, "store_unavailable");
        assert_eq!(base.charges().await, [KEY], "the second run is rolled back");
        assert_eq!(node.state(KEY).await, Some(StateKind::FailedRetryable));
        provider.gate.open();
        until_parked(&node).await;
        call().send(node.addr).await.expect_first(201, "\"run 3\"");
        first.await.unwrap();
    }
}
