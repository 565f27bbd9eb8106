//! The happy path, appended: fresh reservations and their answers, without an index over ids in the file.
//!
//! Most rows are reserved once, completed once and then only looked at. Two tables take them, in order of time: `record_reserved`, one blob a
//! commit, and `record_settled`. Everything else is in `record`, and whatever leaves the happy path is moved there, in the transaction that makes
//! it leave. Which ids the two tables have is kept in memory, by every process for itself.
//!
//! **Invariants**
//! - An id is in one place: in flight (`record_reserved`), in `record_settled`, or in `record`.
//! - The memory is at a *generation*: what the file had after a certain commit. Each commit that changes the two tables raises the file's. A
//!   decision is made inside `BEGIN IMMEDIATE`, by a memory that is at the file's generation; if it is behind, because another process
//!   has committed, it catches up first. So what admits a key is the file, and the memory only says where to look in it.
//! - The memory changes after `COMMIT` has returned, and by what is in the file; a commit that failed changes nothing in it, and whether it
//!   landed all the same shows in the file's generation.
//! - Whoever reads takes the memory before the snapshot: the memory is then never ahead of it, and catches up where it is behind.

use std::sync::{Arc, PoisonError, RwLock};

use oncegate_core::identity::RecordId;
use rusqlite::{Connection, Transaction, params};

use super::error::Failure;
use super::statements;

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
pub(super) const LEDGER: &str =
    "SELECT generation, arrived, settled, (SELECT max(seq) FROM record) FROM record_reserved WHERE seq = 0";
const KEEP_LEDGER: &str =
    "UPDATE record_reserved SET generation = ?1, arrived = ?2, settled = ?3 WHERE seq = 0";

/// Where the file stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ledger {
    generation: i64,
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
                generation: row.get(0)?,
                arrived: arrived.max(last.unwrap_or(0)),
                settled: row.get(2)?,
                has_records: last.is_some(),
            })
        };
        Ok(statement.query_row([], ledger)?)
    }

    pub(super) const fn generation(&self) -> i64 {
        self.generation
    }

    fn keep(&self, connection: &Connection) -> Result<(), Failure> {
        let bound = params![self.generation, self.arrived, self.settled];
        connection.prepare_cached(KEEP_LEDGER)?.execute(bound)?;
        Ok(())
    }
}

/// What is in `record_reserved` and in `record_settled`, as of a generation.
#[derive(Debug, Default)]
pub(super) struct Memory {
    /// Nothing while it is changing: what a panic or an error leaves behind is thrown away.
    generation: Option<i64>,
    /// Places of `record_settled` before this one are known.
    settled: i64,
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
    /// Then.
    pub(super) generation: i64,
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

    /// The generation at which neither of the two tables has it, if that is what is known; and the next place in `record_settled`.
    fn lacks(&self, id: RecordId) -> Option<Lacks> {
        match self.find(id) {
            Found::Elsewhere => Some(Lacks { generation: self.generation?, next: self.settled }),
            Found::InFlight(_) | Found::SettledAt(_) => None,
        }
    }

    fn is_at(&self, ledger: &Ledger) -> bool {
        self.generation == Some(ledger.generation)
    }

    /// Brings it to where the file is, by the transaction that `connection` is in.
    fn catch_up(&mut self, connection: &Connection, ledger: &Ledger) -> Result<(), Failure> {
        if self.is_at(ledger) {
            return Ok(());
        }
        let before = self.generation.take();
        if before.is_none_or(|before| before > ledger.generation) || self.settled > ledger.settled {
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
        let Self { ids, reserved, .. } = self;
        reserved.reload(connection, |id| {
            let is_settled = match ids.get(id) {
                Some(seq) => settled::head(connection, seq, id)?.is_some(),
                None => false,
            };
            Ok(is_settled || (ledger.has_records && statements::find(connection, id)?.is_some()))
        })?;
        self.generation = Some(ledger.generation);
        Ok(())
    }

    /// Takes note of a commit that has returned. If it is not where that commit began, it has caught up with it already, or will.
    fn keep(&mut self, changed: Changed) {
        if self.generation != Some(changed.from) {
            return;
        }
        let to = changed.to;
        self.generation = None;
        self.settled = changed.settled;
        changed.apply(&mut self.ids, &mut self.reserved);
        self.generation = Some(to);
    }

    /// Takes note of a row that a caller's transaction has appended at the next place, and committed. As [`Memory::keep`].
    fn keep_joined(&mut self, id: RecordId, from: i64) {
        if self.generation != Some(from) {
            return;
        }
        self.generation = None;
        self.ids.insert(id, self.settled);
        self.settled += 1;
        self.generation = Some(from + 1);
    }

    #[cfg(test)]
    fn ids(&self) -> &Ids {
        &self.ids
    }
}

/// The memory of one store, which its writer and its readers share.
#[derive(Clone, Debug, Default)]
pub(super) struct Shared(Arc<RwLock<Memory>>);

impl Shared {
    /// Runs `job` by a memory that is at the file's generation, in the transaction of a writer: nobody else can commit.
    pub(super) fn deciding<T>(
        &self,
        connection: &Connection,
        job: impl FnOnce(&Memory, Ledger) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let ledger = Ledger::read(connection)?;
        loop {
            let memory = self.0.read().unwrap_or_else(PoisonError::into_inner);
            if memory.is_at(&ledger) {
                return job(&memory, ledger);
            }
            drop(memory);
            self.0.write().unwrap_or_else(PoisonError::into_inner).catch_up(connection, &ledger)?;
        }
    }

    /// A generation at which neither of the two tables had it. Whoever finds the file at that generation, and nobody else able to write, need not
    /// look for it.
    pub(super) fn lacks(&self, id: RecordId) -> Option<Lacks> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).lacks(id)
    }

    /// After `COMMIT`.
    pub(super) fn keep(&self, changed: Option<Changed>) {
        if let Some(changed) = changed {
            self.0.write().unwrap_or_else(PoisonError::into_inner).keep(changed);
        }
    }

    /// The same, of a caller's transaction that has appended one row at this generation.
    pub(super) fn keep_joined(&self, id: RecordId, from: i64) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).keep_joined(id, from);
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
            let memory = self.0.read().unwrap_or_else(PoisonError::into_inner);
            let tx = connection.unchecked_transaction()?;
            let ledger = Ledger::read(&tx)?;
            if memory.is_at(&ledger) {
                return Ok((tx, ledger, look(&memory)));
            }
        }
        let mut memory = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let tx = connection.unchecked_transaction()?;
        let ledger = Ledger::read(&tx)?;
        memory.catch_up(&tx, &ledger)?;
        let looked = look(&memory);
        Ok((tx, ledger, looked))
    }
}
