//! Records as columns, both ways.

use oncegate_core::codec::Malformed;
use oncegate_core::identity::RecordId;
use oncegate_core::record::codec::{Texts, state_number};
use oncegate_core::record::{Record, State, StateKind};
use oncegate_core::time::Timestamp;
use tokio_postgres::Row;

use super::error::Failure;

/// Reads a row of [`super::statements::Statements::select`]; the outer error is the conversation's, the inner one the row's.
pub(super) fn decode(row: &Row) -> Result<(RecordId, Result<Record, Malformed>), Failure> {
    let id: &[u8] = row.try_get(0)?;
    let id = RecordId::from_bytes(id.try_into().map_err(|_| Malformed { what: "record id" })?);
    let texts = Texts { scope: row.try_get(1)?, key: row.try_get(2)?, operation: row.try_get(3)? };
    let record = Record::decode_row(texts, row.try_get(4)?, row.try_get(5)?);
    // The id is made of scope and key: a row under another's id was not written by us.
    let record = record
        .and_then(|record| if record.id == id { Ok(record) } else { Err(Malformed { what: "record" }) });
    Ok((id, record))
}

/// The number of a state in its column.
pub(super) fn state_column(state: StateKind) -> i16 {
    i16::from(state_number(state))
}

/// Since when its outcome has been unknown, if it is.
pub(super) const fn doubt_since(record: &Record) -> Option<i64> {
    match &record.state {
        State::Unknown(doubt) => Some(doubt.since.as_micros()),
        _ => None,
    }
}

/// When a worker should look at it, if that is off the usual path. Of waiting work that is only its end: what is to be run is found line by
/// line, and nobody who looks for something else should come across it.
pub(super) fn attention_at(record: &Record) -> Option<i64> {
    let first = match record.state.kind() {
        StateKind::InProgress | StateKind::Completed => return None,
        StateKind::Pending => record.expires_at,
        StateKind::FailedRetryable | StateKind::Unknown | StateKind::Expired => record.due_at(),
    };
    first.map(Timestamp::as_micros)
}
