//! Its owner takes accepted work back, while it still waits.

use std::sync::Arc;

use oncegate_core::audit::Who;
use oncegate_core::decide::{Decision, Event};
use oncegate_core::identity::RecordId;
use oncegate_core::record::Record;
use oncegate_store::signals::Signal;
use oncegate_store::{Store, StoreError};

use crate::engine::Engine;

/// What became of a wish to cancel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cancelled {
    /// It is over, and no attempt is known to have had an effect; or it was so already.
    Done,
    /// It had begun; this is the row.
    TooLate(Arc<Record>),
    /// There is nothing to cancel.
    Absent,
}

impl<S: Store> Engine<S> {
    /// Cancels what still waits to be run, or says that it is too late: one conditional write, so a worker that takes it at the same moment
    /// has it, or does not. `owner` is who the audit trail says it was.
    pub async fn cancel(&self, id: RecordId, owner: &str) -> Result<Cancelled, Arc<StoreError>> {
        let Some(row) = self.read(id).await? else { return Ok(Cancelled::Absent) };
        let who = Who { name: Some(owner.into()), ..self.0.who.clone() };
        let stepped = self.step_as(&Event::Cancel, Some(Arc::new(row)), &who).await;
        // Also after an error: the write may have landed.
        self.0.waiters.wake(id);
        self.0.herald.tell(Signal::Settled(id));
        let stepped = stepped?;
        Ok(match (stepped.step.decision, stepped.row) {
            (Decision::Done, _) => Cancelled::Done,
            (Decision::Refused(_), Some(row)) => Cancelled::TooLate(row),
            _ => Cancelled::Absent,
        })
    }
}
