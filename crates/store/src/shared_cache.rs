//! Completed records that nodes share beside the store: speed, and no promise.
//!
//! **Invariant:** whatever it does (down, slow, emptied, restored from last week), a shared cache changes no decision. So an
//! entry says when the store showed it, and whoever reads it applies the same limits of age and expiry as to what it keeps
//! itself.

use std::sync::Arc;

use oncegate_core::identity::RecordId;
use oncegate_core::record::Record;
use oncegate_core::time::Timestamp;

use crate::signals::Pending;

/// Which rows a record is of: random, made with them. Two stores may share a cache; an answer of one is none of the other's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Realm([u8; 16]);

impl Realm {
    /// Wraps stored bytes.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// The bytes.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

/// A completed record, of which rows, and when the store was asked for it, or before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    /// Whose it is.
    pub realm: Realm,
    /// The record.
    pub record: Arc<Record>,
    /// By the store's clock.
    pub shown_at: Timestamp,
}

/// A cache of completed records that other nodes use too.
pub trait SharedCache: Send + Sync + 'static {
    /// The entry, if it is there and can be had quickly. Bounds its own time: a cache that is slow has nothing.
    fn get(&self, id: RecordId) -> Pending<'_, Option<Kept>>;

    /// Keeps an entry, some time soon, if that is possible. Returns at once.
    fn put(&self, kept: Kept);

    /// Lets go of an entry, some time soon, if that is possible. Returns at once.
    fn remove(&self, id: RecordId);
}
