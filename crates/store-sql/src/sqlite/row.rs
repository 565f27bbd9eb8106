//! A record as a row of `record`, both ways. The columns are those that SQL decides or searches
//! by; body and response are all of the record.

use oncegate_core::codec::Malformed;
use oncegate_core::identity::RecordId;
use oncegate_core::record::{Record, State};
use oncegate_core::time::Timestamp;
use oncegate_store::join::Value;
use oncegate_store::row::state_column;
use rusqlite::{Row, Statement};

use super::error::Failure;

/// The columns in the order in which [`RecordRow::bind`] binds them, from `?1` on.
pub(super) const COLUMNS: [&str; 11] = [
    "id",
    "version",
    "state",
    "due_at",
    "line",
    "give_up_at",
    "doubt_since",
    "parked_since",
    "reference",
    "response",
    "body",
];

/// One record, laid out as [`COLUMNS`].
pub(super) struct RecordRow<'r> {
    record: &'r Record,
    line: Option<String>,
    give_up_at: Option<i64>,
    doubt_since: Option<i64>,
    parked_since: Option<i64>,
    body: Vec<u8>,
    response: Option<Vec<u8>>,
}

impl<'r> RecordRow<'r> {
    pub(super) fn new(record: &'r Record) -> Self {
        let (mut line, mut give_up_at) = (None, None);
        let (mut doubt_since, mut parked_since) = (None, None);
        match &record.state {
            State::Pending { .. } => {
                line = Some(line_of(record));
                give_up_at = record.expires_at.map(Timestamp::as_micros);
            }
            State::Unknown(doubt) => {
                doubt_since = Some(doubt.since.as_micros());
                parked_since = doubt_since.filter(|_| doubt.parked);
            }
            State::InProgress | State::Completed(_) | State::FailedRetryable | State::Expired => {}
        }
        Self {
            record,
            line,
            give_up_at,
            doubt_since,
            parked_since,
            body: record.encode_body(),
            response: record.encode_answer(),
        }
    }

    fn due_at(&self) -> Option<i64> {
        self.record.due_at().map(Timestamp::as_micros)
    }

    pub(super) fn bind(&self, statement: &mut Statement<'_>) -> rusqlite::Result<()> {
        statement.raw_bind_parameter(1, &self.record.id.as_bytes()[..])?;
        statement.raw_bind_parameter(2, self.record.version.as_raw())?;
        statement.raw_bind_parameter(3, state_column(self.record))?;
        statement.raw_bind_parameter(4, self.due_at())?;
        statement.raw_bind_parameter(5, self.line.as_deref())?;
        statement.raw_bind_parameter(6, self.give_up_at)?;
        statement.raw_bind_parameter(7, self.doubt_since)?;
        statement.raw_bind_parameter(8, self.parked_since)?;
        statement.raw_bind_parameter(9, self.record.provider_reference.as_deref())?;
        statement.raw_bind_parameter(10, self.response.as_deref())?;
        statement.raw_bind_parameter(11, &self.body[..])
    }

    /// The same values, for a caller's transaction.
    pub(super) fn values(self) -> Vec<Value<'static>> {
        let due_at = self.due_at();
        let reference = self.record.provider_reference.as_deref().map(|name| name.to_owned().into());
        vec![
            id_value(self.record.id),
            Value::Int(Some(self.record.version.as_raw())),
            Value::Int(Some(state_column(self.record).into())),
            Value::Int(due_at),
            Value::Text(self.line.map(Into::into)),
            Value::Int(self.give_up_at),
            Value::Int(self.doubt_since),
            Value::Int(self.parked_since),
            Value::Text(reference),
            Value::Bytes(self.response.map(Into::into)),
            Value::Bytes(Some(self.body.into())),
        ]
    }
}

pub(super) fn id_value(id: RecordId) -> Value<'static> {
    Value::Bytes(Some(id.as_bytes().to_vec().into()))
}

/// What waits of one operation and one tenant waits in one line. Neither has a line break in it.
fn line_of(record: &Record) -> String {
    [record.operation.as_str(), "\n", record.line_scope()].concat()
}

/// The operation whose line it is.
pub(super) fn operation_of(line: &str) -> &str {
    line.split_once('\n').map_or(line, |(operation, _)| operation)
}

/// Reads the columns `id`, `body` and `response` from the first three places of a row. A body
/// under the id of another record is damage: ids are made of scope and key.
pub(super) fn decode(row: &Row<'_>) -> Result<Record, Failure> {
    let id = RecordId::from_bytes(row.get(0)?);
    let damaged = |_| Malformed { what: "record" };
    let body = row.get_ref(1)?.as_blob().map_err(damaged)?;
    let response = row.get_ref(2)?.as_blob_or_null().map_err(damaged)?;
    let record = Record::decode_body(body, response)?;
    if record.id == id { Ok(record) } else { Err(Malformed { what: "record id" }.into()) }
}
