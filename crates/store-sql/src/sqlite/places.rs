//! Where recently reserved rows are, so that settling them need not walk the key index again.
//!
//! **Invariant:** a place is a hint. The statement that uses it names the id and the version too, so a wrong one changes
//! nothing and the index is asked instead.

use std::collections::HashMap;

use oncegate_core::identity::RecordId;

/// More than any writer has in flight; past it the hints are dropped, not the rows.
const PLACES_MAX: usize = 1 << 16;

/// The places of rows that were inserted and not settled yet.
#[derive(Debug, Default)]
pub(super) struct Places(HashMap<RecordId, i64>);

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
