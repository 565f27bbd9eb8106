//! Jobs as columns: what both dialects write and read.
//!
//! What came from outside (a line, an error, a reference) is bytes, because PostgreSQL's `text` cannot hold every text. Not here: the
//! statements.

use std::borrow::Cow;

use oncegate_core::codec::Malformed;
use oncegate_core::identity::{Fence, RecordId, Token};
use oncegate_core::record::{Holder, Reason};
use oncegate_core::response::Answer;
use oncegate_core::time::{Timestamp, micros};
use oncegate_store::jobs::{Became, Job, JobId, PROMISED_OTHERWISE, Receipt, Stage};
use oncegate_store::join::{Cause, Connection, Value};
use oncegate_store::{Effect, Kind, Result, StoreError};

/// The columns that a promise brings, in the order of [`promised`].
pub(crate) const PROMISED: &str =
    "id, effect, payload, line, record, life, holder, fence, created_at, due_at";
/// How many there are.
pub(crate) const PROMISED_COUNT: usize = 10;
/// The columns of a whole job, in the order of [`Columns`].
pub(crate) const COLUMNS: &str = "id, effect, payload, line, record, life, holder, fence, created_at, due_at, tries, stage, \
     last_error, reference, answer";

/// Behind an insert into the table, which is called `job` there: what a promise does to a job of its name, see [`Jobs::promise`]. A
/// promise that is refused changes no row, and so returns none.
///
/// [`Jobs::promise`]: oncegate_store::jobs::Jobs::promise
pub(crate) const AGAIN: &str = "ON CONFLICT (id) DO UPDATE SET effect = excluded.effect, payload = excluded.payload, \
     holder = excluded.holder, fence = excluded.fence, \
     created_at = CASE WHEN job.stage = 2 THEN excluded.created_at ELSE job.created_at END, \
     due_at = CASE WHEN job.stage = 2 THEN excluded.due_at ELSE job.due_at END, \
     tries = CASE WHEN job.stage = 2 THEN 0 ELSE job.tries END, \
     last_error = CASE WHEN job.stage = 2 THEN NULL ELSE job.last_error END, \
     stage = CASE WHEN job.stage = 2 THEN 0 ELSE job.stage END \
     WHERE job.line IS NOT DISTINCT FROM excluded.line AND (job.stage = 2 OR (job.effect = excluded.effect \
     AND job.payload = excluded.payload AND job.holder IS NOT DISTINCT FROM excluded.holder \
     AND job.fence IS NOT DISTINCT FROM excluded.fence))";

const WAITING: i64 = 0;
const DELIVERED: i64 = 1;
const PARKED: i64 = 2;
const OVER: i64 = 3;

/// What a promise binds.
pub(crate) fn promised(job: &Job) -> [Value<'_>; PROMISED_COUNT] {
    let bytes = |bytes: &'_ [u8]| Value::Bytes(Some(Cow::Owned(bytes.to_vec())));
    [
        bytes(job.id.as_bytes()),
        Value::Text(Some(Cow::Borrowed(&job.effect))),
        Value::Bytes(Some(Cow::Borrowed(&job.payload))),
        Value::Bytes(job.line.as_ref().map(|line| Cow::Borrowed(line.as_bytes()))),
        bytes(job.record.as_bytes()),
        bytes(job.life.as_bytes()),
        Value::Bytes(job.answers.map(|holder| Cow::Owned(holder.token.as_bytes().to_vec()))),
        Value::Int(job.answers.map(|holder| holder.fence.as_raw())),
        Value::Int(Some(job.created_at.as_micros())),
        Value::Int(Some(job.due_at.as_micros())),
    ]
}

/// Writes a job in the transaction that `connection` is in, by its dialect's statement; refused, unless that shows a row.
pub(crate) async fn enqueue_one(connection: &mut dyn Connection, statement: &str, job: &Job) -> Result<()> {
    let failed = |cause: Cause| StoreError::new(Kind::Other, Effect::None, "enqueue").because(cause);
    let shown = connection.ask(statement, &promised(job)).await.map_err(failed)?;
    if shown.is_empty() {
        return Err(failed(format!("{}: {PROMISED_OTHERWISE}", job.id).into()));
    }
    Ok(())
}

/// Promises in the order in which they are to be written: transactions that promise into several lines take them in one order, so that
/// they do not wait for each other in a circle. Within a line the order stays.
pub(crate) fn in_order(jobs: &[Job]) -> Vec<&Job> {
    let mut jobs: Vec<_> = jobs.iter().collect();
    jobs.sort_by(|one, other| one.line.cmp(&other.line));
    jobs
}

/// A job's row.
pub(crate) struct Columns {
    pub(crate) id: Vec<u8>,
    pub(crate) effect: String,
    pub(crate) payload: Vec<u8>,
    pub(crate) line: Option<Vec<u8>>,
    pub(crate) record: Vec<u8>,
    pub(crate) life: Vec<u8>,
    pub(crate) holder: Option<Vec<u8>>,
    pub(crate) fence: Option<i64>,
    pub(crate) created_at: i64,
    pub(crate) due_at: i64,
    pub(crate) tries: i64,
    pub(crate) stage: i64,
    pub(crate) last_error: Option<Vec<u8>>,
    pub(crate) reference: Option<Vec<u8>>,
    pub(crate) answer: Option<Vec<u8>>,
}

impl Columns {
    pub(crate) fn decode(self) -> std::result::Result<Job, Malformed> {
        let life = Token::from_bytes(sixteen(&self.life)?);
        let answers = match (&self.holder, self.fence) {
            (Some(token), Some(fence)) => {
                let token = Token::from_bytes(sixteen(token)?);
                Some(Holder { life, token, fence: Fence::from_raw(fence) })
            }
            _ => None,
        };
        let receipt = Receipt {
            reference: text(self.reference)?,
            answer: self.answer.map(|bytes| Answer::decode(&bytes)).transpose()?.map(Box::new),
        };
        let stage = match self.stage {
            WAITING => Stage::Waiting,
            DELIVERED => Stage::Delivered(receipt),
            PARKED => Stage::Parked,
            OVER => Stage::Done(receipt),
            _ => return Err(Malformed { what: "stage of a job" }),
        };
        Ok(Job {
            id: JobId::from_bytes(sixteen(&self.id)?),
            effect: self.effect.into(),
            payload: self.payload,
            line: text(self.line)?,
            record: RecordId::from_bytes(sixteen(&self.record)?),
            life,
            answers,
            created_at: Timestamp::from_micros(self.created_at),
            due_at: Timestamp::from_micros(self.due_at),
            tries: u32::try_from(self.tries).unwrap_or(u32::MAX),
            stage,
            last_error: text(self.last_error)?.map(|words| Reason::from_stored(&words)),
        })
    }
}

fn sixteen(bytes: &[u8]) -> std::result::Result<[u8; 16], Malformed> {
    bytes.try_into().map_err(|_| Malformed { what: "name in a job" })
}

fn text(bytes: Option<Vec<u8>>) -> std::result::Result<Option<Box<str>>, Malformed> {
    let text = |bytes| String::from_utf8(bytes).map_err(|_| Malformed { what: "text of a job" });
    Ok(bytes.map(text).transpose()?.map(String::into_boxed_str))
}

/// What a report writes. Where nothing is said, the column stays, but the error of the last try goes.
pub(crate) struct Said {
    pub(crate) stage: Option<i64>,
    /// Due so many microseconds from now.
    pub(crate) after: Option<i64>,
    pub(crate) reference: Option<Vec<u8>>,
    pub(crate) answer: Option<Vec<u8>>,
    pub(crate) error: Option<Vec<u8>>,
}

impl Said {
    pub(crate) fn of(became: &Became) -> Self {
        let none = Self { stage: None, after: None, reference: None, answer: None, error: None };
        let error = |why: &Reason| Some(why.to_string().into_bytes());
        match became {
            Became::Delivered(receipt) => Self { stage: Some(DELIVERED), ..none }.with(receipt),
            Became::Done(receipt) => Self { stage: Some(OVER), ..none }.with(receipt),
            Became::Later { after, why } => Self { after: Some(micros(*after)), error: error(why), ..none },
            Became::Parked(why) => Self { stage: Some(PARKED), error: error(why), ..none },
        }
    }

    fn with(self, receipt: &Receipt) -> Self {
        let reference = receipt.reference.as_ref().map(|reference| reference.as_bytes().to_vec());
        Self { reference, answer: receipt.answer.as_ref().map(|answer| answer.encode()), ..self }
    }
}
