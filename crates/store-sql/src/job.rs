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

/// Withdrawn: over, and with words. What was delivered has none.
const WITHDRAWN: &str = "(job.stage = 3 AND job.last_error IS NOT NULL)";

/// Behind an insert into the table, which is called `job` there: what a promise does to a job of its name, see [`Jobs::promise`]. A
/// promise that is refused changes no row, and so returns none. `next` is the number that a new promise would get: what was withdrawn
/// has lost its place in its line.
///
/// [`Jobs::promise`]: oncegate_store::jobs::Jobs::promise
pub(crate) fn again(next: &str) -> String {
    let ended = format!("(job.stage = 2 OR {WITHDRAWN})");
    format!(
        "ON CONFLICT (id) DO UPDATE SET seq = CASE WHEN {WITHDRAWN} THEN {next} ELSE job.seq END, \
         effect = excluded.effect, payload = excluded.payload, line = excluded.line, \
         holder = excluded.holder, fence = excluded.fence, \
         created_at = CASE WHEN {ended} THEN excluded.created_at ELSE job.created_at END, \
         due_at = CASE WHEN {ended} THEN excluded.due_at ELSE job.due_at END, \
         tries = CASE WHEN {ended} THEN 0 ELSE job.tries END, \
         last_error = CASE WHEN {ended} THEN NULL ELSE job.last_error END, \
         over_at = CASE WHEN {ended} THEN NULL ELSE job.over_at END, \
         stage = CASE WHEN {ended} THEN 0 ELSE job.stage END \
         WHERE {WITHDRAWN} OR (job.line IS NOT DISTINCT FROM excluded.line AND (job.stage = 2 OR (job.effect = excluded.effect \
         AND job.payload = excluded.payload AND job.holder IS NOT DISTINCT FROM excluded.holder \
         AND job.fence IS NOT DISTINCT FROM excluded.fence)))"
    )
}

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
#[cfg(feature = "postgres")]
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
    /// What can be read of it: a row that cannot be read whole is in nobody's way, see [`Stage::Unreadable`]. Fails only if not even its
    /// name can be, by which it could be put aside.
    pub(crate) fn decode(self) -> std::result::Result<Job, Malformed> {
        let id = JobId::from_bytes(sixteen(&self.id).ok_or(Malformed { what: "name of a job" })?);
        let mut wrong = None;
        let mut name = |bytes: &[u8], what| {
            sixteen(bytes).unwrap_or_else(|| {
                wrong.get_or_insert(Malformed { what });
                [0; 16]
            })
        };
        let life = Token::from_bytes(name(&self.life, "life in a job"));
        let record = RecordId::from_bytes(name(&self.record, "record in a job"));
        let answers = self.holder.as_ref().zip(self.fence).map(|(token, fence)| Holder {
            life,
            token: Token::from_bytes(name(token, "holder in a job")),
            fence: Fence::from_raw(fence),
        });
        let receipt = || -> std::result::Result<Receipt, Malformed> {
            Ok(Receipt {
                reference: text(self.reference.as_deref()),
                answer: self.answer.as_deref().map(Answer::decode).transpose()?.map(Box::new),
            })
        };
        let read = match self.stage {
            WAITING => Ok(Stage::Waiting),
            DELIVERED => receipt().map(Stage::Delivered),
            PARKED => Ok(Stage::Parked),
            OVER if self.last_error.is_some() => Ok(Stage::Withdrawn),
            OVER => receipt().map(Stage::Done),
            _ => Err(Malformed { what: "stage of a job" }),
        };
        let stage = match (read, wrong) {
            (Err(wrong), _) | (Ok(Stage::Waiting | Stage::Delivered(_)), Some(wrong)) => {
                Stage::Unreadable(wrong)
            }
            (Ok(stage), _) => stage,
        };
        Ok(Job {
            id,
            effect: self.effect.into(),
            payload: self.payload,
            line: text(self.line.as_deref()),
            record,
            life,
            answers,
            created_at: Timestamp::from_micros(self.created_at),
            due_at: Timestamp::from_micros(self.due_at),
            tries: u32::try_from(self.tries).unwrap_or(u32::MAX),
            stage,
            last_error: text(self.last_error.as_deref()).map(|words| Reason::from_stored(&words)),
        })
    }
}

fn sixteen(bytes: &[u8]) -> Option<[u8; 16]> {
    bytes.try_into().ok()
}

/// Words for people, and the name of a line, which nobody compares here.
fn text(bytes: Option<&[u8]>) -> Option<Box<str>> {
    bytes.map(|bytes| String::from_utf8_lossy(bytes).into())
}

/// What a report writes. Where nothing is said, the column stays, but the error of the last try goes.
pub(crate) struct Said {
    pub(crate) stage: Option<i64>,
    /// Due so many microseconds from now.
    pub(crate) after: Option<i64>,
    /// So many tries do not count.
    pub(crate) given_back: i64,
    pub(crate) reference: Option<Vec<u8>>,
    pub(crate) answer: Option<Vec<u8>>,
    pub(crate) error: Option<Vec<u8>>,
}

impl Said {
    pub(crate) fn of(became: &Became) -> Self {
        let none =
            Self { stage: None, after: None, given_back: 0, reference: None, answer: None, error: None };
        let error = |why: &Reason| Some(why.to_string().into_bytes());
        match became {
            Became::Delivered(receipt) => Self { stage: Some(DELIVERED), ..none }.with(receipt),
            Became::Done(receipt) => Self { stage: Some(OVER), ..none }.with(receipt),
            Became::Later { after, why } => Self { after: Some(micros(*after)), error: error(why), ..none },
            Became::Away { after, why } => {
                Self { after: Some(micros(*after)), given_back: 1, error: error(why), ..none }
            }
            Became::Withdrawn(why) => Self { stage: Some(OVER), error: error(why), ..none },
            Became::Parked(why) => Self { stage: Some(PARKED), error: error(why), ..none },
        }
    }

    fn with(self, receipt: &Receipt) -> Self {
        let reference = receipt.reference.as_ref().map(|reference| reference.as_bytes().to_vec());
        Self { reference, answer: receipt.answer.as_ref().map(|answer| answer.encode()), ..self }
    }
}
