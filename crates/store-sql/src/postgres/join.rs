//! Joining a caller's transaction: the statements, one row each.
//!
//! **Invariant:** the unique index on `id`, or the version, refuses whoever comes second, inside the caller's transaction. The
//! advisory lock before it only tells a twin at once that it is one: waiting for the index would mean waiting for the other's whole
//! handler. A handler's transaction begins with it.
//!
//! A row that is written once, settled already, needs no note (see the migrations): no later write has to stay off its indexes, so
//! it is found by an index when it expires ([`Look::Kept`]).

use std::borrow::Cow;
use std::sync::Arc;

use oncegate_core::audit::Entry;
use oncegate_core::codec::Malformed;
use oncegate_core::identity::RecordId;
use oncegate_core::record::{Record, State};
use oncegate_core::time::Timestamp;
use oncegate_store::drive::read_one;
use oncegate_store::join::{
    Call, Cause, Connection, Join, Joined, Opening, Routine, Shown, Taken, Turn, Value,
};
use oncegate_store::row::state_column;
use oncegate_store::{Change, Effect, Kind, Result, StoreError, Write};

use super::PostgresStore;
use super::row::{Look, Mark, digest, unpack};
use super::settings::Schema;
use super::statements::{BATCH_MAX, IS_MARKED, MARKED, answer_of, is_first, marked};

/// The statements, for one schema.
#[derive(Debug)]
pub(super) struct Statements {
    /// Locks are the whole database's: which of them are this schema's.
    locks: i64,
    /// The functions that an opening and a closing call. They carry the schema's name, because what they write to is in their text: of a schema that was renamed
    /// there are none to be found.
    opens: String,
    takes: Arc<Routine>,
    closes: Arc<Routine>,
    take: String,
    /// A row that is settled: the usual one.
    insert_settled: String,
    /// Any other.
    insert: String,
    swap: String,
    tell: String,
}

/// What changes of a row, from `$1` on, see [`columns`]; and what it is found by, from `$7` on.
const CHANGING: &str = "version, state, due_at, look_at, rest, answer";
const NEW: &str = "$1::bigint, $2::bigint::smallint, $3::bigint, $4::bigint, $5::bytea, $6::bytea";
const NEW_MARKED: &str = "$7::bigint AS line, $8::bigint AS waits_since, $9::text AS operation, $10::bigint AS doubt_since, \
                          $11::bigint AS parked_since, $12::bytea AS reference";

impl Statements {
    pub(super) fn new(of: &Schema) -> Self {
        let shown = format!("r.rest, {} AS answer", answer_of(of));
        let (name, schema) = (of.as_str(), of.quoted());
        // A lease that ends is found by a note of its own. One that does not, and one that may be under no note of a batch's, is put under such a one, which is looked at now and
        // then: its answer will have to be found when it expires.
        let noted = |rows: &str| {
            let last = BATCH_MAX - 1;
            format!(
                "noted AS (INSERT INTO {schema}.note (about, due_at, first, last) \
                 SELECT 1, $3, seq, seq FROM {rows} WHERE $2 & 15 = 1 AND $3 IS NOT NULL \
                 UNION ALL SELECT 1, coalesce($3, 0), seq & ~{last}::bigint, seq | {last} FROM {rows} \
                 WHERE $2 & 15 = 1 AND ($3 IS NULL OR {}))",
                is_first("seq")
            )
        };
        let inserted = |id: &str, returning: &str| {
            format!(
                "INSERT INTO {schema}.record (seq, id, {CHANGING}) \
                 VALUES (nextval('{schema}.arrival') * {BATCH_MAX}, {id}::bytea, {NEW}) \
                 ON CONFLICT (id) DO NOTHING RETURNING {returning}",
            )
        };
        let function = |what: &str| format!("{schema}.oncegate_{what}_{name}");
        // A session may have outlived the node that prepared something under a name: another text, with other parameters, has another.
        let routine = |what: &str, called: &str, statement: String| {
            Arc::new(Routine {
                function: function(what),
                name: format!("oncegate_{called}_{name}"),
                statement,
            })
        };
        Self {
            locks: digest(&[schema.as_bytes()]),
            opens: function("open"),
            // What the functions do, without a function around it. This one's plan is by the index: the table is never a small one, see the migrations.
            takes: routine(
                "take",
                "take",
                format!(
                    "SELECT CASE WHEN EXISTS (SELECT FROM {schema}.record WHERE id = $1) THEN false \
                     ELSE pg_try_advisory_xact_lock($2) END"
                ),
            ),
            closes: routine(
                "finish",
                "finish",
                format!(
                    "INSERT INTO {schema}.record (seq, id, version, state, due_at, rest, look_at, answer) \
                     VALUES (nextval('{schema}.arrival') * {BATCH_MAX}, $1, $2, 2, $3, $4, $3 + {}, $5)",
                    Look::Kept.first()
                ),
            ),
            // One trip. The row is as it was when the statement began: a twin that ends in between is found by the index.
            take: format!(
                "SELECT CASE WHEN pg_try_advisory_xact_lock($2::bigint) THEN 1 ELSE 0 END::bigint AS number, {shown} \
                 FROM (VALUES (1)) one LEFT JOIN {schema}.record r ON r.id = $1::bytea"
            ),
            insert_settled: inserted("$7", "1::bigint AS number"),
            insert: format!(
                "WITH inserted AS ({}), {}, marked AS (INSERT INTO {schema}.mark (seq, {MARKED}) \
                 SELECT seq, {MARKED} FROM (SELECT seq, {NEW_MARKED} FROM inserted) new WHERE {IS_MARKED}) \
                 SELECT count(*) AS number FROM inserted",
                inserted("$13", "seq"),
                noted("inserted")
            ),
            // The answer is in the row now, if there is one.
            swap: format!(
                "WITH changed AS (UPDATE {schema}.record r SET ({CHANGING}) = ROW({NEW}) \
                 WHERE r.id = $13::bytea AND r.version = $14::bigint RETURNING r.seq), \
                 swapped AS (SELECT seq, {NEW_MARKED} FROM changed), \
                 dropped AS (DELETE FROM {schema}.answer WHERE seq = (SELECT seq FROM changed)), {}, {} \
                 SELECT count(*) AS number FROM changed",
                noted("changed"),
                marked(of, "swapped")
            ),
            tell: format!(
                "INSERT INTO {schema}.entry (id, at, act, node, bytes) \
                 VALUES ($1::bytea, $2::bigint, $3::bigint::smallint, $4::bytea, $5::bytea) ON CONFLICT DO NOTHING"
            ),
        }
    }
}

impl Join for PostgresStore {
    async fn turn(&self) -> Turn {
        Turn::everybodys()
    }

    fn opening(&self, id: RecordId) -> Option<Opening> {
        Some(self.joining.opening(id))
    }

    fn closing(&self, write: &Write) -> Option<Call> {
        match (&write.change, &write.entry) {
            (Change::Insert(record), None) => self.joining.closing(record),
            // The usual one has nothing to tell, and takes nobody's place.
            _ => None,
        }
    }

    async fn take(&self, connection: &mut dyn Connection, id: RecordId) -> Result<Taken> {
        let values = [bytes(id.as_bytes()), int(self.joining.lock_of(id))];
        let shown = ask(connection, "take", &self.joining.take, &values).await?;
        let row = shown.into_iter().next().unwrap_or_default();
        if row.number != Some(1) {
            return Ok(Taken::Twin);
        }
        let shown = decode(id, &row)?;
        if shown.is_some() {
            self.confirm().await?;
        }
        Ok(Taken::Mine(shown))
    }

    async fn take_after(&self, connection: &mut dyn Connection, id: RecordId) -> Result<Taken> {
        match self.take(connection, id).await? {
            // Read once more, and by this store's own session: what the caller's transaction sees may be older than the lock, always if
            // it is a repeatable read.
            Taken::Mine(_) => Ok(Taken::Mine(read_one(self, id).await?.map(Box::new))),
            Taken::Twin => Ok(Taken::Twin),
        }
    }

    async fn confirm(&self) -> Result<()> {
        self.replication.confirm().await.map_err(|failure| failure.during("confirm", Effect::Unknown))
    }

    async fn join(&self, connection: &mut dyn Connection, write: &Write) -> Result<Joined> {
        let number = match &write.change {
            Change::Insert(record) => {
                let id = bytes(record.id.as_bytes());
                let row = row_columns(record);
                let mark = Mark::of(record);
                if matches!(record.state, State::Completed(_)) && mark.is_empty() {
                    let values: Vec<_> = row.into_iter().chain([id]).collect();
                    ask(connection, "join", &self.joining.insert_settled, &values).await?
                } else {
                    let values: Vec<_> = row.into_iter().chain(mark_columns(&mark)).chain([id]).collect();
                    ask(connection, "join", &self.joining.insert, &values).await?
                }
            }
            Change::Swap { expect, record } => {
                let mark = Mark::of(record);
                let condition = [bytes(record.id.as_bytes()), int(expect.as_raw())];
                let values: Vec<_> =
                    row_columns(record).into_iter().chain(mark_columns(&mark)).chain(condition).collect();
                ask(connection, "join", &self.joining.swap, &values).await?
            }
            Change::Remove { .. } => return Err(cannot_remove()),
        };
        if number.first().and_then(|row| row.number) != Some(1) {
            return Ok(Joined::Refused);
        }
        if let Some(entry) = &write.entry {
            tell(connection, &self.joining.tell, entry).await?;
        }
        Ok(Joined::Written)
    }
}

async fn tell(connection: &mut dyn Connection, sql: &str, entry: &Entry) -> Result<()> {
    let encoded = entry.encode();
    let values = [
        bytes(entry.id.as_bytes()),
        int(entry.at.as_micros()),
        int(i64::from(entry.act.number())),
        Value::Bytes(Some(Cow::Owned(entry.distinct_name(&encoded).into_bytes()))),
        Value::Bytes(Some(Cow::Owned(encoded))),
    ];
    ask(connection, "join", sql, &values).await.map(|_| ())
}

/// What changes, in the order of [`CHANGING`].
fn row_columns(record: &Record) -> [Value<'static>; 6] {
    [
        int(record.version.as_raw()),
        int(i64::from(state_column(record))),
        Value::Int(record.due_at().map(Timestamp::as_micros)),
        Value::Int(Look::of_joined(record)),
        Value::Bytes(Some(Cow::Owned(record.encode_body()))),
        Value::Bytes(record.encode_answer().map(Cow::Owned)),
    ]
}

/// What it is found by, in the order of [`NEW_MARKED`].
fn mark_columns<'r>(mark: &Mark<'r>) -> [Value<'r>; 6] {
    [
        Value::Int(mark.line),
        Value::Int(mark.waits_since),
        Value::Text(mark.operation.map(Cow::Borrowed)),
        Value::Int(mark.doubt_since),
        Value::Int(mark.parked_since),
        Value::Bytes(mark.reference.map(Cow::Borrowed)),
    ]
}

impl Statements {
    /// A row that is committed between the function's look and its lock is
    /// not seen; the index refuses later.
    fn opening(&self, id: RecordId) -> Opening {
        let mut values = Literals::with_capacity(64);
        values.bytes(id.as_bytes());
        values.number(self.lock_of(id));
        let values = values.finish();
        Opening {
            or_fail: ["SELECT ", &self.opens, &values].concat(),
            or_tell: Call::new(Arc::clone(&self.takes), values),
        }
    }

    /// Of a row that is settled, as most are; and not longer than they are: what is longer is sent as it is, not as digits.
    fn closing(&self, record: &Record) -> Option<Call> {
        let answer = record.encode_answer().filter(|answer| answer.len() <= CLOSING_BYTES_MAX)?;
        let expires_at =
            record.expires_at.map(Timestamp::as_micros).filter(|at| (0..=Look::LAST).contains(at))?;
        if record.provider_reference.is_some() {
            return None;
        }
        let rest = record.encode_body();
        let mut values = Literals::with_capacity(128 + 2 * (rest.len() + answer.len()));
        values.bytes(record.id.as_bytes());
        values.number(record.version.as_raw());
        values.number(expires_at);
        values.bytes(&rest);
        values.bytes(&answer);
        Some(Call::new(Arc::clone(&self.closes), values.finish()))
    }

    /// The key's advisory lock: ids are digests, so any eight bytes are as good, and hardly ever meet a lock of the caller's own, or the
    /// same key's in another schema.
    fn lock_of(&self, id: RecordId) -> i64 {
        self.locks ^ id.as_bytes().first_chunk().map_or(0, |head| i64::from_be_bytes(*head))
    }
}

/// An answer that is longer goes the long way.
const CLOSING_BYTES_MAX: usize = 16 << 10;

/// Values in brackets, as the text of a statement has them. Nothing is ever quoted: there are numbers, and bytes as digits.
struct Literals(String);

impl Literals {
    fn with_capacity(bytes: usize) -> Self {
        Self(String::with_capacity(bytes))
    }

    /// As a literal that is the same whatever `standard_conforming_strings` says. Not cast: to look up a type's name costs the server more than to see by the
    /// function what the literal is.
    fn bytes(&mut self, bytes: &[u8]) {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        self.next("E'\\\\x");
        let mut digits = [0; 128];
        for bytes in bytes.chunks(digits.len() / 2) {
            for (pair, byte) in digits.chunks_exact_mut(2).zip(bytes) {
                pair.copy_from_slice(&[DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]);
            }
            let (digits, _) = digits.split_at(2 * bytes.len());
            self.0.push_str(std::str::from_utf8(digits).unwrap_or_default());
        }
        self.0.push('\'');
    }

    fn number(&mut self, number: i64) {
        self.next(&number.to_string());
    }

    fn next(&mut self, text: &str) {
        self.0.push_str(if self.0.is_empty() { "(" } else { ", " });
        self.0.push_str(text);
    }

    fn finish(mut self) -> String {
        self.0.push(')');
        self.0
    }
}

fn decode(id: RecordId, row: &Shown) -> Result<Option<Box<Record>>> {
    let Some(rest) = &row.rest else { return Ok(None) };
    let record = unpack(id, rest, row.answer.as_deref()).map_err(unreadable)?;
    Ok(Some(Box::new(record)))
}

/// Before a commit nothing is written, whatever goes wrong: the caller's transaction is rolled back.
async fn ask(
    connection: &mut dyn Connection,
    operation: &'static str,
    sql: &str,
    values: &[Value<'_>],
) -> Result<Vec<Shown>> {
    let asked = connection.ask(sql, values).await;
    asked.map_err(|cause: Cause| StoreError::new(Kind::Unavailable, Effect::None, operation).because(cause))
}

fn unreadable(malformed: Malformed) -> StoreError {
    StoreError::new(Kind::Unreadable, Effect::None, "take").because(malformed)
}

fn cannot_remove() -> StoreError {
    let words = "rows are removed by the reaper, not in a caller's transaction";
    StoreError::new(Kind::Other, Effect::None, "join").because(words)
}

const fn int(number: i64) -> Value<'static> {
    Value::Int(Some(number))
}

fn bytes(bytes: &[u8]) -> Value<'_> {
    Value::Bytes(Some(Cow::Borrowed(bytes)))
}
