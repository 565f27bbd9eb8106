//! What an operator wants, as typed, and checked.

use std::fmt;

use oncegate_core::identity::Version;
use oncegate_engine::{Act, Operator};
use serde::Deserialize;

use super::answer::{self, TypedAnswer};

/// The largest wish; most of it is the answer that retries shall get.
pub const WISH_BYTES_MAX: usize = 16 << 20;
/// The longest name.
const NAME_MAX: usize = 200;
/// The longest reason.
const REASON_MAX: usize = 2_000;

/// What can be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// Settle what no machine could.
    Resolve,
    /// Have the machine ask again.
    Retry,
    /// Drop a stored answer.
    Forget,
}

impl Verb {
    /// As in the path.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Resolve => "resolve",
            Self::Retry => "retry",
            Self::Forget => "forget",
        }
    }
}

/// A wish that can be carried out.
#[derive(Clone, Debug)]
pub struct Wish {
    /// What the operator looked at.
    pub(super) version: Version,
    pub(super) operator: Operator,
    pub(super) act: Act,
}

/// Why a wish cannot be read. Nothing was done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bad(pub(super) String);

impl fmt::Display for Bad {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Bad {}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Typed {
    version: Option<String>,
    reason: Option<String>,
    operator: Option<String>,
    outcome: Option<String>,
    response: Option<TypedAnswer>,
}

impl Wish {
    /// Reads a wish from JSON: `version`, `reason` and `operator`; to resolve also `outcome` (`happened` with its `response`, or
    /// `did_not_happen`).
    pub fn read(verb: Verb, json: &[u8]) -> Result<Self, Bad> {
        if json.len() > WISH_BYTES_MAX {
            return Err(Bad(format!("It is larger than {WISH_BYTES_MAX} bytes.")));
        }
        let typed: Typed = serde_json::from_slice(json).map_err(|error| not_json(verb, &error))?;
        let version = version(typed.version.as_deref())?;
        let operator = Operator {
            name: line("operator", "who does it", typed.operator.as_deref(), NAME_MAX)?,
            reason: line("reason", "why, for whoever reads the story", typed.reason.as_deref(), REASON_MAX)?,
        };
        let act = act(verb, typed.outcome.as_deref(), typed.response)?;
        Ok(Self { version, operator, act })
    }
}

fn not_json(verb: Verb, error: &serde_json::Error) -> Bad {
    let expected = match verb {
        Verb::Resolve => "version, reason, operator, outcome and response",
        Verb::Retry | Verb::Forget => "version, reason and operator",
    };
    Bad(format!("{error}; expected a JSON object of {expected}, the version as a string."))
}

fn version(text: Option<&str>) -> Result<Version, Bad> {
    let Some(text) = text else {
        let words = "version is missing: the one that the record was shown with, so that nobody changes what he has not seen.";
        return Err(Bad(words.to_owned()));
    };
    let raw = text.parse().map_err(|_| {
        Bad(format!(
            "{text:?} is not a version: those are whole numbers, as `version` of the record shows them."
        ))
    })?;
    Ok(Version::from_raw(raw))
}

/// One line of text that says something.
fn line(name: &str, meaning: &str, text: Option<&str>, bytes_max: usize) -> Result<Box<str>, Bad> {
    let text = text.map(str::trim).unwrap_or_default();
    if text.is_empty() {
        return Err(Bad(format!("{name} is missing or empty: {meaning}.")));
    }
    if text.len() > bytes_max {
        return Err(Bad(format!("{name} is longer than {bytes_max} bytes.")));
    }
    if text.chars().any(char::is_control) {
        return Err(Bad(format!("{name} is one line of text, without control characters.")));
    }
    Ok(text.into())
}

fn act(verb: Verb, outcome: Option<&str>, response: Option<TypedAnswer>) -> Result<Act, Bad> {
    let bad = |words: &str| Err(Bad(words.to_owned()));
    match (verb, outcome, response) {
        (Verb::Resolve, Some("happened"), Some(response)) => answer::read(response).map(Act::Happened),
        (Verb::Resolve, Some("happened"), None) => {
            bad("response is missing: what retries shall get, with its status, headers and body.")
        }
        (Verb::Resolve, Some("did_not_happen"), None) => Ok(Act::DidNotHappen),
        (Verb::Resolve, Some("did_not_happen"), Some(_)) => {
            bad("What did not happen has no response: leave it out.")
        }
        (Verb::Resolve, ..) => bad("outcome is happened or did_not_happen."),
        (Verb::Retry, None, None) => Ok(Act::AskAgain),
        (Verb::Forget, None, None) => Ok(Act::Forget),
        (Verb::Retry | Verb::Forget, ..) => bad("outcome and response are for resolving only."),
    }
}
