//! The audit trail, and what is kept apart. Each call is a script; a large one is several.
//!
//! An entry's name is its record's id, its moment, its act and its node. In the story its order of arrival comes after the id, in the
//! list of ages before it; so both are ranges, and no key needs to be made up while a script runs.

use std::sync::Arc;

use oncegate_core::audit::Entry;
use oncegate_core::identity::RecordId;
use oncegate_core::time::Timestamp;
use oncegate_store::{Apart, Effect, EntryPage, EntryPlace, Kind, Result, StoreError};
use redis::Value;

use crate::apply;
use crate::ask::{BYTES_MAX, ROWS_MAX, array, odd, run};
use crate::error::Nature;
use crate::history::Checks;
use crate::keys::Keys;
use crate::link::Link;
use crate::script::{APART, Call, DROP_APART, DROP_ENTRIES, ENTRIES, KEEP_APART, STORY};

/// What sixteen digits can hold.
const ARRIVAL_MAX: i64 = 9_999_999_999_999_999;
/// Where the moment is in a member of a story: after the id and the order of arrival.
const AT: std::ops::Range<usize> = 32..40;

pub(crate) async fn tell(link: &Arc<Link<Checks>>, keys: &Keys, entries: &[Entry]) -> Result<()> {
    if entries.is_empty() {
        return Ok(());
    }
    write(link, "tell", apply::tell(keys, entries)).await.map(drop)
}

pub(crate) async fn story(
    link: &Arc<Link<Checks>>,
    keys: &Keys,
    id: RecordId,
    limit: usize,
) -> Result<Vec<Entry>> {
    let [entries, stories, _] = keys.trail();
    // The order of arrival is in digits, which come before this.
    let mut end = [b"(", &id.as_bytes()[..], b":"].concat();
    let mut story = Vec::new();
    while story.len() < limit {
        let count = ROWS_MAX.min(limit - story.len());
        let arguments = vec![id.as_bytes().to_vec(), end, count.to_string().into()];
        let call = Call::new(&STORY, vec![stories.clone(), entries.clone()], arguments);
        let found = pairs("story", run(link, "story", call).await?)?;
        for (member, bytes) in &found {
            story.push(entry(id, member, bytes)?);
        }
        match found.into_iter().next_back() {
            Some((member, _)) if story.len() < limit => end = [b"(", &member[..]].concat(),
            _ => break,
        }
    }
    story.reverse();
    Ok(story)
}

fn entry(id: RecordId, member: &[u8], bytes: &[u8]) -> Result<Entry> {
    let at = member.get(AT).and_then(|at| at.try_into().ok()).ok_or_else(|| odd("story"))?;
    let at = Timestamp::from_micros(i64::from_be_bytes(at));
    Entry::decode(id, at, bytes)
        .map_err(|problem| StoreError::new(Kind::Unreadable, Effect::None, "story").because(problem))
}

/// A page of the trail of all records, from behind `start`. One entry more than it shows says
/// whether there is another.
pub(crate) async fn entries(
    link: &Arc<Link<Checks>>,
    keys: &Keys,
    start: EntryPlace,
    before: Timestamp,
    limit: usize,
) -> Result<EntryPage> {
    let [entries, _, ages] = keys.trail();
    let mut page = EntryPage::default();
    let mut place = start;
    loop {
        let count = ROWS_MAX.min(limit.saturating_add(1) - page.entries.len());
        // No number of an entry is negative, and none has more digits.
        let arrival = format!("{:016}", place.arrival.clamp(0, ARRIVAL_MAX));
        let micros = [place.at, before].map(|at| at.as_micros().to_string());
        let [at, before] = micros;
        let arguments = [at, arrival, before, count.to_string()].map(String::into_bytes);
        let call = Call::new(&ENTRIES, vec![ages.clone(), entries.clone()], arguments.into());
        let found = array("entries", run(link, "entries", call).await?)?;
        let is_end = found.len() < 3 * count;
        for one in found.chunks_exact(3) {
            if page.entries.len() == limit {
                page.next = Some(place);
                return Ok(page);
            }
            let [Value::BulkString(member), Value::BulkString(at), Value::BulkString(bytes)] = one else {
                return Err(odd("entries"));
            };
            place = place_of(member, at).ok_or_else(|| odd("entries"))?;
            let id = member.get(16..32).and_then(|id| id.try_into().ok()).map(RecordId::from_bytes);
            page.entries.push((place, id.and_then(|id| Entry::decode(id, place.at, bytes).ok())));
        }
        if is_end {
            return Ok(page);
        }
    }
}

fn place_of(member: &[u8], at: &[u8]) -> Option<EntryPlace> {
    let number = |digits: &[u8]| std::str::from_utf8(digits).ok()?.parse().ok();
    Some(EntryPlace { at: Timestamp::from_micros(number(at)?), arrival: number(member.get(..16)?)? })
}

pub(crate) async fn drop_entries(
    link: &Arc<Link<Checks>>,
    keys: &Keys,
    before: Timestamp,
    limit: usize,
) -> Result<usize> {
    let [entries, stories, ages] = keys.trail();
    let mut dropped = 0;
    while dropped < limit {
        let count = ROWS_MAX.min(limit - dropped);
        let arguments = [before.as_micros().to_string(), count.to_string()].map(String::into_bytes);
        let names = vec![ages.clone(), stories.clone(), entries.clone()];
        let reply = write(link, "drop_entries", Call::new(&DROP_ENTRIES, names, arguments.into())).await?;
        let Value::Int(found) = reply else { return Err(odd("drop_entries")) };
        let found = usize::try_from(found).unwrap_or(0);
        dropped += found;
        if found < count {
            break;
        }
    }
    Ok(dropped)
}

pub(crate) async fn keep_apart(link: &Arc<Link<Checks>>, keys: &Keys, apart: &Apart) -> Result<()> {
    let Apart { name, at, until, bytes } = apart;
    let message = [&at.as_micros().to_be_bytes(), &until.as_micros().to_be_bytes(), &bytes[..]].concat();
    let arguments = vec![name.as_bytes().to_vec(), at.as_micros().to_string().into(), message];
    write(link, "keep_apart", Call::new(&KEEP_APART, keys.apart().into(), arguments)).await.map(drop)
}

/// What has the moment of `after` comes again, and is left out here by its name.
pub(crate) async fn apart(
    link: &Arc<Link<Checks>>,
    keys: &Keys,
    after: Option<&Apart>,
    limit: usize,
) -> Result<Vec<Apart>> {
    let first = after.map_or_else(|| "-inf".to_owned(), |after| after.at.as_micros().to_string());
    let (mut apart, mut offset) = (Vec::new(), 0);
    while apart.len() < limit {
        let count = ROWS_MAX.min(limit - apart.len());
        let arguments = [first.clone(), offset.to_string(), count.to_string(), BYTES_MAX.to_string()];
        let call = Call::new(&APART, keys.apart().into(), arguments.map(String::into_bytes).into());
        let found = pairs("apart", run(link, "apart", call).await?)?;
        if found.is_empty() {
            break;
        }
        offset += found.len();
        for (name, message) in found {
            let one = message_of(&name, &message).ok_or_else(|| odd("apart"))?;
            if after.is_none_or(|after| (one.at, &one.name) > (after.at, &after.name)) {
                apart.push(one);
            }
        }
    }
    Ok(apart)
}

fn message_of(name: &[u8], message: &[u8]) -> Option<Apart> {
    let (at, rest) = message.split_first_chunk()?;
    let (until, bytes) = rest.split_first_chunk()?;
    Some(Apart {
        name: std::str::from_utf8(name).ok()?.into(),
        at: Timestamp::from_micros(i64::from_be_bytes(*at)),
        until: Timestamp::from_micros(i64::from_be_bytes(*until)),
        bytes: bytes.to_vec(),
    })
}

pub(crate) async fn drop_apart(link: &Arc<Link<Checks>>, keys: &Keys, apart: &[Apart]) -> Result<()> {
    for part in apart.chunks(ROWS_MAX) {
        let names = part.iter().map(|one| one.name.as_bytes().to_vec()).collect();
        write(link, "drop_apart", Call::new(&DROP_APART, keys.apart().into(), names)).await?;
    }
    Ok(())
}

pub(crate) async fn write(link: &Arc<Link<Checks>>, operation: &'static str, call: Call) -> Result<Value> {
    link.call(operation, Nature::Writes, async move |mut connection| call.run(&mut connection).await).await
}

type Pair = (Vec<u8>, Vec<u8>);

fn pairs(operation: &'static str, reply: Value) -> Result<Vec<Pair>> {
    let mut values = array(operation, reply)?.into_iter();
    let mut pairs = Vec::new();
    while let (Some(one), Some(other)) = (values.next(), values.next()) {
        let (Value::BulkString(one), Value::BulkString(other)) = (one, other) else {
            return Err(odd(operation));
        };
        pairs.push((one, other));
    }
    Ok(pairs)
}
