//! `Check`: a sound file, and one contradiction at a time.

use oncegate_store::jobs::{Job, JobId, Jobs as _};
use oncegate_store::{Check as _, Problem, ProblemKind};

use super::*;

/// All parts of a check: what was looked at, and what is wrong.
pub(super) fn checked(store: &SqliteStore) -> (Vec<(&'static str, u64)>, Vec<Problem>) {
    let (mut areas, mut problems, mut after) = (Vec::new(), Vec::new(), None);
    loop {
        let part = block_on(store.check(after.as_ref())).unwrap();
        areas.push((part.area, part.rows));
        problems.extend(part.problems);
        match part.next {
            Some(next) => after = Some(next),
            None => return (areas, problems),
        }
    }
}

/// Every state, a job, an audit entry, and more records than fit into one part.
fn filled(place: &Place) -> SqliteStore {
    let store = place.open();
    let rows: Vec<_> = (0..2_500).map(|n| reserved(&format!("key-{n}"), n, LONG_AGO)).collect();
    applied(&store, &rows.iter().map(insert).collect::<Vec<_>>());
    for (row, state) in rows.iter().zip(StateKind::ALL) {
        let next = moved_to(row, state, FAR_AHEAD);
        let told = entry(&next, LONG_AGO, Act::Released);
        applied(&store, &[swap(row, &next).telling(Some(told))]);
    }
    let id = JobId::of(rows[9].life, 0);
    let mut job = Job::promised(id, "charge", Vec::new(), (rows[9].id, rows[9].life), LONG_AGO);
    job.answers = rows[9].grant.map(|grant| oncegate_core::record::Holder {
        life: rows[9].life,
        token: grant.token,
        fence: rows[9].fence,
    });
    block_on(store.promise(&[job])).unwrap();
    store
}

#[test]
fn a_sound_file_has_no_problems() {
    let place = Place::new();
    let (areas, problems) = checked(&filled(&place));
    assert_eq!(problems, []);
    let expected = [("records", 2_000), ("records", 500), ("jobs", 1), ("audit entries", 6), ("file", 1)];
    assert_eq!(areas, expected);
}

/// A writer goes on meanwhile: each row is looked at in one moment.
#[test]
fn a_file_that_is_written_to_has_no_problems() {
    let place = Place::new();
    let store = filled(&place);
    let writer = place.open();
    let rows: Vec<_> = (0..2_000).map(|n| reserved(&format!("late-{n}"), n, LONG_AGO)).collect();
    let writing = std::thread::spawn(move || {
        for rows in rows.chunks(20) {
            applied(&writer, &rows.iter().map(insert).collect::<Vec<_>>());
            applied(&writer, &rows.iter().map(|row| swap(row, &completed(row))).collect::<Vec<_>>());
        }
    });
    let mut rounds = 0;
    while !writing.is_finished() || rounds == 0 {
        assert_eq!(checked(&store).1, []);
        rounds += 1;
    }
    writing.join().unwrap();
    assert_eq!(checked(&store).1, []);
}

#[test]
fn every_kind_of_contradiction_is_found() {
    for (damage, kind, words) in [
        ("UPDATE record SET body = x'09' WHERE seq = 7", ProblemKind::Unreadable, "record"),
        (
            "UPDATE record SET state = 2 WHERE seq = 2",
            ProblemKind::Inconsistent,
            "the column state is 2, and its record says 1",
        ),
        (
            "UPDATE record SET due_at = NULL WHERE seq = 2",
            ProblemKind::Inconsistent,
            "the column due_at is empty",
        ),
        (
            "UPDATE record SET line = 'another' WHERE seq = 1",
            ProblemKind::Inconsistent,
            "the column line is another",
        ),
        ("DELETE FROM record WHERE seq = 10", ProblemKind::Dangling, "which has no record"),
        ("UPDATE entry SET bytes = x'00' WHERE seq = 1", ProblemKind::Unreadable, ""),
        ("UPDATE job SET life = x'00'", ProblemKind::Unreadable, "life in a job"),
    ] {
        let place = Place::new();
        let store = filled(&place);
        assert_eq!(place.raw().execute(damage, []).unwrap(), 1, "{damage}");
        let problems = checked(&store).1;
        let [problem] = &problems[..] else { panic!("{damage}: {problems:?}") };
        assert_eq!(problem.kind, kind, "{damage}: {problem:?}");
        assert!(problem.detail.contains(words), "{damage}: {problem:?}");
    }
}

/// The unique index was lost for a while, and a key was inserted twice.
#[test]
fn a_key_with_two_rows_is_found() {
    let place = Place::new();
    drop(filled(&place));
    let raw = place.raw();
    // As a damaged index lets it happen: SQLite does not look into an index that it does not know
    // of.
    raw.execute_batch(
        "PRAGMA writable_schema = ON; \
         CREATE TEMP TABLE kept AS SELECT * FROM sqlite_schema WHERE name = 'sqlite_autoindex_record_1'; \
         UPDATE sqlite_schema SET sql = replace(sql, 'NOT NULL UNIQUE', 'NOT NULL') WHERE name = 'record'; \
         DELETE FROM sqlite_schema WHERE name = 'sqlite_autoindex_record_1'",
    )
    .unwrap();
    let columns = row::COLUMNS.join(", ");
    let other = place.raw();
    let twice = format!("INSERT INTO record ({columns}) SELECT {columns} FROM record WHERE seq = 3");
    other.execute(&twice, []).unwrap();
    other
        .execute_batch(
            "PRAGMA writable_schema = ON; \
             UPDATE sqlite_schema SET sql = replace(sql, 'NOT NULL, -- a hash', 'NOT NULL UNIQUE, -- a hash') WHERE name = 'record'",
        )
        .unwrap();
    drop(other);
    let restore = "INSERT INTO sqlite_schema SELECT * FROM kept";
    raw.execute_batch(restore).unwrap();
    drop(raw);
    let store = place.open();
    let problems = checked(&store).1;
    assert!(!problems.is_empty(), "two rows have one id");
    let is_told = |problem: &Problem| {
        matches!(problem.kind, ProblemKind::DuplicateId | ProblemKind::Damaged) && problem.subject == "file"
    };
    assert!(problems.iter().any(is_told), "{problems:?}");
}
