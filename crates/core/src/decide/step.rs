//! What a decision consists of.

use std::sync::Arc;
use std::time::Duration;

use crate::record::{GoneStatus, Holder, Record, RecoveryPoint};
use crate::response::Answer;
use crate::time::Timestamp;

/// The next row, the decision, and what an auditor should hear of.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct Step {
    /// What to write, on the condition that the row has not changed.
    pub next: Next,
    /// What the caller may do once the write is durable.
    pub decision: Decision,
    /// Things off the happy path, for audit and metrics.
    pub notices: Vec<Notice>,
}

/// What to write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// Nothing.
    Keep,
    /// This row: inserted where there was none, swapped where there was one.
    Put(Arc<Record>),
    /// Remove the row, if it is past retention by this grace on the store's own clock too.
    Remove {
        /// How much longer than its retention a row is left alone.
        grace: Duration,
    },
}

/// What the caller must do next. Exhaustive on purpose.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum Decision {
    /// Run it under this lease, once the write is durable and if the lease has not ended by then.
    Execute(Lease),
    /// Somebody will run it.
    Accepted,
    /// Over: send these bytes and touch nothing.
    Replay(Arc<Answer>),
    /// Another caller holds the lease until then.
    Busy {
        /// The lease's end, as it stands.
        until: Timestamp,
    },
    /// Nobody knows what the last attempt did; only reconciliation may say.
    Unsettled {
        /// Since when.
        since: Timestamp,
        /// An operator has it.
        parked: bool,
    },
    /// Same key, another request.
    Mismatch,
    /// Past retention.
    Gone {
        /// With which status.
        status: GoneStatus,
        /// When the tombstone ends.
        until: Option<Timestamp>,
    },
    /// The event took effect, or had already.
    Done,
    /// The lease now ends then.
    Renewed {
        /// Never past the attempt's deadline.
        until: Timestamp,
    },
    /// Not yours, or not as you say: this is the row now (`None`: there is none). Answer from it, never with your own
    /// bytes.
    Fenced(Option<Arc<Record>>),
    /// An act of an operator, or of the owner, that the record's state does not allow.
    Refused(Refusal),
    /// What an event says of a key that was never seen: keep it apart for a while.
    KeepApart,
    /// The event means nothing to a record in this state.
    Nothing,
}

/// Why an act of an operator, or of the owner, was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The record changed after the operator looked at it.
    Changed,
    /// Only settled records can be forgotten.
    NotSettled,
    /// Only an unknown outcome can be asked about.
    NotUnknown,
    /// Only what still waits can be cancelled, and only if no attempt of it may have acted.
    Begun,
}

/// The time-bounded right to execute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    /// What settling it will be checked against.
    pub holder: Holder,
    /// When it ends; check it again before the first byte leaves.
    pub until: Timestamp,
    /// Beyond which no renewal reaches.
    pub attempt_deadline: Timestamp,
    /// Which attempt of this life it is, from 1.
    pub attempt: u32,
    /// Where to continue.
    pub recovery: Option<RecoveryPoint>,
}

impl Lease {
    /// The lease that a row in progress carries.
    pub(super) fn of(record: &Record) -> Self {
        let (token, until, attempt_deadline) = match record.grant {
            Some(grant) => (grant.token, grant.lease_until, grant.attempt_deadline),
            // A row without a grant has no lease: one that ended before it began.
            None => (record.life, record.created_at, record.created_at),
        };
        Self {
            holder: Holder { life: record.life, token, fence: record.fence },
            until,
            attempt_deadline,
            attempt: record.attempts,
            recovery: record.recovery.clone(),
        }
    }
}

/// Something off the happy path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Notice {
    /// Another request under the same key was treated as the same.
    Misuse,
    /// A lease had lapsed.
    Zombie,
    /// An execution begins where a tombstone was.
    OutOfTombstone,
    /// A *happened* came early and was kept.
    EvidenceKept,
    /// An effect was proved of an attempt that had been judged to have none.
    WronglyReleased,
    /// An effect was proved of an older grant while a newer one runs.
    EffectUnderOlderGrant,
    /// An effect was proved of a life that is already buried.
    EffectAtTombstone,
    /// Two attempts of one life have completed.
    SecondEffect,
    /// Two accounts of one outcome disagree.
    Contradiction,
    /// A verdict about another life of the key.
    AnotherLife,
    /// A verdict about a life that is already buried: it changes nothing any more.
    AfterTheFact,
    /// A *did not happen* that could not be believed.
    NegativeDropped,
    /// Given up by the machine, put before an operator.
    Parked,
    /// A verdict that says what is recorded already.
    Confirmed,
}

impl Notice {
    /// All of them; a stored notice is the place in this list, which only grows at its end.
    pub const ALL: [Self; 14] = [
        Self::Misuse,
        Self::Zombie,
        Self::OutOfTombstone,
        Self::EvidenceKept,
        Self::WronglyReleased,
        Self::EffectUnderOlderGrant,
        Self::EffectAtTombstone,
        Self::SecondEffect,
        Self::Contradiction,
        Self::AnotherLife,
        Self::AfterTheFact,
        Self::NegativeDropped,
        Self::Parked,
        Self::Confirmed,
    ];

    /// The name, for programs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Misuse => "misuse",
            Self::Zombie => "zombie",
            Self::OutOfTombstone => "out_of_tombstone",
            Self::EvidenceKept => "evidence_kept",
            Self::WronglyReleased => "wrongly_released",
            Self::EffectUnderOlderGrant => "effect_under_older_grant",
            Self::EffectAtTombstone => "effect_at_tombstone",
            Self::SecondEffect => "second_effect",
            Self::Contradiction => "contradiction",
            Self::AnotherLife => "another_life",
            Self::AfterTheFact => "after_the_fact",
            Self::NegativeDropped => "negative_dropped",
            Self::Parked => "parked",
            Self::Confirmed => "confirmed",
        }
    }

    /// Somebody should look at this now: an effect may have happened twice, or a promise was taken back.
    #[must_use]
    pub const fn is_alarm(self) -> bool {
        matches!(
            self,
            Self::WronglyReleased
                | Self::EffectUnderOlderGrant
                | Self::EffectAtTombstone
                | Self::SecondEffect
                | Self::Contradiction
        )
    }
}

impl Step {
    pub(super) const fn keep(decision: Decision) -> Self {
        Self { next: Next::Keep, decision, notices: Vec::new() }
    }

    pub(super) fn put(next: Record, decision: Decision) -> Self {
        Self { next: Next::Put(Arc::new(next)), decision, notices: Vec::new() }
    }

    pub(super) fn execute(next: Record) -> Self {
        let decision = Decision::Execute(Lease::of(&next));
        Self::put(next, decision)
    }

    pub(super) const fn remove(grace: Duration) -> Self {
        Self { next: Next::Remove { grace }, decision: Decision::Done, notices: Vec::new() }
    }

    pub(super) fn fenced(record: &Record) -> Self {
        Self::keep(Decision::Fenced(Some(Arc::new(record.clone()))))
    }

    pub(super) fn noting(mut self, notice: Notice) -> Self {
        self.notices.push(notice);
        self
    }
}
