//! The happy path, appended: fresh reservations and their answers, without an index over ids in the file.
//!
//! Most rows are reserved once, completed once and then only looked at. Two tables take them, in order of time: `record_reserved`, one blob a
//! commit, and `record_settled`. Everything else is in `record`, and whatever leaves the happy path is moved there, in the transaction that makes
//! it leave. Which ids the two tables have is kept in memory, by every process for itself.
//!
//! **Invariants**
//! - An id is in one place: in flight (`record_reserved`), in `record_settled`, or in `record`.
//! - The memory is at a *stamp* of the file: a generation, which each commit that changes the two
//!   tables raises, and a random mark, which each of them changes. A decision is made inside
//!   `BEGIN IMMEDIATE`, by a memory that is at the file's stamp. If another process has committed,
//!   the memory catches up first. So what admits a key is the file, and the memory only says where
//!   to look in it.
//! - A restore takes the generation back, and later commits reach the same number again, but never
//!   the same mark. A generation below the memory's, or the same one under another mark, proves a
//!   restore: the store then refuses everything.
//! - A process also rewrites its watermark every few seconds, and that changes the stamp. So a
//!   restore that takes the watermark back leaves the file at another stamp than the memory, which
//!   checks the watermark whenever it catches up. A process that served nothing meanwhile notices
//!   too.
//! - The memory changes after `COMMIT` has returned, and by what is in the file; a commit that failed changes nothing in it, and whether it
//!   landed all the same shows in the file's stamp.
//! - Whoever reads takes the memory before the snapshot: the memory is then never ahead of it, and catches up where it is behind.

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock, RwLockWriteGuard};

use oncegate_core::identity::RecordId;
use oncegate_store::History;
use oncegate_store::history::{Expected, Watermark};
use rusqlite::{Connection, Transaction, params};

use super::error::Failure;
use super::{history, statements};

pub(super) mod change;
pub(super) mod due;
mod ids;
pub(super) mod packed;
pub(super) mod pages;
pub(super) mod reserved;
pub(super) mod settled;
#[cfg(test)]
mod tests;

use change::Changed;
use ids::Ids;
use reserved::{Held, Reserved};

/// The ledger; and the last row of `record`: if there is none, nobody need be looked for there.
pub(super) const LEDGER: &str = "SELECT generation, arrived, settled, (SELECT max(seq) FROM record), mark FROM record_reserved WHERE seq = 0";
const KEEP_LEDGER: &str =
    "UPDATE record_reserved SET generation = ?1, arrived = ?2, settled = ?3, mark = ?4 WHERE seq = 0";

/// Which commit the file, or a memory of it, is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    /// Raised by every batch that writes a row.
    pub(super) generation: i64,
    /// Random, and drawn anew by each of those commits: after a restore a generation can come
    /// again, a mark never does.
    pub(super) mark: i64,
}

impl Stamp {
    /// The stamp of the commit that follows this one.
    fn next(self) -> Result<Self, Failure> {
        Ok(Self { generation: self.generation + 1, mark: new_mark()? })
    }

    /// Whether a file at this stamp has lost the commit that `memory` is at.
    const fn is_restored_behind(self, memory: Self) -> bool {
        self.generation < memory.generation
            || (self.generation == memory.generation && self.mark != memory.mark)
    }
}

/// A mark that no other commit has.
pub(super) fn new_mark() -> Result<i64, Failure> {
    Ok(getrandom::u64()?.cast_signed())
}

/// The file was set back to an earlier state while this process had it open.
#[derive(Clone, Copy, Debug)]
pub(super) struct Restored;

impl fmt::Display for Restored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(oncegate_store::history::RESTORED)
    }
}

impl std::error::Error for Restored {}

/// Where the file stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ledger {
    stamp: Stamp,
    /// The last place in the order of arrival that was given away.
    arrived: i64,
    /// The next place in `record_settled`.
    pub(super) settled: i64,
    /// Whether `record` has rows.
    has_records: bool,
}

impl Ledger {
    pub(super) fn read(connection: &Connection) -> Result<Self, Failure> {
        let mut statement = connection.prepare_cached(LEDGER)?;
        let ledger = |row: &rusqlite::Row<'_>| {
            let (arrived, last): (i64, Option<i64>) = (row.get(1)?, row.get(3)?);
            Ok(Self {
                stamp: Stamp { generation: row.get(0)?, mark: row.get(4)? },
                arrived: arrived.max(last.unwrap_or(0)),
                settled: row.get(2)?,
                has_records: last.is_some(),
            })
        };
        Ok(statement.query_row([], ledger)?)
    }

    pub(super) const fn stamp(&self) -> Stamp {
        self.stamp
    }

    /// Draws the stamp of this commit, which changes none of the two tables, and writes it.
    pub(super) fn restamp(mut self, connection: &Connection) -> Result<Stamp, Failure> {
        self.stamp = self.stamp.next()?;
        self.keep(connection)?;
        Ok(self.stamp)
    }

    fn keep(&self, connection: &Connection) -> Result<(), Failure> {
        let bound = params![self.stamp.generation, self.arrived, self.settled, self.stamp.mark];
        connection.prepare_cached(KEEP_LEDGER)?.execute(bound)?;
        Ok(())
    }
}

/// What is in `record_reserved` and in `record_settled`, as of a stamp.
#[derive(Debug, Default)]
pub(super) struct Memory {
    /// Nothing while it is changing: what a panic or an error leaves behind is thrown away.
    at: Option<Stamp>,
    /// The file has lost the commit that this was at: nothing is decided by it any more.
    is_restored: bool,
    /// Places of `record_settled` before this one are known.
    settled: i64,
    /// The last row that was seen there: its place and its id.
    last: Option<(i64, RecordId)>,
    ids: Ids,
    pub(super) reserved: Reserved,
}

/// Where a row of the two tables is.
#[derive(Clone, Debug)]
pub(super) enum Found {
    InFlight(Held),
    /// It may be there; whoever looks will see.
    SettledAt(i64),
    /// In `record`, or nowhere.
    Elsewhere,
}

/// Neither of the two tables has an id.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lacks {
    /// As of this mark of the file.
    pub(super) mark: i64,
    /// What `record_settled` had then as its next place.
    pub(super) next: i64,
}

impl Memory {
    pub(super) fn find(&self, id: RecordId) -> Found {
        match self.reserved.get(id) {
            Some(held) => Found::InFlight(held.clone()),
            None => self.ids.get(id).map_or(Found::Elsewhere, Found::SettledAt),
        }
    }

    /// If it is known that neither of the two tables has it: the mark at which that holds, and the
    /// next place in `record_settled`.
    fn lacks(&self, id: RecordId) -> Option<Lacks> {
        if self.reserved.damaged().is_some() {
            return None;
        }
        match self.find(id) {
            Found::Elsewhere => Some(Lacks { mark: self.at?.mark, next: self.settled }),
            Found::InFlight(_) | Found::SettledAt(_) => None,
        }
    }

    fn is_at(&self, ledger: &Ledger) -> bool {
        self.at == Some(ledger.stamp)
    }

    /// Brings it to where the file is, by the transaction that `connection` is in.
    fn catch_up(
        &mut self,
        connection: &Connection,
        ledger: &Ledger,
        watermark: &CheckedWatermark<'_>,
    ) -> Result<(), Failure> {
        if self.is_at(ledger) {
            return Ok(());
        }
        if self.is_restored
            || self.at.is_some_and(|at| ledger.stamp.is_restored_behind(at))
            || watermark.is_lost(connection)?
        {
            *self = Self { is_restored: true, ..Self::default() };
            return Err(Restored.into());
        }
        if self.at.take().is_none() || self.settled > ledger.settled || !self.has_last(connection)? {
            *self = Self::default();
        }
        // What was removed at the front, by whomever, need not be remembered.
        let first = settled::first(connection)?.unwrap_or(ledger.settled);
        self.ids.drop_before(first);
        settled::read_ids(
            connection,
            self.settled.max(first - first % ids::RUN),
            ledger.settled,
            &mut self.ids,
        )?;
        self.settled = ledger.settled;
        self.last = settled::last(connection)?;
        let Self { ids, reserved, .. } = self;
        reserved.reload(connection, |id| {
            let is_settled = match ids.get(id) {
                Some(seq) => settled::head(connection, seq, id)?.is_some(),
                None => false,
            };
            Ok(is_settled || (ledger.has_records && statements::find(connection, id)?.is_some()))
        })?;
        self.at = Some(ledger.stamp);
        Ok(())
    }

    /// Whether `record_settled` still has the last row that is known of it. Then it has all before it, too; if
    /// not, the row was moved or removed, or the file was restored and has gone on since.
    fn has_last(&self, connection: &Connection) -> Result<bool, Failure> {
        match self.last {
            Some((seq, id)) => Ok(settled::head(connection, seq, id)?.is_some()),
            None => Ok(self.settled == 0),
        }
    }

    /// Takes note of a commit that has returned. If it is not where that commit began, it has caught up with it already, or will.
    fn keep(&mut self, changed: Changed) {
        if self.at != Some(changed.from) {
            return;
        }
        let to = changed.to;
        self.at = None;
        self.settled = changed.settled;
        self.last = changed.last_settled().or(self.last);
        changed.apply(&mut self.ids, &mut self.reserved);
        self.at = Some(to);
    }

    /// Takes note of a row that a caller's transaction has appended at the next place, and committed. As [`Memory::keep`].
    fn keep_joined(&mut self, id: RecordId, from: i64, to: i64) {
        let Some(at) = self.at.take_if(|at| at.mark == from) else { return };
        self.ids.insert(id, self.settled);
        self.last = Some((self.settled, id));
        self.settled += 1;
        self.at = Some(Stamp { generation: at.generation + 1, mark: to });
    }

    #[cfg(test)]
    fn ids(&self) -> &Ids {
        &self.ids
    }
}

/// The watermark, as it must be in every transaction that begins after this was taken.
struct CheckedWatermark<'w> {
    watermark: &'w Watermark,
    /// `None` before the first one was written.
    expected: Option<Expected>,
}

impl CheckedWatermark<'_> {
    fn is_lost(&self, connection: &Connection) -> Result<bool, Failure> {
        let Some(expected) = self.expected else { return Ok(false) };
        let found = history::watermark(connection, expected.node)?;
        Ok(self.watermark.judge(expected, found) == History::Lost)
    }
}

/// The memory of one store, which its writer and its readers share; and the store's watermark.
#[derive(Clone, Debug, Default)]
pub(super) struct Shared {
    memory: Arc<RwLock<Memory>>,
    watermark: Arc<Watermark>,
}

impl Shared {
    pub(super) fn watermark(&self) -> &Watermark {
        &self.watermark
    }

    /// Before a transaction begins, or inside the one of the file's only writer.
    fn checked_watermark(&self) -> CheckedWatermark<'_> {
        CheckedWatermark { watermark: &self.watermark, expected: self.watermark.expected() }
    }

    /// Runs `job` with a memory that is at the file's stamp, in a writer's transaction: no other
    /// writer can commit.
    pub(super) fn deciding<T>(
        &self,
        connection: &Connection,
        job: impl FnOnce(&Memory, Ledger) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let watermark = self.checked_watermark();
        let ledger = Ledger::read(connection)?;
        loop {
            let memory = self.memory.read().unwrap_or_else(PoisonError::into_inner);
            if memory.is_at(&ledger) {
                return job(&memory, ledger);
            }
            drop(memory);
            self.writing().catch_up(connection, &ledger, &watermark)?;
        }
    }

    /// A mark at which neither of the two tables had it. A transaction that finds the file at that
    /// mark, while no other can write, need not look for it.
    pub(super) fn lacks(&self, id: RecordId) -> Option<Lacks> {
        self.memory.read().unwrap_or_else(PoisonError::into_inner).lacks(id)
    }

    /// After `COMMIT`.
    pub(super) fn keep(&self, changed: Option<Changed>) {
        if let Some(changed) = changed {
            self.writing().keep(changed);
        }
    }

    /// The same, of a caller's transaction that has appended one row at the mark `from`, and set
    /// the mark `to`.
    pub(super) fn keep_joined(&self, id: RecordId, from: i64, to: i64) {
        self.writing().keep_joined(id, from, to);
    }

    /// Takes note of a commit that changed the stamp and none of the two tables.
    pub(super) fn keep_stamp(&self, from: Stamp, to: Stamp) {
        let mut memory = self.writing();
        if memory.at == Some(from) {
            memory.at = Some(to);
        }
    }

    fn writing(&self) -> RwLockWriteGuard<'_, Memory> {
        self.memory.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks the memory, and then the file as it was at that very moment.
    pub(super) fn looking<L, T>(
        &self,
        connection: &Connection,
        look: impl FnOnce(&Memory) -> L,
        read: impl FnOnce(&Transaction<'_>, Ledger, L) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let (tx, ledger, looked) = self.snapshot(connection, look)?;
        let done = read(&tx, ledger, looked)?;
        tx.finish()?;
        Ok(done)
    }

    fn snapshot<'c, L>(
        &self,
        connection: &'c Connection,
        look: impl FnOnce(&Memory) -> L,
    ) -> Result<(Transaction<'c>, Ledger, L), Failure> {
        {
            let memory = self.memory.read().unwrap_or_else(PoisonError::into_inner);
            let tx = connection.unchecked_transaction()?;
            let ledger = Ledger::read(&tx)?;
            if memory.is_at(&ledger) {
                return Ok((tx, ledger, look(&memory)));
            }
        }
        let mut memory = self.writing();
        let watermark = self.checked_watermark();
        let tx = connection.unchecked_transaction()?;
        let ledger = Ledger::read(&tx)?;
        memory.catch_up(&tx, &ledger, &watermark)?;
        let looked = look(&memory);
        Ok((tx, ledger, looked))
    }
}
