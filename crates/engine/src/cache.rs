//! Completed records, replayed without asking the store.
//!
//! **Invariants:** only completed records, whose answers never change; none within 2 ε of its expiry, which comes from the row
//! and is checked on every hit; none longer than the age limit after the store showed it, so that a forgotten answer is
//! gone everywhere when its tombstone ends. Bounded by bytes. A record owns all its bytes: nothing of a request's buffers
//! is kept alive by it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use oncegate_core::identity::RecordId;
use oncegate_core::record::{Record, State};
use oncegate_core::time::{Now, Timestamp};
use oncegate_store::shared_cache::Kept;
use quick_cache::Weighter;
use quick_cache::sync::Cache as QuickCache;

/// What an entry takes besides its texts and its answer: the record's fields (520 bytes), those of the answer and of two or three headers, the cache's own
/// book-keeping, and what an allocator rounds up, of a dozen pieces. (A million fresh keys with 200 bytes of answer: 1.3 times what was counted without.)
const ENTRY_BYTES: usize = 960;
/// Independent counters of what was taken out.
const EPOCHS: usize = 64;

pub(crate) struct Cache {
    entries: QuickCache<RecordId, Arc<Entry>, Bytes>,
    age_max: Duration,
    /// Held while something is put in or taken out: between the two nobody sees what was taken out.
    epochs: [Mutex<u64>; EPOCHS],
}

struct Entry {
    record: Arc<Record>,
    /// When the store was asked for it, or before.
    shown_at: Timestamp,
}

/// A completed record out of the cache.
pub(crate) struct Hit(Arc<Entry>);

impl Hit {
    pub(crate) fn record(&self) -> &Arc<Record> {
        &self.0.record
    }
}

/// What must not have changed between asking the store and keeping what it said.
#[derive(Clone, Copy)]
pub(crate) struct Epoch {
    value: u64,
    asked_at: Timestamp,
}

impl Epoch {
    /// When the store was asked, or before.
    pub(crate) const fn asked_at(self) -> Timestamp {
        self.asked_at
    }
}

#[derive(Clone)]
struct Bytes;

impl Weighter<RecordId, Arc<Entry>> for Bytes {
    fn weight(&self, _: &RecordId, entry: &Arc<Entry>) -> u64 {
        let record = &entry.record;
        let answer = match &record.state {
            State::Completed(answer) => answer.size_hint(),
            _ => 0,
        };
        let texts = record.address.scope.as_str().len()
            + record.address.key.as_str().len()
            + record.operation.as_str().len();
        (ENTRY_BYTES + texts + answer) as u64
    }
}

impl Cache {
    pub(crate) fn new(bytes: u64, age_max: Duration) -> Self {
        let items = usize::try_from(bytes / 1024).unwrap_or(usize::MAX).clamp(16, 1 << 20);
        Self {
            entries: QuickCache::with_weighter(items, bytes, Bytes),
            age_max,
            epochs: std::array::from_fn(|_| Mutex::default()),
        }
    }

    /// Before asking the store for a row that may be kept.
    pub(crate) fn epoch(&self, id: RecordId, now: Now) -> Epoch {
        Epoch { value: *self.counter(id), asked_at: now.at.minus(now.error) }
    }

    /// Keeps a row that the store has shown or acknowledged, if it is one to keep; says whether it is.
    pub(crate) fn keep(&self, record: &Arc<Record>, epoch: Epoch, now: Now) -> bool {
        is_replayable(record, now)
            && self.insert(Entry { record: Arc::clone(record), shown_at: epoch.asked_at }, epoch)
    }

    /// Keeps what another node has kept, under the same limits: its age counts from when the store showed it there.
    pub(crate) fn adopt(&self, kept: Kept, epoch: Epoch, now: Now) -> bool {
        let Kept { record, shown_at, .. } = kept;
        // An entry from the future is as wrong as one from the past.
        let is_fit =
            self.is_young(shown_at, now) && shown_at <= now.at.plus(now.error) && is_replayable(&record, now);
        is_fit && self.insert(Entry { record, shown_at }, epoch)
    }

    fn insert(&self, entry: Entry, epoch: Epoch) -> bool {
        let id = entry.record.id;
        let entry = Arc::new(entry);
        let counter = self.counter(id);
        // Otherwise it was taken out meanwhile, and this may be what was.
        let is_current = *counter == epoch.value;
        if is_current {
            self.entries.insert(id, entry);
        }
        is_current
    }

    /// The completed record with this id, if it is here and may be replayed now.
    pub(crate) fn get(&self, id: RecordId, now: Now) -> Option<Hit> {
        let entry = self.entries.get(&id)?;
        if self.is_young(entry.shown_at, now) && is_replayable(&entry.record, now) {
            return Some(Hit(entry));
        }
        self.entries.remove(&id);
        None
    }

    fn is_young(&self, shown_at: Timestamp, now: Now) -> bool {
        now.at.plus(now.error).since(shown_at) < self.age_max
    }

    /// Takes out what the store no longer says.
    pub(crate) fn drop_record(&self, id: RecordId) {
        let mut counter = self.counter(id);
        *counter += 1;
        self.entries.remove(&id);
    }

    /// Takes everything out.
    pub(crate) fn clear(&self) {
        for epoch in &self.epochs {
            *epoch.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        }
        self.entries.clear();
    }

    /// What is in it, in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.entries.weight()
    }

    fn counter(&self, id: RecordId) -> MutexGuard<'_, u64> {
        let epoch = &self.epochs[usize::from(id.as_bytes()[0]) % EPOCHS];
        epoch.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Completed, and not within 2 ε of its end: another node may already have begun a new life.
fn is_replayable(record: &Record, now: Now) -> bool {
    let guarded = Now { at: now.at, error: now.error * 2 };
    matches!(record.state, State::Completed(_))
        && record.expires_at.is_some_and(|end| !guarded.may_be_past(end))
}
