//! Waiting for another's answer, without lost wake-ups: register, *then* ask, then wait.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use oncegate_core::decide::Arrival;
use oncegate_core::identity::RecordId;
use oncegate_core::policy::{AfterDoubt, WhileInProgress};
use oncegate_core::record::{Record, State, StateKind};
use oncegate_core::time::Timestamp;
use oncegate_store::Store;
use tokio::sync::Notify;

use crate::arrive::{Arrived, Asked, Look, Unavailable};
use crate::engine::Engine;
use crate::route::Route;

impl<S: Store> Engine<S> {
    /// Like [`Engine::arrive`], but waits for another's answer where the route's policy says so, up to its limit.
    pub async fn arrive_or_wait(&self, route: &Route, arrival: Arrival) -> Result<Arrived<S>, Unavailable> {
        match self.arrive_at_once(route, arrival) {
            Ok(arrived) => Ok(arrived),
            Err(mut asked) => self.go_on(route, &mut asked).await,
        }
    }

    /// What this node knows by itself: of most duplicates, which come when all is over, the answer. Otherwise [go on](Self::go_on).
    pub fn arrive_at_once(&self, route: &Route, arrival: Arrival) -> Result<Arrived<S>, Box<Asked>> {
        let asked = Asked::new(arrival);
        self.by_cache(route, &asked, Look::First).ok_or_else(|| Box::new(asked))
    }

    /// The rest of [`Engine::arrive_or_wait`].
    pub async fn go_on(&self, route: &Route, asked: &mut Asked) -> Result<Arrived<S>, Unavailable> {
        let policy = route.policy();
        let waits_for_holder = policy.in_progress == WhileInProgress::Wait;
        let waits_for_verdict = policy.after_doubt == AfterDoubt::WaitThenReject;
        if !waits_for_holder && !waits_for_verdict {
            return self.look(route, asked, Look::First).await;
        }
        let started = Instant::now();
        let mut look = Look::First;
        loop {
            let waiter = self.0.waiters.register(asked.id);
            let mut woken = std::pin::pin!(waiter.notify.notified());
            woken.as_mut().enable();
            let arrived = self.look(route, asked, look).await?;
            look = Look::Again;
            let pause = match &arrived {
                // A lapse notifies nobody: look when the lease ends.
                Arrived::Busy { until } if waits_for_holder => self.time_to(*until),
                Arrived::Unsettled { .. } if waits_for_verdict => Duration::MAX,
                _ => return Ok(arrived),
            };
            let left = policy.wait_limit.saturating_sub(started.elapsed());
            if left.is_zero() {
                return Ok(arrived);
            }
            let pause = pause.min(left).min(self.0.options.wait_poll);
            let _ = tokio::time::timeout(pause, woken).await;
        }
    }

    /// Waits until somebody has settled the record, no longer than `limit`; gives the row if somebody has.
    pub async fn until_settled(&self, id: RecordId, limit: Duration) -> Option<Record> {
        let is_settled = |row: &Record| row.state.kind() != StateKind::InProgress;
        self.look_until(id, limit, is_settled).await.filter(is_settled)
    }

    /// Waits until the record is over, no longer than `limit`, and gives the row as it was last seen. What only a person can say
    /// is not waited for.
    pub async fn until_over(&self, id: RecordId, limit: Duration) -> Option<Record> {
        self.look_until(id, limit, |row| match &row.state {
            State::Pending { .. } | State::InProgress => false,
            State::Unknown(doubt) => doubt.parked,
            State::Completed(_) | State::FailedRetryable | State::Expired => true,
        })
        .await
    }

    /// Looks whenever something may have become of the record, until that is enough; gives the row as it was last seen.
    async fn look_until(
        &self,
        id: RecordId,
        limit: Duration,
        is_enough: impl Fn(&Record) -> bool,
    ) -> Option<Record> {
        let started = Instant::now();
        let mut seen = None;
        loop {
            let waiter = self.0.waiters.register(id);
            let mut woken = std::pin::pin!(waiter.notify.notified());
            woken.as_mut().enable();
            // A store that cannot say is asked again, while there is time.
            if let Ok(row) = self.read(id).await {
                seen = row;
                if seen.as_ref().is_some_and(&is_enough) {
                    return seen;
                }
            }
            let left = limit.saturating_sub(started.elapsed());
            if left.is_zero() {
                return seen;
            }
            let _ = tokio::time::timeout(left.min(self.0.options.wait_poll), woken).await;
        }
    }

    /// Until `moment` has surely come, and a little more.
    fn time_to(&self, moment: Timestamp) -> Duration {
        let now = self.now();
        moment.plus(now.error).since(now.at) + Duration::from_millis(1)
    }
}

const SHARDS: usize = 16;

/// Who waits for which record, on this node.
#[derive(Default)]
pub(crate) struct Waiters {
    shards: [Mutex<Shard>; SHARDS],
}

type Shard = HashMap<RecordId, Weak<Notify>>;

pub(crate) struct Waiter<'w> {
    waiters: &'w Waiters,
    id: RecordId,
    pub(crate) notify: Arc<Notify>,
}

impl Waiters {
    pub(crate) fn register(&self, id: RecordId) -> Waiter<'_> {
        let mut shard = self.shard(id);
        let known = shard.get(&id).and_then(Weak::upgrade);
        let notify = known.unwrap_or_else(|| {
            let notify = Arc::new(Notify::new());
            shard.insert(id, Arc::downgrade(&notify));
            notify
        });
        Waiter { waiters: self, id, notify }
    }

    /// Something has become of the record: all who wait for it look again.
    pub(crate) fn wake(&self, id: RecordId) {
        if let Some(waking) = self.waking(id) {
            waking.notify.notify_waiters();
        }
    }

    /// Anything may have become of any record.
    pub(crate) fn wake_all(&self) {
        for shard in &self.shards {
            let waiting: Vec<RecordId> =
                shard.lock().unwrap_or_else(PoisonError::into_inner).keys().copied().collect();
            for id in waiting {
                self.wake(id);
            }
        }
    }

    /// Holds on to those who wait, as one of them: whoever leaves last takes the entry along.
    fn waking(&self, id: RecordId) -> Option<Waiter<'_>> {
        let notify = self.shard(id).get(&id).and_then(Weak::upgrade)?;
        Some(Waiter { waiters: self, id, notify })
    }

    fn shard(&self, id: RecordId) -> MutexGuard<'_, Shard> {
        let shard = &self.shards[usize::from(id.as_bytes()[0]) % SHARDS];
        shard.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        let mut shard = self.waiters.shard(self.id);
        // The last one leaves: under the lock, so that nobody registers meanwhile.
        if Arc::strong_count(&self.notify) == 1 {
            shard.remove(&self.id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_left_behind_by_those_who_waited() {
        let waiters = Waiters::default();
        let id = RecordId::from_bytes([7; 16]);
        let first = waiters.register(id);
        let second = waiters.register(id);
        assert!(Arc::ptr_eq(&first.notify, &second.notify));
        drop(first);
        assert_eq!(waiters.shard(id).len(), 1, "one still waits");
        drop(second);
        assert_eq!(waiters.shard(id).len(), 0);
    }

    /// The last one who waits leaves in the middle of being woken. It is not the last that holds on to the entry then, and did not
    /// remove it: nobody would have, and every such key would have stayed in memory.
    #[test]
    fn nothing_is_left_behind_by_one_who_leaves_while_it_is_woken() {
        let waiters = Waiters::default();
        let id = RecordId::from_bytes([7; 16]);
        let waiter = waiters.register(id);
        let waking = waiters.waking(id);
        drop(waiter);
        drop(waking);
        assert_eq!(waiters.shard(id).len(), 0);
    }
}
