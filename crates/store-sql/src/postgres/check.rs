//! Checking a schema for contradictions, part by part, each part in one statement and so of one
//! moment.

use oncegate_core::audit::Entry;
use oncegate_core::identity::RecordId;
use oncegate_core::record::Record;
use oncegate_core::time::Timestamp;
use oncegate_store::check::{area_and_place, cursor};
use oncegate_store::jobs::Stage;
use oncegate_store::row::state_column;
use oncegate_store::{Check, CheckedPart, Cursor, Effect, Problem, ProblemKind, Result};
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::PostgresStore;
use super::error::Failure;
use super::jobs::columns;
use super::row::{Look, Mark, SEQ, decode};
use super::session::Session;
use super::settings::Schema;
use super::statements::answer_of;
use crate::job;

/// Rows of a part.
const PART_ROWS: usize = 2_000;
const AREAS: [&str; 5] = ["records", "responses", "marks", "jobs", "audit entries"];

impl Check for PostgresStore {
    async fn check(&self, after: Option<&Cursor>) -> Result<CheckedPart> {
        let schema = &self.settings.schema;
        let checked = self.pages.read(|session| async move { part(&session, schema, after).await });
        checked.await.map_err(|failure| failure.during("check", Effect::None))
    }
}

async fn part(
    session: &Session,
    schema: &Schema,
    after: Option<&Cursor>,
) -> std::result::Result<CheckedPart, Failure> {
    let (area, place) = after.map_or(Ok((AREAS[0], i64::MIN)), area_and_place).map_err(Failure::Words)?;
    let number = AREAS.iter().position(|one| *one == area);
    let number = number.ok_or_else(|| Failure::Words(format!("no area is {area:?}")))?;
    let text = format!("{} LIMIT {PART_ROWS}", statement(number, schema));
    let rows = session.query_once(&text, &[(&place, Type::INT8)]).await?;
    let mut problems = Vec::new();
    let mut last = place;
    for row in &rows {
        last = row.try_get("seq")?;
        match number {
            0 => record(row, last, &mut problems)?,
            1 | 2 => reference(row, AREAS[number], last, &mut problems)?,
            3 => job(row, last, &mut problems)?,
            _ => entry(row, last, &mut problems)?,
        }
    }
    let next = if rows.len() < PART_ROWS {
        AREAS.get(number + 1).map(|next| cursor(next, i64::MIN))
    } else {
        Some(cursor(area, last))
    };
    Ok(CheckedPart { area: AREAS[number], rows: rows.len() as u64, problems, next })
}

fn statement(area: usize, schema: &Schema) -> String {
    let s = schema.quoted();
    match area {
        // The unique index must find each row by its id, and no other.
        0 => format!(
            "SELECT r.id, r.rest, {} AS answer, r.seq, r.version, r.state, r.due_at, r.look_at, m.line, m.waits_since, \
             m.operation, m.doubt_since, m.parked_since, m.reference, \
             (SELECT array_agg(found.seq) FROM {s}.record found WHERE found.id = r.id) AS by_id \
             FROM {s}.record r LEFT JOIN {s}.mark m ON m.seq = r.seq WHERE r.seq > $1 ORDER BY r.seq",
            answer_of(schema)
        ),
        1 | 2 => {
            let table = if area == 1 { "answer" } else { "mark" };
            format!(
                "SELECT t.seq, EXISTS (SELECT 1 FROM {s}.record r WHERE r.seq = t.seq) AS has_record \
                 FROM {s}.{table} t WHERE t.seq > $1 ORDER BY t.seq"
            )
        }
        3 => format!(
            "SELECT {}, seq, EXISTS (SELECT 1 FROM {s}.record r WHERE r.id = job.record) AS has_record \
             FROM {s}.job WHERE seq > $1 ORDER BY seq",
            job::COLUMNS
        ),
        _ => format!("SELECT id, at, bytes, seq FROM {s}.entry WHERE seq > $1 ORDER BY seq"),
    }
}

fn record(row: &Row, seq: i64, problems: &mut Vec<Problem>) -> std::result::Result<(), Failure> {
    debug_assert_eq!(row.try_get::<_, i64>(SEQ).ok(), Some(seq), "decode goes by places");
    let (id, found) = decode(row)?;
    let by_id: Option<Vec<i64>> = row.try_get("by_id")?;
    if by_id.as_deref() != Some(&[seq]) {
        let detail = format!("the row {seq} is not the only one that the unique index finds: {by_id:?}");
        problem(problems, ProblemKind::DuplicateId, id.to_string(), detail);
    }
    match found {
        Ok(record) => compare(&record, row, problems),
        Err(malformed) => {
            problem(problems, ProblemKind::Unreadable, id.to_string(), malformed.to_string());
            Ok(())
        }
    }
}

/// Workers and pages find a row by its columns and by its mark.
fn compare(record: &Record, row: &Row, problems: &mut Vec<Problem>) -> std::result::Result<(), Failure> {
    let looks = [Look::of(record), Look::of_joined(record)];
    let look_at: Option<i64> = row.try_get("look_at")?;
    let operation: Option<&str> = row.try_get("operation")?;
    let mark = Mark {
        line: row.try_get("line")?,
        waits_since: row.try_get("waits_since")?,
        operation,
        doubt_since: row.try_get("doubt_since")?,
        parked_since: row.try_get("parked_since")?,
        reference: row.try_get("reference")?,
    };
    let due_at = record.due_at().map(Timestamp::as_micros);
    for (column, is_same) in [
        ("version", row.try_get::<_, i64>("version")? == record.version.as_raw()),
        ("state", row.try_get::<_, i16>("state")? == state_column(record)),
        ("due_at", row.try_get::<_, Option<i64>>("due_at")? == due_at),
        ("look_at", looks.contains(&look_at)),
        ("mark", mark == Mark::of(record)),
    ] {
        if !is_same {
            let detail = format!("`{column}` is not what its record says");
            problem(problems, ProblemKind::Inconsistent, record.id.to_string(), detail);
        }
    }
    Ok(())
}

fn reference(
    row: &Row,
    area: &str,
    seq: i64,
    problems: &mut Vec<Problem>,
) -> std::result::Result<(), Failure> {
    if !row.try_get::<_, bool>("has_record")? {
        let detail = "it belongs to a record that is not there".to_owned();
        problem(problems, ProblemKind::Dangling, format!("{area}, row {seq}"), detail);
    }
    Ok(())
}

fn job(row: &Row, seq: i64, problems: &mut Vec<Problem>) -> std::result::Result<(), Failure> {
    let has_record: bool = row.try_get("has_record")?;
    match columns(row)?.decode() {
        Ok(job) => {
            let is_over = matches!(job.stage, Stage::Done(_) | Stage::Withdrawn);
            if let Stage::Unreadable(malformed) = &job.stage {
                problem(problems, ProblemKind::Unreadable, job.id.to_string(), malformed.to_string());
            } else if job.answers.is_some() && !is_over && !has_record {
                let detail = format!("it is to answer {}, which has no record", job.record);
                problem(problems, ProblemKind::Dangling, job.id.to_string(), detail);
            }
        }
        Err(malformed) => {
            problem(problems, ProblemKind::Unreadable, format!("job {seq}"), malformed.to_string());
        }
    }
    Ok(())
}

fn entry(row: &Row, seq: i64, problems: &mut Vec<Problem>) -> std::result::Result<(), Failure> {
    let (id, at, bytes): (&[u8], i64, &[u8]) =
        (row.try_get("id")?, row.try_get("at")?, row.try_get("bytes")?);
    let id = id.try_into().ok().map(RecordId::from_bytes);
    let decoded = id.map(|id| Entry::decode(id, Timestamp::from_micros(at), bytes));
    if !matches!(decoded, Some(Ok(_))) {
        let detail = "it cannot be decoded".to_owned();
        problem(problems, ProblemKind::Unreadable, format!("audit entry {seq}"), detail);
    }
    Ok(())
}

fn problem(problems: &mut Vec<Problem>, kind: ProblemKind, subject: String, detail: String) {
    problems.push(Problem { kind, subject, detail });
}
