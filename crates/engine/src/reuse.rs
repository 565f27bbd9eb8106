//! A key that came with another request: a log line and an entry in the audit trail.
//!
//! **Invariant:** no client can fill the trail. A node tells of one refusal per record and minute,
//! and of a bounded number of records; the others are only counted.

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use oncegate_core::audit::{Act, Entry};
use oncegate_core::identity::RecordId;
use oncegate_core::record::{Reason, Record};
use oncegate_store::Store;

use crate::engine::Engine;

/// So often one record is told of.
const PAUSE: Duration = Duration::from_mins(1);
/// So many records are told of in that time.
const RECORDS_MAX: usize = 256;

/// A refused request with the key of another one.
#[derive(Clone, Debug, Default)]
pub struct KeyReuse {
    /// Who sent it, where that is known.
    pub peer: Option<IpAddr>,
    /// The names of the members that differ from those of the first request, as far as known.
    pub members: Vec<String>,
}

/// Which records were told of in this minute.
#[derive(Debug, Default)]
pub(crate) struct ReuseLog(Mutex<Option<Window>>);

#[derive(Debug)]
struct Window {
    began: Instant,
    told: HashSet<RecordId>,
}

impl ReuseLog {
    /// Whether this refusal is told of.
    fn admits(&self, id: RecordId, now: Instant) -> bool {
        let mut window = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_over = |window: &mut Window| now.saturating_duration_since(window.began) >= PAUSE;
        if window.as_mut().is_none_or(is_over) {
            *window = Some(Window { began: now, told: HashSet::new() });
        }
        let told = window.as_mut().map(|window| &mut window.told);
        told.is_some_and(|told| told.len() < RECORDS_MAX && told.insert(id))
    }
}

impl<S: Store> Engine<S> {
    /// Logs that the key of `record` came with another request, and adds it to the audit trail,
    /// in a task of its own. Of one record at most once per minute.
    pub fn tell_reuse(&self, record: &Record, reuse: &KeyReuse) {
        if !self.0.reuse_log.admits(record.id, Instant::now()) {
            return;
        }
        let peer = reuse.peer.map_or_else(|| "an unknown client".to_owned(), |peer| peer.to_string());
        let scope = record.address.scope.short_digest();
        let members = reuse.members.join(", ");
        let id = record.id;
        tracing::warn!(
            %id, scope, peer, members, operation = %record.operation,
            "key reused for another request; refused"
        );
        let differing = if members.is_empty() { "not known".to_owned() } else { members };
        let detail = format!("scope {scope}; differing members: {differing}");
        let entry = Entry {
            source: Some(format!("client {peer}").into()),
            reason: Some(Reason::new("key_reused", detail)),
            ..Entry::about(record, Act::KeyReused, self.now().at, &self.0.who.node)
        };
        let engine = self.clone();
        self.behind(async move {
            if let Err(error) = engine.0.store.tell(&[entry]).await {
                tracing::warn!(%id, %error, "a reused key could not be added to the audit trail");
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(n: u16) -> RecordId {
        let mut bytes = [0; 16];
        bytes[..2].copy_from_slice(&n.to_be_bytes());
        RecordId::from_bytes(bytes)
    }

    #[test]
    fn each_record_once_per_minute_and_not_too_many() {
        let (log, start) = (ReuseLog::default(), Instant::now());
        assert!(log.admits(id(0), start));
        assert!(!log.admits(id(0), start + PAUSE / 2), "again");
        let admitted = (1..2_000).filter(|n| log.admits(id(*n), start + PAUSE / 2)).count();
        assert_eq!(admitted, RECORDS_MAX - 1);
        assert!(log.admits(id(0), start + PAUSE), "a minute later");
    }
}
