//! What the phases of an attempt say of its end, whatever its handler answers.
//!
//! **Invariants:** an attempt that stopped in the middle is never completed by an answer that was made all the same. Nothing is completed
//! while a phase that was done has not been asked for: its handler does not know of it.

use std::fmt;
use std::time::Duration;

use oncegate_core::record::{Changed, CrashPolicy, Journal, Reason, RecoveryPoint};
use oncegate_store::Store;

use crate::held::Held;
use crate::settle::Settlement;

/// What is known of the phases of an attempt.
#[derive(Debug, Default)]
pub(crate) struct Track {
    /// A handler asked for them.
    pub(super) is_taken: bool,
    /// The attempt stopped, and how it is to be settled.
    pub(super) stop: Option<Stop>,
    /// What was done and not asked for yet.
    pub(super) left: Option<Changed>,
    /// Why the last phase that failed did so, without consequences.
    pub(super) failed: Option<Reason>,
}

/// How an attempt that stopped is settled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// Another goes on.
    Release(Reason),
    /// A person looks at it.
    Park(Reason),
}

impl<S: Store> Held<S> {
    /// Whether what runs under this lease is an operation in phases: it has asked for them, or an earlier attempt had.
    #[must_use]
    pub fn is_phased(&self) -> bool {
        self.lease.recovery.is_some() || self.track(|track| track.is_taken)
    }

    /// How the attempt is to be settled, where its answer says `settlement`: what its phases say goes before it.
    ///
    /// An end that nobody can judge (a panic, a 500) is no doubt here: effects are in phases, and of those the journal tells. Another
    /// attempt goes on. But a handler that says itself that it does not know is believed: it had an effect that is in no phase, or
    /// may have had one, and the journal cannot tell of it.
    #[must_use]
    pub fn as_its_phases_say(&self, settlement: Settlement) -> Settlement {
        if !self.is_phased() {
            self.warn_of_no_phases(&settlement);
            return settlement;
        }
        let (stop, left, failed) = self.track(|track| {
            let left = if track.is_taken {
                track.left.clone()
            } else {
                left_from_the_start(self.lease.recovery.as_ref())
            };
            (track.stop.clone(), left, track.failed.clone())
        });
        match (stop, settlement) {
            (Some(Stop::Park(reason)), _) | (None, Settlement::Park(reason)) => Settlement::Park(reason),
            (Some(Stop::Release(reason)), _) => released(reason),
            (None, Settlement::Unknown(reason)) => Settlement::Unknown(reason),
            (None, Settlement::Complete(answer)) => match left {
                Some(changed) => Settlement::Park(changed_handler(&changed)),
                None => Settlement::Complete(answer),
            },
            (None, Settlement::Release { reason, .. } | Settlement::Doubt(reason)) => {
                released(failed.unwrap_or(reason))
            }
        }
    }

    /// See [`parked_without_phases`].
    #[must_use]
    pub fn parked_without_phases(&self) -> Option<Settlement> {
        parked_without_phases(self.lease.recovery.as_ref())
    }

    /// Had it crashed, it would have been run again from its beginning.
    fn warn_of_no_phases(&self, settlement: &Settlement) {
        if self.policy().crash == CrashPolicy::Resume && matches!(settlement, Settlement::Complete(_)) {
            tracing::warn!(
                record = %self.id(),
                route = %self.route.operation(),
                "a handler under `resume` ended without asking for its phases: a crash would run it again from its beginning"
            );
        }
    }

    fn track<T>(&self, look: impl FnOnce(&Track) -> T) -> T {
        look(&self.watch.track.lock().unwrap_or_else(std::sync::PoisonError::into_inner))
    }
}

/// How an attempt ends before it runs if its handler has no phases, but an earlier attempt finished
/// or began some: parked. The handler would do again what the journal says was done. `None`: nothing
/// was done in phases.
pub(crate) fn parked_without_phases(reached: Option<&RecoveryPoint>) -> Option<Settlement> {
    left_from_the_start(reached).map(|changed| Settlement::Park(changed_handler(&changed)))
}

/// A journal that cannot be read is one that this handler does not know.
fn left_from_the_start(reached: Option<&RecoveryPoint>) -> Option<Changed> {
    let unreadable = Changed::Left { position: 0, kept: "of another release".into() };
    Journal::of(reached).map_or(Some(unreadable), |journal| journal.leave(0).err())
}

/// How long it waits is settled with it.
const fn released(reason: Reason) -> Settlement {
    Settlement::Release { reason, backoff: Duration::ZERO }
}

pub(super) fn changed_handler(changed: &dyn fmt::Display) -> Reason {
    Reason::new(
        "changed_handler",
        format!(
            "{changed}. Nothing more was run. Find out how far the operation came, and resolve this record with the answer that its \
             client shall get; handlers keep the names, the order and the kinds of their phases while operations are in flight"
        ),
    )
}

pub(super) fn begun_and_parked(phase: &str) -> Reason {
    Reason::new(
        "phase_in_doubt",
        format!(
            "phase {phase:?} was begun by an attempt that was not heard of again, and it declares that only a person can say what came of \
             it. Find out, and resolve this record with the answer that its client shall get"
        ),
    )
}

pub(super) fn no_horizon(phase: &str) -> Reason {
    Reason::new(
        "phase_in_doubt",
        format!(
            "the probe of phase {phase:?} finds no effect, which proves nothing on a route without a horizon: what was sent may still \
             arrive. Declare the longest delay of whoever is called as the route's horizon; find out what came of this one, and resolve it"
        ),
    )
}

pub(super) fn horizon_too_far(phase: &str) -> Reason {
    Reason::new(
        "phase_in_doubt",
        format!(
            "the probe of phase {phase:?} finds no effect, and the route's horizon ends after the attempt's deadline, so no attempt can wait \
             for it. Give attempts more time; find out what came of this one, and resolve it"
        ),
    )
}

pub(super) fn cannot_be_kept(phase: &str, error: &serde_json::Error) -> Reason {
    Reason::new(
        "phase_output",
        format!(
            "phase {phase:?} had its effect, and what it gave cannot be kept as JSON ({error}). Mend its output's type, and resolve this \
             record with the answer that its client shall get"
        ),
    )
}

pub(super) fn unreadable(phase: &str, error: &serde_json::Error) -> String {
    format!("what phase {phase:?} gave cannot be read as what the handler that goes on expects ({error})")
}
