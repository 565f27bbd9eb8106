//! A claim that ends before the send: nothing is sent under it, because another worker may have claimed and sent the job since.

use std::time::Duration;

use oncegate_engine::{
    Delivering, Delivery, Effect, Effects, Engine, Options, OutboxOptions, Pass, Patience, Sent,
};
use oncegate_store::jobs::{Job, Jobs, Stage};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::answering::entrusted;
use crate::provider::Provider;
use crate::stores::job;
use crate::world::{Hand, Shaky, shaky_on, soon, start};

/// Longer than any claim here.
const CLAIM: Duration = Duration::from_mins(1);

/// Two nodes over one store. The clock is turned by hand, and answers of the store are slow when the test says so.
async fn nodes(hand: &Hand) -> ([Engine<Shaky>; 2], Shaky) {
    let store = shaky_on(hand);
    let (a, b) = (start(store.clone(), Options::default()), start(store.clone(), Options::default()));
    ([a.await, b.await], store)
}

/// One pass, which the test holds up somewhere.
fn begin_pass(engine: &Engine<Shaky>, effects: Effects) -> JoinHandle<Pass> {
    let engine = engine.clone();
    tokio::spawn(async move { engine.work_outbox(&effects, &OutboxOptions::default()).await.unwrap() })
}

async fn pass(engine: &Engine<Shaky>, effects: Effects) -> Pass {
    soon(begin_pass(engine, effects)).await.unwrap()
}

async fn is_done(engine: &Engine<Shaky>, job: &Job) -> bool {
    matches!(engine.store().job(job.id).await.unwrap().unwrap().stage, Stage::Done(_))
}

/// Attack 32. A worker claims a job and reads its record, and the answer takes longer than the claim lasts. Another worker claims the job
/// and sends it. Then the first worker had its answer, in which the record was still open, and sent the job again.
#[tokio::test(flavor = "multi_thread")]
async fn attack_32_a_job_whose_claim_ends_during_a_slow_read_is_sent_once() {
    let hand = Hand::new();
    let ([a, b], store) = nodes(&hand).await;
    let provider = Provider::willing();
    let promised = entrusted(&a, "order").await;
    // Of the claim and of the read.
    store.slow_answers(2);
    let slow = begin_pass(&a, provider.effects());
    soon(store.until_slow(1)).await;
    store.answer();
    soon(store.until_slow(2)).await;
    hand.turn(CLAIM);
    pass(&b, provider.effects()).await;
    assert_eq!(provider.calls().len(), 1);
    store.answer();
    soon(slow).await.unwrap();
    assert_eq!(provider.calls().len(), 1, "not under a claim that has ended");
    assert!(is_done(&a, &promised).await);
}

/// The same where nothing but the claim itself is slow, or the host is suspended right after it. Meanwhile another worker sends the job and
/// the next one of its line, so the first worker's send came out of order.
#[tokio::test(flavor = "multi_thread")]
async fn a_line_stays_in_order_when_a_claim_ends_before_its_job_is_sent() {
    let hand = Hand::new();
    let ([a, b], store) = nodes(&hand).await;
    let provider = Provider::willing();
    let line: Vec<_> = (0..2).map(|n| Job { line: Some("acct_1".into()), ..job(&a, n) }).collect();
    store.promise(&line).await.unwrap();
    store.slow_answers(1);
    let slow = begin_pass(&a, provider.effects());
    soon(store.until_slow(1)).await;
    hand.turn(CLAIM);
    pass(&b, provider.effects()).await;
    pass(&b, provider.effects()).await;
    store.answer();
    soon(slow).await.unwrap();
    let sent: Vec<_> = provider.calls().into_iter().map(|call| call.payload).collect();
    assert_eq!(sent, ["{\"n\":0}", "{\"n\":1}"]);
}

/// Where no other worker took it, the job comes again at once, and the try that sent nothing does not count.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_was_not_sent_comes_again() {
    let hand = Hand::new();
    let ([a, _], store) = nodes(&hand).await;
    let provider = Provider::willing();
    let promised = job(&a, 0);
    store.promise(std::slice::from_ref(&promised)).await.unwrap();
    store.slow_answers(1);
    let slow = begin_pass(&a, provider.effects());
    soon(store.until_slow(1)).await;
    hand.turn(CLAIM);
    store.answer();
    soon(slow).await.unwrap();
    assert!(provider.calls().is_empty());
    let waiting = store.job(promised.id).await.unwrap().unwrap();
    assert_eq!((waiting.stage, waiting.tries), (Stage::Waiting, 0));
    assert_eq!(waiting.last_error.unwrap().code(), "claim_ended");
    pass(&a, provider.effects()).await;
    assert!(is_done(&a, &promised).await);
}

/// Says how long each delivery may take.
struct Deadlines(watch::Sender<Vec<Duration>>);

impl Effect for Deadlines {
    fn deliver<'a>(&'a self, delivery: &'a Delivery<'a>) -> Delivering<'a> {
        let left = delivery.deadline.saturating_duration_since(tokio::time::Instant::now());
        self.0.send_modify(|all| all.push(left));
        Box::pin(async { Sent::Delivered { reference: None, answer: None } })
    }

    fn patience(&self) -> Patience {
        Patience { timeout: Duration::from_secs(20), ..Patience::default() }
    }
}

/// A delivery that outlasts its claim is as bad as one that begins after it: it is cut off when the claim may have ended, by a clock that
/// may be wrong.
#[tokio::test(flavor = "multi_thread")]
async fn a_delivery_is_cut_off_when_its_claim_may_have_ended() {
    let hand = Hand::new();
    let store = shaky_on(&hand);
    let clock = hand.late(Duration::ZERO, Duration::from_secs(2));
    let engine = start(store.clone(), Options { clock: Some(clock), ..Options::default() }).await;
    let seen = watch::Sender::new(Vec::new());
    let effects = Effects::new().with("charge", Deadlines(seen.clone()));
    store.promise(&[job(&engine, 0), job(&engine, 1)]).await.unwrap();
    // A claim lasts thirty seconds here. After 29 of them it may be over, by a clock that may be wrong by two.
    for (pass, slow_s, sent) in [(1, 29, 0), (2, 18, 2)] {
        store.slow_answers(1);
        let held_up = begin_pass(&engine, effects.clone());
        soon(store.until_slow(pass)).await;
        hand.turn(Duration::from_secs(slow_s));
        store.answer();
        soon(held_up).await.unwrap();
        assert_eq!(seen.borrow().len(), sent);
    }
    // 30 - 18, less the error.
    let limit = Duration::from_secs(10);
    assert!(seen.borrow().iter().all(|left| (limit / 2..=limit).contains(left)), "{seen:?}");
}
