//! How far a worker has looked through what is due, where some of it is not for it: such rows stay due, and a bounded pass must get behind them.
//!
//! **Invariant:** a row that was met is not met again before all the others were; one that stays due is met in each round.

use std::collections::HashSet;

use oncegate_core::identity::RecordId;
use oncegate_core::record::Record;
use oncegate_core::scope::Operation;
use oncegate_core::time::Timestamp;
use oncegate_store::{Due, Moments, Store, StoreError};

/// All before this moment, and these of this moment.
#[derive(Debug)]
pub(crate) struct Looked {
    until: Timestamp,
    met: HashSet<RecordId>,
}

/// What comes next.
pub(super) struct Ahead {
    pub(super) rows: Vec<Record>,
    /// There is no more behind them.
    pub(super) is_end: bool,
    /// The store has skipped all other rows that were due before this moment.
    pub(super) skipped_until: Option<Timestamp>,
}

impl Default for Looked {
    fn default() -> Self {
        Self { until: Timestamp::FIRST, met: HashSet::new() }
    }
}

impl Looked {
    /// The next that are due by then, the longest first: none of those that were met before, and so many at least, if there are.
    pub(super) async fn next<S: Store>(
        &self,
        store: &S,
        what: Due,
        by: Timestamp,
        count: usize,
    ) -> Result<Ahead, StoreError> {
        let moments = Moments { from: self.until, by };
        // Those that are met again must not fill the scan.
        let limit = count + self.met.len();
        let scan = store.due_in(what, moments, limit).await?;
        let rows = self.not_met(scan.records);
        Ok(Ahead { is_end: !scan.is_cut || rows.is_empty(), rows, skipped_until: None })
    }

    /// Whether the next row is the one that has been due for longest.
    pub(super) fn is_start(&self) -> bool {
        self.met.is_empty()
    }

    /// As [`Looked::next`], for doubts, without those of some operations: they do not hide others.
    pub(super) async fn next_doubts<S: Store>(
        &self,
        store: &S,
        except: &[Operation],
        by: Timestamp,
        count: usize,
    ) -> Result<Ahead, StoreError> {
        if except.is_empty() {
            return self.next(store, Due::Doubted, by, count).await;
        }
        let moments = Moments { from: self.until, by };
        let scan = store.doubted_except(except, moments, count + self.met.len()).await?;
        let rows = self.not_met(scan.records);
        Ok(Ahead { is_end: !scan.is_cut, rows, skipped_until: scan.skipped_until })
    }

    fn not_met(&self, rows: Vec<Record>) -> Vec<Record> {
        rows.into_iter().filter(|row| !self.met.contains(&row.id)).collect()
    }

    /// The next rows are those that are due from this moment on.
    pub(super) fn skip_to(&mut self, moment: Timestamp) {
        if moment > self.until {
            *self = Self { until: moment, met: HashSet::new() };
        }
    }

    /// This one was met.
    pub(super) fn at(&mut self, what: Due, row: &Record) {
        self.skip_to(what.moment(row).unwrap_or(self.until));
        self.met.insert(row.id);
    }
}
