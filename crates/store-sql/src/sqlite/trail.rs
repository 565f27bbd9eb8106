//! The audit trail, and what is kept apart. Free functions over a connection, as [`super::statements`].

use oncegate_core::audit::Entry;
use oncegate_core::identity::RecordId;
use oncegate_core::time::Timestamp;
use oncegate_store::{Apart, EntryPage, EntryPlace};
use rusqlite::{Connection, Row, ToSql, params};

use super::error::Failure;

pub(super) const TELL: &str =
    "INSERT INTO entry (id, at, act, node, bytes) VALUES (?1, ?2, ?3, ?4, ?5) ON CONFLICT DO NOTHING";
pub(super) const STORY: &str = "SELECT at, bytes FROM entry WHERE id = ?1 ORDER BY seq DESC LIMIT ?2";
/// The trail of all records, from behind a place.
pub(super) const ENTRIES: &str = "SELECT id, at, seq, bytes FROM entry WHERE (at, seq) > (?1, ?2) AND at < ?3 \
     ORDER BY at, seq LIMIT ?4";
/// The oldest first, and of one moment those that came first.
pub(super) const DROP_ENTRIES: &str =
    "DELETE FROM entry WHERE seq IN (SELECT seq FROM entry WHERE at < ?1 ORDER BY at, seq LIMIT ?2)";

const KEEP_APART: &str =
    "INSERT INTO apart (name, at, until, bytes) VALUES (?1, ?2, ?3, ?4) ON CONFLICT DO NOTHING";
const APART: &str = "SELECT name, at, until, bytes FROM apart ORDER BY at, name LIMIT ?1";
pub(super) const APART_AFTER: &str =
    "SELECT name, at, until, bytes FROM apart WHERE (at, name) > (?2, ?3) ORDER BY at, name LIMIT ?1";
pub(super) const DROP_APART: &str = "DELETE FROM apart WHERE name = ?1";

/// Adds an entry, unless it is there, inside the transaction that `connection` is in.
pub(super) fn tell(connection: &Connection, entry: &Entry) -> Result<(), Failure> {
    let bytes = entry.encode();
    let bound = params![
        &entry.id.as_bytes()[..],
        entry.at.as_micros(),
        entry.act.number(),
        entry.distinct_name(&bytes),
        bytes
    ];
    connection.prepare_cached(TELL)?.execute(bound)?;
    Ok(())
}

pub(super) fn story(connection: &Connection, id: RecordId, limit: usize) -> Result<Vec<Entry>, Failure> {
    let mut statement = connection.prepare_cached(STORY)?;
    let mut rows = statement.query(params![&id.as_bytes()[..], count(limit)])?;
    let mut story = Vec::new();
    while let Some(row) = rows.next()? {
        let (at, bytes): (i64, Vec<u8>) = (row.get(0)?, row.get(1)?);
        story.push(Entry::decode(id, Timestamp::from_micros(at), &bytes)?);
    }
    story.reverse();
    Ok(story)
}

/// A page of the trail of all records, from behind `start`. One row more than it shows says
/// whether there is another.
pub(super) fn entries(
    connection: &Connection,
    start: EntryPlace,
    before: Timestamp,
    limit: usize,
) -> Result<EntryPage, Failure> {
    let mut statement = connection.prepare_cached(ENTRIES)?;
    let more = count(limit.saturating_add(1));
    let bound = params![start.at.as_micros(), start.arrival, before.as_micros(), more];
    let mut rows = statement.query(bound)?;
    let mut page = EntryPage::default();
    let mut last = None;
    while let Some(row) = rows.next()? {
        if page.entries.len() == limit {
            page.next = last;
            break;
        }
        let (id, at, bytes): (Vec<u8>, i64, Vec<u8>) = (row.get(0)?, row.get(1)?, row.get(3)?);
        let at = Timestamp::from_micros(at);
        let place = EntryPlace { at, arrival: row.get(2)? };
        last = Some(place);
        let id = id.try_into().ok().map(RecordId::from_bytes);
        page.entries.push((place, id.and_then(|id| Entry::decode(id, at, &bytes).ok())));
    }
    Ok(page)
}

pub(super) fn drop_entries(
    connection: &Connection,
    before: Timestamp,
    limit: usize,
) -> Result<usize, Failure> {
    Ok(connection.prepare_cached(DROP_ENTRIES)?.execute(params![before.as_micros(), count(limit)])?)
}

pub(super) fn keep_apart(connection: &Connection, apart: &Apart) -> Result<(), Failure> {
    let bound = params![&*apart.name, apart.at.as_micros(), apart.until.as_micros(), apart.bytes];
    connection.prepare_cached(KEEP_APART)?.execute(bound)?;
    Ok(())
}

pub(super) fn apart(
    connection: &Connection,
    after: Option<&Apart>,
    limit: usize,
) -> Result<Vec<Apart>, Failure> {
    let limit = count(limit);
    let Some(after) = after else { return all_apart(connection, APART, &[&limit]) };
    all_apart(connection, APART_AFTER, &[&limit, &after.at.as_micros(), &&*after.name])
}

fn all_apart(connection: &Connection, sql: &str, bound: &[&dyn ToSql]) -> Result<Vec<Apart>, Failure> {
    let mut statement = connection.prepare_cached(sql)?;
    let found = statement.query_map(bound, one_apart)?.collect::<rusqlite::Result<_>>()?;
    Ok(found)
}

fn one_apart(row: &Row<'_>) -> rusqlite::Result<Apart> {
    Ok(Apart {
        name: row.get::<_, String>(0)?.into(),
        at: Timestamp::from_micros(row.get(1)?),
        until: Timestamp::from_micros(row.get(2)?),
        bytes: row.get(3)?,
    })
}

pub(super) fn drop_apart(connection: &Connection, apart: &[Apart]) -> Result<(), Failure> {
    let mut statement = connection.prepare_cached(DROP_APART)?;
    for one in apart {
        statement.execute([&*one.name])?;
    }
    Ok(())
}

fn count(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}
