//! Pages and counts, for people.

use oncegate_core::identity::RecordId;
use oncegate_core::key::Key;
use oncegate_core::record::StateKind;
use oncegate_core::record::codec::body_name;
use oncegate_core::scope::{Address, Scope};
use oncegate_store::row::{number_of, state_of};
use oncegate_store::{Counts, Cursor, Filter, Page};
use tokio_postgres::types::{ToSql, Type};

use super::error::Failure;
use super::row::{Name, SEQ, created_at, decode};
use super::session::Session;
use super::statements::Statements;

/// A page of rows, newest first. The cursor is the last row's place in the order of arrival.
pub(super) async fn page(
    session: &Session,
    statements: &Statements,
    filter: &Filter,
    after: Option<&Cursor>,
    limit: usize,
) -> Result<Page, Failure> {
    let Some(conditions) = conditions(statements, filter, after)? else {
        return Ok(Page { records: Vec::new(), unreadable: 0, next: None });
    };
    // One row more than asked for says whether there is a next page.
    let fetched = i64::try_from(limit.saturating_add(1)).unwrap_or(i64::MAX);
    let text = format!("{}{} ORDER BY r.seq DESC LIMIT {fetched}", statements.select, conditions.text());
    let rows = session.query_once(&text, &conditions.bound()).await?;
    let mut page = Page { records: Vec::new(), unreadable: 0, next: None };
    let mut last: Option<i64> = None;
    for row in &rows {
        if page.records.len() + page.unreadable == limit {
            page.next = last.map(|seq| Cursor::new(seq.to_string()));
            break;
        }
        match decode(row)?.1 {
            Ok(record) => page.records.push(record),
            Err(_) => page.unreadable += 1,
        }
        last = Some(row.try_get(SEQ)?);
    }
    Ok(page)
}

/// `None`: no record can be meant.
fn conditions(
    statements: &Statements,
    filter: &Filter,
    after: Option<&Cursor>,
) -> Result<Option<Conditions>, Failure> {
    let Filter { state, parked, scope, key, operation, reference, created_from, created_before } = filter;
    let mut conditions = Conditions::default();
    if let Some(cursor) = after {
        let seq = cursor.as_str().parse::<i64>();
        let seq = seq.map_err(|error| Failure::Words(format!("not a cursor of this store: {error}")))?;
        conditions.add("r.seq < ?", Box::new(seq), Type::INT8);
    }
    if let Some(state) = state {
        conditions.add("r.state & 15 = ?", Box::new(number_of(*state)), Type::INT2);
    }
    if *state == Some(StateKind::Unknown) || *parked == Some(true) {
        conditions.texts.push(statements.by_doubt.clone());
    }
    if let Some(parked) = parked {
        // A parked doubt is the one that is never due.
        conditions.add("(r.state = 4 AND r.due_at IS NULL) = ?", Box::new(*parked), Type::BOOL);
    }
    // Scope and key are the id, and the id has an index.
    if let (Some(scope), Some(key)) = (scope, key) {
        let (Ok(scope), Ok(key)) = (Scope::from_stored(scope), Key::from_text(key)) else { return Ok(None) };
        let id = RecordId::of(&Address { scope, key });
        conditions.add("r.id = ?", Box::new(id.as_bytes().to_vec()), Type::BYTEA);
    }
    for (name, wanted) in [(Name::Scope, scope), (Name::Key, key), (Name::Operation, operation)] {
        if let Some(wanted) = wanted {
            conditions.add(&name.is("r.rest"), Box::new(body_name(wanted).collect::<Vec<u8>>()), Type::BYTEA);
        }
    }
    if let Some(reference) = reference {
        conditions.add(&statements.by_reference, Box::new(reference.clone().into_bytes()), Type::BYTEA);
    }
    for (than, moment) in [(">=", created_from), ("<", created_before)] {
        if let Some(moment) = moment {
            // No life began before 1970, and bytes are compared as the numbers since then.
            let bytes = moment.as_micros().max(0).to_be_bytes().to_vec();
            conditions.add(&format!("{} {than} ?", created_at("r.rest")), Box::new(bytes), Type::BYTEA);
        }
    }
    Ok(Some(conditions))
}

#[derive(Default)]
struct Conditions {
    texts: Vec<String>,
    values: Vec<(Box<dyn ToSql + Sync + Send>, Type)>,
}

impl Conditions {
    /// `?` is the value.
    fn add(&mut self, text: &str, value: Box<dyn ToSql + Sync + Send>, of: Type) {
        self.values.push((value, of));
        self.texts.push(text.replace('?', &format!("${}", self.values.len())));
    }

    fn text(&self) -> String {
        if self.texts.is_empty() { String::new() } else { format!(" WHERE {}", self.texts.join(" AND ")) }
    }

    fn bound(&self) -> Vec<(&(dyn ToSql + Sync), Type)> {
        self.values.iter().map(|(value, of)| (&**value as &(dyn ToSql + Sync), of.clone())).collect()
    }
}

pub(super) async fn counts(session: &Session, statements: &Statements) -> Result<Counts, Failure> {
    let mut counts = Counts::default();
    for row in session.query(&statements.counts, &[]).await? {
        let number: i16 = row.try_get(0)?;
        let state =
            state_of(number).ok_or_else(|| Failure::Words(format!("no state has the number {number}")))?;
        let (rows, parked): (i64, i64) = (row.try_get(1)?, row.try_get(2)?);
        *counts.of_state(state) += u64::try_from(rows).unwrap_or(0);
        counts.parked += u64::try_from(parked).unwrap_or(0);
    }
    Ok(counts)
}
