//! Errors that say whether a write may have landed.
//!
//! **Invariant:** [`Effect::None`] is a proof, not a hope. A store that cannot prove that nothing was written says
//! [`Effect::Unknown`], and nobody may treat that as "did not".

use std::error::Error;
use std::fmt;

/// A store could not do what was asked.
#[derive(Debug)]
pub struct StoreError {
    kind: Kind,
    effect: Effect,
    operation: &'static str,
    source: Option<Box<dyn Error + Send + Sync>>,
}

/// What went wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// The store cannot be reached, or is shutting down. Try again later.
    Unavailable,
    /// Others were in the way for too long. Try again.
    Contended,
    /// No space is left.
    Full,
    /// What is stored cannot be read: damaged, or written by a newer release.
    Unreadable,
    /// The database rejected what a write holds, by a constraint, a trigger or a limit on values. It
    /// will reject the same write again; other writes of the batch may be fine.
    Rejected,
    /// The store is not set up as it must be.
    Misconfigured,
    /// The store was set back to an earlier state while this process ran: a backup was restored, or acknowledged writes were
    /// lost. Nothing that this process remembers may be relied upon any more.
    Restored,
    /// Anything else.
    Other,
}

/// Did the write land? A retry is only as safe as this answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Effect {
    /// Nothing was written, and nothing will be.
    None,
    /// It may have been written, or may still be.
    Unknown,
}

impl StoreError {
    /// An error of `operation`.
    #[must_use]
    pub const fn new(kind: Kind, effect: Effect, operation: &'static str) -> Self {
        Self { kind, effect, operation, source: None }
    }

    /// Adds the cause.
    #[must_use]
    pub fn because(mut self, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// What went wrong.
    #[must_use]
    pub const fn kind(&self) -> Kind {
        self.kind
    }

    /// Whether a write may have landed.
    #[must_use]
    pub const fn effect(&self) -> Effect {
        self.effect
    }

    /// The store works, and refused one write of the batch for what it holds or is about. Nothing of the
    /// batch was written, and the other writes may be applied without that one.
    #[must_use]
    pub fn is_rejection(&self) -> bool {
        self.effect == Effect::None && matches!(self.kind, Kind::Rejected | Kind::Unreadable)
    }

    /// What was being done.
    #[must_use]
    pub const fn operation(&self) -> &'static str {
        self.operation
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            Kind::Unavailable => "the store is unavailable",
            Kind::Contended => "the store is busy with other writers",
            Kind::Full => "the store has no space left",
            Kind::Unreadable => "stored data cannot be read",
            Kind::Rejected => "the database rejected the write",
            Kind::Misconfigured => "the store is not set up as it must be",
            Kind::Restored => "the store was found restored",
            Kind::Other => "the store failed",
        };
        let effect = match self.effect {
            Effect::None => "nothing was written",
            Effect::Unknown => "it is not known whether it was written",
        };
        write!(f, "{kind} during {}; {effect}", self.operation)?;
        match &self.source {
            Some(source) => write!(f, " ({source})"),
            None => Ok(()),
        }
    }
}

impl Error for StoreError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_ref().map(|source| &**source as &(dyn Error + 'static))
    }
}
