//! How far a phased operation has come, phase by phase; kept in the record's recovery point.
//!
//! Pure. A handler asks for its phases in order; the journal says of each whether it is to be run, has given its output already, or
//! was begun by an attempt that nobody heard of again.
//!
//! **Invariants:** only the last phase can be begun without an outcome, and only a foreign one: an atomic phase is there if and only if
//! its transaction was committed. A failure is there if and only if its handler went on to another phase: then it is an outcome, and
//! every attempt is told the same. No two phases have one name, for a name makes a downstream key.

use std::fmt;

use super::RecoveryPoint;
use crate::codec::{Decoder, Encoder, Malformed};

/// The phases that were begun, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Journal {
    phases: Vec<Phase>,
}

/// One of them.
#[derive(Clone, PartialEq, Eq)]
pub struct Phase {
    /// Its name, unique in its journal.
    pub name: Box<str>,
    /// Whose effect it is.
    pub kind: PhaseKind,
    /// How far it came.
    pub progress: Progress,
}

/// Whose effect a phase is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PhaseKind {
    /// Rows of the caller's own, in one transaction with the recovery point.
    Atomic,
    /// Somebody else's: it can be begun and never heard of again.
    Foreign,
}

/// How far a phase came.
#[derive(Clone, PartialEq, Eq)]
pub enum Progress {
    /// It may have had its effect.
    Begun,
    /// It had its effect, and this is what it gave.
    Finished(Vec<u8>),
    /// It failed with these words, nothing of it took effect, and the handler went on to the next.
    Failed(Box<str>),
}

/// What a handler is to do about the phase that it asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Visit<'j> {
    /// Run it: nobody has begun it.
    Run,
    /// Do not run it: this is what it gave.
    Finished(&'j [u8]),
    /// Do not run it: it failed with these words, and what was done after it was done because of that.
    Failed(&'j str),
    /// It was begun, and nobody knows what came of it.
    Begun,
}

/// The handler is not the one that began this operation: what it asks for is not what was done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Changed {
    /// Another phase was done at this place.
    Another {
        /// The place, from 0.
        position: usize,
        /// What was done there.
        kept: (Box<str>, PhaseKind),
        /// What is asked for.
        asked: (Box<str>, PhaseKind),
    },
    /// It ended without having asked for this phase, which was begun.
    Left {
        /// The place, from 0.
        position: usize,
        /// What was done there.
        kept: Box<str>,
    },
    /// It has two phases of one name.
    Repeated {
        /// The name.
        name: Box<str>,
    },
}

impl Journal {
    /// The journal in a recovery point; empty if there is none.
    pub fn of(point: Option<&RecoveryPoint>) -> Result<Self, Malformed> {
        point.map_or_else(|| Ok(Self::default()), |point| Self::decode(&point.output))
    }

    /// The recovery point that keeps it, named by its last phase.
    #[must_use]
    pub fn point(&self) -> RecoveryPoint {
        let name = self.phases.last().map_or_else(Box::default, |phase| phase.name.clone());
        RecoveryPoint { name, output: self.encode() }
    }

    /// The phases, in order.
    #[must_use]
    pub fn phases(&self) -> &[Phase] {
        &self.phases
    }

    /// What a handler is to do about the phase that it asks for at this place (from 0).
    pub fn visit(&self, position: usize, name: &str, kind: PhaseKind) -> Result<Visit<'_>, Changed> {
        match self.phases.get(position) {
            Some(phase) if *phase.name == *name && phase.kind == kind => Ok(match &phase.progress {
                Progress::Begun => Visit::Begun,
                Progress::Finished(output) => Visit::Finished(output),
                Progress::Failed(words) => Visit::Failed(words),
            }),
            Some(phase) => Err(Changed::Another {
                position,
                kept: (phase.name.clone(), phase.kind),
                asked: (name.into(), kind),
            }),
            None if self.phases.iter().any(|phase| *phase.name == *name) => {
                Err(Changed::Repeated { name: name.into() })
            }
            None => Ok(Visit::Run),
        }
    }

    /// A handler ends after so many phases: it must have asked for all that were begun.
    pub fn leave(&self, visited: usize) -> Result<(), Changed> {
        match self.phases.get(visited) {
            Some(phase) => Err(Changed::Left { position: visited, kept: phase.name.clone() }),
            None => Ok(()),
        }
    }

    /// The same journal and one phase more, or with this progress of its last one.
    #[must_use]
    pub fn with(&self, phase: Phase) -> Self {
        let mut next = self.without(&phase.name);
        next.phases.push(phase);
        next
    }

    /// The same journal without its last phase, if that is this one: it was begun, and it is certain that nothing was sent.
    #[must_use]
    pub fn without(&self, name: &str) -> Self {
        let mut next = self.clone();
        next.phases.pop_if(|last| *last.name == *name);
        next
    }
}

const JOURNAL_SCHEMA: u8 = 1;

impl Journal {
    /// The bytes that a recovery point keeps.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Encoder::new();
        out.u8(JOURNAL_SCHEMA);
        out.u32(u32::try_from(self.phases.len()).unwrap_or(u32::MAX));
        for phase in &self.phases {
            out.text(&phase.name);
            let is_failed = matches!(phase.progress, Progress::Failed(_));
            // A release that does not know of failures refuses these two, as it must.
            out.u8(match (phase.kind, is_failed) {
                (PhaseKind::Atomic, false) => 0,
                (PhaseKind::Foreign, false) => 1,
                (PhaseKind::Atomic, true) => 2,
                (PhaseKind::Foreign, true) => 3,
            });
            out.optional(match &phase.progress {
                Progress::Begun => None,
                Progress::Finished(output) => Some(output),
                Progress::Failed(words) => Some(words.as_bytes()),
            });
        }
        out.finish()
    }

    /// Reads back what [`Journal::encode`] wrote.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut input = Decoder::new(bytes, "journal of phases");
        if input.u8()? != JOURNAL_SCHEMA {
            return Err(input.malformed());
        }
        let count = input.u32()?;
        let mut phases = Vec::new();
        for _ in 0..count {
            let name = input.text()?.into();
            let (kind, is_failed) = match input.u8()? {
                0 => (PhaseKind::Atomic, false),
                1 => (PhaseKind::Foreign, false),
                2 => (PhaseKind::Atomic, true),
                3 => (PhaseKind::Foreign, true),
                _ => return Err(input.malformed()),
            };
            let progress = match (input.optional()?, is_failed) {
                (None, false) => Progress::Begun,
                (Some(output), false) => Progress::Finished(output.to_vec()),
                (Some(words), true) => match std::str::from_utf8(words) {
                    Ok(words) => Progress::Failed(words.into()),
                    Err(_) => return Err(input.malformed()),
                },
                (None, true) => return Err(input.malformed()),
            };
            phases.push(Phase { name, kind, progress });
        }
        input.finish()?;
        Ok(Self { phases })
    }
}

impl PhaseKind {
    /// The word for it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Atomic => "atomic",
            Self::Foreign => "foreign",
        }
    }
}

/// An output may carry what nobody is to read in a log.
impl fmt::Debug for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}, ", self.name, self.kind.name())?;
        match &self.progress {
            Progress::Begun => f.write_str("begun)"),
            Progress::Finished(output) => write!(f, "finished with {} bytes)", output.len()),
            Progress::Failed(_) => f.write_str("failed)"),
        }
    }
}

impl fmt::Display for Changed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Another { position, kept: (kept, kept_kind), asked: (asked, asked_kind) } => write!(
                f,
                "phase {} was {kept:?} ({}) when this operation began, and is {asked:?} ({}) in the handler that goes on with it",
                position + 1,
                kept_kind.name(),
                asked_kind.name()
            ),
            Self::Left { position, kept } => write!(
                f,
                "phase {} was {kept:?} when this operation began, and the handler that goes on with it ended without asking for it",
                position + 1
            ),
            Self::Repeated { name } => write!(f, "the handler has two phases called {name:?}"),
        }
    }
}

impl std::error::Error for Changed {}
