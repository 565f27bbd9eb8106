//! Watermarks and quarantines.
//!
//! **Invariant:** a new connection is used only if the watermark in it is one that this process wrote: a database that was recovered to
//! an earlier moment has ended every connection, so it is noticed before anything is asked of it.

use oncegate_core::codec::Malformed;
use oncegate_core::time::{Timestamp, micros};
use oncegate_store::history::{Beat, WATERMARK_AGE_MAX, Watermark};
use oncegate_store::{Effect, History, Kind, Quarantine, Result, StoreError};
use tokio_postgres::Row;

use super::apply::Writers;
use super::error::Failure;
use super::session::Session;
use super::settings::Settings;
use super::statements::history::History as Statements;

pub(super) async fn check(
    writers: &Writers,
    statements: &Statements,
    watermark: &Watermark,
) -> Result<History> {
    let Some(beat) = watermark.beat() else { return Ok(History::Lost) };
    let Beat { node, last, next } = beat;
    let age_max = micros(WATERMARK_AGE_MAX);
    let rows = writers.run("check_history", &statements.beat, &[&node, &last, &next, &age_max]).await?;
    let count: i64 = first(&rows, "check_history")?;
    Ok(watermark.took_effect(beat, count == 1))
}

/// Looks at the watermark through a connection that is new.
pub(super) async fn look_over(settings: &Settings, session: &Session) -> std::result::Result<(), Failure> {
    let watermark = &settings.watermark;
    let Some(expected) = watermark.expected() else { return Ok(()) };
    let text =
        format!("SELECT mark FROM {}.watermark WHERE node = {}", settings.schema.quoted(), expected.node);
    let rows = session.query_once(&text, &[]).await?;
    let found = rows.first().map(|row| row.try_get(0)).transpose()?;
    match watermark.judge(expected, found) {
        History::Intact => Ok(()),
        History::Lost => Err(Failure::Restored),
    }
}

pub(super) async fn leave(writers: &Writers, statements: &Statements, watermark: &Watermark) -> Result<()> {
    let Some(beat) = watermark.beat() else { return Ok(()) };
    writers.run("leave", &statements.leave, &[&beat.node]).await.map(drop)
}

pub(super) async fn declare(writers: &Writers, statements: &Statements, new: &Quarantine) -> Result<()> {
    let [since, until, declared_at] = [new.since, new.until, new.declared_at].map(Timestamp::as_micros);
    let released_at = new.released_at.map(Timestamp::as_micros);
    let (id, reason) = (&*new.id, new.reason.as_bytes());
    writers
        .run(
            "declare_quarantine",
            &statements.declare,
            &[&id, &since, &until, &declared_at, &released_at, &reason],
        )
        .await
        .map(drop)
}

pub(super) async fn quarantines(
    session: &Session,
    statements: &Statements,
) -> std::result::Result<Vec<Quarantine>, Failure> {
    session.query(&statements.quarantines, &[]).await?.iter().map(quarantine).collect()
}

fn quarantine(row: &Row) -> std::result::Result<Quarantine, Failure> {
    let moment = |place: usize| row.try_get(place).map(Timestamp::from_micros);
    let reason =
        std::str::from_utf8(row.try_get(5)?).map_err(|_| Malformed { what: "reason of a quarantine" })?;
    Ok(Quarantine {
        id: row.try_get::<_, &str>(0)?.into(),
        since: moment(1)?,
        until: moment(2)?,
        declared_at: moment(3)?,
        released_at: row.try_get::<_, Option<i64>>(4)?.map(Timestamp::from_micros),
        reason: reason.into(),
    })
}

pub(super) async fn release(
    writers: &Writers,
    statements: &Statements,
    id: &str,
    at: Timestamp,
) -> Result<bool> {
    let rows = writers.run("release_quarantine", &statements.release, &[&id, &at.as_micros()]).await?;
    Ok(first::<i64>(&rows, "release_quarantine")? == 1)
}

fn first<'r, T: tokio_postgres::types::FromSql<'r>>(rows: &'r [Row], operation: &'static str) -> Result<T> {
    let odd =
        || StoreError::new(Kind::Other, Effect::Unknown, operation).because("it answered without a number");
    rows.first().and_then(|row| row.try_get(0).ok()).ok_or_else(odd)
}
