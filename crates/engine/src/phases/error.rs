//! Why a phase gave no output, and what becomes of the operation.

use std::error::Error;
use std::fmt;

/// Why a phase gave no output. Give it back with `?`: the attempt is then settled as it says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PhaseError {
    /// The phase's own work failed, and nothing of it took effect. The handler may ask for it again, or end with an answer of its own, or go
    /// on to another phase: then this is the outcome, and every later attempt is handed the same. Otherwise the attempt ends here, and another
    /// goes on from the last recovery point.
    Failed {
        /// The phase.
        phase: Box<str>,
        /// What it said.
        words: Box<str>,
    },
    /// The attempt ends here, and another goes on from the last recovery point.
    Interrupted {
        /// The phase.
        phase: Box<str>,
        /// Why.
        words: Box<str>,
    },
    /// A newer attempt has the operation: nothing more runs in this one, and what it had not committed is gone.
    Fenced {
        /// The phase.
        phase: Box<str>,
    },
    /// Only a person can say how it goes on.
    Parked {
        /// What happened, and what to do.
        words: Box<str>,
    },
}

impl fmt::Display for PhaseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed { phase, words } => {
                write!(f, "phase {phase:?} failed, and nothing of it took effect ({words})")
            }
            Self::Interrupted { phase, words } => {
                write!(
                    f,
                    "the operation stops at phase {phase:?} for now ({words}); another attempt goes on from there"
                )
            }
            Self::Fenced { phase } => {
                write!(f, "a newer attempt has the operation; phase {phase:?} of this one was given up")
            }
            Self::Parked { words } => f.write_str(words),
        }
    }
}

impl Error for PhaseError {}
