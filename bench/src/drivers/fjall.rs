//! The fallback: an LSM tree, if no SQLite layout had been fast enough.
//!
//! Two keyspaces: the record by id, and the due index. Insert-if-absent and compare-and-swap are reads
//! before the write, which is sound only because fjall admits one process and this is its one writer.

use fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode};

use crate::Outcome;
use crate::options::Options;
use crate::rows::{COMPLETED, IN_PROGRESS, Row, RowMaker};
use crate::traffic::{self, Load, Subject};

/// One database directory.
pub(crate) struct Fjall {
    database: Database,
    record: Keyspace,
    due: Keyspace,
    durability: Option<PersistMode>,
}

impl Fjall {
    /// A directory with `options.rows` completed rows, made if it is missing.
    pub(crate) fn filled(options: &Options) -> Outcome<Self> {
        let path = options.dir.join(format!("fjall-{}", options.rows));
        let fresh = !path.exists();
        let database = Database::builder(&path).cache_size(64 << 20).open()?;
        let record = database.keyspace("record", KeyspaceCreateOptions::default)?;
        let due = database.keyspace("due", KeyspaceCreateOptions::default)?;
        let mut this = Self { database, record, due, durability: None };
        if fresh {
            traffic::run(&mut this, &mut RowMaker::new(1), Load { batch: 8192, requests: options.rows })?;
        }
        this.durability = Some(PersistMode::SyncData);
        Ok(this)
    }
}

impl Subject for Fjall {
    fn reserve(&mut self, rows: &mut [Row]) -> Outcome {
        let mut batch = self.database.batch().durability(self.durability);
        for row in rows {
            if self.record.contains_key(row.id)? {
                return Err("a fresh key was already there".into());
            }
            batch.insert(&self.record, row.id, encode(row, IN_PROGRESS));
            batch.insert(&self.due, due_key(row.lease_until, row), []);
        }
        Ok(batch.commit()?)
    }

    fn settle(&mut self, rows: &[Row]) -> Outcome {
        let mut batch = self.database.batch().durability(self.durability);
        for row in rows {
            let held = self.record.get(row.id)?.ok_or("the row is gone")?;
            if held.get(..8) != Some(row.version.to_be_bytes().as_slice()) {
                return Err("the version had moved".into());
            }
            batch.insert(&self.record, row.id, encode(row, COMPLETED));
            batch.remove(&self.due, due_key(row.lease_until, row));
            batch.insert(&self.due, due_key(row.expires_at, row), []);
        }
        Ok(batch.commit()?)
    }
}

fn due_key(at: i64, row: &Row) -> [u8; 24] {
    let mut key = [0; 24];
    key[..8].copy_from_slice(&at.to_be_bytes());
    key[8..].copy_from_slice(&row.id);
    key
}

/// Version first; the rest in no particular order, because nothing here reads it.
fn encode(row: &Row, state: i64) -> Vec<u8> {
    let settled = state == COMPLETED;
    let mut bytes = Vec::with_capacity(640);
    bytes.extend(if settled { row.settled_at } else { row.version }.to_be_bytes());
    for number in [row.version, row.lease_until, row.attempt_deadline, row.created_at, row.created_at] {
        bytes.extend(number.to_be_bytes());
    }
    if settled {
        bytes.extend(row.settled_at.to_be_bytes());
        bytes.extend(row.expires_at.to_be_bytes());
    }
    for text in [row.scope.as_str(), row.key.as_str(), "POST /payments"] {
        bytes.extend(text.as_bytes());
    }
    bytes.extend(row.life);
    bytes.extend(row.fingerprint);
    bytes.extend(row.token);
    // state, fp_version, attempts, tries, parked and the six frozen terms.
    bytes.extend([0; 16]);
    if settled {
        bytes.extend(&row.answer);
    }
    bytes
}
