//! Pages and counts, for people.

use std::cmp::Reverse;

use oncegate_core::identity::RecordId;
use oncegate_core::key::Key;
use oncegate_core::record::codec::state_number;
use oncegate_core::record::{Record, StateKind};
use oncegate_core::scope::{Address, Scope};
use oncegate_core::time::Timestamp;
use oncegate_store::{Counts, Cursor, Filter, Page};
use rusqlite::types::Value;
use rusqlite::{Connection, Row, params_from_iter};

use super::append::pages::{self, Shown};
use super::append::{Found, Ledger, Memory, Shared};
use super::error::Failure;
use super::row::{decode, state_kind};
use super::scan::in_flight;
use super::statements::SELECT;

/// A page of rows, newest first. The cursor is the last row's place in the order of arrival.
pub(super) fn page(
    connection: &Connection,
    shared: &Shared,
    filter: &Filter,
    after: Option<&Cursor>,
    limit: usize,
) -> Result<Page, Failure> {
    let parse = |cursor: &Cursor| {
        cursor.as_str().parse().map_err(|error| format!("not a cursor of this store: {error}"))
    };
    let before = after.map(parse).transpose()?.unwrap_or(i64::MAX);
    // Scope and key are the id, and an id is found quickly.
    let id = match (&filter.scope, &filter.key) {
        (Some(scope), Some(key)) => match (Scope::from_stored(scope), Key::from_text(key)) {
            (Ok(scope), Ok(key)) => Some(RecordId::of(&Address { scope, key })),
            // What cannot be an address has no record.
            _ => return Ok(Page { records: Vec::new(), unreadable: 0, next: None }),
        },
        _ => None,
    };
    let asked = Asked { filter, id, before, most: limit.saturating_add(1) };
    let look = |memory: &Memory| asked.in_flight(memory);
    let mut shown = shared.looking(connection, look, |tx, ledger, (mut shown, place)| {
        shown.extend(asked.in_table(tx)?);
        shown.extend(asked.settled(tx, &ledger, place)?);
        Ok(shown)
    })?;
    shown.sort_unstable_by_key(|(arrival, _)| Reverse(*arrival));

    let mut page = Page { records: Vec::new(), unreadable: 0, next: None };
    let mut last = None;
    for (arrival, row) in shown {
        // One row more than asked for says whether there is a next page.
        if page.records.len() + page.unreadable == limit {
            page.next = last.map(|arrival: i64| Cursor::new(arrival.to_string()));
            break;
        }
        match row {
            Ok(record) => page.records.push(record),
            Err(_) => page.unreadable += 1,
        }
        last = Some(arrival);
    }
    Ok(page)
}

/// What a page is to show, out of one table after the other.
struct Asked<'a> {
    filter: &'a Filter,
    /// Only this one.
    id: Option<RecordId>,
    /// In the order of arrival.
    before: i64,
    most: usize,
}

impl Asked<'_> {
    fn may_be(&self, state: StateKind) -> bool {
        self.filter.state.is_none_or(|wanted| wanted == state) && self.filter.parked != Some(true)
    }

    fn in_flight(&self, memory: &Memory) -> (Vec<Shown>, Option<i64>) {
        let mut shown = Vec::new();
        if self.may_be(StateKind::InProgress) {
            for (_, held) in memory.reserved.all().filter(|(_, held)| held.arrival < self.before) {
                match in_flight(held) {
                    Ok(record) if !self.filter.admits(&record) => {}
                    row => shown.push((held.arrival, row)),
                }
            }
        }
        let settled_at = self.id.and_then(|id| match memory.find(id) {
            Found::SettledAt(seq) => Some(seq),
            Found::InFlight(_) | Found::Elsewhere => None,
        });
        (shown, settled_at)
    }

    fn settled(
        &self,
        connection: &Connection,
        ledger: &Ledger,
        at: Option<i64>,
    ) -> Result<Vec<Shown>, Failure> {
        let filter = self.filter;
        // What the provider calls by a name of its own is in the other table.
        if !self.may_be(StateKind::Completed) || filter.reference.is_some() {
            return Ok(Vec::new());
        }
        let admits = |record: &Record| filter.admits(record);
        if let Some(id) = self.id {
            let Some(seq) = at else { return Ok(Vec::new()) };
            let row = pages::at(connection, seq, id)?.filter(|(arrival, _)| *arrival < self.before);
            return Ok(row.into_iter().filter(|(_, row)| row.as_ref().map_or(true, &admits)).collect());
        }
        let Filter { scope, key, operation, created_from, created_before, .. } = filter;
        let is_all = scope.is_none()
            && key.is_none()
            && operation.is_none()
            && created_from.is_none()
            && created_before.is_none();
        let wanted = (!is_all).then_some(&admits as &dyn Fn(&Record) -> bool);
        pages::newest(connection, ledger, self.before, self.most, wanted)
    }

    fn in_table(&self, connection: &Connection) -> Result<Vec<Shown>, Failure> {
        let Filter { state, parked, scope, key, operation, reference, created_from, created_before } =
            self.filter;
        let mut conditions = Conditions::default();
        if self.before < i64::MAX {
            conditions.add("record.seq < ?", Value::Integer(self.before));
        }
        if let Some(state) = state {
            conditions.add("state = ?", Value::Integer(i64::from(state_number(*state))));
        }
        if let Some(parked) = parked {
            conditions.add("coalesce(parked, 0) = ?", Value::Integer(i64::from(*parked)));
        }
        if let Some(id) = self.id {
            conditions.add("id = ?", Value::Blob(id.as_bytes().to_vec()));
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

        let fetched = i64::try_from(self.most).unwrap_or(i64::MAX);
        let sql = format!("{} {} ORDER BY record.seq DESC LIMIT {fetched}", *SELECT, conditions.sql());
        let mut statement = connection.prepare(&sql)?;
        let mut rows = statement.query(params_from_iter(conditions.values))?;
        let mut shown = Vec::new();
        while let Some(row) = rows.next()? {
            shown.push((row.get("seq")?, decode(row)));
        }
        Ok(shown)
    }
}

pub(super) const COUNT_STATES: &str = "SELECT state, count(*) FROM record GROUP BY state";
/// A parked doubt is the one that is never due.
pub(super) const COUNT_PARKED: &str = "SELECT count(*) FROM record WHERE state = 4 AND due_at IS NULL";

pub(super) fn counts(connection: &Connection, shared: &Shared) -> Result<Counts, Failure> {
    let look = |memory: &Memory| memory.reserved.all().count() as u64;
    shared.looking(connection, look, |tx, ledger, in_flight| {
        let mut counts = Counts::default();
        let mut statement = tx.prepare_cached(COUNT_STATES)?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            *counts.of_state(state_kind(row.get(0)?)?) = count(row, 1)?;
        }
        counts.parked = tx.prepare_cached(COUNT_PARKED)?.query_row([], |row| count(row, 0))?;
        counts.in_progress += in_flight;
        counts.completed += pages::count(tx, &ledger)?;
        Ok(counts)
    })
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
