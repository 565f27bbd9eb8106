//! The engine: its parts, and how they are put together.

use std::error::Error;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use oncegate_core::audit::Who;
use oncegate_core::decide::{Decision, Event, Step};
use oncegate_core::duration::InvalidDuration;
use oncegate_core::identity::{RecordId, Version};
use oncegate_core::key::Key;
use oncegate_core::record::{Reason, Record};
use oncegate_core::scope::{Address, Scope};
use oncegate_core::time::Now;
use oncegate_store::signals::Signal;
use oncegate_store::{Apart, Effect, Kind, Store, StoreError};
use tokio::runtime::Handle;
use tokio::sync::{Notify, watch};

use crate::after_expiry::NewKeys;
use crate::atomic::InHand;
use crate::breaker::Breaker;
use crate::cache::Cache;
use crate::clock::{ClockSteps, NodeClock};
use crate::herald::Herald;
use crate::history::StoreHistory;
use crate::meters::{self, Tenants};
use crate::options::{BackgroundWorkers, Options, REMOVED_KEYS_MAX};
use crate::outbox::Kept;
use crate::reuse::ReuseLog;
use crate::wait::Waiters;
use crate::workers::{Looked, Workers};
use crate::writer::Writer;

/// A forgetting that takes longer than this to be written may open its key while another node still replays the answer.
const FORGET_SLACK: Duration = Duration::from_mins(1);

/// The life of requests over one store. Clones are handles on the same engine.
pub struct Engine<S>(pub(crate) Arc<Inner<S>>);

impl<S> Clone for Engine<S> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

pub(crate) struct Inner<S> {
    pub(crate) store: Arc<S>,
    pub(crate) writer: Writer,
    pub(crate) cache: Cache,
    pub(crate) clock: NodeClock,
    pub(crate) waiters: Waiters,
    pub(crate) breaker: Arc<Breaker>,
    pub(crate) herald: Herald,
    pub(crate) tenants: Tenants,
    pub(crate) reuse_log: ReuseLog,
    /// Keys that are looked up among removed ones.
    pub(crate) new_keys: NewKeys,
    pub(crate) options: Options,
    /// This node, in the audit trail.
    pub(crate) who: Who,
    /// Wakes the reconciler: there is somebody to be asked.
    pub(crate) doubts: Notify,
    /// Wakes the completer: something was accepted on this node.
    pub(crate) accepted: Notify,
    /// Wakes the outbox: so often something was promised on this node.
    pub(crate) promises: watch::Sender<u64>,
    /// What the last look at the outbox has left for the next.
    pub(crate) outbox: Mutex<Kept>,
    /// Where the next look through what is kept apart goes on, if the last one did not get to its end.
    pub(crate) apart_from: Mutex<Option<Apart>>,
    /// How far the reconciler has looked, if the last pass did not get to the end of what is due.
    pub(crate) doubts_looked: Mutex<Looked>,
    /// The expired rows that the database does not let the reaper change: it goes on behind them.
    pub(crate) expired_looked: Mutex<Looked>,
    pub(crate) runtime: Handle,
    /// Work that goes on without anybody waiting for it: clean-ups, abandoned attempts.
    pub(crate) behind: Behind,
    /// Keys whose transactions are open on this node.
    pub(crate) in_hand: InHand,
    /// Whether the store still has what was written to it.
    pub(crate) history: StoreHistory,
    /// The sweeper and the reaper that were started with the engine. They end with it, or when others take over.
    pub(crate) default_workers: Mutex<Option<Workers>>,
}

impl<S: Store> Engine<S> {
    /// Starts an engine over `store`, on the tokio runtime that this is called in, with the sweeper and the reaper unless
    /// [`Options::workers`] says otherwise.
    pub async fn start(store: S, mut options: Options) -> Result<Self, StartError> {
        options.check().map_err(StartError::Options)?;
        options.removed_keys_for = options.removed_keys_for.min(REMOVED_KEYS_MAX);
        meters::begin_at_zero();
        let store = Arc::new(store);
        let clock = match &options.clock {
            Some(clock) => clock.clone(),
            None => NodeClock::of_store(&store).await.map_err(StartError::Clock)?,
        };
        let runtime = Handle::current();
        let breaker = Arc::new(Breaker::new(options.breaker_failures.max(1), options.breaker_pause));
        let writer = Writer::start(&store, &breaker, &options, &runtime).map_err(StartError::Thread)?;
        let (herald, channel) = Herald::of_store(&*store);
        let inner = Arc::new(Inner {
            store,
            writer,
            cache: Cache::new(options.cache_bytes, options.cache_age_max),
            clock,
            waiters: Waiters::default(),
            breaker,
            herald,
            tenants: Tenants::default(),
            reuse_log: ReuseLog::default(),
            new_keys: NewKeys::default(),
            who: Who {
                node: options.node.clone(),
                tells_first_executions: options.audit_executions,
                ..Who::default()
            },
            doubts: Notify::new(),
            accepted: Notify::new(),
            promises: watch::Sender::new(0),
            outbox: Mutex::default(),
            apart_from: Mutex::default(),
            doubts_looked: Mutex::default(),
            expired_looked: Mutex::default(),
            options,
            runtime,
            behind: Behind::default(),
            in_hand: InHand::default(),
            history: StoreHistory::default(),
            default_workers: Mutex::default(),
        });
        if let Some(channel) = channel {
            inner.herald.start(&inner, &channel);
        }
        let engine = Self(inner);
        Box::pin(engine.start_watching_history()).await.map_err(StartError::History)?;
        engine.start_looking_up();
        if let BackgroundWorkers::Default(options) = &engine.0.options.workers {
            engine.start_default_workers(options);
        }
        Ok(engine)
    }

    /// The store beneath.
    #[must_use]
    pub fn store(&self) -> &S {
        &self.0.store
    }

    /// The store's time, as this node knows it.
    #[must_use]
    pub fn now(&self) -> Now {
        self.0.clock.now()
    }

    /// This node, as the audit trail names it.
    #[must_use]
    pub fn node(&self) -> &str {
        &self.0.who.node
    }

    /// Makes an event happen to a record: for operators and workers. Returns the step that took effect.
    pub async fn drive(&self, id: RecordId, event: &Event) -> Result<Step, Arc<StoreError>> {
        let row = self.read(id).await?;
        let stepped = self.step(event, row.map(Arc::new)).await;
        // Also after an error: the write may have landed.
        self.0.let_go(id);
        self.0.herald.tell(Signal::Forgotten(id));
        Ok(stepped?.step)
    }

    /// Drops a stored answer: an operator's act, on settled records only. The key stays shut until no node can replay the
    /// answer any more.
    pub async fn forget(&self, scope: Scope, key: Key, reason: Reason) -> Result<Decision, Arc<StoreError>> {
        let id = RecordId::of(&Address { scope, key });
        let Some(row) = self.read(id).await? else { return Ok(Decision::Nothing) };
        let event = self.forgetting(row.version, reason);
        Ok(self.drive(id, &event).await?.decision)
    }

    /// The event that drops a stored answer, with the bound after which no node replays it.
    pub(crate) fn forgetting(&self, version: Version, reason: Reason) -> Event {
        // Until it is written another node may read the answer, and its age counts from then.
        let slack = FORGET_SLACK + self.0.options.store_timeout + 2 * self.now().error;
        let cache_age_max = self.0.options.cache_age_max.saturating_add(slack);
        Event::Forget { version, reason, cache_age_max }
    }

    /// Reads one row from the store.
    pub async fn read(&self, id: RecordId) -> Result<Option<Record>, Arc<StoreError>> {
        // Boxed: whoever asks mostly does not, and its future would have room for this one all the same.
        let rows = Box::pin(self.0.store.read(&[id])).await?;
        let row = rows.into_iter().next().ok_or_else(|| {
            StoreError::new(Kind::Other, Effect::None, "read").because("no place for the row")
        })?;
        Ok(row?)
    }

    /// What the engine has done and holds.
    #[must_use]
    pub fn stats(&self) -> Stats {
        Stats {
            commits: self.0.writer.commits(),
            writes: self.0.writer.writes(),
            lingers: self.0.writer.lingers(),
            cache_bytes: self.0.cache.bytes(),
            behind: self.0.behind.count(),
            clock_steps: self.0.clock.steps(),
        }
    }

    /// Returns when no clean-up and no settlement goes on without anybody waiting for it. For a shutdown see [`Engine::drain`].
    pub async fn quiet(&self) {
        self.0.behind.until(Behind::is_quiet).await;
    }

    /// Waits, up to `limit`, until no attempt is running and nothing is left to settle or clean up; says whether that is so.
    ///
    /// An attempt outlives the client that hung up, so a server that has closed its connections is not done yet. Stop accepting,
    /// then drain, then end. What is still running at the limit becomes `unknown` when its lease lapses.
    pub async fn drain(&self, limit: Duration) -> bool {
        let idle = async {
            self.0.behind.until(Behind::is_idle).await;
            self.look_up_new_keys().await;
        };
        tokio::time::timeout(limit, idle).await.is_ok()
    }
}

impl<S> Inner<S> {
    /// Something has become of the record, and nobody here may replay what it was.
    pub(crate) fn let_go(&self, id: RecordId) {
        self.cache.drop_record(id);
        if let Some(shared) = &self.options.shared_cache {
            shared.remove(id);
        }
        self.waiters.wake(id);
    }
}

impl<S> fmt::Debug for Engine<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").field("clock", &self.0.clock).finish_non_exhaustive()
    }
}

/// What an engine has done and holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Commits.
    pub commits: u64,
    /// Writes in them.
    pub writes: u64,
    /// How often a batch was let grow.
    pub lingers: u64,
    /// What the cache holds.
    pub cache_bytes: u64,
    /// Clean-ups and settlements that go on without anybody waiting for them.
    pub behind: usize,
    /// Steps of the store's clock that this node has noticed.
    pub clock_steps: ClockSteps,
}

/// Counts work that nobody waits for.
#[derive(Default)]
pub(crate) struct Behind {
    count: AtomicUsize,
    /// Attempts in somebody's hands.
    held: AtomicUsize,
    ended: Notify,
}

impl Behind {
    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    fn is_quiet(&self) -> bool {
        self.count() == 0
    }

    fn is_idle(&self) -> bool {
        self.is_quiet() && self.held.load(Ordering::Acquire) == 0
    }

    async fn until(&self, is_so: impl Fn(&Self) -> bool) {
        loop {
            let mut ended = std::pin::pin!(self.ended.notified());
            ended.as_mut().enable();
            if is_so(self) {
                return;
            }
            ended.await;
        }
    }

    pub(crate) fn take_up(&self) {
        self.held.fetch_add(1, Ordering::AcqRel);
    }

    pub(crate) fn lay_down(&self) {
        self.held.fetch_sub(1, Ordering::AcqRel);
        self.ended.notify_waiters();
    }
}

impl<S: Store> Engine<S> {
    /// Runs `work` without anybody waiting for it.
    pub(crate) fn behind(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.0.behind.count.fetch_add(1, Ordering::AcqRel);
        let ended = Ended(self.clone());
        self.0.runtime.spawn(async move {
            let _ended = ended;
            work.await;
        });
    }
}

struct Ended<S>(Engine<S>);

impl<S> Drop for Ended<S> {
    fn drop(&mut self) {
        let behind = &self.0.0.behind;
        behind.count.fetch_sub(1, Ordering::AcqRel);
        behind.ended.notify_waiters();
    }
}

/// Why an engine did not start.
#[derive(Debug)]
pub enum StartError {
    /// The store's clock could not be read.
    Clock(StoreError),
    /// No thread for the writer.
    Thread(std::io::Error),
    /// The store's history could not be checked, or its quarantines not be read.
    History(StoreError),
    /// An option is outside its range.
    Options(InvalidDuration),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Clock(error) => write!(f, "the store's clock could not be read: {error}"),
            Self::Thread(error) => write!(f, "the writer's thread could not be started: {error}"),
            Self::History(error) => write!(f, "the store's history could not be checked: {error}"),
            Self::Options(error) => write!(f, "invalid option: {error}"),
        }
    }
}

impl Error for StartError {}
