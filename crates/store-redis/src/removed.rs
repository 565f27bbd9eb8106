//! What is remembered of removed rows. `scripts/apply.lua` adds to it with the removal.
//!
//! The digests of a day are spread over many sets: Redis packs a set of at most 512 integers into
//! eight bytes each.

use std::sync::Arc;

use oncegate_core::identity::RecordId;
use oncegate_core::time::Timestamp;
use oncegate_store::Result;
use oncegate_store::removed::{day_of, digest_of, start_of};
use redis::Value;

use crate::ask::{array, odd, run};
use crate::history::Checks;
use crate::keys::Keys;
use crate::link::Link;
use crate::script::{Call, DROP_REMOVED, REMOVED};
use crate::trail::write;

/// So many sets per day. Two million ids of a day are packed.
const BUCKETS: i64 = 4_096;
/// So many ids in one call: a script makes all others wait.
const IDS_MAX: usize = 256;

/// The set that an id is in, and what it is there.
pub(crate) fn place_of(id: RecordId) -> [Vec<u8>; 2] {
    let digest = digest_of(id);
    [digest.rem_euclid(BUCKETS), digest].map(|number| number.to_string().into_bytes())
}

pub(crate) async fn removed(
    link: &Arc<Link<Checks>>,
    keys: &Keys,
    ids: &[RecordId],
    since: Timestamp,
) -> Result<Vec<Option<Timestamp>>> {
    let mut days = Vec::with_capacity(ids.len());
    for part in ids.chunks(IDS_MAX) {
        let mut arguments = vec![day_of(since).to_string().into_bytes()];
        arguments.extend(part.iter().flat_map(|id| place_of(*id)));
        let call = Call::new(&REMOVED, vec![keys.removed()], arguments);
        let found = array("removed", run(link, "removed", call).await?)?;
        if found.len() != part.len() {
            return Err(odd("removed"));
        }
        for day in found {
            let Value::BulkString(day) = day else { return Err(odd("removed")) };
            let day = std::str::from_utf8(&day).map_err(|_| odd("removed"))?;
            days.push(if day.is_empty() { None } else { Some(day.parse().map_err(|_| odd("removed"))?) });
        }
    }
    Ok(days.into_iter().map(|day| day.map(start_of)).collect())
}

/// A whole day at once, whatever the limit.
pub(crate) async fn drop_removed(link: &Arc<Link<Checks>>, keys: &Keys, before: Timestamp) -> Result<usize> {
    let arguments = [day_of(before), BUCKETS].map(|number| number.to_string().into_bytes());
    let call = Call::new(&DROP_REMOVED, vec![keys.removed()], arguments.into());
    match write(link, "drop_removed", call).await? {
        Value::Int(count) => Ok(usize::try_from(count).unwrap_or(0)),
        _ => Err(odd("drop_removed")),
    }
}
