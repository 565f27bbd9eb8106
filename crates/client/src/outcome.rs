//! What became of an operation.

use std::fmt;

use crate::answer::Answer;
use crate::key::Key;
use crate::send::NoAnswer;

/// What became of an operation: it did, did not, or may have happened. There is no fourth.
///
/// What to do with each stands at its type. Call [`Client::done`](crate::Client::done) once the outcome is written down.
#[must_use = "an operation that may have happened is to be asked about again, with the same key"]
#[derive(Debug)]
pub enum Outcome {
    /// It took effect, once.
    Happened(Happened),
    /// It had no effect and, under this key, will have none.
    DidNotHappen(DidNotHappen),
    /// Nobody knows yet.
    MayHaveHappened(MayHaveHappened),
}

/// It took effect, once, and this is its answer.
#[derive(Debug)]
pub struct Happened {
    /// The operation's one answer.
    pub answer: Answer,
    /// It was given before.
    pub replayed: bool,
    /// What was asked.
    pub asked: Asked,
}

/// It had no effect and, under this key, will have none. If it is still wanted, it is a new operation.
#[derive(Debug)]
pub struct DidNotHappen {
    /// Why not.
    pub why: Why,
    /// What was heard last.
    pub last: Last,
    /// What was asked.
    pub asked: Asked,
}

/// Nobody knows yet. Go on later with the same name, or the same key; **never with a new one**, which could do it twice.
#[derive(Debug)]
pub struct MayHaveHappened {
    /// Why it was given up for now.
    pub why: Why,
    /// What was heard last.
    pub last: Last,
    /// What was asked: here is the key.
    pub asked: Asked,
}

/// What was asked, and how often.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// The operation's one key.
    pub key: Key,
    /// The caller's name for it, if it has one.
    pub name: Option<String>,
    /// Requests sent this time.
    pub attempts: u32,
}

/// What was heard last.
#[derive(Debug)]
pub enum Last {
    /// Nothing was sent.
    Nothing,
    /// An answer.
    Answer(Answer),
    /// None came.
    NoAnswer(NoAnswer),
}

impl Last {
    /// The answer, if that is what it was.
    #[must_use]
    pub const fn answer(&self) -> Option<&Answer> {
        match self {
            Self::Answer(answer) => Some(answer),
            Self::Nothing | Self::NoAnswer(_) => None,
        }
    }
}

impl Outcome {
    /// What was asked.
    #[must_use]
    pub const fn asked(&self) -> &Asked {
        match self {
            Self::Happened(Happened { asked, .. })
            | Self::DidNotHappen(DidNotHappen { asked, .. })
            | Self::MayHaveHappened(MayHaveHappened { asked, .. }) => asked,
        }
    }

    /// Why it did not happen, or may have.
    #[must_use]
    pub const fn why(&self) -> Option<Why> {
        match self {
            Self::Happened(_) => None,
            Self::DidNotHappen(DidNotHappen { why, .. })
            | Self::MayHaveHappened(MayHaveHappened { why, .. }) => Some(*why),
        }
    }

    /// The operation's answer, or the last that was heard. Look at the outcome first: it says whether it is the operation's.
    #[must_use]
    pub const fn answer(&self) -> Option<&Answer> {
        match self {
            Self::Happened(Happened { answer, .. }) => Some(answer),
            Self::DidNotHappen(DidNotHappen { last, .. })
            | Self::MayHaveHappened(MayHaveHappened { last, .. }) => last.answer(),
        }
    }

    /// Whether it is known. Only then may its key be forgotten.
    #[must_use]
    pub const fn is_certain(&self) -> bool {
        !matches!(self, Self::MayHaveHappened(_))
    }

    /// The outcome in a word, as all clients of the contract say it.
    #[must_use]
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Happened(_) => "happened",
            Self::DidNotHappen(_) => "did_not_happen",
            Self::MayHaveHappened(_) => "may_have_happened",
        }
    }
}

/// Why an operation ended as it did; for programs. The gateway's own refusals go by their problem codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Why {
    /// The API answered 4xx.
    Refused,
    /// The API answered 5xx, and that answer is kept: to ask again gives the same.
    Failed,
    /// A redirect that no record vouches for; it is not followed.
    Redirected,
    /// No time is left.
    Deadline,
    /// No attempt is left.
    Attempts,
    /// The answer is longer than the client reads; what it says is not known.
    AnswerTooLarge,
    /// The caller gave it up; or it was accepted, and taken back while it waited: before it began, or after attempts that by the API's
    /// word did nothing.
    Cancelled,
    /// The key was used for another request.
    KeyReused,
    /// The key is past its retention.
    KeyExpired,
    /// The key was lost on the way.
    KeyMissing,
    /// The key is not one that the route takes.
    KeyInvalid,
    /// The body cannot be compared with others.
    RequestInvalid,
    /// The request could be read in two ways.
    RequestMalformed,
    /// The request does not say whose key it is.
    ScopeMissing,
    /// The operator's authorization check refuses the caller.
    NotAuthorized,
    /// The body is over the limit.
    TooLarge,
    /// No operation of this caller.
    OperationNotFound,
    /// It was accepted, and not done in time: nobody began it, or there were attempts that by the API's word did nothing.
    NotStarted,
    /// The gateway forwarded the request unprotected, and got no proper answer: it must not be repeated.
    UpstreamFailed,
}

impl Why {
    /// In a word, as all clients of the contract say it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Refused => "refused",
            Self::Failed => "failed",
            Self::Redirected => "redirected",
            Self::Deadline => "deadline",
            Self::Attempts => "attempts",
            Self::AnswerTooLarge => "answer_too_large",
            Self::Cancelled => "cancelled",
            Self::KeyReused => "key_reused",
            Self::KeyExpired => "key_expired",
            Self::KeyMissing => "key_missing",
            Self::KeyInvalid => "key_invalid",
            Self::RequestInvalid => "request_invalid",
            Self::RequestMalformed => "request_malformed",
            Self::ScopeMissing => "scope_missing",
            Self::NotAuthorized => "not_authorized",
            Self::TooLarge => "too_large",
            Self::OperationNotFound => "operation_not_found",
            Self::NotStarted => "not_started",
            Self::UpstreamFailed => "upstream_failed",
        }
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
