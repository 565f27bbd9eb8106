//! What can be asked of a store besides single rows.

use oncegate_core::record::{Record, State, StateKind};
use oncegate_core::time::Timestamp;

/// Which moment has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Due {
    /// `pending`, and its `run_after` has come.
    Pending,
    /// `in_progress`, its lease has ended, and the sweeper can do something about it.
    Lapsed,
    /// `in_progress` under `resume`, its lease has ended, and its request is kept: the completer can go on with it.
    Resumable,
    /// `unknown`, not parked, and its `reconcile_after` has come.
    Doubted,
    /// `completed`, `failed_retryable`, `expired` or `pending`, and its `expires_at` has come.
    Expired,
}

impl Due {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Pending, Self::Lapsed, Self::Resumable, Self::Doubted, Self::Expired];

    /// When `record` is due in this sense, if it ever is. Stores may index this any way they like, and must agree with it.
    #[must_use]
    pub fn moment(self, record: &Record) -> Option<Timestamp> {
        match (self, record.state.kind()) {
            (Self::Lapsed, StateKind::InProgress) if !record.is_resumable() => record.due_at(),
            (Self::Resumable, StateKind::InProgress) if record.is_resumable() => record.due_at(),
            (Self::Pending, StateKind::Pending) | (Self::Doubted, StateKind::Unknown) => record.due_at(),
            (
                Self::Expired,
                StateKind::Completed | StateKind::FailedRetryable | StateKind::Expired | StateKind::Pending,
            ) => record.expires_at,
            _ => None,
        }
    }
}

/// From when until when a moment counts, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moments {
    /// What is due earlier is left out: whoever goes over more than one scan shows begins the next one here.
    pub from: Timestamp,
    /// The present, usually.
    pub by: Timestamp,
}

impl Moments {
    /// All that have come by then.
    #[must_use]
    pub const fn by(by: Timestamp) -> Self {
        Self { from: Timestamp::FIRST, by }
    }

    /// Whether this is one of them.
    #[must_use]
    pub fn contain(&self, moment: Timestamp) -> bool {
        (self.from..=self.by).contains(&moment)
    }
}

/// What a scan found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scan {
    /// The rows.
    pub records: Vec<Record>,
    /// How many more there were that cannot be read. They hinder nobody: neither their number nor their size counts against a limit,
    /// up to thousands of them. But somebody should look.
    pub unreadable: usize,
    /// It stopped before it had come to the end: at its limit, at [`SCAN_BYTES_MAX`], or because its time was over. The next one may find
    /// more; how many rows there are does not say so.
    pub is_cut: bool,
    /// It stopped because it had skipped too many rows of excepted operations. Every row that was due
    /// before this moment was looked at, so the next scan may begin here.
    pub skipped_until: Option<Timestamp>,
}

/// A scan stops early once the answers it has read are this large: a reaper has no use for more at once.
pub const SCAN_BYTES_MAX: usize = 8 << 20;

/// How much of [`SCAN_BYTES_MAX`] a record takes.
#[must_use]
pub fn answer_bytes(record: &Record) -> usize {
    match &record.state {
        State::Completed(answer) => answer.size_hint(),
        _ => 0,
    }
}

/// Which rows to show. Empty: all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// In this state.
    pub state: Option<StateKind>,
    /// Parked, or not.
    pub parked: Option<bool>,
    /// Of this scope, as its text.
    pub scope: Option<String>,
    /// With this key.
    pub key: Option<String>,
    /// Of this operation.
    pub operation: Option<String>,
    /// What the provider calls by this reference. Quick, however many rows there are: webhooks name records so.
    pub reference: Option<String>,
    /// Whose life began at this moment or later.
    pub created_from: Option<Timestamp>,
    /// Whose life began before this moment.
    pub created_before: Option<Timestamp>,
}

impl Filter {
    /// Whether it lets this row through. Stores may ask their indexes, and must agree with it.
    #[must_use]
    pub fn admits(&self, record: &Record) -> bool {
        let Self { state, parked, scope, key, operation, reference, created_from, created_before } = self;
        let is_parked = matches!(&record.state, State::Unknown(doubt) if doubt.parked);
        state.is_none_or(|state| record.state.kind() == state)
            && parked.is_none_or(|parked| is_parked == parked)
            && scope.as_ref().is_none_or(|scope| record.address.scope.as_str() == scope)
            && key.as_ref().is_none_or(|key| record.address.key.as_str() == key)
            && operation.as_ref().is_none_or(|operation| record.operation.as_str() == operation)
            && reference
                .as_deref()
                .is_none_or(|reference| record.provider_reference.as_deref() == Some(reference))
            && created_from.is_none_or(|from| record.created_at >= from)
            && created_before.is_none_or(|before| record.created_at < before)
    }
}

/// Where a page ended; opaque, made by the store that reads it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cursor(String);

impl Cursor {
    /// Wraps a store's own text.
    #[must_use]
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A page of rows, newest first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// The rows.
    pub records: Vec<Record>,
    /// How many more there were that cannot be read.
    pub unreadable: usize,
    /// Where the next page begins; `None`: there is none.
    pub next: Option<Cursor>,
}

/// How many rows are in each state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Accepted; nobody runs it yet.
    pub pending: u64,
    /// Leased.
    pub in_progress: u64,
    /// Over.
    pub completed: u64,
    /// Established: no effect.
    pub failed_retryable: u64,
    /// May have had its effect, parked or not.
    pub unknown: u64,
    /// Of these, before an operator.
    pub parked: u64,
    /// Tombstones.
    pub expired: u64,
}

impl Counts {
    /// The place of one state's count.
    pub const fn of_state(&mut self, state: StateKind) -> &mut u64 {
        match state {
            StateKind::Pending => &mut self.pending,
            StateKind::InProgress => &mut self.in_progress,
            StateKind::Completed => &mut self.completed,
            StateKind::FailedRetryable => &mut self.failed_retryable,
            StateKind::Unknown => &mut self.unknown,
            StateKind::Expired => &mut self.expired,
        }
    }
}
