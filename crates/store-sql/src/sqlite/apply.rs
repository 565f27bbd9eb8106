//! A batch inside the transaction of the file's one writer: which table each write is about, and what becomes of it.
//!
//! The happy path (a fresh reservation, and its answer) goes to the two tables of [`append`](super::append). Everything else is about
//! `record`; a row that leaves the happy path is moved there by the write that makes it leave.

use std::sync::Arc;
use std::time::Duration;

use oncegate_core::identity::{RecordId, Version};
use oncegate_core::record::Record;
use oncegate_core::time::{Timestamp, micros};
use oncegate_store::{Change, Outcome, Write};
use rusqlite::Connection;

use super::append::Shared;
use super::append::change::{Append, Changed, Place};
use super::append::packed::{is_reservation, is_settlement};
use super::append::reserved::{Held, Row};
use super::append::settled;
use super::error::{Contradiction, Failure, PerhapsReserved, is_rejection};
use super::places::Places;
use super::removed;
use super::statements::{Table, find, read_one};
use super::trail;

/// So many rows that have been in flight for long are moved by one batch.
const MOVED_MAX: usize = 128;

/// Applies a batch inside the transaction that `connection` is in, at the store's time `now`; what was in flight for longer than `age` goes to
/// `record`. What has changed is the memory's to keep once it is committed.
///
/// What [`oncegate_store::Store::apply`] does between `BEGIN IMMEDIATE` and `COMMIT`.
pub(super) fn apply_in(
    connection: &Connection,
    places: &mut Places,
    shared: &Shared,
    age: Duration,
    (batch, now): (&[Write], Timestamp),
) -> Result<(Vec<Outcome>, Option<Changed>), Failure> {
    shared.deciding(connection, |memory, ledger| {
        let append = Append::begin(connection, memory, ledger, batch.len())?;
        let mut applying = Batch { connection, append, table: Table::prepare(connection, places)? };
        applying.move_old(age)?;
        let outcomes: Result<_, _> = batch.iter().map(|write| applying.apply(write, now)).collect();
        Ok((outcomes?, applying.append.finish()?))
    })
}

struct Batch<'c> {
    connection: &'c Connection,
    append: Append<'c>,
    table: Table<'c>,
}

/// What became of a write before its outcome is told.
enum Done {
    Applied,
    /// By the row that is here.
    Refused(Place),
    /// By a damaged row of reservations, which may name this key.
    Perhaps(PerhapsReserved),
}

impl Batch<'_> {
    fn apply(&mut self, write: &Write, now: Timestamp) -> Result<Outcome, Failure> {
        let id = write.id();
        let done = match &write.change {
            Change::Insert(record) => self.insert(record)?,
            Change::Swap { expect, record } => self.swap(*expect, record)?,
            Change::Remove { expect, grace, is_remembered, .. } => {
                let before = now.as_micros().saturating_sub(micros(*grace));
                let done = self.remove(id, *expect, before)?;
                if *is_remembered && matches!(done, Done::Applied) {
                    removed::remember(self.connection, id, now)?;
                }
                done
            }
        };
        match done {
            Done::Applied => {
                self.append.wrote();
                if let Some(entry) = &write.entry {
                    trail::tell(self.connection, entry)?;
                }
                Ok(Outcome::Applied)
            }
            Done::Refused(place) => self.refused(id, place),
            Done::Perhaps(problem) => Ok(Outcome::Unreadable { problem: problem.to_string() }),
        }
    }

    fn insert(&mut self, record: &Arc<Record>) -> Result<Done, Failure> {
        let place = self.append.place(record.id)?;
        if !matches!(place, Place::Elsewhere) {
            return Ok(Done::Refused(place));
        }
        if let Some(problem) = self.append.damaged() {
            let is_there = find(self.connection, record.id)?.is_some();
            return Ok(if is_there { Done::Refused(place) } else { Done::Perhaps(problem) });
        }
        if is_reservation(record) {
            if self.append.has_records() && find(self.connection, record.id)?.is_some() {
                return Ok(Done::Refused(place));
            }
            self.append.reserve(record);
            return Ok(Done::Applied);
        }
        let seq = self.append.arrive_in_record();
        Ok(if self.table.insert(record, seq)? { Done::Applied } else { Done::Refused(place) })
    }

    fn swap(&mut self, expect: Version, record: &Record) -> Result<Done, Failure> {
        let place = self.append.place(record.id)?;
        match &place {
            Place::InFlight(Held { arrival, row: Row::Readable(current) }) if current.version == expect => {
                if is_settlement(record) {
                    self.append.settle(*arrival, record)?;
                } else {
                    self.append.leave_flight(record.id);
                    self.put(record, *arrival)?;
                }
                Ok(Done::Applied)
            }
            Place::Settled(head) if head.version == expect => {
                self.append.leave_settled(record.id, *head)?;
                self.put(record, head.arrival)?;
                Ok(Done::Applied)
            }
            Place::Elsewhere if self.append.has_records() && self.table.swap(expect, record)? => {
                Ok(Done::Applied)
            }
            Place::InFlight(_) | Place::Settled(_) | Place::Elsewhere => Ok(Done::Refused(place)),
        }
    }

    fn remove(&mut self, id: RecordId, expect: Version, before: i64) -> Result<Done, Failure> {
        let place = self.append.place(id)?;
        let is_applied = match &place {
            Place::InFlight(_) => false,
            Place::Settled(head) => self.append.remove(id, *head, expect, before)?,
            Place::Elsewhere => self.table.remove(id, expect, before)?,
        };
        if !is_applied {
            return Ok(Done::Refused(place));
        }
        self.append.strip(id)?;
        Ok(Done::Applied)
    }

    /// Into `record`, at its place in the order of arrival. It was not there: an id is in one place.
    fn put(&mut self, record: &Record, arrival: i64) -> Result<(), Failure> {
        if self.table.insert(record, arrival)? {
            return Ok(());
        }
        let words = format!("{} is in two places; the file was changed by something else", record.id);
        Err(Contradiction(words).into())
    }

    /// Long in flight is no longer the happy path; and the blobs stay few.
    fn move_old(&mut self, age: Duration) -> Result<(), Failure> {
        for (id, held) in self.append.older_than(age, MOVED_MAX) {
            let Row::Readable(record) = &held.row else { continue };
            match self.put(record, held.arrival) {
                Ok(()) => self.append.leave_flight(id),
                // No write of this batch is about it, so none may fail for it: it stays where it is.
                Err(failure) if is_rejection(&failure) && !self.connection.is_autocommit() => {
                    tracing::debug!(
                        record = %id,
                        %failure,
                        "the database rejected moving a reservation; it stays in record_reserved"
                    );
                }
                Err(failure) => return Err(failure),
            }
        }
        Ok(())
    }

    fn refused(&self, id: RecordId, place: Place) -> Result<Outcome, Failure> {
        let current = match place {
            Place::InFlight(Held { row: Row::Readable(current), .. }) => {
                return Ok(Outcome::Refused { current: Some(current) });
            }
            Place::InFlight(Held { row: Row::Unreadable { problem, .. }, .. }) => Err(problem.into()),
            Place::Settled(head) => {
                settled::read(self.connection, head.seq, id)?.transpose().map_err(Failure::from)
            }
            Place::Elsewhere => read_one(self.connection, id)?,
        };
        Ok(match current {
            Ok(None) if let Some(problem) = self.append.damaged() => {
                Outcome::Unreadable { problem: problem.to_string() }
            }
            Ok(current) => Outcome::Refused { current: current.map(Arc::new) },
            Err(problem) => Outcome::Unreadable { problem: problem.to_string() },
        })
    }
}
