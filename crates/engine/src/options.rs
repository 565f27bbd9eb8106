//! What an engine may be told.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use oncegate_core::duration::{InvalidDuration, check_max, check_positive};
use oncegate_store::shared_cache::SharedCache;

use crate::clock::NodeClock;
use crate::workers::WorkerOptions;

/// How an engine behaves. The defaults suit one service on one machine.
#[derive(Clone, Debug)]
pub struct Options {
    /// The most that the cache of completed records may hold.
    pub cache_bytes: u64,
    /// A completed record is replayed from the cache for at most so long after the store showed it. The tombstone of a
    /// forgotten key lives longer than that, by [`Options::store_timeout`]: nodes that share a store must agree on it.
    ///
    /// A node that is told of the forgetting lets go of the answer in milliseconds, and one that was deaf for a while of all
    /// that it holds. Signals may be lost, and some stores have none (PostgreSQL behind a pooler): then, and only then, a
    /// node replays a forgotten answer for as long as this.
    pub cache_age_max: Duration,
    /// The most that may wait to be written; past it new requests are refused as `overloaded`.
    pub queue_bytes: usize,
    /// The most writes in one commit.
    pub batch_max: usize,
    /// The longest wait for a batch to grow, under load only.
    pub linger: Duration,
    /// A reserve that the store has not acknowledged in this time is given up and cleaned up.
    pub store_timeout: Duration,
    /// How long a reserve in doubt is tried again before its client is told that the store is unavailable.
    pub doubt_patience: Duration,
    /// How often a waiting duplicate looks by itself, for answers that another node recorded.
    ///
    /// Where the store carries signals, another node's answer wakes it in milliseconds, and so does a connection that was lost
    /// and is there again. Where it carries none, or one was lost, this is how late an answer may come.
    pub wait_poll: Duration,
    /// After so many failed commits in a row new requests are refused at once…
    pub breaker_failures: u32,
    /// …for this long; then one of them is let through to look.
    pub breaker_pause: Duration,
    /// Completed records that nodes share beside the store, asked after this node's own cache and before the store.
    pub shared_cache: Option<Shared>,
    /// This node, in the audit trail.
    pub node: Box<str>,
    /// Whether the audit trail tells of every first execution too, and not only of what is off the happy path: one row more a key.
    pub audit_executions: bool,
    /// How long the ids of removed rows are remembered, so that a key that runs again after its
    /// retention is counted and told.
    /// Zero: not at all. More than [`REMOVED_KEYS_MAX`] is that.
    pub removed_keys_for: Duration,
    /// How often the engine checks that the store still has what it wrote, and reads the quarantines.
    pub check_history_every: Duration,
    /// How far a key's time may lie outside a quarantine and still count as inside: clients' clocks are off.
    pub quarantine_skew: Duration,
    /// The background workers that [`Engine::start`](crate::Engine::start) starts.
    pub workers: BackgroundWorkers,
    /// A clock other than the store's own, for tests.
    pub clock: Option<NodeClock>,
    /// Where lease tokens come from. The system, but for tests.
    pub randomness: Randomness,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            cache_bytes: 64 << 20,
            cache_age_max: Duration::from_mins(10),
            queue_bytes: 64 << 20,
            batch_max: 512,
            linger: Duration::from_micros(300),
            store_timeout: Duration::from_secs(5),
            doubt_patience: Duration::from_millis(500),
            wait_poll: Duration::from_millis(500),
            breaker_failures: 5,
            breaker_pause: Duration::from_millis(500),
            shared_cache: None,
            node: this_node(),
            audit_executions: false,
            removed_keys_for: Duration::from_hours(7 * 24),
            check_history_every: Duration::from_secs(2),
            quarantine_skew: Duration::from_mins(5),
            workers: BackgroundWorkers::Default(WorkerOptions::default()),
            clock: None,
            randomness: Randomness::default(),
        }
    }
}

/// The longest time for which ids of removed rows are remembered: a look-up asks for each day by
/// itself.
pub const REMOVED_KEYS_MAX: Duration = Duration::from_hours(31 * 24);

/// The background workers that an engine starts by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BackgroundWorkers {
    /// The sweeper and the reaper: expired rows are removed, and lapsed leases become what their crash policy says. They end with
    /// the engine. [`Engine::start_workers`](crate::Engine::start_workers) adds those that need a probe, and takes over from these.
    Default(WorkerOptions),
    /// None. Another process on the same store runs them, or the caller starts its own.
    None,
}

impl Options {
    /// Refuses durations above 100 years, and zero where it has no meaning.
    pub fn check(&self) -> Result<(), InvalidDuration> {
        check_max("cache_age_max", self.cache_age_max)?;
        check_max("linger", self.linger)?;
        check_positive("store_timeout", self.store_timeout)?;
        check_max("doubt_patience", self.doubt_patience)?;
        check_positive("wait_poll", self.wait_poll)?;
        check_max("breaker_pause", self.breaker_pause)?;
        check_positive("check_history_every", self.check_history_every)?;
        check_max("quarantine_skew", self.quarantine_skew)?;
        match &self.workers {
            BackgroundWorkers::Default(options) => options.check(),
            BackgroundWorkers::None => Ok(()),
        }
    }
}

/// The host's name, and the process.
fn this_node() -> Box<str> {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").ok();
    let host = host.or_else(|| std::env::var("HOSTNAME").ok()).unwrap_or_default();
    let host = if host.trim().is_empty() { "node" } else { host.trim() };
    format!("{host}:{}", std::process::id()).into()
}

/// A shared cache, whichever it is.
#[derive(Clone)]
pub struct Shared(Arc<dyn SharedCache>);

impl Shared {
    /// This one.
    #[must_use]
    pub fn new(cache: impl SharedCache) -> Self {
        Self(Arc::new(cache))
    }
}

impl Deref for Shared {
    type Target = dyn SharedCache;

    fn deref(&self) -> &Self::Target {
        &*self.0
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Shared")
    }
}

/// A source of randomness for lease tokens.
#[derive(Clone)]
pub struct Randomness(Arc<Fill>);

/// Fills a buffer with random bytes.
type Fill = dyn Fn(&mut [u8]) -> Result<(), NoRandomness> + Send + Sync;

/// The source could not give random bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoRandomness;

impl Randomness {
    /// A source other than the system's, for tests.
    #[must_use]
    pub fn new(fill: impl Fn(&mut [u8]) -> Result<(), NoRandomness> + Send + Sync + 'static) -> Self {
        Self(Arc::new(fill))
    }

    pub(crate) fn fill(&self, bytes: &mut [u8]) -> Result<(), NoRandomness> {
        (self.0)(bytes)
    }
}

/// The system's.
impl Default for Randomness {
    fn default() -> Self {
        Self::new(|bytes| getrandom::fill(bytes).map_err(|_| NoRandomness))
    }
}

impl fmt::Debug for Randomness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Randomness")
    }
}
