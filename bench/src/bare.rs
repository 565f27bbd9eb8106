//! The bare loop: a layout driven by hand, with nothing between it and rusqlite.
//!
//! It is the yardstick for the real store, which adds queueing, decisions and decoding on top.

use std::path::Path;

use rusqlite::{CachedStatement, Connection, Statement};

use crate::Outcome;
use crate::layouts::{Answer, Insert, Layout, SettleBy, Unique};
use crate::rows::{COMPLETED, IN_PROGRESS, Row, RowMaker};
use crate::traffic::{self, Load, Sample, Subject};

/// Rows of one multi-row insert.
const MULTI_ROWS: usize = 16;

/// One writer connection over one file.
pub(crate) struct Bare {
    connection: Connection,
    layout: Layout,
    insert: String,
    insert_many: String,
    settle: String,
}

/// When SQLite forces bytes to the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Durability {
    /// WAL and an fsync per commit: what the product promises.
    Full,
    /// None at all, for filling a file quickly.
    Off,
}

/// Runs the bare loop of a layout once, on the file at `path`, made if it is missing.
pub(crate) fn run_at(path: &Path, layout: Layout, maker: &mut RowMaker, load: Load) -> Outcome<Sample> {
    traffic::run(&mut Bare::open(path, layout, Durability::Full)?, maker, load)
}

impl Bare {
    /// Opens the file and makes its tables if it has none.
    pub(crate) fn open(path: &Path, layout: Layout, durability: Durability) -> Outcome<Self> {
        let connection = Connection::open(path)?;
        connection.set_prepared_statement_cache_capacity(16);
        connection.pragma_update(None, "page_size", layout.page_bytes)?;
        let (journal, synchronous, cache_kib) = match durability {
            Durability::Full => ("WAL", "FULL", i64::from(layout.cache_kib)),
            Durability::Off => ("OFF", "OFF", 4 * 1024 * 1024),
        };
        connection.pragma_update(None, "journal_mode", journal)?;
        connection.pragma_update(None, "synchronous", synchronous)?;
        connection.pragma_update(None, "cache_size", -cache_kib)?;
        connection.pragma_update(None, "mmap_size", i64::from(layout.mmap_mib) << 20)?;
        connection.pragma_update(None, "wal_autocheckpoint", layout.checkpoint_pages())?;
        let tables: i64 = connection.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
        if tables == 0 {
            connection.execute_batch(&layout.ddl().join(";"))?;
        }
        Ok(Self {
            connection,
            layout,
            insert: layout.insert_sql(1),
            insert_many: layout.insert_sql(MULTI_ROWS),
            settle: layout.settle_sql(),
        })
    }

    /// The connection, for pragmas that only one experiment wants.
    pub(crate) fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Bytes of the file that are in use.
    pub(crate) fn bytes_used(&self) -> Outcome<i64> {
        let pragma = |name| self.connection.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
        Ok((pragma("page_count")? - pragma("freelist_count")?) * pragma("page_size")?)
    }

    fn insert_all(&self, rows: &mut [Row]) -> Outcome {
        match self.layout.insert {
            Insert::EachRow => self.insert_each(rows),
            Insert::SixteenRows => {
                let (many, rest) = rows.as_chunks_mut::<MULTI_ROWS>();
                let mut statement = self.connection.prepare_cached(&self.insert_many)?;
                for chunk in many {
                    self.insert_chunk(&mut statement, chunk)?;
                }
                self.insert_each(rest)
            }
        }
    }

    fn insert_each(&self, rows: &mut [Row]) -> Outcome {
        let mut statement = self.connection.prepare_cached(&self.insert)?;
        for row in rows {
            self.refuse_known_hash(row)?;
            self.insert_chunk(&mut statement, std::slice::from_mut(row))?;
        }
        Ok(())
    }

    fn insert_chunk(&self, statement: &mut CachedStatement<'_>, rows: &mut [Row]) -> Outcome {
        let mut next = Binder { statement, position: 0 };
        for row in rows.iter() {
            bind_row(&mut next, row)?;
            if self.layout.unique == Unique::Hash64 {
                next.bind(row.hash64())?;
            }
        }
        let inserted = statement.raw_execute()?;
        if inserted != rows.len() {
            return Err("a fresh key was already there".into());
        }
        let last = self.connection.last_insert_rowid();
        for (row, seq) in rows.iter_mut().rev().zip((0..=last).rev()) {
            row.seq = seq;
        }
        Ok(())
    }

    /// Without a unique index the transaction itself must look. It holds the write lock, so nobody can
    /// slip in between the look and the insert.
    fn refuse_known_hash(&self, row: &Row) -> Outcome {
        if self.layout.unique != Unique::Hash64 {
            return Ok(());
        }
        let mut look = self.connection.prepare_cached("SELECT 1 FROM record WHERE hash = ?1 AND id = ?2")?;
        if look.exists((row.hash64(), row.id))? {
            Err("a fresh key was already there".into())
        } else {
            Ok(())
        }
    }

    fn settle_all(&self, rows: &[Row]) -> Outcome {
        let mut statement = self.connection.prepare_cached(&self.settle)?;
        let mut answer = match self.layout.answer {
            Answer::Inline => None,
            Answer::Apart => {
                Some(self.connection.prepare_cached("INSERT INTO answer (seq, bytes) VALUES (?1, ?2)")?)
            }
        };
        for row in rows {
            bind_settle(&mut Binder { statement: &mut statement, position: 0 }, &self.layout, row)?;
            if statement.raw_execute()? != 1 {
                return Err("the version had moved".into());
            }
            if let Some(answer) = &mut answer {
                answer.execute((row.seq, row.answer.as_slice()))?;
            }
        }
        Ok(())
    }

    fn in_transaction(&self, work: impl FnOnce() -> Outcome) -> Outcome {
        self.connection.prepare_cached("BEGIN IMMEDIATE")?.raw_execute()?;
        // An error ends the experiment, so there is nothing to roll back.
        work()?;
        self.connection.prepare_cached("COMMIT")?.raw_execute()?;
        Ok(())
    }
}

impl Subject for Bare {
    fn reserve(&mut self, rows: &mut [Row]) -> Outcome {
        self.in_transaction(|| self.insert_all(rows))
    }

    fn settle(&mut self, rows: &[Row]) -> Outcome {
        self.in_transaction(|| self.settle_all(rows))
    }
}

/// Binds values to a statement's parameters in the order of their question marks.
struct Binder<'a, 'c> {
    statement: &'a mut Statement<'c>,
    position: usize,
}

impl Binder<'_, '_> {
    fn bind(&mut self, value: impl rusqlite::ToSql) -> Outcome {
        self.position += 1;
        Ok(self.statement.raw_bind_parameter(self.position, value)?)
    }
}

/// In the order of `layouts::INSERTED`.
fn bind_row(next: &mut Binder<'_, '_>, row: &Row) -> Outcome {
    next.bind(row.id)?;
    next.bind(row.scope.as_str())?;
    next.bind(row.key.as_str())?;
    next.bind(row.life)?;
    next.bind("POST /payments")?;
    next.bind(1)?; // fp_version
    next.bind(row.fingerprint)?;
    next.bind(IN_PROGRESS)?;
    next.bind(row.version)?;
    next.bind(row.version)?; // fence
    next.bind(row.token)?;
    next.bind(row.lease_until)?;
    next.bind(row.attempt_deadline)?;
    next.bind(1)?; // attempts
    next.bind(row.lease_until)?; // due_at
    next.bind(0)?; // tries
    next.bind(0)?; // parked
    next.bind(row.created_at)?;
    next.bind(row.created_at)?; // last_run_at
    next.bind(1)?; // crash
    next.bind(1)?; // after_retention
    next.bind(86_400)?; // retention
    next.bind(1) // execution
}

/// In the order of `Layout::settle_sql`.
fn bind_settle(next: &mut Binder<'_, '_>, layout: &Layout, row: &Row) -> Outcome {
    next.bind(COMPLETED)?;
    next.bind(row.settled_at)?; // version
    next.bind(row.expires_at)?; // due_at
    next.bind(row.settled_at)?;
    next.bind(row.expires_at)?;
    if layout.answer == Answer::Inline {
        next.bind(row.answer.as_slice())?;
    }
    match layout.settle_by {
        SettleBy::ScopeKey => {
            next.bind(row.scope.as_str())?;
            next.bind(row.key.as_str())?;
        }
        SettleBy::Id => next.bind(row.id)?,
        SettleBy::Hash64 => {
            next.bind(row.hash64())?;
            next.bind(row.id)?;
        }
        SettleBy::Seq => {
            next.bind(row.seq)?;
            next.bind(row.id)?;
        }
    }
    next.bind(row.version)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{Bare, Durability};
    use crate::layouts::{LAYOUTS, VARIANTS};
    use crate::rows::RowMaker;
    use crate::traffic::Subject;

    /// A layout that forgot to be unique, or to compare, would win every race here.
    #[test]
    fn every_layout_refuses_a_second_insert_and_a_stale_settle() {
        for layout in LAYOUTS.iter().chain(VARIANTS) {
            let open = || Bare::open(Path::new(":memory:"), *layout, Durability::Full).unwrap();
            let mut rows = RowMaker::new(1).batch(40);

            let mut bare = open();
            bare.reserve(&mut rows).unwrap();
            bare.settle(&rows).unwrap();
            assert!(bare.settle(&rows).is_err(), "{}: stale settle", layout.name);

            let mut bare = open();
            bare.reserve(&mut rows).unwrap();
            assert!(bare.reserve(&mut rows).is_err(), "{}: second insert", layout.name);
        }
    }
}
