//! The outbox: claimed with `SKIP LOCKED`, one commit a claim, one commit a report, time by the server's clock.

use std::collections::HashSet;

use oncegate_core::identity::{RecordId, Token};
use oncegate_core::record::Reason;
use oncegate_core::time::{Timestamp, micros};
use oncegate_store::jobs::{Claim, Depth, Enqueue, Job, JobId, Jobs, Report};
use oncegate_store::join::Connection;
use oncegate_store::{Effect, Result};
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::PostgresStore;
use super::error::Failure;
use super::link::Link;
use super::statements::Query;
use super::statements::jobs::Outbox;
use crate::job::{Columns, Said, enqueue_one, in_order};

/// Writes jobs in the transaction that `connection` is in; each line that they go to is locked until it ends.
pub(super) async fn enqueue_in(
    connection: &mut dyn Connection,
    statements: &Outbox,
    jobs: &[Job],
) -> Result<()> {
    for job in in_order(jobs) {
        enqueue_one(connection, &statements.enqueue, job).await?;
    }
    Ok(())
}

/// `None`: nobody could speak of it, for its name cannot be read.
fn decode(row: &Row) -> std::result::Result<Option<Job>, Failure> {
    Ok(match columns(row)?.decode() {
        Ok(job) => Some(job),
        Err(malformed) => {
            tracing::error!(%malformed, "a job of the outbox is passed over");
            None
        }
    })
}

/// The columns [`crate::job::COLUMNS`], from the first place on.
pub(super) fn columns(row: &Row) -> std::result::Result<Columns, Failure> {
    Ok(Columns {
        id: row.try_get(0)?,
        effect: row.try_get(1)?,
        payload: row.try_get(2)?,
        line: row.try_get(3)?,
        record: row.try_get(4)?,
        life: row.try_get(5)?,
        holder: row.try_get(6)?,
        fence: row.try_get(7)?,
        created_at: row.try_get(8)?,
        due_at: row.try_get(9)?,
        tries: row.try_get(10)?,
        stage: row.try_get::<_, i16>(11)?.into(),
        last_error: row.try_get(12)?,
        reference: row.try_get(13)?,
        answer: row.try_get(14)?,
    })
}

fn depth(row: &Row) -> std::result::Result<Depth, Failure> {
    let count = |place| row.try_get::<_, i64>(place).map(|count| u64::try_from(count).unwrap_or(0));
    Ok(Depth {
        effect: row.try_get::<_, String>(0)?.into(),
        waiting: count(1)?,
        parked: count(2)?,
        oldest: row.try_get::<_, Option<i64>>(3)?.map(Timestamp::from_micros),
    })
}

/// Reads all that `query` shows.
async fn ask<T>(
    link: &Link,
    operation: &'static str,
    query: &Query,
    bound: &[&(dyn ToSql + Sync)],
    read: impl Fn(&Row) -> std::result::Result<T, Failure> + Sync,
) -> Result<Vec<T>> {
    let rows = link.read(|session| async move { session.query(query, bound).await }).await;
    let rows = rows.and_then(|rows| rows.iter().map(read).collect());
    rows.map_err(|failure| failure.during(operation, Effect::None))
}

/// One place for each job, column by column.
fn promises<'j>(jobs: &'j [&'j Job]) -> Promises<'j> {
    let holder = |job: &&'j Job| job.answers.as_ref();
    Promises {
        id: jobs.iter().map(|job| &job.id.as_bytes()[..]).collect(),
        effect: jobs.iter().map(|job| &*job.effect).collect(),
        payload: jobs.iter().map(|job| &*job.payload).collect(),
        line: jobs.iter().map(|job| job.line.as_ref().map(|line| line.as_bytes())).collect(),
        record: jobs.iter().map(|job| &job.record.as_bytes()[..]).collect(),
        life: jobs.iter().map(|job| &job.life.as_bytes()[..]).collect(),
        holder: jobs.iter().map(|job| holder(job).map(|holder| &holder.token.as_bytes()[..])).collect(),
        fence: jobs.iter().map(|job| holder(job).map(|holder| holder.fence.as_raw())).collect(),
        created_at: jobs.iter().map(|job| job.created_at.as_micros()).collect(),
        due_at: jobs.iter().map(|job| job.due_at.as_micros()).collect(),
    }
}

struct Promises<'j> {
    id: Vec<&'j [u8]>,
    effect: Vec<&'j str>,
    payload: Vec<&'j [u8]>,
    line: Vec<Option<&'j [u8]>>,
    record: Vec<&'j [u8]>,
    life: Vec<&'j [u8]>,
    holder: Vec<Option<&'j [u8]>>,
    fence: Vec<Option<i64>>,
    created_at: Vec<i64>,
    due_at: Vec<i64>,
}

/// What became of jobs, column by column.
struct Reports<'r> {
    id: Vec<&'r [u8]>,
    stage: Vec<Option<i16>>,
    after: Vec<Option<i64>>,
    reference: Vec<Option<Vec<u8>>>,
    answer: Vec<Option<Vec<u8>>>,
    error: Vec<Option<Vec<u8>>>,
    given_back: Vec<i64>,
}

impl<'r> Reports<'r> {
    fn of(reports: &'r [Report]) -> Self {
        let mut all = Self {
            id: reports.iter().map(|report| &report.id.as_bytes()[..]).collect(),
            stage: Vec::new(),
            after: Vec::new(),
            reference: Vec::new(),
            answer: Vec::new(),
            error: Vec::new(),
            given_back: Vec::new(),
        };
        for report in reports {
            let said = Said::of(&report.became);
            all.stage.push(said.stage.and_then(|stage| i16::try_from(stage).ok()));
            all.after.push(said.after);
            all.reference.push(said.reference);
            all.answer.push(said.answer);
            all.error.push(said.error);
            all.given_back.push(said.given_back);
        }
        all
    }
}

impl Jobs for PostgresStore {
    async fn promise(&self, jobs: &[Job]) -> Result<()> {
        if jobs.is_empty() {
            return Ok(());
        }
        let jobs: Vec<_> = jobs.iter().collect();
        let Promises { id, effect, payload, line, record, life, holder, fence, created_at, due_at } =
            promises(&jobs);
        let bound: [&(dyn ToSql + Sync); 10] =
            [&id, &effect, &payload, &line, &record, &life, &holder, &fence, &created_at, &due_at];
        self.writers.run("promise", &self.statements.outbox.promise, &bound).await.map(drop)
    }

    async fn claim(&self, claim: &Claim<'_>) -> Result<Vec<Job>> {
        const OPERATION: &str = "claim";
        let (token, span) = (&claim.token.as_bytes()[..], micros(claim.span));
        let (limit, again) = (count(claim.limit), count(claim.again));
        let bound: [&(dyn ToSql + Sync); 5] = [&token, &claim.effects, &span, &limit, &again];
        let rows = self.writers.run(OPERATION, &self.statements.outbox.claim, &bound).await?;
        let jobs: std::result::Result<Vec<_>, _> = rows.iter().map(decode).collect();
        jobs.map(named).map_err(|failure| failure.during(OPERATION, Effect::Unknown))
    }

    async fn report(&self, token: Token, reports: &[Report]) -> Result<Vec<bool>> {
        const OPERATION: &str = "report";
        if reports.is_empty() {
            return Ok(Vec::new());
        }
        let Reports { id, stage, after, reference, answer, error, given_back } = Reports::of(reports);
        let token = &token.as_bytes()[..];
        let bound: [&(dyn ToSql + Sync); 8] =
            [&token, &id, &stage, &after, &reference, &answer, &error, &given_back];
        let rows = self.writers.run(OPERATION, &self.statements.outbox.report, &bound).await?;
        let written: std::result::Result<HashSet<&[u8]>, _> = rows.iter().map(|row| row.try_get(0)).collect();
        let written = written.map_err(|error| Failure::from(error).during(OPERATION, Effect::Unknown))?;
        Ok(id.iter().map(|id| written.contains(id)).collect())
    }

    async fn job(&self, id: JobId) -> Result<Option<Job>> {
        let id = &id.as_bytes()[..];
        Ok(named(ask(&self.reads, "job", &self.statements.outbox.one, &[&id], decode).await?).pop())
    }

    async fn jobs_of(&self, record: RecordId) -> Result<Vec<Job>> {
        let record = &record.as_bytes()[..];
        let query = &self.statements.outbox.of_record;
        ask(&self.reads, "jobs_of", query, &[&record], decode).await.map(named)
    }

    async fn parked(&self, after: Option<JobId>, limit: usize) -> Result<Vec<Job>> {
        let after = after.as_ref().map(|id| &id.as_bytes()[..]);
        let query = &self.statements.outbox.parked;
        ask(&self.reads, "parked", query, &[&after, &count(limit)], decode).await.map(named)
    }

    async fn unpark(&self, id: JobId) -> Result<bool> {
        let id = &id.as_bytes()[..];
        let rows = self.writers.run("unpark", &self.statements.outbox.unpark, &[&id]).await?;
        Ok(!rows.is_empty())
    }

    async fn withdraw(&self, parked: &Job, why: &Reason) -> Result<bool> {
        let (id, why) = (&parked.id.as_bytes()[..], why.to_string().into_bytes());
        let bound: [&(dyn ToSql + Sync); 3] = [&id, &why, &parked.due_at.as_micros()];
        let rows = self.writers.run("withdraw", &self.statements.outbox.withdraw, &bound).await?;
        Ok(!rows.is_empty())
    }

    async fn depth(&self) -> Result<Vec<Depth>> {
        ask(&self.pages, "depth", &self.statements.outbox.depth, &[], depth).await
    }

    async fn drop_jobs(&self, before: Timestamp, limit: usize) -> Result<usize> {
        super::trail::dropped(&self.writers, "drop_jobs", &self.statements.outbox.drop_jobs, before, limit)
            .await
    }
}

fn named(jobs: Vec<Option<Job>>) -> Vec<Job> {
    jobs.into_iter().flatten().collect()
}

fn count(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}

impl Enqueue for PostgresStore {
    async fn enqueue(&self, connection: &mut dyn Connection, jobs: &[Job]) -> Result<()> {
        enqueue_in(connection, &self.statements.outbox, jobs).await
    }
}
