//! A batch as the arrays that statements take.
//!
//! **Invariant:** in each statement every key occurs once, and keys are in order; inserts come before settlements, these before
//! other swaps, and removals last. Two batches of one kind of write then wait for each other in one direction only. (One that
//! settles what another moves on, and the other way round, or that names a key twice, may deadlock; the server notices, and the
//! batch is tried again.)

use std::collections::HashMap;
use std::time::Duration;

use oncegate_core::audit::Entry;
use oncegate_core::identity::RecordId;
use oncegate_core::record::{Record, StateKind};
use oncegate_core::time::{Timestamp, micros};
use oncegate_store::Change;
use oncegate_store::Write;
use tokio_postgres::types::ToSql;

use super::row::{attention_at, doubt_since, state_column};

/// Writes that name each key once.
#[derive(Default)]
pub(super) struct Wave<'w> {
    pub(super) insert: Rows<'w>,
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
    waves
}

impl<'w> Wave<'w> {
    fn add(&mut self, place: usize, write: &'w Write) {
        let entries = match &write.change {
            Change::Insert(record) => self.insert.add(place, 0, record),
            Change::Swap { expect, record } if expires_late(record) => {
                self.settle.add(place, expect.as_raw(), record)
            }
            Change::Swap { expect, record } if record.state.kind() == StateKind::Completed => {
                self.settle_over.add(place, expect.as_raw(), record)
            }
            Change::Swap { expect, record } => self.move_on.add(place, expect.as_raw(), record),
            Change::Remove { id, expect, grace } => {
                self.remove.places.push((place, *id));
                self.remove.id.push(write_id(write));
                self.remove.expect.push(expect.as_raw());
                self.remove.grace.push(micros(*grace));
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
    attention_at: Vec<Option<i64>>,
    expires_at: Vec<Option<i64>>,
    created_at: Vec<i64>,
    resumable: Vec<bool>,
    scope: Vec<&'w str>,
    key: Vec<&'w str>,
    operation: Vec<&'w str>,
    rest: Vec<Vec<u8>>,
    reference: Vec<Option<&'w [u8]>>,
    doubt_since: Vec<Option<i64>>,
    answer: Vec<Option<Vec<u8>>>,
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
        self.state.push(state_column(record.state.kind()));
        self.due_at.push(record.due_at().map(Timestamp::as_micros));
        self.attention_at.push(attention_at(record));
        self.expires_at.push(record.expires_at.map(Timestamp::as_micros));
        self.created_at.push(record.created_at.as_micros());
        self.resumable.push(record.is_resumable());
        self.scope.push(record.address.scope.as_str());
        self.key.push(record.address.key.as_str());
        self.operation.push(record.operation.as_str());
        self.rest.push(record.encode_row());
        self.reference.push(record.provider_reference.as_deref().map(str::as_bytes));
        self.doubt_since.push(doubt_since(record));
        self.answer.push(record.encode_answer());
        &mut self.entries
    }

    /// New leases, and nothing else.
    pub(super) fn are_reserves(&self) -> bool {
        let in_progress = state_column(StateKind::InProgress);
        self.state.iter().all(|state| *state == in_progress)
            && self.expires_at.iter().all(Option::is_none)
            && !self.resumable.contains(&true)
            && self.reference.iter().all(Option::is_none)
    }

    /// When to look at the first of them.
    pub(super) fn first_due_at(&self) -> i64 {
        let moments = self
            .due_at
            .iter()
            .zip(&self.created_at)
            .map(|(due_at, created_at)| due_at.unwrap_or(*created_at));
        moments.min().unwrap_or(0)
    }

    /// What the reserve binds, before [`Rows::first_due_at`].
    pub(super) fn reserved(&self) -> [&(dyn ToSql + Sync); 9] {
        [
            &self.place,
            &self.id,
            &self.version,
            &self.due_at,
            &self.created_at,
            &self.scope,
            &self.key,
            &self.operation,
            &self.rest,
        ]
    }

    /// What the insert binds, before [`Rows::first_due_at`].
    pub(super) fn inserted(&self) -> [&(dyn ToSql + Sync); 16] {
        [
            &self.place,
            &self.id,
            &self.version,
            &self.state,
            &self.due_at,
            &self.attention_at,
            &self.expires_at,
            &self.created_at,
            &self.resumable,
            &self.scope,
            &self.key,
            &self.operation,
            &self.rest,
            &self.reference,
            &self.doubt_since,
            &self.answer,
        ]
    }

    /// What the usual settle binds.
    pub(super) fn settled(&self) -> [&(dyn ToSql + Sync); 9] {
        [
            &self.id,
            &self.expect,
            &self.version,
            &self.due_at,
            &self.created_at,
            &self.operation,
            &self.rest,
            &self.reference,
            &self.answer,
        ]
    }

    /// What a swap binds.
    pub(super) fn moved(&self) -> [&(dyn ToSql + Sync); 13] {
        [
            &self.id,
            &self.expect,
            &self.version,
            &self.state,
            &self.due_at,
            &self.attention_at,
            &self.expires_at,
            &self.created_at,
            &self.resumable,
            &self.operation,
            &self.rest,
            &self.reference,
            &self.doubt_since,
        ]
    }

    /// The same with answers.
    pub(super) fn settled_over(&self) -> [&(dyn ToSql + Sync); 14] {
        let [
            id,
            expect,
            version,
            state,
            due,
            attention,
            expires,
            created,
            resumable,
            operation,
            rest,
            reference,
            doubt,
        ] = self.moved();
        let answer = &self.answer;
        [
            id, expect, version, state, due, attention, expires, created, resumable, operation, rest,
            reference, doubt, answer,
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
    pub(super) entries: Entries<'w>,
}

impl Removals<'_> {
    pub(super) fn bound(&self) -> [&(dyn ToSql + Sync); 3] {
        [&self.id, &self.expect, &self.grace]
    }
}

/// Entries of the audit trail, column by column.
#[derive(Default)]
pub(super) struct Entries<'w> {
    id: Vec<&'w [u8]>,
    at: Vec<i64>,
    act: Vec<i16>,
    node: Vec<&'w [u8]>,
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
        self.node.push(entry.node.as_bytes());
        self.bytes.push(entry.encode());
    }

    pub(super) fn is_empty(&self) -> bool {
        self.id.is_empty()
    }

    pub(super) fn bound(&self) -> [&(dyn ToSql + Sync); 5] {
        [&self.id, &self.at, &self.act, &self.node, &self.bytes]
    }
}
