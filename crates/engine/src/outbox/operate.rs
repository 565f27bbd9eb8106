//! What an operator does with a job that was given up.

use std::sync::Arc;

use oncegate_core::audit::{Act, Entry};
use oncegate_core::record::Reason;
use oncegate_store::StoreError;
use oncegate_store::jobs::{Job, JobId, Jobs, Stage};

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
        self.tell_of_job(&job, Act::AskedAgain, Some(operator)).await?;
        Ok(true)
    }

    /// Ends a parked job: it is over, and not sent any more; whoever is behind it in its line is next. Says whether it was parked. Of its
    /// record nothing is said by this, if that still waits for an answer.
    pub async fn withdraw_job(&self, id: JobId, operator: &Operator) -> Result<bool, Arc<StoreError>> {
        let Some(job) = self.0.store.job(id).await? else { return Ok(false) };
        let before = job.last_error.as_ref().map(|error| format!(" (before: {error})")).unwrap_or_default();
        let words = format!("operator {}: {}{before}", operator.name, operator.reason);
        if job.stage != Stage::Parked
            || !self.0.store.withdraw(&job, &Reason::new("withdrawn", words)).await?
        {
            return Ok(false);
        }
        self.wake_outbox();
        self.tell_of_job(&job, Act::Withdrawn, Some(operator)).await?;
        Ok(true)
    }

    /// Becomes part of the story of the record that promised it, if that is still there.
    pub(super) async fn tell_of_job(
        &self,
        job: &Job,
        act: Act,
        operator: Option<&Operator>,
    ) -> Result<(), Arc<StoreError>> {
        let Some(row) = self.read(job.record).await? else { return Ok(()) };
        let words = operator.map_or("the record has been settled", |operator| &*operator.reason);
        let code = if operator.is_some() { "operator" } else { "settled" };
        let entry = Entry {
            life: job.life,
            source: operator.map(|operator| operator.name.clone()),
            reason: Some(Reason::new(code, format!("{}: {words}", job.id))),
            ..Entry::about(&row, act, self.now().at, &self.0.who.node)
        };
        Ok(self.0.store.tell(&[entry]).await?)
    }
}
