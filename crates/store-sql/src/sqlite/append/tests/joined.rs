//! A caller's transaction, over rows of the happy path.

use oncegate_store::join::{self, Asking, Join, Joined, Shown, Value};
use rusqlite::types::Value as Bound;

use super::super::super::BEGIN_TO_JOIN;
use super::super::super::jobs::bound;
use super::*;

/// The caller's own connection.
struct Callers(Connection);

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

#[test]
fn a_joined_write_sees_what_is_in_flight_and_what_is_settled() {
    let place = Place::new();
    let (store, other) = (place.open(), place.open());
    let mut callers = Callers(place.raw());
    let mut join = |write: &Write, end: &str| {
        callers.0.execute_batch(BEGIN_TO_JOIN).unwrap();
        let joined = block_on(store.join(&mut callers, write)).unwrap();
        callers.0.execute_batch(end).unwrap();
        joined
    };
    let (flying, done, fresh) =
        (reserved("flying", 1, LONG_AGO), reserved("done", 2, LONG_AGO), reserved("fresh", 3, LONG_AGO));
    let ended = completed(&done);
    // Written by another, so that this one has to catch up in the caller's transaction.
    applied(&other, &[insert(&flying), insert(&done), swap(&done, &ended)]);
    for row in [&flying, &done] {
        assert_eq!(join(&insert(&completed(row)), "COMMIT"), Joined::Refused, "its key is taken");
        let stale = Write::swap(oncegate_core::identity::Version::from_raw(1), Arc::new(completed(row)));
        assert_eq!(join(&stale, "COMMIT"), Joined::Refused, "another version");
    }
    assert_eq!(place.tables(), [1, 1, 0]);

    let next = |row: &Record| moved_to(row, StateKind::Completed, FAR_AHEAD);
    assert_eq!(join(&insert(&completed(&fresh)), "ROLLBACK"), Joined::Written);
    assert_eq!(join(&swap(&flying, &next(&flying)), "ROLLBACK"), Joined::Written);
    assert_eq!(join(&swap(&ended, &next(&ended)), "ROLLBACK"), Joined::Written);
    assert_eq!((read(&store, "fresh"), read(&store, "flying")), (None, Some(flying.clone())));

    assert_eq!(join(&insert(&completed(&fresh)), "COMMIT"), Joined::Written);
    assert_eq!(join(&swap(&flying, &next(&flying)), "COMMIT"), Joined::Written);
    assert_eq!(join(&swap(&ended, &next(&ended)), "COMMIT"), Joined::Written);
    assert_eq!(place.tables(), [1, 0, 3]);
    for store in [&store, &other, &place.open()] {
        assert_eq!(read(store, "fresh"), Some(completed(&fresh)));
        assert_eq!(read(store, "flying"), Some(next(&flying)));
        assert_eq!(read(store, "done"), Some(next(&ended)));
        refused_by(store, insert(&flying), &next(&flying));
        refused_by(store, swap(&flying, &completed(&flying)), &next(&flying));
        let counts = block_on(store.counts()).unwrap();
        assert_eq!((counts.in_progress, counts.completed), (0, 3));
        // Each at its place in the order of arrival.
        let page = block_on(store.browse(&Filter::default(), None, 10)).unwrap();
        let keys: Vec<_> = page.records.iter().map(|row| row.address.key.as_str().to_owned()).collect();
        assert_eq!(keys, ["fresh", "done", "flying"]);
    }
    applied(&other, &[insert(&reserved("after", 4, LONG_AGO))]);
}

/// A row of a whole run is one less in it.
#[test]
fn a_joined_write_over_a_run_is_counted() {
    let place = Place::new();
    let store = place.open();
    let rows: Vec<_> = (0..4_096).map(|n| reserved(&format!("key-{n}"), n, LONG_AGO)).collect();
    let batch = |row: &Record| [insert(row), swap(row, &completed(row))];
    applied(&store, &rows.iter().flat_map(batch).collect::<Vec<_>>());
    let mut callers = Callers(place.raw());
    callers.0.execute_batch(BEGIN_TO_JOIN).unwrap();
    let doubted = moved_to(&completed(&rows[9]), StateKind::Unknown, FAR_AHEAD);
    let write = swap(&completed(&rows[9]), &doubted);
    assert_eq!(block_on(store.join(&mut callers, &write)).unwrap(), Joined::Written);
    callers.0.execute_batch("COMMIT").unwrap();
    let counts = block_on(store.counts()).unwrap();
    assert_eq!((counts.completed, counts.unknown), (4_095, 1));
}
