//! A batch inside the transaction of the file's one writer.

use std::sync::Arc;

use oncegate_core::time::{Timestamp, micros};
use oncegate_store::{Change, Outcome, Write};
use rusqlite::Connection;

use super::error::Failure;
use super::statements::{Table, read_one, remove};
use super::{removed, trail};

/// Applies a batch inside the transaction that `connection` is in, at the store's time `now`.
pub(super) fn apply_in(
    connection: &Connection,
    batch: &[Write],
    now: Timestamp,
) -> Result<Vec<Outcome>, Failure> {
    let mut table = Table::prepare(connection)?;
    batch.iter().map(|write| apply(connection, &mut table, write, now)).collect()
}

fn apply(
    connection: &Connection,
    table: &mut Table<'_>,
    write: &Write,
    now: Timestamp,
) -> Result<Outcome, Failure> {
    let id = write.id();
    let is_applied = match &write.change {
        Change::Insert(record) => table.insert(record)?,
        Change::Swap { expect, record } => table.swap(*expect, record)?,
        Change::Remove { expect, grace, is_remembered, .. } => {
            let before = now.as_micros().saturating_sub(micros(*grace));
            let is_removed = remove(connection, id, *expect, before)?;
            if is_removed && *is_remembered {
                removed::remember(connection, id, now)?;
            }
            is_removed
        }
    };
    if is_applied {
        if let Some(entry) = &write.entry {
            trail::tell(connection, entry)?;
        }
        return Ok(Outcome::Applied);
    }
    Ok(match read_one(connection, id)? {
        Ok(current) => Outcome::Refused { current: current.map(Arc::new) },
        Err(problem) => Outcome::Unreadable { problem: problem.to_string() },
    })
}
