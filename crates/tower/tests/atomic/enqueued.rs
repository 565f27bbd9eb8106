//! What a handler promises through the layer: kept with its transaction, dropped with it, one after the other where it asked for that.

use axum::http::StatusCode;
use oncegate_core::policy::Profile;
use oncegate_core::record::StateKind;
use oncegate_core::response::{Answer, Response};
use oncegate_engine::{Delivering, Delivery, Effect, Effects, Outbox, OutboxOptions, Sent};
use oncegate_store::jobs::{Job, Jobs as _, Stage};
use oncegate_test_servers::{Cut, until};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;

use crate::base::Base;
use crate::client::{Call, within};
use crate::cut::{expect_one_to_one, proxied};
use crate::node::{Node, Work};
use crate::stage::id_of;

fn call(key: &str) -> Call {
    Call::post("/charges").key(key)
}

async fn jobs_of<B: Base>(node: &Node<B>, key: &str) -> Vec<Job> {
    node.engine.store().jobs_of(id_of(key)).await.unwrap()
}

/// The payloads, in order.
fn payloads(jobs: &[Job]) -> Vec<String> {
    jobs.iter().map(|job| String::from_utf8_lossy(&job.payload).into_owned()).collect()
}

/// Answers with what it was sent, once it is told to.
#[derive(Clone)]
struct Asks(UnboundedSender<Asked>);

/// A delivery that waits for the test's word.
struct Asked {
    payload: String,
    go_on: oneshot::Sender<()>,
}

impl Asks {
    fn start<B: Base>(node: &Node<B>) -> (Outbox, UnboundedReceiver<Asked>) {
        let (sender, asked) = unbounded_channel();
        let effects = Effects::new().with("charge", Self(sender));
        (node.engine.start_outbox(&effects, &OutboxOptions::default()), asked)
    }
}

impl Effect for Asks {
    fn deliver<'a>(&'a self, delivery: &'a Delivery<'a>) -> Delivering<'a> {
        Box::pin(async move {
            let (go_on, told) = oneshot::channel();
            let payload = String::from_utf8_lossy(delivery.payload).into_owned();
            // Nobody minds once the test is over.
            let _ = self.0.send(Asked { payload: payload.clone(), go_on });
            let _ = told.await;
            let answer =
                Answer::Kept(Response { status: 201, headers: Vec::new(), body: payload.into_bytes() });
            Sent::Delivered { reference: None, answer: Some(Box::new(answer)) }
        })
    }
}

async fn next(asked: &mut UnboundedReceiver<Asked>) -> Asked {
    within(asked.recv()).await.unwrap()
}

/// A service whose handler promises two calls, both of which are to answer, and a third, and then says this.
async fn promising<B: Base>(base: &B, status: StatusCode) -> Node<B> {
    Node::new(base, Profile::Payments, move |mut work: Work<B>| async move {
        work.charge().await.unwrap();
        work.tx.enqueue("charge", &"first").unwrap().answers();
        work.tx.enqueue("charge", &"second").unwrap().answers();
        work.tx.enqueue("charge", &"third").unwrap();
        (status, "the handler's own")
    })
    .await
}

const KEY: &str = "a-key-of-some-length";

on_both! {
    async fn with_a_5xx_nothing_is_promised<B: Base>() {
        let base = B::start().await;
        let node = promising(&base, StatusCode::INTERNAL_SERVER_ERROR).await;
        let reply = call(KEY).send(node.addr).await;
        assert_eq!(reply.status, 500, "{reply:?}");
        assert_eq!(jobs_of(&node, KEY).await, []);
        assert_eq!(base.charges().await, [""; 0]);
        assert_eq!(node.engine.store().depth().await.unwrap(), []);
    }

    /// A refusal is an answer, so no call is to give another; what else was promised is kept.
    async fn with_a_4xx_that_is_kept_no_call_is_promised_that_would_answer<B: Base>() {
        let base = B::start().await;
        let node = promising(&base, StatusCode::PAYMENT_REQUIRED).await;
        call(KEY).send(node.addr).await.expect_first(402, "the handler's own");
        call(KEY).send(node.addr).await.expect_replay(402, "the handler's own");
        let jobs = jobs_of(&node, KEY).await;
        assert_eq!(payloads(&jobs), ["\"third\""]);
        assert_eq!(jobs[0].answers, None);
        assert_eq!(node.state(KEY).await, Some(StateKind::Completed));
    }

    async fn of_several_calls_that_are_to_answer_the_last_does<B: Base>() {
        let base = B::start().await;
        let node = promising(&base, StatusCode::ACCEPTED).await;
        let (_outbox, mut asked) = Asks::start(&node);
        let addr = node.addr;
        let first = tokio::spawn(async move { call(KEY).send(addr).await });
        // Their order is nobody's business; each is let go.
        for _ in 0..3 {
            let _ = next(&mut asked).await.go_on.send(());
        }
        first.await.unwrap().expect_first(201, "\"second\"");
        call(KEY).send(node.addr).await.expect_replay(201, "\"second\"");
        assert_eq!(payloads(&jobs_of(&node, KEY).await), ["\"first\"", "\"second\"", "\"third\""]);
    }

    /// The first of a line is under way: the second waits for it, and others do not.
    async fn calls_of_one_line_are_made_in_the_order_of_the_commits<B: Base>() {
        let base = B::start().await;
        let node = Node::new(&base, Profile::Ietf, |mut work: Work<B>| async move {
            let key = work.key().to_owned();
            let line = key.split('-').next().unwrap().to_owned();
            work.tx.enqueue("charge", &key).unwrap().in_line(&line);
            "promised"
        })
        .await;
        let (_outbox, mut asked) = Asks::start(&node);
        call("ann-1").send(node.addr).await.expect_first(200, "promised");
        let first = next(&mut asked).await;
        for key in ["ann-2", "ann-3", "bob-1"] {
            call(key).send(node.addr).await.expect_first(200, "promised");
        }
        let other = next(&mut asked).await;
        assert_eq!((&*first.payload, &*other.payload), ("\"ann-1\"", "\"bob-1\""));
        let _ = other.go_on.send(());
        let is_done = async |key: &str| matches!(jobs_of(&node, key).await[0].stage, Stage::Done(_));
        until("the other line is worked off", async || is_done("bob-1").await).await;
        assert!(asked.try_recv().is_err(), "the line waits for its first");
        let _ = first.go_on.send(());
        for payload in ["\"ann-2\"", "\"ann-3\""] {
            let asked = next(&mut asked).await;
            assert_eq!(asked.payload, payload);
            let _ = asked.go_on.send(());
        }
    }
}

on_both_pools! {
    /// A promise, the rows and the key are there together, however the COMMIT went; and a promise is kept once.
    async fn a_commit_that_is_cut_leaves_promise_rows_and_key_together<B: Remote>() {
        for (cut, runs) in [(Cut::AfterSending, 1), (Cut::BeforeSending, 2)] {
            let (base, proxy) = proxied::<B>().await;
            let node = Node::new(&base, Profile::Ietf, |mut work: Work<B>| async move {
                work.charge().await.unwrap();
                work.tx.enqueue("charge", &work.run).unwrap();
                format!("run {}", work.run)
            })
            .await;
            proxy.cut_at(b"COMMIT", 1, cut);
            let first = call("k").send(node.addr).await;
            proxy.fired();
            assert_eq!(first.status, if runs == 1 { 200 } else { 503 }, "{first:?}");
            if runs == 2 {
                assert_eq!(jobs_of(&node, "k").await, []);
            }
            let again = call("k").send_until_settled(node.addr).await;
            assert_eq!(again.body, format!("run {runs}").into_bytes(), "{again:?}");
            assert_eq!(expect_one_to_one(&base).await, ["k"]);
            assert_eq!(payloads(&jobs_of(&node, "k").await), [runs.to_string()]);
        }
    }
}
