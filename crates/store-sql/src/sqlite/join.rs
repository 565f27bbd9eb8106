//! Joining a caller's transaction on the same file.
//!
//! A file has one writer. A caller's transaction waits for its turn among this process's writers, in the order in which they came, and
//! then holds the file from its `BEGIN IMMEDIATE` to its commit; other processes wait for SQLite's lock, as ever. The row is read before
//! that, so that the file is not held meanwhile and whoever is replayed needs no turn; what has changed since, the index or the version
//! refuses. While a transaction holds the file nobody else commits, so what the store's own connection reads then is what it would read.

use std::borrow::Cow;
use std::sync::{Arc, LazyLock};

use oncegate_core::audit::Entry;
use oncegate_core::identity::RecordId;
use oncegate_core::record::Record;
use oncegate_store::drive::read_one;
use oncegate_store::join::{Connection, Join, Joined, Lock, Shown, Taken, Turn, Value};
use oncegate_store::{Change, Effect, Kind, Result, StoreError, Write};
use rusqlite::types::Value as Column;

use super::SqliteStore;
use super::row::{self, COLUMNS, IDENTITY};
use super::statements::INSERT;
use super::trail::TELL;

// A row, and in the same call its answer: a call wakes the thread that owns the connection, which costs more than the statement.
static INSERT_ROW: LazyLock<String> = LazyLock::new(|| format!("{} RETURNING 1 AS number", *INSERT));
static INSERT_SETTLED: LazyLock<String> = LazyLock::new(|| {
    let answer = "INSERT INTO answer (seq, bytes) SELECT last_insert_rowid()";
    format!("{}; {answer}, ?{ANSWER} WHERE changes() = 1", *INSERT_ROW)
});
/// Every column but the identity, where the row has the version that is expected.
static SWAP_ROW: LazyLock<String> = LazyLock::new(|| {
    let set = COLUMNS.iter().zip(1..).skip(IDENTITY).map(|(column, place)| format!("{column} = ?{place}"));
    let set = set.collect::<Vec<_>>().join(", ");
    format!("UPDATE record SET {set} WHERE id = ?1 AND version = ?{EXPECTED} RETURNING 1 AS number")
});
static SWAP_SETTLED: LazyLock<String> = LazyLock::new(|| {
    let answer = "INSERT OR REPLACE INTO answer (seq, bytes) SELECT seq";
    format!("{}; {answer}, ?{ANSWER} FROM record WHERE id = ?1 AND changes() = 1", *SWAP_ROW)
});
static SWAP_UNSETTLED: LazyLock<String> = LazyLock::new(|| {
    let row = "SELECT seq FROM record WHERE id = ?1 AND changes() = 1";
    format!("{}; DELETE FROM answer WHERE seq = ({row})", *SWAP_ROW)
});
/// The places of what is bound behind the columns.
const ANSWER: usize = COLUMNS.len() + 1;
const EXPECTED: usize = COLUMNS.len() + 2;

impl Join for SqliteStore {
    async fn turn(&self) -> Turn {
        // An error would mean that the semaphore was closed, and nobody closes it.
        Arc::clone(&self.turns).acquire_owned().await.map_or_else(|_| Turn::everybodys(), Turn::of)
    }

    fn lock(&self, _: RecordId) -> Option<Lock> {
        None
    }

    async fn take(&self, _: &mut dyn Connection, id: RecordId) -> Result<Taken> {
        Ok(Taken::Mine(read_one(self, id).await?.map(Box::new)))
    }

    /// Whoever has begun to write knows that all others have ended.
    async fn take_after(&self, connection: &mut dyn Connection, id: RecordId) -> Result<Taken> {
        self.take(connection, id).await
    }

    async fn join(&self, connection: &mut dyn Connection, write: &Write) -> Result<Joined> {
        let (record, expected) = match &write.change {
            Change::Insert(record) => (record, None),
            Change::Swap { expect, record } => (record, Some(expect.as_raw())),
            Change::Remove { .. } => {
                return Err(failed("rows are removed by the reaper, not in a caller's transaction"));
            }
        };
        let answer = record.encode_answer();
        let sql = match (expected, &answer) {
            (None, None) => &INSERT_ROW,
            (None, Some(_)) => &INSERT_SETTLED,
            (Some(_), Some(_)) => &SWAP_SETTLED,
            (Some(_), None) => &SWAP_UNSETTLED,
        };
        let mut values = columns(record)?;
        if expected.is_some() || answer.is_some() {
            values.push(Value::Bytes(answer.map(Cow::Owned)));
        }
        if expected.is_some() {
            values.push(Value::Int(expected));
        }
        if ask(connection, sql, &values).await?.is_empty() {
            return Ok(Joined::Refused);
        }
        if let Some(entry) = &write.entry {
            ask(connection, TELL, &told(entry)).await?;
        }
        Ok(Joined::Written)
    }
}

fn columns(record: &Record) -> Result<Vec<Value<'static>>> {
    let columns = row::values(record).map_err(failed)?;
    columns.into_iter().map(value).collect()
}

fn value(column: Column) -> Result<Value<'static>> {
    Ok(match column {
        // Of whatever type: SQLite's nothing has none.
        Column::Null => Value::Int(None),
        Column::Integer(number) => Value::Int(Some(number)),
        Column::Text(text) => Value::Text(Some(Cow::Owned(text))),
        Column::Blob(bytes) => Value::Bytes(Some(Cow::Owned(bytes))),
        Column::Real(_) => return Err(failed("no column is a fraction")),
    })
}

fn told(entry: &Entry) -> [Value<'_>; 5] {
    [
        bytes(entry.id.as_bytes()),
        Value::Int(Some(entry.at.as_micros())),
        Value::Int(Some(i64::from(entry.act.number()))),
        Value::Text(Some(Cow::Borrowed(&entry.node))),
        Value::Bytes(Some(Cow::Owned(entry.encode()))),
    ]
}

fn bytes(bytes: &[u8]) -> Value<'_> {
    Value::Bytes(Some(Cow::Borrowed(bytes)))
}

/// Before a commit nothing is written, whatever goes wrong: the caller's transaction is rolled back.
async fn ask(connection: &mut dyn Connection, sql: &str, values: &[Value<'_>]) -> Result<Vec<Shown>> {
    connection.ask(sql, values).await.map_err(failed)
}

fn failed(cause: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> StoreError {
    StoreError::new(Kind::Unavailable, Effect::None, "join").because(cause)
}
