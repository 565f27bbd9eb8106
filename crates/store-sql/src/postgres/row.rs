//! Records as columns, both ways.
//!
//! What SQL decides by is a column. All else of a record is one value, its names in front (see [`pack`]): a column costs the server more than the
//! bytes in it, and each index that a table has costs every row that is written, also one that it knows nothing of. So what only few rows are found by is
//! apart, in a row of `mark` (see [`Mark`]).

use oncegate_core::codec::Malformed;
use oncegate_core::identity::RecordId;
use oncegate_core::record::codec::BODY_NAMES;
use oncegate_core::record::{Record, State, StateKind};
use oncegate_core::time::Timestamp;
use tokio_postgres::Row;

use super::error::Failure;

/// Reads a row of [`super::statements::Statements::select`]; the outer error is the conversation's, the inner one the row's.
pub(super) fn decode(row: &Row) -> Result<(RecordId, Result<Record, Malformed>), Failure> {
    let id: &[u8] = row.try_get(0)?;
    let id = RecordId::from_bytes(id.try_into().map_err(|_| Malformed { what: "record id" })?);
    Ok((id, unpack(id, row.try_get(1)?, row.try_get(2)?)))
}

/// Where [`decode`]'s rows have their place.
pub(super) const SEQ: usize = 3;

/// Reads a body and a response. A body under the id of another record is damage: ids are made of
/// scope and key.
pub(super) fn unpack(id: RecordId, body: &[u8], response: Option<&[u8]>) -> Result<Record, Malformed> {
    let record = Record::decode_body(body, response)?;
    if record.id == id { Ok(record) } else { Err(Malformed { what: "record id" }) }
}

/// What stands in front of a value, for SQL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Name {
    Scope,
    Key,
    Operation,
}

impl Name {
    /// The condition that this name, in the value `rest`, is the parameter `?`, which is a
    /// [`body_name`].
    pub(super) fn is(self, rest: &str) -> String {
        format!("substring({rest} FROM {} FOR octet_length(?)) = ?", self.start(rest))
    }

    /// Where its length is, counted from 1.
    fn start(self, rest: &str) -> String {
        match self {
            Self::Scope => (BODY_NAMES + 1).to_string(),
            Self::Key => Self::Scope.end(rest),
            Self::Operation => Self::Key.end(rest),
        }
    }

    /// Where the next one's is. Never an error, whatever there is in place of a length: a row that cannot be read hides no other.
    fn end(self, rest: &str) -> String {
        let start = self.start(rest);
        let length =
            format!("('x' || encode(substring({rest} FROM {start} FOR 4), 'hex'))::bit(32)::integer");
        format!("({start} + 4 + least({length}, 1 << 24))")
    }
}

/// The value, in SQL, of a moment when a life began, as it stands in the value `rest`: compared by its bytes.
pub(super) fn created_at(rest: &str) -> String {
    format!("substring({rest} FROM 2 FOR 8)")
}

/// Who looks for a row that no note says anything of (see the schema). Each finds its own in one index: `look_at` is the moment, in a range of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Look {
    /// The reconciler, for what is unknown.
    Doubted,
    /// The reaper, for what is neither in progress nor completed. Of waiting work that is its end; what is to be run is found by its [`Mark`].
    Expiring,
    /// The reaper, for an answer that was written with its row, in a caller's transaction.
    Kept,
}

impl Look {
    /// So many bits are the moment's. Until the year 38,000.
    const BITS: u32 = 60;

    /// What is added to a moment of this kind.
    pub(super) const fn first(self) -> i64 {
        (self as i64) << Self::BITS
    }

    /// The value of `look_at`.
    pub(super) fn at(self, moment: Timestamp) -> i64 {
        self.first() | moment.as_micros().clamp(0, Self::LAST)
    }

    /// The moment that is in it.
    pub(super) const fn moment(look_at: i64) -> i64 {
        look_at & Self::LAST
    }

    /// The last moment that it can say.
    pub(super) const LAST: i64 = (1 << Self::BITS) - 1;

    /// When which worker should look at a row that is written by the store itself.
    pub(super) fn of(record: &Record) -> Option<i64> {
        match record.state.kind() {
            // By notes.
            StateKind::InProgress | StateKind::Completed => None,
            StateKind::Unknown => record.due_at().map(|moment| Self::Doubted.at(moment)),
            StateKind::Pending | StateKind::FailedRetryable | StateKind::Expired => {
                record.expires_at.map(|moment| Self::Expiring.at(moment))
            }
        }
    }

    /// The same of one that is written in a caller's transaction: of an answer that is, there is no note.
    pub(super) fn of_joined(record: &Record) -> Option<i64> {
        match record.state.kind() {
            StateKind::Completed => record.expires_at.map(|moment| Self::Kept.at(moment)),
            _ => Self::of(record),
        }
    }
}

/// What only few rows are found by: those that wait, those whose outcome is unknown, those that a provider has a name for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Mark<'r> {
    /// The line that it waits in: what waits of one operation and one tenant. A hash; two lines
    /// that share one share their turns, which is harmless.
    pub(super) line: Option<i64>,
    /// From when on it may be run.
    pub(super) waits_since: Option<i64>,
    /// What waits there.
    pub(super) operation: Option<&'r str>,
    /// Since when its outcome has been unknown.
    pub(super) doubt_since: Option<i64>,
    /// The same of one that waits for an operator.
    pub(super) parked_since: Option<i64>,
    /// What the provider calls it.
    pub(super) reference: Option<&'r [u8]>,
}

impl<'r> Mark<'r> {
    /// All of it empty: the row has none.
    pub(super) fn of(record: &'r Record) -> Self {
        let reference = record.provider_reference.as_deref().map(str::as_bytes);
        match &record.state {
            State::Pending { run_after } => Self {
                line: Some(line_of(record)),
                waits_since: Some(run_after.as_micros()),
                operation: Some(record.operation.as_str()),
                reference,
                ..Self::default()
            },
            State::Unknown(doubt) => {
                let since = doubt.since.as_micros();
                Self {
                    doubt_since: Some(since),
                    parked_since: doubt.parked.then_some(since),
                    reference,
                    ..Self::default()
                }
            }
            _ => Self { reference, ..Self::default() },
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

fn line_of(record: &Record) -> i64 {
    digest(&[record.operation.as_str().as_bytes(), b" ", record.line_scope().as_bytes()])
}

/// FNV-1a: the same in every version of this program, because nodes of two versions must agree on a line, and on a lock.
pub(super) fn digest(parts: &[&[u8]]) -> i64 {
    let start = 0xcbf2_9ce4_8422_2325_u64;
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    parts.iter().copied().flatten().fold(start, step).cast_signed()
}
