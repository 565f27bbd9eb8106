//! Settling: durably, before the answer leaves, and as often as it takes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use oncegate_core::audit::Who;
use oncegate_core::classify::Class;
use oncegate_core::decide::{Decision, Event, Finding, Retry, Verdict};
use oncegate_core::policy::{AfterDoubt, Policy, WhileInProgress};
use oncegate_core::record::{Holder, Reason, Record, StateKind};
use oncegate_core::response::Answer;
use oncegate_store::signals::Signal;
use oncegate_store::{Kind, Store};

use crate::engine::Engine;
use crate::held::{Ending, Held};

const BACKOFF_FIRST: Duration = Duration::from_millis(20);
const BACKOFF_MAX: Duration = Duration::from_secs(1);
/// The same where the database rejects the write: its owner must act first.
const REJECTED_PAUSE_MAX: Duration = Duration::from_mins(1);

/// How an attempt ended.
#[derive(Clone, Debug)]
pub enum Settlement {
    /// With this answer.
    Complete(Arc<Answer>),
    /// Nothing was executed.
    Release {
        /// Why.
        reason: Reason,
        /// How long deferred work waits before the next attempt.
        backoff: Duration,
    },
    /// Something may have been.
    Doubt(Reason),
    /// The same, by the own account of whoever did it (`Idempotency-Outcome: unknown`): phases do not know better.
    Unknown(Reason),
    /// The same, and no machine can find out: it is put before an operator at once. The reason says what to do.
    Park(Reason),
}

impl Settlement {
    /// As a classification says; `answer` is what is kept if it completes.
    #[must_use]
    pub fn of_class(class: Class, answer: impl FnOnce() -> Answer) -> Self {
        match class {
            Class::Complete => Self::Complete(Arc::new(answer())),
            Class::Release(reason) => Self::Release { reason, backoff: Duration::ZERO },
            Class::Doubt(reason) => Self::Doubt(reason),
        }
    }

    pub(crate) fn released(code: &str, words: &str) -> Self {
        Self::Release { reason: Reason::new(code, words), backoff: Duration::ZERO }
    }

    pub(crate) fn doubted(code: &str, words: &str) -> Self {
        Self::Doubt(Reason::new(code, words))
    }

    pub(crate) fn into_event(self, holder: Holder) -> Event {
        match self {
            Self::Complete(answer) => Event::Complete { holder, answer, reference: None },
            Self::Release { reason, backoff } => Event::Release { holder, reason, backoff },
            Self::Doubt(reason) | Self::Unknown(reason) | Self::Park(reason) => {
                Event::Doubt { holder, reason }
            }
        }
    }
}

/// What came of it.
#[derive(Debug)]
#[must_use]
pub enum Settled {
    /// As the holder said; this is the row now.
    Done(Arc<Record>),
    /// Not as the holder said: answer from this row (`None`: there is none), never with one's own bytes.
    Fenced(Option<Arc<Record>>),
}

impl<S: Store> Held<S> {
    /// Settles the attempt. Tries until the store answers, also past the lease's end: bound the waiting of whoever waits,
    /// not this. Dropping the future does not take it back: the settling goes on.
    pub async fn settle(mut self, settlement: Settlement) -> Settled {
        let started = Instant::now();
        if let Some(took) = self.took() {
            self.route.meters().execute_s.record(took);
        }
        let settlement = self.backing_off(settlement);
        let parking = match &settlement {
            Settlement::Park(reason) => Some(reason.clone()),
            Settlement::Complete(_)
            | Settlement::Release { .. }
            | Settlement::Doubt(_)
            | Settlement::Unknown(_) => None,
        };
        let event = Arc::new(settlement.into_event(self.lease.holder));
        self.ending = Ending::Said(Arc::clone(&event));
        let settled = self.engine.settle_until_done(&event, self.seen(), self.awaited()).await;
        self.ending = Ending::Recorded;
        let settled = match (settled, parking) {
            (Settled::Done(row), Some(reason)) => {
                Settled::Done(Box::pin(self.engine.park(row, reason)).await)
            }
            (settled, _) => settled,
        };
        self.route.meters().settle_s.record(started.elapsed());
        settled
    }
}

/// Who may be waiting for the end of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Awaited {
    /// Nobody, by the route's policy.
    Nobody,
    /// Duplicates, on other nodes too.
    Elsewhere,
}

impl Awaited {
    /// Where duplicates are refused, nobody is told: it would be one signal a request, for nothing.
    pub(crate) fn by(policy: &Policy) -> Self {
        let is_awaited = policy.in_progress == WhileInProgress::Wait
            || policy.after_doubt == AfterDoubt::WaitThenReject
            // Whoever was answered 202 may ask to be told.
            || policy.may_defer();
        if is_awaited { Self::Elsewhere } else { Self::Nobody }
    }
}

impl<S: Store> Held<S> {
    pub(crate) fn awaited(&self) -> Awaited {
        Awaited::by(self.route.policy())
    }
}

/// The store has not answered in time. Settling goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StillSettling;

impl<S: Store> Held<S> {
    /// Like [`Held::settle`], but waits no longer than `patience`: the settling goes on without the caller.
    pub async fn settle_within(
        self,
        settlement: Settlement,
        patience: Duration,
    ) -> Result<Settled, StillSettling> {
        let engine = self.engine.clone();
        let mut settling = Box::pin(self.settle(settlement));
        if let Ok(settled) = tokio::time::timeout(patience, &mut settling).await {
            return Ok(settled);
        }
        engine.behind(async move { drop(settling.await) });
        Err(StillSettling)
    }
}

impl<S: Store> Engine<S> {
    /// Puts a doubt before an operator. If that fails, the reconciler does it: there is nobody for it to ask.
    async fn park(&self, row: Arc<Record>, reason: Reason) -> Arc<Record> {
        let retry = Retry { at: self.now().at, park_after: 1 };
        let verdict = Verdict {
            life: row.life,
            source: "holder".into(),
            reference: None,
            finding: Finding::NotKnown { version: row.version, retry },
        };
        let who = Who { reason: Some(reason), ..self.0.who.clone() };
        match self.step_as(&Event::Verdict(verdict), Some(Arc::clone(&row)), &who).await {
            Ok(stepped) => stepped.row.unwrap_or(row),
            Err(error) => {
                tracing::warn!(%error, record = %row.id, "a doubt could not be put before an operator yet");
                row
            }
        }
    }

    pub(crate) async fn settle_until_done(
        &self,
        event: &Event,
        record: Arc<Record>,
        awaited: Awaited,
    ) -> Settled {
        let id = record.id;
        let mut pause = BACKOFF_FIRST;
        loop {
            let epoch = self.0.cache.epoch(id, self.now());
            let error = match self.step(event, Some(Arc::clone(&record))).await {
                Ok(stepped) => {
                    if let Some(row) = &stepped.row {
                        self.0.cache.keep(row, epoch, self.now());
                    }
                    self.0.waiters.wake(id);
                    if stepped.row.as_ref().is_some_and(|row| row.state.kind() == StateKind::Unknown) {
                        self.0.doubts.notify_one();
                    }
                    if awaited == Awaited::Elsewhere {
                        self.0.herald.tell(Signal::Settled(id));
                    }
                    return match (stepped.step.decision, stepped.row) {
                        (Decision::Fenced(row), _) => {
                            tracing::warn!(record = %id, "an attempt ended otherwise than its holder says; answered from the row");
                            Settled::Fenced(row)
                        }
                        (_, Some(row)) => Settled::Done(row),
                        (_, None) => Settled::Fenced(None),
                    };
                }
                // Trying again cannot mend it, and nothing is known: as if there were no row.
                Err(error) if error.kind() == Kind::Unreadable => {
                    tracing::error!(%error, record = %id, "an attempt cannot be settled: its row cannot be read");
                    return Settled::Fenced(None);
                }
                Err(error) => error,
            };
            tracing::warn!(%error, record = %id, "an attempt could not be settled yet; trying again in {pause:?}");
            tokio::time::sleep(pause).await;
            // A write that the database rejects divides the batch that it comes in: it comes seldom.
            let pause_max = if error.is_rejection() { REJECTED_PAUSE_MAX } else { BACKOFF_MAX };
            pause = (pause * 2).min(pause_max);
        }
    }
}
