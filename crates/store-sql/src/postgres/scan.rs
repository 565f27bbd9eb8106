//! What is due, for workers: first which rows, then the rows.
//!
//! Leases and answers are found by notes (see the migration), which are tidied on the way: a pass of whichever node comes
//! first drops what needs no looking at any more. Everything else has an index.

use oncegate_core::record::{Record, StateKind};
use oncegate_core::time::Timestamp;
use oncegate_store::{Due, Scan};

use super::error::Failure;
use super::row::{decode, state_column};
use super::session::Session;
use super::statements::Statements;

/// So many notes are tidied in one short transaction…
const NOTES_AT_ONCE: i64 = 128;
/// …and so many times in one scan.
const TIDY_ROUNDS: usize = 64;
/// A scan stops early once the answers it has read are this large.
const SCAN_BYTES_MAX: i64 = 8 << 20;

/// A row that is due.
struct Found {
    seq: i64,
    moment: i64,
    answer_bytes: i64,
}

pub(super) async fn due(
    session: &Session,
    statements: &Statements,
    what: Due,
    now: Timestamp,
    limit: usize,
) -> Result<Scan, Failure> {
    let now = now.as_micros();
    let limit_rows = i64::try_from(limit).unwrap_or(i64::MAX);
    let mut found = match what {
        Due::Pending => attended(session, statements, "pending", now, limit_rows).await?,
        Due::Doubted => attended(session, statements, "doubted", now, limit_rows).await?,
        Due::Lapsed => noted(session, statements, StateKind::InProgress, now, false, limit_rows).await?,
        Due::Resumable => noted(session, statements, StateKind::InProgress, now, true, limit_rows).await?,
        Due::Expired => {
            let mut found = noted_any(session, statements, now, limit_rows).await?;
            found.extend(attended(session, statements, "expired", now, limit_rows).await?);
            found
        }
    };
    found.sort_by_key(|row| (row.moment, row.seq));
    found.truncate(limit);
    read(session, statements, what, found).await
}

/// Off the usual path.
async fn attended(
    session: &Session,
    statements: &Statements,
    what: &str,
    now: i64,
    limit: i64,
) -> Result<Vec<Found>, Failure> {
    let rows = session.query(&statements.attended, &[&what, &now, &limit]).await?;
    let moment = if what == "expired" { 2 } else { 1 };
    let found = rows
        .iter()
        .map(|row| Ok(Found { seq: row.try_get(0)?, moment: row.try_get(moment)?, answer_bytes: 0 }));
    found.collect()
}

/// Answers that expire, whatever becomes of a lapsed lease under their terms.
async fn noted_any(
    session: &Session,
    statements: &Statements,
    now: i64,
    limit: i64,
) -> Result<Vec<Found>, Failure> {
    let mut found = noted(session, statements, StateKind::Completed, now, false, limit).await?;
    found.extend(noted(session, statements, StateKind::Completed, now, true, limit).await?);
    Ok(found)
}

async fn noted(
    session: &Session,
    statements: &Statements,
    state: StateKind,
    now: i64,
    resumable: bool,
    limit: i64,
) -> Result<Vec<Found>, Failure> {
    let state = state_column(state);
    // Each round goes on where the last one ended: notes that stay due do not hide those behind them.
    let mut last = (i64::MIN, i64::MIN);
    for _ in 0..TIDY_ROUNDS {
        let looked_at = session.query(&statements.tidy, &[&now, &NOTES_AT_ONCE, &last.0, &last.1]).await?;
        let Some(row) = looked_at.first() else { break };
        let count: i64 = row.try_get(0)?;
        if count < NOTES_AT_ONCE {
            break;
        }
        last = (row.try_get(1)?, row.try_get(2)?);
    }
    let rows = session.query(&statements.noted, &[&state, &now, &resumable, &limit]).await?;
    let found = rows.iter().map(|row| {
        let answer_bytes: i32 = row.try_get(2)?;
        Ok(Found { seq: row.try_get(0)?, moment: row.try_get(1)?, answer_bytes: i64::from(answer_bytes) })
    });
    found.collect()
}

/// The rows themselves, in the order in which they were found. One that has changed meanwhile is left out.
async fn read(
    session: &Session,
    statements: &Statements,
    what: Due,
    found: Vec<Found>,
) -> Result<Scan, Failure> {
    let mut bytes = 0;
    let within = found.into_iter().take_while(|row| {
        let is_room = bytes < SCAN_BYTES_MAX;
        bytes += row.answer_bytes;
        is_room
    });
    let seqs: Vec<i64> = within.map(|row| row.seq).collect();
    let mut scan = Scan::default();
    if seqs.is_empty() {
        return Ok(scan);
    }
    let rows = session.query(&statements.read_by_seq, &[&seqs]).await?;
    let mut records: Vec<(Option<Timestamp>, i64, Record)> = Vec::with_capacity(rows.len());
    for row in &rows {
        match decode(row)?.1 {
            Ok(record) => records.push((what.moment(&record), row.try_get(6)?, record)),
            Err(_) => scan.unreadable += 1,
        }
    }
    records.retain(|(moment, ..)| moment.is_some());
    records.sort_by_key(|(moment, seq, _)| (*moment, *seq));
    scan.records = records.into_iter().map(|(.., record)| record).collect();
    Ok(scan)
}
