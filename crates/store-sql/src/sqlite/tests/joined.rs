//! Rows that are written in a caller's transaction.

use oncegate_store::join::{self, Asking, Connection as _, Join as _, Joined, Shown, Value};
use rusqlite::types::Value as Bound;

use super::super::jobs::bound;
use super::*;

/// The caller's own connection.
pub(super) struct Callers(pub(super) Connection);

impl join::Connection for Callers {
    fn ask<'a>(&'a mut self, sql: &'a str, values: &'a [Value<'a>]) -> Asking<'a> {
        let run = || -> rusqlite::Result<Vec<Shown>> {
            let values: Vec<Bound> = values.iter().cloned().map(bound).collect();
            let mut shown = Vec::new();
            for sql in sql.split(';') {
                let mut statement = self.0.prepare(sql)?;
                for place in 1..=statement.parameter_count() {
                    statement.raw_bind_parameter(place, &values[place - 1])?;
                }
                let mut rows = statement.raw_query();
                while rows.next()?.is_some() {
                    shown.push(Shown::default());
                }
            }
            Ok(shown)
        };
        let asked = run();
        Box::pin(async move { asked.map_err(Into::into) })
    }
}

/// As a library does that writes the row and ends the transaction in one call. Whether it was
/// committed.
pub(super) fn end(callers: &mut Callers, last: &join::Last) -> bool {
    callers.0.execute_batch(BEGIN_TO_JOIN).unwrap();
    let is_written = block_on(callers.ask(&last.sql, &last.values)).is_ok();
    callers.0.execute_batch(if is_written { "COMMIT" } else { "ROLLBACK" }).unwrap();
    is_written
}

/// Both ways to write a row: by a statement of its own, and as the last one before the commit.
#[test]
fn a_joined_write_is_refused_where_the_key_is_taken_or_the_version_is_another() {
    let place = Place::new();
    let (store, other) = (place.open(), place.open());
    let mut callers = Callers(place.raw());
    let mut join = |write: &Write, end: &str| {
        callers.0.execute_batch(BEGIN_TO_JOIN).unwrap();
        let joined = block_on(store.join(&mut callers, write)).unwrap();
        callers.0.execute_batch(end).unwrap();
        joined
    };
    let [held, done, fresh] = ["held", "done", "fresh"].map(|key| reserved(key, 1, LONG_AGO));
    let ended = completed(&done);
    applied(&other, &[insert(&held), insert(&done), swap(&done, &ended)]);
    for row in [&held, &done] {
        assert_eq!(join(&insert(&completed(row)), "COMMIT"), Joined::Refused, "its key is taken");
        let stale = Write::swap(oncegate_core::identity::Version::from_raw(1), Arc::new(completed(row)));
        assert_eq!(join(&stale, "COMMIT"), Joined::Refused, "another version");
    }
    let next = |row: &Record| moved_to(row, StateKind::Completed, FAR_AHEAD);
    assert_eq!(join(&insert(&completed(&fresh)), "ROLLBACK"), Joined::Written);
    assert_eq!(join(&swap(&held, &next(&held)), "ROLLBACK"), Joined::Written);
    assert_eq!((read(&store, "fresh"), read(&store, "held")), (None, Some(held.clone())));

    assert_eq!(join(&insert(&completed(&fresh)), "COMMIT"), Joined::Written);
    assert_eq!(join(&swap(&held, &next(&held)), "COMMIT"), Joined::Written);
    assert_eq!(join(&swap(&ended, &next(&ended)), "COMMIT"), Joined::Written);
    for store in [&store, &other, &place.open()] {
        assert_eq!(read(store, "fresh"), Some(completed(&fresh)));
        assert_eq!(read(store, "held"), Some(next(&held)));
        assert_eq!(read(store, "done"), Some(next(&ended)));
        refused_by(store, insert(&held), &next(&held));
        let counts = block_on(store.counts()).unwrap();
        assert_eq!((counts.in_progress, counts.completed), (0, 3));
        let page = block_on(store.browse(&Filter::default(), None, 10)).unwrap();
        let keys: Vec<_> = page.records.iter().map(|row| row.address.key.as_str().to_owned()).collect();
        assert_eq!(keys, ["fresh", "done", "held"], "the newest first");
    }
}

#[test]
fn a_last_row_is_written_once_and_refused_where_the_key_was_taken_meanwhile() {
    let place = Place::new();
    let (store, other) = (place.open(), place.open());
    let mut callers = Callers(place.raw());
    let fresh = |key: &str| completed(&reserved(key, 1, LONG_AGO));
    // Before the process has written anything, so without a watermark.
    assert!(end(&mut callers, &store.last(&insert(&fresh("first"))).unwrap()));
    assert!(!end(&mut callers, &store.last(&insert(&fresh("first"))).unwrap()));
    applied(&store, &[insert(&reserved("warm", 9, LONG_AGO))]);
    let last = store.last(&insert(&fresh("taken"))).unwrap();
    applied(&other, &[insert(&reserved("taken", 2, LONG_AGO))]);
    assert!(!end(&mut callers, &last));
    assert_eq!(read(&store, "taken"), Some(reserved("taken", 2, LONG_AGO)));
    assert!(end(&mut callers, &store.last(&insert(&fresh("next"))).unwrap()));
    assert_eq!(read(&other, "next"), Some(fresh("next")));
    // A write that also tells something, or changes a row, goes the other way.
    let row = reserved("warm", 9, LONG_AGO);
    assert!(store.last(&swap(&row, &completed(&row))).is_none());
    let told = entry(&fresh("told"), LONG_AGO, Act::Released);
    assert!(store.last(&insert(&fresh("told")).telling(Some(told))).is_none());
}
