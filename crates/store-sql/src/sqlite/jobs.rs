//! The outbox. Free functions over a connection, as [`super::statements`]; and the promise in a caller's transaction.
//!
//! **Invariant:** who claims and who reports is the file's one writer, so a claim needs no lock of its own.

use std::sync::LazyLock;

use oncegate_core::identity::{RecordId, Token};
use oncegate_core::record::Reason;
use oncegate_core::time::Timestamp;
use oncegate_store::Result;
use oncegate_store::jobs::{Claim, Depth, Enqueue, Job, JobId, Jobs, PROMISED_OTHERWISE, Report};
use oncegate_store::join::{self, Value};
use rusqlite::types::Value as Bound;
use rusqlite::{Connection, Row, ToSql, params, params_from_iter};

use super::SqliteStore;
use super::error::Failure;
use crate::job::{COLUMNS, Columns, PROMISED, Said, again, enqueue_one, promised};

static PROMISE: LazyLock<String> = LazyLock::new(|| {
    format!(
        "INSERT INTO job ({PROMISED}, tries, stage) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, 0, 0) \
         {} RETURNING 1 AS number",
        again("(SELECT max(seq) + 1 FROM job)")
    )
});
/// Of one effect, the longest due first; of a line, only the first that is not over. What was never claimed is found apart from what was,
/// so that no number of retries is read on the way to it.
pub(super) static FRESH: LazyLock<String> = LazyLock::new(|| due("tries = 0"));
pub(super) static AGAIN: LazyLock<String> = LazyLock::new(|| due("tries > 0"));

fn due(tries: &str) -> String {
    format!(
        "SELECT seq, due_at FROM job WHERE effect = ?1 AND stage < 2 AND {tries} AND due_at <= ?2 \
         AND (line IS NULL OR seq = (SELECT min(seq) FROM job first WHERE first.line = job.line AND first.stage < 3)) \
         ORDER BY due_at, seq LIMIT ?3"
    )
}

pub(super) static TAKE: LazyLock<String> = LazyLock::new(|| {
    format!("UPDATE job SET token = ?2, due_at = ?3, tries = tries + 1 WHERE seq = ?1 RETURNING {COLUMNS}")
});
pub(super) const REPORT: &str = "UPDATE job SET stage = coalesce(?3, stage), token = CASE WHEN ?3 = 1 THEN token END, \
     due_at = coalesce(?4, due_at), tries = tries - ?9, reference = CASE WHEN ?3 IN (1, 3) THEN ?5 ELSE reference END, \
     answer = CASE WHEN ?3 IN (1, 3) THEN ?6 ELSE answer END, last_error = ?7, over_at = CASE WHEN ?3 = 3 THEN ?8 END \
     WHERE id = ?1 AND token = ?2 AND stage < 2";
pub(super) static ONE: LazyLock<String> =
    LazyLock::new(|| format!("SELECT {COLUMNS} FROM job WHERE id = ?1"));
pub(super) static OF_RECORD: LazyLock<String> =
    LazyLock::new(|| format!("SELECT {COLUMNS} FROM job WHERE record = ?1 ORDER BY seq"));
pub(super) static PARKED: LazyLock<String> = LazyLock::new(|| {
    format!(
        "SELECT {COLUMNS} FROM job WHERE stage = 2 AND seq > coalesce((SELECT seq FROM job WHERE id = ?1), 0) \
         ORDER BY seq LIMIT ?2"
    )
});
pub(super) const UNPARK: &str =
    "UPDATE job SET stage = 0, tries = 0, due_at = ?2, last_error = NULL WHERE id = ?1 AND stage = 2";
/// As it was read: whoever tries it moves the end of its claim.
pub(super) const WITHDRAW: &str =
    "UPDATE job SET stage = 3, last_error = ?2, over_at = ?4 WHERE id = ?1 AND stage = 2 AND due_at = ?3";
/// The two ends of an outbox are counted apart, each by an index of its own.
const DEPTH: &str = "SELECT effect, sum(stage < 2), sum(stage = 2), min(CASE WHEN stage < 2 THEN created_at END) FROM \
     (SELECT effect, stage, created_at FROM job WHERE stage < 2 AND tries = 0 \
     UNION ALL SELECT effect, stage, created_at FROM job WHERE stage < 2 AND tries > 0 \
     UNION ALL SELECT effect, stage, created_at FROM job WHERE stage = 2) \
     GROUP BY effect ORDER BY effect";
pub(super) const DROP: &str = "DELETE FROM job WHERE seq IN (SELECT seq FROM job WHERE stage = 3 AND over_at < ?1 ORDER BY over_at, seq LIMIT ?2)";

/// Writes jobs in the transaction that `connection` is in. The file has one writer, so a line's order is that of the commits.
pub(super) async fn enqueue_in(connection: &mut dyn join::Connection, jobs: &[Job]) -> Result<()> {
    for job in jobs {
        enqueue_one(connection, &PROMISE, job).await?;
    }
    Ok(())
}

fn promise(connection: &Connection, jobs: &[Job]) -> std::result::Result<(), Failure> {
    let mut statement = connection.prepare_cached(&PROMISE)?;
    for job in jobs {
        if !statement.exists(params_from_iter(promised(job).map(bound)))? {
            return Err(PROMISED_OTHERWISE.into());
        }
    }
    Ok(())
}

pub(super) fn bound(value: Value<'_>) -> Bound {
    match value {
        Value::Int(number) => number.map_or(Bound::Null, Bound::Integer),
        Value::Text(text) => text.map_or(Bound::Null, |text| Bound::Text(text.into_owned())),
        Value::Bytes(bytes) => bytes.map_or(Bound::Null, |bytes| Bound::Blob(bytes.into_owned())),
    }
}

fn claim(
    connection: &Connection,
    claim: &Claim<'_>,
    now: Timestamp,
) -> std::result::Result<Vec<Job>, Failure> {
    let mut found: Vec<(i64, i64)> = Vec::new();
    for (sql, limit) in [(&FRESH, claim.limit), (&AGAIN, claim.again)] {
        let mut some: Vec<(i64, i64)> = Vec::new();
        let mut due = connection.prepare_cached(sql)?;
        for effect in claim.effects {
            let bound = params![effect, now.as_micros(), count(limit)];
            let rows = due.query_map(bound, |row| Ok((row.get(1)?, row.get(0)?)))?;
            for row in rows {
                some.push(row?);
            }
        }
        some.sort_unstable();
        some.truncate(limit);
        found.extend(some);
    }
    found.sort_unstable();
    found.truncate(claim.limit);
    let until = now.plus(claim.span).as_micros();
    let mut take = connection.prepare_cached(&TAKE)?;
    let mut jobs = Vec::with_capacity(found.len());
    for (_, seq) in found {
        let taken = take.query_row(params![seq, &claim.token.as_bytes()[..], until], columns)?;
        // One whose name cannot be read can be neither delivered nor put aside.
        jobs.extend(taken.decode().ok());
    }
    Ok(jobs)
}

fn report(
    connection: &Connection,
    token: Token,
    reports: &[Report],
    now: Timestamp,
) -> std::result::Result<Vec<bool>, Failure> {
    let now = now.as_micros();
    let mut statement = connection.prepare_cached(REPORT)?;
    let mut write = |report: &Report| {
        let said = Said::of(&report.became);
        let due_at = said.after.map(|after| now.saturating_add(after));
        let (id, token) = (&report.id.as_bytes()[..], &token.as_bytes()[..]);
        let Said { stage, given_back, reference, answer, error, .. } = said;
        let bound = params![id, token, stage, due_at, reference, answer, error, now, given_back];
        Ok(statement.execute(bound)? > 0)
    };
    reports.iter().map(&mut write).collect()
}

fn select(
    connection: &Connection,
    sql: &str,
    bound: &[&dyn ToSql],
) -> std::result::Result<Vec<Job>, Failure> {
    let mut statement = connection.prepare_cached(sql)?;
    let mut rows = statement.query(bound)?;
    let mut jobs = Vec::new();
    while let Some(row) = rows.next()? {
        jobs.extend(columns(row)?.decode().ok());
    }
    Ok(jobs)
}

pub(super) fn columns(row: &Row<'_>) -> rusqlite::Result<Columns> {
    Ok(Columns {
        id: row.get(0)?,
        effect: row.get(1)?,
        payload: row.get(2)?,
        line: row.get(3)?,
        record: row.get(4)?,
        life: row.get(5)?,
        holder: row.get(6)?,
        fence: row.get(7)?,
        created_at: row.get(8)?,
        due_at: row.get(9)?,
        tries: row.get(10)?,
        stage: row.get(11)?,
        last_error: row.get(12)?,
        reference: row.get(13)?,
        answer: row.get(14)?,
    })
}

fn depth(connection: &Connection) -> std::result::Result<Vec<Depth>, Failure> {
    let mut statement = connection.prepare_cached(DEPTH)?;
    let number = |row: &Row<'_>, place| row.get::<_, i64>(place).map(|n| u64::try_from(n).unwrap_or(0));
    let rows = statement.query_map([], |row| {
        Ok(Depth {
            effect: row.get::<_, String>(0)?.into(),
            waiting: number(row, 1)?,
            parked: number(row, 2)?,
            oldest: row.get::<_, Option<i64>>(3)?.map(Timestamp::from_micros),
        })
    })?;
    Ok(rows.collect::<rusqlite::Result<_>>()?)
}

fn count(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}

impl Jobs for SqliteStore {
    async fn promise(&self, jobs: &[Job]) -> Result<()> {
        if jobs.is_empty() {
            return Ok(());
        }
        let _turn = self.turns.next().await;
        self.writer.run("promise", self.clock.now(), |connection| promise(connection, jobs))
    }

    /// Looked at first, by a thread that only reads: an idle outbox takes nobody's turn to write.
    async fn claim(&self, wanted: &Claim<'_>) -> Result<Vec<Job>> {
        let effects: Vec<_> = wanted.effects.iter().map(|effect| (*effect).to_owned()).collect();
        let (now, kinds) = (self.clock.now(), 1 + usize::from(wanted.again > 0));
        let is_any = move |connection: &mut Connection| {
            for sql in [&FRESH, &AGAIN].into_iter().take(kinds) {
                let mut due = connection.prepare_cached(sql)?;
                for effect in &effects {
                    if due.exists(params![effect, now.as_micros(), 1])? {
                        return Ok(true);
                    }
                }
            }
            Ok(false)
        };
        if wanted.limit == 0 || !self.scans.run("claim", is_any).await? {
            return Ok(Vec::new());
        }
        let _turn = self.turns.next().await;
        self.writer.run("claim", self.clock.now(), |connection| claim(connection, wanted, self.clock.now()))
    }

    async fn report(&self, token: Token, reports: &[Report]) -> Result<Vec<bool>> {
        if reports.is_empty() {
            return Ok(Vec::new());
        }
        let _turn = self.turns.next().await;
        self.writer.run("report", self.clock.now(), |connection| {
            report(connection, token, reports, self.clock.now())
        })
    }

    async fn job(&self, id: JobId) -> Result<Option<Job>> {
        let read = move |connection: &mut _| select(connection, &ONE, &[&&id.as_bytes()[..]]);
        Ok(self.rows.run("job", read).await?.pop())
    }

    async fn jobs_of(&self, record: RecordId) -> Result<Vec<Job>> {
        let read = move |connection: &mut _| select(connection, &OF_RECORD, &[&&record.as_bytes()[..]]);
        self.rows.run("jobs_of", read).await
    }

    async fn parked(&self, after: Option<JobId>, limit: usize) -> Result<Vec<Job>> {
        let read = move |connection: &mut _| {
            let after = after.map(|id| id.as_bytes().to_vec());
            select(connection, &PARKED, &[&after, &count(limit)])
        };
        self.pages.run("parked", read).await
    }

    async fn unpark(&self, id: JobId) -> Result<bool> {
        let now = self.clock.now().as_micros();
        let _turn = self.turns.next().await;
        self.writer.run("unpark", self.clock.now(), |connection| {
            Ok(connection.prepare_cached(UNPARK)?.execute(params![&id.as_bytes()[..], now])? > 0)
        })
    }

    async fn withdraw(&self, parked: &Job, why: &Reason) -> Result<bool> {
        let (id, why) = (&parked.id.as_bytes()[..], why.to_string().into_bytes());
        let (due_at, now) = (parked.due_at.as_micros(), self.clock.now().as_micros());
        let _turn = self.turns.next().await;
        self.writer.run("withdraw", self.clock.now(), |connection| {
            Ok(connection.prepare_cached(WITHDRAW)?.execute(params![id, why, due_at, now])? > 0)
        })
    }

    async fn depth(&self) -> Result<Vec<Depth>> {
        self.pages.run("depth", |connection| depth(connection)).await
    }

    async fn drop_jobs(&self, before: Timestamp, limit: usize) -> Result<usize> {
        let _turn = self.turns.next().await;
        self.writer.run("drop_jobs", self.clock.now(), |connection| {
            Ok(connection.prepare_cached(DROP)?.execute(params![before.as_micros(), count(limit)])?)
        })
    }
}

impl Enqueue for SqliteStore {
    async fn enqueue(&self, connection: &mut dyn join::Connection, jobs: &[Job]) -> Result<()> {
        enqueue_in(connection, jobs).await
    }
}
