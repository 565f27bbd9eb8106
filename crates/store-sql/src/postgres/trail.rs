//! The audit trail apart from writes, and what is kept apart. Every write here may be made twice, and has the same effect once.

use oncegate_core::audit::Entry;
use oncegate_core::codec::Malformed;
use oncegate_core::identity::RecordId;
use oncegate_core::time::Timestamp;
use oncegate_store::{Apart, Effect, EntryPage, EntryPlace, Result};
use tokio_postgres::types::{ToSql, Type};

use super::apply::Writers;
use super::batch::Entries;
use super::error::Failure;
use super::session::Session;
use super::statements::Query;
use super::statements::trail::Trail;

pub(super) async fn tell(writers: &Writers, statements: &Trail, entries: &[Entry]) -> Result<()> {
    if entries.is_empty() {
        return Ok(());
    }
    let entries = Entries::of(entries);
    writers.run("tell", &statements.tell, &entries.bound()).await.map(drop)
}

pub(super) async fn story(
    session: &Session,
    statements: &Trail,
    id: RecordId,
    limit: usize,
) -> std::result::Result<Vec<Entry>, Failure> {
    let rows = session.query(&statements.story, &[&&id.as_bytes()[..], &count(limit)]).await?;
    let entry = |row: &tokio_postgres::Row| {
        Ok(Entry::decode(id, Timestamp::from_micros(row.try_get(0)?), row.try_get(1)?)?)
    };
    rows.iter().map(entry).collect()
}

/// A page of the trail of all records, from behind `start`. One row more than it shows says
/// whether there is another.
pub(super) async fn entries(
    session: &Session,
    statements: &Trail,
    start: EntryPlace,
    before: Timestamp,
    limit: usize,
) -> std::result::Result<EntryPage, Failure> {
    let numbers = [start.at.as_micros(), start.arrival, before.as_micros(), count(limit.saturating_add(1))];
    let bound = numbers.each_ref().map(|number| (number as &(dyn ToSql + Sync), Type::INT8));
    let rows = session.query_once(&statements.entries, &bound).await?;
    let mut page = EntryPage::default();
    for row in rows.iter().take(limit) {
        let at = Timestamp::from_micros(row.try_get(1)?);
        let place = EntryPlace { at, arrival: row.try_get(2)? };
        page.next = (rows.len() > limit).then_some(place);
        let id = row.try_get::<_, &[u8]>(0)?.try_into().ok().map(RecordId::from_bytes);
        let bytes = row.try_get(3)?;
        page.entries.push((place, id.and_then(|id| Entry::decode(id, at, bytes).ok())));
    }
    Ok(page)
}

pub(super) async fn drop_entries(
    writers: &Writers,
    statements: &Trail,
    before: Timestamp,
    limit: usize,
) -> Result<usize> {
    dropped(writers, "drop_entries", &statements.drop_entries, before, limit).await
}

/// Runs a statement that drops at most `limit` rows of before this, and says how many.
pub(super) async fn dropped(
    writers: &Writers,
    operation: &'static str,
    query: &Query,
    before: Timestamp,
    limit: usize,
) -> Result<usize> {
    count_of(writers, operation, query, &[&before.as_micros(), &count(limit)]).await
}

/// Runs a statement that says how many rows it has changed.
pub(super) async fn count_of(
    writers: &Writers,
    operation: &'static str,
    query: &Query,
    bound: &[&(dyn ToSql + Sync)],
) -> Result<usize> {
    let rows = writers.run(operation, query, bound).await?;
    let dropped = rows.first().map_or(Ok(0), |row| row.try_get::<_, i64>(0));
    let dropped = dropped.map_err(|error| Failure::from(error).during(operation, Effect::Unknown))?;
    Ok(usize::try_from(dropped).unwrap_or(0))
}

pub(super) async fn keep_apart(writers: &Writers, statements: &Trail, apart: &Apart) -> Result<()> {
    let (name, at, until) = (apart.name.as_bytes(), apart.at.as_micros(), apart.until.as_micros());
    let bound: [&(dyn ToSql + Sync); 4] = [&name, &at, &until, &apart.bytes];
    writers.run("keep_apart", &statements.keep_apart, &bound).await.map(drop)
}

pub(super) async fn apart(
    session: &Session,
    statements: &Trail,
    after: Option<&Apart>,
    limit: usize,
) -> std::result::Result<Vec<Apart>, Failure> {
    let at = after.map_or(i64::MIN, |after| after.at.as_micros());
    let name = after.map(|after| after.name.as_bytes());
    let rows = session.query(&statements.apart, &[&at, &name, &count(limit)]).await?;
    rows.iter().map(one_apart).collect()
}

fn one_apart(row: &tokio_postgres::Row) -> std::result::Result<Apart, Failure> {
    let name = std::str::from_utf8(row.try_get(0)?).map_err(|_| Malformed { what: "name of a message" })?;
    Ok(Apart {
        name: name.into(),
        at: Timestamp::from_micros(row.try_get(1)?),
        until: Timestamp::from_micros(row.try_get(2)?),
        bytes: row.try_get(3)?,
    })
}

pub(super) async fn drop_apart(writers: &Writers, statements: &Trail, apart: &[Apart]) -> Result<()> {
    if apart.is_empty() {
        return Ok(());
    }
    let names: Vec<_> = apart.iter().map(|one| one.name.as_bytes()).collect();
    writers.run("drop_apart", &statements.drop_apart, &[&names]).await.map(drop)
}

pub(super) fn count(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}
