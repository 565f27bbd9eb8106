//! A promise in a caller's own transaction.

use oncegate_core::identity::Token;
use oncegate_core::record::Reason;
use oncegate_store::jobs::{Became, Claim, Job, JobId, Jobs, Report, Stage};
use oncegate_store::join::{self, Asking, Shown, Value};
use rusqlite::{Statement, params_from_iter};

use super::*;

/// The caller's own connection.
struct Callers(Connection);

impl join::Connection for Callers {
    fn ask<'a>(&'a mut self, sql: &'a str, values: &'a [Value<'a>]) -> Asking<'a> {
        let values = values.iter().cloned().map(jobs::bound);
        let shown = |statement: &mut Statement<'_>| {
            let rows = statement.query_map(params_from_iter(values), |_| Ok(Shown::default()))?;
            rows.collect()
        };
        let asked = self.0.prepare(sql).and_then(|mut statement| shown(&mut statement));
        Box::pin(async move { asked.map_err(Into::into) })
    }
}

/// One row that could not be read failed the claim of all: nothing of its effect was delivered any more.
#[test]
fn a_job_that_cannot_be_read_comes_as_such_and_the_others_come_all_the_same() {
    let place = Place::new();
    let store = place.open();
    block_on(async {
        let jobs: Vec<_> = (1..=4).map(|n| Job { line: None, ..job(n) }).collect();
        store.promise(&jobs).await.unwrap();
        let damages = ["life = x'00'", "stage = 1, answer = x'ff'", "reference = x'ff', last_error = x'ff'"];
        for (job, damage) in jobs.iter().zip(damages) {
            let connection = Connection::open(place.file()).unwrap();
            let update = format!("UPDATE job SET {damage} WHERE id = ?1");
            assert_eq!(connection.execute(&update, [&job.id.as_bytes()[..]]).unwrap(), 1);
        }
        let token = Token::from_bytes([9; 16]);
        let span = Duration::from_mins(1);
        let claim = Claim { token, effects: &["charge"], span, limit: 10, again: 10 };
        let found = store.claim(&claim).await.unwrap();
        let read: Vec<_> = found.iter().map(|job| !matches!(job.stage, Stage::Unreadable(_))).collect();
        assert_eq!(read, [false, false, true, true], "{found:?}");
        for bad in &found[..2] {
            let parked = Became::Parked(Reason::new("unreadable", "a test"));
            assert_eq!(store.report(token, &[Report { id: bad.id, became: parked }]).await.unwrap(), [true]);
        }
        let parked = store.parked(None, 10).await.unwrap();
        assert_eq!(parked.iter().map(|job| job.id).collect::<Vec<_>>(), [jobs[0].id, jobs[1].id]);
        assert!(store.withdraw(&parked[0], &Reason::new("operator", "settled by hand")).await.unwrap());
        assert_eq!(store.job(jobs[0].id).await.unwrap().unwrap().stage, Stage::Withdrawn);
    });
}

fn job(n: u32) -> Job {
    let life = Token::from_bytes([1; 16]);
    let promised = Job::promised(JobId::of(life, n), "charge", b"{}".to_vec(), (id("a"), life), LONG_AGO);
    Job { line: Some("one".into()), ..promised }
}

#[test]
fn what_is_promised_in_a_callers_transaction_is_there_if_and_only_if_it_is_committed() {
    let place = Place::new();
    let store = place.open();
    block_on(async {
        let mut callers = Callers(Connection::open(place.file()).unwrap());
        for (end, expected) in [("ROLLBACK", Vec::new()), ("COMMIT", vec![job(1), job(2)])] {
            callers.0.execute_batch("BEGIN IMMEDIATE").unwrap();
            jobs::enqueue_in(&mut callers, &[job(1), job(2)]).await.unwrap();
            // The same promise again is one promise.
            jobs::enqueue_in(&mut callers, &[job(2)]).await.unwrap();
            assert!(store.job(job(1).id).await.unwrap().is_none(), "not before the commit");
            callers.0.execute_batch(end).unwrap();
            assert_eq!(store.jobs_of(id("a")).await.unwrap(), expected, "{end}");
        }
    });
}
