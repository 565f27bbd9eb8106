//! What the boundary says in its own voice: RFC 9457 problem documents.
//!
//! Every [`Code`] is a page under `docs/problems/` (a test checks it), and every detail says what happened, what state
//! things are in, and what to do next. Not here: choosing one (`tower`).

use std::time::Duration;

use serde_json::{Map, Value};

use crate::fingerprint::Difference;
use crate::policy::MismatchStatus;
use crate::record::GoneStatus;
use crate::response::{Answer, Response};

/// The media type.
pub const CONTENT_TYPE: &str = "application/problem+json";
/// Where the pages are published; `type` is this and the code.
pub const TYPE_BASE: &str = "https://oncegate.dev/problems/";

/// Which problem it is; for programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Code {
    /// A key, but nobody to scope it to.
    ScopeMissing,
    /// Required but absent.
    KeyMissing,
    /// Not parseable, too short, too long.
    KeyInvalid,
    /// The body cannot be fingerprinted.
    RequestInvalid,
    /// Same key, other request.
    KeyReused,
    /// A lease is held.
    InProgress,
    /// Doubt.
    OutcomeUnknown,
    /// Past retention, where the policy keeps tombstones.
    KeyExpired,
    /// Completed, but the answer was over the storage limit.
    AnswerNotKept,
    /// The request body is over the limit.
    TooLarge,
    /// The request body came too slowly, or for too long.
    BodyTooSlow,
    /// Too many requests in this scope.
    RateLimited,
    /// Too many keys in this scope.
    TooManyKeys,
    /// Proved not executed.
    UpstreamUnreachable,
    /// The store cannot say yes.
    StoreUnavailable,
    /// Too much at once.
    Overloaded,
    /// Accepted work that nobody could run in time.
    NotStarted,
    /// Accepted work that its owner took back.
    Cancelled,
    /// Too late to take it back.
    NotCancellable,
    /// Not to be forwarded: a hop behind could read it differently.
    RequestMalformed,
    /// No operation of this caller.
    OperationNotFound,
    /// An unprotected request got no proper answer.
    UpstreamFailed,
    /// The operator's own authorization check refused the caller.
    NotAuthorized,
    /// The operator's own authorization check gave no answer.
    AuthorizationUnavailable,
}

impl Code {
    /// All of them.
    pub const ALL: [Self; 24] = [
        Self::ScopeMissing,
        Self::KeyMissing,
        Self::KeyInvalid,
        Self::RequestInvalid,
        Self::KeyReused,
        Self::InProgress,
        Self::OutcomeUnknown,
        Self::KeyExpired,
        Self::AnswerNotKept,
        Self::TooLarge,
        Self::BodyTooSlow,
        Self::RateLimited,
        Self::TooManyKeys,
        Self::UpstreamUnreachable,
        Self::StoreUnavailable,
        Self::Overloaded,
        Self::NotStarted,
        Self::Cancelled,
        Self::NotCancellable,
        Self::RequestMalformed,
        Self::OperationNotFound,
        Self::UpstreamFailed,
        Self::NotAuthorized,
        Self::AuthorizationUnavailable,
    ];

    /// The name, as in `code` and at the end of `type`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.row().0
    }

    /// One line for people, the same each time.
    #[must_use]
    pub const fn title(self) -> &'static str {
        self.row().2
    }

    /// The status, where the policy does not choose another.
    #[must_use]
    pub const fn status(self) -> u16 {
        self.row().1
    }

    const fn row(self) -> (&'static str, u16, &'static str) {
        match self {
            Self::ScopeMissing => ("scope_missing", 401, "A key, but nobody to whom it belongs"),
            Self::KeyMissing => ("key_missing", 400, "An idempotency key is required"),
            Self::KeyInvalid => ("key_invalid", 400, "The idempotency key cannot be used"),
            Self::RequestInvalid => ("request_invalid", 400, "The request cannot be compared with others"),
            Self::KeyReused => ("key_reused", 422, "The key was used for another request"),
            Self::InProgress => ("in_progress", 409, "The same request is being executed"),
            Self::OutcomeUnknown => ("outcome_unknown", 409, "The outcome is not known yet"),
            Self::KeyExpired => ("key_expired", 410, "The key is past its retention"),
            Self::AnswerNotKept => {
                ("answer_not_kept", 409, "Completed, but the answer was too large to keep")
            }
            Self::TooLarge => ("too_large", 413, "The request body is too large"),
            Self::BodyTooSlow => ("body_too_slow", 408, "The request body came too slowly"),
            Self::RateLimited => ("rate_limited", 429, "Too many requests"),
            Self::TooManyKeys => ("too_many_keys", 429, "Too many keys"),
            Self::UpstreamUnreachable => {
                ("upstream_unreachable", 502, "The service behind could not be reached")
            }
            Self::StoreUnavailable => {
                ("store_unavailable", 503, "Idempotency cannot be guaranteed right now")
            }
            Self::Overloaded => ("overloaded", 503, "Too busy"),
            Self::NotStarted => ("not_started", 408, "Accepted, but not done in time"),
            Self::Cancelled => ("cancelled", 410, "Cancelled while it waited"),
            Self::NotCancellable => ("not_cancellable", 409, "Too late to be cancelled"),
            Self::RequestMalformed => ("request_malformed", 400, "The request could be read in two ways"),
            Self::OperationNotFound => ("operation_not_found", 404, "No such operation of yours"),
            Self::UpstreamFailed => ("upstream_failed", 502, "The service behind gave no proper answer"),
            Self::NotAuthorized => ("not_authorized", 401, "The caller is not authorized"),
            Self::AuthorizationUnavailable => {
                ("authorization_unavailable", 503, "Authorization cannot be checked right now")
            }
        }
    }
}

/// A problem document.
#[derive(Clone, Debug, PartialEq)]
pub struct Problem {
    code: Code,
    status: u16,
    detail: String,
    retry_after: Option<Duration>,
    more: Vec<(&'static str, Value)>,
    reason: Option<&'static str>,
}

impl Problem {
    /// A problem with its usual status. `detail` says what happened, what state things are in, and what to do next.
    #[must_use]
    pub fn new(code: Code, detail: impl Into<String>) -> Self {
        Self {
            code,
            status: code.status(),
            detail: detail.into(),
            retry_after: None,
            more: Vec::new(),
            reason: None,
        }
    }

    /// Same key, other request; the policy chooses the status. `difference` is what the client may
    /// be told of how the requests differ.
    #[must_use]
    pub fn key_reused(status: MismatchStatus, difference: &Difference) -> Self {
        let detail = "This key was already used for a request with other content. Nothing was executed, and the first \
                      request's answer still stands. Send the first request again to see it, or use a new key for \
                      this one.";
        let mut problem = Self { status: status.code(), ..Self::new(Code::KeyReused, detail) };
        if !difference.members.is_empty() {
            problem = problem.with("differing_members", difference.members.as_slice().into());
        }
        if let Some(outside) = difference.outside {
            problem = problem.with("differs_in", outside.into());
        }
        problem
    }

    /// A lease is held; the client may ask again.
    #[must_use]
    pub fn in_progress(retry_after: Duration) -> Self {
        let detail = "A request with this key is being executed. Send the same request with the same key again later \
                      to get its answer.";
        Self::new(Code::InProgress, detail).retry_after(retry_after)
    }

    /// Doubt, told to the client whose own attempt it was.
    #[must_use]
    pub fn outcome_unknown_first(retry_after: Duration) -> Self {
        Self { status: 504, ..Self::outcome_unknown(retry_after) }
    }

    /// Doubt, told to whoever asks afterwards.
    #[must_use]
    pub fn outcome_unknown(retry_after: Duration) -> Self {
        let detail = "The operation may or may not have taken effect, and this is being found out. Do not use a new \
                      key: that could execute it twice. Send the same request with the same key again later.";
        Self::new(Code::OutcomeUnknown, detail).retry_after(retry_after)
    }

    /// Doubt, told to a client whose request was to be run later: nobody can say whether it was accepted.
    #[must_use]
    pub fn acceptance_unknown(retry_after: Duration) -> Self {
        let detail = "It is not known whether this request was accepted, to be executed later; it may be executed. Do not use \
                      a new key: that could execute it twice. Send the same request with the same key again later: \
                      it is accepted then, if it was not.";
        Self { status: 504, ..Self::new(Code::OutcomeUnknown, detail) }.retry_after(retry_after)
    }

    /// Past retention; the policy chooses the status.
    #[must_use]
    pub fn key_expired(status: GoneStatus) -> Self {
        let detail = "This key was used before, and its answer is no longer kept. Nothing was executed. Look the \
                      result up by other means before you send it again with a new key.";
        Self { status: status.code(), ..Self::new(Code::KeyExpired, detail) }
    }

    /// Completed, but the bytes are gone.
    #[must_use]
    pub fn answer_not_kept(status: u16, location: Option<&[u8]>) -> Self {
        let detail = "The operation was completed, and its answer was too large to keep. It will not be executed \
                      again under this key. Its status, and its location if there was one, are given here.";
        let mut problem = Self::new(Code::AnswerNotKept, detail).with("answer_status", status.into());
        if let Some(location) = location {
            problem = problem.with("answer_location", String::from_utf8_lossy(location).into());
        }
        problem
    }

    /// More requests than are taken at once: nothing was recorded, and nothing was executed.
    #[must_use]
    pub fn overloaded() -> Self {
        let detail = "More requests are being executed and waiting than are taken at once. Nothing was \
                      executed. Send the same request again later.";
        Self::new(Code::Overloaded, detail).retry_after(Duration::from_secs(1))
    }

    /// The same problem with another status.
    #[must_use]
    pub const fn with_status(mut self, status: u16) -> Self {
        self.status = status;
        self
    }

    /// Adds `Retry-After`.
    #[must_use]
    pub fn retry_after(mut self, span: Duration) -> Self {
        self.retry_after = Some(span);
        self
    }

    /// Adds a member; its name must be one that RFC 9457 allows (`[A-Za-z][A-Za-z0-9_]{2,}`).
    #[must_use]
    pub fn with(mut self, name: &'static str, value: Value) -> Self {
        self.more.push((name, value));
        self
    }

    /// Counts the refusal under this reason instead of the code.
    #[must_use]
    pub const fn counted_as(mut self, reason: &'static str) -> Self {
        self.reason = Some(reason);
        self
    }

    /// What the refusal is counted as, for metrics: the code; of a 503, what could not take the
    /// request (`queue`, `store`, or what [`Problem::counted_as`] was told).
    #[must_use]
    pub const fn reason(&self) -> &'static str {
        match (self.reason, self.code) {
            (Some(reason), _) => reason,
            (None, Code::Overloaded) => "queue",
            (None, Code::StoreUnavailable) => "store",
            (None, code) => code.name(),
        }
    }

    /// Which one it is.
    #[must_use]
    pub const fn code(&self) -> Code {
        self.code
    }

    /// The HTTP status.
    #[must_use]
    pub const fn status(&self) -> u16 {
        self.status
    }

    /// The value of `Retry-After`: whole seconds, rounded up, at least one.
    #[must_use]
    pub fn retry_after_s(&self) -> Option<u64> {
        self.retry_after.map(whole_seconds)
    }

    /// The document's bytes.
    #[must_use]
    pub fn to_json(&self) -> Vec<u8> {
        let mut document = Map::new();
        document.insert("type".to_owned(), format!("{TYPE_BASE}{}", self.code.name()).into());
        document.insert("title".to_owned(), self.code.title().into());
        document.insert("status".to_owned(), self.status.into());
        document.insert("detail".to_owned(), self.detail.as_str().into());
        document.insert("code".to_owned(), self.code.name().into());
        if let Some(seconds) = self.retry_after_s() {
            document.insert("retry_after_s".to_owned(), seconds.into());
        }
        for (name, value) in &self.more {
            document.insert((*name).to_owned(), value.clone());
        }
        Value::Object(document).to_string().into_bytes()
    }
}

/// A span as `Retry-After` has it: whole seconds, rounded up, at least one.
#[must_use]
pub fn whole_seconds(span: Duration) -> u64 {
    (span.as_secs() + u64::from(span.subsec_nanos() > 0)).max(1)
}

/// What became of accepted work before it was given up, or taken back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tried {
    /// Nobody has begun it: it was not executed, and that needs nobody's word.
    Never,
    /// Attempts were made, and each was released: it is proved that it was not sent, or whoever was asked has said that it did nothing. No
    /// attempt is known to have had an effect; that none had is as true as that word.
    Released,
}

const RELEASED: &str = "It was tried before: each attempt could not be sent, or the service behind said that it did nothing. No attempt is \
                        known to have had an effect, and under this key there will be no other.";

/// The stored answer of accepted work that nobody could run in time.
#[must_use]
pub fn not_started(tried: Tried) -> Answer {
    stored(&match tried {
        Tried::Never => {
            let detail = "The request was accepted, but could not be started before its time limit. Nothing was executed. \
                          Send it again with a new key if it is still wanted.";
            Problem::new(Code::NotStarted, detail)
        }
        Tried::Released => {
            let detail = format!(
                "The request was accepted, but could not be done before its time limit. {RELEASED} If the service's word is not \
                 enough for you, look its result up before you send it again with a new key."
            );
            Problem::new(Code::NotStarted, detail).with("attempted", true.into())
        }
    })
}

/// The stored answer of accepted work that its owner took back.
#[must_use]
pub fn cancelled(tried: Tried) -> Answer {
    stored(&match tried {
        Tried::Never => {
            let detail = "The request was accepted, and cancelled by its owner before it began. Nothing was executed, and nothing \
                          will be under this key. Send it again with a new key if it is wanted after all.";
            Problem::new(Code::Cancelled, detail)
        }
        Tried::Released => {
            let detail = format!(
                "The request was accepted, and cancelled by its owner while it waited to be tried again. {RELEASED} If the \
                 service's word is not enough for you, look its result up before you send it again with a new key."
            );
            Problem::new(Code::Cancelled, detail).with("attempted", true.into())
        }
    })
}

/// Whether this is the stored answer of work that its owner took back.
#[must_use]
pub fn is_cancelled(answer: &Answer) -> bool {
    [Tried::Never, Tried::Released].into_iter().any(|tried| *answer == cancelled(tried))
}

fn stored(problem: &Problem) -> Answer {
    Answer::Kept(Response {
        status: problem.status(),
        headers: vec![("content-type".to_owned(), CONTENT_TYPE.as_bytes().to_vec())],
        body: problem.to_json(),
    })
}
