//! Pages and counts, for people.

use oncegate_core::identity::RecordId;
use oncegate_core::key::Key;
use oncegate_core::record::codec::state_number;
use oncegate_core::scope::{Address, Scope};
use oncegate_core::time::Timestamp;
use oncegate_store::{Counts, Cursor, Filter, Page};
use rusqlite::types::Value;
use rusqlite::{Connection, Row, params_from_iter};

use super::error::Failure;
use super::row::{decode, state_kind};
use super::statements::SELECT;

/// A page of rows, newest first. The cursor is the last row's place in the order of arrival.
pub(super) fn page(
    connection: &Connection,
    filter: &Filter,
    after: Option<&Cursor>,
    limit: usize,
) -> Result<Page, Failure> {
    let Filter { state, parked, scope, key, operation, reference, created_from, created_before } = filter;
    let mut conditions = Conditions::default();
    if let Some(cursor) = after {
        let seq: i64 =
            cursor.as_str().parse().map_err(|error| format!("not a cursor of this store: {error}"))?;
        conditions.add("record.seq < ?", Value::Integer(seq));
    }
    if let Some(state) = state {
        conditions.add("state = ?", Value::Integer(i64::from(state_number(*state))));
    }
    if let Some(parked) = parked {
        conditions.add("coalesce(parked, 0) = ?", Value::Integer(i64::from(*parked)));
    }
    // Scope and key are the id, and the id has an index.
    if let (Some(scope), Some(key)) = (scope, key) {
        match (Scope::from_stored(scope), Key::from_text(key)) {
            (Ok(scope), Ok(key)) => {
                let id = RecordId::of(&Address { scope, key });
                conditions.add("id = ?", Value::Blob(id.as_bytes().to_vec()));
            }
            // What cannot be an address has no record.
            _ => return Ok(Page { records: Vec::new(), unreadable: 0, next: None }),
        }
    }
    for (condition, text) in [
        ("scope = ?", scope),
        ("key = ?", key),
        ("operation = ?", operation),
        ("provider_reference = ?", reference),
    ] {
        if let Some(text) = text {
            conditions.add(condition, Value::Text(text.clone()));
        }
    }
    let moment = |at: &Timestamp| Value::Integer(at.as_micros());
    if let Some(from) = created_from {
        conditions.add("created_at >= ?", moment(from));
    }
    if let Some(before) = created_before {
        conditions.add("created_at < ?", moment(before));
    }

    // One row more than asked for says whether there is a next page.
    let fetched = i64::try_from(limit.saturating_add(1)).unwrap_or(i64::MAX);
    let sql = format!("{} {} ORDER BY record.seq DESC LIMIT {fetched}", *SELECT, conditions.sql());
    let mut statement = connection.prepare(&sql)?;
    let mut rows = statement.query(params_from_iter(conditions.values))?;
    let mut page = Page { records: Vec::new(), unreadable: 0, next: None };
    let mut last = None;
    while let Some(row) = rows.next()? {
        if page.records.len() + page.unreadable == limit {
            page.next = last.map(|seq: i64| Cursor::new(seq.to_string()));
            break;
        }
        match decode(row) {
            Ok(record) => page.records.push(record),
            Err(_) => page.unreadable += 1,
        }
        last = Some(row.get("seq")?);
    }
    Ok(page)
}

pub(super) const COUNT_STATES: &str = "SELECT state, count(*) FROM record GROUP BY state";
/// A parked doubt is the one that is never due.
pub(super) const COUNT_PARKED: &str = "SELECT count(*) FROM record WHERE state = 4 AND due_at IS NULL";

pub(super) fn counts(connection: &Connection) -> Result<Counts, Failure> {
    let mut counts = Counts::default();
    let mut statement = connection.prepare_cached(COUNT_STATES)?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        *counts.of_state(state_kind(row.get(0)?)?) = count(row, 1)?;
    }
    counts.parked = connection.prepare_cached(COUNT_PARKED)?.query_row([], |row| count(row, 0))?;
    Ok(counts)
}

fn count(row: &Row<'_>, column: usize) -> rusqlite::Result<u64> {
    row.get(column).map(|count: i64| u64::try_from(count).unwrap_or(0))
}

#[derive(Default)]
struct Conditions {
    texts: Vec<&'static str>,
    values: Vec<Value>,
}

impl Conditions {
    fn add(&mut self, text: &'static str, value: Value) {
        self.texts.push(text);
        self.values.push(value);
    }

    fn sql(&self) -> String {
        if self.texts.is_empty() { String::new() } else { format!("WHERE {}", self.texts.join(" AND ")) }
    }
}
