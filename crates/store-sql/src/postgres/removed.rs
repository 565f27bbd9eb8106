//! What is remembered of removed rows.

use std::collections::HashMap;

use oncegate_core::identity::RecordId;
use oncegate_core::time::Timestamp;
use oncegate_store::Result;
use oncegate_store::removed::{day_of, digest_of, start_of};

use super::apply::Writers;
use super::error::Failure;
use super::session::Session;
use super::statements::removed::Removed;
use super::trail;

pub(super) async fn removed(
    session: &Session,
    statements: &Removed,
    ids: &[RecordId],
    since: Timestamp,
) -> std::result::Result<Vec<Option<Timestamp>>, Failure> {
    let digests: Vec<_> = ids.iter().copied().map(digest_of).collect();
    let rows = session.query(&statements.removed, &[&digests]).await?;
    let mut days = HashMap::new();
    for row in &rows {
        days.insert(row.try_get::<_, i64>(0)?, row.try_get::<_, i32>(1)?);
    }
    let first = day(since);
    let found = |digest: &i64| days.get(digest).copied().filter(|day| *day >= first);
    Ok(digests.iter().map(|digest| found(digest).map(|day| start_of(i64::from(day)))).collect())
}

pub(super) async fn drop_removed(
    writers: &Writers,
    statements: &Removed,
    before: Timestamp,
    limit: usize,
) -> Result<usize> {
    let limit = trail::count(limit);
    trail::count_of(writers, "drop_removed", &statements.drop, &[&day(before), &limit]).await
}

fn day(at: Timestamp) -> i32 {
    let day = day_of(at);
    i32::try_from(day).unwrap_or(if day < 0 { i32::MIN } else { i32::MAX })
}
