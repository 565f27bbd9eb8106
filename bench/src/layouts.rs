//! The table layouts that were compared, as data: what differs is a field, everything else is shared.
//!
//! All of them hold the same columns, refuse a second row of one key inside the file (two processes may
//! open it), and can find due rows by an index. Not here: how they are driven (`bare`).

mod candidates;

pub(crate) use candidates::{CHOSEN, LAYOUTS, P, VARIANTS, named};

/// One way to lay out the records in SQLite.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Layout {
    /// Short name in tables and file names.
    pub(crate) name: &'static str,
    pub(crate) unique: Unique,
    pub(crate) settle_by: SettleBy,
    pub(crate) answer: Answer,
    pub(crate) due: Due,
    pub(crate) changed: Changed,
    pub(crate) insert: Insert,
    pub(crate) page_bytes: u32,
    pub(crate) cache_kib: u32,
    pub(crate) mmap_mib: u32,
}

/// What makes a key unique in the file, and so what the table and its key index look like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unique {
    /// `PRIMARY KEY (scope, key)`, `WITHOUT ROWID`: the rows themselves lie in random order.
    Clustered,
    /// Append-ordered rows, `UNIQUE (scope, key)`: a fat index in random order.
    ScopeKey,
    /// Append-ordered rows, unique index over the 16-byte id: a slim index in random order.
    Id,
    /// Append-ordered rows, plain index over 64 bits; the transaction looks before it inserts.
    Hash64,
}

/// How a settle finds its row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SettleBy {
    ScopeKey,
    Id,
    Hash64,
    /// The reserve told where the row is: no walk through the key index.
    Seq,
}

/// Where the answer lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    Inline,
    /// In an insert-only table of its own: the record's row never grows.
    Apart,
}

/// The index that finds rows whose time has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Due {
    /// `(state, due_at)` over all rows.
    AllRows,
    /// `due_at` of unsettled rows, and `expires_at` of settled ones.
    Partial,
    /// `due_at` of unsettled rows only; expiry would be found by walking the rows in insertion order.
    UnsettledOnly,
}

/// Which columns a settle writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Changed {
    /// The six that change.
    Only,
    /// Every mutable one, as a general "write the record back" would.
    All,
}

/// How a batch is inserted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Insert {
    /// One cached single-row statement, executed in a loop.
    EachRow,
    /// Statements of 16 rows. Who was refused would have to be asked separately.
    SixteenRows,
}

/// SQLite's own default, 1000 pages of 4 KiB, kept in bytes so that page sizes are compared fairly.
const CHECKPOINT_BYTES: u32 = 4096 * 1000;

impl Layout {
    /// The default `wal_autocheckpoint`.
    pub(crate) fn checkpoint_pages(&self) -> u32 {
        CHECKPOINT_BYTES / self.page_bytes
    }

    /// The statements that make an empty file.
    pub(crate) fn ddl(&self) -> Vec<String> {
        let mut ddl = vec![self.record_table()];
        match self.unique {
            Unique::Clustered | Unique::ScopeKey => {}
            Unique::Id => ddl.push("CREATE UNIQUE INDEX record_id ON record (id)".into()),
            Unique::Hash64 => ddl.push("CREATE INDEX record_hash ON record (hash)".into()),
        }
        match self.due {
            Due::AllRows => ddl.push("CREATE INDEX record_due ON record (state, due_at)".into()),
            Due::Partial => {
                ddl.push(UNSETTLED_INDEX.into());
                ddl.push(
                    "CREATE INDEX record_expiry ON record (expires_at) WHERE expires_at IS NOT NULL".into(),
                );
            }
            Due::UnsettledOnly => ddl.push(UNSETTLED_INDEX.into()),
        }
        if self.answer == Answer::Apart {
            ddl.push("CREATE TABLE answer (seq INTEGER PRIMARY KEY, bytes BLOB NOT NULL) STRICT".into());
        }
        ddl
    }

    fn record_table(&self) -> String {
        let (first, last, options) = match self.unique {
            Unique::Clustered => ("", ", PRIMARY KEY (scope, key)", "STRICT, WITHOUT ROWID"),
            Unique::ScopeKey => ("seq INTEGER PRIMARY KEY, ", ", UNIQUE (scope, key)", "STRICT"),
            Unique::Id => ("seq INTEGER PRIMARY KEY, ", "", "STRICT"),
            Unique::Hash64 => ("seq INTEGER PRIMARY KEY, hash INTEGER NOT NULL, ", "", "STRICT"),
        };
        format!("CREATE TABLE record ({first}{COLUMNS}{last}) {options}")
    }

    /// The reserve: insert if absent. `rows` rows in one statement.
    pub(crate) fn insert_sql(&self, rows: usize) -> String {
        let (hash_column, hash_value) =
            if self.unique == Unique::Hash64 { (", hash", ", ?") } else { ("", "") };
        let row = format!("({}{hash_value})", ["?"; INSERTED_COUNT].join(", "));
        let values = vec![row; rows].join(", ");
        format!("INSERT INTO record ({INSERTED}{hash_column}) VALUES {values} ON CONFLICT DO NOTHING")
    }

    /// The settle: compare and swap on the version.
    pub(crate) fn settle_sql(&self) -> String {
        let answer = if self.answer == Answer::Inline { ", answer = ?" } else { "" };
        let rest = if self.changed == Changed::All { ALL_OTHERS } else { "" };
        let identity = match self.settle_by {
            SettleBy::ScopeKey => "scope = ? AND key = ?",
            SettleBy::Id => "id = ?",
            SettleBy::Hash64 => "hash = ? AND id = ?",
            SettleBy::Seq => "seq = ? AND id = ?",
        };
        format!(
            "UPDATE record SET state = ?, version = ?, due_at = ?, settled_at = ?, expires_at = ?{answer}{rest} \
             WHERE {identity} AND version = ?"
        )
    }
}

/// How many columns `INSERTED` names.
pub(crate) const INSERTED_COUNT: usize = 23;

const INSERTED: &str = "id, scope, key, life, operation, fp_version, fingerprint, state, version, fence, token, \
    lease_until, attempt_deadline, attempts, due_at, tries, parked, created_at, last_run_at, crash, \
    after_retention, retention, execution";

/// Rewritten with their old values: the record is the same, only the work differs.
const ALL_OTHERS: &str = ", fence = fence + 0, token = token, lease_until = lease_until + 0, \
    attempt_deadline = attempt_deadline + 0, attempts = attempts + 0, last_error = last_error, tries = tries + 0, \
    parked = parked + 0, evidence = evidence, provider_ref = provider_ref, recovery = recovery, \
    last_run_at = last_run_at + 0";

const UNSETTLED_INDEX: &str = "CREATE INDEX record_due ON record (due_at) WHERE state IN (0, 1, 4)";

const COLUMNS: &str = "\
    id BLOB NOT NULL, scope TEXT NOT NULL, key TEXT NOT NULL, life BLOB NOT NULL, operation TEXT NOT NULL, \
    fp_version INTEGER NOT NULL, fingerprint BLOB NOT NULL, state INTEGER NOT NULL, version INTEGER NOT NULL, \
    fence INTEGER NOT NULL, token BLOB NOT NULL, lease_until INTEGER NOT NULL, attempt_deadline INTEGER NOT NULL, \
    attempts INTEGER NOT NULL, last_error TEXT, due_at INTEGER, tries INTEGER NOT NULL, parked INTEGER NOT NULL, \
    evidence BLOB, provider_ref TEXT, recovery BLOB, request BLOB, created_at INTEGER NOT NULL, \
    last_run_at INTEGER NOT NULL, settled_at INTEGER, expires_at INTEGER, crash INTEGER NOT NULL, \
    after_retention INTEGER NOT NULL, horizon INTEGER, retention INTEGER NOT NULL, tombstone INTEGER, \
    execution INTEGER NOT NULL, answer BLOB";
