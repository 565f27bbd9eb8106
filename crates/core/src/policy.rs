//! What a route may choose, and the named sets of choices.
//!
//! A [`Policy`] is plain data; [`Profile`] names the sets of DESIGN.md's table and a route may override any field.
//! Not here: reading a configuration file (`gateway`), matching routes (`tower`).

use std::time::Duration;

use crate::duration::{InvalidDuration, check_max, check_positive};
use crate::fingerprint::Mode;
use crate::record::{AfterRetention, CrashPolicy, Execution, GoneStatus, RetentionFrom, Terms};

pub use profile::Profile;

mod profile;

/// Everything that a route may decide.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    /// Methods that are protected; all others pass untouched.
    pub methods: Vec<&'static str>,
    /// Run while the client waits, or accept and run later.
    pub execution: Execution,
    /// Whether a client may choose the latter, with `Prefer: respond-async`.
    pub respond_async: bool,
    /// How the key is read.
    pub key: KeyPolicy,
    /// Whose key it is.
    pub scope: ScopeWidth,
    /// What makes two requests the same.
    pub fingerprint: Mode,
    /// Request headers that are part of the fingerprint, in lower case, sorted.
    pub fingerprint_headers: Vec<Box<str>>,
    /// Same key, other request.
    pub mismatch: Mismatch,
    /// Another caller holds the lease.
    pub in_progress: WhileInProgress,
    /// The outcome is unknown.
    pub after_doubt: AfterDoubt,
    /// Which answers end the unit of work.
    pub stored: StoredStatuses,
    /// A 500, and every 5xx that has no rule of its own.
    pub server_error: OnServerError,
    /// A 503.
    pub unavailable: OnUnavailable,
    /// What a lapsed lease becomes.
    pub crash: CrashPolicy,
    /// How long a grant lasts without renewal.
    pub lease: Duration,
    /// How long an attempt may last with renewals.
    pub attempt_deadline: Duration,
    /// How long a settled record is kept.
    pub retention: Duration,
    /// When retention starts.
    pub retention_from: RetentionFrom,
    /// What a key past retention is.
    pub after_retention: AfterRetention,
    /// The longest time after its sending at which the upstream may still act; `None`: not known, so that "not found"
    /// never means "did not happen".
    pub horizon: Option<Duration>,
    /// Whether something may tell later what an attempt did: a probe, a webhook. Then the record
    /// of a
    /// refused caller is kept for the whole retention, because a new life would not hear of it.
    pub expects_evidence: bool,
    /// How long a duplicate waits for the first answer, where it waits.
    pub wait_limit: Duration,
    /// How long the client whose attempt it was waits for its answer to be recorded before it is told that the outcome is
    /// unknown. Recording goes on.
    pub patience: Duration,
    /// Which key an upstream is sent, where there is one.
    pub forward_key: ForwardKey,
    /// The name of the header that marks a replay.
    pub replayed_header: &'static str,
    /// The largest request body.
    pub body_bytes_max: u64,
    /// The largest answer that is kept.
    pub answer_bytes_max: u64,
    /// Whether `Set-Cookie` is kept with an answer, and so replayed.
    pub keeps_cookies: bool,
    /// Headers that are stored with a request that a worker may run, in lower case. What identifies
    /// the caller is stored besides, as [`credentials`](Self::credentials) says.
    pub request_headers: Vec<Box<str>>,
    /// Whether a deferred request runs with the credentials of its caller.
    pub credentials: Credentials,
    /// `Retry-After` while in progress.
    pub retry_in_progress: Duration,
    /// `Retry-After` while unknown.
    pub retry_unknown: Duration,
    /// How an unknown outcome is asked about.
    pub reconcile: Reconcile,
}

impl Policy {
    /// Whether a request may be accepted and run later: always, or where its client asks for it.
    #[must_use]
    pub const fn may_defer(&self) -> bool {
        matches!(self.execution, Execution::Deferred) || self.respond_async
    }

    /// Whether requests with this method are protected.
    #[must_use]
    pub fn protects(&self, method: &str) -> bool {
        self.methods.contains(&method)
    }

    /// Refuses durations above 100 years, and zero where it has no meaning.
    pub fn check(&self) -> Result<(), InvalidDuration> {
        check_positive("lease", self.lease)?;
        check_positive("attempt_deadline", self.attempt_deadline)?;
        check_positive("retention", self.retention)?;
        if let AfterRetention::Gone { tombstone, .. } = self.after_retention {
            check_positive("tombstone", tombstone)?;
        }
        check_max("horizon", self.horizon.unwrap_or_default())?;
        check_max("wait_limit", self.wait_limit)?;
        check_max("patience", self.patience)?;
        check_max("retry_in_progress", self.retry_in_progress)?;
        check_max("retry_unknown", self.retry_unknown)?;
        check_max("backoff_first", self.reconcile.backoff_first)?;
        check_max("backoff_max", self.reconcile.backoff_max)
    }

    /// What is frozen into a row when a life begins.
    #[must_use]
    pub const fn terms(&self) -> Terms {
        Terms {
            crash: self.crash,
            retention: self.retention,
            retention_from: self.retention_from,
            after_retention: self.after_retention,
            horizon: self.horizon,
            forward_key: Some(self.forward_key),
        }
    }
}

/// How the key is read.
#[derive(Clone, Debug, PartialEq)]
pub struct KeyPolicy {
    /// Without a key: 400, or pass through.
    pub required: bool,
    /// What an empty field is.
    pub empty: EmptyKey,
    /// Which spellings are read.
    pub syntax: KeySyntax,
    /// The shortest key.
    pub chars_min: usize,
    /// The longest key.
    pub chars_max: usize,
    /// What a key must look like.
    pub form: KeyForm,
}

/// What an empty `Idempotency-Key` is. A client that sends the field meant to be protected, so only `lenient` shrugs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EmptyKey {
    /// 400.
    Refused,
    /// As if the field were not there.
    Absent,
}

/// Which spellings of a key are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeySyntax {
    /// A Structured Field String, in quotes.
    Structured,
    /// The field's value as it stands.
    Opaque,
    /// Both; the quoted and the bare form of one value are the same key.
    Either,
}

impl KeySyntax {
    /// Whether quotes are part of a key.
    #[must_use]
    pub const fn is_literal(self) -> bool {
        match self {
            Self::Opaque => true,
            Self::Structured | Self::Either => false,
        }
    }
}

/// What a key must look like.
#[derive(Clone, Debug, PartialEq)]
pub enum KeyForm {
    /// Anything.
    Any,
    /// 8-4-4-4-12 hexadecimal digits.
    Uuid,
    /// A regular expression, matched against the whole key.
    Pattern(KeyPattern),
}

/// A regular expression over whole keys.
#[derive(Clone, Debug)]
pub struct KeyPattern {
    source: String,
    anchored: regex_lite::Regex,
}

impl KeyPattern {
    /// Compiles `source`, anchored at both ends.
    pub fn new(source: &str) -> Result<Self, regex_lite::Error> {
        let anchored = regex_lite::Regex::new(&format!("^(?:{source})$"))?;
        Ok(Self { source: source.to_owned(), anchored })
    }

    /// As it was written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.source
    }

    /// Whether the whole key matches.
    #[must_use]
    pub fn matches(&self, key: &str) -> bool {
        self.anchored.is_match(key)
    }
}

impl PartialEq for KeyPattern {
    fn eq(&self, other: &Self) -> bool {
        self.source == other.source
    }
}

/// How far a key reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScopeWidth {
    /// One space of keys a tenant.
    Tenant,
    /// One space per tenant and operation: of requests, method and path, or a declared name; of
    /// jobs, their name.
    TenantAndOperation,
}

/// Same key, other request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mismatch {
    /// Refused with this status.
    Refuse(MismatchStatus),
    /// Answered as if it were the same request, and counted as misuse.
    Replay,
}

/// The status of a refused mismatch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MismatchStatus {
    /// 422, as the draft says.
    Unprocessable,
    /// 400.
    BadRequest,
    /// 409.
    Conflict,
}

impl MismatchStatus {
    /// The HTTP status.
    #[must_use]
    pub const fn code(self) -> u16 {
        match self {
            Self::Unprocessable => 422,
            Self::BadRequest => 400,
            Self::Conflict => 409,
        }
    }
}

/// Another caller holds the lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhileInProgress {
    /// 409 with `Retry-After`.
    Reject,
    /// 202 with `Location`.
    Accept,
    /// Wait up to the limit, then replay or reject.
    Wait,
}

/// The outcome is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterDoubt {
    /// 409 with `Retry-After`.
    Reject,
    /// 202 with `Location`.
    Accept,
    /// Wait up to the limit, then 409.
    WaitThenReject,
}

/// Which answers end the unit of work. Refusals before acting (401, 429, …) never do; see [`crate::classify`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoredStatuses {
    /// 2xx and 3xx.
    Successes,
    /// 2xx, 3xx and 4xx.
    SuccessesAndClientErrors,
    /// Everything.
    All,
}

/// What a 500 means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnServerError {
    /// Nothing happened: the upstream's word is taken.
    Release,
    /// The unit of work is over.
    Store,
    /// Something may have happened.
    Doubt,
}

/// What a 503 means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnUnavailable {
    /// Nothing happened: the upstream's word is taken.
    Release,
    /// Some proxies answer 503 while the work goes on.
    Doubt,
}

/// Which key an upstream is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForwardKey {
    /// The client's, as it came.
    AsIs,
    /// One that is made of scope, key and life: two tenants that chose the same key do not meet at an upstream that has one
    /// space of keys for all.
    Derived,
    /// None.
    None,
}

/// Whether a deferred request runs with the credentials of its caller: `Authorization`, `Cookie`
/// and the headers that name the tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Credentials {
    /// They are stored with the request, and sent when it runs.
    Kept,
    /// They are not stored, and it runs without them: an upstream must not take a request
    /// without credentials for an authorized one.
    Dropped,
}

/// How an unknown outcome is asked about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reconcile {
    /// The first pause between two questions; it doubles.
    pub backoff_first: Duration,
    /// The longest pause.
    pub backoff_max: Duration,
    /// After so many questions the record is parked.
    pub park_after: u32,
}

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_mins(1);
const HOUR: Duration = Duration::from_hours(1);
const DAY: Duration = Duration::from_hours(24);

/// Keeps tombstones for 30 days and answers 410.
const GONE_FOR_30_DAYS: AfterRetention =
    AfterRetention::Gone { status: GoneStatus::Gone, tombstone: Duration::from_hours(720) };
