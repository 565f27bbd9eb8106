//! Signals to and from the other nodes of a store: coalesced, off the path of any write, and without any promise.
//!
//! What depends on them is only how soon: a waiter that hears nothing looks by itself (`wait_poll`), and a forgotten answer
//! that is still in a cache goes with its age (`cache_age_max`), its key being shut until then.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use oncegate_store::Store;
use oncegate_store::signals::{Heard, Signal, Signals};
use tokio::sync::Notify;
use tokio::task::AbortHandle;

use crate::engine::Inner;

/// So long signals are gathered before they are told together.
const GATHERED: Duration = Duration::from_millis(5);
/// After a failure, what must be told is told again after this.
const AGAIN: Duration = Duration::from_millis(500);
/// So many may wait to be told; past that the rest is left to polling.
const WAITING_MAX: usize = 100_000;

/// Tells the other nodes, if the store has a way to.
#[derive(Default)]
pub(crate) struct Herald {
    waiting: Option<Arc<Waiting>>,
    tasks: Mutex<Vec<AbortHandle>>,
}

#[derive(Default)]
struct Waiting {
    signals: Mutex<Queue>,
    some: Notify,
    told: Notify,
}

#[derive(Default)]
struct Queue {
    signals: Vec<Signal>,
    /// Some were taken out and are being told.
    is_telling: bool,
}

impl Herald {
    pub(crate) fn of_store<S: Store>(store: &S) -> (Self, Option<Arc<dyn Signals>>) {
        let channel = store.signals();
        let waiting = channel.as_ref().map(|_| Arc::default());
        (Self { waiting, tasks: Mutex::default() }, channel)
    }

    /// Some time soon, together with others.
    pub(crate) fn tell(&self, signal: Signal) {
        let Some(waiting) = &self.waiting else { return };
        let mut queue = waiting.queue();
        if queue.signals.len() < WAITING_MAX || matches!(signal, Signal::Forgotten(_)) {
            queue.signals.push(signal);
        }
        drop(queue);
        waiting.some.notify_one();
    }

    /// Returns when all that was to be told is told; says whether there is anybody to tell.
    pub(crate) async fn told(&self) -> bool {
        let Some(waiting) = &self.waiting else { return false };
        loop {
            let mut told = std::pin::pin!(waiting.told.notified());
            told.as_mut().enable();
            let is_told = {
                let queue = waiting.queue();
                queue.signals.is_empty() && !queue.is_telling
            };
            if is_told {
                return true;
            }
            told.await;
        }
    }

    /// Begins to tell and to hear, until it is dropped.
    pub(crate) fn start<S: Store>(&self, inner: &Arc<Inner<S>>, channel: &Arc<dyn Signals>) {
        let Some(waiting) = &self.waiting else { return };
        let telling = inner.runtime.spawn(tell(Arc::clone(waiting), Arc::clone(channel)));
        let hearing = inner.runtime.spawn(hear(Arc::downgrade(inner), Arc::clone(channel)));
        let handles = [telling.abort_handle(), hearing.abort_handle()];
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner).extend(handles);
    }
}

impl Waiting {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.signals.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self) -> Vec<Signal> {
        let mut queue = self.queue();
        queue.is_telling = true;
        std::mem::take(&mut queue.signals)
    }

    /// With what must be told again.
    fn has_told(&self, again: impl Iterator<Item = Signal>) {
        let mut queue = self.queue();
        queue.is_telling = false;
        queue.signals.extend(again);
        drop(queue);
        self.told.notify_waiters();
    }
}

impl Drop for Herald {
    fn drop(&mut self) {
        for task in self.tasks.get_mut().unwrap_or_else(PoisonError::into_inner) {
            task.abort();
        }
    }
}

async fn tell(waiting: Arc<Waiting>, channel: Arc<dyn Signals>) {
    loop {
        waiting.some.notified().await;
        tokio::time::sleep(GATHERED).await;
        let signals = waiting.take();
        if signals.is_empty() {
            waiting.has_told(std::iter::empty());
            continue;
        }
        match channel.tell(&signals).await {
            Ok(()) => waiting.has_told(std::iter::empty()),
            Err(error) => {
                tracing::debug!(%error, signals = signals.len(), "other nodes were not told");
                // Whoever waits looks by itself soon; an answer that was taken back would be replayed for much longer.
                waiting.has_told(signals.into_iter().filter(|signal| matches!(signal, Signal::Forgotten(_))));
                tokio::time::sleep(AGAIN).await;
                waiting.some.notify_one();
            }
        }
    }
}

async fn hear<S: Store>(engine: Weak<Inner<S>>, channel: Arc<dyn Signals>) {
    loop {
        let heard = channel.hear().await;
        let Some(engine) = engine.upgrade() else { return };
        match heard {
            Heard::Signals(signals) => {
                for signal in signals {
                    engine.heard(signal);
                }
            }
            // Anything may have been missed.
            Heard::Gap => {
                engine.cache.clear();
                engine.waiters.wake_all();
            }
        }
    }
}

impl<S> Inner<S> {
    fn heard(&self, signal: Signal) {
        match signal {
            Signal::Settled(id) => self.waiters.wake(id),
            Signal::Forgotten(id) => self.let_go(id),
        }
    }
}
