//! A lease in one's hands.
//!
//! **Invariants:** nothing is sent after the lease may have ended; whoever drops a lease unsettled leaves a doubt, or a
//! release if nothing had begun, never a key that is stuck.

use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::{Duration, Instant};

use oncegate_core::decide::{Decision, Event, Lease};
use oncegate_core::identity::{Fence, RecordId};
use oncegate_core::policy::{ForwardKey, Policy};
use oncegate_core::record::Record;
use oncegate_core::time::Timestamp;
use oncegate_store::Store;

use crate::clock::NodeClock;
use crate::engine::Engine;
use crate::phases::Track;
use crate::route::Route;
use crate::settle::Settlement;
use crate::workers::fraction;
use crate::writer::InFlight;

/// Deferred work waits so long after its first release, and doubles it with every attempt.
const RELEASE_BACKOFF: Duration = Duration::from_secs(1);
const RELEASE_BACKOFF_MAX: Duration = Duration::from_mins(5);

/// The right to execute, until it is settled.
pub struct Held<S: Store> {
    pub(crate) engine: Engine<S>,
    pub(crate) route: Route,
    pub(crate) lease: Lease,
    /// The row as it was granted.
    granted: Arc<Record>,
    pub(crate) watch: Arc<Watch>,
    begun: Option<Instant>,
    /// What its holder has said of its end, if it has; and whether that is recorded.
    pub(crate) ending: Ending,
    _in_flight: InFlight,
}

impl<S: Store> Held<S> {
    pub(crate) fn new(
        engine: Engine<S>,
        route: Route,
        lease: Lease,
        record: Arc<Record>,
        in_flight: InFlight,
    ) -> Self {
        engine.0.behind.take_up();
        let watch = Watch {
            until: AtomicI64::new(lease.until.as_micros()),
            is_fenced: AtomicBool::new(false),
            clock: engine.0.clock.clone(),
            id: record.id,
            row: tokio::sync::Mutex::new(Arc::clone(&record)),
            track: std::sync::Mutex::default(),
        };
        Self {
            engine,
            route,
            lease,
            granted: record,
            watch: Arc::new(watch),
            begun: None,
            ending: Ending::Open,
            _in_flight: in_flight,
        }
    }

    /// The record's public name.
    #[must_use]
    pub fn id(&self) -> RecordId {
        self.granted.id
    }

    /// The row as it was last seen; as it was granted, if somebody is writing it just now. Whoever writes over it is shown the right one.
    pub(crate) fn seen(&self) -> Arc<Record> {
        self.watch.row.try_lock().map_or_else(|_| Arc::clone(&self.granted), |row| Arc::clone(&row))
    }

    /// The route's policy.
    #[must_use]
    pub fn policy(&self) -> &Policy {
        self.route.policy()
    }

    /// Which key an upstream is to be sent: the same in every attempt of a life, whatever the policy has become.
    #[must_use]
    pub fn forward_key(&self) -> ForwardKey {
        self.granted.terms.forward_key(self.policy())
    }

    /// Grows with every grant; for upstreams, logs and people.
    #[must_use]
    pub const fn fence(&self) -> Fence {
        self.lease.holder.fence
    }

    /// The lease, as it was granted.
    #[must_use]
    pub const fn lease(&self) -> &Lease {
        &self.lease
    }

    /// What says whether anything may still be sent; for whoever does the sending.
    #[must_use]
    pub fn permit(&self) -> SendPermit {
        SendPermit(Arc::clone(&self.watch))
    }

    /// To be called just before the first byte leaves. From here on the attempt may have had its effect.
    pub fn begin(&mut self) -> Result<(), LeaseEnded> {
        self.permit().check()?;
        self.begun = Some(Instant::now());
        Ok(())
    }

    /// Runs `work`, renewing the lease meanwhile, never past the attempt's deadline. Call [`Held::begin`] first; whether or not, the
    /// attempt counts as begun.
    ///
    /// At the deadline the lease ends, and the work does not: it may still come to an end, and settle its own doubt. Work that can
    /// hang needs a timeout of its own.
    pub async fn run<T>(&mut self, work: impl Future<Output = T>) -> T {
        self.begun.get_or_insert_with(Instant::now);
        let renewing =
            std::pin::pin!(renew(&self.engine, &self.watch, &self.lease, self.route.policy().lease));
        let work = std::pin::pin!(work);
        match futures_util::future::select(work, renewing).await {
            futures_util::future::Either::Left((output, _)) => output,
            futures_util::future::Either::Right((never, _)) => match never {},
        }
    }

    /// The same settlement, after which deferred work is not run again at once. Of an inline one it means nothing.
    pub(crate) fn backing_off(&self, settlement: Settlement) -> Settlement {
        match settlement {
            Settlement::Release { reason, backoff } => {
                let doubled =
                    RELEASE_BACKOFF.saturating_mul(1 << self.lease.attempt.saturating_sub(1).min(20));
                let least = doubled.min(RELEASE_BACKOFF_MAX).mul_f64(0.5 + 0.5 * fraction());
                Settlement::Release { reason, backoff: backoff.max(least) }
            }
            other => other,
        }
    }

    pub(crate) fn took(&self) -> Option<Duration> {
        self.begun.map(|begun| begun.elapsed())
    }
}

/// How far the end of an attempt has come.
pub(crate) enum Ending {
    /// Nothing was said yet.
    Open,
    /// Said, and not known to be recorded.
    Said(Arc<Event>),
    /// Recorded, or known to be otherwise.
    Recorded,
}

/// Never ends: there is always the work to wait for.
enum Never {}

async fn renew<S: Store>(engine: &Engine<S>, watch: &Watch, lease: &Lease, span: Duration) -> Never {
    let event = Event::Renew { holder: lease.holder, lease: span };
    let mut pause = span / 3;
    let mut until = lease.until;
    while until < lease.attempt_deadline {
        tokio::time::sleep(pause).await;
        // Held until the write is done: an operation with phases writes the same row.
        let mut record = watch.row.lock().await;
        match Box::pin(engine.step(&event, Some(Arc::clone(&record)))).await {
            Ok(stepped) => {
                pause = span / 3;
                let Decision::Renewed { until: renewed } = stepped.step.decision else {
                    watch.is_fenced.store(true, Ordering::Release);
                    tracing::warn!(record = %record.id, "a lease could not be renewed: it is no longer ours");
                    break;
                };
                until = renewed;
                watch.until.store(renewed.as_micros(), Ordering::Release);
                if let Some(row) = stepped.row {
                    *record = row;
                }
            }
            Err(error) => {
                tracing::warn!(%error, record = %record.id, "a lease could not be renewed yet");
                pause = (span / 10).min(Duration::from_secs(1));
            }
        }
    }
    if until >= lease.attempt_deadline {
        tracing::warn!(record = %watch.id, "an attempt has come to its deadline: its lease is renewed no more");
    }
    std::future::pending().await
}

impl<S: Store> Drop for Held<S> {
    fn drop(&mut self) {
        // After what is left to do has been counted.
        let _laid_down = LaidDown(self.engine.clone());
        let event = match std::mem::replace(&mut self.ending, Ending::Recorded) {
            Ending::Recorded => return,
            // Whoever waited for the settling has gone; what was said stands.
            Ending::Said(event) => event,
            Ending::Open => match self.begun {
                None => {
                    self.backing_off(Settlement::released("not_begun", "dropped before anything was sent"))
                }
                Some(_) => Settlement::doubted("abandoned", "dropped while it was running"),
            }
            .into_event(self.lease.holder)
            .into(),
        };
        let (engine, record, awaited) = (self.engine.clone(), self.seen(), self.awaited());
        self.engine.behind(async move {
            drop(engine.settle_until_done(&event, record, awaited).await);
        });
    }
}

struct LaidDown<S: Store>(Engine<S>);

impl<S: Store> Drop for LaidDown<S> {
    fn drop(&mut self) {
        self.0.0.behind.lay_down();
    }
}

impl<S: Store> fmt::Debug for Held<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Held")
            .field("record", &self.granted.id)
            .field("lease", &self.lease)
            .finish_non_exhaustive()
    }
}

/// Says whether anything may be sent under a lease. Check it as late as possible.
#[derive(Clone)]
pub struct SendPermit(Arc<Watch>);

impl fmt::Debug for SendPermit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SendPermit").field(&self.check()).finish()
    }
}

/// What a holder and the work that it runs know in common.
pub(crate) struct Watch {
    until: AtomicI64,
    is_fenced: AtomicBool,
    clock: NodeClock,
    pub(crate) id: RecordId,
    /// The row as it was last seen. Whoever writes it while the work runs holds this: renewals and recovery points are written one after
    /// the other, and none over an outdated row.
    pub(crate) row: tokio::sync::Mutex<Arc<Record>>,
    /// What the phases of the work, if it has any, say of its end.
    pub(crate) track: std::sync::Mutex<Track>,
}

impl SendPermit {
    /// Whether the lease surely still holds.
    pub fn check(&self) -> Result<(), LeaseEnded> {
        let until = Timestamp::from_micros(self.0.until.load(Ordering::Acquire));
        if self.0.is_fenced.load(Ordering::Acquire) || self.0.clock.now().may_be_past(until) {
            return Err(LeaseEnded);
        }
        Ok(())
    }
}

/// The lease may have ended: nothing may be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseEnded;

impl fmt::Display for LeaseEnded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the lease may have ended before the first byte was sent; nothing was sent")
    }
}

impl Error for LeaseEnded {}
