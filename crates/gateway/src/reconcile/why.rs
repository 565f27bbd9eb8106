//! Why nothing was learnt.

use std::fmt;

use oncegate_core::fingerprint::Pointer;

use super::document::NotJson;

/// Why an answer or an event settles nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Why {
    /// The body is over its limit.
    TooLarge,
    /// A pointer was asked, and the body is not JSON.
    NotJson,
    /// It says itself that it is not over yet.
    NotYet,
    /// No condition holds.
    Undecided,
    /// It does not say when it was made, or not in a form that can be read.
    NoMoment(Pointer),
    /// It was made before this life of the key began.
    EarlierLife,
    /// The record's upstream was sent a key that does not name the life, and so was asked.
    LifeNotAsked,
    /// It happened, but no answer is described for this.
    NoCase,
    /// It happened, but what the answer is made of is not there.
    NotThere(Pointer),
    /// It happened, but what was found cannot stand in this header.
    NotAHeader(http::HeaderName),
    /// The event names no record.
    NoRecord,
    /// The event does not name a life.
    NoLife(Pointer),
}

impl Why {
    /// One word, for counters.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::TooLarge => "too_large",
            Self::NotJson => "not_json",
            Self::NotYet => "not_yet",
            Self::Undecided => "undecided",
            Self::NoMoment(_) => "no_moment",
            Self::EarlierLife => "earlier_life",
            Self::LifeNotAsked => "life_not_asked",
            Self::NoCase => "no_case",
            Self::NotThere(_) => "not_there",
            Self::NotAHeader(_) => "not_a_header",
            Self::NoRecord => "no_record",
            Self::NoLife(_) => "no_life",
        }
    }
}

impl From<NotJson> for Why {
    fn from(_: NotJson) -> Self {
        Self::NotJson
    }
}

impl fmt::Display for Why {
    /// Nothing of the body: it may be customers' data.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLarge => f.write_str("the body is larger than `body_bytes_max`"),
            Self::NotJson => NotJson.fmt(f),
            Self::NotYet => f.write_str("a condition of `not_yet` holds: it is not over"),
            Self::Undecided => f.write_str("no condition holds"),
            Self::NoMoment(pointer) => {
                write!(
                    f,
                    "there is no moment at `created` ({pointer}): expected RFC 3339, or seconds since 1970"
                )
            }
            Self::EarlierLife => {
                f.write_str("it was made before this life of the key began, so it is of an earlier request")
            }
            Self::LifeNotAsked => f.write_str(
                "something was found by the client's own key, which this record's upstream was sent when `forward_key` was another; it may be of an earlier request: settle it with `oncegate resolve`",
            ),
            Self::NoCase => f.write_str("it happened, and no entry of `answers` fits it"),
            Self::NotThere(pointer) => {
                write!(f, "it happened, and its answer needs {pointer}, which is not there")
            }
            Self::NotAHeader(name) => {
                write!(f, "it happened, and its answer's header {name} would not be legal")
            }
            Self::NoRecord => f.write_str("the event does not name a record in the way that `record` says"),
            Self::NoLife(pointer) => {
                write!(f, "the event does not name a life of the key at `life` ({pointer})")
            }
        }
    }
}
