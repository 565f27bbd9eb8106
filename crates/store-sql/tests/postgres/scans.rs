//! Notes: how leases that lapse and answers that expire are found, and how notes go that nobody needs any more.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use oncegate_conformance::samples::{FAR_AHEAD, LONG_AGO, id, moved_to, reserved};
use oncegate_core::identity::RecordId;
use oncegate_core::record::{Record, StateKind};
use oncegate_core::time::Timestamp;
use oncegate_store::{Due, Store, Write};
use oncegate_store_sql::PostgresStore;

use crate::place::{Place, apply_all, completed, insert, lapsed, leased, swap};

/// Between [`LONG_AGO`] and [`FAR_AHEAD`].
const PRESENT: Timestamp = Timestamp::from_micros(2_500_000_000_000_000);

async fn found(store: &PostgresStore, what: Due, limit: usize) -> BTreeSet<RecordId> {
    let scan = store.due(what, PRESENT, limit).await.expect("it is looked for");
    assert_eq!(scan.unreadable, 0);
    scan.records.iter().map(|record| record.id).collect()
}

async fn notes(place: &Place) -> i64 {
    place.number("SELECT count(*) FROM {}.note").await
}

async fn apply_in_batches(store: &PostgresStore, writes: &[Write], size: usize) {
    for batch in writes.chunks(size) {
        apply_all(store, batch).await;
    }
}

/// One note a batch. When its leases could lapse, and all are settled, it is put off until the answers expire.
#[tokio::test(flavor = "multi_thread")]
async fn the_note_of_settled_leases_is_put_off_until_their_answers_expire() {
    let place = Place::shared();
    let store = place.open().await;
    let rows: Vec<_> = (0..200).map(|n| lapsed(&format!("settled-{n}"))).collect();
    apply_in_batches(&store, &rows.iter().map(insert).collect::<Vec<_>>(), 50).await;
    assert_eq!(notes(&place).await, 4, "one a batch");
    let settle: Vec<_> = rows.iter().map(|row| swap(row, &completed(row))).collect();
    apply_in_batches(&store, &settle, 70).await;
    assert_eq!(notes(&place).await, 4, "and none of answers that expire as late as is usual");
    assert!(found(&store, Due::Lapsed, 100).await.is_empty());
    let put_off =
        format!("SELECT count(*) FROM {{}}.note WHERE about = 2 AND due_at = {}", FAR_AHEAD.as_micros());
    assert_eq!(place.number(&put_off).await, 4);
    let scan = store.due(Due::Expired, FAR_AHEAD, 1_000).await.expect("it is looked for");
    assert_eq!(scan.records.len(), 200);
}

/// Inserts that all clash leave nothing behind, not even a note.
#[tokio::test(flavor = "multi_thread")]
async fn a_batch_that_writes_nothing_leaves_no_note() {
    let place = Place::shared();
    let store = place.open().await;
    let rows: Vec<_> = (0..5).map(|n| insert(&lapsed(&format!("once-{n}")))).collect();
    apply_all(&store, &rows).await;
    let again = store.apply(&rows).await.expect("it is applied");
    assert!(
        again.iter().all(|outcome| matches!(outcome, oncegate_store::Outcome::Refused { current: Some(_) }))
    );
    assert_eq!(notes(&place).await, 1);
}

/// Completed anew, over an answer that is there: unusual, and right all the same.
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_may_take_another_ones_place() {
    let place = Place::shared();
    let store = place.open().await;
    let rows = ["a", "b"].map(leased);
    let first = rows.each_ref().map(completed);
    apply_all(&store, &rows.each_ref().map(insert)).await;
    apply_all(&store, &[swap(&rows[0], &first[0])]).await;
    let mut second = moved_to(&first[0], StateKind::Completed, FAR_AHEAD);
    second.state =
        oncegate_core::record::State::Completed(oncegate_conformance::samples::answer(402, b"other"));
    apply_all(&store, &[swap(&first[0], &second), swap(&rows[1], &first[1])]).await;
    let read = store.read(&[rows[0].id, rows[1].id]).await.expect("they are read");
    let read: Vec<_> = read.into_iter().map(|row| row.expect("it can be read")).collect();
    assert_eq!(read, [Some(second), Some(first[1].clone())]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_lapses_is_found_also_after_it_was_renewed() {
    let place = Place::shared();
    let store = place.open().await;
    let (row, other) = (lapsed("renewed"), lapsed("settled"));
    apply_all(&store, &[insert(&row), insert(&other)]).await;
    assert_eq!(found(&store, Due::Lapsed, 9).await, BTreeSet::from([row.id, other.id]));
    // Renewed: the old note is looked at meanwhile, and must not be all that is known of the lease.
    let renewed = moved_to(&row, StateKind::InProgress, FAR_AHEAD);
    apply_all(&store, &[swap(&row, &renewed), swap(&other, &completed(&other))]).await;
    assert!(found(&store, Due::Lapsed, 9).await.is_empty());
    // Cut short again, and lapsed.
    let short = moved_to(&renewed, StateKind::InProgress, LONG_AGO);
    apply_all(&store, &[swap(&renewed, &short)]).await;
    assert_eq!(found(&store, Due::Lapsed, 9).await, BTreeSet::from([row.id]));
    // In doubt, looked at, and granted anew: found once more.
    let doubted = moved_to(&short, StateKind::Unknown, FAR_AHEAD);
    apply_all(&store, &[swap(&short, &doubted)]).await;
    assert!(found(&store, Due::Lapsed, 9).await.is_empty());
    assert_eq!(
        place.number("SELECT count(*) FROM {}.note WHERE first = last AND due_at < 2500000000000000").await,
        0
    );
    let granted = moved_to(&doubted, StateKind::InProgress, LONG_AGO);
    apply_all(&store, &[swap(&doubted, &granted)]).await;
    assert_eq!(found(&store, Due::Lapsed, 9).await, BTreeSet::from([row.id]));
}

/// Each renewal leaves a note; the last one says when the lease lapses, and the others are not needed any more.
#[tokio::test(flavor = "multi_thread")]
async fn renewals_do_not_pile_up_notes() {
    let place = Place::shared();
    let store = place.open().await;
    let alone = "SELECT count(*) FROM {}.note WHERE first = last";
    let mut row = lapsed("renewed");
    apply_all(&store, &[insert(&row)]).await;
    let renewals = (1..=20).map(|n| Timestamp::from_micros(LONG_AGO.as_micros() + n));
    // Written three times more without being renewed: with what it has come to, say.
    for lease_until in renewals.chain([PRESENT; 3]).chain([FAR_AHEAD]) {
        let next = moved_to(&row, StateKind::InProgress, lease_until);
        apply_all(&store, &[swap(&row, &next)]).await;
        row = next;
    }
    assert_eq!(place.number(alone).await, 24);
    assert!(found(&store, Due::Lapsed, 9).await.is_empty());
    assert_eq!(place.number(alone).await, 1, "that of the lease as it is");
    for _ in 0..3 {
        let next = moved_to(&row, StateKind::InProgress, PRESENT);
        apply_all(&store, &[swap(&row, &next)]).await;
        row = next;
    }
    for _ in 0..2 {
        assert_eq!(found(&store, Due::Lapsed, 9).await, BTreeSet::from([row.id]));
        let due = format!("{alone} AND due_at <= {}", PRESENT.as_micros());
        assert_eq!(place.number(&due).await, 1, "of three that say the same");
    }
    // Settled: none; the answer is found by the note of its batch.
    let settled = completed(&row);
    apply_all(&store, &[swap(&row, &settled)]).await;
    assert_eq!(store.due(Due::Expired, FAR_AHEAD, 9).await.expect("it is looked for").records, [settled]);
    assert_eq!(place.number(alone).await, 0);
    assert_eq!(notes(&place).await, 1);
}

/// Found by the random histories: the note was put off by a second, beyond the end of the last page, though still due.
#[tokio::test(flavor = "multi_thread")]
async fn a_lease_is_found_by_the_scan_that_puts_its_note_off() {
    let place = Place::shared();
    let store = place.open().await;
    let late = LONG_AGO.plus(Duration::from_secs(1));
    let over = moved_to(&lapsed("over"), StateKind::FailedRetryable, LONG_AGO);
    let lease = moved_to(&lapsed("lease"), StateKind::InProgress, late);
    apply_all(&store, &[insert(&over), insert(&lease)]).await;
    assert_eq!(found(&store, Due::Lapsed, 9).await, BTreeSet::from([lease.id]));
    let put_off = format!("SELECT count(*) FROM {{}}.note WHERE due_at = {}", late.as_micros());
    assert_eq!(place.number(&put_off).await, 1);
}

/// The longest due first, also if what is due later stands on an earlier page: beside something that is due early.
#[tokio::test(flavor = "multi_thread")]
async fn pages_do_not_change_the_order() {
    const NOTES: u64 = 200;
    const LIMIT: usize = 150;
    let place = Place::shared();
    let store = place.open().await;
    let at = |n: u64| LONG_AGO.plus(Duration::from_secs(n));
    let row = |n: u64| moved_to(&lapsed(&format!("row-{n}")), StateKind::InProgress, at(n));
    for n in (0..NOTES).rev() {
        apply_all(&store, &[insert(&row(n)), insert(&row(10_000 + n))]).await;
    }
    let scan = store.due(Due::Lapsed, PRESENT, LIMIT).await.expect("it is looked for");
    let moments: Vec<_> = scan.records.iter().map(Record::due_at).collect();
    assert_eq!(moments, (0..LIMIT as u64).map(|n| Some(at(n))).collect::<Vec<_>>());
}

/// A note is pushed back to when the first of its leases can lapse, and no further.
#[tokio::test(flavor = "multi_thread")]
async fn a_note_waits_for_the_first_of_its_leases() {
    let place = Place::shared();
    let store = place.open().await;
    let soon = Timestamp::from_micros(PRESENT.as_micros() + 1_000);
    let rows = ["now", "soon", "late"].map(lapsed);
    let moved: Vec<_> = [LONG_AGO, soon, FAR_AHEAD]
        .iter()
        .zip(&rows)
        .map(|(moment, row)| moved_to(row, StateKind::InProgress, *moment))
        .collect();
    apply_all(&store, &rows.each_ref().map(insert)).await;
    apply_all(&store, &rows.iter().zip(&moved).map(|(row, next)| swap(row, next)).collect::<Vec<_>>()).await;
    assert_eq!(found(&store, Due::Lapsed, 9).await, BTreeSet::from([id("now")]));
    apply_all(&store, &[swap(&moved[0], &completed(&moved[0]))]).await;
    assert!(found(&store, Due::Lapsed, 9).await.is_empty());
    let scan = store.due(Due::Lapsed, soon, 9).await.expect("it is looked for");
    assert_eq!(scan.records, [moved[1].clone()]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_past_retention_is_found_and_its_note_goes_with_it() {
    let place = Place::shared();
    let store = place.open().await;
    let (row, kept) = (leased("over"), leased("kept"));
    let over = moved_to(&row, StateKind::Completed, LONG_AGO);
    apply_all(&store, &[insert(&row), insert(&kept)]).await;
    apply_all(&store, &[swap(&row, &over)]).await;
    apply_all(&store, &[swap(&kept, &completed(&kept))]).await;
    assert_eq!(found(&store, Due::Expired, 9).await, BTreeSet::from([row.id]));
    apply_all(&store, &[Write::remove(row.id, over.version, Duration::ZERO)]).await;
    assert!(found(&store, Due::Expired, 9).await.is_empty());
    assert_eq!(notes(&place).await, 2, "that of the batch, and that of the one that is kept");
    assert_eq!(place.number("SELECT count(*) FROM {}.answer").await, 1);
    // The key is as new; what was noted of its former life does not matter.
    apply_all(&store, &[insert(&row)]).await;
    assert!(found(&store, Due::Expired, 9).await.is_empty());
}

/// Found by review: notes of leases that stay lapsed kept those behind them from ever being looked at.
#[tokio::test(flavor = "multi_thread")]
async fn what_stays_due_does_not_keep_other_notes_from_going() {
    let place = Place::shared();
    let store = place.open().await;
    // More than are tidied at once; nobody takes care of them.
    let stuck: Vec<_> = (0..300).map(|n| insert(&lapsed(&format!("stuck-{n}")))).collect();
    apply_in_batches(&store, &stuck, 1).await;
    let late = Timestamp::from_micros(LONG_AGO.as_micros() + 1_000_000);
    let rows: Vec<_> = (0..3).map(|n| reserved(&format!("late-{n}"), 1, late)).collect();
    apply_all(&store, &rows.iter().map(insert).collect::<Vec<_>>()).await;
    apply_all(&store, &rows.iter().map(|row| swap(row, &completed(row))).collect::<Vec<_>>()).await;
    assert_eq!(found(&store, Due::Lapsed, 1_000).await.len(), 300);
    let due = format!("SELECT count(*) FROM {{}}.note WHERE due_at <= {}", PRESENT.as_micros());
    assert_eq!(place.number(&due).await, 300, "and that of the others was put off");
}

/// Several nodes look at the same notes while leases are settled and granted anew: in the end each that lapsed is found.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn nodes_that_tidy_at_once_lose_nothing() {
    const ROWS: usize = 600;
    let place = Place::shared();
    let store = place.open().await;
    let rows: Vec<Record> = (0..ROWS).map(|n| lapsed(&format!("raced-{n}"))).collect();
    apply_in_batches(&store, &rows.iter().map(insert).collect::<Vec<_>>(), 7).await;
    let is_over = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let mut tasks = Vec::new();
    for _ in 0..4 {
        let (store, is_over) = (place.open().await, Arc::clone(&is_over));
        tasks.push(tokio::spawn(async move {
            let mut scans = 0;
            while !is_over.load(std::sync::atomic::Ordering::Acquire) {
                found(&store, Due::Lapsed, ROWS).await;
                scans += 1;
            }
            scans
        }));
    }
    // A third is settled, a third goes through doubt and is granted anew, a third is renewed and cut short.
    for batch in rows.chunks(12) {
        let (mut first, mut second) = (Vec::new(), Vec::new());
        for (n, row) in batch.iter().enumerate() {
            let next = match n % 3 {
                0 => completed(row),
                1 => moved_to(row, StateKind::Unknown, FAR_AHEAD),
                _ => moved_to(row, StateKind::InProgress, FAR_AHEAD),
            };
            first.push(swap(row, &next));
            if n % 3 != 0 {
                second.push(swap(&next, &moved_to(&next, StateKind::InProgress, LONG_AGO)));
            }
        }
        apply_all(&store, &first).await;
        apply_all(&store, &second).await;
    }
    is_over.store(true, std::sync::atomic::Ordering::Release);
    for task in tasks {
        assert!(task.await.expect("no scan fails") > 0);
    }
    let expected: BTreeSet<_> = rows
        .chunks(12)
        .flat_map(|batch| batch.iter().enumerate().filter(|(n, _)| n % 3 != 0))
        .map(|(_, row)| row.id)
        .collect();
    assert_eq!(found(&store, Due::Lapsed, ROWS).await, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn five_thousand_notes_at_once() {
    let place = Place::shared();
    let store = place.open().await;
    let rows: Vec<Record> = (0..5_000).map(|n| lapsed(&format!("many-{n}"))).collect();
    apply_in_batches(&store, &rows.iter().map(insert).collect::<Vec<_>>(), 1_000).await;
    // A note a row, as if each had been granted anew.
    let split = format!(
        "INSERT INTO {0}.note (about, due_at, first, last) SELECT 1, due_at, seq, seq FROM {0}.record; \
         DELETE FROM {0}.note WHERE first < last",
        place.schema
    );
    place.raw().await.batch_execute(&split).await.expect("the notes are split");
    assert_eq!(found(&store, Due::Lapsed, 10_000).await.len(), 5_000);
    assert_eq!(found(&store, Due::Lapsed, 100).await.len(), 100);
    let settle: Vec<_> = rows.iter().map(|row| swap(row, &completed(row))).collect();
    apply_in_batches(&store, &settle, 1_000).await;
    assert!(found(&store, Due::Lapsed, 100).await.is_empty());
    assert_eq!(notes(&place).await, 0, "none is needed any more");
}
