//! Promises that nobody waits for.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use oncegate_engine::{Engine, Operator, OutboxOptions, Sent};
use oncegate_store::jobs::{Job, Jobs, Stage};

use oncegate_test_servers::until;

use crate::provider::{Does, Provider, QUICK, later, quick};
use crate::stores::{Schema, job, promise, sqlite, until_empty};
use crate::world::{Hand, soon};

async fn jobs<S: Jobs>(engine: &Engine<S>, count: u32) -> Vec<Job> {
    let jobs: Vec<_> = (0..count).map(|n| job(engine, n)).collect();
    promise(engine, &jobs).await;
    jobs
}

async fn stage<S: Jobs>(engine: &Engine<S>, job: &Job) -> Stage {
    engine.store().job(job.id).await.unwrap().unwrap().stage
}

async fn are_done<S: Jobs>(engine: &Engine<S>, jobs: &[Job]) {
    for job in jobs {
        let Stage::Done(receipt) = stage(engine, job).await else { panic!("{job:?}") };
        assert_eq!(
            receipt.reference.unwrap(),
            format!("ch_{}", job.downstream_key()).into(),
            "the provider's name for it is kept"
        );
        assert_eq!(receipt.answer, None, "nobody waits for it");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_workers_share_the_jobs_and_call_the_provider_once_for_each() {
    let schema = Schema::new();
    let nodes = [schema.node().await, schema.node().await];
    let provider = Provider::willing();
    let jobs = jobs(&nodes[0], 300).await;
    let outboxes = nodes.each_ref().map(|node| node.start_outbox(&provider.effects(), &quick()));
    until_empty(&nodes[0]).await;
    are_done(&nodes[1], &jobs).await;
    assert_eq!(provider.calls().len(), jobs.len(), "one call for each");
    drop(outboxes);
}

async fn provider_down<S: Jobs>(engine: &Engine<S>) {
    let is_up = Arc::new(AtomicBool::new(false));
    let up = Arc::clone(&is_up);
    let provider = Provider::new(move |call| {
        // It comes back once somebody has been patient.
        if call.tries >= 3 {
            up.store(true, Ordering::SeqCst);
        }
        if up.load(Ordering::SeqCst) { Does::Charge } else { Does::Say(later("connection refused")) }
    });
    let jobs = jobs(engine, 100).await;
    let outbox = engine.start_outbox(&provider.effects(), &quick());
    until_empty(engine).await;
    assert!(is_up.load(Ordering::SeqCst));
    are_done(engine, &jobs).await;
    assert_eq!(provider.charges(), jobs.len());
    drop(outbox);
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_provider_was_down_everything_is_delivered_on_sqlite() {
    provider_down(&sqlite(None).await.0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_provider_was_down_everything_is_delivered_on_postgres() {
    let schema = Schema::new();
    provider_down(&schema.node().await).await;
}

fn number(payload: &str) -> u32 {
    payload.trim_start_matches("{\"n\":").trim_end_matches('}').parse().unwrap()
}

/// Of each three hundred one is refused, one panics, and one hangs. Each is put before an operator, and holds up nobody.
async fn poison<S: Jobs>(engine: &Engine<S>) {
    let bad = |payload: &str, last: u32| number(payload) % 300 == last;
    let provider = Provider::new(move |call| match &call.payload {
        payload if bad(payload, 0) => Does::Say(Sent::Refused("no such account".into())),
        payload if bad(payload, 1) => Does::Panic,
        payload if bad(payload, 2) => Does::ChargeAndHang,
        _ => Does::Charge,
    });
    let jobs = jobs(engine, 6_000).await;
    let outbox = engine.start_outbox(&provider.effects(), &quick());
    until_empty(engine).await;
    let (poison, good): (Vec<_>, Vec<_>) = (0..).zip(jobs).partition(|(n, _)| n % 300 < 3);
    are_done(engine, &good.into_iter().map(|(_, job)| job).collect::<Vec<_>>()).await;
    let parked = engine.store().parked(None, 100).await.unwrap();
    assert_eq!(parked.len(), poison.len());
    for (n, job) in poison {
        let parked = parked.iter().find(|parked| parked.id == job.id).unwrap();
        let code = parked.last_error.as_ref().unwrap().code();
        let (expected, tries) = if n % 300 == 0 { ("refused", 1) } else { ("tried_too_often", 5) };
        assert_eq!((code, parked.tries), (expected, tries), "{parked:?}");
    }
    drop(outbox);
}

#[tokio::test(flavor = "multi_thread")]
async fn poison_is_put_before_an_operator_and_the_others_flow_on_sqlite() {
    poison(&sqlite(None).await.0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn poison_is_put_before_an_operator_and_the_others_flow_on_postgres() {
    let schema = Schema::new();
    poison(&schema.node().await).await;
}

/// Jobs that hang took all of the places, try by try, for as long as they were not given up: nothing else was delivered meanwhile. Here
/// they hang for ever, and there are more of them than places.
async fn hanging<S: Jobs>(engine: &Engine<S>) {
    let options = quick();
    let hangs = u32::try_from(options.at_once).unwrap() * 2;
    let tried = Arc::new(AtomicUsize::new(0));
    let again = Arc::clone(&tried);
    let provider = Provider::new(move |call| match number(&call.payload) {
        // The first try is over at once, so that all of them are retries; then they hang.
        n if n < hangs && call.tries == 1 => {
            Does::Say(Sent::Later { after: Some(Duration::ZERO), why: "busy".into() })
        }
        n if n < hangs => {
            again.fetch_add(1, Ordering::SeqCst);
            Does::ChargeAndHang
        }
        _ => Does::Charge,
    })
    .patient(Duration::from_hours(1));
    let stuck: Vec<_> = (0..hangs).map(|n| job(engine, n)).collect();
    promise(engine, &stuck).await;
    let outbox = engine.start_outbox(&provider.effects(), &options);
    until("as many hang as may", async || tried.load(Ordering::SeqCst) >= options.at_once / 2).await;
    let others: Vec<_> = (hangs..hangs + 1_000).map(|n| job(engine, n)).collect();
    promise(engine, &others).await;
    until("the others are delivered", async || {
        engine.store().depth().await.unwrap()[0].waiting == u64::from(hangs)
    })
    .await;
    are_done(engine, &others).await;
    assert_eq!(tried.load(Ordering::SeqCst), options.at_once / 2, "half of the places are for the others");
    drop(outbox);
}

#[tokio::test(flavor = "multi_thread")]
async fn more_jobs_that_hang_than_places_hold_up_nobody_on_sqlite() {
    hanging(&sqlite(None).await.0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn more_jobs_that_hang_than_places_hold_up_nobody_on_postgres() {
    let schema = Schema::new();
    hanging(&schema.node().await).await;
}

/// A night without a provider: with the defaults everything that had been promised was before an operator after half an hour.
#[tokio::test]
async fn a_provider_that_cannot_be_reached_is_waited_for_by_age_and_not_by_tries() {
    let hand = Hand::new();
    let (engine, _place) = sqlite(Some(&hand)).await;
    let is_up = Arc::new(AtomicUsize::new(0));
    let state = Arc::clone(&is_up);
    let provider = Provider::new(move |_| match state.load(Ordering::SeqCst) {
        0 => Does::Say(Sent::Unreachable { after: None, why: "connection refused".into() }),
        1 => Does::Say(later("no answer in time")),
        _ => Does::Charge,
    });
    let (effects, options) = (provider.effects(), OutboxOptions::default());
    let pass = async || engine.work_outbox(&effects, &options).await.unwrap();
    let [patient, late]: [Job; 2] = jobs(&engine, 2).await.try_into().unwrap();
    // Far more often than it may be tried, and almost as long as it may take.
    let step = Duration::from_mins(30);
    for _ in 0..47 {
        assert_eq!(pass().await.seen, 2);
        hand.turn(step);
    }
    for job in [&patient, &late] {
        assert_eq!(stage(&engine, job).await, Stage::Waiting);
    }
    // It comes back, and is slow at first: there are tries left for that.
    is_up.store(1, Ordering::SeqCst);
    assert_eq!(pass().await.seen, 2);
    assert_eq!(stage(&engine, &patient).await, Stage::Waiting);
    hand.turn(step);
    is_up.store(0, Ordering::SeqCst);
    assert_eq!(pass().await.seen, 2);
    for job in [&patient, &late] {
        let given_up = engine.store().job(job.id).await.unwrap().unwrap();
        let why = given_up.last_error.unwrap();
        assert_eq!((given_up.stage, why.code()), (Stage::Parked, "unreachable_too_long"), "after a day");
        assert!(why.detail().contains("connection refused"), "{why}");
    }
    // One that comes to an outage late, out of a long line say, is not given up at its first try.
    assert!(engine.store().unpark(late.id).await.unwrap());
    assert_eq!(pass().await.seen, 1);
    assert_eq!(stage(&engine, &late).await, Stage::Waiting);
    is_up.store(2, Ordering::SeqCst);
    hand.turn(step);
    assert_eq!(pass().await.seen, 1);
    are_done(&engine, &[late]).await;
}

/// Full jitter: what failed together is not tried together, and never later than the pause.
#[tokio::test]
async fn pauses_are_spread_over_all_of_their_length() {
    let hand = Hand::new();
    let (engine, _place) = sqlite(Some(&hand)).await;
    let provider = Provider::new(|_| Does::Say(later("busy")));
    let jobs = jobs(&engine, 64).await;
    let failed_at = hand.now();
    assert_eq!(engine.work_outbox(&provider.effects(), &OutboxOptions::default()).await.unwrap().seen, 64);
    let mut pauses = Vec::new();
    for job in &jobs {
        pauses.push(engine.store().job(job.id).await.unwrap().unwrap().due_at.since(failed_at));
    }
    pauses.sort_unstable();
    pauses.dedup();
    let longest = QUICK.backoff;
    assert!(*pauses.last().unwrap() <= longest, "{pauses:?}");
    // Of 64 by chance: none in a quarter of the length happens once in a hundred million runs.
    assert!(pauses[0] < longest / 4 && *pauses.last().unwrap() > longest * 3 / 4, "{pauses:?}");
    assert!(pauses.len() > 32, "not in step: {pauses:?}");
}

/// It stood before all jobs of its effect.
#[tokio::test]
async fn a_job_that_cannot_be_read_is_put_before_an_operator_and_the_others_are_delivered() {
    let (engine, place) = sqlite(None).await;
    let jobs = jobs(&engine, 3).await;
    let url = format!("sqlite://{}", place.path().join("records.db").display());
    let pool = sqlx::SqlitePool::connect(&url).await.unwrap();
    let damage = "UPDATE job SET record = x'00' WHERE id = $1";
    sqlx::query(damage).bind(&jobs[0].id.as_bytes()[..]).execute(&pool).await.unwrap();
    let provider = Provider::willing();
    let (effects, options) = (provider.effects(), OutboxOptions::default());
    engine.work_outbox(&effects, &options).await.unwrap();
    are_done(&engine, &jobs[1..]).await;
    assert_eq!(provider.calls().len(), 2);
    engine.tidy_outbox(&effects, &options).await.unwrap();
    let parked = engine.store().parked(None, 10).await.unwrap();
    assert_eq!((parked.len(), parked[0].id), (1, jobs[0].id));
    assert_eq!(parked[0].last_error.as_ref().unwrap().code(), "unreadable");
    let operator = Operator { name: "ann".into(), reason: "done by hand".into() };
    assert!(engine.withdraw_job(jobs[0].id, &operator).await.unwrap());
    assert!(!engine.withdraw_job(jobs[0].id, &operator).await.unwrap(), "it is over");
}

/// A line behind a job that its provider refuses for good stood still for ever.
#[tokio::test(flavor = "multi_thread")]
async fn an_operator_ends_a_job_and_its_line_goes_on() {
    let (engine, _place) = sqlite(None).await;
    let provider = Provider::new(|call| match number(&call.payload) {
        0 => Does::Say(Sent::Refused("no such account".into())),
        _ => Does::Charge,
    });
    let jobs: Vec<_> = (0..3).map(|n| Job { line: Some("one".into()), ..job(&engine, n) }).collect();
    promise(&engine, &jobs).await;
    let options = OutboxOptions { every: Duration::from_hours(1), ..quick() };
    let outbox = engine.start_outbox(&provider.effects(), &options);
    until("it is refused", async || stage(&engine, &jobs[0]).await == Stage::Parked).await;
    let operator = Operator { name: "ann".into(), reason: "the customer has left".into() };
    assert!(engine.withdraw_job(jobs[0].id, &operator).await.unwrap());
    until_empty(&engine).await;
    are_done(&engine, &jobs[1..]).await;
    let over = engine.store().job(jobs[0].id).await.unwrap().unwrap();
    let words = "operator ann: the customer has left (before: refused: no such account)";
    assert_eq!((over.stage, over.last_error.unwrap().detail()), (Stage::Withdrawn, words));
    drop(outbox);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_line_is_delivered_in_order_though_its_deliveries_fail_and_two_workers_race() {
    let schema = Schema::new();
    let nodes = [schema.node().await, schema.node().await];
    // Every first try fails.
    let provider =
        Provider::new(|call| if call.tries == 1 { Does::Say(later("busy")) } else { Does::Charge });
    let jobs: Vec<_> = (0..40)
        .map(|n| Job { line: Some(format!("account {}", n % 4).into()), ..job(&nodes[0], n) })
        .collect();
    promise(&nodes[0], &jobs).await;
    let outboxes = nodes.each_ref().map(|node| node.start_outbox(&provider.effects(), &quick()));
    until_empty(&nodes[0]).await;
    let mut charged: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for call in provider.calls().into_iter().filter(|call| call.tries > 1) {
        let job = jobs.iter().find(|job| job.downstream_key() == call.key).unwrap();
        charged.entry(job.line.clone()).or_default().push(job.id);
    }
    for (line, charged) in charged {
        let promised: Vec<_> = jobs.iter().filter(|job| job.line == line).map(|job| job.id).collect();
        assert_eq!(charged, promised, "{line:?}");
    }
    drop(outboxes);
}

#[tokio::test]
async fn a_provider_that_names_a_time_is_not_asked_before() {
    let hand = Hand::new();
    let (engine, _place) = sqlite(Some(&hand)).await;
    let wait = Duration::from_mins(2);
    let provider = Provider::new(move |call| match call.tries {
        1 => Does::Say(Sent::Later { after: Some(wait), why: "429".into() }),
        _ => Does::Charge,
    });
    let jobs = jobs(&engine, 1).await;
    let effects = provider.effects();
    let pass = async || engine.work_outbox(&effects, &OutboxOptions::default()).await.unwrap();
    assert_eq!(pass().await.seen, 1);
    hand.turn(wait.saturating_sub(Duration::from_micros(1)));
    assert_eq!(pass().await.seen, 0, "longer than its own pauses are, and to the end");
    hand.turn(Duration::from_micros(1));
    assert_eq!(pass().await.seen, 1);
    are_done(&engine, &jobs).await;
    assert_eq!(provider.calls().len(), 2);
}

/// Tried again, it is the same call: the provider can tell.
#[tokio::test]
async fn every_try_of_a_job_carries_the_same_key_and_each_job_its_own() {
    let hand = Hand::new();
    let (engine, _place) = sqlite(Some(&hand)).await;
    // It charges, and its answers are lost.
    let provider = Provider::new(|call| if call.tries < 3 { Does::ChargeAndHang } else { Does::Charge });
    let jobs = jobs(&engine, 3).await;
    for _ in 0..3 {
        engine.work_outbox(&provider.effects(), &OutboxOptions::default()).await.unwrap();
        hand.turn(Duration::from_mins(10));
    }
    are_done(&engine, &jobs).await;
    assert_eq!(provider.calls().len(), 9);
    assert_eq!(provider.charges(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_promise_on_this_node_wakes_an_idle_outbox() {
    let (engine, _place) = sqlite(None).await;
    let provider = Provider::willing();
    let options = OutboxOptions { every: Duration::from_hours(1), ..quick() };
    let outbox = engine.start_outbox(&provider.effects(), &options);
    // It has looked once, found nothing, and sleeps; or is about to.
    for n in 0..3 {
        let one = job(&engine, n);
        promise(&engine, std::slice::from_ref(&one)).await;
        soon(async {
            while provider.charges() <= usize::try_from(n).unwrap() {
                tokio::task::yield_now().await;
            }
        })
        .await;
    }
    drop(outbox);
}

/// Nobody waits for the next look between two jobs of a line.
#[tokio::test(flavor = "multi_thread")]
async fn a_line_goes_on_at_once() {
    let (engine, _place) = sqlite(None).await;
    let provider = Provider::willing();
    let jobs: Vec<_> = (0..20).map(|n| Job { line: Some("one".into()), ..job(&engine, n) }).collect();
    promise(&engine, &jobs).await;
    let options = OutboxOptions { every: Duration::from_hours(1), ..quick() };
    let outbox = engine.start_outbox(&provider.effects(), &options);
    until_empty(&engine).await;
    are_done(&engine, &jobs).await;
    drop(outbox);
}

#[tokio::test]
async fn what_has_been_over_for_long_is_dropped() {
    let hand = Hand::new();
    let (engine, _place) = sqlite(Some(&hand)).await;
    let provider = Provider::willing();
    let (effects, options) = (provider.effects(), OutboxOptions::default());
    let jobs = jobs(&engine, 3).await;
    engine.work_outbox(&effects, &options).await.unwrap();
    hand.turn(options.retention);
    assert_eq!(engine.tidy_outbox(&effects, &options).await.unwrap(), 0);
    hand.turn(Duration::from_micros(1));
    assert_eq!(engine.tidy_outbox(&effects, &options).await.unwrap(), 3);
    assert_eq!(engine.store().job(jobs[0].id).await.unwrap(), None);
}
