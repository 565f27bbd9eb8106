//! The audit trail of all records: a page of it as JSON, by time, scope, operation and act.
//!
//! **Invariant:** an entry has everything that is shown of it, so it is found when its record is
//! gone. Nothing secret is in one: no answer, no key of a client, no token of a lease.

use oncegate_core::audit::{Act, Comparison, Entry, Subject};
use oncegate_core::identity::RecordId;
use oncegate_core::scope::Scope;
use oncegate_core::time::Timestamp;
use oncegate_store::{EntryPlace, Store, StoreError, TimeSpan};
use serde_json::{Value, json};

use crate::story;

/// The longest page.
pub const ENTRIES_MAX: usize = 500;
/// So many entries are read for a page at most; past that it ends, and says where to go on.
const READ_MAX: usize = 10_000;

/// Which entries. Empty: all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuditFilter {
    /// From this moment on.
    pub since: Option<Timestamp>,
    /// Before this moment.
    pub until: Option<Timestamp>,
    /// Of this scope, as it is shown, or of this tenant.
    pub scope: Option<String>,
    /// Of this operation.
    pub operation: Option<String>,
    /// Of this act.
    pub act: Option<Act>,
}

impl AuditFilter {
    fn span(&self) -> TimeSpan {
        let TimeSpan { from, before } = TimeSpan::ALL;
        TimeSpan { from: self.since.unwrap_or(from), before: self.until.unwrap_or(before) }
    }

    const fn asks_for_subject(&self) -> bool {
        self.scope.is_some() || self.operation.is_some()
    }

    fn admits_subject(&self, subject: &Subject) -> bool {
        let is_scope = |wanted: &String| match Scope::from_stored(&subject.scope) {
            Ok(scope) => scope.to_string() == *wanted || scope.tenant_str() == wanted,
            Err(_) => *subject.scope == **wanted,
        };
        self.scope.as_ref().is_none_or(is_scope)
            && self.operation.as_ref().is_none_or(|wanted| *subject.operation == **wanted)
    }
}

/// The act of this name.
pub fn act_named(name: &str) -> Result<Act, String> {
    Act::ALL.into_iter().find(|act| act.name() == name).ok_or_else(|| {
        let names: Vec<_> = Act::ALL.iter().map(|act| act.name()).collect();
        format!("there is no act {name:?}; there are {}", names.join(", "))
    })
}

/// At most `limit` entries, oldest first, with where the next page begins. A page may have fewer,
/// or none, and say so all the same: entries that the filter leaves out are read, too.
///
/// Entries of earlier releases have no scope and operation. A filter by these asks their records;
/// entries whose record is gone are left out, and counted.
pub async fn page<S: Store>(
    store: &S,
    filter: &AuditFilter,
    mut after: Option<EntryPlace>,
    limit: usize,
) -> Result<Value, StoreError> {
    let (mut shown, mut unreadable, mut without_scope, mut read) = (Vec::new(), 0_u64, 0_u64, 0);
    loop {
        let part = store.entries(filter.span(), after, ENTRIES_MAX).await?;
        read += part.entries.len();
        let subjects = missing_subjects(store, filter, &part.entries).await?;
        let mut is_full = false;
        for (place, entry) in part.entries {
            if is_full {
                return Ok(page_of(&shown, unreadable, without_scope, after));
            }
            after = Some(place);
            let Some(mut entry) = entry else {
                unreadable += 1;
                continue;
            };
            if filter.act.is_some_and(|act| act != entry.act) {
                continue;
            }
            if filter.asks_for_subject() {
                let known = || subjects.iter().find(|(id, _)| *id == entry.id);
                let subject = entry.subject.take().or_else(|| known().map(|(_, subject)| subject.clone()));
                let Some(subject) = subject else {
                    without_scope += u64::from(entry.id != Comparison::ID);
                    continue;
                };
                if !filter.admits_subject(&subject) {
                    continue;
                }
                entry.subject = Some(subject);
            }
            shown.push(json_of(&entry));
            is_full = shown.len() >= limit;
        }
        if part.next.is_none() || is_full || read >= READ_MAX {
            return Ok(page_of(&shown, unreadable, without_scope, part.next));
        }
        after = part.next;
    }
}

fn page_of(entries: &[Value], unreadable: u64, without_scope: u64, next: Option<EntryPlace>) -> Value {
    json!({
        "entries": entries,
        "unreadable": unreadable,
        "without_scope": without_scope,
        "next": next.map(|next| next.to_string()),
    })
}

/// Of entries that an earlier release wrote, what their records say, where these are still there.
async fn missing_subjects<S: Store>(
    store: &S,
    filter: &AuditFilter,
    entries: &[(EntryPlace, Option<Entry>)],
) -> Result<Vec<(RecordId, Subject)>, StoreError> {
    if !filter.asks_for_subject() {
        return Ok(Vec::new());
    }
    let old = entries.iter().filter_map(|(_, entry)| entry.as_ref()).filter(|entry| entry.subject.is_none());
    let mut ids: Vec<_> = old.map(|entry| entry.id).filter(|id| *id != Comparison::ID).collect();
    ids.sort_unstable();
    ids.dedup();
    if ids.is_empty() {
        return Ok(Vec::new());
    }
    // A row that cannot be read says nothing of its scope.
    let rows = store.read(&ids).await?.into_iter().filter_map(|row| row.ok().flatten());
    Ok(rows.map(|record| (record.id, Subject::of(&record))).collect())
}

fn json_of(entry: &Entry) -> Value {
    let mut shown = story::entry(entry);
    shown["id"] = if entry.id == Comparison::ID { Value::Null } else { entry.id.to_string().into() };
    shown
}
