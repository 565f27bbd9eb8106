//! Decide, write, and decide again if the row has changed: through the batching writer, with what the audit trail is told.

use std::sync::Arc;

use oncegate_core::audit::{self, Entry, Who};
use oncegate_core::decide::{Decision, Event, Next, Refusal, Step, decide};
use oncegate_core::identity::{RecordId, Version};
use oncegate_core::record::Record;
use oncegate_core::time::Now;
use oncegate_store::{Effect, Kind, Outcome, Store, StoreError, Write};

use crate::engine::Engine;
use crate::meters::observe;
use crate::writer::Failed;

/// More rounds than any honest contention needs.
pub(crate) const ROUNDS_MAX: usize = 64;

/// A step that took effect.
pub(crate) struct Stepped {
    pub(crate) step: Step,
    /// The row as it is now.
    pub(crate) row: Option<Arc<Record>>,
}

/// What one try came to.
pub(crate) enum Tried {
    Stepped(Stepped),
    /// The row is another.
    Changed(Option<Arc<Record>>),
}

impl<S: Store> Engine<S> {
    /// Makes `event` happen to `row`, which may be outdated: the store shows the right one if it is. Waits for room.
    pub(crate) async fn step(&self, event: &Event, row: Option<Arc<Record>>) -> Result<Stepped, Failed> {
        self.step_as(event, row, &self.0.who).await
    }

    /// The same, done by somebody.
    pub(crate) async fn step_as(
        &self,
        event: &Event,
        mut row: Option<Arc<Record>>,
        who: &Who,
    ) -> Result<Stepped, Failed> {
        for _ in 0..ROUNDS_MAX {
            match self.try_step(event, row, who).await? {
                Tried::Stepped(stepped) => return Ok(stepped),
                Tried::Changed(current) => row = current,
            }
        }
        Err(Arc::new(StoreError::new(Kind::Contended, Effect::None, "drive")))
    }

    /// Makes `event` happen to this very version of the record, or says that it has changed: for acts of people, who decided
    /// by what they saw.
    pub(crate) async fn step_over(
        &self,
        id: RecordId,
        version: Version,
        event: &Event,
        who: &Who,
    ) -> Result<Step, Failed> {
        let refused =
            |refusal| Step { next: Next::Keep, decision: Decision::Refused(refusal), notices: Vec::new() };
        let Some(row) = self.read(id).await? else {
            return Ok(Step { next: Next::Keep, decision: Decision::Nothing, notices: Vec::new() });
        };
        if row.version != version {
            return Ok(refused(Refusal::Changed));
        }
        match self.try_step(event, Some(Arc::new(row)), who).await? {
            Tried::Stepped(stepped) => Ok(stepped.step),
            Tried::Changed(_) => Ok(refused(Refusal::Changed)),
        }
    }

    /// One round of [`Engine::step`]: decides upon `row`, and writes over it.
    pub(crate) async fn try_step(
        &self,
        event: &Event,
        row: Option<Arc<Record>>,
        who: &Who,
    ) -> Result<Tried, Failed> {
        let now = self.now();
        let step = decide(row.as_deref(), event, now);
        let entry = audit::entry(row.as_deref(), event, &step, who, now);
        let Some(write) = Write::of_step(row.as_deref(), &step) else {
            self.tell(entry).await?;
            observe(event, row.as_deref(), &step);
            return Ok(Tried::Stepped(Stepped { step, row }));
        };
        let write = write.telling(entry);
        let ticket = self.0.writer.submit_when_there_is_room(write).await.map_err(|_| ended())?;
        match ticket.outcome().await? {
            Outcome::Applied => {
                observe(event, row.as_deref(), &step);
                let row = match &step.next {
                    Next::Put(record) => Some(Arc::clone(record)),
                    Next::Keep => row,
                    Next::Remove { .. } => None,
                };
                Ok(Tried::Stepped(Stepped { step, row }))
            }
            // Refused over the very row that was decided upon: the store's own clock disagrees about a removal.
            Outcome::Refused { current } if current == row => {
                Err(Arc::new(StoreError::new(Kind::Contended, Effect::None, "drive")))
            }
            Outcome::Refused { current } => Ok(Tried::Changed(current)),
            Outcome::Unreadable { problem } => Err(unreadable(problem)),
        }
    }

    /// Tells of what changed no row.
    async fn tell(&self, entry: Option<Entry>) -> Result<(), Failed> {
        if let Some(entry) = entry {
            // Boxed, as what is rare: the future of a store over the network is large, and would be part of every request's.
            Box::pin(self.0.store.tell(&[entry])).await?;
        }
        Ok(())
    }

    /// What is told of an arrival's step.
    pub(crate) fn entry(&self, row: Option<&Record>, event: &Event, step: &Step, now: Now) -> Option<Entry> {
        audit::entry(row, event, step, &self.0.who, now)
    }
}

pub(crate) fn unreadable(problem: String) -> Failed {
    Arc::new(StoreError::new(Kind::Unreadable, Effect::None, "drive").because(problem))
}

fn ended() -> Failed {
    Arc::new(StoreError::new(Kind::Unavailable, Effect::None, "drive").because("the writer has ended"))
}
