//! Watermarks and quarantines. Quarantines are a hash by id, and the moments of their releases another.

use std::collections::HashMap;
use std::sync::Arc;

use oncegate_core::time::Timestamp;
use oncegate_store::history::{Beat, RESTORED, WATERMARK_AGE_MAX, Watermark};
use oncegate_store::{Effect, History, Kind, Quarantine, Result, StoreError};
use redis::Value;

use crate::error::{Nature, of_call};
use crate::keys::Keys;
use crate::link::{Connection, Link, LookOver};
use crate::script::{BEAT, Call, RELEASE};
use crate::settings::Settings;

/// What a node of the release before finds in place of its counter.
const TAKEN_OVER: &str = "a newer release has taken over: restart this node with it";

/// What each new connection is looked over by: the server's settings, and whether it still has what this handle wrote.
#[derive(Debug)]
pub(crate) struct Checks {
    pub(crate) settings: Settings,
    pub(crate) watermark: Watermark,
    pub(crate) keys: Keys,
}

impl LookOver for Checks {
    async fn look_over(&self, connection: &mut Connection) -> Result<()> {
        self.settings.look_over(connection).await?;
        let Some(expected) = self.watermark.expected() else { return Ok(()) };
        let [marks, _] = self.keys.watermarks();
        let found: Option<String> = redis::cmd("HGET")
            .arg(marks)
            .arg(expected.node)
            .query_async(connection)
            .await
            .map_err(|error| of_call(error, "open", Nature::Reads))?;
        let found = found.and_then(|mark| mark.parse().ok());
        match self.watermark.judge(expected, found) {
            History::Intact => Ok(()),
            History::Lost => Err(StoreError::new(Kind::Restored, Effect::None, "open").because(RESTORED)),
        }
    }
}

pub(crate) async fn check(link: &Arc<Link<Checks>>, keys: &Keys) -> Result<History> {
    let watermark = &link.look_over().watermark;
    let Some(beat) = watermark.beat() else { return Ok(History::Lost) };
    let Beat { node, last, next } = beat;
    let last = last.map(|last| last.to_string()).unwrap_or_default();
    let age_max = WATERMARK_AGE_MAX.as_secs().to_string();
    let arguments = [node.to_string(), last, next.to_string(), age_max, TAKEN_OVER.to_owned()];
    let [marks, ages] = keys.watermarks();
    let names = vec![marks, ages, keys.former_arrival(), keys.arrival()];
    let call = Call::new(&BEAT, names, arguments.map(String::into_bytes).into());
    let run = async move |mut connection| call.run(&mut connection).await;
    let answered = link.call("check_history", Nature::Writes, run).await?;
    Ok(watermark.took_effect(beat, answered == Value::Int(1)))
}

pub(crate) async fn leave(link: &Arc<Link<Checks>>, keys: &Keys) -> Result<()> {
    let Some(beat) = link.look_over().watermark.beat() else { return Ok(()) };
    let [marks, ages] = keys.watermarks();
    let leave = async move |mut connection| {
        let mut both = redis::pipe();
        both.atomic().hdel(marks, beat.node).ignore().zrem(ages, beat.node).ignore();
        both.query_async::<()>(&mut connection).await
    };
    link.call("leave", Nature::Writes, leave).await
}

pub(crate) async fn declare(link: &Arc<Link<Checks>>, keys: &Keys, new: &Quarantine) -> Result<()> {
    let [quarantines, releases] = keys.quarantines();
    let (id, bytes, released_at) = (new.id.to_string(), encode(new), new.released_at);
    let declare = async move |mut connection| {
        let mut both = redis::pipe();
        both.atomic().hset_nx(quarantines, &id, bytes).ignore();
        if let Some(at) = released_at {
            both.hset_nx(releases, &id, at.as_micros()).ignore();
        }
        both.query_async::<()>(&mut connection).await
    };
    link.call("declare_quarantine", Nature::Writes, declare).await
}

pub(crate) async fn quarantines(link: &Arc<Link<Checks>>, keys: &Keys) -> Result<Vec<Quarantine>> {
    type Found = (HashMap<String, Vec<u8>>, HashMap<String, i64>);
    let [windows, releases] = keys.quarantines();
    let read = async move |mut connection| {
        let mut both = redis::pipe();
        both.atomic().hgetall(windows).hgetall(releases);
        both.query_async::<Found>(&mut connection).await
    };
    let (found, moments) = link.call("quarantines", Nature::Reads, read).await?;
    let malformed =
        || StoreError::new(Kind::Unreadable, Effect::None, "quarantines").because("malformed quarantine");
    let mut all = Vec::with_capacity(found.len());
    for (id, bytes) in found {
        let released_at = moments.get(&id).copied().map(Timestamp::from_micros);
        all.push(decode(id, &bytes, released_at).ok_or_else(malformed)?);
    }
    all.sort_by(|one, other| (one.declared_at, &one.id).cmp(&(other.declared_at, &other.id)));
    Ok(all)
}

pub(crate) async fn release(link: &Arc<Link<Checks>>, keys: &Keys, id: &str, at: Timestamp) -> Result<bool> {
    let arguments = vec![id.as_bytes().to_vec(), at.as_micros().to_string().into_bytes()];
    let call = Call::new(&RELEASE, keys.quarantines().into(), arguments);
    let run = async move |mut connection| call.run(&mut connection).await;
    Ok(link.call("release_quarantine", Nature::Writes, run).await? == Value::Int(1))
}

/// Three moments, then the reason.
fn encode(quarantine: &Quarantine) -> Vec<u8> {
    let moments = [quarantine.since, quarantine.until, quarantine.declared_at];
    let mut bytes = moments.map(|moment| moment.as_micros().to_be_bytes()).concat();
    bytes.extend_from_slice(quarantine.reason.as_bytes());
    bytes
}

fn decode(id: String, bytes: &[u8], released_at: Option<Timestamp>) -> Option<Quarantine> {
    let (since, rest) = bytes.split_first_chunk()?;
    let (until, rest) = rest.split_first_chunk()?;
    let (declared_at, reason) = rest.split_first_chunk()?;
    let moment = |bytes: &[u8; 8]| Timestamp::from_micros(i64::from_be_bytes(*bytes));
    Some(Quarantine {
        id: id.into(),
        since: moment(since),
        until: moment(until),
        declared_at: moment(declared_at),
        released_at,
        reason: std::str::from_utf8(reason).ok()?.into(),
    })
}
