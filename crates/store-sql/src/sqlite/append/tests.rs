//! What only this layout can get wrong: memories that are behind, blobs that name what is over, runs, and older releases.

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::Duration;

use oncegate_conformance::samples::{FAR_AHEAD, LONG_AGO, answer, id, moved_to, reserved};
use oncegate_core::record::{Record, State, StateKind};
use oncegate_store::drive::read_one;
use oncegate_store::{Due, Filter, Kind, Outcome, Store, Write};
use rusqlite::{Connection, StatementStatus};
use tempfile::TempDir;

use super::super::{SqliteOptions, SqliteStore, statements};
use super::ids::{Ids, RUN};
use super::*;

mod cost;
mod damaged;
mod files;
mod joined;
mod restored;

pub(super) struct Place(TempDir);

impl Place {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn file(&self) -> PathBuf {
        self.0.path().join("records.db")
    }

    fn open(&self) -> SqliteStore {
        SqliteStore::open(self.file()).unwrap()
    }

    /// A handle that moves everything that is in flight with its next write.
    fn impatient(&self) -> SqliteStore {
        let options = SqliteOptions { in_flight_max: Duration::ZERO, ..SqliteOptions::new(self.file()) };
        options.open().unwrap()
    }

    fn raw(&self) -> Connection {
        Connection::open(self.file()).unwrap()
    }

    fn count(&self, what: &str) -> i64 {
        self.raw().query_row(&format!("SELECT count(*) FROM {what}"), [], |row| row.get(0)).unwrap()
    }

    /// How many rows are in flight (in blobs), completed, and in the table for everything else.
    fn tables(&self) -> [i64; 3] {
        [self.count("record_reserved WHERE seq > 0"), self.count("record_settled"), self.count("record")]
    }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

fn insert(record: &Record) -> Write {
    Write::insert(Arc::new(record.clone()))
}

fn swap(from: &Record, to: &Record) -> Write {
    Write::swap(from.version, Arc::new(to.clone()))
}

fn remove(record: &Record) -> Write {
    Write::remove(record.id, record.version, Duration::ZERO)
}

fn completed(record: &Record) -> Record {
    moved_to(record, StateKind::Completed, FAR_AHEAD)
}

fn outcomes(store: &SqliteStore, batch: &[Write]) -> Vec<Outcome> {
    block_on(store.apply(batch)).unwrap()
}

fn applied(store: &SqliteStore, batch: &[Write]) {
    assert!(outcomes(store, batch).iter().all(|outcome| *outcome == Outcome::Applied));
}

fn refused_by(store: &SqliteStore, write: Write, current: &Record) {
    assert_eq!(outcomes(store, &[write]), [Outcome::Refused { current: Some(Arc::new(current.clone())) }]);
}

fn read(store: &SqliteStore, key: &str) -> Option<Record> {
    block_on(read_one(store, id(key))).unwrap()
}

// ---- Several memories on one file ------------------------------------------------------------------------------------

#[test]
fn the_happy_path_is_appended_and_leaves_nothing_else() {
    let place = Place::new();
    let store = place.open();
    let rows: Vec<_> = (0..10).map(|n| reserved(&format!("key-{n}"), n, LONG_AGO)).collect();
    applied(&store, &rows.iter().map(insert).collect::<Vec<_>>());
    assert_eq!(place.tables(), [1, 0, 0], "one blob a commit");
    applied(&store, &rows[1..].iter().map(|row| swap(row, &completed(row))).collect::<Vec<_>>());
    assert_eq!(place.tables(), [1, 9, 0], "it stays while one is in flight");
    applied(&store, &[swap(&rows[0], &completed(&rows[0]))]);
    assert_eq!(place.tables(), [0, 10, 0]);
}

/// Both handles were open before anything was written, and each finds what the other has done meanwhile: at every step, whoever writes.
#[test]
fn a_handle_that_is_behind_catches_up_before_it_decides() {
    let place = Place::new();
    let (one, two) = (place.open(), place.open());
    let first = reserved("a", 1, LONG_AGO);
    let rival = reserved("a", 2, LONG_AGO);
    applied(&one, &[insert(&first)]);
    refused_by(&two, insert(&rival), &first);
    let done = completed(&first);
    // Settled by the one that did not reserve it.
    applied(&two, &[swap(&first, &done)]);
    refused_by(&one, insert(&rival), &done);
    refused_by(&one, swap(&first, &rival), &done);
    // Out of the happy path, and back to nothing.
    let doubted = moved_to(&done, StateKind::Unknown, FAR_AHEAD);
    applied(&one, &[swap(&done, &doubted)]);
    refused_by(&two, insert(&rival), &doubted);
    let ended = moved_to(&doubted, StateKind::Completed, LONG_AGO);
    applied(&two, &[swap(&doubted, &ended)]);
    applied(&one, &[remove(&ended)]);
    assert_eq!(read(&two, "a"), None);
    // A new life, where the other remembers the old one.
    applied(&two, &[insert(&rival)]);
    refused_by(&one, insert(&first), &rival);
    assert_eq!(read(&one, "a"), Some(rival));
}

/// What a handle remembers of a row that another has removed or moved is a hint that leads nowhere, and no more.
#[test]
fn what_another_process_has_removed_is_gone() {
    let place = Place::new();
    let (one, two) = (place.open(), place.open());
    let rows: Vec<_> = (0..3).map(|n| reserved(&format!("key-{n}"), n, LONG_AGO)).collect();
    let ended: Vec<_> = rows.iter().map(|row| moved_to(row, StateKind::Completed, LONG_AGO)).collect();
    let batch: Vec<_> =
        rows.iter().map(insert).chain(rows.iter().zip(&ended).map(|(row, end)| swap(row, end))).collect();
    applied(&one, &batch);
    assert_eq!(place.tables(), [0, 3, 0], "reserved and settled in one commit: never in a blob");
    let doubted = moved_to(&ended[1], StateKind::Unknown, FAR_AHEAD);
    applied(&two, &[remove(&ended[0]), swap(&ended[1], &doubted)]);
    assert_eq!(read(&one, "key-0"), None);
    assert_eq!(read(&one, "key-1"), Some(doubted.clone()));
    assert_eq!(outcomes(&one, &[remove(&ended[0])]), [Outcome::Refused { current: None }]);
    refused_by(&one, remove(&ended[1]), &doubted);
    applied(&one, &[insert(&rows[0]), remove(&ended[2])]);
    assert_eq!(read(&two, "key-0"), Some(rows[0].clone()));
    assert_eq!(read(&two, "key-2"), None);
}

/// A reader must not take a row for absent because it left one table after the memory was asked, and before the other was.
#[test]
fn a_row_that_moves_is_never_out_of_sight() {
    let place = Place::new();
    let store = Arc::new(place.open());
    let writer = Arc::clone(&store);
    let rows: Vec<_> = (0..300).map(|n| reserved(&format!("key-{n}"), n, LONG_AGO)).collect();
    applied(&store, &rows.iter().map(insert).collect::<Vec<_>>());
    let written = rows.clone();
    let writing = std::thread::spawn(move || {
        for row in &written {
            let done = completed(row);
            applied(&writer, &[swap(row, &done)]);
            applied(&writer, &[swap(&done, &moved_to(&done, StateKind::Expired, FAR_AHEAD))]);
        }
    });
    let other = place.open();
    let ids: Vec<_> = rows.iter().map(|row| row.id).collect();
    while !writing.is_finished() {
        for store in [&*store, &other] {
            let found = block_on(store.read(&ids)).unwrap();
            assert!(found.iter().all(|row| matches!(row, Ok(Some(_)))), "a row was out of sight");
            assert_eq!(block_on(store.browse(&Filter::default(), None, 1_000)).unwrap().records.len(), 300);
            let counts = block_on(store.counts()).unwrap();
            assert_eq!(counts.in_progress + counts.completed + counts.expired, 300);
        }
    }
    writing.join().unwrap();
}

// ---- In flight -------------------------------------------------------------------------------------------------------

#[test]
fn what_was_in_flight_at_a_crash_is_found_and_can_be_settled() {
    let place = Place::new();
    let rows: Vec<_> = (0..3).map(|n| reserved(&format!("key-{n}"), n, LONG_AGO)).collect();
    applied(&place.open(), &rows.iter().map(insert).collect::<Vec<_>>());
    let store = place.open();
    refused_by(&store, insert(&reserved("key-0", 9, FAR_AHEAD)), &rows[0]);
    assert_eq!(block_on(store.due(Due::Lapsed, FAR_AHEAD, 10)).unwrap().records, rows, "for the sweeper");
    // As the sweeper does it, and as a late holder does.
    applied(&store, &[swap(&rows[0], &moved_to(&rows[0], StateKind::Unknown, FAR_AHEAD))]);
    applied(&store, &[swap(&rows[1], &completed(&rows[1]))]);
    assert_eq!(block_on(store.due(Due::Lapsed, FAR_AHEAD, 10)).unwrap().records, rows[2..]);
    assert_eq!(place.tables(), [1, 1, 1]);
}

#[test]
fn what_is_long_in_flight_is_moved_by_the_next_write_and_stays_what_it_is() {
    let place = Place::new();
    let store = place.impatient();
    let rows: Vec<_> = (0..200).map(|n| reserved(&format!("key-{n}"), n, LONG_AGO)).collect();
    applied(&store, &rows.iter().map(insert).collect::<Vec<_>>());
    let late = reserved("late", 1, LONG_AGO);
    applied(&store, &[insert(&late)]);
    assert_eq!(place.tables(), [2, 0, 128], "no more than that at once");
    refused_by(&store, insert(&late), &late);
    assert_eq!(place.tables(), [0, 0, 201], "also by a write that changes nothing");
    let mut all = rows.clone();
    all.push(late);
    assert_eq!(
        block_on(store.due(Due::Lapsed, FAR_AHEAD, 1_000)).unwrap().records,
        all,
        "in order of arrival"
    );
    applied(&store, &[swap(&rows[7], &completed(&rows[7]))]);
    assert_eq!(read(&store, "key-7"), Some(completed(&rows[7])));
}

/// Rows of one blob, one of which is over and removed while another is in flight: whoever reads the blob anew must not take the removed one
/// for in flight.
#[test]
fn a_blob_never_brings_back_what_was_removed() {
    for through in [StateKind::Completed, StateKind::FailedRetryable] {
        let place = Place::new();
        let store = place.open();
        let (gone, stays) = (reserved("gone", 1, LONG_AGO), reserved("stays", 2, LONG_AGO));
        applied(&store, &[insert(&gone), insert(&stays)]);
        let ended = moved_to(&gone, through, LONG_AGO);
        applied(&store, &[swap(&gone, &ended)]);
        applied(&store, &[remove(&ended)]);
        let other = place.open();
        for store in [&store, &other] {
            assert_eq!(read(store, "gone"), None);
            assert_eq!(read(store, "stays"), Some(stays.clone()));
            assert_eq!(block_on(store.counts()).unwrap().in_progress, 1);
        }
        applied(&other, &[insert(&gone), swap(&stays, &completed(&stays))]);
        assert_eq!(read(&store, "gone"), Some(gone.clone()));
        // The same within one batch: settled, removed, taken again.
        let batch = [swap(&gone, &ended), remove(&ended), insert(&gone)];
        applied(&store, &batch);
        assert_eq!(read(&other, "gone"), Some(gone.clone()));
        assert_eq!(read(&place.open(), "gone"), Some(gone));
    }
}

/// A commit that fails leaves the memory as it was; one that fails and has landed is found in the file.
#[test]
fn a_commit_in_doubt_changes_nothing_in_memory() {
    let place = Place::new();
    let store = place.open();
    let row = reserved("a", 1, LONG_AGO);
    let other = place.open();
    {
        let mut inner = store.writer.inner_for_tests();
        inner.connection.commit_hook(Some(|| true)).unwrap();
        let error = super::super::writer::commit(&mut inner, &[insert(&row)], LONG_AGO).unwrap_err();
        assert_eq!(error.effect(), oncegate_store::Effect::Unknown);
        inner.connection.commit_hook(None::<fn() -> bool>).unwrap();
    }
    assert_eq!(read(&store, "a"), None);
    // Another takes the place that the failed one would have had.
    let rival = reserved("a", 2, LONG_AGO);
    applied(&other, &[insert(&rival)]);
    refused_by(&store, insert(&row), &rival);
}

// ---- Cost ------------------------------------------------------------------------------------------------------------

#[test]
fn ids_take_less_than_45_mb_a_million() {
    let mut ids = Ids::default();
    // As evenly spread as digests, and quicker.
    let name = |n: i64| {
        let low = n.cast_unsigned().wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let bits = u128::from(low ^ (low >> 31)) | (u128::from(low.rotate_left(17)) << 64);
        RecordId::from_bytes(bits.to_le_bytes())
    };
    for n in 0..1_000_000 {
        ids.insert(name(n), n);
        if n % 65_536 == 0 {
            assert!(ids.bytes() < 45_000_000);
        }
    }
    assert!(ids.bytes() < 45_000_000, "{} bytes", ids.bytes());
    for n in (0..1_000_000).step_by(997) {
        assert_eq!(ids.get(name(n)), Some(n));
    }
    assert_eq!(ids.get(name(-1)), None);
    // Those that stay behind when others are removed take little more than their part.
    for n in (0..1_000_000).filter(|n| n % 100 != 0) {
        ids.remove(name(n));
    }
    assert_eq!(ids.len(), 10_000);
    assert!(ids.bytes() < 4_000_000, "{} bytes", ids.bytes());
    ids.drop_before(1_000_000);
    assert!(ids.len() <= 6, "those of the last run: {}", ids.len());
}

/// Beside a map that cannot be wrong, over runs that thin out, front and middle.
#[test]
fn ids_are_a_map() {
    let (mut ids, mut model) = (Ids::default(), HashMap::new());
    let mut random = 1_u64;
    let mut next = 0;
    for step in 0..60_000 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let key = id(&format!("key-{}", (random >> 33) % 9_000));
        match (random >> 60) % 4 {
            0 | 1 => {
                ids.insert(key, next);
                model.insert(key, next);
                next += 1;
            }
            2 => {
                ids.remove(key);
                model.remove(&key);
            }
            _ => assert_eq!(ids.get(key), model.get(&key).copied()),
        }
        if step % 20_000 == 19_999 {
            let before = next - 2 * RUN;
            ids.drop_before(before);
            model.retain(|_, seq| *seq >= before - before.rem_euclid(RUN));
        }
    }
    assert_eq!(ids.len(), model.len());
    assert!(model.iter().all(|(key, seq)| ids.get(*key) == Some(*seq)));
}

/// The steps of SQLite's machine that a reservation and its answer take, with no rows and with twelve thousand.
#[test]
fn an_arrival_takes_the_same_steps_however_much_is_settled() {
    let steps = |settled: u64| {
        let place = Place::new();
        let store = place.open();
        // So that `record` is asked, too.
        applied(&store, &[insert(&moved_to(&reserved("other", 1, LONG_AGO), StateKind::Unknown, FAR_AHEAD))]);
        let rows: Vec<_> = (0..settled).map(|n| reserved(&format!("key-{n}"), n, LONG_AGO)).collect();
        let batch = |row: &Record| [insert(row), swap(row, &completed(row))];
        applied(&store, &rows.iter().flat_map(batch).collect::<Vec<_>>());
        // Its statements have run nothing else.
        let store = place.open();
        let row = reserved("fresh", 1, LONG_AGO);
        read(&store, "any");
        applied(&store, &[insert(&row)]);
        applied(&store, &[swap(&row, &completed(&row))]);
        let inner = store.writer.inner_for_tests();
        let taken = |of: StatementStatus| {
            let of = |sql: &str| inner.connection.prepare_cached(sql).unwrap().get_status(of);
            [LEDGER, KEEP_LEDGER, reserved::ADD, reserved::DROP, settled::ADD, statements::FIND].map(of)
        };
        assert_eq!(taken(StatementStatus::FullscanStep), [0; 6]);
        taken(StatementStatus::VmStep)
    };
    let few = steps(1);
    assert!(few.iter().all(|steps| *steps > 0), "each of them was run: {few:?}");
    assert_eq!(few, steps(12_300));
}
