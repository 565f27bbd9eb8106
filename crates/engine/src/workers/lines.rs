//! Doubts that wait to be asked about, in a line for each operation.
//!
//! **Invariants:** a provider that hangs holds up its own operations, and nobody else's: each has so many places, and whoever fills the lines never waits
//! for a question. A line is short, and holds names, not rows: whoever's turn comes reads the row as it is then, and claims it.

use std::collections::{HashMap, VecDeque};
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::FutureExt as _;
use metrics::counter;
use oncegate_core::identity::{RecordId, Version};
use oncegate_core::record::Record;
use oncegate_core::scope::Operation;
use oncegate_store::{Store, StoreError};

use super::reconciler::Offer;
use super::{Pass, Worker, WorkerOptions};
use crate::engine::Engine;
use crate::meters::names;
use crate::probe::Probe;

/// The lines of one node, and whom it asks.
pub(super) struct Lines {
    probe: Arc<dyn Probe>,
    by_operation: Mutex<HashMap<Operation, Line>>,
}

#[derive(Default)]
struct Line {
    waiting: VecDeque<Waiting>,
    /// So many are asking, each one question after the other.
    asking: usize,
    /// There were more than it takes.
    has_more: bool,
}

/// A row as it was found due.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Waiting {
    id: RecordId,
    version: Version,
}

impl Lines {
    pub(super) fn new(probe: Arc<dyn Probe>) -> Self {
        Self { probe, by_operation: Mutex::default() }
    }

    /// Fills them with what is due.
    pub(super) async fn fill<S: Store>(
        &self,
        engine: &Engine<S>,
        options: &WorkerOptions,
    ) -> Result<Pass, Arc<StoreError>> {
        let limit = options.line_max();
        let full = self.full(limit);
        engine.find_doubts(options, &*self.probe, limit, full, |row| self.take(&row, limit)).await
    }

    /// One entry for each place that is free and has somebody waiting for it: [`Lines::ask`] is to be called for each.
    pub(super) fn free_places(&self, at_once: usize) -> Vec<Operation> {
        let mut free = Vec::new();
        for (operation, line) in &mut *self.lines() {
            let places = at_once.saturating_sub(line.asking).min(line.waiting.len());
            line.asking += places;
            free.extend(std::iter::repeat_n(operation.clone(), places));
        }
        free
    }

    /// Asks, one question after the other, until nobody of this operation waits any more. An error or a panic is counted, and ends one question.
    pub(super) async fn ask<S: Store>(&self, engine: &Engine<S>, operation: Operation) {
        while let Some(waiting) = self.next(engine, &operation) {
            let asked = AssertUnwindSafe(self.ask_about(engine, waiting)).catch_unwind().await;
            let words = match asked {
                Ok(Ok(())) => continue,
                Ok(Err(error)) => error.to_string(),
                Err(_) => "it panicked".to_owned(),
            };
            counter!(names::WORKER_ERROR, "worker" => Worker::Reconciler.name()).increment(1);
            tracing::warn!(record = %waiting.id, "a question failed, and others follow: {words}");
        }
    }

    async fn ask_about<S: Store>(&self, engine: &Engine<S>, waiting: Waiting) -> Result<(), Arc<StoreError>> {
        match engine.read(waiting.id).await? {
            Some(row) if row.version == waiting.version => {
                engine.ask_about(row, &*self.probe).await.map(drop)
            }
            // Settled meanwhile, or claimed by somebody else.
            _ => Ok(()),
        }
    }

    /// Operations whose line has no room. There may be more of them, so they are looked for again when a line has ended.
    fn full(&self, limit: usize) -> Vec<Operation> {
        let mut lines = self.lines();
        let full = lines.iter_mut().filter(|(_, line)| line.waiting.len() >= limit);
        full.map(|(operation, line)| {
            line.has_more = true;
            operation.clone()
        })
        .collect()
    }

    fn take(&self, row: &Record, limit: usize) -> Offer {
        let waiting = Waiting { id: row.id, version: row.version };
        let mut lines = self.lines();
        let line = lines.entry(row.operation.clone()).or_default();
        if line.waiting.contains(&waiting) {
            return Offer::WaitsAlready;
        }
        if line.waiting.len() >= limit {
            line.has_more = true;
            return Offer::LineFull;
        }
        line.waiting.push_back(waiting);
        Offer::Taken
    }

    /// Whose turn it is. Where nobody is left, the place is given up, and whoever fills the lines is told if there was more than this one took.
    fn next<S: Store>(&self, engine: &Engine<S>, operation: &Operation) -> Option<Waiting> {
        let mut lines = self.lines();
        let line = lines.get_mut(operation)?;
        if let Some(waiting) = line.waiting.pop_front() {
            return Some(waiting);
        }
        line.asking -= 1;
        if std::mem::take(&mut line.has_more) {
            engine.0.doubts.notify_one();
        }
        if line.asking == 0 {
            lines.remove(operation);
        }
        None
    }

    fn lines(&self) -> MutexGuard<'_, HashMap<Operation, Line>> {
        self.by_operation.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
