//! The cases about the outbox. Each is named by a bullet of the contract in `oncegate_store::jobs::Jobs`.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use oncegate_core::identity::{Fence, Token};
use oncegate_core::record::{Holder, Reason};
use oncegate_core::time::Timestamp;
use oncegate_store::jobs::{Became, Claim, Depth, Job, JobId, Jobs, Receipt, Report, Stage};
use oncegate_store::{Durability, Effect, Store};
use tokio::sync::Barrier;

use crate::Harness;
use crate::samples::{FAR_AHEAD, LONG_AGO, answer, id, token};

const EFFECTS: &[&str] = &["charge", "mail"];
const LONG: Duration = Duration::from_hours(1);

/// The `n`th job of all, due long ago.
fn job(n: u32) -> Job {
    let life = token(7);
    let due_at = LONG_AGO.plus(Duration::from_secs(n.into()));
    Job::promised(
        JobId::of(life, n),
        "charge",
        format!("{{\"n\":{n}}}").into_bytes(),
        (id("a"), life),
        due_at,
    )
}

fn in_line(n: u32, line: &str) -> Job {
    Job { line: Some(line.into()), ..job(n) }
}

fn why(words: &str) -> Reason {
    Reason::new("refused", words)
}

const fn wanted(token: Token, span: Duration, limit: usize) -> Claim<'static> {
    Claim { token, effects: EFFECTS, span, limit, again: limit }
}

async fn claimed(store: &impl Jobs, by: u64, limit: usize) -> Vec<JobId> {
    let jobs = store.claim(&wanted(token(by), LONG, limit)).await.expect("claimed");
    jobs.into_iter().map(|job| job.id).collect()
}

async fn report(store: &impl Jobs, by: u64, job: JobId, became: Became) -> bool {
    let reports = [Report { id: job, became }];
    store.report(token(by), &reports).await.expect("reported") == [true]
}

async fn stage(store: &impl Jobs, job: JobId) -> Stage {
    store.job(job).await.expect("read").expect("it is there").stage
}

fn receipt(reference: &str) -> Receipt {
    Receipt { reference: Some(reference.into()), answer: Some(Box::new((*answer(201, b"{}")).clone())) }
}

pub async fn every_field_of_a_job_comes_back<H: Harness<Store: Jobs>>(harness: H) {
    let store = harness.open().await;
    let plain = job(1);
    let full = Job {
        payload: vec![0, 255, 10],
        line: Some("a line\0 of é".into()),
        answers: Some(Holder { life: token(7), token: token(8), fence: Fence::from_raw(i64::MAX) }),
        due_at: FAR_AHEAD,
        ..job(2)
    };
    let other = Job { record: id("b"), effect: "mail".into(), payload: Vec::new(), ..job(3) };
    store.promise(&[plain.clone(), full.clone()]).await.expect("promised");
    let again = Job { created_at: FAR_AHEAD, due_at: LONG_AGO, ..full.clone() };
    store.promise(&[again, other.clone()]).await.expect("promised");
    store.promise(&[]).await.expect("nothing is promised");
    for one in [&plain, &full, &other] {
        assert_eq!(store.job(one.id).await.expect("read").as_ref(), Some(one));
    }
    assert_eq!(store.job(JobId::of(token(1), 1)).await.expect("read"), None);
    assert_eq!(store.jobs_of(id("a")).await.expect("read"), [plain, full.clone()]);
    assert_eq!(store.jobs_of(id("b")).await.expect("read"), [other]);
    if store.capability().durability == Durability::Durable {
        drop(store);
        let store = harness.open().await;
        assert_eq!(store.job(full.id).await.expect("read"), Some(full), "after a reopening");
    }
}

/// A request that is run once more, after an operator has said that its first call did not happen, promises under the same name.
pub async fn a_promise_takes_the_place_of_a_parked_one<H: Harness<Store: Jobs>>(harness: H) {
    let store = harness.open().await;
    let holder = |n| Some(Holder { life: token(7), token: token(n), fence: Fence::from_raw(i64::MAX) });
    let first = Job { answers: holder(1), ..in_line(1, "one") };
    store.promise(&[first.clone(), in_line(2, "one")]).await.expect("promised");
    assert_eq!(claimed(&store, 1, 10).await, [first.id]);
    assert!(report(&store, 1, first.id, Became::Parked(why("declined"))).await);
    let second =
        Job { effect: "mail".into(), payload: b"other".to_vec(), answers: holder(2), ..first.clone() };
    store.promise(std::slice::from_ref(&second)).await.expect("promised again");
    assert_eq!(store.job(second.id).await.expect("read").as_ref(), Some(&second));
    assert_eq!(second.downstream_key(), first.downstream_key(), "what the provider dedupes by");
    assert!(
        !report(&store, 1, first.id, Became::Done(Receipt::default())).await,
        "the first one's claim is over"
    );
    let found = store.claim(&wanted(token(2), LONG, 10)).await.expect("claimed");
    let found: Vec<_> = found.iter().map(|job| (job.id, job.tries, job.answers)).collect();
    assert_eq!(found, [(second.id, 1, holder(2))], "in its old place in its line");
}

pub async fn a_promise_that_stands_is_not_replaced<H: Harness<Store: Jobs>>(harness: H) {
    let store = harness.open().await;
    let holder = |n| Some(Holder { life: token(7), token: token(n), fence: Fence::from_raw(i64::MAX) });
    let jobs: Vec<_> = (1..=4).map(|n| Job { answers: holder(1), ..job(n) }).collect();
    store.promise(&jobs).await.expect("promised");
    assert_eq!(claimed(&store, 1, 3).await, [jobs[0].id, jobs[1].id, jobs[2].id]);
    assert!(report(&store, 1, jobs[0].id, Became::Done(receipt("r-1"))).await);
    assert!(report(&store, 1, jobs[1].id, Became::Delivered(receipt("r-2"))).await);
    let now = store.jobs_of(id("a")).await.expect("read");
    for stands in &jobs {
        let others = [
            Job { payload: b"other".to_vec(), ..stands.clone() },
            Job { effect: "mail".into(), ..stands.clone() },
            Job { answers: holder(2), ..stands.clone() },
            Job { answers: None, ..stands.clone() },
            Job { line: Some("one".into()), ..stands.clone() },
        ];
        for other in others {
            let refused = store.promise(&[job(9), other]).await.expect_err("it stands");
            assert_eq!(refused.effect(), Effect::None);
            assert_eq!(store.jobs_of(id("a")).await.expect("read"), now, "nothing was written");
        }
        store.promise(std::slice::from_ref(stands)).await.expect("the same is one promise");
        assert_eq!(store.jobs_of(id("a")).await.expect("read"), now, "nothing was written");
    }
    // Its place is that in its line: a parked one is not moved to another either.
    assert!(report(&store, 1, jobs[2].id, Became::Parked(why("declined"))).await);
    let _ = store
        .promise(&[Job { line: Some("one".into()), ..jobs[2].clone() }])
        .await
        .expect_err("it stays in its line");
    assert_eq!(stage(&store, jobs[2].id).await, Stage::Parked);
}

pub async fn only_what_is_due_is_claimed<H: Harness<Store: Jobs>>(harness: H) {
    let store = harness.open().await;
    let later = Job { due_at: FAR_AHEAD, ..job(1) };
    let foreign = Job { effect: "other".into(), ..job(2) };
    let mail = Job { effect: "mail".into(), ..job(4) };
    // Not in the order of their moments, and of two effects.
    store.promise(&[later, foreign, job(5), mail, job(3)]).await.expect("promised");
    let first = store.claim(&wanted(token(1), LONG, 2)).await.expect("claimed");
    assert_eq!(first.iter().map(|job| job.id).collect::<Vec<_>>(), [job(3).id, JobId::of(token(7), 4)]);
    assert!(
        first.iter().all(|job| job.tries == 1 && job.due_at > LONG_AGO.plus(LONG) && job.due_at < FAR_AHEAD)
    );
    assert_eq!(claimed(&store, 2, 10).await, [job(5).id]);
    assert!(claimed(&store, 3, 10).await.is_empty());
    // Put off, it is nobody's until then; put off for no time, it is anybody's.
    let put_off = |after| Became::Later { after, why: why("busy") };
    assert!(report(&store, 1, job(3).id, put_off(LONG)).await);
    assert!(claimed(&store, 3, 10).await.is_empty());
    assert!(report(&store, 2, job(5).id, put_off(Duration::ZERO)).await);
    let again = store.claim(&wanted(token(3), LONG, 10)).await.expect("claimed");
    assert_eq!(again.iter().map(|job| (job.id, job.tries)).collect::<Vec<_>>(), [(job(5).id, 2)]);
    assert_eq!(again[0].last_error, Some(why("busy")));
}

pub async fn racing_claimers_share_the_jobs<H: Harness<Store: Jobs>>(harness: H) {
    const JOBS: u32 = 120;
    let handles = [Arc::new(harness.open().await), Arc::new(harness.open().await)];
    let jobs: Vec<_> =
        (0..JOBS).map(|n| if n % 4 == 0 { in_line(n, &format!("line {}", n % 3)) } else { job(n) }).collect();
    handles[0].promise(&jobs).await.expect("promised");
    let start = Arc::new(Barrier::new(4));
    let claimers: Vec<_> = (0..4_u64)
        .map(|n| {
            let (store, start) = (Arc::clone(&handles[usize::from(n % 2 == 0)]), Arc::clone(&start));
            tokio::spawn(async move {
                start.wait().await;
                let mut mine = Vec::new();
                let mut by = 1_000_000 * (n + 1);
                while !store.depth().await.expect("measured").is_empty() {
                    by += 1;
                    for job in claimed(&*store, by, 7).await {
                        assert!(report(&*store, by, job, Became::Done(Receipt::default())).await);
                        mine.push(job);
                    }
                }
                mine
            })
        })
        .collect();
    let mut all = Vec::new();
    for claimer in claimers {
        all.extend(claimer.await.expect("a claimer finishes"));
    }
    assert_eq!(all.len(), jobs.len(), "none twice");
    assert_eq!(all.into_iter().collect::<BTreeSet<_>>(), jobs.iter().map(|job| job.id).collect());
}

pub async fn a_claim_ends<H: Harness<Store: Jobs>>(harness: H) {
    let store = harness.open().await;
    store.promise(&[job(1)]).await.expect("promised");
    let brief = store.claim(&wanted(token(1), Duration::ZERO, 10)).await.expect("claimed");
    assert_eq!(brief.len(), 1);
    assert_eq!(claimed(&store, 2, 10).await, [job(1).id], "nobody holds it any more");
    assert!(claimed(&store, 3, 10).await.is_empty(), "and now somebody does");
    assert!(!report(&store, 1, job(1).id, Became::Done(Receipt::default())).await, "the first is too late");
    assert_eq!(stage(&store, job(1).id).await, Stage::Waiting);
    assert!(report(&store, 2, job(1).id, Became::Done(Receipt::default())).await);
}

pub async fn only_the_claimer_reports<H: Harness<Store: Jobs>>(harness: H) {
    let store = harness.open().await;
    store.promise(&[job(1), job(2), job(3)]).await.expect("promised");
    assert!(!report(&store, 1, job(1).id, Became::Parked(why("x"))).await, "nobody has claimed it");
    assert_eq!(claimed(&store, 1, 2).await, [job(1).id, job(2).id]);
    assert_eq!(claimed(&store, 2, 2).await, [job(3).id]);
    let reports = [
        Report { id: job(3).id, became: Became::Parked(why("another's")) },
        Report { id: job(2).id, became: Became::Done(receipt("r-2")) },
        Report { id: job(9).id, became: Became::Parked(why("of no job")) },
        Report { id: job(1).id, became: Became::Later { after: LONG, why: why("busy") } },
    ];
    assert_eq!(store.report(token(1), &reports).await.expect("reported"), [false, true, false, true]);
    assert_eq!(store.report(token(1), &[]).await.expect("reported"), [] as [bool; 0]);
    assert_eq!(stage(&store, job(3).id).await, Stage::Waiting);
    // What has ended, or was given back, is nobody's any more.
    for n in [1, 2] {
        assert!(!report(&store, 1, job(n).id, Became::Parked(why("late"))).await);
    }
    assert_eq!(stage(&store, job(2).id).await, Stage::Done(receipt("r-2")));
}

pub async fn what_was_delivered_is_kept<H: Harness<Store: Jobs>>(harness: H) {
    let store = harness.open().await;
    store.promise(&[job(1)]).await.expect("promised");
    store.claim(&wanted(token(1), Duration::ZERO, 1)).await.expect("claimed");
    // The claim goes on, so that what follows can be reported too; and may be said twice.
    for _ in 0..2 {
        assert!(report(&store, 1, job(1).id, Became::Delivered(receipt("r-1"))).await);
    }
    // Its claimer died: whoever comes next is told, and puts it off without losing it.
    let found = store.claim(&wanted(token(2), LONG, 1)).await.expect("claimed");
    assert_eq!(found[0].stage, Stage::Delivered(receipt("r-1")));
    let put_off = Became::Later { after: Duration::ZERO, why: why("the store is away") };
    assert!(report(&store, 2, job(1).id, put_off).await);
    let found = store.claim(&wanted(token(3), LONG, 1)).await.expect("claimed");
    assert_eq!(found[0].stage, Stage::Delivered(receipt("r-1")));
    let done = Receipt { answer: None, ..receipt("r-1") };
    assert!(report(&store, 3, job(1).id, Became::Done(done.clone())).await);
    assert_eq!(stage(&store, job(1).id).await, Stage::Done(done));
}

pub async fn a_line_is_kept_in_order<H: Harness<Store: Jobs>>(harness: H) {
    let store = harness.open().await;
    // The second is due before the first, and waits for it all the same.
    let first = Job { due_at: LONG_AGO.plus(LONG), ..in_line(1, "one") };
    store
        .promise(&[first, in_line(2, "one"), in_line(3, "two"), job(4), in_line(5, "one")])
        .await
        .expect("promised");
    let mut found = claimed(&store, 1, 10).await;
    found.sort();
    let mut expected = [job(1).id, job(3).id, job(4).id];
    expected.sort();
    assert_eq!(found, expected, "the first of each line, and what is in none");
    assert!(claimed(&store, 2, 10).await.is_empty());
    // Put off, or delivered and not over yet: still before the others.
    assert!(report(&store, 1, job(1).id, Became::Delivered(Receipt::default())).await);
    assert!(claimed(&store, 2, 10).await.is_empty());
    assert!(report(&store, 1, job(1).id, Became::Later { after: LONG, why: why("busy") }).await);
    assert!(claimed(&store, 2, 10).await.is_empty());
    // Over: the next one's turn.
    assert!(report(&store, 1, job(3).id, Became::Done(Receipt::default())).await);
    store.promise(&[in_line(6, "two"), in_line(7, "two")]).await.expect("promised");
    assert_eq!(claimed(&store, 3, 10).await, [job(6).id]);
    assert!(report(&store, 3, job(6).id, Became::Done(Receipt::default())).await);
    assert_eq!(claimed(&store, 4, 10).await, [job(7).id]);
}

pub async fn a_parked_job_holds_back_its_own_line<H: Harness<Store: Jobs>>(harness: H) {
    let store = harness.open().await;
    store.promise(&[in_line(1, "one"), in_line(2, "one"), in_line(3, "two")]).await.expect("promised");
    assert_eq!(claimed(&store, 1, 1).await, [job(1).id]);
    assert!(report(&store, 1, job(1).id, Became::Parked(why("no such account"))).await);
    assert_eq!(claimed(&store, 2, 10).await, [job(3).id]);
    assert!(store.unpark(job(1).id).await.expect("put back"));
    assert_eq!(claimed(&store, 3, 10).await, [job(1).id]);
    assert!(report(&store, 3, job(1).id, Became::Done(Receipt::default())).await);
    assert_eq!(claimed(&store, 4, 10).await, [job(2).id]);
}

/// Whoever was refused for good stood before his line for ever: there was no way to end him.
pub async fn a_withdrawn_job_lets_its_line_go_on<H: Harness<Store: Jobs>>(harness: H) {
    let store = harness.open().await;
    store.promise(&[in_line(1, "one"), in_line(2, "one"), in_line(3, "one")]).await.expect("promised");
    assert_eq!(claimed(&store, 1, 10).await, [job(1).id]);
    assert!(report(&store, 1, job(1).id, Became::Parked(why("no such account"))).await);
    let parked = store.job(job(1).id).await.expect("read").expect("it is there");
    // Only what is parked, and has not been tried since somebody looked at it.
    let waiting = store.job(job(2).id).await.expect("read").expect("it is there");
    assert!(!store.withdraw(&waiting, &why("too early")).await.expect("asked"), "it is not parked");
    assert!(store.unpark(parked.id).await.expect("put back"));
    assert!(!store.withdraw(&parked, &why("too late")).await.expect("asked"), "it is tried again");
    assert_eq!(claimed(&store, 2, 10).await, [job(1).id]);
    assert!(report(&store, 2, job(1).id, Became::Parked(why("still none"))).await);
    assert!(!store.withdraw(&parked, &why("not as it was read")).await.expect("asked"));
    let parked = store.job(job(1).id).await.expect("read").expect("it is there");
    assert!(store.withdraw(&parked, &why("the customer has left")).await.expect("withdrawn"));
    assert!(!store.withdraw(&parked, &why("again")).await.expect("asked"), "it is over");
    let over = store.job(job(1).id).await.expect("read").expect("it stays for a while");
    assert_eq!((over.stage, over.last_error), (Stage::Withdrawn, Some(why("the customer has left"))));
    assert!(store.parked(None, 10).await.expect("listed").is_empty());
    assert!(!store.unpark(job(1).id).await.expect("asked"), "it is over");
    // By whoever has claimed it, the same.
    assert_eq!(claimed(&store, 3, 10).await, [job(2).id]);
    assert!(report(&store, 3, job(2).id, Became::Withdrawn(why("nobody waits for it"))).await);
    assert_eq!(stage(&store, job(2).id).await, Stage::Withdrawn);
    assert_eq!(claimed(&store, 4, 10).await, [job(3).id]);
    let depths = store.depth().await.expect("measured");
    assert_eq!(depths.iter().map(|depth| (depth.waiting, depth.parked)).collect::<Vec<_>>(), [(1, 0)]);
    assert_eq!(store.drop_jobs(FAR_AHEAD, 10).await.expect("dropped"), 2, "as all that is over");
}

/// A request that is run once more promises under the same name. What was withdrawn has left its line, which has gone on without it.
pub async fn a_withdrawn_promise_can_be_made_again<H: Harness<Store: Jobs>>(harness: H) {
    let store = harness.open().await;
    let holder = |n| Some(Holder { life: token(7), token: token(n), fence: Fence::from_raw(i64::MAX) });
    let first = Job { answers: holder(1), ..in_line(1, "one") };
    store.promise(&[first.clone(), in_line(2, "one"), in_line(3, "one")]).await.expect("promised");
    assert_eq!(claimed(&store, 1, 10).await, [first.id]);
    assert!(report(&store, 1, first.id, Became::Withdrawn(why("settled otherwise"))).await);
    assert_eq!(claimed(&store, 2, 10).await, [job(2).id]);
    let second = Job { payload: b"other".to_vec(), answers: holder(2), ..first.clone() };
    store.promise(std::slice::from_ref(&second)).await.expect("promised again");
    store.promise(std::slice::from_ref(&second)).await.expect("the same is one promise");
    assert_eq!(store.job(second.id).await.expect("read").as_ref(), Some(&second));
    assert!(claimed(&store, 3, 10).await.is_empty(), "one after the other");
    assert!(report(&store, 2, job(2).id, Became::Done(Receipt::default())).await);
    assert_eq!(claimed(&store, 4, 10).await, [job(3).id]);
    assert!(report(&store, 4, job(3).id, Became::Done(Receipt::default())).await);
    let found = store.claim(&wanted(token(5), LONG, 10)).await.expect("claimed");
    let found: Vec<_> = found.iter().map(|job| (job.id, job.tries, job.answers)).collect();
    assert_eq!(found, [(second.id, 1, holder(2))], "the last of its line");
    // Withdrawn again, it may also be promised into another line, or with the others of its run.
    assert!(report(&store, 5, second.id, Became::Withdrawn(why("once more"))).await);
    let third = Job { line: Some("two".into()), ..second };
    store.promise(&[third.clone(), in_line(4, "two")]).await.expect("promised again");
    assert_eq!(claimed(&store, 6, 10).await, [third.id]);
}

/// Retries came first, for they had been due the longest: as many as there were places, and nothing else was ever tried.
pub async fn what_was_tried_stands_in_no_way<H: Harness<Store: Jobs>>(harness: H) {
    let store = harness.open().await;
    let jobs: Vec<_> = (1..=6).map(job).collect();
    store.promise(&jobs[..4]).await.expect("promised");
    for tried in claimed(&store, 1, 10).await {
        let again = Became::Later { after: Duration::ZERO, why: why("busy") };
        assert!(report(&store, 1, tried, again).await);
    }
    store.promise(&jobs[4..]).await.expect("promised");
    let mut claim = wanted(token(2), LONG, 10);
    claim.again = 1;
    let found = store.claim(&claim).await.expect("claimed");
    let mut tries: Vec<_> = found.iter().map(|job| job.tries).collect();
    tries.sort_unstable();
    assert_eq!(tries, [1, 1, 2], "both that were never tried, and one of the others");
    claim.again = 0;
    assert!(store.claim(&claim).await.expect("claimed").is_empty(), "only what was never tried");
    claim.again = 10;
    assert_eq!(store.claim(&claim).await.expect("claimed").len(), 3, "the rest");
}

pub async fn a_try_that_does_not_count_is_not_counted<H: Harness<Store: Jobs>>(harness: H) {
    let store = harness.open().await;
    store.promise(&[job(1)]).await.expect("promised");
    let away = || Became::Away { after: Duration::ZERO, why: why("nobody is there") };
    for by in 1..=3 {
        let found = store.claim(&wanted(token(by), LONG, 1)).await.expect("claimed");
        assert_eq!((found.len(), found[0].tries), (1, 1));
        assert!(report(&store, by, job(1).id, away()).await);
    }
    let kept = store.job(job(1).id).await.expect("read").expect("it is there");
    assert_eq!((kept.stage, kept.tries, kept.last_error), (Stage::Waiting, 0, Some(why("nobody is there"))));
    let later = Became::Away { after: LONG, why: why("nobody is there") };
    assert_eq!(claimed(&store, 4, 1).await, [job(1).id]);
    assert!(report(&store, 4, job(1).id, later).await);
    assert!(claimed(&store, 5, 1).await.is_empty(), "not before its pause has ended");
}

pub async fn parked_jobs_are_listed_and_put_back<H: Harness<Store: Jobs>>(harness: H) {
    let store = harness.open().await;
    let jobs: Vec<_> = (1..=5).map(job).collect();
    store.promise(&jobs).await.expect("promised");
    for job in claimed(&store, 1, 4).await {
        assert!(report(&store, 1, job, Became::Parked(why("declined"))).await);
    }
    let page = store.parked(None, 3).await.expect("listed");
    assert_eq!(page.iter().map(|job| job.id).collect::<Vec<_>>(), [jobs[0].id, jobs[1].id, jobs[2].id]);
    assert!(page.iter().all(|job| job.stage == Stage::Parked && job.last_error == Some(why("declined"))));
    // Put back between two pages: the next one goes on all the same.
    assert!(store.unpark(jobs[2].id).await.expect("put back"));
    let rest = store.parked(Some(jobs[2].id), 3).await.expect("listed");
    assert_eq!(rest.iter().map(|job| job.id).collect::<Vec<_>>(), [jobs[3].id]);
    for not_parked in [jobs[2].id, jobs[4].id, job(9).id] {
        assert!(!store.unpark(not_parked).await.expect("asked"), "only what is parked");
    }
    let found = store.claim(&wanted(token(2), LONG, 10)).await.expect("claimed");
    let put_back = found.iter().find(|job| job.id == jobs[2].id).expect("due at once");
    assert_eq!((put_back.tries, &put_back.last_error), (1, &None), "as if nobody had tried");
}

pub async fn depth_is_true<H: Harness<Store: Jobs>>(harness: H) {
    let store = harness.open().await;
    assert_eq!(store.depth().await.expect("measured"), []);
    let mail = |n| Job { effect: "mail".into(), ..job(n) };
    store.promise(&[job(1), job(2), job(3), job(4), mail(5)]).await.expect("promised");
    assert_eq!(claimed(&store, 1, 2).await, [job(1).id, job(2).id]);
    assert!(report(&store, 1, job(1).id, Became::Done(Receipt::default())).await);
    assert!(report(&store, 1, job(2).id, Became::Parked(why("declined"))).await);
    // One more is claimed, and still waits for its end.
    assert_eq!(claimed(&store, 2, 1).await, [job(3).id]);
    let depth = |effect: &str, waiting, parked, oldest: Option<Timestamp>| Depth {
        effect: effect.into(),
        waiting,
        parked,
        oldest,
    };
    let expected =
        [depth("charge", 2, 1, Some(job(3).created_at)), depth("mail", 1, 0, Some(mail(5).created_at))];
    assert_eq!(store.depth().await.expect("measured"), expected);
}

pub async fn only_old_jobs_that_are_over_are_dropped<H: Harness<Store: Jobs>>(harness: H) {
    let store = harness.open().await;
    let jobs: Vec<_> = (1..=5).map(job).collect();
    store.promise(&jobs).await.expect("promised");
    assert_eq!(claimed(&store, 1, 4).await.len(), 4);
    for done in &jobs[..3] {
        assert!(report(&store, 1, done.id, Became::Done(receipt("r"))).await);
    }
    assert!(report(&store, 1, jobs[3].id, Became::Parked(why("declined"))).await);
    // Promised long ago, and over only now.
    assert_eq!(store.drop_jobs(LONG_AGO.plus(LONG), 10).await.expect("dropped"), 0);
    assert_eq!(store.drop_jobs(FAR_AHEAD, 2).await.expect("dropped"), 2);
    assert_eq!(store.drop_jobs(FAR_AHEAD, 2).await.expect("dropped"), 1);
    let left = store.jobs_of(id("a")).await.expect("read");
    assert_eq!(left.iter().map(|job| job.id).collect::<Vec<_>>(), [jobs[3].id, jobs[4].id]);
}
