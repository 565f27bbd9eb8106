//! Holders that come too late, by a clock that the test turns.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use axum::extract::Request;
use oncegate_core::decide::{Decision, Event, Finding, Grounds, Retry, Verdict};
use oncegate_core::policy::{Policy, Profile};
use oncegate_core::record::StateKind;
use oncegate_core::response::{Answer, Response};
use oncegate_core::time::Timestamp;
use oncegate_store::clock::Clock;
use oncegate_store::drive::{drive, read_one};
use oncegate_store::faulty::{Fault, Faulty};
use oncegate_store::memory::MemoryStore;

use crate::client::{Call, Connection};
use crate::stage::{Gate, HandClock, Stage, gated, id_of, numbered, policy, simple};

const LEASE: Duration = Duration::from_mins(1);

fn call() -> Call {
    Call::post("/payments").key("one").json(r#"{"amount":100}"#)
}

/// A handler at the gate, its lease over.
struct Lapsed {
    clock: HandClock,
    store: MemoryStore,
    gate: Gate,
    stage: Stage<MemoryStore>,
    client: Connection,
}

async fn lapsed() -> Lapsed {
    lapsed_under(Profile::Ietf.policy()).await
}

async fn lapsed_under(policy: Policy) -> Lapsed {
    let clock = HandClock::new();
    let store = MemoryStore::with_clock(clock.clock());
    let (gate, stage) = gated(store.clone(), policy).await;
    let client = call().open(stage.addr).await;
    gate.entered().await;
    clock.turn(LEASE);
    Lapsed { clock, store, gate, stage, client }
}

impl Lapsed {
    async fn drive(&self, event: &Event) -> Decision {
        drive(&self.store, id_of("one"), event, self.clock.now()).await.unwrap().decision
    }

    async fn hear(&self, finding: Finding) -> Decision {
        let life = read_one(&self.store, id_of("one")).await.unwrap().unwrap().life;
        let verdict = Verdict { life, source: "test".into(), reference: None, finding };
        self.drive(&Event::Verdict(verdict)).await
    }

    async fn did_not_happen(&self) -> Decision {
        let version = read_one(&self.store, id_of("one")).await.unwrap().unwrap().version;
        let otherwise = Retry { at: self.clock.now().at, park_after: 9 };
        let grounds = Grounds::Operator { version };
        self.hear(Finding::DidNotHappen { grounds, backoff: Duration::ZERO, otherwise }).await
    }
}

fn rebuilt() -> Arc<Answer> {
    Arc::new(Answer::Kept(Response {
        status: 201,
        headers: vec![("x-rebuilt".to_owned(), b"yes".to_vec())],
        body: b"rebuilt".to_vec(),
    }))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_holder_settles_its_own_doubt() {
    let mut late = lapsed().await;
    assert_eq!(late.drive(&Event::Sweep).await, Decision::Done);
    assert_eq!(late.stage.state(&late.store, "one").await, Some(StateKind::Unknown));
    call().send(late.stage.addr).await.expect_problem(409, "outcome_unknown");
    late.gate.open();
    late.client.reply().await.unwrap().expect_first(200, "run 1");
    call().send(late.stage.addr).await.expect_replay(200, "run 1");
    assert_eq!(late.stage.runs(), 1);
}

/// A retry that finds the lease lapsed does not run: it makes a doubt of it, which the holder then settles.
#[tokio::test(flavor = "multi_thread")]
async fn a_retry_past_the_lease_does_not_run() {
    let mut late = lapsed().await;
    call().send(late.stage.addr).await.expect_problem(409, "outcome_unknown");
    late.gate.open();
    late.client.reply().await.unwrap().expect_first(200, "run 1");
    call().send(late.stage.addr).await.expect_replay(200, "run 1");
    assert_eq!(late.stage.runs(), 1);
}

/// Attack 12: a webhook has completed it with a rebuilt answer, and others have seen that one.
#[tokio::test(flavor = "multi_thread")]
async fn a_late_holder_is_answered_from_the_record() {
    for is_swept in [true, false] {
        let mut late = lapsed().await;
        if is_swept {
            assert_eq!(late.drive(&Event::Sweep).await, Decision::Done);
        }
        assert_eq!(late.hear(Finding::Happened(rebuilt())).await, Decision::Done);
        let replay = call().send(late.stage.addr).await;
        replay.expect_replay(201, "rebuilt");
        late.gate.open();
        let own = late.client.reply().await.unwrap();
        own.expect_replay(201, "rebuilt");
        assert_eq!(own.in_common(), replay.in_common());
        assert_eq!(own.header("x-rebuilt"), Some("yes"));
        call().send(late.stage.addr).await.expect_replay(201, "rebuilt");
        assert_eq!(late.stage.runs(), 1);
    }
}

/// Wrongly judged not to have happened, and run again: the older holder overwrites nothing and sends nothing of its own.
#[tokio::test(flavor = "multi_thread")]
async fn a_late_holder_overwrites_nothing_of_a_newer_attempt() {
    let mut late = lapsed().await;
    assert_eq!(late.drive(&Event::Sweep).await, Decision::Done);
    assert_eq!(late.did_not_happen().await, Decision::Done);
    let mut newer = call().open(late.stage.addr).await;
    late.gate.entered().await;
    // The older one passes the gate first.
    late.gate.open();
    late.client.reply().await.unwrap().expect_problem(409, "in_progress");
    late.gate.open();
    newer.reply().await.unwrap().expect_first(200, "run 2");
    call().send(late.stage.addr).await.expect_replay(200, "run 2");
    assert_eq!(late.stage.runs(), 2);
}

/// The same where clients may prefer to be answered later. The newer attempt runs for its client,
/// so the older holder's was told 202 for what no worker would ever run.
#[tokio::test(flavor = "multi_thread")]
async fn a_late_holder_beside_a_newer_inline_attempt_is_promised_nothing() {
    let policy = policy(Profile::Ietf, |policy| policy.respond_async = true);
    let mut late = lapsed_under(policy).await;
    assert_eq!(late.drive(&Event::Sweep).await, Decision::Done);
    assert_eq!(late.did_not_happen().await, Decision::Done);
    let mut newer = call().open(late.stage.addr).await;
    late.gate.entered().await;
    // The older one passes the gate first.
    late.gate.open();
    late.client.reply().await.unwrap().expect_problem(409, "in_progress");
    // A client that prefers it is: a worker runs it then if this attempt does not.
    let later = call().header("prefer", b"respond-async").send(late.stage.addr).await;
    assert_eq!(later.status, 202, "{later:?}");
    late.gate.open();
    newer.reply().await.unwrap().expect_first(200, "run 2");
    assert_eq!(late.stage.runs(), 2);
}

/// Judged not to have happened, and nobody ran it again: that it did happen is what counts.
#[tokio::test(flavor = "multi_thread")]
async fn a_late_holder_that_did_it_is_believed() {
    let mut late = lapsed().await;
    assert_eq!(late.drive(&Event::Sweep).await, Decision::Done);
    assert_eq!(late.did_not_happen().await, Decision::Done);
    late.gate.open();
    late.client.reply().await.unwrap().expect_first(200, "run 1");
    call().send(late.stage.addr).await.expect_replay(200, "run 1");
    assert_eq!(late.stage.runs(), 1);
}

/// Attack 2, as it happens: the store takes so long to say yes that the lease is over.
#[tokio::test(flavor = "multi_thread")]
async fn a_reserve_that_is_acknowledged_after_its_lease_runs_nothing() {
    let clock = HandClock::new();
    let store = Faulty::new(MemoryStore::with_clock(clock.clock()));
    let stage = simple(store.clone(), Profile::Ietf).await;
    store.queue(Fault::Delayed);
    let mut client = call().open(stage.addr).await;
    stage.commits(1).await;
    clock.turn(LEASE);
    store.let_go();
    client.reply().await.unwrap().expect_problem(503, "store_unavailable");
    assert_eq!(stage.runs(), 0);
    stage.engine.quiet().await;
    call().send(stage.addr).await.expect_first(200, "run 1");
}

/// Attack 2, at every moment: the lease ends between any two looks at the clock. Whatever the moment, the handler is called
/// under a lease or not at all; and if it was not, the key is free.
#[tokio::test(flavor = "multi_thread")]
async fn the_lease_may_end_at_any_moment_before_the_handler() {
    let mut refusals = Vec::new();
    for moment in 1..=12 {
        let (clock, looks) = jumping_at(moment);
        let store = MemoryStore::with_clock(clock);
        let answer = numbered();
        let handler = {
            let looks = Arc::clone(&looks);
            // From here on it cannot be called back.
            move |_: Request| {
                looks.store(i64::MIN / 2, Ordering::SeqCst);
                std::future::ready(answer())
            }
        };
        let stage = Stage::new(store, Profile::Ietf, handler).await;
        looks.store(0, Ordering::SeqCst);
        let first = call().send(stage.addr).await;
        let has_jumped = looks.load(Ordering::SeqCst) >= moment;
        if let Some(code) = first.code() {
            assert!(first.status >= 500 && first.header("retry-after").is_some(), "{moment}: {first:?}");
            assert_eq!((stage.runs(), has_jumped), (0, true), "{moment}: {first:?}");
            refusals.push(code);
            stage.engine.quiet().await;
        } else {
            first.expect_first(200, "run 1");
        }
        let retry = call().send(stage.addr).await;
        assert_eq!((retry.status, &*retry.body), (200, &b"run 1"[..]), "{moment}: {retry:?}");
        assert_eq!(stage.runs(), 1, "{moment}");
    }
    refusals.dedup();
    assert_eq!(refusals, ["store_unavailable", "upstream_unreachable"], "both places were met");
}

/// A clock that stands still, and from this look on shows a time past any lease.
fn jumping_at(moment: i64) -> (Clock, Arc<AtomicI64>) {
    let looks = Arc::new(AtomicI64::new(i64::MIN / 2));
    let counter = Arc::clone(&looks);
    let clock = Clock::from_fn(move || {
        let is_late = counter.fetch_add(1, Ordering::SeqCst) + 1 >= moment;
        let start = Timestamp::from_micros(1_700_000_000_000_000);
        if is_late { start.plus(2 * LEASE) } else { start }
    });
    (clock, looks)
}
