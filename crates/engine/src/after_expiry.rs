//! Keys that run again after their row was removed: counted, logged, and told in the audit trail.
//!
//! A store remembers the ids of removed rows for a while. Each key without a row is looked up
//! there after it was granted, in batches, in the background.
//!
//! **Invariant:** nothing is decided here, and no request waits for it. The queue is bounded: keys
//! that do not fit, or cannot be looked up, are counted as such.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use metrics::counter;
use oncegate_core::audit::{Act, Entry, Subject};
use oncegate_core::identity::{Fence, RecordId, Token, Version};
use oncegate_core::record::{Reason, Record, StateKind};
use oncegate_core::scope::{Operation, Scope};
use oncegate_core::time::Timestamp;
use oncegate_store::{Store, StoreError};
use tokio::sync::Notify;
use tokio::task::AbortHandle;

use crate::engine::{Engine, Inner};
use crate::meters::names;
use crate::route::Route;

/// So many keys may wait to be looked up. A node that begins more than 16,384 keys in [`PAUSE`]
/// looks up only so many.
const WAITING_MAX: usize = 16_384;
/// So many ids in one question.
const BATCH: usize = 512;
/// Between two rounds, so that a round is a batch.
const PAUSE: Duration = Duration::from_millis(250);

/// Keys that were granted where no row was.
#[derive(Default)]
pub(crate) struct NewKeys {
    queue: Arc<Queue>,
    task: Mutex<Option<AbortHandle>>,
}

#[derive(Default)]
struct Queue {
    waiting: Mutex<Vec<NewKey>>,
    /// There is the first of a round.
    arrived: Notify,
    /// One round at a time.
    round: tokio::sync::Mutex<()>,
}

/// What is told of one that was used before. The record itself may be large, and is not kept.
struct NewKey {
    id: RecordId,
    at: Timestamp,
    scope: Scope,
    operation: Operation,
    life: Token,
    state: StateKind,
    version: Version,
    fence: Fence,
    attempt: u32,
    route: Route,
}

impl Queue {
    fn waiting(&self) -> MutexGuard<'_, Vec<NewKey>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for NewKeys {
    fn drop(&mut self) {
        if let Some(task) = self.task.get_mut().unwrap_or_else(PoisonError::into_inner).take() {
            task.abort();
        }
    }
}

impl<S: Store> Engine<S> {
    /// Has the key of this new record looked up, in the background.
    pub(crate) fn look_up_later(&self, record: &Record, route: &Route) {
        if self.0.options.removed_keys_for.is_zero() {
            return;
        }
        let key = NewKey {
            id: record.id,
            at: record.created_at,
            scope: record.address.scope.clone(),
            operation: record.operation.clone(),
            life: record.life,
            state: record.state.kind(),
            version: record.version,
            fence: record.fence,
            attempt: record.attempts,
            route: route.clone(),
        };
        let queue = &self.0.new_keys.queue;
        let mut waiting = queue.waiting();
        if waiting.len() >= WAITING_MAX {
            drop(waiting);
            counter!(names::AFTER_EXPIRY_UNCHECKED).increment(1);
            return;
        }
        let is_first = waiting.is_empty();
        waiting.push(key);
        drop(waiting);
        if is_first {
            queue.arrived.notify_one();
        }
    }

    /// Looks up the keys that wait for it, now. The engine does so by itself, soon after a key was
    /// granted.
    pub async fn look_up_new_keys(&self) {
        let queue = &self.0.new_keys.queue;
        let _round = queue.round.lock().await;
        let mut waiting = std::mem::take(&mut *queue.waiting()).into_iter();
        loop {
            let batch: Vec<_> = waiting.by_ref().take(BATCH).collect();
            if batch.is_empty() {
                return;
            }
            let count = batch.len() as u64;
            if let Err(error) = self.look_up(batch).await {
                counter!(names::AFTER_EXPIRY_UNCHECKED).increment(count);
                tracing::debug!(%error, count, "new keys could not be looked up among removed ones");
            }
        }
    }

    async fn look_up(&self, batch: Vec<NewKey>) -> Result<(), StoreError> {
        let ids: Vec<_> = batch.iter().map(|key| key.id).collect();
        let since = self.now().at.minus(self.0.options.removed_keys_for);
        let removed = self.0.store.removed(&ids, since).await?;
        let now = self.now();
        let mut told = Vec::new();
        for (key, day) in batch.iter().zip(removed) {
            let Some(day) = day else { continue };
            // Its own row may have been removed meanwhile.
            if now.may_be_past(key.at.plus(key.route.policy().retention)) {
                counter!(names::AFTER_EXPIRY_UNCHECKED).increment(1);
                continue;
            }
            key.route.meters().after_expiry.increment(1);
            log_after_expiry(key.id, &key.scope, &key.operation);
            told.push(key.entry(day, &self.0.who.node));
        }
        if told.is_empty() {
            return Ok(());
        }
        if let Err(error) = self.0.store.tell(&told).await {
            let count = told.len();
            tracing::warn!(%error, count, "keys that ran after expiry could not be added to the audit trail");
        }
        Ok(())
    }

    /// Looks up new keys for as long as the engine is there.
    pub(crate) fn start_looking_up(&self) {
        if self.0.options.removed_keys_for.is_zero() {
            return;
        }
        let new_keys = &self.0.new_keys;
        let always = look_up_always(Arc::downgrade(&self.0), Arc::clone(&new_keys.queue));
        let task = self.0.runtime.spawn(always).abort_handle();
        *new_keys.task.lock().unwrap_or_else(PoisonError::into_inner) = Some(task);
    }
}

async fn look_up_always<S: Store>(engine: Weak<Inner<S>>, queue: Arc<Queue>) {
    loop {
        queue.arrived.notified().await;
        let Some(inner) = engine.upgrade() else { return };
        let engine = Engine(inner);
        if !engine.is_restored() {
            engine.look_up_new_keys().await;
        }
        drop(engine);
        tokio::time::sleep(PAUSE).await;
    }
}

impl NewKey {
    fn entry(&self, removed: Timestamp, node: &str) -> Entry {
        let detail = match self.at.since(removed).as_secs() / Duration::from_hours(24).as_secs() {
            0 => "the record of an earlier life was removed on the same day".to_owned(),
            1 => "the record of an earlier life was removed on the day before".to_owned(),
            days => format!("the record of an earlier life was removed {days} days before"),
        };
        Entry {
            id: self.id,
            at: self.at,
            node: node.into(),
            act: Act::RanAfterExpiry,
            subject: Some(Subject {
                scope: self.scope.as_str().into(),
                operation: self.operation.as_str().into(),
            }),
            life: self.life,
            from: None,
            to: Some(self.state),
            version: self.version,
            fence: self.fence,
            attempt: self.attempt,
            source: None,
            reason: Some(Reason::new("removed", detail)),
            notices: Vec::new(),
        }
    }
}

/// Logs a key that runs again after its retention.
pub(crate) fn log_after_expiry(id: RecordId, scope: &Scope, operation: &Operation) {
    let scope = scope.short_digest();
    tracing::info!(%id, scope, %operation, "key used again after its retention; executed again");
}
