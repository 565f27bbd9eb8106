//! A batch as the arrays that statements take.
//!
//! **Invariant:** in each statement every key occurs once, and keys are in order; inserts come before settlements, these before
//! other swaps, and removals last. A batch that changes rows by more than one statement locks all of them first, in the order of their keys (see [`Wave::locked`]).
//! So two batches wait for each other in one direction only. (One that names a key twice may insert after it has locked, and deadlock; the server notices after a second, and the
//! batch is tried again.)

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use oncegate_core::audit::Entry;
use oncegate_core::identity::RecordId;
use oncegate_core::record::{Record, StateKind};
use oncegate_core::time::{Timestamp, micros};
use oncegate_store::Change;
use oncegate_store::Write;
use oncegate_store::row::{number_of, state_column};
use tokio_postgres::types::ToSql;

use super::row::{Look, Mark};

/// Writes that name each key once.
#[derive(Default)]
pub(super) struct Wave<'w> {
    pub(super) insert: Rows<'w>,
    /// What the whole batch changes, in order, to be locked after the inserts of its first wave: where one statement changes all of it, that locks it, and this is empty. Otherwise a batch that settles
    /// what another moves on, and the other way round, would have each wait for the other until the server ends one of them.
    pub(super) locked: Vec<&'w [u8]>,
    pub(super) settle: Rows<'w>,
    pub(super) settle_over: Rows<'w>,
    pub(super) move_on: Rows<'w>,
    pub(super) remove: Removals<'w>,
}

/// Splits a batch into as few waves as it needs, mostly one.
pub(super) fn waves(batch: &[Write]) -> Vec<Wave<'_>> {
    let mut by_id: Vec<(usize, &Write)> = batch.iter().enumerate().collect();
    // Stable: writes of one key stay in their order.
    by_id.sort_by_key(|(_, write)| write.id());
    let mut waves: Vec<Wave<'_>> = Vec::new();
    let mut seen: HashMap<RecordId, usize> = HashMap::new();
    for (place, write) in by_id {
        let times = seen.entry(write.id()).or_default();
        if waves.len() == *times {
            waves.push(Wave::default());
        }
        if let Some(wave) = waves.get_mut(*times) {
            wave.add(place, write);
        }
        *times += 1;
    }
    let kinds: usize = waves.iter().map(Wave::kinds_of_change).sum();
    if kinds > 1
        && let Some(first) = waves.first_mut()
    {
        first.locked = changed(batch);
    }
    waves
}

/// The keys of rows that are not inserted, each once, in order.
fn changed(batch: &[Write]) -> Vec<&[u8]> {
    let changes = batch.iter().filter(|write| !matches!(write.change, Change::Insert(_)));
    let ids: BTreeSet<_> = changes.map(write_id).collect();
    ids.into_iter().collect()
}

impl<'w> Wave<'w> {
    /// By how many statements it changes rows.
    fn kinds_of_change(&self) -> usize {
        let swaps = [&self.settle, &self.settle_over, &self.move_on].map(|rows| rows.places.is_empty());
        swaps.into_iter().chain([self.remove.places.is_empty()]).filter(|is_empty| !is_empty).count()
    }

    fn add(&mut self, place: usize, write: &'w Write) {
        let entries = match &write.change {
            Change::Insert(record) => self.insert.add(place, 0, record),
            Change::Swap { expect, record } if is_usual(record) => {
                self.settle.add(place, expect.as_raw(), record)
            }
            Change::Swap { expect, record } if record.state.kind() == StateKind::Completed => {
                self.settle_over.add(place, expect.as_raw(), record)
            }
            Change::Swap { expect, record } => self.move_on.add(place, expect.as_raw(), record),
            Change::Remove { id, expect, grace, is_remembered } => {
                self.remove.places.push((place, *id));
                self.remove.id.push(write_id(write));
                self.remove.expect.push(expect.as_raw());
                self.remove.grace.push(micros(*grace));
                self.remove.is_remembered.push(*is_remembered);
                &mut self.remove.entries
            }
        };
        if let Some(entry) = &write.entry {
            entries.add(entry);
        }
    }
}

/// An answer that is kept for less than this has a note of its own.
pub(super) const EXPIRES_LATE: Duration = Duration::from_hours(2);

/// Completed, and found by nothing but its key and its expiry.
fn is_usual(record: &Record) -> bool {
    expires_late(record) && record.provider_reference.is_none()
}

/// Completed, as usual: by the time its answer expires, the note of its batch has come due, see `statements::tidy`.
fn expires_late(record: &Record) -> bool {
    let (Some(settled_at), Some(expires_at), Some(grant)) =
        (record.settled_at, record.expires_at, record.grant)
    else {
        return false;
    };
    record.state.kind() == StateKind::Completed
        && expires_at >= settled_at.plus(EXPIRES_LATE)
        && expires_at >= grant.lease_until
}

fn write_id(write: &Write) -> &[u8] {
    match &write.change {
        Change::Insert(record) | Change::Swap { record, .. } => &record.id.as_bytes()[..],
        Change::Remove { id, .. } => &id.as_bytes()[..],
    }
}

/// Rows to write, column by column.
#[derive(Default)]
pub(super) struct Rows<'w> {
    /// Where in the batch each is, and which key it is about.
    pub(super) places: Vec<(usize, RecordId)>,
    place: Vec<i32>,
    id: Vec<&'w [u8]>,
    expect: Vec<i64>,
    version: Vec<i64>,
    state: Vec<i16>,
    due_at: Vec<Option<i64>>,
    look_at: Vec<Option<i64>>,
    rest: Vec<Vec<u8>>,
    answer: Vec<Option<Vec<u8>>>,
    marks: Marks<'w>,
    /// When to look at the first of them.
    first_due_at: Option<i64>,
    /// What those of the writes tell that tell something.
    pub(super) entries: Entries<'w>,
}

impl<'w> Rows<'w> {
    /// Adds a write, and says where what it tells belongs.
    fn add(&mut self, place: usize, expect: i64, record: &'w Record) -> &mut Entries<'w> {
        self.places.push((place, record.id));
        self.place.push(i32::try_from(place).unwrap_or(i32::MAX));
        self.id.push(&record.id.as_bytes()[..]);
        self.expect.push(expect);
        self.version.push(record.version.as_raw());
        self.state.push(state_column(record));
        let due_at = record.due_at();
        self.due_at.push(due_at.map(Timestamp::as_micros));
        self.look_at.push(Look::of(record));
        self.rest.push(record.encode_body());
        self.answer.push(record.encode_answer());
        self.marks.add(Mark::of(record));
        let due_at = due_at.unwrap_or(record.created_at).as_micros();
        self.first_due_at = Some(self.first_due_at.map_or(due_at, |first| first.min(due_at)));
        &mut self.entries
    }

    /// New leases, and nothing else: none of them the completer's.
    pub(super) fn are_reserves(&self) -> bool {
        let in_progress = number_of(StateKind::InProgress);
        self.state.iter().all(|state| *state == in_progress) && !self.marks.are_some
    }

    /// When to look at the first of them.
    pub(super) fn first_due_at(&self) -> i64 {
        self.first_due_at.unwrap_or(0)
    }

    /// What the reserve binds, before [`Rows::first_due_at`].
    pub(super) fn reserved(&self) -> [&(dyn ToSql + Sync); 5] {
        [&self.place, &self.id, &self.version, &self.due_at, &self.rest]
    }

    /// What the insert binds, before [`Rows::first_due_at`].
    pub(super) fn inserted(&self) -> Vec<&(dyn ToSql + Sync)> {
        let row: [&(dyn ToSql + Sync); 8] = [
            &self.place,
            &self.id,
            &self.version,
            &self.state,
            &self.due_at,
            &self.look_at,
            &self.rest,
            &self.answer,
        ];
        row.into_iter().chain(self.marks.bound()).collect()
    }

    /// What the usual settle binds.
    pub(super) fn settled(&self) -> [&(dyn ToSql + Sync); 6] {
        [&self.id, &self.expect, &self.version, &self.due_at, &self.rest, &self.answer]
    }

    /// What a swap binds.
    pub(super) fn moved(&self) -> Vec<&(dyn ToSql + Sync)> {
        let row: [&(dyn ToSql + Sync); 7] =
            [&self.id, &self.expect, &self.version, &self.state, &self.due_at, &self.look_at, &self.rest];
        row.into_iter().chain(self.marks.bound()).collect()
    }

    /// The same with answers.
    pub(super) fn settled_over(&self) -> Vec<&(dyn ToSql + Sync)> {
        let mut bound = self.moved();
        bound.push(&self.answer);
        bound
    }
}

/// What few rows are found by, column by column.
#[derive(Default)]
struct Marks<'w> {
    line: Vec<Option<i64>>,
    waits_since: Vec<Option<i64>>,
    operation: Vec<Option<&'w str>>,
    doubt_since: Vec<Option<i64>>,
    parked_since: Vec<Option<i64>>,
    reference: Vec<Option<&'w [u8]>>,
    /// One of the rows has one.
    are_some: bool,
}

impl<'w> Marks<'w> {
    fn add(&mut self, mark: Mark<'w>) {
        self.are_some |= !mark.is_empty();
        self.line.push(mark.line);
        self.waits_since.push(mark.waits_since);
        self.operation.push(mark.operation);
        self.doubt_since.push(mark.doubt_since);
        self.parked_since.push(mark.parked_since);
        self.reference.push(mark.reference);
    }

    /// In the order of [`super::statements::MARKED`].
    fn bound(&self) -> [&(dyn ToSql + Sync); 6] {
        [
            &self.line,
            &self.waits_since,
            &self.operation,
            &self.doubt_since,
            &self.parked_since,
            &self.reference,
        ]
    }
}

/// Rows to remove, column by column.
#[derive(Default)]
pub(super) struct Removals<'w> {
    pub(super) places: Vec<(usize, RecordId)>,
    id: Vec<&'w [u8]>,
    expect: Vec<i64>,
    grace: Vec<i64>,
    is_remembered: Vec<bool>,
    pub(super) entries: Entries<'w>,
}

impl Removals<'_> {
    pub(super) fn bound(&self) -> [&(dyn ToSql + Sync); 4] {
        [&self.id, &self.expect, &self.grace, &self.is_remembered]
    }
}

/// Entries of the audit trail, column by column.
#[derive(Default)]
pub(super) struct Entries<'w> {
    id: Vec<&'w [u8]>,
    at: Vec<i64>,
    act: Vec<i16>,
    node: Vec<Vec<u8>>,
    bytes: Vec<Vec<u8>>,
}

impl<'w> Entries<'w> {
    /// In the order of their records, as writes are; of one record, in their own.
    pub(super) fn of(entries: &'w [Entry]) -> Self {
        let mut sorted: Vec<_> = entries.iter().collect();
        sorted.sort_by_key(|entry| entry.id);
        let mut columns = Self::default();
        for entry in sorted {
            columns.add(entry);
        }
        columns
    }

    fn add(&mut self, entry: &'w Entry) {
        self.id.push(&entry.id.as_bytes()[..]);
        self.at.push(entry.at.as_micros());
        self.act.push(i16::from(entry.act.number()));
        let bytes = entry.encode();
        self.node.push(entry.distinct_name(&bytes).into_bytes());
        self.bytes.push(bytes);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.id.is_empty()
    }

    pub(super) fn bound(&self) -> [&(dyn ToSql + Sync); 5] {
        [&self.id, &self.at, &self.act, &self.node, &self.bytes]
    }
}
