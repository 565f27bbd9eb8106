//! The conditional writes: all that ever changes a row.

use std::sync::Arc;
use std::time::Duration;

use oncegate_core::audit::Entry;
use oncegate_core::decide::{Next, Step};
use oncegate_core::identity::{RecordId, Version};
use oncegate_core::record::{Record, StateKind};

/// One conditional write, and what is told of it if it is applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    /// What is written, on which condition.
    pub change: Change,
    /// Kept in the audit trail together with the change, or not at all: if the change is refused, nothing is told.
    pub entry: Option<Arc<Entry>>,
}

/// One conditional change of a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
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
        /// Whether the id is remembered for a while, see
        /// [`Store::removed`](crate::Store::removed).
        is_remembered: bool,
    },
}

impl Write {
    /// See [`Change::Insert`].
    #[must_use]
    pub const fn insert(record: Arc<Record>) -> Self {
        Self { change: Change::Insert(record), entry: None }
    }

    /// See [`Change::Swap`].
    #[must_use]
    pub const fn swap(expect: Version, record: Arc<Record>) -> Self {
        Self { change: Change::Swap { expect, record }, entry: None }
    }

    /// See [`Change::Remove`].
    #[must_use]
    pub const fn remove(id: RecordId, expect: Version, grace: Duration) -> Self {
        let is_remembered = false;
        Self { change: Change::Remove { id, expect, grace, is_remembered }, entry: None }
    }

    /// The same removal, and the id is remembered with it.
    #[must_use]
    pub fn remembered(mut self) -> Self {
        if let Change::Remove { is_remembered, .. } = &mut self.change {
            *is_remembered = true;
        }
        self
    }

    /// The same write, and this in the audit trail if it is applied.
    #[must_use]
    pub fn telling(self, entry: Option<Entry>) -> Self {
        Self { entry: entry.map(Arc::new), ..self }
    }

    /// What to write so that `step`, decided over `current`, takes effect; `None` if it changes nothing.
    #[must_use]
    pub fn of_step(current: Option<&Record>, step: &Step) -> Option<Self> {
        match (&step.next, current) {
            (Next::Keep, _) | (Next::Remove { .. }, None) => None,
            (Next::Put(record), None) => Some(Self::insert(Arc::clone(record))),
            (Next::Put(record), Some(current)) => Some(Self::swap(current.version, Arc::clone(record))),
            (Next::Remove { grace }, Some(current)) => {
                let removal = Self::remove(current.id, current.version, *grace);
                Some(if may_have_run(current) { removal.remembered() } else { removal })
            }
        }
    }

    /// The row that it is about.
    #[must_use]
    pub fn id(&self) -> RecordId {
        match &self.change {
            Change::Insert(record) | Change::Swap { record, .. } => record.id,
            Change::Remove { id, .. } => *id,
        }
    }
}

/// Whether a settled record's key has run. What was released, or was never begun, has not: if the
/// key is used again, nothing runs a second time.
fn may_have_run(record: &Record) -> bool {
    record.attempts > 0 && record.state.kind() != StateKind::FailedRetryable
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
