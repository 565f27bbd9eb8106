//! What an operator does with a job that was given up.

use std::sync::Arc;

use oncegate_core::audit::{Act, Entry};
use oncegate_core::record::Reason;
use oncegate_store::StoreError;
use oncegate_store::jobs::{Job, JobId, Jobs};

use crate::engine::Engine;
use crate::operate::Operator;

impl<S: Jobs> Engine<S> {
    /// Puts a parked job before the machine again, as if nobody had tried; says whether it was parked. It becomes part of the story of
    /// the record that promised it, if that is still there.
    pub async fn retry_job(&self, id: JobId, operator: &Operator) -> Result<bool, Arc<StoreError>> {
        let Some(job) = self.0.store.job(id).await? else { return Ok(false) };
        if !self.0.store.unpark(id).await? {
            return Ok(false);
        }
        self.wake_outbox();
        self.tell_of_retry(&job, operator).await?;
        Ok(true)
    }

    async fn tell_of_retry(&self, job: &Job, operator: &Operator) -> Result<(), Arc<StoreError>> {
        let Some(row) = self.read(job.record).await? else { return Ok(()) };
        let state = Some(row.state.kind());
        let entry = Entry {
            id: job.record,
            at: self.now().at,
            node: self.0.who.node.clone(),
            act: Act::AskedAgain,
            life: job.life,
            from: state,
            to: state,
            version: row.version,
            fence: row.fence,
            attempt: row.attempts,
            source: Some(operator.name.clone()),
            reason: Some(Reason::new("operator", format!("{}: {}", job.id, operator.reason))),
            notices: Vec::new(),
        };
        Ok(self.0.store.tell(&[entry]).await?)
    }
}
