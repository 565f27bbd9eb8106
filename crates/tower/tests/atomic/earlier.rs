//! A row from before, in each of its states, meets an atomic request.

use std::sync::Arc;
use std::time::Duration;

use oncegate_core::decide::{Arrival, Event, decide};
use oncegate_core::fingerprint::{self, Content, Mode};
use oncegate_core::key::Key;
use oncegate_core::policy::{Policy, Profile, WhileInProgress};
use oncegate_core::record::{CrashPolicy, Reason, State, StateKind};
use oncegate_core::response::{Answer, Response};
use oncegate_core::scope::{Operation, Scope};
use oncegate_core::time::Now;
use oncegate_engine::phases::Retry;
use oncegate_engine::{Arrived, Engine, Held, Options, Route, Settlement};
use oncegate_store::drive::read_one;
use oncegate_store::{Outcome, Store, Write};

use crate::client::Call;
use crate::node::simple;
use crate::stage::policy;

const MOMENT: Duration = Duration::from_micros(1);

fn call() -> Call {
    Call::post("/charges").key("k")
}

/// This very request, by another way.
fn arrival(policy: Policy) -> (Route, Arrival) {
    let route = Route::new("test", policy, Operation::new("POST *").unwrap());
    let content = Content { method: "POST", path: "/charges", query: None, content_type: None, body: b"" };
    let fingerprint = fingerprint::of(&Mode::Json, &content).unwrap();
    let (scope, key) = (Scope::tenant("acme").unwrap(), Key::from_text("k").unwrap());
    let arrival = route.arrival(scope, key, fingerprint, None);
    (route, arrival)
}

/// A reserve of it.
pub(crate) async fn reserved<S: Store>(store: S, policy: Policy) -> Held<S> {
    let engine = Engine::start(store, Options::default()).await.unwrap();
    let (route, arrival) = arrival(policy);
    match engine.arrive(&route, arrival).await.unwrap() {
        Arrived::Execute(held) => *held,
        other => unreachable!("{other:?}"),
    }
}

/// A reserve of long ago, whose holder has never come back.
async fn lapsed(store: impl Store, policy: Policy) {
    let long_ago = store.clock().await.unwrap().minus(Duration::from_hours(1));
    let step = decide(None, &Event::Arrive(arrival(policy).1), Now::exact(long_ago));
    let write = Write::of_step(None, &step).unwrap();
    assert_eq!(store.apply(&[write]).await.unwrap(), [Outcome::Applied]);
}

pub(crate) fn reason() -> Reason {
    Reason::new("test", "so it was")
}

fn answered() -> Settlement {
    let answer = Response { status: 200, headers: Vec::new(), body: b"before".to_vec() };
    Settlement::Complete(Answer::Kept(answer).into())
}

fn released() -> Settlement {
    Settlement::Release { reason: reason(), backoff: Duration::ZERO }
}

on_both! {
    async fn what_was_released_runs_over_its_row<B: Base>() {
        let base = B::start().await;
        let held = reserved(base.store().await, Profile::Ietf.policy()).await;
        drop(held.settle(released()).await);
        let node = simple(&base, Profile::Ietf).await;
        assert_eq!(node.state("k").await, Some(StateKind::FailedRetryable));
        call().send(node.addr).await.expect_first(200, "run 1");
        let record = node.record("k").await.unwrap();
        assert_eq!((record.state.kind(), record.attempts), (StateKind::Completed, 2));
        call().send(simple(&base, Profile::Ietf).await.addr).await.expect_replay(200, "run 1");
        assert_eq!(base.charges().await, ["k"]);
    }

    async fn what_is_unknown_is_not_run<B: Base>() {
        let base = B::start().await;
        let held = reserved(base.store().await, Profile::Ietf.policy()).await;
        drop(held.settle(Settlement::Doubt(reason())).await);
        let node = simple(&base, Profile::Ietf).await;
        call().send(node.addr).await.expect_problem(409, "outcome_unknown");
        assert_eq!((node.state("k").await, node.runs()), (Some(StateKind::Unknown), 0));
    }

    /// And it is written down that it has lapsed, with an entry in the record's story.
    async fn what_has_lapsed_is_unknown<B: Base>() {
        let base = B::start().await;
        lapsed(base.store().await, Profile::Ietf.policy()).await;
        let node = simple(&base, Profile::Ietf).await;
        call().send(node.addr).await.expect_problem(409, "outcome_unknown");
        let record = node.record("k").await.unwrap();
        assert_eq!((record.state.kind(), node.runs()), (StateKind::Unknown, 0));
        assert_eq!(node.engine.store().story(record.id, 10).await.unwrap().len(), 1);
    }

    async fn what_has_lapsed_runs_again_where_that_was_declared<B: Base>() {
        let base = B::start().await;
        let restarting = policy(Profile::Ietf, |policy| policy.crash = CrashPolicy::Restart);
        lapsed(base.store().await, restarting.clone()).await;
        let node = simple(&base, restarting).await;
        call().send(node.addr).await.expect_first(200, "run 1");
        assert_eq!(base.charges().await, ["k"]);
    }

    async fn what_is_past_retention_begins_a_new_life<B: Base>() {
        let base = B::start().await;
        let short = policy(Profile::Ietf, |policy| policy.retention = MOMENT);
        drop(reserved(base.store().await, short).await.settle(answered()).await);
        let node = simple(&base, Profile::Ietf).await;
        let before = node.record("k").await.unwrap();
        // Until it is past retention by every clock.
        let first = loop {
            let reply = call().send(node.addr).await;
            if !reply.is_replay() {
                break reply;
            }
        };
        first.expect_first(200, "run 1");
        let record = node.record("k").await.unwrap();
        assert!(record.life != before.life && record.version > before.version && record.fence > before.fence);
        call().send(simple(&base, Profile::Ietf).await.addr).await.expect_replay(200, "run 1");
        assert_eq!(base.charges().await, ["k"]);
    }

    async fn what_is_past_retention_is_gone_where_tombstones_are_kept<B: Base>() {
        let base = B::start().await;
        let short = policy(Profile::Ietf, |policy| {
            policy.retention = MOMENT;
            policy.after_retention = Profile::Payments.policy().after_retention;
        });
        drop(reserved(base.store().await, short).await.settle(answered()).await);
        let node = simple(&base, Profile::Ietf).await;
        let reply = loop {
            let reply = call().send(node.addr).await;
            if !reply.is_replay() {
                break reply;
            }
        };
        reply.expect_problem(410, "key_expired");
        assert_eq!((base.charges().await.len(), node.runs()), (0, 0));
    }

    /// Attack 25. A deploy moved a route from phases to an atomic handler. A ride that had stopped after
    /// its first phase was run as a whole by its retry: the first phase took effect twice.
    async fn attack_25_what_was_begun_in_phases_is_not_run_by_an_atomic_handler<B: Base>() {
        let base = B::start().await;
        let resuming = policy(Profile::Ietf, |policy| policy.crash = CrashPolicy::Resume);
        let held = reserved(base.store().await, resuming).await;
        let mut run = held.phases().run(Arc::new(base.pool())).unwrap();
        run.foreign("charge", Retry, async |_| Ok("charged".to_owned())).await.unwrap();
        drop(run);
        drop(held.settle(released()).await);
        let restarting = policy(Profile::Ietf, |policy| policy.crash = CrashPolicy::Restart);
        for policy in [Profile::Ietf.policy(), restarting] {
            let node = simple(&base, policy).await;
            for _ in 0..2 {
                call().send(node.addr).await.expect_problem(409, "outcome_unknown");
            }
            let record = node.record("k").await.unwrap();
            assert!(matches!(&record.state, State::Unknown(doubt) if doubt.parked), "{record:?}");
            let reason = record.last_error.unwrap().to_string();
            assert!(reason.starts_with("changed_handler") && reason.contains("\"charge\""), "{reason}");
            assert_eq!((node.runs(), base.charges().await.len()), (0, 0));
        }
    }

    /// Attack 22: a record of the release before, whose scope has the text of the route in it. It
    /// is replayed, and what was released runs again over its row.
    async fn attack_22_a_record_of_the_release_before_is_found<B: Base>() {
        let lenient = policy(Profile::Lenient, |policy| policy.in_progress = WhileInProgress::Reject);
        for (settlement, is_over) in [(answered(), true), (released(), false)] {
            let base = B::start().await;
            let engine = Engine::start(base.store().await, Options::default()).await.unwrap();
            let (route, mut arrival) = arrival(lenient.clone());
            arrival.address.scope = route.scope("acme").unwrap();
            let Arrived::Execute(held) = engine.arrive(&route, arrival).await.unwrap() else { unreachable!() };
            let id = held.id();
            let node = simple(&base, lenient.clone()).await;
            call().send(node.addr).await.expect_problem(409, "in_progress");
            drop(held.settle(settlement).await);
            let reply = call().send(node.addr).await;
            if is_over {
                reply.expect_replay(200, "before");
            } else {
                reply.expect_first(200, "run 1");
            }
            let record = read_one(node.engine.store(), id).await.unwrap().unwrap();
            assert_eq!((record.state.kind(), record.attempts), (StateKind::Completed, if is_over { 1 } else { 2 }));
            assert_eq!(node.runs(), usize::from(!is_over));
            // A key that is new has its record where the request says.
            Call::post("/charges").key("new").send(node.addr).await.expect_first(200, if is_over { "run 1" } else { "run 2" });
        }
    }
}
