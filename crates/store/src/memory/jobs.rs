//! The outbox of the reference model: what every other store's must be equal to.

use std::collections::BTreeMap;

use oncegate_core::identity::{RecordId, Token};
use oncegate_core::record::Reason;
use oncegate_core::time::Timestamp;

use super::MemoryStore;
use crate::jobs::{Became, Claim, Depth, Job, JobId, Jobs, PROMISED_OTHERWISE, Report, Stage};
use crate::{Effect, Kind, Result, StoreError};

/// Jobs in the order in which they were promised.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Outbox(Vec<Row>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Row {
    job: Job,
    /// Of whoever has claimed it last, until it says what became of it.
    token: Option<Token>,
    over_at: Option<Timestamp>,
}

impl Row {
    const fn is_open(&self) -> bool {
        matches!(self.job.stage, Stage::Waiting | Stage::Delivered(_))
    }
}

impl Outbox {
    fn promise(&mut self, jobs: &[Job]) -> Result<()> {
        let mut next = self.clone();
        for job in jobs {
            // What was withdrawn is in nobody's way: its name is free, and its place in its line is gone.
            next.0.retain(|row| row.job.id != job.id || row.job.stage != Stage::Withdrawn);
            match next.0.iter_mut().find(|row| row.job.id == job.id) {
                None => next.0.push(Row { job: job.clone(), token: None, over_at: None }),
                Some(row) if row.job.stage == Stage::Parked && row.job.line == job.line => {
                    row.job = job.clone();
                }
                Some(row) if row.job.is_promised_as(job) => {}
                Some(_) => {
                    let refused = StoreError::new(Kind::Other, Effect::None, "promise");
                    return Err(refused.because(PROMISED_OTHERWISE));
                }
            }
        }
        *self = next;
        Ok(())
    }

    /// Nobody before it in its line is still to be delivered, or before an operator.
    fn is_first(&self, place: usize) -> bool {
        let line = &self.0[place].job.line;
        line.is_none() || !self.0[..place].iter().any(|row| &row.job.line == line && row.over_at.is_none())
    }

    fn claim(&mut self, claim: &Claim<'_>, now: Timestamp) -> Vec<Job> {
        let is_wanted =
            |row: &Row| row.is_open() && row.job.due_at <= now && claim.effects.contains(&&*row.job.effect);
        let mut places: Vec<_> =
            (0..self.0.len()).filter(|place| is_wanted(&self.0[*place]) && self.is_first(*place)).collect();
        places.sort_by_key(|place| (self.0[*place].job.due_at, *place));
        let mut again = claim.again;
        places.retain(|place| {
            let is_again = self.0[*place].job.tries > 0;
            let comes = !is_again || again > 0;
            again -= usize::from(is_again && comes);
            comes
        });
        places.truncate(claim.limit);
        let take = |place: usize| {
            let row = &mut self.0[place];
            row.token = Some(claim.token);
            row.job.due_at = now.plus(claim.span);
            row.job.tries += 1;
            row.job.clone()
        };
        places.into_iter().map(take).collect()
    }

    fn report(&mut self, token: Token, report: &Report, now: Timestamp) -> bool {
        let is_held = |row: &&mut Row| row.job.id == report.id && row.token == Some(token) && row.is_open();
        let Some(row) = self.0.iter_mut().find(is_held) else { return false };
        let job = &mut row.job;
        match &report.became {
            Became::Delivered(receipt) => job.stage = Stage::Delivered(receipt.clone()),
            Became::Done(receipt) => {
                job.stage = Stage::Done(receipt.clone());
                row.over_at = Some(now);
            }
            Became::Later { after, .. } => job.due_at = now.plus(*after),
            Became::Away { after, .. } => {
                job.due_at = now.plus(*after);
                job.tries -= 1;
            }
            Became::Parked(_) => job.stage = Stage::Parked,
            Became::Withdrawn(_) => {
                job.stage = Stage::Withdrawn;
                row.over_at = Some(now);
            }
        }
        job.last_error = match &report.became {
            Became::Later { why, .. }
            | Became::Away { why, .. }
            | Became::Parked(why)
            | Became::Withdrawn(why) => Some(why.clone()),
            Became::Delivered(_) | Became::Done(_) => None,
        };
        if !matches!(report.became, Became::Delivered(_)) {
            row.token = None;
        }
        true
    }

    fn find(&self, is_wanted: impl Fn(&Job) -> bool) -> impl Iterator<Item = &Job> {
        self.0.iter().map(|row| &row.job).filter(move |job| is_wanted(job))
    }

    fn parked(&self, after: Option<JobId>, limit: usize) -> Vec<Job> {
        let from = after.and_then(|id| self.0.iter().position(|row| row.job.id == id));
        let rest = &self.0[from.map_or(0, |place| place + 1)..];
        let parked = rest.iter().filter(|row| row.job.stage == Stage::Parked);
        parked.take(limit).map(|row| row.job.clone()).collect()
    }

    fn unpark(&mut self, id: JobId, now: Timestamp) -> bool {
        let is_parked = |row: &&mut Row| row.job.id == id && row.job.stage == Stage::Parked;
        let Some(row) = self.0.iter_mut().find(is_parked) else { return false };
        row.job.stage = Stage::Waiting;
        (row.job.due_at, row.job.tries, row.job.last_error) = (now, 0, None);
        true
    }

    fn withdraw(&mut self, parked: &Job, why: &Reason, now: Timestamp) -> bool {
        let is_as_read = |row: &&mut Row| {
            row.job.id == parked.id && row.job.stage == Stage::Parked && row.job.due_at == parked.due_at
        };
        let Some(row) = self.0.iter_mut().find(is_as_read) else { return false };
        row.job.stage = Stage::Withdrawn;
        row.job.last_error = Some(why.clone());
        row.over_at = Some(now);
        true
    }

    fn depth(&self) -> Vec<Depth> {
        let mut depths: BTreeMap<&str, Depth> = BTreeMap::new();
        for row in self.0.iter().filter(|row| row.over_at.is_none()) {
            let empty = Depth { effect: row.job.effect.clone(), waiting: 0, parked: 0, oldest: None };
            let depth = depths.entry(&row.job.effect).or_insert(empty);
            if row.is_open() {
                depth.waiting += 1;
                let created_at = row.job.created_at;
                depth.oldest = Some(depth.oldest.map_or(created_at, |oldest| oldest.min(created_at)));
            } else {
                depth.parked += 1;
            }
        }
        depths.into_values().collect()
    }

    fn drop_jobs(&mut self, before: Timestamp, limit: usize) -> usize {
        let mut left = limit;
        self.0.retain(|row| {
            let goes = left > 0 && row.over_at.is_some_and(|at| at < before);
            left -= usize::from(goes);
            !goes
        });
        limit - left
    }
}

impl Jobs for MemoryStore {
    async fn promise(&self, jobs: &[Job]) -> Result<()> {
        self.model().outbox.promise(jobs)
    }

    async fn claim(&self, claim: &Claim<'_>) -> Result<Vec<Job>> {
        let now = self.clock.now();
        Ok(self.model().outbox.claim(claim, now))
    }

    async fn report(&self, token: Token, reports: &[Report]) -> Result<Vec<bool>> {
        let now = self.clock.now();
        let mut model = self.model();
        Ok(reports.iter().map(|report| model.outbox.report(token, report, now)).collect())
    }

    async fn job(&self, id: JobId) -> Result<Option<Job>> {
        Ok(self.model().outbox.find(|job| job.id == id).next().cloned())
    }

    async fn jobs_of(&self, record: RecordId) -> Result<Vec<Job>> {
        Ok(self.model().outbox.find(|job| job.record == record).cloned().collect())
    }

    async fn parked(&self, after: Option<JobId>, limit: usize) -> Result<Vec<Job>> {
        Ok(self.model().outbox.parked(after, limit))
    }

    async fn unpark(&self, id: JobId) -> Result<bool> {
        let now = self.clock.now();
        Ok(self.model().outbox.unpark(id, now))
    }

    async fn withdraw(&self, parked: &Job, why: &Reason) -> Result<bool> {
        let now = self.clock.now();
        Ok(self.model().outbox.withdraw(parked, why, now))
    }

    async fn depth(&self) -> Result<Vec<Depth>> {
        Ok(self.model().outbox.depth())
    }

    async fn drop_jobs(&self, before: Timestamp, limit: usize) -> Result<usize> {
        Ok(self.model().outbox.drop_jobs(before, limit))
    }
}
