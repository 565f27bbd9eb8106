//! Acts of people: settling what no machine could, asking again, dropping an answer.
//!
//! **Invariant:** every act is about the version of the record that its operator looked at, carries a reason, and is told in the
//! audit trail in the same commit.

use std::sync::Arc;

use oncegate_core::audit::{Entry, Who};
use oncegate_core::decide::{Ask, Decision, Event, Finding, Grounds, Retry, Verdict};
use oncegate_core::identity::{RecordId, Version};
use oncegate_core::record::Reason;
use oncegate_core::response::Answer;
use oncegate_store::signals::Signal;
use oncegate_store::{Store, StoreError};

use crate::engine::Engine;

/// What an operator does.
#[derive(Clone, Debug)]
pub enum Act {
    /// It happened, and retries get this answer.
    Happened(Arc<Answer>),
    /// It did not happen, and cannot any more: the same key may run again.
    DidNotHappen,
    /// The machine shall ask again, as if nobody had.
    AskAgain,
    /// The stored answer is dropped.
    Forget,
}

/// Who does it, and why.
#[derive(Clone, Debug)]
pub struct Operator {
    /// The person, or the tool.
    pub name: Box<str>,
    /// For whoever reads the trail.
    pub reason: Box<str>,
}

/// Whether other nodes have been told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// Everything; those that listen let go of what they held.
    All,
    /// The store carries no signals.
    NoSignals,
    /// Not in time.
    NotInTime,
}

impl<S: Store> Engine<S> {
    /// Does what an operator says to this version of the record. [`Decision::Done`]: it took effect; [`Decision::Refused`]: the
    /// record has changed, or is in a state that does not allow it; [`Decision::Nothing`]: it means nothing to the record.
    pub async fn operate(
        &self,
        id: RecordId,
        version: Version,
        act: Act,
        operator: &Operator,
    ) -> Result<Decision, Arc<StoreError>> {
        let reason = Reason::new("operator", operator.reason.clone());
        let who = self.operator_who(operator);
        let source: Box<str> = who.name.clone().unwrap_or_default();
        let event = match act {
            Act::AskAgain => Event::Ask(Ask::Again { version }),
            Act::Forget => self.forgetting(version, reason),
            Act::Happened(answer) => self.ruling(id, source, Finding::Happened(answer)).await?,
            Act::DidNotHappen => {
                let otherwise = Retry { at: self.now().at, park_after: u32::MAX };
                let grounds = Grounds::Operator { version };
                let finding =
                    Finding::DidNotHappen { grounds, backoff: std::time::Duration::ZERO, otherwise };
                self.ruling(id, source, finding).await?
            }
        };
        let step = self.step_over(id, version, &event, &who).await;
        // Also after an error: the write may have landed.
        self.0.let_go(id);
        self.0.herald.tell(Signal::Forgotten(id));
        self.0.doubts.notify_one();
        Ok(step?.decision)
    }

    /// Whom the audit trail names for what an operator does.
    pub(crate) fn operator_who(&self, operator: &Operator) -> Who {
        let reason = Reason::new("operator", operator.reason.clone());
        Who {
            name: Some(format!("operator {}", operator.name).into()),
            reason: Some(reason),
            ..self.0.who.clone()
        }
    }

    /// Waits, up to `limit`, until the other nodes are told of what was done here: for a process that acts and ends. What is not told
    /// goes from their caches with its age.
    pub async fn told(&self, limit: std::time::Duration) -> Told {
        match tokio::time::timeout(limit, self.0.herald.told()).await {
            Ok(true) => Told::All,
            Ok(false) => Told::NoSignals,
            Err(_) => Told::NotInTime,
        }
    }

    /// The audit trail of a record, oldest first: the last `limit` entries. It outlives the record.
    pub async fn story(&self, id: RecordId, limit: usize) -> Result<Vec<Entry>, Arc<StoreError>> {
        Ok(self.0.store.story(id, limit).await?)
    }

    /// An operator's verdict is about the life that the record is in.
    async fn ruling(
        &self,
        id: RecordId,
        source: Box<str>,
        finding: Finding,
    ) -> Result<Event, Arc<StoreError>> {
        let life = self
            .read(id)
            .await?
            .map_or_else(|| oncegate_core::identity::Token::from_bytes([0; 16]), |row| row.life);
        Ok(Event::Verdict(Verdict { life, source, reference: None, finding }))
    }
}
