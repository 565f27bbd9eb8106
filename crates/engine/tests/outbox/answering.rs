//! Jobs whose answer is the record's.

use std::sync::Arc;
use std::time::Duration;

use oncegate_core::audit;
use oncegate_core::decide::{Arrival, Decision, Event};
use oncegate_core::identity::Token;
use oncegate_core::record::{Holder, Reason, State};
use oncegate_engine::{Act, Engine, Operator, OutboxOptions, Sent};
use oncegate_store::jobs::{Became, Claim, Job, JobId, Jobs, Receipt, Report, Stage};
use oncegate_store::{Filter, Store as _};
use oncegate_store_sql::SqliteStore;

use crate::provider::{Does, Provider, QUICK, later, receipt};
use crate::stores::{promise, sqlite};
use crate::world::{Hand, id, replayed, request, route, row};

/// A record that is in progress until a job ends it, and that job.
pub(crate) async fn entrusted<S: Jobs>(engine: &Engine<S>, key: &str) -> Job {
    let route = lasting();
    // A life of its own for every key.
    let mut token = [0; 16];
    token[..key.len()].copy_from_slice(key.as_bytes());
    let arrival = Arrival { token: Token::from_bytes(token), ..request(&route, key) };
    let step = engine.drive(id(&route, key), &Event::Arrive(arrival)).await.unwrap();
    let Decision::Execute(lease) = step.decision else { panic!("{:?}", step.decision) };
    let holder = lease.holder;
    let whose = (id(&route, key), holder.life);
    let job = Job::promised(JobId::of(holder.life, 0), "charge", b"{}".to_vec(), whose, engine.now().at);
    let job = Job { answers: Some(holder), ..job };
    promise(engine, std::slice::from_ref(&job)).await;
    job
}

/// A lease that outlasts every pause of a job.
fn lasting() -> oncegate_engine::Route {
    route(|policy| {
        policy.lease = Duration::from_hours(24 * 365);
        policy.attempt_deadline = Duration::from_hours(24 * 365);
    })
}

async fn node() -> (Engine<SqliteStore>, Hand, tempfile::TempDir) {
    let hand = Hand::new();
    let (engine, place) = sqlite(Some(&hand)).await;
    (engine, hand, place)
}

async fn work(engine: &Engine<SqliteStore>, provider: &Provider) -> usize {
    engine.work_outbox(&provider.effects(), &OutboxOptions::default()).await.unwrap().seen
}

async fn job(engine: &Engine<SqliteStore>, id: JobId) -> Job {
    engine.store().job(id).await.unwrap().unwrap()
}

#[tokio::test]
async fn the_provider_s_answer_becomes_the_record_s_and_everybody_is_told_it() {
    let (engine, _hand, _place) = node().await;
    let provider = Provider::willing();
    let promised = entrusted(&engine, "a").await;
    assert_eq!(work(&engine, &provider).await, 1);
    let key = promised.downstream_key();
    assert_eq!(*replayed(&engine, &lasting(), "a").await, receipt(&key));
    let reference: Option<Box<str>> = Some(format!("ch_{key}").into());
    // The provider's name for it is on the record too: that is how a webhook names it, and what an operator is shown.
    assert_eq!(row(&engine, promised.record).await.provider_reference, reference);
    let named = Filter { reference: reference.as_deref().map(str::to_owned), ..Filter::default() };
    let found = engine.store().browse(&named, None, 10).await.unwrap().records;
    assert_eq!(found.iter().map(|record| record.id).collect::<Vec<_>>(), [promised.record]);
    assert_eq!(job(&engine, promised.id).await.stage, Stage::Done(Receipt { reference, answer: None }));
    assert_eq!(key, promised.record.derived_key(promised.life), "what a probe would ask by");
}

/// Its worker died after the provider's name for it was recorded, and before the record was completed.
#[tokio::test]
async fn what_was_delivered_is_not_delivered_again_and_its_record_is_completed() {
    let (engine, hand, _place) = node().await;
    let promised = entrusted(&engine, "a").await;
    let dead = Token::from_bytes([1; 16]);
    let claim = Claim { token: dead, effects: &["charge"], span: Duration::from_secs(5), limit: 1, again: 1 };
    assert_eq!(engine.store().claim(&claim).await.unwrap().len(), 1);
    let given = Receipt { reference: Some("ch_1".into()), answer: Some(Box::new(receipt("k"))) };
    let delivered = Report { id: promised.id, became: Became::Delivered(given) };
    assert_eq!(engine.store().report(dead, &[delivered]).await.unwrap(), [true]);
    let provider = Provider::willing();
    assert_eq!(work(&engine, &provider).await, 0, "its claim goes on");
    hand.turn(Duration::from_secs(5));
    assert_eq!(work(&engine, &provider).await, 1);
    assert!(provider.calls().is_empty());
    assert_eq!(*replayed(&engine, &lasting(), "a").await, receipt("k"));
    let done = Receipt { reference: Some("ch_1".into()), answer: None };
    assert_eq!(job(&engine, promised.id).await.stage, Stage::Done(done));
}

#[tokio::test]
async fn a_job_whose_record_was_settled_otherwise_is_not_sent() {
    let (engine, _hand, _place) = node().await;
    let promised = entrusted(&engine, "a").await;
    let holder: Holder = promised.answers.unwrap();
    let reason = Reason::new("operator", "never mind");
    let release = Event::Release { holder, reason, backoff: Duration::ZERO };
    let _ = engine.drive(promised.record, &release).await.unwrap();
    let provider = Provider::willing();
    assert_eq!(work(&engine, &provider).await, 1);
    assert!(provider.calls().is_empty());
    let over = job(&engine, promised.id).await;
    assert_eq!((over.stage, over.last_error.unwrap().code()), (Stage::Withdrawn, "not_held"));
}

/// An operator who settled a record left its job before himself for good: it could only be retried, was found not to be held, and was
/// parked again.
#[tokio::test]
async fn whoever_settles_a_record_settles_the_job_that_was_given_up_too() {
    let (engine, _hand, _place) = node().await;
    let (effects, options) = (
        Provider::new(|_| Does::Say(Sent::Refused("no such account".into()))).effects(),
        OutboxOptions::default(),
    );
    let jobs = [entrusted(&engine, "a").await, entrusted(&engine, "b").await];
    engine.work_outbox(&effects, &options).await.unwrap();
    engine.tidy_outbox(&effects, &options).await.unwrap();
    for promised in &jobs {
        assert_eq!(
            job(&engine, promised.id).await.stage,
            Stage::Parked,
            "its record still waits for somebody"
        );
    }
    let doubted = row(&engine, jobs[0].record).await;
    let operator = Operator { name: "ann".into(), reason: "seen in the ledger".into() };
    let happened = Act::Happened(Arc::new(receipt("k")));
    let decided = engine.operate(doubted.id, doubted.version, happened, &operator).await.unwrap();
    assert_eq!(decided, Decision::Done);
    engine.tidy_outbox(&effects, &options).await.unwrap();
    let over = job(&engine, jobs[0].id).await;
    assert_eq!((over.stage, over.last_error.unwrap().code()), (Stage::Withdrawn, "not_held"));
    assert_eq!(job(&engine, jobs[1].id).await.stage, Stage::Parked, "of this one nobody has said anything");
    let story = engine.store().story(doubted.id, 10).await.unwrap();
    assert!(
        story.iter().any(|entry| entry.act == audit::Act::Withdrawn && entry.source.is_none()),
        "{story:?}"
    );
    // Retried by somebody who does not know that it is settled: over as well, and not parked once more.
    assert!(engine.retry_job(jobs[1].id, &operator).await.unwrap());
    let doubted = row(&engine, jobs[1].record).await;
    let decided = engine.operate(doubted.id, doubted.version, Act::DidNotHappen, &operator).await.unwrap();
    assert_eq!(decided, Decision::Done);
    engine.work_outbox(&effects, &options).await.unwrap();
    assert_eq!(job(&engine, jobs[1].id).await.stage, Stage::Withdrawn);
}

#[tokio::test]
async fn a_job_that_is_given_up_leaves_its_record_in_doubt_and_a_retry_may_still_end_it() {
    let (engine, hand, _place) = node().await;
    let promised = entrusted(&engine, "a").await;
    let refusing = Provider::new(|_| Does::Say(Sent::Refused("no such account".into())));
    assert_eq!(work(&engine, &refusing).await, 1);
    assert_eq!(job(&engine, promised.id).await.stage, Stage::Parked);
    let doubted = row(&engine, promised.record).await;
    assert!(matches!(doubted.state, State::Unknown(_)), "{doubted:?}");
    assert_eq!(doubted.last_error.unwrap().detail(), "no such account");
    // An operator has put it right, and says so.
    hand.turn(Duration::from_mins(1));
    assert!(engine.store().unpark(promised.id).await.unwrap());
    let provider = Provider::willing();
    assert_eq!(work(&engine, &provider).await, 1);
    assert_eq!(*replayed(&engine, &lasting(), "a").await, receipt(&promised.downstream_key()));
}

#[tokio::test]
async fn a_record_stays_in_progress_while_its_job_is_tried_again() {
    let (engine, hand, _place) = node().await;
    let promised = entrusted(&engine, "a").await;
    let provider = Provider::new(|call| if call.tries < 3 { Does::Say(later("busy")) } else { Does::Charge });
    for _ in 0..2 {
        assert_eq!(work(&engine, &provider).await, 1);
        assert_eq!(row(&engine, promised.record).await.state, State::InProgress);
        hand.turn(Duration::from_mins(10));
    }
    assert_eq!(work(&engine, &provider).await, 1);
    assert_eq!(*replayed(&engine, &lasting(), "a").await, receipt(&promised.downstream_key()));
}

/// A job that kills whoever sends it says nothing of itself: it was sent for ever, and took its worker with it each time.
#[tokio::test]
async fn a_job_whose_workers_died_as_often_as_it_may_be_tried_is_given_up_and_not_sent_again() {
    let (engine, hand, _place) = node().await;
    let promised = entrusted(&engine, "a").await;
    let provider = Provider::willing();
    let span = Duration::from_secs(5);
    for n in 1..=u8::try_from(QUICK.park_after).unwrap() {
        let token = Token::from_bytes([n; 16]);
        let claim = Claim { token, effects: &["charge"], span, limit: 1, again: 1 };
        assert_eq!(engine.store().claim(&claim).await.unwrap().len(), 1);
        hand.turn(span);
    }
    assert_eq!(work(&engine, &provider).await, 1);
    assert!(provider.calls().is_empty());
    let parked = job(&engine, promised.id).await;
    assert_eq!((parked.stage, parked.last_error.unwrap().code()), (Stage::Parked, "tried_too_often"));
    assert!(matches!(row(&engine, promised.record).await.state, State::Unknown(_)));
    // An operator who has mended it puts it back.
    assert!(engine.store().unpark(promised.id).await.unwrap());
    assert_eq!(work(&engine, &provider).await, 1);
    assert_eq!(*replayed(&engine, &lasting(), "a").await, receipt(&promised.downstream_key()));
}
