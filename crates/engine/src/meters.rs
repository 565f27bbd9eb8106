//! What is counted, under the names of this field. Exporters turn dots into underscores.

use std::time::Duration;

use metrics::{Counter, Histogram, Label, counter, gauge, histogram};
use oncegate_core::decide::{Event, Next, Notice, Step};
use oncegate_core::record::{Record, StateKind};

use crate::route::Route;
use crate::workers::Worker;

mod tenants;

pub(crate) use tenants::{Repeat, Tenants};

/// The names.
pub mod names {
    /// How long a series with a tenant's name (`DUPLICATES`, `MISUSE`) may stand still before an
    /// exporter has to drop it, so that no more than a bounded number of them is ever kept.
    pub const TENANT_SERIES_IDLE: std::time::Duration = super::tenants::SERIES_IDLE;
    /// A key was seen for the first time, and its operation runs.
    pub const CREATED: &str = "api.idempotency.reserve.created.count";
    /// Answered from the record.
    pub const REPLAY: &str = "api.idempotency.reserve.replay.count";
    /// A lease was held.
    pub const IN_PROGRESS: &str = "api.idempotency.reserve.in_progress.count";
    /// Same key, other request.
    pub const KEY_MISUSE: &str = "api.idempotency.reserve.key_misuse.count";
    /// Runs again after an attempt that had no effect.
    pub const FAILED_RETRY: &str = "api.idempotency.reserve.failed_retry.count";
    /// The outcome was not known.
    pub const UNKNOWN: &str = "api.idempotency.reserve.unknown.count";
    /// A request without a key passed on a route where keys are optional.
    pub const KEYLESS: &str = "api.idempotency.keyless.count";
    /// A request was refused, by `reason` and `route`.
    pub const REFUSAL: &str = "oncegate.refusal.count";
    /// A reused key was refused without a log line and an audit entry of its own.
    pub const REUSE_UNREPORTED: &str = "oncegate.key_reuse.unreported.count";
    /// A new life began where an older one had ended.
    pub const AFTER_EXPIRY: &str = "api.idempotency.reserve.after_expiry.count";
    /// New keys that could not be looked up among removed ones: too many at once, or the store
    /// failed.
    pub const AFTER_EXPIRY_UNCHECKED: &str = "oncegate.after_expiry.unchecked.count";
    /// Seconds since 1970 at which a comparison with a provider's export last ended, by
    /// `comparison`.
    pub const COMPARE_LAST_RUN: &str = "oncegate.compare.last_run.timestamp.seconds";
    /// Differences that it found, by `comparison`.
    pub const COMPARE_DIFFERENCES: &str = "oncegate.compare.differences";
    /// Rows and records that it could not read, by `comparison`.
    pub const COMPARE_UNREADABLE: &str = "oncegate.compare.unreadable";
    /// 1 once the store was found restored to an earlier state, and this process refuses everything.
    pub const STORE_RESTORED: &str = "oncegate.store.restored";
    /// Quarantines that are active: windows of time whose keys may have been lost.
    pub const QUARANTINES: &str = "oncegate.quarantines";
    /// The store could not do what was asked.
    pub const STORE_ERROR: &str = "api.idempotency.store.error.count";
    /// A lease was found lapsed.
    pub const ZOMBIE_KEY: &str = "api.idempotency.zombie_key.count";
    /// A row past retention was removed or buried.
    pub const TTL_PRUNED: &str = "api.idempotency.ttl_pruned.count";
    /// An outcome became unknown, and will be asked about.
    pub const RECONCILE_SCHEDULED: &str = "api.idempotency.reconcile.scheduled.count";
    /// An unknown outcome became known.
    pub const RECONCILE_RESOLVED: &str = "api.idempotency.reconcile.resolved.count";
    /// An unknown outcome was put before an operator.
    pub const RECONCILE_FAILED: &str = "api.idempotency.reconcile.failed.count";
    /// Accounts that contradict each other, effects under an older grant: somebody should look.
    pub const ALARM: &str = "api.idempotency.alarm.count";
    /// Seconds from a request's arrival to the decision.
    pub const ARRIVE_SECONDS: &str = "api.idempotency.arrive.duration.seconds";
    /// Seconds from an attempt's end to its record.
    pub const SETTLE_SECONDS: &str = "api.idempotency.settle.duration.seconds";
    /// Seconds of the operation itself.
    pub const EXECUTE_SECONDS: &str = "api.idempotency.execute.duration.seconds";
    /// Seconds after which an attempt on a route must be over: a gauge, beside the seconds that attempts take.
    pub const ATTEMPT_DEADLINE: &str = "oncegate.attempt.deadline.seconds";
    /// Writes in one commit.
    pub const BATCH_SIZE: &str = "api.idempotency.store.batch.size";
    /// Passes of a worker, by `worker`.
    pub const WORKER_PASS: &str = "oncegate.worker.pass.count";
    /// How many loops of a worker run in this process, by `worker`: 0 where none does.
    pub const WORKER_RUNNING: &str = "oncegate.worker.running";
    /// Passes that failed, by `worker`.
    pub const WORKER_ERROR: &str = "oncegate.worker.error.count";
    /// Steps of the store's clock that this node noticed, by `direction`.
    pub const CLOCK_STEP: &str = "oncegate.clock.step.count";
    /// Questions of the reconciler, by what was `found`.
    pub const PROBE: &str = "oncegate.probe.count";
    /// Outcomes that nobody knows, at least.
    pub const UNKNOWN_OPEN: &str = "oncegate.unknown.open";
    /// Seconds for which the oldest of them has been unknown.
    pub const UNKNOWN_OLDEST: &str = "oncegate.unknown.oldest.seconds";
    /// Accepted requests that wait to be run, at least.
    pub const PENDING_WAITING: &str = "oncegate.pending.waiting";
    /// Seconds for which the first of them has been due.
    pub const PENDING_OLDEST: &str = "oncegate.pending.oldest.seconds";
    /// Outcomes that wait for an operator, at least.
    pub const DEAD_LETTERS: &str = "oncegate.dead_letters";
    /// Seconds by which the oldest row past retention has outlived it.
    pub const REAPER_LAG: &str = "oncegate.reaper.lag.seconds";
    /// Messages about keys that were never seen.
    pub const APART_KEPT: &str = "oncegate.apart.kept.count";
    /// Those of them that said that something happened, and whose record never appeared.
    pub const APART_EXPIRED: &str = "oncegate.apart.expired.count";
    /// Deliveries of the outbox, by `effect` and `result`: delivered, later, unreachable, refused.
    pub const OUTBOX_DELIVERY: &str = "oncegate.outbox.delivery.count";
    /// Seconds that one delivery took, by `effect`.
    pub const OUTBOX_SECONDS: &str = "oncegate.outbox.delivery.duration.seconds";
    /// Jobs that were put before an operator, by `effect`.
    pub const OUTBOX_PARKED: &str = "oncegate.outbox.parked.count";
    /// Jobs that wait for an operator, by `effect`.
    pub const OUTBOX_DEAD: &str = "oncegate.outbox.dead_letters";
    /// Jobs that wait or are being delivered, by `effect`.
    pub const OUTBOX_WAITING: &str = "oncegate.outbox.waiting";
    /// Seconds since the oldest of them was promised, by `effect`.
    pub const OUTBOX_OLDEST: &str = "oncegate.outbox.oldest.seconds";
    /// Duplicates of a scope: of a bounded number of busy scopes, and `other`.
    pub const DUPLICATES: &str = "api.idempotency.duplicates.count";
    /// Those of them that were another request under the same key, in the same way.
    pub const MISUSE: &str = "api.idempotency.misuse.count";
}

/// Those without a route, whose first step must be seen as one: what watches them would take a counter that appears at 1 for
/// one that has always been there.
const FROM_THE_START: [&str; 11] = [
    names::REUSE_UNREPORTED,
    names::AFTER_EXPIRY_UNCHECKED,
    names::STORE_ERROR,
    names::ZOMBIE_KEY,
    names::TTL_PRUNED,
    names::RECONCILE_SCHEDULED,
    names::RECONCILE_RESOLVED,
    names::RECONCILE_FAILED,
    names::ALARM,
    names::APART_KEPT,
    names::APART_EXPIRED,
];

/// Shows the counters of an engine at zero, before anything has happened.
pub(crate) fn begin_at_zero() {
    for name in FROM_THE_START {
        counter!(name).increment(0);
    }
    for reason in ["breaker", "queue", "store"] {
        count_refusals(reason, None, 0);
    }
    for direction in ["forward", "back"] {
        counter!(names::CLOCK_STEP, "direction" => direction).increment(0);
    }
    for worker in Worker::ALL_KINDS {
        gauge!(names::WORKER_RUNNING, "worker" => worker.name()).increment(0.0);
    }
}

/// A worker's loop runs for as long as this is kept.
pub(crate) struct Running(Worker);

impl Running {
    pub(crate) fn begin(worker: Worker) -> Self {
        gauge!(names::WORKER_RUNNING, "worker" => worker.name()).increment(1.0);
        Self(worker)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        gauge!(names::WORKER_RUNNING, "worker" => self.0.name()).decrement(1.0);
    }
}

/// The same for a worker that is about to be started.
pub(crate) fn begin_worker_at_zero(worker: &'static str) {
    counter!(names::WORKER_PASS, "worker" => worker).increment(0);
    counter!(names::WORKER_ERROR, "worker" => worker).increment(0);
}

/// The same for an effect that is about to be delivered.
pub(crate) fn begin_effect_at_zero(effect: &str) {
    for result in ["delivered", "later", "unreachable", "refused"] {
        counter!(names::OUTBOX_DELIVERY, "effect" => effect.to_owned(), "result" => result).increment(0);
    }
    counter!(names::OUTBOX_PARKED, "effect" => effect.to_owned()).increment(0);
    for gauge in [names::OUTBOX_WAITING, names::OUTBOX_DEAD, names::OUTBOX_OLDEST] {
        gauge!(gauge, "effect" => effect.to_owned()).set(0.0);
    }
}

/// The route in the count of a refusal that no protected route gave.
const NO_ROUTE: &str = "none";

/// Counts a refused request. Routes are declared patterns, so there are few.
pub fn count_refusal(reason: &'static str, route: Option<&Route>) {
    count_refusals(reason, route, 1);
}

fn count_refusals(reason: &'static str, route: Option<&Route>, count: u64) {
    let route = route.map_or(NO_ROUTE, |route| route.operation().as_str());
    counter!(names::REFUSAL, "reason" => reason, "route" => route.to_owned()).increment(count);
}

/// The meters of one route. Made when it is first used, so install a recorder before that.
#[derive(Clone)]
pub(crate) struct RouteMeters {
    pub(crate) created: Counter,
    pub(crate) replay: Counter,
    pub(crate) in_progress: Counter,
    pub(crate) key_misuse: Counter,
    pub(crate) failed_retry: Counter,
    pub(crate) unknown: Counter,
    pub(crate) after_expiry: Counter,
    pub(crate) keyless: Counter,
    pub(crate) arrive_s: Histogram,
    pub(crate) settle_s: Histogram,
    pub(crate) execute_s: Histogram,
}

impl RouteMeters {
    pub(crate) fn new(profile: &str, operation: &str, attempt_deadline: Duration) -> Self {
        let labels =
            vec![Label::new("profile", profile.to_owned()), Label::new("route", operation.to_owned())];
        // It is the policy's, so it changes only with the route.
        gauge!(names::ATTEMPT_DEADLINE, labels.clone()).set(attempt_deadline.as_secs_f64());
        Self {
            created: counter!(names::CREATED, labels.clone()),
            replay: counter!(names::REPLAY, labels.clone()),
            in_progress: counter!(names::IN_PROGRESS, labels.clone()),
            key_misuse: counter!(names::KEY_MISUSE, labels.clone()),
            failed_retry: counter!(names::FAILED_RETRY, labels.clone()),
            unknown: counter!(names::UNKNOWN, labels.clone()),
            after_expiry: counter!(names::AFTER_EXPIRY, labels.clone()),
            keyless: counter!(names::KEYLESS, labels.clone()),
            arrive_s: histogram!(names::ARRIVE_SECONDS, labels.clone()),
            settle_s: histogram!(names::SETTLE_SECONDS, labels.clone()),
            execute_s: histogram!(names::EXECUTE_SECONDS, labels),
        }
    }
}

/// Counts what a step did to a record, whoever made it.
pub(crate) fn observe(event: &Event, before: Option<&Record>, step: &Step) {
    for notice in &step.notices {
        if *notice == Notice::Zombie {
            counter!(names::ZOMBIE_KEY).increment(1);
        }
        if *notice == Notice::Parked {
            counter!(names::RECONCILE_FAILED).increment(1);
            // What others park is logged where it is asked about.
            if let (Event::Take(_) | Event::Release { .. }, Some(record)) = (event, about(before, step)) {
                let reason = record.last_error.as_ref().map(tracing::field::display);
                tracing::warn!(
                    record = %record.id, operation = %record.operation, reason,
                    "deferred request parked; it waits for an operator"
                );
            }
        }
        if notice.is_alarm() {
            counter!(names::ALARM).increment(1);
            // A counter does not say which record it was, and somebody must look at that one.
            let record = about(before, step).map(|record| tracing::field::display(record.id));
            tracing::error!(record, ?notice, "alarm: accounts of an attempt contradict each other");
        }
    }
    let was = before.map(|record| record.state.kind());
    match &step.next {
        Next::Keep => {}
        Next::Remove { .. } => counter!(names::TTL_PRUNED).increment(1),
        Next::Put(next) => match (was, next.state.kind()) {
            (_, StateKind::Expired) if matches!(event, Event::Reap { .. }) => {
                counter!(names::TTL_PRUNED).increment(1);
            }
            (Some(StateKind::Unknown), StateKind::Unknown) => {}
            (Some(StateKind::Unknown), _) => counter!(names::RECONCILE_RESOLVED).increment(1),
            (_, StateKind::Unknown) => counter!(names::RECONCILE_SCHEDULED).increment(1),
            _ => {}
        },
    }
}

fn about<'r>(before: Option<&'r Record>, step: &'r Step) -> Option<&'r Record> {
    match &step.next {
        Next::Put(next) => Some(next),
        Next::Keep | Next::Remove { .. } => before,
    }
}
