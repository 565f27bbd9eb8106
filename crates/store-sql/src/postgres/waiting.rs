//! Accepted work that waits: heads of lines and first rows through one index, which knows of nothing else; then the rows that are given. See
//! [`oncegate_store::turns`].

use std::collections::{BTreeSet, HashMap};

use oncegate_core::record::Record;
use oncegate_core::time::Timestamp;
use oncegate_store::turns::{
    BACKLOG_MAX, Backlog, Calling, Doubts, HEADS_AT_ONCE, HEADS_TIMES, Line, Turn, Waiting, in_turns,
    oldest_head,
};
use oncegate_store::{Cursor, Due, Scan};

use super::error::Failure;
use super::row::{SEQ, decode};
use super::session::Session;
use super::statements::Statements;

pub(super) async fn waiting(
    session: &Session,
    statements: &Statements,
    turn: &Turn,
    now: Timestamp,
) -> Result<Waiting, Failure> {
    // A cursor that is none of ours is as good as none.
    let start = turn.after.as_ref().and_then(|after| after.as_str().parse::<i64>().ok());
    let mut calling = Calling::new(turn, start, now);
    let mut operations = BTreeSet::new();
    while let Some((after, count)) = calling.asks() {
        let lines = lines(session, statements, after, count).await?;
        let ours = lines.iter().map(|line| &line.operation).filter(|name| turn.operations.contains(name));
        operations.extend(ours.cloned());
        calling.sees(lines);
    }
    let (called, next, is_round) = calling.ended();
    let seqs = of_lines(session, statements, turn.limit, &called, operations, now).await?;
    let scan = read(session, statements, &seqs).await?;
    Ok(Waiting { scan, next: next.map(|line| Cursor::new(line.to_string())), is_round })
}

pub(super) async fn backlog(session: &Session, statements: &Statements) -> Result<Backlog, Failure> {
    let most = i64::try_from(BACKLOG_MAX).unwrap_or(i64::MAX);
    let rows = session.query(&statements.backlog, &[&most]).await?;
    let Some(row) = rows.first() else { return Ok(Backlog::default()) };
    let (count, oldest): (i64, Option<i64>) = (row.try_get(0)?, row.try_get(1)?);
    // Rows come line by line, so the oldest is among those that were counted only if they are all.
    let oldest = if count < most {
        oldest.map(Timestamp::from_micros)
    } else {
        oldest_of_heads(session, statements).await?
    };
    Ok(Backlog { rows: u64::try_from(count).unwrap_or(0), oldest })
}

/// What has waited longest is at the head of its line, however long that is.
async fn oldest_of_heads(session: &Session, statements: &Statements) -> Result<Option<Timestamp>, Failure> {
    let (mut oldest, mut after) = (None, None);
    for _ in 0..HEADS_TIMES {
        let heads = lines(session, statements, after, HEADS_AT_ONCE).await?;
        let Some(last) = heads.last() else { break };
        after = Some(last.place);
        oldest = oldest_head(&heads, oldest);
    }
    Ok(oldest)
}

pub(super) async fn doubts(session: &Session, statements: &Statements) -> Result<Doubts, Failure> {
    let rows = session.query(&statements.doubts, &[&i64::try_from(BACKLOG_MAX).unwrap_or(i64::MAX)]).await?;
    let Some(row) = rows.first() else { return Ok(Doubts::default()) };
    let backlog = |count: usize| -> Result<Backlog, Failure> {
        let (rows, oldest): (i64, Option<i64>) = (row.try_get(count)?, row.try_get(count + 1)?);
        Ok(Backlog { rows: u64::try_from(rows).unwrap_or(0), oldest: oldest.map(Timestamp::from_micros) })
    };
    Ok(Doubts { open: backlog(0)?, parked: backlog(2)? })
}

async fn lines(
    session: &Session,
    statements: &Statements,
    after: Option<i64>,
    count: usize,
) -> Result<Vec<Line<i64>>, Failure> {
    // No hash is the least number but one in 2⁶⁴, and then its line is never called.
    let after = after.unwrap_or(i64::MIN);
    let rows = session.query(&statements.lines, &[&after, &i64::try_from(count).unwrap_or(i64::MAX)]).await?;
    let line = |row: &tokio_postgres::Row| {
        let (place, first) = (row.try_get(0)?, Timestamp::from_micros(row.try_get(1)?));
        Ok(Line { place, operation: row.try_get(2)?, first })
    };
    rows.iter().map(line).collect()
}

/// Where the rows are that this turn gives, in its order.
async fn of_lines(
    session: &Session,
    statements: &Statements,
    limit: usize,
    called: &[i64],
    operations: BTreeSet<String>,
    now: Timestamp,
) -> Result<Vec<i64>, Failure> {
    if called.is_empty() {
        return Ok(Vec::new());
    }
    // A line is a hash: it may hold rows of another operation.
    let operations: Vec<_> = operations.into_iter().collect();
    let most = i64::try_from(limit).unwrap_or(i64::MAX);
    let rows = session.query(&statements.of_lines, &[&called, &now.as_micros(), &operations, &most]).await?;
    let mut of_each = vec![Vec::new(); called.len()];
    for row in &rows {
        let place: i64 = row.try_get(0)?;
        let line = usize::try_from(place - 1).ok().and_then(|place| of_each.get_mut(place));
        if let Some(line) = line {
            line.push(row.try_get(1)?);
        }
    }
    Ok(in_turns(of_each, limit))
}

/// The rows themselves, in this order. One that has changed meanwhile is left out.
async fn read(session: &Session, statements: &Statements, seqs: &[i64]) -> Result<Scan, Failure> {
    let mut scan = Scan::default();
    if seqs.is_empty() {
        return Ok(scan);
    }
    let mut found: HashMap<i64, Record> = HashMap::with_capacity(seqs.len());
    for row in &session.query(&statements.read_by_seq, &[&seqs]).await? {
        match decode(row)?.1 {
            Ok(record) => drop(found.insert(row.try_get(SEQ)?, record)),
            Err(_) => scan.unreadable += 1,
        }
    }
    let waits = |record: &Record| Due::Pending.moment(record).is_some();
    scan.records = seqs.iter().filter_map(|seq| found.remove(seq)).filter(waits).collect();
    Ok(scan)
}
