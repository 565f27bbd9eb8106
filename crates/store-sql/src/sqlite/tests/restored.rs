//! A backup is restored into the file while a process has it open.

use oncegate_store::History;
use oncegate_store::join::Join as _;
use rusqlite::backup::Backup;

use super::joined::{Callers, end};
use super::*;

/// Copies every page of the first database into the second, as the `.restore` of SQLite's shell
/// does.
fn copy_pages(from: &Connection, to: &mut Connection) {
    Backup::new(from, to).unwrap().run_to_completion(100, Duration::ZERO, None).unwrap();
}

fn backup(place: &Place) -> Connection {
    let mut copy = Connection::open_in_memory().unwrap();
    copy_pages(&place.raw(), &mut copy);
    copy
}

fn is_refused_as_restored(store: &SqliteStore, row: &Record) {
    let error = block_on(store.apply(&[insert(row)])).unwrap_err();
    assert_eq!((error.kind(), error.effect()), (Kind::Restored, Effect::None), "{error}");
    let error = block_on(read_one(store, row.id)).unwrap_err();
    assert_eq!(error.kind(), Kind::Restored, "{error}");
}

/// Attack 29. The restore takes the file back, and the next commits of another process bring it as
/// far as it was: the keys of the lost time look unused to the first process.
#[test]
fn attack_29_a_restore_is_noticed_by_the_next_write_however_far_the_file_went_on() {
    let place = Place::new();
    let store = place.open();
    applied(&store, &[insert(&reserved("before", 1, LONG_AGO))]);
    let copy = backup(&place);
    applied(&store, &[insert(&reserved("lost", 2, LONG_AGO))]);
    copy_pages(&copy, &mut place.raw());
    let other = place.open();
    applied(&other, &[insert(&reserved("after", 3, LONG_AGO))]);
    is_refused_as_restored(&store, &reserved("after", 4, LONG_AGO));
    applied(&other, &[insert(&reserved("later", 5, LONG_AGO))]);
    is_refused_as_restored(&store, &reserved("lost", 6, LONG_AGO));
    // A process that starts now goes by what the file has.
    applied(&place.open(), &[insert(&reserved("lost", 7, LONG_AGO))]);
}

/// A read notices it too, before anything was written.
#[test]
fn attack_29_a_restore_is_noticed_by_the_next_read() {
    let place = Place::new();
    let store = place.open();
    let row = reserved("before", 1, LONG_AGO);
    applied(&store, &[insert(&row)]);
    let copy = backup(&place);
    applied(&store, &[swap(&row, &completed(&row))]);
    copy_pages(&copy, &mut place.raw());
    assert_eq!(block_on(read_one(&store, row.id)).unwrap_err().kind(), Kind::Restored);
    is_refused_as_restored(&store, &reserved("any", 2, LONG_AGO));
}

/// A restore that takes back only a change of a row that stays.
#[test]
fn attack_29_a_restore_that_takes_back_a_grant_is_noticed() {
    let place = Place::new();
    let store = place.open();
    let row = reserved("released", 1, LONG_AGO);
    applied(&store, &[insert(&row)]);
    let released = moved_to(&row, StateKind::FailedRetryable, FAR_AHEAD);
    applied(&store, &[swap(&row, &released)]);
    let copy = backup(&place);
    applied(&store, &[swap(&released, &moved_to(&released, StateKind::InProgress, FAR_AHEAD))]);
    copy_pages(&copy, &mut place.raw());
    is_refused_as_restored(&store, &reserved("any", 2, LONG_AGO));
}

/// A caller's transaction of a process that has the file from before the restore writes nothing,
/// whichever way it writes its row.
#[test]
fn attack_29_a_joined_write_after_a_restore_is_refused() {
    let place = Place::new();
    let store = place.open();
    applied(&store, &[insert(&reserved("before", 1, LONG_AGO))]);
    let copy = backup(&place);
    applied(&store, &[insert(&reserved("lost", 2, LONG_AGO))]);
    copy_pages(&copy, &mut place.raw());

    let mut callers = Callers(place.raw());
    let write = insert(&completed(&reserved("lost", 3, LONG_AGO)));
    assert!(!end(&mut callers, &store.last(&write).unwrap()), "the statement itself refuses it");
    callers.0.execute_batch(BEGIN_TO_JOIN).unwrap();
    let error = block_on(store.join(&mut callers, &write)).unwrap_err();
    callers.0.execute_batch("ROLLBACK").unwrap();
    assert_eq!((error.kind(), error.effect()), (Kind::Restored, Effect::None), "{error}");
    // And once it is known, without a look at the file.
    assert!(!end(&mut callers, &store.last(&write).unwrap()));
    is_refused_as_restored(&store, &reserved("lost", 4, LONG_AGO));
}

/// A process that ends removes its watermark. What it still settles is written all the same.
#[test]
fn a_settlement_after_the_watermark_was_removed_is_written() {
    let place = Place::new();
    let store = place.open();
    let row = reserved("a", 1, LONG_AGO);
    applied(&store, &[insert(&row)]);
    block_on(store.leave()).unwrap();
    applied(&store, &[swap(&row, &completed(&row))]);
    assert_eq!(read(&store, "a"), Some(completed(&row)));
    // Also what a caller's transaction ends with.
    let mut callers = Callers(place.raw());
    let write = insert(&completed(&reserved("b", 2, LONG_AGO)));
    assert!(end(&mut callers, &store.last(&write).unwrap()));
    assert_eq!(block_on(store.check_history()).unwrap(), History::Lost);
    let left: i64 = place.raw().query_row("SELECT count(*) FROM watermark", [], |row| row.get(0)).unwrap();
    assert_eq!(left, 0);
}
