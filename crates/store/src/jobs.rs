//! The outbox's rows: promises of an external call, written in the transaction that made them.
//!
//! **Invariant:** a job is there if and only if the transaction that promised it was committed. It leaves `waiting` only by a report
//! of whoever has claimed it, or by an operator.
//!
//! Not here: calling anybody (the engine's outbox).

use std::future::Future;
use std::time::Duration;

use oncegate_core::identity::{RecordId, Token};
use oncegate_core::record::{Holder, Reason};
use oncegate_core::response::Answer;
use oncegate_core::time::Timestamp;

use crate::join::{Connection, Join};
use crate::{Result, Store};

/// A job's name: derived from the life that promised it and its place among that life's promises, so the same promise has the same name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobId(pub [u8; 16]);

/// A promise of an external call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// Its name.
    pub id: JobId,
    /// Which effect it is for.
    pub effect: Box<str>,
    /// What the effect is to be told: JSON, as a rule.
    pub payload: Vec<u8>,
    /// Jobs of one line are delivered one after the other, in the order in which they were promised. `None`: in any order.
    pub line: Option<Box<str>>,
    /// The record whose request promised it.
    pub record: RecordId,
    /// The life of that record.
    pub life: Token,
    /// Whose attempt ends with this job's answer; `None`: the request has been answered already.
    pub answers: Option<Holder>,
    /// When it was promised.
    pub created_at: Timestamp,
    /// Not before then; while it is claimed, the end of the claim.
    pub due_at: Timestamp,
    /// How often it was claimed.
    pub tries: u32,
    /// How far it has come.
    pub stage: Stage,
    /// Why the last try did not deliver it.
    pub last_error: Option<Reason>,
}

/// How far a job has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stage {
    /// To be delivered.
    Waiting,
    /// Delivered, and this is what came back; what follows from it is still to be written.
    Delivered(Receipt),
    /// Given up, and before an operator.
    Parked,
    /// Over.
    Done(Receipt),
}

/// What an effect gave back.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Receipt {
    /// The provider's name for it.
    pub reference: Option<Box<str>>,
    /// The answer, where it is the record's.
    pub answer: Option<Box<Answer>>,
}

/// Who wants what of the outbox.
#[derive(Clone, Debug)]
pub struct Claim<'c> {
    /// Made for this claim.
    pub token: Token,
    /// Of these effects only: those that the claimer can bring about.
    pub effects: &'c [&'c str],
    /// Due by then.
    pub now: Timestamp,
    /// For how long from now; then anybody may claim it again.
    pub span: Duration,
    /// At most so many.
    pub limit: usize,
}

/// What became of a claimed job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Which.
    pub id: JobId,
    /// What.
    pub became: Became,
}

/// What became of a claimed job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Became {
    /// Delivered; what follows is still to be written. The claim goes on.
    Delivered(Receipt),
    /// Over.
    Done(Receipt),
    /// Not delivered: again, from then on.
    Later {
        /// When.
        due_at: Timestamp,
        /// Why.
        why: Reason,
    },
    /// Not delivered, and not tried again by a machine.
    Parked(Reason),
}

/// How full the outbox is, for one effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Depth {
    /// The effect.
    pub effect: Box<str>,
    /// Jobs that wait or are claimed.
    pub waiting: u64,
    /// Jobs before an operator.
    pub parked: u64,
    /// When the oldest of those that wait was promised.
    pub oldest: Option<Timestamp>,
}

/// A store that keeps an outbox beside its records.
pub trait Jobs: Store {
    /// Claims jobs that are due, the longest due first, without waiting for others that do the same. Of a line, only the first that is
    /// not over. Those that are delivered already, and whose claimer died, come too.
    fn claim(&self, claim: &Claim<'_>) -> impl Future<Output = Result<Vec<Job>>> + Send;

    /// Writes what became of jobs that are still claimed under `token`, in one commit; says of each whether it was.
    fn report(&self, token: Token, reports: &[Report]) -> impl Future<Output = Result<Vec<bool>>> + Send;

    /// One job.
    fn job(&self, id: JobId) -> impl Future<Output = Result<Option<Job>>> + Send;

    /// What a record has promised, oldest first.
    fn jobs_of(&self, record: RecordId) -> impl Future<Output = Result<Vec<Job>>> + Send;

    /// Jobs before an operator, oldest first, after this one; at most `limit`.
    fn parked(&self, after: Option<JobId>, limit: usize) -> impl Future<Output = Result<Vec<Job>>> + Send;

    /// Puts a parked job before the machine again, as if nobody had tried; says whether it was parked.
    fn unpark(&self, id: JobId, now: Timestamp) -> impl Future<Output = Result<bool>> + Send;

    /// How full it is, effect by effect.
    fn depth(&self) -> impl Future<Output = Result<Vec<Depth>>> + Send;

    /// Drops at most `limit` jobs that were over before this; says how many.
    fn drop_jobs(&self, before: Timestamp, limit: usize) -> impl Future<Output = Result<usize>> + Send;
}

/// A store whose outbox can be written to in a caller's transaction.
pub trait Enqueue: Join + Jobs {
    /// Writes jobs in the transaction: they are promised when the caller has committed, and not before.
    fn enqueue(
        &self,
        connection: &mut dyn Connection,
        jobs: &[Job],
    ) -> impl Future<Output = Result<()>> + Send;
}
