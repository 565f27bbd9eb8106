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
