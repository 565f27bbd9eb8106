//! Joining a caller's transaction on the same file.
//!
//! A file has one writer. A caller's transaction waits for its turn among this process's writers, in the order in which they came, and
//! then holds the file from its `BEGIN IMMEDIATE` to its commit; other processes wait for SQLite's lock, as ever. The row is read before
//! that, so that the file is not held meanwhile and whoever is replayed needs no turn; what has changed since, the index or the version
//! refuses. (A library that can may instead ask with the beginning whether the key is new, see [`Join::first`].) While a transaction holds the file nobody else commits, so what the store's own connection reads then is what it would read: that
//! is how a row of the happy path is looked for, whose tables have no index over ids. (A new key is not looked for: what is remembered of those tables
//! is right if the file has the same mark, and the row's own statement asks for that.) A new key whose answer is the transaction's last word is appended, as the happy path is; any other joined write
//! leaves its row in `record`.

use std::borrow::Cow;
use std::sync::LazyLock;

use oncegate_core::audit::Entry;
use oncegate_core::identity::RecordId;
use oncegate_core::record::Record;
use oncegate_core::time::Timestamp;
use oncegate_store::drive::read_one;
use oncegate_store::join::{
    After, Call, Connection, First, Join, Joined, Last, Opening, Shown, Taken, Turn, Value,
};
use oncegate_store::{Change, Effect, Kind, Result, StoreError, Write};
use rusqlite::types::Value as Column;

use super::SqliteStore;
use super::append::reserved::{Held, Row};
use super::append::settled::{self, Head};
use super::append::{self, Found, Lacks, Memory, Shared, Stamp};
use super::row::{self, COLUMNS, IDENTITY};
use super::statements;
use super::trail::TELL;

/// How a transaction begins that is to be joined.
///
/// SQLite rolls a transaction back by itself when a statement in it fails badly enough (a full disk, `ON CONFLICT ROLLBACK`), and whatever
/// follows is then on its own. A handler that does not mind the error would have its key kept, without its rows. The savepoint goes with the
/// transaction: a row is written only where it is still there.
pub const BEGIN_TO_JOIN: &str = "BEGIN IMMEDIATE; SAVEPOINT oncegate";
const STILL_OPEN: &str = "RELEASE oncegate; SAVEPOINT oncegate";

// A row, and in the same call its answer: a call wakes the thread that owns the connection, which costs more than the statement.

/// A new key, at the next place in the order of arrival, if the file has the mark at which no other table had it.
static INSERT_ROW: LazyLock<String> = LazyLock::new(|| {
    let arrive = "UPDATE record_reserved SET arrived = 1 + max(arrived, coalesce((SELECT max(seq) FROM record), 0)) WHERE seq = 0";
    let (columns, places) = columns_and_places();
    format!(
        "{STILL_OPEN}; {arrive}; INSERT INTO record ({columns}, seq) SELECT {places}, arrived FROM record_reserved \
         WHERE seq = 0 AND mark = ?{MARK} ON CONFLICT (id) DO NOTHING RETURNING 1 AS number"
    )
});
/// A row that was in flight, or that `record_settled` had, in its place. Who has the memory of those tables hears of it through the stamp.
static LEAVE_FLIGHT: LazyLock<String> = LazyLock::new(|| put_row("", "true"));
/// The numbers are written out: of several statements in one call sqlx binds none of a later one's parameters behind so many that an earlier
/// one has left out.
fn leave_settled(head: &Head, expected: i64) -> String {
    let place = head.seq;
    let thin = format!("UPDATE record_run SET kept = kept - 1 WHERE run = {place} / 4096");
    let found = format!("seq = {place} AND id = ?1 AND version = {expected}");
    put_row(&format!("{thin}; DELETE FROM record_settled WHERE {found};"), "changes() = 1")
}

fn put_row(before: &str, condition: &str) -> String {
    let (columns, places) = columns_and_places();
    format!(
        "{STILL_OPEN}; UPDATE record_reserved SET generation = generation + 1, mark = random() WHERE seq = 0; {before} \
         INSERT INTO record ({columns}, seq) SELECT {places}, ?{ARRIVAL} WHERE {condition} \
         ON CONFLICT (id) DO NOTHING RETURNING 1 AS number"
    )
}

fn columns_and_places() -> (String, String) {
    let places: Vec<_> = (1..=COLUMNS.len()).map(|place| format!("?{place}")).collect();
    (COLUMNS.join(", "), places.join(", "))
}

/// The same, and the answer of the row that was inserted.
fn with_answer(insert: &str) -> String {
    format!("{insert}; {INSERT_ANSWER}, ?{ANSWER} WHERE changes() = 1")
}

const INSERT_ANSWER: &str = "INSERT INTO answer (seq, bytes) SELECT last_insert_rowid()";

/// Takes back what [`Join::last`] has written, and shows that the transaction is still there.
#[cfg(feature = "sqlx-sqlite")]
pub(crate) const TAKE_BACK: &str = "ROLLBACK TO oncegate";

static INSERT_SETTLED: LazyLock<String> = LazyLock::new(|| with_answer(&INSERT_ROW));
static LEAVE_FLIGHT_SETTLED: LazyLock<String> = LazyLock::new(|| with_answer(&LEAVE_FLIGHT));
/// Every column but the identity, where the row has the version that is expected.
static SWAP_ROW: LazyLock<String> = LazyLock::new(|| {
    let set = COLUMNS.iter().zip(1..).skip(IDENTITY).map(|(column, place)| format!("{column} = ?{place}"));
    let set = set.collect::<Vec<_>>().join(", ");
    let found = format!("WHERE id = ?1 AND version = ?{EXPECTED}");
    format!("{STILL_OPEN}; UPDATE record SET {set} {found} RETURNING 1 AS number")
});
static SWAP_SETTLED: LazyLock<String> = LazyLock::new(|| {
    let answer = "INSERT OR REPLACE INTO answer (seq, bytes) SELECT seq";
    format!("{}; {answer}, ?{ANSWER} FROM record WHERE id = ?1 AND changes() = 1", *SWAP_ROW)
});
static SWAP_UNSETTLED: LazyLock<String> = LazyLock::new(|| {
    let row = "SELECT seq FROM record WHERE id = ?1 AND changes() = 1";
    format!("{}; DELETE FROM answer WHERE seq = ({row})", *SWAP_ROW)
});
/// The places of what is bound behind the columns. sqlx counts those that a statement leaves out, and binds a later statement's so much further on:
/// with a few more of them left out before the answer, it would be bound to nothing.
const ANSWER: usize = COLUMNS.len() + 1;
const EXPECTED: usize = COLUMNS.len() + 2;
const ARRIVAL: usize = COLUMNS.len() + 3;
const MARK: usize = COLUMNS.len() + 4;

/// Where a row is that is not in `record`.
enum Appended {
    InFlight(Held),
    Settled(Head),
}

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
        let Lacks { mark, .. } = self.shared.lacks(id)?;
        Some(First { sql: settled::IS_NEW, values: vec![Value::Int(Some(mark)), named(id)] })
    }

    /// A new key with a plain answer, appended to `record_settled` as the store's own are, if the memory is where the file is: its own statement finds that out.
    fn last(&self, write: &Write) -> Option<Last> {
        // Then it is `join`, which says why.
        self.writer.check_file().ok()?;
        let (Change::Insert(record), None) = (&write.change, &write.entry) else { return None };
        let packed = settled::packed(record)?;
        let Lacks { mark, next } = self.shared.lacks(record.id)?;
        let next_mark = append::new_mark().ok()?;
        let sql = Cow::Owned([STILL_OPEN, &settled::add_joined(next)].join("; "));
        let values = vec![
            Value::Int(Some(mark)),
            Value::Int(Some(next_mark)),
            named(record.id),
            Value::Int(Some(record.version.as_raw())),
            Value::Int(record.expires_at.map(Timestamp::as_micros)),
            Value::Bytes(Some(Cow::Owned(packed))),
        ];
        let after = AfterAppended { shared: self.shared.clone(), id: record.id, mark, next_mark };
        Some(Last { sql, values, after: Box::new(after) })
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
        if !self.put(connection, record, expected).await? {
            return Ok(Joined::Refused);
        }
        if let Some(entry) = &write.entry {
            ask(connection, TELL, &told(entry)).await?;
        }
        Ok(Joined::Written)
    }
}

/// A row that a caller's transaction appends at this mark, and the mark that it sets.
struct AfterAppended {
    shared: Shared,
    id: RecordId,
    mark: i64,
    next_mark: i64,
}

impl After for AfterAppended {
    fn committed(&self) {
        self.shared.keep_joined(self.id, self.mark, self.next_mark);
    }

    /// What the memory lacks at this mark the file lacks at the next one, but for the row that
    /// this appends: this process has no other writer, and if another process writes, the mark is
    /// another.
    fn first(&self, id: RecordId) -> Option<First> {
        let Lacks { mark, .. } = self.shared.lacks(id)?;
        (mark == self.mark && id != self.id)
            .then(|| First { sql: settled::IS_NEW_AFTER, values: vec![named(id)] })
    }
}

impl SqliteStore {
    /// Whether it was written.
    async fn put(
        &self,
        connection: &mut dyn Connection,
        record: &Record,
        expected: Option<i64>,
    ) -> Result<bool> {
        let answer = record.encode_answer();
        let is_settled = answer.is_some();
        let chosen = |unsettled: &'static LazyLock<String>, settled: &'static LazyLock<String>| {
            Cow::Borrowed(if is_settled { settled.as_str() } else { unsettled.as_str() })
        };
        let mut values = bound(record, answer, [expected, None, None])?;
        // Mostly a new key, and the memory is where the file is: then its own statement finds that out, and nobody has to look.
        if expected.is_none()
            && let Some(Lacks { mark, .. }) = self.shared.lacks(record.id)
        {
            values[MARK - 1] = Value::Int(Some(mark));
            if !ask(connection, &chosen(&INSERT_ROW, &INSERT_SETTLED), &values).await?.is_empty() {
                return Ok(true);
            }
        }
        let (stamp, appended) = self.look_for(record.id)?;
        let sql = match (&appended, expected) {
            (None, None) => chosen(&INSERT_ROW, &INSERT_SETTLED),
            (None, Some(_)) => chosen(&SWAP_UNSETTLED, &SWAP_SETTLED),
            (Some(_), None) => return Ok(false),
            (Some(Appended::InFlight(held)), Some(expected)) => {
                match &held.row {
                    Row::Readable(current) if current.version.as_raw() == expected => {}
                    Row::Readable(_) => return Ok(false),
                    Row::Unreadable { problem, .. } => {
                        return Err(StoreError::new(Kind::Unreadable, Effect::None, "join").because(*problem));
                    }
                }
                chosen(&LEAVE_FLIGHT, &LEAVE_FLIGHT_SETTLED)
            }
            (Some(Appended::Settled(head)), Some(expected)) => {
                let row = leave_settled(head, expected);
                Cow::Owned(if is_settled { with_answer(&row) } else { row })
            }
        };
        let arrival = match &appended {
            None => None,
            Some(Appended::InFlight(held)) => Some(held.arrival),
            Some(Appended::Settled(head)) => Some(head.arrival),
        };
        values[ARRIVAL - 1] = Value::Int(arrival);
        values[MARK - 1] = Value::Int(Some(stamp.mark));
        Ok(!ask(connection, &sql, &values).await?.is_empty())
    }

    /// The caller has begun to write, so nobody else can: what is looked at here stays as it is until it has ended.
    fn look_for(&self, id: RecordId) -> Result<(Stamp, Option<Appended>)> {
        self.writer.look("join", |connection, shared| {
            let look = |memory: &Memory| (memory.find(id), memory.reserved.damaged());
            shared.looking(connection, look, |tx, ledger, (found, damaged)| {
                if let (Found::Elsewhere, Some(problem)) = (&found, damaged)
                    && statements::find(tx, id)?.is_none()
                {
                    return Err(problem.into());
                }
                let appended = match found {
                    Found::InFlight(held) => Some(Appended::InFlight(held)),
                    Found::SettledAt(seq) => settled::head(tx, seq, id)?.map(Appended::Settled),
                    Found::Elsewhere => None,
                };
                Ok((ledger.stamp(), appended))
            })
        })
    }
}

/// The columns, and what stands behind them: the answer, and the numbers from [`EXPECTED`] on.
fn bound(record: &Record, answer: Option<Vec<u8>>, numbers: [Option<i64>; 3]) -> Result<Vec<Value<'static>>> {
    let columns = row::values(record).map_err(failed)?.into_iter().map(value);
    let behind = [Value::Bytes(answer.map(Cow::Owned))].into_iter().chain(numbers.map(Value::Int));
    columns.chain(behind.map(Ok)).collect()
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
    let encoded = entry.encode();
    [
        bytes(entry.id.as_bytes()),
        Value::Int(Some(entry.at.as_micros())),
        Value::Int(Some(i64::from(entry.act.number()))),
        Value::Text(Some(Cow::Owned(entry.distinct_name(&encoded)))),
        Value::Bytes(Some(Cow::Owned(encoded))),
    ]
}

fn named(id: RecordId) -> Value<'static> {
    Value::Bytes(Some(Cow::Owned(id.as_bytes().to_vec())))
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
