//! What a run stands on: its lease, its row and its store; the store's type is left behind here, so that handlers need not name it.

use std::error::Error;
use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use oncegate_core::audit;
use oncegate_core::decide::{Decision, Event, Lease, Next, decide};
use oncegate_core::identity::{RecordId, Token};
use oncegate_core::record::{Journal, Reason, Record, RecoveryPoint, State};
use oncegate_core::time::{Now, Timestamp};
use oncegate_store::join::{Connection, Join, Joined, Taken, Transactions, Turn};
use oncegate_store::{Effect, Kind, StoreError, Write, Writing};

use super::Run;
use super::error::PhaseError;
use super::track::{Stop, Track, changed_handler};
use crate::engine::Engine;
use crate::held::{Held, SendPermit, Watch};
use crate::once::JobError;

/// The row, in the hands of the one that writes it.
pub(super) type RowGuard<'a> = tokio::sync::MutexGuard<'a, Arc<Record>>;
pub(super) type Doing<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A row that somebody else changed under the transaction is looked at again so often.
const JOIN_ROUNDS_MAX: usize = 8;

/// The phases of one attempt, for whoever runs its handler to hand on. Clones are the same.
#[derive(Clone)]
pub struct Phases(Arc<dyn Ground>);

/// A handler asks for its phases once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AlreadyTaken;

impl fmt::Display for AlreadyTaken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the phases of this attempt were asked for twice; a handler asks for them once")
    }
}

impl Error for AlreadyTaken {}

impl Phases {
    /// Begins the run of them: once an attempt.
    pub fn run<T: Transactions>(&self, transactions: Arc<T>) -> Result<Run<T>, AlreadyTaken> {
        let ground = Arc::clone(&self.0);
        let mut track = ground.track();
        if std::mem::replace(&mut track.is_taken, true) {
            return Err(AlreadyTaken);
        }
        drop(track);
        let journal = match Journal::of(ground.lease().recovery.as_ref()) {
            Ok(journal) => journal,
            // The first phase that is asked for says so.
            Err(malformed) => {
                drop(ground.changed(&malformed));
                Journal::default()
            }
        };
        ground.visited(&journal, 0);
        Ok(Run { ground, transactions, journal, position: 0, failed: None })
    }
}

impl fmt::Debug for Phases {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Phases").field("record", &self.0.id()).finish_non_exhaustive()
    }
}

impl<S: Join> Held<S> {
    /// The phases of this attempt. Run its handler in [`Held::run`], so that the lease is renewed meanwhile, and settle it
    /// [as its phases say](Held::as_its_phases_say).
    #[must_use]
    pub fn phases(&self) -> Phases {
        let (granted_at, horizon) = {
            let record = self.seen();
            (record.last_run_at, record.terms.horizon)
        };
        Phases(Arc::new(Standing {
            engine: self.engine.clone(),
            lease: self.lease.clone(),
            granted_at,
            horizon,
            permit: self.permit(),
            watch: Arc::clone(&self.watch),
        }))
    }
}

struct Standing<S> {
    engine: Engine<S>,
    lease: Lease,
    granted_at: Option<Timestamp>,
    /// The horizon that the record was begun under.
    horizon: Option<Duration>,
    permit: SendPermit,
    watch: Arc<Watch>,
}

/// Why a recovery point was not kept.
pub(super) enum NotKept {
    Fenced,
    Store(Arc<StoreError>),
}

/// Why a recovery point is not part of a transaction.
pub(super) enum JoinFailed {
    Fenced,
    Store(StoreError),
}

/// The same for every store.
pub(super) trait Ground: Send + Sync {
    fn lease(&self) -> &Lease;
    fn id(&self) -> RecordId;
    fn permit(&self) -> &SendPermit;
    fn now(&self) -> Now;
    /// From when on "not found" proves that there is nothing: the earlier attempt had ended when this one was granted, and what it
    /// sent had the horizon of the record's terms to arrive, whatever the policy says now. `None`: never.
    fn horizon_until(&self) -> Option<Timestamp>;
    fn track(&self) -> MutexGuard<'_, Track>;

    /// Whoever writes the row holds this.
    fn row(&self) -> Doing<'_, RowGuard<'_>>;
    fn has_one_writer(&self) -> bool;
    fn turn(&self) -> Doing<'_, Turn>;
    /// Keeps a recovery point in a write of its own.
    fn advance(&self, point: RecoveryPoint) -> Doing<'_, Result<(), NotKept>>;
    /// Makes a recovery point part of a transaction. The row is then what it will be once that is committed.
    fn join<'a>(
        &'a self,
        connection: &'a mut dyn Connection,
        row: &'a mut RowGuard<'_>,
        point: RecoveryPoint,
    ) -> Doing<'a, Result<(), JoinFailed>>;
    /// The row, once every transaction that had it has ended.
    fn read_after<'a>(
        &'a self,
        connection: &'a mut dyn Connection,
    ) -> Doing<'a, Result<Option<Arc<Record>>, StoreError>>;
}

impl<S: Join> Ground for Standing<S> {
    fn lease(&self) -> &Lease {
        &self.lease
    }

    fn id(&self) -> RecordId {
        self.watch.id
    }

    fn permit(&self) -> &SendPermit {
        &self.permit
    }

    fn now(&self) -> Now {
        self.engine.now()
    }

    fn horizon_until(&self) -> Option<Timestamp> {
        // A step of the clock since the grant is no time that has passed.
        let begun = self.granted_at?.max(self.engine.0.clock.steady_since());
        Some(begun.plus(self.horizon?))
    }

    fn track(&self) -> MutexGuard<'_, Track> {
        self.watch.track.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn row(&self) -> Doing<'_, RowGuard<'_>> {
        Box::pin(self.watch.row.lock())
    }

    fn has_one_writer(&self) -> bool {
        self.engine.store().capability().writing == Writing::Blocks
    }

    fn turn(&self) -> Doing<'_, Turn> {
        Box::pin(self.engine.store().turn())
    }

    fn advance(&self, point: RecoveryPoint) -> Doing<'_, Result<(), NotKept>> {
        Box::pin(async move {
            let mut row = self.watch.row.lock().await;
            let event = Event::Advance { holder: self.lease.holder, point };
            let stepped = self.engine.step(&event, Some(Arc::clone(&row))).await.map_err(NotKept::Store)?;
            match (stepped.step.decision, stepped.row) {
                (Decision::Done, Some(next)) => {
                    *row = next;
                    Ok(())
                }
                _ => Err(NotKept::Fenced),
            }
        })
    }

    fn join<'a>(
        &'a self,
        connection: &'a mut dyn Connection,
        row: &'a mut RowGuard<'_>,
        point: RecoveryPoint,
    ) -> Doing<'a, Result<(), JoinFailed>> {
        Box::pin(async move {
            let event = Event::Advance { holder: self.lease.holder, point };
            for _ in 0..JOIN_ROUNDS_MAX {
                // The key first: then whoever must know what became of this commit can wait for its end. And the row as it is: somebody
                // may have told it something (a webhook, a duplicate), and it is ours all the same.
                let current = self.take(connection).await.map_err(JoinFailed::Store)?;
                **row = current.ok_or(JoinFailed::Fenced)?;
                let now = self.engine.now();
                let step = decide(Some(&***row), &event, now);
                let Next::Put(next) = &step.next else { return Err(JoinFailed::Fenced) };
                let entry = audit::entry(Some(&***row), &event, &step, &self.engine.0.who, now);
                let write = Write::swap(row.version, Arc::clone(next)).telling(entry);
                let store = self.engine.store();
                if store.join(connection, &write).await.map_err(JoinFailed::Store)? == Joined::Written {
                    **row = Arc::clone(next);
                    return Ok(());
                }
            }
            Err(JoinFailed::Store(StoreError::new(Kind::Contended, Effect::None, "join")))
        })
    }

    fn read_after<'a>(
        &'a self,
        connection: &'a mut dyn Connection,
    ) -> Doing<'a, Result<Option<Arc<Record>>, StoreError>> {
        Box::pin(async move {
            match self.engine.store().take_after(connection, self.id()).await? {
                Taken::Mine(row) => Ok(row.map(|row| Arc::new(*row))),
                Taken::Twin => Err(StoreError::new(Kind::Contended, Effect::None, "take_after")),
            }
        })
    }
}

impl<S: Join> Standing<S> {
    /// Takes the key for a transaction, and reads its row. If an earlier attempt's commit is under way, it is asked for once more, and
    /// then the phase fails as contended: a transaction that waited here would hold its connection meanwhile.
    async fn take(&self, connection: &mut dyn Connection) -> Result<Option<Arc<Record>>, StoreError> {
        match self.engine.store().take(connection, self.id()).await? {
            Taken::Mine(row) => Ok(row.map(|row| Arc::new(*row))),
            Taken::Twin => self.read_after(connection).await,
        }
    }
}

impl dyn Ground {
    pub(super) fn life(&self) -> Token {
        self.lease().holder.life
    }

    pub(super) fn is_mine(&self, row: &Record) -> bool {
        row.is_held_by(&self.lease().holder) && row.state == State::InProgress
    }

    pub(super) fn is_past_deadline(&self) -> bool {
        self.now().may_be_past(self.lease().attempt_deadline)
    }

    pub(super) fn is_beyond_deadline(&self, moment: Timestamp) -> bool {
        moment >= self.lease().attempt_deadline
    }

    pub(super) fn until_surely_past(&self, moment: Timestamp) -> Duration {
        let now = self.now();
        let micros = moment.plus(2 * now.error).as_micros().saturating_sub(now.at.as_micros());
        Duration::from_micros(u64::try_from(micros).unwrap_or(0)) + Duration::from_millis(1)
    }

    /// Tells the track how far the handler has come.
    pub(super) fn visited(&self, journal: &Journal, position: usize) {
        self.track().left = journal.leave(position).err();
    }

    /// After a stop nothing more runs, whatever the handler makes of it.
    pub(super) fn is_whole(&self) -> Result<(), PhaseError> {
        match &self.track().stop {
            None => Ok(()),
            Some(Stop::Release(reason)) => {
                Err(PhaseError::Interrupted { phase: "before".into(), words: reason.detail().into() })
            }
            Some(Stop::Park(reason)) => Err(PhaseError::Parked { words: reason.detail().into() }),
        }
    }

    /// Nothing of the phase took effect.
    pub(super) fn failed(&self, phase: &str, error: &JobError) -> PhaseError {
        let words = error.reason.detail();
        tracing::warn!(record = %self.id(), phase, "a phase failed, and nothing of it took effect: {words}");
        self.track().failed = Some(Reason::new("phase_failed", format!("{phase}: {words}")));
        PhaseError::Failed { phase: phase.into(), words: words.into() }
    }

    /// Another attempt goes on.
    pub(super) fn interrupted(&self, phase: &str, words: &dyn fmt::Display) -> PhaseError {
        tracing::warn!(record = %self.id(), phase, "an operation stops for now: {words}");
        let reason = Reason::new("interrupted", format!("at phase {phase:?}: {words}"));
        self.track().stop.get_or_insert(Stop::Release(reason));
        PhaseError::Interrupted { phase: phase.into(), words: words.to_string().into() }
    }

    /// A newer attempt has it. Whatever this one is settled as, it is answered from the row.
    pub(super) fn fenced(&self, phase: &str) -> PhaseError {
        tracing::warn!(record = %self.id(), phase, "a newer attempt has the operation: this one is given up");
        let reason = Reason::new("fenced", format!("at phase {phase:?}: a newer attempt has the operation"));
        self.track().stop.get_or_insert(Stop::Release(reason));
        PhaseError::Fenced { phase: phase.into() }
    }

    /// Only a person can say.
    pub(super) fn parked(&self, phase: &str, reason: &Reason) -> PhaseError {
        tracing::error!(record = %self.id(), phase, "an operation is put before an operator: {reason}");
        let words = reason.detail().into();
        self.track().stop.get_or_insert(Stop::Park(reason.clone()));
        PhaseError::Parked { words }
    }

    pub(super) fn changed(&self, changed: &dyn fmt::Display) -> PhaseError {
        self.parked("", &changed_handler(changed))
    }
}
