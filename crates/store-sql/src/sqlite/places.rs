//! Where recently reserved rows are, so that settling them need not walk the key index again.
//!
//! **Invariant:** a place is a hint. The statement that uses it names the id and the version too, so a wrong one changes
//! nothing and the index is asked instead.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use oncegate_core::identity::RecordId;

/// More than any writer has in flight; past it the hints are dropped, not the rows.
const PLACES_MAX: usize = 1 << 16;

/// The places of rows that were inserted and not settled yet.
#[derive(Debug, Default)]
pub(super) struct Places(HashMap<RecordId, i64, BuildHasherDefault<Head>>);

impl Places {
    pub(super) fn remember(&mut self, id: RecordId, seq: i64) {
        if self.0.len() >= PLACES_MAX {
            self.0.clear();
        }
        self.0.insert(id, seq);
    }

    /// Where it is, as far as is known; asked once.
    pub(super) fn forget(&mut self, id: RecordId) -> Option<i64> {
        self.0.remove(&id)
    }
}

/// An id is a digest already: eight of its bytes are as good a hash as any.
#[derive(Default)]
struct Head(u64);

impl Hasher for Head {
    fn write(&mut self, bytes: &[u8]) {
        if let Some(head) = bytes.first_chunk() {
            self.0 = u64::from_le_bytes(*head);
        }
    }

    /// The length of the array, which is the same for all.
    fn write_usize(&mut self, _: usize) {}

    fn finish(&self) -> u64 {
        self.0
    }
}
