//! A promise in a caller's own transaction.

use oncegate_core::identity::Token;
use oncegate_store::jobs::{Job, JobId, Jobs};
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
