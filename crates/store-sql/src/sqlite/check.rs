//! Checking a file for contradictions: records, jobs and audit entries part by part, then SQLite's
//! own check of the pages and indexes, the unique one included.

use std::sync::LazyLock;

use oncegate_core::audit::Entry;
use oncegate_core::identity::RecordId;
use oncegate_core::record::Record;
use oncegate_core::time::Timestamp;
use oncegate_store::check::{area_and_place, cursor};
use oncegate_store::jobs::Stage;
use oncegate_store::{Check, CheckedPart, Cursor, Problem, ProblemKind, Result};
use rusqlite::types::ValueRef;
use rusqlite::{Connection, Row, params};

use super::SqliteStore;
use super::error::Failure;
use super::jobs::{bound, columns};
use super::row::{COLUMNS, RecordRow, decode};
use crate::job;

/// Rows of a part.
const PART_ROWS: i64 = 2_000;

static RECORDS: LazyLock<String> = LazyLock::new(|| {
    let columns = COLUMNS.join(", ");
    format!("SELECT id, body, response, seq, {columns} FROM record WHERE seq > ?1 ORDER BY seq LIMIT ?2")
});
/// Where the columns begin that are compared.
const COMPARED: usize = 4;
static JOBS: LazyLock<String> = LazyLock::new(|| {
    format!(
        "SELECT {}, seq, EXISTS (SELECT 1 FROM record WHERE record.id = job.record) AS has_record \
         FROM job WHERE seq > ?1 ORDER BY seq LIMIT ?2",
        job::COLUMNS
    )
});
const ENTRIES: &str = "SELECT id, at, bytes, seq FROM entry WHERE seq > ?1 ORDER BY seq LIMIT ?2";
/// Also finds rows that an index lacks, and two rows under one key of a unique index.
const FILE: &str = "PRAGMA integrity_check(100)";

const AREAS: [&str; 4] = ["records", "jobs", "audit entries", "file"];

impl Check for SqliteStore {
    async fn check(&self, after: Option<&Cursor>) -> Result<CheckedPart> {
        let after = after.cloned();
        self.pages.run("check", move |connection| part(connection, after.as_ref())).await
    }
}

fn part(connection: &Connection, after: Option<&Cursor>) -> std::result::Result<CheckedPart, Failure> {
    let (area, place) = after.map_or(Ok((AREAS[0], 0)), area_and_place)?;
    let number = AREAS.iter().position(|one| *one == area).ok_or_else(|| format!("no area is {area:?}"))?;
    let mut checking = Checking { rows: 0, last: place, problems: Vec::new() };
    match number {
        0 => checking.records(connection)?,
        1 => checking.jobs(connection)?,
        2 => checking.entries(connection)?,
        _ => checking.file(connection)?,
    }
    let is_whole = checking.rows < PART_ROWS;
    let next = if is_whole {
        AREAS.get(number + 1).map(|next| cursor(next, 0))
    } else {
        Some(cursor(area, checking.last))
    };
    let rows = u64::try_from(checking.rows).unwrap_or(0);
    Ok(CheckedPart { area: AREAS[number], rows, problems: checking.problems, next })
}

struct Checking {
    rows: i64,
    last: i64,
    problems: Vec<Problem>,
}

impl Checking {
    fn records(&mut self, connection: &Connection) -> std::result::Result<(), Failure> {
        let mut statement = connection.prepare_cached(&RECORDS)?;
        let mut rows = statement.query([self.last, PART_ROWS])?;
        while let Some(row) = rows.next()? {
            self.count(row.get(3)?);
            match decode(row) {
                Ok(record) => self.compare(&record, row)?,
                Err(problem) => {
                    let id = row.get(0).map(RecordId::from_bytes);
                    let subject = id.map_or_else(|_| format!("row {}", self.last), |id| id.to_string());
                    self.found(ProblemKind::Unreadable, subject, problem.to_string());
                }
            }
        }
        Ok(())
    }

    /// Workers and pages find a row by its columns.
    fn compare(&mut self, record: &Record, row: &Row<'_>) -> std::result::Result<(), Failure> {
        let expected = RecordRow::new(record).values().into_iter().map(bound);
        for (place, (column, expected)) in COLUMNS.iter().zip(expected).enumerate() {
            let found = row.get_ref(COMPARED + place)?;
            if found != ValueRef::from(&expected) {
                let detail = format!(
                    "the column {column} is {}, and its record says {}",
                    shown(found),
                    shown((&expected).into())
                );
                self.found(ProblemKind::Inconsistent, record.id.to_string(), detail);
            }
        }
        Ok(())
    }

    fn jobs(&mut self, connection: &Connection) -> std::result::Result<(), Failure> {
        let mut statement = connection.prepare_cached(&JOBS)?;
        let mut rows = statement.query([self.last, PART_ROWS])?;
        while let Some(row) = rows.next()? {
            self.count(row.get("seq")?);
            let has_record: bool = row.get("has_record")?;
            match columns(row)?.decode() {
                Ok(job) => {
                    let (subject, is_over) =
                        (job.id.to_string(), matches!(job.stage, Stage::Done(_) | Stage::Withdrawn));
                    if let Stage::Unreadable(problem) = &job.stage {
                        self.found(ProblemKind::Unreadable, subject, problem.to_string());
                    } else if job.answers.is_some() && !is_over && !has_record {
                        let detail = format!("it is to answer {}, which has no record", job.record);
                        self.found(ProblemKind::Dangling, subject, detail);
                    }
                }
                Err(problem) => {
                    self.found(ProblemKind::Unreadable, format!("job {}", self.last), problem.to_string());
                }
            }
        }
        Ok(())
    }

    fn entries(&mut self, connection: &Connection) -> std::result::Result<(), Failure> {
        let mut statement = connection.prepare_cached(ENTRIES)?;
        let mut rows = statement.query([self.last, PART_ROWS])?;
        while let Some(row) = rows.next()? {
            self.count(row.get(3)?);
            let (at, bytes): (i64, Vec<u8>) = (row.get(1)?, row.get(2)?);
            let decoded = row.get(0).map_err(Failure::from).and_then(|id| {
                Ok(Entry::decode(RecordId::from_bytes(id), Timestamp::from_micros(at), &bytes)?)
            });
            if let Err(problem) = decoded {
                self.found(
                    ProblemKind::Unreadable,
                    format!("audit entry {}", self.last),
                    problem.to_string(),
                );
            }
        }
        Ok(())
    }

    fn file(&mut self, connection: &Connection) -> std::result::Result<(), Failure> {
        self.rows = 1;
        let mut statement = connection.prepare(FILE)?;
        let lines = statement.query_map(params![], |row| row.get::<_, String>(0))?;
        for line in lines {
            let line = line?;
            if line != "ok" {
                let is_twice = line.contains("non-unique entry");
                let kind = if is_twice { ProblemKind::DuplicateId } else { ProblemKind::Damaged };
                self.found(kind, "file".to_owned(), line);
            }
        }
        Ok(())
    }

    fn count(&mut self, place: i64) {
        self.rows += 1;
        self.last = place;
    }

    fn found(&mut self, kind: ProblemKind, subject: String, detail: String) {
        self.problems.push(Problem { kind, subject, detail });
    }
}

/// Bodies and responses may hold customers' data, so bytes are not shown.
fn shown(value: ValueRef<'_>) -> String {
    match value {
        ValueRef::Null => "empty".to_owned(),
        ValueRef::Integer(number) => number.to_string(),
        ValueRef::Real(number) => number.to_string(),
        ValueRef::Text(text) => String::from_utf8_lossy(text).replace('\n', " "),
        ValueRef::Blob(bytes) => format!("{} bytes", bytes.len()),
    }
}
