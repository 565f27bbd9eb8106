//! Joining a caller's transaction on the same file.
//!
//! A file has one writer. A caller's transaction waits for its turn among this process's writers,
//! in the order in which they came, and then holds the file from its `BEGIN IMMEDIATE` to its
//! commit; other processes wait for SQLite's lock. The row is read before that, so that the file
//! is not held meanwhile and a replay needs no turn. The unique index or the version refuses what
//! has changed since. (A library that can may instead ask with the beginning whether the key is
//! new, see [`Join::first`].)

use std::borrow::Cow;
use std::sync::{Arc, LazyLock};

use oncegate_core::audit::Entry;
use oncegate_core::identity::RecordId;
use oncegate_store::drive::read_one;
use oncegate_store::history::Beat;
use oncegate_store::join::{
    After, Call, Connection, First, Join, Joined, Last, Opening, Shown, Taken, Turn, Value,
};
use oncegate_store::{Change, Effect, History, Kind, Result, StoreError, Write};

use super::SqliteStore;
use super::error::{Restored, store_error};
use super::history;
use super::row::{COLUMNS, RecordRow, id_value};
use super::statements::{self, EXPECTED};
use super::trail::TELL;

/// How a transaction begins that is to be joined.
///
/// SQLite rolls a transaction back by itself when a statement in it fails badly enough (a full disk, `ON CONFLICT ROLLBACK`), and whatever
/// follows is then on its own. A handler that does not mind the error would have its key kept, without its rows. The savepoint goes with the
/// transaction: a row is written only where it is still there.
pub const BEGIN_TO_JOIN: &str = "BEGIN IMMEDIATE; SAVEPOINT oncegate";
const STILL_OPEN: &str = "RELEASE oncegate; SAVEPOINT oncegate";

/// Whether no row has this id.
const IS_NEW: &str = "SELECT NOT EXISTS (SELECT 1 FROM record WHERE id = ?1) AS number";
/// The same in a call whose first values are those of [`LAST`].
static IS_NEW_AFTER: LazyLock<String> =
    LazyLock::new(|| IS_NEW.replace("?1", &format!("?{}", COLUMNS.len() + 4)));

/// The file has what this process wrote as its watermark: it was not restored. The values are the
/// node, and the marks that may be there; no node, before the first was written.
fn is_intact(first: usize) -> String {
    let [node, last, next] = [first, first + 1, first + 2];
    format!(
        "(?{node} IS NULL OR EXISTS (SELECT 1 FROM watermark WHERE node = ?{node} AND mark IN (?{last}, ?{next})))"
    )
}

/// A new key: the unique index refuses a second one.
static INSERT_ROW: LazyLock<String> = LazyLock::new(|| {
    let (columns, places) = (COLUMNS.join(", "), places(COLUMNS.len()));
    let is_intact = is_intact(COLUMNS.len() + 1);
    format!(
        "{STILL_OPEN}; INSERT INTO record ({columns}) SELECT {places} WHERE {is_intact} \
         ON CONFLICT (id) DO NOTHING RETURNING 1 AS number"
    )
});
static SWAP_ROW: LazyLock<String> = LazyLock::new(|| {
    format!("{STILL_OPEN}; {} AND {} RETURNING 1 AS number", *statements::SWAP, is_intact(EXPECTED + 1))
});
/// A new key, as the last statement before the commit. It fails where the key is taken or the file
/// was restored (a row without a body is refused), and SQLite runs nothing after a statement that
/// failed.
static LAST: LazyLock<String> = LazyLock::new(|| {
    let body = COLUMNS.len();
    let (columns, places) = (COLUMNS.join(", "), places(body - 1));
    let is_intact = is_intact(body + 1);
    format!(
        "{STILL_OPEN}; INSERT INTO record ({columns}) VALUES ({places}, CASE WHEN {is_intact} THEN ?{body} END)"
    )
});

fn places(count: usize) -> String {
    (1..=count).map(|place| format!("?{place}")).collect::<Vec<_>>().join(", ")
}

/// Takes back what [`Join::last`] has written, and shows that the transaction is still there.
#[cfg(feature = "sqlx-sqlite")]
pub(crate) const TAKE_BACK: &str = "ROLLBACK TO oncegate";

impl Join for SqliteStore {
    async fn turn(&self) -> Turn {
        self.turns.next().await
    }

    fn opening(&self, _: RecordId) -> Option<Opening> {
        None
    }

    fn closing(&self, _: &Write) -> Option<Call> {
        None
    }

    fn first(&self, id: RecordId) -> Option<First> {
        Some(First { sql: IS_NEW, values: vec![id_value(id)] })
    }

    fn last(&self, write: &Write) -> Option<Last> {
        // Then it is `join`, which says why.
        self.writer.check_file().ok()?;
        let (Change::Insert(record), None) = (&write.change, &write.entry) else { return None };
        let mut values = RecordRow::new(record).values();
        values.extend(self.marks());
        Some(Last {
            sql: Cow::Borrowed(LAST.as_str()),
            values,
            after: Box::new(AfterInsert { id: record.id }),
        })
    }

    async fn take(&self, _: &mut dyn Connection, id: RecordId) -> Result<Taken> {
        self.writer.check_file()?;
        Ok(Taken::Mine(read_one(self, id).await?.map(Box::new)))
    }

    /// Whoever has begun to write knows that all others have ended.
    async fn take_after(&self, connection: &mut dyn Connection, id: RecordId) -> Result<Taken> {
        self.take(connection, id).await
    }

    /// There is one file.
    async fn confirm(&self) -> Result<()> {
        Ok(())
    }

    async fn join(&self, connection: &mut dyn Connection, write: &Write) -> Result<Joined> {
        self.writer.check_file()?;
        let (record, expected) = match &write.change {
            Change::Insert(record) => (record, None),
            Change::Swap { expect, record } => (record, Some(expect.as_raw())),
            Change::Remove { .. } => {
                return Err(failed("rows are removed by the reaper, not in a caller's transaction"));
            }
        };
        let mut values = RecordRow::new(record).values();
        let sql = match expected {
            None => INSERT_ROW.as_str(),
            Some(expected) => {
                values.push(Value::Int(Some(expected)));
                SWAP_ROW.as_str()
            }
        };
        values.extend(self.marks());
        if ask(connection, sql, &values).await?.is_empty() {
            // The caller has begun to write, so what is read here stays as it is until it has
            // ended.
            return match self.look_at_watermark().await? {
                History::Intact => Ok(Joined::Refused),
                History::Lost => Err(store_error(Restored.into(), "join", Effect::None)),
            };
        }
        if let Some(entry) = &write.entry {
            ask(connection, TELL, &told(entry)).await?;
        }
        Ok(Joined::Written)
    }
}

impl SqliteStore {
    /// What must be in the file for it to be the one that this process has written to, see
    /// [`is_intact`].
    fn marks(&self) -> [Value<'static>; 3] {
        let marks = match self.writer.watermark().beat() {
            // Nothing was written yet, or this process ends and its watermark is gone.
            Some(_) if self.writer.expected().is_none() => [None; 3],
            Some(Beat { node, last, next }) => [Some(node), last, Some(next)],
            // The file was restored: no mark is the right one.
            None => [Some(0), None, None],
        };
        marks.map(Value::Int)
    }

    async fn look_at_watermark(&self) -> Result<History> {
        let (watermark, expected) = (Arc::clone(self.writer.watermark()), self.writer.expected());
        let look = move |connection: &mut _| history::look(connection, &watermark, expected);
        self.rows.run("join", look).await
    }
}

/// Knows which row a commit has written.
struct AfterInsert {
    id: RecordId,
}

impl After for AfterInsert {
    fn committed(&self) {}

    fn first(&self, id: RecordId) -> Option<First> {
        (id != self.id).then(|| First { sql: &IS_NEW_AFTER, values: vec![id_value(id)] })
    }
}

fn told(entry: &Entry) -> [Value<'_>; 5] {
    let encoded = entry.encode();
    [
        bytes(entry.id.as_bytes()),
        Value::Int(Some(entry.at.as_micros())),
        Value::Int(Some(i64::from(entry.act.number()))),
        Value::Text(Some(Cow::Owned(entry.distinct_name(&encoded)))),
        Value::Bytes(Some(Cow::Owned(encoded))),
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
