//! A backup is restored into the file while a process has it open.

use rusqlite::backup::Backup;

use super::*;

/// Copies every page of the first database into the second, as the `.restore` of SQLite's shell does.
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
    assert_eq!((error.kind(), error.effect()), (Kind::Restored, oncegate_store::Effect::None), "{error}");
    let error = block_on(read_one(store, row.id)).unwrap_err();
    assert_eq!(error.kind(), Kind::Restored, "{error}");
}

/// Attack 29. The index in memory was current if a number in the file equalled its own. A restore takes the number back,
/// and the next commits of another process reach it again: the index then described rows that the file no longer had, and
/// lacked rows that it had, so that a key was admitted twice.
#[test]
fn attack_29_a_restore_that_reaches_the_same_generation_is_noticed() {
    let place = Place::new();
    let store = place.open();
    applied(&store, &[insert(&reserved("before", 1, LONG_AGO))]);
    let copy = backup(&place);
    applied(&store, &[insert(&reserved("lost", 2, LONG_AGO))]);
    copy_pages(&copy, &mut place.raw());
    // Another process, started after the restore: it brings the file to the generation that the first one remembers.
    let other = place.open();
    applied(&other, &[insert(&reserved("after", 3, LONG_AGO))]);
    is_refused_as_restored(&store, &reserved("after", 4, LONG_AGO));
    // It stays refused, however far the file goes on.
    applied(&other, &[insert(&reserved("later", 5, LONG_AGO))]);
    is_refused_as_restored(&store, &reserved("lost", 6, LONG_AGO));
    // A process that starts now goes by what the file has.
    applied(&place.open(), &[insert(&reserved("lost", 7, LONG_AGO))]);
}

/// The file's generation is lower than the one that this process has committed: only a restore does that. The index was
/// silently built anew, and the lost keys were free.
#[test]
fn attack_29_a_restore_to_an_earlier_generation_is_noticed() {
    let place = Place::new();
    let store = place.open();
    applied(&store, &[insert(&reserved("before", 1, LONG_AGO))]);
    let copy = backup(&place);
    applied(&store, &[insert(&reserved("lost", 2, LONG_AGO))]);
    copy_pages(&copy, &mut place.raw());
    is_refused_as_restored(&store, &reserved("lost", 3, LONG_AGO));
}

/// A caller's transaction raises the generation by SQL of its own. It must change the mark too, or a restore followed by
/// one such transaction would look current.
#[test]
fn attack_29_a_joined_commit_after_a_restore_does_not_make_the_memory_current() {
    use joined::{Callers, append};
    let place = Place::new();
    let store = place.open();
    let mut callers = Callers(place.raw());
    applied(&store, &[insert(&reserved("before", 1, LONG_AGO))]);
    let copy = backup(&place);
    assert!(append(&store, &mut callers, &completed(&reserved("lost", 2, LONG_AGO)), joined::Told::AtOnce));
    copy_pages(&copy, &mut place.raw());
    let other = place.open();
    assert_eq!(read(&other, "any"), None);
    assert!(append(&other, &mut callers, &completed(&reserved("after", 3, LONG_AGO)), joined::Told::Never));
    // What the first process would append is decided by its memory; the statement itself finds that it is out of date.
    let last = oncegate_store::join::Join::last(&store, &insert(&completed(&reserved("after", 4, LONG_AGO))));
    assert!(!joined::end(&mut callers, &last.unwrap()));
    is_refused_as_restored(&store, &reserved("after", 5, LONG_AGO));
}

/// Records off the happy path live in `record`. A commit that changed only that table left the mark as it was, so a restore
/// that took it back went unnoticed: a released key that had run since was granted a second time.
#[test]
fn attack_29_a_restore_that_takes_back_only_records_off_the_happy_path_is_noticed() {
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

/// The file is restored and another process goes on with it past the generation that the first one remembers. The first one
/// then read only what was appended behind the places that it knew, and missed a key that was settled before them.
#[test]
fn attack_29_a_file_that_went_on_after_a_restore_is_read_anew() {
    let place = Place::new();
    let store = place.open();
    let settle = |store: &SqliteStore, key: &str, n: u64| {
        let row = reserved(key, n, LONG_AGO);
        applied(store, &[insert(&row)]);
        applied(store, &[swap(&row, &completed(&row))]);
    };
    settle(&store, "before", 1);
    let copy = backup(&place);
    settle(&store, "lost", 2);
    copy_pages(&copy, &mut place.raw());
    let other = place.open();
    for (n, key) in ["first", "second", "third"].into_iter().enumerate() {
        settle(&other, key, 3 + n as u64);
    }
    // At the place that the first process takes for the lost key's.
    let twin = reserved("first", 9, LONG_AGO);
    let outcome = block_on(store.apply(&[insert(&twin)]));
    let is_admitted = outcome.is_ok_and(|outcomes| outcomes == [Outcome::Applied]);
    assert!(!is_admitted, "a key that the file has is admitted a second time");
}
