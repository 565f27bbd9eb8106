//! The outbox's rows: promises of an external call, written in the transaction that made them.
//!
//! **Invariant:** a job is there if and only if the transaction that promised it was committed. It leaves `waiting` only by a report
//! of whoever has claimed it, or by an operator. Whatever becomes of it, it can come to an end: no line waits for ever.
//!
//! Not here: calling anybody (the engine's outbox).

use std::fmt;
use std::future::Future;
use std::str::FromStr;
use std::time::Duration;

use oncegate_core::codec::{Encoder, Malformed};
use oncegate_core::identity::{RecordId, Token, read_letters, spell};
use oncegate_core::record::{Holder, Reason};
use oncegate_core::response::Answer;
use oncegate_core::time::Timestamp;
use sha2::{Digest, Sha256};

use crate::join::{Connection, Join};
use crate::{Result, Store};

/// A job's name: derived from the life that promised it and its place among that life's promises, so the same promise has the same name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobId([u8; 16]);

const PREFIX: &str = "job_";

impl JobId {
    /// The job that a life promised in this place: 0 is its first.
    #[must_use]
    pub fn of(life: Token, place: u32) -> Self {
        let mut frame = Encoder::new();
        frame.bytes(b"oncegate job 1");
        frame.bytes(life.as_bytes());
        frame.u32(place);
        let digest = Sha256::digest(frame.finish());
        let mut id = [0; 16];
        id.copy_from_slice(&digest[..16]);
        Self(id)
    }

    /// Wraps stored bytes.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// The bytes, as stores index them.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}", spell(self.0))
    }
}

/// Not a job's id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotAJobId;

impl fmt::Display for NotAJobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a job's id is `{PREFIX}` followed by 26 letters and digits")
    }
}

impl std::error::Error for NotAJobId {}

impl FromStr for JobId {
    type Err = NotAJobId;

    fn from_str(text: &str) -> std::result::Result<Self, NotAJobId> {
        text.strip_prefix(PREFIX).and_then(read_letters).map(Self).ok_or(NotAJobId)
    }
}

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

impl Job {
    /// A promise that nobody has tried to keep yet: due at once, in any order, and nobody waits for its answer.
    #[must_use]
    pub fn promised(
        id: JobId,
        effect: &str,
        payload: Vec<u8>,
        whose: (RecordId, Token),
        now: Timestamp,
    ) -> Self {
        Self {
            id,
            effect: effect.into(),
            payload,
            line: None,
            record: whose.0,
            life: whose.1,
            answers: None,
            created_at: now,
            due_at: now,
            tries: 0,
            stage: Stage::Waiting,
            last_error: None,
        }
    }

    /// The same is promised, by the same attempt, whenever that is.
    #[must_use]
    pub fn is_promised_as(&self, other: &Self) -> bool {
        self.id == other.id
            && (&self.effect, &self.payload, &self.line) == (&other.effect, &other.payload, &other.line)
            && self.answers == other.answers
    }

    /// What the provider is to dedupe by: the same at every try, on every node.
    ///
    /// A job whose answer is the record's goes by the record's own derived key, because that is what a probe asks by and a webhook
    /// echoes when nobody knows how it ended. Others must not be taken for it, and go by their own name.
    #[must_use]
    pub fn downstream_key(&self) -> String {
        match self.answers {
            Some(_) => self.record.derived_key(self.life),
            None => spell(self.id.0),
        }
    }
}

/// Why a promise is refused whose name a job has already: a request that is run once more promises under the names of its first run.
pub const PROMISED_OTHERWISE: &str = "an earlier run of the same request has promised something else under this name, or in another line, and \
     that job is not parked; nothing was written. While it waits, try again when it is parked or settled; once it is done, only what it \
     promised can be promised again";

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
    /// Over without having been delivered, as far as anybody knows: [`Job::last_error`] says why.
    Withdrawn,
    /// To be delivered, or delivered, but this release cannot read all of it: what could be read is here, and no more is to be done with it
    /// than to put it before an operator.
    Unreadable(Malformed),
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
    /// For how long from now, by the store's clock; then anybody may claim it again.
    pub span: Duration,
    /// At most so many.
    pub limit: usize,
    /// Of them, at most so many that were claimed before. Those that were not are found apart, however many of the others are due.
    pub again: usize,
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
    /// Not delivered: again after a while, by the store's clock.
    Later {
        /// How long.
        after: Duration,
        /// Why.
        why: Reason,
    },
    /// The same, and this try does not count.
    Away {
        /// How long.
        after: Duration,
        /// Why.
        why: Reason,
    },
    /// Not delivered, and not tried again by a machine.
    Parked(Reason),
    /// Not delivered, and not to be delivered any more: it is over.
    Withdrawn(Reason),
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

/// A store that keeps an outbox beside its records. Time is the store's own clock, so that no node claims early what another holds.
pub trait Jobs: Store {
    /// Writes jobs in a transaction of their own: for promises that go with no other write.
    ///
    /// # Contract
    /// - Every field comes back as it was promised, and a promise made again is one promise. (`every_field_of_a_job_comes_back`)
    /// - Of a name whose job is parked, it takes that job's place: what is promised now is due, and its tries count from the start.
    ///   (`a_promise_takes_the_place_of_a_parked_one`)
    /// - Of a name whose job was withdrawn, it is a new promise, and the last of its line. (`a_withdrawn_promise_can_be_made_again`)
    /// - Of a name whose job stands and is another, or is in another line, it is refused, and nothing is written.
    ///   (`a_promise_that_stands_is_not_replaced`)
    fn promise(&self, jobs: &[Job]) -> impl Future<Output = Result<()>> + Send;

    /// Claims jobs that are due, the longest due first, without waiting for others that do the same. Of a line, only the first that is
    /// not over. Those that are delivered already, and whose claimer died, come too.
    ///
    /// # Contract
    /// - Of racing claimers, exactly one gets each job. (`racing_claimers_share_the_jobs`)
    /// - A claim has an end, and then the job is anybody's. (`a_claim_ends`)
    /// - Only what is due, of the effects that were asked for, the longest due first. (`only_what_is_due_is_claimed`)
    /// - Jobs of one line come one after the other, as they were promised. (`a_line_is_kept_in_order`)
    /// - A parked job holds back its own line, and no other. (`a_parked_job_holds_back_its_own_line`)
    /// - However many are due that were claimed before, no more of them come than were asked for. (`what_was_tried_stands_in_no_way`)
    /// - One that cannot be read comes as such, and the others come all the same. (each store's own tests)
    fn claim(&self, claim: &Claim<'_>) -> impl Future<Output = Result<Vec<Job>>> + Send;

    /// Writes what became of jobs that are still claimed under `token`, in one commit; says of each whether it was.
    ///
    /// # Contract
    /// - Under another token, or after the job has ended, nothing is written. (`only_the_claimer_reports`)
    /// - What came back is kept, also when the claimer dies before the end. (`what_was_delivered_is_kept`)
    /// - A try that does not count is not counted. (`a_try_that_does_not_count_is_not_counted`)
    fn report(&self, token: Token, reports: &[Report]) -> impl Future<Output = Result<Vec<bool>>> + Send;

    /// One job.
    fn job(&self, id: JobId) -> impl Future<Output = Result<Option<Job>>> + Send;

    /// What a record has promised, oldest first.
    ///
    /// # Contract
    /// - All of them, whatever their stage, and nobody else's. (`every_field_of_a_job_comes_back`)
    fn jobs_of(&self, record: RecordId) -> impl Future<Output = Result<Vec<Job>>> + Send;

    /// Jobs before an operator, oldest first, after this one; at most `limit`.
    ///
    /// # Contract
    /// - Pages show each once. (`parked_jobs_are_listed_and_put_back`)
    fn parked(&self, after: Option<JobId>, limit: usize) -> impl Future<Output = Result<Vec<Job>>> + Send;

    /// Puts a parked job before the machine again, as if nobody had tried; says whether it was parked.
    ///
    /// # Contract
    /// - It is due at once, and its tries count from the start. (`parked_jobs_are_listed_and_put_back`)
    fn unpark(&self, id: JobId) -> impl Future<Output = Result<bool>> + Send;

    /// Ends a parked job, as it was read; says whether it was still parked, and nobody had tried it since.
    ///
    /// # Contract
    /// - It is over, with these words, and its line goes on. (`a_withdrawn_job_lets_its_line_go_on`)
    /// - One that has been tried since it was read is left alone. (`a_withdrawn_job_lets_its_line_go_on`)
    fn withdraw(&self, parked: &Job, why: &Reason) -> impl Future<Output = Result<bool>> + Send;

    /// How full it is, effect by effect; what is over does not count.
    ///
    /// # Contract
    /// - Each effect with its own numbers. (`depth_is_true`)
    fn depth(&self) -> impl Future<Output = Result<Vec<Depth>>> + Send;

    /// Drops at most `limit` jobs that were over before this; says how many.
    ///
    /// # Contract
    /// - Only what is over goes, and only once it is old. (`only_old_jobs_that_are_over_are_dropped`)
    fn drop_jobs(&self, before: Timestamp, limit: usize) -> impl Future<Output = Result<usize>> + Send;
}

/// A store whose outbox can be written to in a caller's transaction.
pub trait Enqueue: Join + Jobs {
    /// Writes jobs in the transaction: they are promised when the caller has committed, and not before. A name that has a job already
    /// is as in [`Jobs::promise`]; after a refusal the caller rolls back.
    ///
    /// Transactions that promise into one line wait for each other until they end, so that the order of a line is that of the commits.
    fn enqueue(
        &self,
        connection: &mut dyn Connection,
        jobs: &[Job],
    ) -> impl Future<Output = Result<()>> + Send;
}

#[cfg(test)]
mod tests {
    use oncegate_core::identity::Fence;

    use super::*;

    fn life(n: u8) -> Token {
        Token::from_bytes([n; 16])
    }

    /// Providers remember downstream keys for weeks: a release that derived others would do everything again.
    /// Expected by python3: hashlib.sha256 of the length-prefixed frame, see `oncegate_core::codec`.
    #[test]
    fn names_and_downstream_keys_are_pinned_and_read_back() {
        let id = JobId::of(life(1), 0);
        assert_eq!(id.to_string(), "job_0dhda0ngyf0nt55mp420e61ftv");
        assert_eq!(id.to_string().parse(), Ok(id));
        assert_ne!(id, JobId::of(life(1), 1));
        assert_ne!(id, JobId::of(life(2), 0));
        for wrong in ["", "job_", "job_x", "op_00000000000000000000000000", &id.to_string().to_uppercase()] {
            assert_eq!(wrong.parse::<JobId>(), Err(NotAJobId), "{wrong}");
        }
        let record = RecordId::from_bytes([7; 16]);
        let now = Timestamp::from_micros(0);
        let mut job = Job::promised(id, "charge", Vec::new(), (record, life(1)), now);
        assert_eq!(format!("job_{}", job.downstream_key()), id.to_string());
        job.answers = Some(Holder { life: life(1), token: life(2), fence: Fence::from_raw(3) });
        assert_eq!(job.downstream_key(), record.derived_key(life(1)), "what probes and webhooks go by");
    }
}
