//! Pages and counts, for operators.

use oncegate_core::identity::RecordId;
use oncegate_core::key::Key;
use oncegate_core::record::StateKind;
use oncegate_core::scope::{Address, Scope};
use oncegate_store::row::{RESUMABLE, number_of, state_of};
use oncegate_store::{Counts, Cursor, Filter, Page};
use rusqlite::types::Value;
use rusqlite::{Connection, params_from_iter};

use super::error::{Failure, unreadable};
use super::waiting::at;

/// A page of rows, newest first. The cursor is the last row's place in the order of arrival.
///
/// SQL narrows by what has an index. Scope alone, key alone, operation and age are compared row by
/// row.
pub(super) fn page(
    connection: &Connection,
    filter: &Filter,
    after: Option<&Cursor>,
    limit: usize,
) -> Result<Page, Failure> {
    let mut page = Page { records: Vec::new(), unreadable: 0, next: None };
    let Some((conditions, values)) = conditions(filter, after)? else { return Ok(page) };
    let tx = connection.unchecked_transaction()?;
    // Places first, so that only they are sorted, and not the rows.
    let mut places = tx.prepare(&format!("{PLACES}{conditions} ORDER BY seq DESC"))?;
    let mut places = places.query(params_from_iter(values))?;
    let mut last = None;
    while let Some(row) = places.next()? {
        let seq: i64 = row.get(0)?;
        let Some(found) = at(&tx, seq)? else { continue };
        if found.as_ref().is_ok_and(|record| !filter.admits(record)) {
            continue;
        }
        // One row more than asked for says that there is a next page.
        if page.records.len() + page.unreadable == limit {
            page.next = last.map(|seq: i64| Cursor::new(seq.to_string()));
            break;
        }
        match found {
            Ok(record) => page.records.push(record),
            Err(_) => page.unreadable += 1,
        }
        last = Some(seq);
    }
    Ok(page)
}

pub(super) const PLACES: &str = "SELECT seq FROM record";
const BY_ID: &str = "id = ?";

type Conditions = (String, Vec<Value>);

/// What SQL can narrow by; `None` if no record can pass.
fn conditions(filter: &Filter, after: Option<&Cursor>) -> Result<Option<Conditions>, Failure> {
    let mut texts = Vec::new();
    let mut values = Vec::new();
    if let Some(cursor) = after {
        let before: i64 =
            cursor.as_str().parse().map_err(|error| format!("not a cursor of this store: {error}"))?;
        texts.push("seq < ?");
        values.push(Value::Integer(before));
    }
    if let (Some(scope), Some(key)) = (&filter.scope, &filter.key) {
        // Scope and key are the id, and an id is found quickly. What cannot be an address has no
        // record.
        let (Ok(scope), Ok(key)) = (Scope::from_stored(scope), Key::from_text(key)) else { return Ok(None) };
        texts.push(BY_ID);
        values.push(Value::Blob(RecordId::of(&Address { scope, key }).as_bytes().to_vec()));
    }
    if let Some(reference) = &filter.reference {
        texts.push("reference = ?");
        values.push(Value::Text(reference.clone()));
    }
    // Nearly all rows are completed: they are found faster by reading the newest rows than by the
    // index.
    let by_state = filter.state.filter(|state| *state != StateKind::Completed);
    if let Some(state) = by_state {
        texts.push("state IN (?, ?)");
        let numbers = [number_of(state), number_of(state) | RESUMABLE];
        values.extend(numbers.map(|number| Value::Integer(number.into())));
    }
    if filter.parked == Some(true) {
        texts.push("parked_since IS NOT NULL");
    }
    let mut conditions = String::new();
    if by_state.is_some() && filter.reference.is_none() && texts.iter().all(|text| *text != BY_ID) {
        conditions.push_str(" INDEXED BY record_by_due");
    }
    if !texts.is_empty() {
        conditions = format!("{conditions} WHERE {}", texts.join(" AND "));
    }
    Ok(Some((conditions, values)))
}

pub(super) const COUNT_STATES: &str = "SELECT state, count(*) FROM record GROUP BY state";
pub(super) const COUNT_PARKED: &str = "SELECT count(*) FROM record WHERE parked_since IS NOT NULL";

pub(super) fn counts(connection: &Connection) -> Result<Counts, Failure> {
    let tx = connection.unchecked_transaction()?;
    let count = |number: i64| u64::try_from(number).unwrap_or(0);
    let mut counts = Counts::default();
    let mut statement = tx.prepare_cached(COUNT_STATES)?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let state = state_of(row.get(0)?).ok_or_else(|| unreadable("state"))?;
        *counts.of_state(state) += count(row.get(1)?);
    }
    counts.parked = tx.prepare_cached(COUNT_PARKED)?.query_row([], |row| row.get(0)).map(count)?;
    Ok(counts)
}
