//! An answer, and what of it the client looks at.

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderName, LOCATION};
use http::{HeaderMap, HeaderValue, StatusCode};
use oncegate_core::problem::{self, Code};
use serde::de::DeserializeOwned;
use serde_json::Value;

/// An answer, read whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Its status.
    pub status: StatusCode,
    /// Its headers.
    pub headers: HeaderMap,
    /// `None`: the operation was answered with this status, and its body was too large for the gateway to keep.
    pub body: Option<Bytes>,
}

const REPLAYED: [HeaderName; 2] =
    [HeaderName::from_static("idempotency-replayed"), HeaderName::from_static("idempotent-replayed")];
const EXPIRES: HeaderName = HeaderName::from_static("idempotency-expires");
const STATE: HeaderName = HeaderName::from_static("idempotency-state");

impl Answer {
    /// The body as JSON.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        serde_json::from_slice(self.body.as_deref().unwrap_or_default())
    }

    /// The answer comes from the record, not from an execution just now.
    pub(crate) fn is_replayed(&self) -> bool {
        REPLAYED.iter().any(|mark| self.text(mark) == Some("true"))
            || self.problem().is_some_and(|problem| problem.is_of_another_answer())
    }

    /// The record vouches for it: this is the operation's one answer.
    pub(crate) fn is_kept(&self) -> bool {
        self.is_replayed() || self.headers.contains_key(EXPIRES)
    }

    /// Where the operation stands after an answer that is not kept, by the API's own account.
    pub(crate) fn settled(&self) -> Option<Settled> {
        let state = self.headers.get(STATE)?;
        Some(if state == "failed_retryable" { Settled::Released } else { Settled::Undecided })
    }

    /// Where accepted work can be asked about.
    pub(crate) fn location(&self) -> Option<&str> {
        self.text(&LOCATION)
    }

    /// A problem of the gateway's, told by its type: an API may have problems of its own.
    pub(crate) fn problem(&self) -> Option<Problem> {
        if !self.text(&CONTENT_TYPE)?.starts_with(problem::CONTENT_TYPE) {
            return None;
        }
        let document: Value = self.json().ok()?;
        let code = document.get("type")?.as_str()?.strip_prefix(problem::TYPE_BASE)?.to_owned();
        Some(Problem { code, document })
    }

    /// The state in the gateway's own words about an operation: its 202, or `GET /.oncegate/operations/{id}`.
    pub(crate) fn operation_state(&self) -> Option<String> {
        let document: Value = self.json().ok()?;
        let is_operation = document.get("id")?.as_str()?.starts_with("op_");
        is_operation.then_some(document.get("state")?.as_str()?.to_owned())
    }

    /// What the caller is given: for an answer that was not kept, what is known of it.
    pub(crate) fn told(self) -> Self {
        let not_kept = self.problem().filter(Problem::is_of_another_answer);
        let Some((problem, status)) =
            not_kept.and_then(|problem| problem.answer_status().map(|status| (problem, status)))
        else {
            return self;
        };
        let location = problem.document.get("answer_location").and_then(Value::as_str);
        let location = location.and_then(|location| HeaderValue::from_str(location).ok());
        let headers = location.map(|location| (LOCATION, location)).into_iter().collect();
        Self { status, headers, body: None }
    }

    fn text(&self, name: &HeaderName) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }
}

/// What the record says of an answer that it does not keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Settled {
    /// Nothing was executed.
    Released,
    /// Something may have been; or this is said in a word that is not known here.
    Undecided,
}

/// What the gateway says in its own voice.
pub(crate) struct Problem {
    pub(crate) code: String,
    document: Value,
}

impl Problem {
    /// The operation was answered, and that answer was too large to keep.
    pub(crate) fn is_of_another_answer(&self) -> bool {
        self.code == Code::AnswerNotKept.name()
    }

    /// Of accepted work that was given up, or taken back: somebody had begun it. Only where that is denied it is sure that it did nothing.
    pub(crate) fn was_attempted(&self) -> bool {
        self.document.get("attempted").is_some_and(|attempted| *attempted != Value::Bool(false))
    }

    /// With nothing but its name.
    #[cfg(test)]
    pub(crate) fn named(code: &str) -> Self {
        Self { code: code.to_owned(), document: Value::Null }
    }

    /// Of an answer that was not kept: its status.
    pub(crate) fn answer_status(&self) -> Option<StatusCode> {
        let status = self.document.get("answer_status")?.as_u64()?;
        StatusCode::from_u16(u16::try_from(status).ok()?).ok()
    }
}
