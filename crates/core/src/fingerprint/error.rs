//! Why a body cannot be fingerprinted, and where.

use std::error::Error;
use std::fmt;

/// A body that has no one meaning, so that nobody could say whether a retry is the same request.
///
/// Each displays as one sentence that can be shown to the client that sent the body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FingerprintError {
    /// Declared as JSON, and is not JSON.
    NotJson {
        /// Where reading stopped.
        at: Position,
        /// What was found there.
        problem: String,
    },
    /// Two members of one object have one name: readers disagree on which of them counts.
    DuplicateName {
        /// The name, unescaped.
        name: String,
        /// Where it stands the second time.
        at: Position,
    },
    /// Arrays and objects nested too deeply.
    TooDeep {
        /// Where the first level too many begins.
        at: Position,
        /// The deepest nesting that is read.
        levels_max: usize,
    },
    /// A number whose exponent does not fit 64 bits.
    ExponentTooLarge {
        /// Where the number begins.
        at: Position,
    },
}

impl fmt::Display for FingerprintError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotJson { at, problem } => {
                write!(f, "the body is declared as JSON but is not JSON at {at}: {problem}")
            }
            Self::DuplicateName { name, at } => {
                write!(f, "an object has two members named {}, the second at {at}", Shown(name))
            }
            Self::TooDeep { at, levels_max } => {
                write!(f, "the body is nested deeper than {levels_max} levels at {at}")
            }
            Self::ExponentTooLarge { at } => write!(f, "the number at {at} has an exponent beyond 64 bits"),
        }
    }
}

impl Error for FingerprintError {}

/// A place in a body, as an editor counts: lines and columns (in characters) from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// The line.
    pub line: usize,
    /// The column.
    pub column: usize,
}

impl Position {
    /// Finds the place of a byte. Reads the body up to there, so only errors ask.
    pub(super) fn of(body: &[u8], offset: usize) -> Self {
        let before = body.get(..offset).unwrap_or(body);
        let lines = before.split(|&byte| byte == b'\n');
        let last = lines.clone().next_back().unwrap_or_default();
        Self { line: lines.count(), column: 1 + String::from_utf8_lossy(last).chars().count() }
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}, column {}", self.line, self.column)
    }
}

/// A name out of a stranger's body: quoted, control characters escaped, and cut, for it ends up in logs and answers.
struct Shown<'a>(&'a str);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const CHARS_MAX: usize = 80;
        match self.0.char_indices().nth(CHARS_MAX) {
            Some((end, _)) => write!(f, "{:?}…", &self.0[..end]),
            None => write!(f, "{:?}", self.0),
        }
    }
}
