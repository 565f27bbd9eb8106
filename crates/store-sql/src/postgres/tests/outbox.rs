//! Promises in a caller's own transaction, and what they mean for the order of a line.

use std::time::Duration;

use oncegate_conformance::samples::{LONG_AGO, id, token};
use oncegate_core::record::Reason;
use oncegate_store::jobs::{Became, Claim, Job, JobId, Jobs, Receipt, Report, Stage};
use oncegate_store::join::{Asking, Connection, Shown, Value};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, NoTls};

use super::super::jobs::enqueue_in;
use super::Place;

/// The caller's own connection.
struct Callers(Client);

impl Callers {
    async fn connect() -> Self {
        let (client, connection) =
            tokio_postgres::connect(&super::shared::postgres_url(), NoTls).await.unwrap();
        tokio::spawn(connection);
        Self(client)
    }

    async fn run(&self, text: &str) {
        self.0.batch_execute(text).await.unwrap();
    }
}

impl Connection for Callers {
    fn ask<'a>(&'a mut self, sql: &'a str, values: &'a [Value<'a>]) -> Asking<'a> {
        Box::pin(async move {
            let bound: Vec<Box<dyn ToSql + Sync + Send>> = values.iter().map(bound).collect();
            let bound: Vec<_> = bound.iter().map(|one| &**one as &(dyn ToSql + Sync)).collect();
            let rows = self.0.query(sql, &bound).await?;
            Ok(rows.iter().map(|_| Shown::default()).collect())
        })
    }
}

fn bound(value: &Value<'_>) -> Box<dyn ToSql + Sync + Send> {
    match value {
        Value::Int(number) => Box::new(*number),
        Value::Text(text) => Box::new(text.as_deref().map(str::to_owned)),
        Value::Bytes(bytes) => Box::new(bytes.as_deref().map(<[u8]>::to_vec)),
    }
}

fn claim() -> Claim<'static> {
    Claim { token: token(9), effects: &["charge"], span: Duration::from_mins(1), limit: 10, again: 10 }
}

/// One row that could not be read failed the claim of all: nothing of its effect was delivered any more, on any node.
#[tokio::test]
async fn a_job_that_cannot_be_read_comes_as_such_and_the_others_come_all_the_same() {
    let place = Place::start().await;
    let store = place.store().await;
    let jobs: Vec<_> = (1..=4).map(|n| job(n, None)).collect();
    store.promise(&jobs).await.unwrap();
    let schema = &place.schema;
    let callers = Callers::connect().await;
    for (n, damage) in [
        (1, "life = '\\x00'"),
        (2, "stage = 1, answer = '\\xff'"),
        (3, "reference = '\\xff', last_error = '\\xff'"),
    ] {
        let digits = jobs[n - 1].id.as_bytes().iter().flat_map(|byte| [byte >> 4, byte & 15]);
        let id: String = digits.filter_map(|digit| char::from_digit(u32::from(digit), 16)).collect();
        callers.run(&format!("UPDATE {schema}.job SET {damage} WHERE id = '\\x{id}'")).await;
    }
    let found = store.claim(&claim()).await.unwrap();
    let read: Vec<_> = found.iter().map(|job| !matches!(job.stage, Stage::Unreadable(_))).collect();
    assert_eq!(read, [false, false, true, true], "{found:?}");
    for bad in &found[..2] {
        let parked = Became::Parked(Reason::new("unreadable", "a test"));
        assert_eq!(store.report(token(9), &[Report { id: bad.id, became: parked }]).await.unwrap(), [true]);
    }
    let parked = store.parked(None, 10).await.unwrap();
    assert_eq!(parked.iter().map(|job| job.id).collect::<Vec<_>>(), [jobs[0].id, jobs[1].id]);
    assert!(store.withdraw(&parked[0], &Reason::new("operator", "settled by hand")).await.unwrap());
    assert_eq!(store.job(jobs[0].id).await.unwrap().unwrap().stage, Stage::Withdrawn);
    drop(store);
    place.gone().await;
}

fn job(n: u32, line: Option<&str>) -> Job {
    let promised =
        Job::promised(JobId::of(token(1), n), "charge", b"{}".to_vec(), (id("a"), token(1)), LONG_AGO);
    Job { line: line.map(Into::into), ..promised }
}

#[tokio::test]
async fn what_is_promised_in_a_callers_transaction_is_there_if_and_only_if_it_is_committed() {
    let place = Place::start().await;
    let store = place.store().await;
    let statements = &place.statements.outbox;
    let mut callers = Callers::connect().await;
    let jobs = [job(1, Some("one")), job(2, None)];
    for (end, expected) in [("ROLLBACK", 0), ("COMMIT", 2)] {
        callers.run("BEGIN").await;
        enqueue_in(&mut callers, statements, &jobs).await.unwrap();
        // The same promise again is one promise.
        enqueue_in(&mut callers, statements, &jobs[1..]).await.unwrap();
        assert!(store.job(jobs[0].id).await.unwrap().is_none(), "not before the commit");
        callers.run(end).await;
        assert_eq!(store.jobs_of(id("a")).await.unwrap().len(), expected, "{end}");
    }
    for job in &jobs {
        assert_eq!(store.job(job.id).await.unwrap().as_ref(), Some(job));
    }
    drop(store);
    place.gone().await;
}

/// Numbers are given before commits. If the second of a line could be committed before the first, it would be delivered before it, and
/// the first beside it.
#[tokio::test]
async fn of_one_line_nobody_promises_before_an_earlier_promise_has_ended() {
    let place = Place::start().await;
    let store = place.store().await;
    let statements = &place.statements.outbox;
    let (mut first, mut second) = (Callers::connect().await, Callers::connect().await);
    first.run("BEGIN").await;
    second.run("BEGIN; SET LOCAL lock_timeout = '200ms'").await;
    enqueue_in(&mut first, statements, &[job(1, Some("one"))]).await.unwrap();
    // Another line, and no line, are nobody's business.
    enqueue_in(&mut second, statements, &[job(2, Some("two")), job(3, None)]).await.unwrap();
    second.run("SAVEPOINT before").await;
    let waited = enqueue_in(&mut second, statements, &[job(4, Some("one"))]).await;
    assert!(format!("{:?}", waited.unwrap_err()).contains("lock timeout"), "it waits for the first");
    second.run("ROLLBACK TO before").await;
    first.run("COMMIT").await;
    enqueue_in(&mut second, statements, &[job(4, Some("one"))]).await.unwrap();
    second.run("COMMIT").await;
    let claim = claim();
    let claimed = store.claim(&claim).await.unwrap();
    assert_eq!(claimed.iter().filter(|one| one.line.as_deref() == Some("one")).count(), 1);
    let done = Report { id: job(1, None).id, became: Became::Done(Receipt::default()) };
    assert_eq!(store.report(token(9), &[done]).await.unwrap(), [true]);
    assert_eq!(store.claim(&claim).await.unwrap().len(), 1, "the next one's turn");
    drop(store);
    place.gone().await;
}
