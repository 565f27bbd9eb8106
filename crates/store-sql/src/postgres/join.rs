//! Joining a caller's transaction: the statements, one row each.
//!
//! **Invariant:** the unique index on `id`, or the version, refuses whoever comes second, inside the caller's transaction. The
//! advisory lock before it only tells a twin at once that it is one: waiting for the index would mean waiting for the other's whole
//! handler. A handler's transaction begins with it.
//!
//! A row that is written once, settled already, needs no note (see the migrations): no later write has to stay off its indexes, so
//! it has an index of its own, over `kept_until`, by which it is found when it expires.

use std::borrow::Cow;

use oncegate_core::audit::Entry;
use oncegate_core::codec::Malformed;
use oncegate_core::identity::RecordId;
use oncegate_core::record::codec::Texts;
use oncegate_core::record::{Record, State};
use oncegate_core::time::Timestamp;
use oncegate_store::drive::read_one;
use oncegate_store::join::{Cause, Connection, Join, Joined, Opening, Shown, Taken, Turn, Value};
use oncegate_store::{Change, Effect, Kind, Result, StoreError, Write};

use super::PostgresStore;
use super::row::{attention_at, doubt_since, state_column};
use super::settings::Schema;
use super::statements::{BATCH_MAX, FOUND_BY, answer_of, found_by};

/// The statements, for one schema.
#[derive(Debug)]
pub(super) struct Statements {
    /// Locks are the whole database's: which of them are this schema's.
    locks: i64,
    /// The functions that an opening and a closing call. They carry the schema's name, because what they write to is in their text: of a schema that was renamed
    /// there are none to be found.
    opens: String,
    takes: String,
    closes: String,
    take: String,
    /// A row that is settled: the usual one.
    insert_settled: String,
    /// Any other.
    insert: String,
    swap: String,
    tell: String,
}

/// What a row has besides its identity and [`FOUND_BY`], from `$4` on; see [`columns`].
const CHANGING: &str = "version, state, due_at, attention_at, expires_at, created_at, resumable, operation, rest, reference, \
                        kept_until, doubt_since, answer";
const NEW: &str = "$4::bigint, $5::bigint::smallint, $6::bigint, $7::bigint, $8::bigint, $9::bigint, $10::bigint <> 0, \
                   $11::text, $12::bytea, $13::bytea, CASE WHEN $5 = 2 THEN $8 END, $14::bigint, $15::bytea";

impl Statements {
    pub(super) fn new(schema: &Schema) -> Self {
        let shown = format!("r.id, r.scope, r.key, r.operation, r.rest, {} AS answer", answer_of(schema));
        let (name, schema) = (schema.as_str(), schema.quoted());
        let locks = digest(schema.as_bytes());
        // A lease that ends is found by a note of its own. One that does not is under a note like a batch's, which is looked at now and
        // then: its answer will have to be found when it expires.
        let noted = |rows: &str| {
            let first = format!("CASE WHEN $6 IS NULL THEN seq - seq % {BATCH_MAX} ELSE seq END");
            let last =
                format!("CASE WHEN $6 IS NULL THEN seq - seq % {BATCH_MAX} + {} ELSE seq END", BATCH_MAX - 1);
            format!(
                "noted AS (INSERT INTO {schema}.note (kind, due_at, first, last) \
                 SELECT 1, coalesce($6, $9), {first}, {last} FROM {rows} WHERE $5 = 1)"
            )
        };
        let inserted = |returning: &str| {
            format!(
                "INSERT INTO {schema}.record (seq, id, scope, key, {CHANGING}, {FOUND_BY}) \
                 VALUES (nextval('{schema}.batch') * {BATCH_MAX}, $1::bytea, $2::text, $3::text, {NEW}, {}) \
                 ON CONFLICT (id) DO NOTHING RETURNING {returning}",
                found_by(["$5", "$6", "$14", "$11", "$2"])
            )
        };
        Self {
            locks,
            opens: format!("{schema}.oncegate_open_{name}"),
            takes: format!("{schema}.oncegate_take_{name}"),
            closes: format!("{schema}.oncegate_close_{name}"),
            // One trip. The row is as it was when the statement began: a twin that ends in between is found by the index.
            take: format!(
                "SELECT CASE WHEN pg_try_advisory_xact_lock($2::bigint) THEN 1 ELSE 0 END::bigint AS number, {shown} \
                 FROM (VALUES (1)) one LEFT JOIN {schema}.record r ON r.id = $1::bytea"
            ),
            insert_settled: inserted("1::bigint AS number"),
            insert: format!(
                "WITH inserted AS ({}), {} SELECT count(*) AS number FROM inserted",
                inserted("seq"),
                noted("inserted")
            ),
            // The answer is in the row now, if there is one.
            swap: format!(
                "WITH swapped AS (UPDATE {schema}.record r SET ({CHANGING}, {FOUND_BY}) = ROW({NEW}, {}) \
                 WHERE r.id = $1::bytea AND r.version = $2::bigint RETURNING r.seq), \
                 dropped AS (DELETE FROM {schema}.answer WHERE seq = (SELECT seq FROM swapped)), {} \
                 SELECT count(*) AS number FROM swapped",
                found_by(["$5", "$6", "$14", "$11", "$3::text"]),
                noted("swapped")
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

    fn closing(&self, write: &Write) -> Option<String> {
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
        match row.number {
            Some(1) => Ok(Taken::Mine(decode(id, row)?)),
            _ => Ok(Taken::Twin),
        }
    }

    async fn take_after(&self, connection: &mut dyn Connection, id: RecordId) -> Result<Taken> {
        match self.take(connection, id).await? {
            // Read once more, and by this store's own session: what the caller's transaction sees may be older than the lock, always if
            // it is a repeatable read.
            Taken::Mine(_) => Ok(Taken::Mine(read_one(self, id).await?.map(Box::new))),
            Taken::Twin => Ok(Taken::Twin),
        }
    }

    async fn join(&self, connection: &mut dyn Connection, write: &Write) -> Result<Joined> {
        let number = match &write.change {
            Change::Insert(record) => {
                let (scope, key) = (record.address.scope.as_str(), record.address.key.as_str());
                let mut values = vec![bytes(record.id.as_bytes()), text(scope), text(key)];
                values.extend(columns(record));
                let is_settled = matches!(record.state, State::Completed(_));
                let sql = if is_settled { &self.joining.insert_settled } else { &self.joining.insert };
                ask(connection, "join", sql, &values).await?
            }
            Change::Swap { expect, record } => {
                let scope = text(record.address.scope.as_str());
                let mut values = vec![bytes(record.id.as_bytes()), int(expect.as_raw()), scope];
                values.extend(columns(record));
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
    let values = [
        bytes(entry.id.as_bytes()),
        int(entry.at.as_micros()),
        int(i64::from(entry.act.number())),
        bytes(entry.node.as_bytes()),
        Value::Bytes(Some(Cow::Owned(entry.encode()))),
    ];
    ask(connection, "join", sql, &values).await.map(|_| ())
}

/// What changes, in the order of [`CHANGING`].
fn columns(record: &Record) -> [Value<'_>; 12] {
    let micros = |moment: Option<Timestamp>| Value::Int(moment.map(Timestamp::as_micros));
    [
        int(record.version.as_raw()),
        int(i64::from(state_column(record.state.kind()))),
        micros(record.due_at()),
        Value::Int(attention_at(record)),
        micros(record.expires_at),
        int(record.created_at.as_micros()),
        int(i64::from(record.is_resumable())),
        text(record.operation.as_str()),
        Value::Bytes(Some(Cow::Owned(record.encode_row()))),
        Value::Bytes(
            record.provider_reference.as_deref().map(|reference| Cow::Borrowed(reference.as_bytes())),
        ),
        Value::Int(doubt_since(record)),
        Value::Bytes(record.encode_answer().map(Cow::Owned)),
    ]
}

impl Statements {
    /// A row that is committed between the function's look and its lock is
    /// not seen; the index refuses later.
    fn opening(&self, id: RecordId) -> Opening {
        let mut values = String::with_capacity(112);
        values.push('(');
        push_bytes(&mut values, id.as_bytes());
        push_number(&mut values, Some(self.lock_of(id)));
        values.push(')');
        let [or_fail, or_tell] =
            [&self.opens, &self.takes].map(|called| ["SELECT ", called, &values].concat());
        Opening { or_fail, or_tell }
    }

    /// Of a row that is settled, and whose names need no quoting, as most are; and as short as they are: what is longer is sent as it is, not as digits.
    fn closing(&self, record: &Record) -> Option<String> {
        let answer = record.encode_answer().filter(|answer| answer.len() <= CLOSING_BYTES_MAX)?;
        let names = [record.address.scope.as_str(), record.address.key.as_str(), record.operation.as_str()];
        let is_usual = record.provider_reference.is_none() && !record.is_resumable();
        if !is_usual || !names.into_iter().all(is_plain) {
            return None;
        }
        let rest = record.encode_row();
        let mut query = String::with_capacity(512 + 2 * (rest.len() + answer.len()));
        query.extend(["SELECT ", &self.closes, "("]);
        push_bytes(&mut query, record.id.as_bytes());
        for name in names {
            query.extend([", '", name, "'"]);
        }
        push_number(&mut query, Some(record.version.as_raw()));
        push_number(&mut query, Some(record.created_at.as_micros()));
        push_number(&mut query, record.expires_at.map(Timestamp::as_micros));
        for bytes in [&rest, &answer] {
            query.push_str(", ");
            push_bytes(&mut query, bytes);
        }
        query.push(')');
        Some(query)
    }

    /// The key's advisory lock: ids are digests, so any eight bytes are as good, and hardly ever meet a lock of the caller's own, or the
    /// same key's in another schema.
    fn lock_of(&self, id: RecordId) -> i64 {
        self.locks ^ id.as_bytes().first_chunk().map_or(0, |head| i64::from_be_bytes(*head))
    }
}

/// FNV-1a: the same in every version of this program, because nodes of two versions must agree on a lock.
fn digest(bytes: &[u8]) -> i64 {
    let start = 0xcbf2_9ce4_8422_2325_u64;
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.iter().fold(start, step).cast_signed()
}

/// An answer that is longer goes the long way.
const CLOSING_BYTES_MAX: usize = 16 << 10;

/// Whether this is the same between quotes, whatever the server's settings and its encoding.
fn is_plain(name: &str) -> bool {
    name.bytes().all(|byte| matches!(byte, b' '..=b'~') && !matches!(byte, b'\'' | b'\\'))
}

/// As a literal that is the same whatever `standard_conforming_strings` says. Not cast: to look up a type's name costs the server more than to see by the
/// function what the literal is.
fn push_bytes(query: &mut String, bytes: &[u8]) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    query.push_str("E'\\\\x");
    for byte in bytes {
        query.push(char::from(DIGITS[usize::from(byte >> 4)]));
        query.push(char::from(DIGITS[usize::from(byte & 15)]));
    }
    query.push('\'');
}

/// As the next of several.
fn push_number(query: &mut String, number: Option<i64>) {
    query.push_str(", ");
    match number {
        Some(number) => query.push_str(&number.to_string()),
        None => query.push_str("NULL"),
    }
}

fn decode(id: RecordId, row: Shown) -> Result<Option<Box<Record>>> {
    let Some(rest) = row.rest else { return Ok(None) };
    let (scope, key) = (row.scope.unwrap_or_default(), row.key.unwrap_or_default());
    let operation = row.operation.unwrap_or_default();
    let texts = Texts { scope: &scope, key: &key, operation: &operation };
    let record = Record::decode_row(texts, &rest, row.answer.as_deref());
    match record {
        Ok(record) if record.id == id => Ok(Some(Box::new(record))),
        Ok(_) => Err(unreadable(Malformed { what: "record" })),
        Err(malformed) => Err(unreadable(malformed)),
    }
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

fn text(text: &str) -> Value<'_> {
    Value::Text(Some(Cow::Borrowed(text)))
}

fn bytes(bytes: &[u8]) -> Value<'_> {
    Value::Bytes(Some(Cow::Borrowed(bytes)))
}
