//! The conditional writes: all that ever changes a row.

use std::sync::Arc;
use std::time::Duration;

use oncegate_core::decide::{Next, Step};
use oncegate_core::identity::{RecordId, Version};
use oncegate_core::record::Record;

/// One conditional write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Write {
    /// Insert if there is no row with this id.
    Insert(Arc<Record>),
    /// Replace the row if it still has this version.
    ///
    /// A store may rely on what is frozen: within a life (equal `life` and `created_at`) operation, fingerprint and terms
    /// never change.
    Swap {
        /// The version that was decided upon.
        expect: Version,
        /// The next row.
        record: Arc<Record>,
    },
    /// Remove the row if it still has this version, is settled, and is past retention by the store's own clock.
    Remove {
        /// Which row.
        id: RecordId,
        /// The version that was decided upon.
        expect: Version,
        /// How much longer than its retention a row is left alone.
        grace: Duration,
    },
}

impl Write {
    /// What to write so that `step`, decided over `current`, takes effect; `None` if it changes nothing.
    #[must_use]
    pub fn of_step(current: Option<&Record>, step: &Step) -> Option<Self> {
        match (&step.next, current) {
            (Next::Keep, _) | (Next::Remove { .. }, None) => None,
            (Next::Put(record), None) => Some(Self::Insert(record.clone())),
            (Next::Put(record), Some(current)) => {
                Some(Self::Swap { expect: current.version, record: record.clone() })
            }
            (Next::Remove { grace }, Some(current)) => {
                Some(Self::Remove { id: current.id, expect: current.version, grace: *grace })
            }
        }
    }

    /// The row that it is about.
    #[must_use]
    pub fn id(&self) -> RecordId {
        match self {
            Self::Insert(record) | Self::Swap { record, .. } => record.id,
            Self::Remove { id, .. } => *id,
        }
    }
}

/// What became of one write.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum Outcome {
    /// It took effect, durably.
    Applied,
    /// Its condition did not hold; nothing changed.
    Refused {
        /// The row as it is; `None` if there is none.
        current: Option<Arc<Record>>,
    },
    /// There is a row, and it cannot be read; nothing changed.
    Unreadable {
        /// What is wrong with it.
        problem: String,
    },
}
