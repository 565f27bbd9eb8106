//! `Check`: a sound schema, and one contradiction at a time.

use std::sync::Arc;

use oncegate_conformance::samples::{FAR_AHEAD, LONG_AGO, entry, moved_to, reserved};
use oncegate_core::audit::Act;
use oncegate_core::record::StateKind;
use oncegate_store::jobs::{Job, JobId, Jobs as _};
use oncegate_store::{Check as _, Outcome, Problem, ProblemKind, Store as _, Write};
use oncegate_store_sql::PostgresStore;

use crate::place::Place;

/// All parts of a check: what was looked at, and what is wrong.
async fn checked(store: &PostgresStore) -> (Vec<(&'static str, u64)>, Vec<Problem>) {
    let (mut areas, mut problems, mut after) = (Vec::new(), Vec::new(), None);
    loop {
        let part = store.check(after.as_ref()).await.expect("checked");
        areas.push((part.area, part.rows));
        problems.extend(part.problems);
        match part.next {
            Some(next) => after = Some(next),
            None => return (areas, problems),
        }
    }
}

/// Every state with and without a name of the provider's, a job, audit entries, and more records
/// than fit into one part.
async fn filled(place: &Place) -> PostgresStore {
    let store = place.open().await;
    let rows: Vec<_> = (0..2_500).map(|n| reserved(&format!("key-{n}"), n, LONG_AGO)).collect();
    let inserts: Vec<_> = rows.iter().map(|row| Write::insert(Arc::new(row.clone()))).collect();
    assert!(store.apply(&inserts).await.expect("written").iter().all(|outcome| *outcome == Outcome::Applied));
    for (row, state) in rows.iter().zip(StateKind::ALL.into_iter().chain(StateKind::ALL)) {
        let mut next = moved_to(row, state, FAR_AHEAD);
        next.provider_reference = (state == StateKind::Completed).then(|| "ch_1".into());
        let told = entry(&next, LONG_AGO, Act::Released);
        let write = Write::swap(row.version, Arc::new(next)).telling(Some(told));
        assert_eq!(store.apply(&[write]).await.expect("written"), [Outcome::Applied]);
    }
    let row = &rows[20];
    let mut job = Job::promised(JobId::of(row.life, 0), "charge", Vec::new(), (row.id, row.life), LONG_AGO);
    job.answers = row.grant.map(|grant| oncegate_core::record::Holder {
        life: row.life,
        token: grant.token,
        fence: row.fence,
    });
    store.promise(&[job]).await.expect("promised");
    store
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sound_schema_has_no_problems() {
    let place = Place::shared();
    let (areas, problems) = checked(&filled(&place).await).await;
    assert_eq!(problems, []);
    let expected = [
        ("records", 2_000),
        ("records", 500),
        ("responses", 2),
        ("marks", 6),
        ("jobs", 1),
        ("audit entries", 12),
    ];
    assert_eq!(areas, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_kind_of_contradiction_is_found() {
    for (damage, kind, words) in [
        (
            "UPDATE {}.record SET rest = '\\x09' WHERE id = (SELECT id FROM {}.record ORDER BY seq LIMIT 1 OFFSET 30)",
            ProblemKind::Unreadable,
            "record",
        ),
        (
            "UPDATE {}.record SET state = 4 WHERE id = (SELECT id FROM {}.record ORDER BY seq LIMIT 1 OFFSET 30)",
            ProblemKind::Inconsistent,
            "`state`",
        ),
        (
            "UPDATE {}.record SET version = 9 WHERE id = (SELECT id FROM {}.record ORDER BY seq LIMIT 1 OFFSET 30)",
            ProblemKind::Inconsistent,
            "`version`",
        ),
        (
            "UPDATE {}.record SET look_at = 9 WHERE id = (SELECT id FROM {}.record ORDER BY seq LIMIT 1 OFFSET 30)",
            ProblemKind::Inconsistent,
            "`look_at`",
        ),
        (
            "UPDATE {}.mark SET line = 9 WHERE line IS NOT NULL AND seq = (SELECT min(seq) FROM {}.mark WHERE line IS NOT NULL)",
            ProblemKind::Inconsistent,
            "`mark`",
        ),
        ("INSERT INTO {}.answer (seq, bytes) VALUES (7, '')", ProblemKind::Dangling, "not there"),
        ("INSERT INTO {}.mark (seq, reference) VALUES (7, 'x')", ProblemKind::Dangling, "not there"),
        (
            "DELETE FROM {}.record WHERE id = (SELECT record FROM {}.job)",
            ProblemKind::Dangling,
            "which has no record",
        ),
        (
            "UPDATE {}.entry SET bytes = '' WHERE seq = (SELECT min(seq) FROM {}.entry)",
            ProblemKind::Unreadable,
            "decoded",
        ),
    ] {
        let place = Place::shared();
        let store = filled(&place).await;
        let damage = damage.replace("{}", &place.schema);
        assert_eq!(place.raw().await.execute(&damage, &[]).await.expect("damaged"), 1, "{damage}");
        let problems = checked(&store).await.1;
        let [problem] = &problems[..] else { panic!("{damage}: {problems:?}") };
        assert_eq!(problem.kind, kind, "{damage}: {problem:?}");
        assert!(problem.detail.contains(words), "{damage}: {problem:?}");
    }
}

/// The database refuses the second row of a key, and a check finds it where the index was gone for
/// a while.
#[tokio::test(flavor = "multi_thread")]
async fn plain_sql_cannot_insert_a_key_twice_and_a_key_with_two_rows_is_found() {
    let place = Place::shared();
    let store = filled(&place).await;
    let raw = place.raw().await;
    let twice = "INSERT INTO {}.record (seq, id, version, state, due_at, rest) \
                 SELECT seq + 1000000, id, version, state, due_at, rest FROM {}.record ORDER BY seq DESC LIMIT 1"
        .replace("{}", &place.schema);
    let error = raw.execute(&twice, &[]).await.expect_err("the unique index refuses it");
    assert_eq!(error.code(), Some(&tokio_postgres::error::SqlState::UNIQUE_VIOLATION), "{error}");
    let without =
        "DROP INDEX {}.record_id; CREATE INDEX record_id ON {}.record (id)".replace("{}", &place.schema);
    raw.batch_execute(&without).await.expect("dropped");
    raw.execute(&twice, &[]).await.expect("inserted");
    let problems = checked(&store).await.1;
    assert_eq!(problems.len(), 2, "{problems:?}");
    assert!(problems.iter().all(|problem| problem.kind == ProblemKind::DuplicateId), "{problems:?}");
}
