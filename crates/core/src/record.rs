//! The row of one scope and key: what stores keep and [`crate::decide`] reads.
//!
//! **Invariant:** a record is only ever changed by `decide`, and every change raises its version. What must not change
//! half-way through a rolling deploy is frozen into [`Terms`] when a life begins.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use crate::fingerprint::Fingerprint;
use crate::identity::{Fence, RecordId, Token, Version};
use crate::policy::{ForwardKey, Policy};
use crate::response::Answer;
use crate::scope::{Address, Operation};
use crate::time::{Now, Timestamp};

pub mod codec;
mod journal;
mod parts;

pub use journal::{Changed, Journal, Phase, PhaseKind, Progress, Visit};
pub use parts::{Evidence, RecoveryPoint, StoredRequest};

/// One key's whole story so far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Public name; derived from the address.
    pub id: RecordId,
    /// Scope and key.
    pub address: Address,
    /// The token that began this life. Probes, webhooks and downstream keys carry it, so that an effect of an earlier
    /// life cannot settle a later one.
    pub life: Token,
    /// The route's pattern when the life began, or a job's name: a label, and no part of the
    /// identity.
    pub operation: Operation,
    /// What was asked for.
    pub fingerprint: Fingerprint,
    /// Frozen when the life began.
    pub terms: Terms,
    /// How the present attempt runs.
    pub execution: Execution,
    /// Where the story stands.
    pub state: State,
    /// Raised by every write.
    pub version: Version,
    /// Raised by every grant.
    pub fence: Fence,
    /// The last grant of a lease; `None` for deferred work that nobody has taken yet.
    pub grant: Option<Grant>,
    /// How often a lease was granted in this life.
    pub attempts: u32,
    /// An earlier attempt of this life lapsed and was followed by another without an account of what it did (`resume`,
    /// `restart`). Until somebody accounts for the whole life, no release of a later attempt means "no effect".
    pub unaccounted: bool,
    /// Why the last attempt did not complete.
    pub last_error: Option<Reason>,
    /// A verdict that came before it could be applied.
    pub evidence: Option<Evidence>,
    /// The provider's name for the effect.
    pub provider_reference: Option<Box<str>>,
    /// The last recovery point reached.
    pub recovery: Option<RecoveryPoint>,
    /// The request, where somebody other than the client may have to run it.
    pub request: Option<StoredRequest>,
    /// When this life began.
    pub created_at: Timestamp,
    /// When the last lease was granted.
    pub last_run_at: Option<Timestamp>,
    /// When the state last became `completed` or `failed_retryable`.
    pub settled_at: Option<Timestamp>,
    /// When a settled record or a tombstone ends; of deferred work, until it is settled: when it is given up.
    pub expires_at: Option<Timestamp>,
}

impl Record {
    /// The row carries this holder's token *and* fence.
    #[must_use]
    pub fn is_held_by(&self, holder: &Holder) -> bool {
        self.fence == holder.fence && self.grant.is_some_and(|grant| grant.token == holder.token)
    }

    /// In progress, and the lease has ended by every clock.
    #[must_use]
    pub fn is_lapsed(&self, now: Now) -> bool {
        self.state == State::InProgress
            && self.grant.is_none_or(|grant| now.is_surely_past(grant.lease_until))
    }

    /// Its retention, or the tombstone's own lifetime, is over. Asked of settled, waiting and buried rows only.
    #[must_use]
    pub fn is_past_retention(&self, now: Now) -> bool {
        self.expires_at.is_some_and(|end| now.at >= end)
    }

    /// Somebody other than its client can go on with it once its lease has lapsed: its policy says so, and its request is kept.
    #[must_use]
    pub fn is_resumable(&self) -> bool {
        self.terms.crash == CrashPolicy::Resume && self.request.is_some()
    }

    /// When a worker should look at it next: the one moment by which stores order what is due, state by state.
    #[must_use]
    pub fn due_at(&self) -> Option<Timestamp> {
        match &self.state {
            State::Pending { run_after } => Some(*run_after),
            // A lease that does not end is its job's to settle.
            State::InProgress => self.lapse_due_at().filter(|moment| *moment < Timestamp::NEVER),
            State::Unknown(doubt) if doubt.parked => None,
            State::Unknown(doubt) => Some(doubt.reconcile_after),
            State::Completed(_) | State::FailedRetryable | State::Expired => self.expires_at,
        }
    }
}

impl Record {
    /// Whose line it waits in, among the records of its operation: its tenant's. A path in the scope does not count,
    /// or a tenant that uses many paths would have as many turns.
    ///
    /// Earlier releases had the operation itself in the scope. Their rows keep the line that they were stored under.
    #[must_use]
    pub fn line_scope(&self) -> &str {
        let scope = &self.address.scope;
        match scope.operation_str() {
            Some(operation) if operation != self.operation.as_str() => scope.tenant_str(),
            _ => scope.as_str(),
        }
    }

    /// When somebody can do something about a lapsed lease: not before it is worth looking, or rows that can only wait
    /// would stand in front of those that cannot.
    fn lapse_due_at(&self) -> Option<Timestamp> {
        let lease_until = self.grant?.lease_until;
        match (self.terms.crash, self.request.is_some()) {
            (CrashPolicy::Reconcile, _) | (CrashPolicy::Restart | CrashPolicy::Resume, true) => {
                Some(lease_until)
            }
            // Proved meanwhile.
            (CrashPolicy::Restart, false) if self.evidence.is_some() => Some(lease_until),
            // Waits for its client; `unknown` past retention.
            (CrashPolicy::Restart | CrashPolicy::Resume, false) => {
                Some(lease_until.plus(self.terms.retention))
            }
        }
    }
}

/// Where a record stands. `lapsed` is not a state but a moment: see [`Record::is_lapsed`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// Accepted; nobody runs it yet.
    Pending {
        /// Not before then: backoff after a release.
        run_after: Timestamp,
    },
    /// Leased.
    InProgress,
    /// Over; the answer is replayed.
    Completed(Arc<Answer>),
    /// Established: no effect. The same key may run again.
    FailedRetryable,
    /// May have had its effect.
    Unknown(Doubt),
    /// A tombstone.
    Expired,
}

impl State {
    /// The name without the contents.
    #[must_use]
    pub const fn kind(&self) -> StateKind {
        match self {
            Self::Pending { .. } => StateKind::Pending,
            Self::InProgress => StateKind::InProgress,
            Self::Completed(_) => StateKind::Completed,
            Self::FailedRetryable => StateKind::FailedRetryable,
            Self::Unknown(_) => StateKind::Unknown,
            Self::Expired => StateKind::Expired,
        }
    }
}

/// The names of the states, as rows, metrics and people use them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum StateKind {
    /// See [`State::Pending`].
    Pending,
    /// See [`State::InProgress`].
    InProgress,
    /// See [`State::Completed`].
    Completed,
    /// See [`State::FailedRetryable`].
    FailedRetryable,
    /// See [`State::Unknown`].
    Unknown,
    /// See [`State::Expired`].
    Expired,
}

impl StateKind {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Pending,
        Self::InProgress,
        Self::Completed,
        Self::FailedRetryable,
        Self::Unknown,
        Self::Expired,
    ];

    /// The name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::InProgress => "in_progress",
            Self::Completed => "completed",
            Self::FailedRetryable => "failed_retryable",
            Self::Unknown => "unknown",
            Self::Expired => "expired",
        }
    }
}

/// No state has this name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownState;

impl fmt::Display for UnknownState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = StateKind::ALL.iter().map(|state| state.name()).collect();
        write!(f, "the states are {}", names.join(", "))
    }
}

impl std::error::Error for UnknownState {}

impl FromStr for StateKind {
    type Err = UnknownState;

    fn from_str(name: &str) -> Result<Self, UnknownState> {
        let found = Self::ALL.into_iter().find(|state| state.name() == name);
        found.ok_or(UnknownState)
    }
}

impl fmt::Display for StateKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What is known about an outcome that is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Doubt {
    /// Since when.
    pub since: Timestamp,
    /// When to ask next.
    pub reconcile_after: Timestamp,
    /// How often it was asked.
    pub tries: u32,
    /// Before an operator: no machine asks any more.
    pub parked: bool,
}

/// One grant of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Made by the holder before the write.
    pub token: Token,
    /// When the right to execute ends.
    pub lease_until: Timestamp,
    /// Beyond which no renewal reaches.
    pub attempt_deadline: Timestamp,
}

/// Who claims to hold a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The life it was granted in.
    pub life: Token,
    /// Its token.
    pub token: Token,
    /// Its fence.
    pub fence: Fence,
}

/// How work runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Execution {
    /// While the client waits.
    Inline,
    /// Accepted now, run by a worker.
    Deferred,
}

/// What is frozen into a row when its life begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// What a lapsed lease becomes.
    pub crash: CrashPolicy,
    /// How long a settled record is kept.
    pub retention: Duration,
    /// When retention starts.
    pub retention_from: RetentionFrom,
    /// What a key past retention is.
    pub after_retention: AfterRetention,
    /// The longest time after sending at which the upstream may still act.
    pub horizon: Option<Duration>,
    /// Which key its attempts send the upstream; `None` in rows that were written before this was kept.
    pub forward_key: Option<ForwardKey>,
}

impl Terms {
    /// Which key the upstream was sent, and is sent again: as was settled when the life began. A row from before that was kept goes by
    /// its route's present policy.
    #[must_use]
    pub fn forward_key(&self, policy: &Policy) -> ForwardKey {
        self.forward_key.unwrap_or(policy.forward_key)
    }
}

/// What a lapsed lease becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CrashPolicy {
    /// `unknown`: find out what happened.
    Reconcile,
    /// Continue after the last recovery point.
    Resume,
    /// Run again: the operator declares that the upstream dedupes.
    Restart,
}

/// When retention starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetentionFrom {
    /// When the record is settled.
    Settlement,
    /// When its life began.
    Creation,
}

/// What a key past retention is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterRetention {
    /// A new key.
    Fresh,
    /// Refused for as long as its tombstone lives.
    Gone {
        /// With which status.
        status: GoneStatus,
        /// For how long after retention.
        tombstone: Duration,
    },
}

/// The status of a key past retention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GoneStatus {
    /// 410.
    Gone,
    /// 404.
    NotFound,
}

impl GoneStatus {
    /// The HTTP status.
    #[must_use]
    pub const fn code(self) -> u16 {
        match self {
            Self::Gone => 410,
            Self::NotFound => 404,
        }
    }
}

/// Why an attempt did not complete: a word for programs, a sentence for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reason {
    code: Box<str>,
    detail: Box<str>,
}

impl Reason {
    /// A reason; `code` is one word without a colon.
    #[must_use]
    pub fn new(code: &str, detail: impl Into<Box<str>>) -> Self {
        Self { code: code.replace(':', "_").into(), detail: detail.into() }
    }

    /// The word for programs.
    #[must_use]
    pub fn code(&self) -> &str {
        &self.code
    }

    /// The sentence for people.
    #[must_use]
    pub fn detail(&self) -> &str {
        &self.detail
    }

    /// Reads back what `Display` wrote.
    #[must_use]
    pub fn from_stored(text: &str) -> Self {
        let (code, detail) = text.split_once(": ").unwrap_or((text, ""));
        Self { code: code.into(), detail: detail.into() }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code, self.detail)
    }
}
