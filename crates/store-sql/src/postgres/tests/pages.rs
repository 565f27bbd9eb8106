//! Scans go over notes a page at a time: what they look at is counted, and what others do between two of their statements is done.

use std::sync::Arc;
use std::time::Duration;

use oncegate_conformance::samples::{FAR_AHEAD, LONG_AGO, moved_to, reserved};
use oncegate_core::record::{Record, StateKind};
use oncegate_core::time::Timestamp;
use oncegate_store::{Due, Moments, Outcome, Scan, Store, Write};

use super::Place;
use crate::postgres::PostgresStore;
use crate::postgres::batch::waves;
use crate::postgres::scan::{SCAN_TIME, due};
use crate::postgres::session::Session;
use crate::postgres::statements::SETUP_READ;

/// Between [`LONG_AGO`] and [`FAR_AHEAD`].
const PRESENT: Timestamp = Timestamp::from_micros(2_500_000_000_000_000);
const ROWS_A_NOTE: i64 = 100;

impl Place {
    /// So many batches of [`ROWS_A_NOTE`] rows in one state, each of them due a microsecond after the one before, the first at
    /// [`LONG_AGO`]. What else is in the rows cannot be read.
    async fn backlog(&self, batches: u64, state: StateKind, note_kind: i16) {
        self.batches(batches, state, LONG_AGO, note_kind).await;
    }

    /// The same with rows that are due from another moment on. The notes are as the batches have left them.
    async fn batches(&self, batches: u64, state: StateKind, from: Timestamp, note_kind: i16) {
        let (state, long_ago) = (oncegate_store::row::number_of(state), LONG_AGO.as_micros());
        let (first, from) = ("(1000 + b) * 65536", from.as_micros());
        self.run(&format!(
            "INSERT INTO {{}}.record SELECT {first} + n, int8send(b) || int8send(n), 1, {state}, {from} + b, '' \
             FROM generate_series(0, {batches} - 1) b, generate_series(0, {ROWS_A_NOTE} - 1) n; \
             INSERT INTO {{}}.note (about, due_at, first, last) SELECT {note_kind}, {long_ago} + b, {first}, {first} + 65535 \
             FROM generate_series(0, {batches} - 1) b"
        ))
        .await;
    }

    /// Scans, and says how many rows of `record` and of `note` it has read, and how many notes it has changed.
    async fn counted(&self, what: Due, now: Timestamp, limit: usize) -> (Scan, [i64; 3]) {
        let session = self.session(SETUP_READ).await;
        // What a transaction has looked at is known at once.
        session.run("BEGIN").await.unwrap();
        let scan = self.scan(&session, what, now, limit, SCAN_TIME).await;
        let text = format!(
            "SELECT idx_tup_fetch + seq_tup_read, n_tup_upd FROM pg_stat_xact_user_tables \
             WHERE schemaname = '{}' AND relname IN ('record', 'note') ORDER BY relname DESC",
            self.schema
        );
        let rows = session.query_once(&text, &[]).await.unwrap();
        session.run("COMMIT").await.unwrap();
        (scan, [rows[0].get(0), rows[1].get(0), rows[1].get(1)])
    }

    async fn scan(&self, session: &Session, what: Due, now: Timestamp, limit: usize, time: Duration) -> Scan {
        due(session, &self.statements, what, &[], Moments::by(now), limit, time).await.unwrap()
    }
}

async fn apply(store: &PostgresStore, write: Write) {
    assert_eq!(store.apply(&[write]).await.unwrap(), [Outcome::Applied]);
}

fn insert(record: &Record) -> Write {
    Write::insert(Arc::new(record.clone()))
}

fn swap(from: &Record, to: &Record) -> Write {
    Write::swap(from.version, Arc::new(to.clone()))
}

/// A lease that lapsed an hour after the backlog was due.
fn behind() -> Record {
    reserved("behind", 1, LONG_AGO.plus(Duration::from_hours(1)))
}

/// Found by review: a scan looked at all notes that were due, and with millions of answers that nobody had removed it would have
/// taken longer than it may, and found nothing.
#[tokio::test]
async fn answers_that_nobody_removes_do_not_stand_before_a_lease() {
    let place = Place::start().await;
    let store = place.store().await;
    place.backlog(400, StateKind::Completed, 2).await;
    apply(&store, insert(&behind())).await;
    let (scan, [rows, notes, _]) = place.counted(Due::Lapsed, PRESENT, 5).await;
    assert_eq!(scan.records, [behind()]);
    assert!(rows <= 3 && notes <= 4, "of 40,000 rows and 400 notes {rows} and {notes} were read");
    place.gone().await;
}

/// The same where the answers have expired before anybody has looked at their leases.
#[tokio::test]
async fn a_scan_puts_answers_out_of_the_way_of_leases() {
    let place = Place::start().await;
    let store = place.store().await;
    place.backlog(400, StateKind::Completed, 1).await;
    apply(&store, insert(&behind())).await;
    let (scan, [.., changed]) = place.counted(Due::Lapsed, PRESENT, 5).await;
    assert_eq!((scan.records, changed), (vec![behind()], 400));
    let (scan, [rows, notes, changed]) = place.counted(Due::Lapsed, PRESENT, 5).await;
    assert_eq!((scan.records, changed), (vec![behind()], 0));
    assert!(rows <= 3 && notes <= 4, "of 40,000 rows and 400 notes {rows} and {notes} were read");
    place.gone().await;
}

/// Found by counting: for every batch it read a page of 128 notes, twice the 12,800 rows under them, to remove 128.
#[tokio::test]
async fn the_reaper_reads_little_more_than_what_it_removes() {
    let place = Place::start().await;
    let store = place.store().await;
    for batch in 0..30 {
        let rows = (0..ROWS_A_NOTE.unsigned_abs()).map(|n| {
            let row = reserved(&format!("{batch}-{n}"), n, LONG_AGO);
            insert(&moved_to(&row, StateKind::Completed, LONG_AGO))
        });
        let outcomes = store.apply(&rows.collect::<Vec<_>>()).await.unwrap();
        assert!(outcomes.iter().all(|outcome| *outcome == Outcome::Applied));
    }
    place.run("UPDATE {}.note SET about = 2").await;
    let (scan, [rows, notes, _]) = place.counted(Due::Expired, PRESENT, 128).await;
    assert_eq!((scan.records.len(), scan.is_cut), (128, true));
    assert!(rows <= 2 * 8 * ROWS_A_NOTE + 128 && notes <= 4 * 8, "{rows} rows and {notes} notes were read");
    place.gone().await;
}

/// Found by reading: one row that could not be read was at the head of every scan for ever, and took the place of another; as many as
/// the limit, and nothing was found any more.
#[tokio::test]
async fn what_cannot_be_read_stands_in_nobodys_way() {
    for (what, state, note_kind) in [
        (Due::Lapsed, StateKind::InProgress, 1),
        (Due::Doubted, StateKind::Unknown, 1),
        (Due::Expired, StateKind::Completed, 2),
    ] {
        let place = Place::start().await;
        let store = place.store().await;
        place.backlog(3, state, note_kind).await;
        if state == StateKind::Unknown {
            place.run("UPDATE {}.record SET look_at = due_at").await;
        }
        // Larger than all that a scan reads.
        place
            .run("INSERT INTO {}.answer SELECT seq, repeat('x', 1 << 20)::bytea FROM {}.record ORDER BY seq LIMIT 9")
            .await;
        let later = Timestamp::from_micros(LONG_AGO.as_micros() + 1_000);
        let row = moved_to(&reserved("behind", 1, LONG_AGO), state, later);
        apply(&store, insert(&row)).await;
        let session = place.session(SETUP_READ).await;
        let scan = place.scan(&session, what, PRESENT, 5, SCAN_TIME).await;
        assert_eq!((scan.records, scan.unreadable, scan.is_cut), (vec![row], 300, false), "{what:?}");
        place.gone().await;
    }
}

/// 1,000 answers that are kept, and 100,000: once their notes are put off, the sweeper reads the same rows, and so does the reaper.
#[tokio::test]
async fn a_scan_reads_the_same_rows_whatever_number_of_answers_is_kept() {
    let mut read = Vec::new();
    for batches in [10, 1_000] {
        let place = Place::start().await;
        let store = place.store().await;
        place.batches(batches, StateKind::Completed, FAR_AHEAD, 1).await;
        // Each new row is read once more when its lease could have lapsed.
        let (_, [rows, ..]) = place.counted(Due::Lapsed, PRESENT, 128).await;
        assert_eq!(rows, ROWS_A_NOTE * i64::try_from(batches).unwrap());
        for n in 0..20 {
            apply(&store, insert(&reserved(&format!("lapsed-{n}"), n, LONG_AGO))).await;
            let ended =
                moved_to(&reserved(&format!("ended-{n}"), n, LONG_AGO), StateKind::Completed, LONG_AGO);
            apply(&store, insert(&ended)).await;
        }
        let [lapsed, expired] = [Due::Lapsed, Due::Expired].map(|what| place.counted(what, PRESENT, 128));
        let [(lapsed, by_sweeper), (expired, by_reaper)] = [lapsed.await, expired.await];
        assert_eq!([lapsed.records.len(), expired.records.len()], [20, 20]);
        read.push([by_sweeper, by_reaper]);
        place.gone().await;
    }
    assert_eq!(read[0], read[1], "rows and notes that were read, and notes that were changed");
}

/// Out of time after each page: what has been tidied is not looked at again, so that the third scan comes to the lease.
#[tokio::test]
async fn a_scan_that_runs_out_of_time_is_gone_on_with_by_the_next() {
    let place = Place::start().await;
    let store = place.store().await;
    place.backlog(300, StateKind::Completed, 1).await;
    apply(&store, insert(&behind())).await;
    let session = place.session(SETUP_READ).await;
    let mut found = Vec::new();
    for _ in 0..3 {
        found.push(place.scan(&session, Due::Lapsed, PRESENT, 5, Duration::ZERO).await.records);
    }
    assert_eq!(found, [vec![], vec![], vec![behind()]]);
    place.gone().await;
}

/// By a clock that is far ahead, a note that is put off is still due: once is enough.
#[tokio::test]
async fn a_scan_puts_a_note_off_once() {
    let place = Place::start().await;
    place.backlog(300, StateKind::Unknown, 2).await;
    let (_, [.., changed]) = place.counted(Due::Expired, FAR_AHEAD, 5).await;
    assert_eq!(changed, 300);
    place.gone().await;
}

/// A node tidies, and has not committed yet: another one finds what it would have found, does not wait, and a row that goes back
/// into progress meanwhile is not lost with the note that was put off.
#[tokio::test]
async fn a_row_that_goes_into_progress_under_a_note_that_is_tidied_is_found() {
    let place = Place::start().await;
    let store = place.store().await;
    let (row, other) = (reserved("back", 1, LONG_AGO), reserved("other", 2, LONG_AGO));
    let doubted = moved_to(&row, StateKind::Unknown, FAR_AHEAD);
    apply(&store, insert(&row)).await;
    apply(&store, insert(&other)).await;
    apply(&store, swap(&row, &doubted)).await;
    let tidying = place.session(SETUP_READ).await;
    tidying.run("BEGIN").await.unwrap();
    let scan = place.scan(&tidying, Due::Lapsed, PRESENT, 5, SCAN_TIME).await;
    assert_eq!(scan.records, std::slice::from_ref(&other));
    let again = moved_to(&doubted, StateKind::InProgress, LONG_AGO);
    apply(&store, swap(&doubted, &again)).await;
    let both = [again, other];
    assert_eq!(store.due(Due::Lapsed, PRESENT, 5).await.unwrap().records, both, "while it is tidied");
    tidying.run("COMMIT").await.unwrap();
    assert_eq!(store.due(Due::Lapsed, PRESENT, 5).await.unwrap().records, both, "and after that");
    place.gone().await;
}

/// The other way round: the row is written, and that is not committed yet, when a scan puts its note off.
#[tokio::test]
async fn a_note_that_is_tidied_under_a_row_that_goes_into_progress_hides_nothing() {
    let place = Place::start().await;
    let store = place.store().await;
    let row = reserved("back", 1, LONG_AGO);
    let doubted = moved_to(&row, StateKind::Unknown, FAR_AHEAD);
    let again = moved_to(&doubted, StateKind::InProgress, LONG_AGO);
    apply(&store, insert(&row)).await;
    apply(&store, swap(&row, &doubted)).await;
    let writing = place.session("").await;
    writing.run("BEGIN").await.unwrap();
    let batch = [swap(&doubted, &again)];
    writing.query(&place.statements.move_on, &waves(&batch)[0].move_on.moved()).await.unwrap();
    assert_eq!(store.due(Due::Lapsed, PRESENT, 5).await.unwrap().records, []);
    writing.run("COMMIT").await.unwrap();
    assert_eq!(store.due(Due::Lapsed, PRESENT, 5).await.unwrap().records, [again]);
    place.gone().await;
}
