//! A caller's transaction, over rows of the happy path.

use oncegate_store::join::{self, Asking, Join, Joined, Shown, Value};
use rusqlite::types::Value as Bound;

use super::super::super::BEGIN_TO_JOIN;
use super::super::super::jobs::bound;
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

// ---- Appended, as the last word of a transaction ------------------------------------------------------------------------------

/// When a store hears that what it has said last is committed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Told {
    AtOnce,
    /// It has found out by then.
    Late,
    Never,
}

/// As a library does that ends the transaction in the same call. Whether it was committed.
pub(super) fn append(store: &SqliteStore, callers: &mut Callers, row: &Record, told: Told) -> bool {
    let last = store.last(&insert(row)).unwrap();
    let is_committed = end(callers, &last);
    if is_committed && told == Told::Late {
        assert_eq!(block_on(read_one(store, row.id)).unwrap().as_ref(), Some(row));
    }
    if is_committed && told != Told::Never {
        last.after.committed();
    }
    is_committed
}

pub(super) fn end(callers: &mut Callers, last: &join::Last) -> bool {
    use join::Connection as _;
    callers.0.execute_batch(BEGIN_TO_JOIN).unwrap();
    let is_written = block_on(callers.ask(&last.sql, &last.values)).is_ok();
    callers.0.execute_batch(if is_written { "COMMIT" } else { "ROLLBACK" }).unwrap();
    is_written
}

fn keys(store: &SqliteStore) -> Vec<String> {
    let page = block_on(store.browse(&Filter::default(), None, 100)).unwrap();
    page.records.iter().map(|row| row.address.key.as_str().to_owned()).collect()
}

#[test]
fn a_last_row_is_appended_and_every_memory_finds_it() {
    let place = Place::new();
    let (store, other) = (place.open(), place.open());
    let mut callers = Callers(place.raw());
    // A memory that has seen nothing yet is at no generation.
    assert!(store.last(&insert(&completed(&reserved("first", 9, LONG_AGO)))).is_none());
    applied(&store, &[insert(&reserved("flying", 9, LONG_AGO))]);
    let rows: Vec<_> = (0..9).map(|n| completed(&reserved(&format!("key-{n}"), n, LONG_AGO))).collect();
    for (row, told) in rows.iter().zip([Told::AtOnce, Told::Late, Told::Never].into_iter().cycle()) {
        assert!(append(&store, &mut callers, row, told));
        assert_eq!(block_on(read_one(&store, row.id)).unwrap().as_ref(), Some(row), "by whoever wrote it");
        refused_by(&store, insert(&reserved(row.address.key.as_str(), 20, LONG_AGO)), row);
    }
    assert_eq!(place.tables(), [1, 9, 0], "nothing of it is elsewhere");
    for store in [&store, &other, &place.open()] {
        assert!(rows.iter().all(|row| block_on(read_one(store, row.id)).unwrap().as_ref() == Some(row)));
        assert_eq!(block_on(store.counts()).unwrap().completed, 9);
        let newest_first = (0..9).rev().map(|n| format!("key-{n}")).chain(["flying".to_owned()]);
        assert_eq!(keys(store), newest_first.collect::<Vec<_>>(), "in the order of arrival");
    }
    // It is settled like any other: it may be removed, moved on, and have a second life.
    let (gone, doubted) = (moved_to(&rows[0], StateKind::Completed, LONG_AGO), &rows[1]);
    applied(&other, &[swap(&rows[0], &gone)]);
    applied(&store, &[remove(&gone), swap(doubted, &moved_to(doubted, StateKind::Unknown, FAR_AHEAD))]);
    assert!(append(&store, &mut callers, &rows[0], Told::AtOnce));
    assert_eq!(read(&other, "key-0").as_ref(), Some(&rows[0]));
}

/// What it was decided by is not what the file is any more: nothing may be written, and nothing is.
#[test]
fn a_last_row_is_refused_where_the_file_is_further_on_or_has_the_key() {
    let place = Place::new();
    let (store, other) = (place.open(), place.open());
    let mut callers = Callers(place.raw());
    let fresh = |key: &str| completed(&reserved(key, 1, LONG_AGO));
    applied(&store, &[insert(&reserved("warm", 9, LONG_AGO))]);
    let ledger = || -> (i64, i64, i64) {
        let sql = "SELECT generation, arrived, settled FROM record_reserved WHERE seq = 0";
        place.raw().query_row(sql, [], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?))).unwrap()
    };
    let refused = |callers: &mut Callers, last: &join::Last| {
        let before = (place.tables(), ledger());
        assert!(!end(callers, last));
        assert_eq!((place.tables(), ledger()), before);
    };
    // In flight, by another process.
    let last = store.last(&insert(&fresh("flying"))).unwrap();
    applied(&other, &[insert(&reserved("flying", 2, LONG_AGO))]);
    refused(&mut callers, &last);
    assert!(store.last(&insert(&fresh("flying"))).is_some(), "nobody has looked since");
    assert_eq!(read(&store, "flying"), Some(reserved("flying", 2, LONG_AGO)));
    assert!(store.last(&insert(&fresh("flying"))).is_none());
    // Appended, by another process; and at the very generation that this one would have made.
    let last = store.last(&insert(&fresh("appended"))).unwrap();
    assert_eq!(read(&other, "flying"), Some(reserved("flying", 2, LONG_AGO)));
    assert!(append(&other, &mut callers, &completed(&reserved("appended", 2, LONG_AGO)), Told::Never));
    refused(&mut callers, &last);
    assert_eq!(read(&store, "appended"), Some(completed(&reserved("appended", 2, LONG_AGO))));
    // In `record`, which no generation tells of.
    let last = store.last(&insert(&fresh("joined"))).unwrap();
    callers.0.execute_batch(BEGIN_TO_JOIN).unwrap();
    let joined = insert(&completed(&reserved("joined", 2, LONG_AGO)));
    assert_eq!(block_on(store.join(&mut callers, &joined)).unwrap(), Joined::Written);
    callers.0.execute_batch("COMMIT").unwrap();
    refused(&mut callers, &last);
    // What is not plain is not for these tables, and not for this way.
    let mut marked = fresh("marked");
    marked.provider_reference = Some("ch_1".into());
    assert!(store.last(&insert(&marked)).is_none());
    // And the next one is as ever.
    assert_eq!(read(&store, "next"), None);
    assert!(append(&store, &mut callers, &fresh("next"), Told::AtOnce));
    assert_eq!(read(&other, "next"), Some(fresh("next")));
}

/// The last place of a run is given away by a caller's transaction: what is written down of the run is what the store itself would have written.
#[test]
fn a_run_that_ends_with_a_last_row_is_written_down() {
    let of = |append_all: &dyn Fn(&Place, &SqliteStore, &[Record])| {
        let place = Place::new();
        drop(place.open());
        place.raw().execute("UPDATE record_reserved SET settled = 4091 WHERE seq = 0", []).unwrap();
        let rows: Vec<_> = (0..9).map(|n| reserved(&format!("key-{n}"), n, LONG_AGO)).collect();
        let store = place.open();
        assert_eq!(read(&store, "key-0"), None);
        append_all(&place, &store, &rows);
        for store in [&store, &place.open()] {
            for row in &rows {
                assert_eq!(block_on(read_one(store, row.id)).unwrap(), Some(completed(row)));
                refused_by(store, insert(row), &completed(row));
            }
            assert_eq!(block_on(store.counts()).unwrap().completed, 9);
            assert_eq!(keys(store).len(), 9);
        }
        let sql = "SELECT r.run, kept, first_end, last_end, first_arrival, last_arrival, hex(ids) \
                   FROM record_run r JOIN record_run_ids i ON i.run = r.run";
        let of_row = |row: &rusqlite::Row<'_>| -> rusqlite::Result<(Vec<i64>, String)> {
            Ok(((0..6).map(|column| row.get(column)).collect::<Result<_, _>>()?, row.get(6)?))
        };
        place
            .raw()
            .prepare(sql)
            .unwrap()
            .query_map([], of_row)
            .unwrap()
            .map(Result::unwrap)
            .collect::<Vec<_>>()
    };
    let joined = of(&|place, store, rows| {
        let mut callers = Callers(place.raw());
        for (row, told) in rows.iter().zip([Told::AtOnce, Told::Never].into_iter().cycle()) {
            assert_eq!(read(store, "nobody"), None, "the memory is where the file is");
            assert!(append(store, &mut callers, &completed(row), told));
        }
    });
    let own = of(&|_, store, rows| {
        for row in rows {
            applied(store, &[insert(row), swap(row, &completed(row))]);
        }
    });
    assert_eq!(joined, own);
    assert_eq!(joined.len(), 1, "one run is whole");
    assert_eq!(joined[0].0[..2], [0, 5]);
}
