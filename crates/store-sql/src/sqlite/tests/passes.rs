//! What a worker's scan costs, counted: the steps of SQLite's machine, of the very statements that the scan has run.
//!
//! A row that is read is a few dozen steps, wherever it lies in the tree; so the same number of steps is the same number of rows.

use oncegate_conformance::samples::{FAR_AHEAD, LONG_AGO, address, moved_to, reserved, reserved_at};
use std::time::Duration;

use oncegate_core::identity::RecordId;
use oncegate_core::key::Key;
use oncegate_core::record::{Record, State, StateKind};
use oncegate_core::scope::{Address, Scope};
use oncegate_core::time::Timestamp;
use oncegate_store::turns::{BACKLOG_MAX, Backlog};
use oncegate_store::{Due, Moments, Store, Turn};
use rusqlite::{Connection, StatementStatus};

use super::super::row::{RecordRow, decode};
use super::super::statements::{self, DUE, INSERT, OVERDUE};
use super::super::waiting;
use super::{Place, block_on, insert};

/// Between [`LONG_AGO`] and [`FAR_AHEAD`].
const PRESENT: Timestamp = Timestamp::from_micros(2_500_000_000_000_000);
const LAPSED_LEASES: u64 = 100;
const EXPIRED: u64 = 100;

/// What a scan has taken.
#[derive(Debug, PartialEq, Eq)]
struct Cost {
    found: usize,
    steps: i32,
    /// Steps through a table as a whole, and rows that were sorted.
    scanned_and_sorted: [i32; 2],
}

impl Place {
    /// A file with lapsed leases, rows past retention, and so many answers that are kept.
    fn with_kept(count: u32) -> Self {
        let place = Self::new();
        let store = place.open();
        let lapsed = (0..LAPSED_LEASES).map(|n| reserved(&format!("lapsed-{n}"), n, LONG_AGO));
        let ended = |n: u64| {
            let states = [StateKind::Completed, StateKind::FailedRetryable, StateKind::Expired];
            let state = states[usize::try_from(n % 3).unwrap()];
            moved_to(&reserved(&format!("ended-{n}"), n, LONG_AGO), state, LONG_AGO)
        };
        let kept = moved_to(&reserved("kept", 1, LONG_AGO), StateKind::Completed, FAR_AHEAD);
        let rows = lapsed.chain((0..EXPIRED).map(ended)).chain([kept]);
        block_on(store.apply(&rows.map(|row| insert(&row)).collect::<Vec<_>>())).unwrap();
        place.multiply("kept", count);
        place
    }

    /// Makes so many rows out of the one of this key, each due a microsecond after the one before.
    fn multiply(&self, key: &str, count: u32) {
        let mut connection = Connection::open(self.file()).unwrap();
        let tx = connection.transaction().unwrap();
        let all = "SELECT id, body, response FROM record ORDER BY seq";
        let found = tx.prepare(all).unwrap().query_map([], |row| Ok(decode(row))).unwrap().find_map(|row| {
            let record = row.unwrap().unwrap();
            (record.address.key.as_str() == key).then_some(record)
        });
        let first = found.unwrap();
        let mut insert = tx.prepare(&INSERT).unwrap();
        let scope = first.address.scope.as_str().to_owned();
        let later = |at: Timestamp, n: u32| at.plus(Duration::from_micros(n.into()));
        for n in 1..count {
            let key = Key::from_text(&format!("{key}-{n}")).unwrap();
            let address = Address { scope: Scope::from_stored(&scope).unwrap(), key };
            let mut next = Record { id: RecordId::of(&address), address, ..first.clone() };
            next.expires_at = next.expires_at.map(|at| later(at, n));
            if let State::Pending { run_after } = &mut next.state {
                *run_after = later(*run_after, n);
            }
            RecordRow::new(&next).bind(&mut insert).unwrap();
            insert.raw_execute().unwrap();
        }
        drop(insert);
        tx.commit().unwrap();
    }

    /// One scan on a connection of its own, whose statements have run nothing else.
    fn cost(&self, what: Due, limit: usize) -> Cost {
        let connection = Connection::open(self.file()).unwrap();
        let found = statements::due(&connection, what, Moments::by(PRESENT), limit).unwrap().records.len();
        let taken = |of: StatementStatus| {
            let of = |sql: &str| connection.prepare_cached(sql).unwrap().get_status(of);
            of(DUE) + of(&OVERDUE)
        };
        let scanned_and_sorted = [StatementStatus::FullscanStep, StatementStatus::Sort].map(taken);
        Cost { found, steps: taken(StatementStatus::VmStep), scanned_and_sorted }
    }
}

/// 1,000 answers that are kept, and 100,000: the sweeper reads the same rows, and so does the reaper.
#[test]
fn a_scan_takes_the_same_steps_whatever_number_of_answers_is_kept() {
    let (few, many) = (Place::with_kept(1_000), Place::with_kept(100_000));
    for what in [Due::Lapsed, Due::Expired, Due::Resumable, Due::Pending, Due::Doubted] {
        let cost = few.cost(what, 128);
        let found = if [Due::Lapsed, Due::Expired].contains(&what) { 100 } else { 0 };
        assert_eq!(cost.found, found, "{what:?}");
        assert_eq!(cost, many.cost(what, 128), "{what:?} looks at answers that are kept");
        assert_eq!(cost.scanned_and_sorted[0], 0, "{what:?} reads a table as a whole");
        assert!(cost.steps < 12_000, "{what:?} took {} steps", cost.steps);
    }
}

/// 1,000 requests of one tenant that wait, and 100,000: a turn takes the same steps, and so does whoever looks for something else.
#[test]
fn a_turn_takes_the_same_steps_however_much_waits() {
    let backlog = |count: u32| {
        let place = Place::with_kept(1_000);
        let store = place.open();
        let rows: Vec<_> = (0..20)
            .map(|n| reserved_at(address(&format!("tenant-{n}"), "k"), n, LONG_AGO))
            .chain([reserved("busy", 1, LONG_AGO)])
            .map(|row| moved_to(&row, StateKind::Pending, LONG_AGO))
            .collect();
        block_on(store.apply(&rows.iter().map(insert).collect::<Vec<_>>())).unwrap();
        place.multiply("busy", count);
        let connection = Connection::open(place.file()).unwrap();
        let turn = Turn { operations: vec![rows[0].operation.clone()].into(), after: None, limit: 32 };
        let found = waiting::waiting(&connection, &turn, PRESENT).unwrap().scan.records.len();
        let steps = |sql: &str| {
            let statement = connection.prepare_cached(sql).unwrap();
            assert_eq!(statement.get_status(StatementStatus::FullscanStep), 0, "{sql}");
            statement.get_status(StatementStatus::VmStep)
        };
        let taken = [waiting::NEXT_LINE, waiting::OF_LINE, waiting::AT].map(steps);
        let others =
            [Due::Expired, Due::Doubted, Due::Lapsed, Due::Resumable].map(|what| place.cost(what, 128));
        (found, taken, others)
    };
    let few = backlog(1_000);
    assert_eq!(few.0, 32);
    assert_eq!(few, backlog(100_000));
}

/// A reaper that is behind takes a batch of what has piled up, and looks at no more of it.
#[test]
fn a_scan_of_a_backlog_takes_the_same_steps_whatever_has_piled_up() {
    let backlog = |count: u32| {
        let place = Place::with_kept(1_000);
        let first = moved_to(&reserved("old", 1, LONG_AGO), StateKind::Completed, LONG_AGO);
        block_on(place.open().apply(&[insert(&first)])).unwrap();
        place.multiply("old", count);
        place.cost(Due::Expired, 128)
    };
    let few = backlog(1_000);
    assert_eq!((few.found, few.scanned_and_sorted[0]), (128, 0));
    assert_eq!(few, backlog(100_000));
}

/// More waits than is counted, all of it of one tenant, and it comes first in the index. The oldest is another's, behind it: an alarm that
/// looked only at what was counted would never hear of it.
#[test]
fn the_oldest_of_a_backlog_is_found_behind_more_than_is_counted() {
    let place = Place::new();
    let store = place.open();
    let busy = moved_to(&reserved_at(address("a-busy", "busy"), 1, LONG_AGO), StateKind::Pending, PRESENT);
    let oldest = moved_to(&reserved_at(address("z-quiet", "k"), 2, LONG_AGO), StateKind::Pending, LONG_AGO);
    block_on(store.apply(&[insert(&busy), insert(&oldest)])).unwrap();
    place.multiply("busy", u32::try_from(BACKLOG_MAX).unwrap() + 1);
    let backlog = waiting::backlog(&Connection::open(place.file()).unwrap()).unwrap();
    assert_eq!(backlog, Backlog { rows: BACKLOG_MAX, oldest: Some(LONG_AGO) });
}
