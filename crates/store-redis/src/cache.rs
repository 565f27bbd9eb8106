//! Completed records that nodes share, beside another store: speed, and no promise.
//!
//! **Invariant:** whatever Redis does, a get ends soon and gives a whole, completed record of the id that was asked for, or nothing; a
//! put or a removal returns at once. A Redis that is down at the start is an empty cache until it is there.
//!
//! Eviction is welcome here, unlike in the store. Not here: how old an entry may be when it is used (the engine). Whoever may
//! write to this Redis may forge an answer: the checksum is against damage, not against people.

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use oncegate_core::identity::RecordId;
use oncegate_store::Result;
use oncegate_store::shared_cache::{Kept, SharedCache};
use oncegate_store::signals::Pending;
use tokio::sync::{mpsc, oneshot};

mod breaker;
mod entry;
mod keeper;
mod reader;
mod writer;

use breaker::Breaker;
use keeper::Keeper;
use reader::{Question, Reader};
use writer::{Change, Writer};

use crate::address::{Address, BAD_PREFIX, is_prefix, refused};
use crate::io::{self, Io};
use crate::keys::Keys;
use crate::link::Connection;

/// So many gets may wait; who comes beyond that asks the store.
const QUESTIONS_WAITING_MAX: usize = 1_024;

/// How to use a Redis as a cache.
#[derive(Clone)]
pub struct RedisCacheOptions {
    url: String,
    prefix: Option<String>,
    limit: Duration,
    age: Duration,
    changes_max: usize,
    failures_max: u32,
    pause: Duration,
}

impl RedisCacheOptions {
    /// The server at `redis://[user:password@]host[:port][/database][?prefix=…]`, or `rediss://…`
    /// for TLS, which is verified;
    /// its option `tls_ca=FILE` names certificates to trust instead of the system's.
    #[must_use]
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            prefix: None,
            limit: Duration::from_millis(5),
            age: Duration::from_mins(10),
            changes_max: 1024,
            failures_max: 5,
            pause: Duration::from_secs(1),
        }
    }

    /// What the cache's keys begin with, `oncegate` unless told; goes before the URL's.
    #[must_use]
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = Some(prefix.into());
        self
    }

    /// How long a trip to Redis may take, five milliseconds unless told; a get waits for its own and, under
    /// load, for up to eight before it.
    #[must_use]
    pub const fn limit(mut self, span: Duration) -> Self {
        self.limit = span;
        self
    }

    /// How long an entry is kept, ten minutes unless told: as long as the engine would use it.
    #[must_use]
    pub const fn age(mut self, span: Duration) -> Self {
        self.age = span;
        self
    }

    /// How many puts and removals may wait, 1,024 unless told; what comes beyond that is dropped.
    #[must_use]
    pub const fn changes_max(mut self, count: usize) -> Self {
        self.changes_max = if count == 0 { 1 } else { count };
        self
    }

    /// After how many failures in a row it is left alone, and for how long; five and a second unless told.
    #[must_use]
    pub const fn breaker(mut self, failures_max: u32, pause: Duration) -> Self {
        self.failures_max = failures_max;
        self.pause = pause;
        self
    }

    /// Starts the cache. Waits for nothing: the connection is made in the background. Fails only for a URL that is wrong.
    pub fn start(self) -> Result<RedisCache> {
        let address = Address::parse(&self.url)?;
        let prefix = self.prefix.as_deref().or(address.prefix.as_deref()).unwrap_or("oncegate");
        if !is_prefix(prefix) {
            return Err(refused(BAD_PREFIX));
        }
        let keys = Keys::new(prefix);
        let io = Io::start("oncegate-cache")?;
        let (changes, waiting) = mpsc::channel(self.changes_max);
        let current = Arc::new(Current::default());
        io.handle().spawn(Keeper::new(address.clone(), Arc::clone(&current)).run());
        let writer = Writer { waiting, current: Arc::clone(&current), keys: keys.clone(), age: self.age };
        io.handle().spawn(writer.run());
        let breaker = Arc::new(Breaker::new(self.failures_max, io::bounded(self.pause)));
        let (questions, waiting) = mpsc::channel(QUESTIONS_WAITING_MAX);
        let reader = Reader {
            waiting,
            current: Arc::clone(&current),
            keys,
            limit: io::bounded(self.limit),
            breaker: Arc::clone(&breaker),
        };
        io.handle().spawn(reader.run());
        Ok(RedisCache { _io: io, current, questions, breaker, changes, address })
    }
}

impl fmt::Debug for RedisCacheOptions {
    /// Without the URL, which may hold a password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisCacheOptions").field("limit", &self.limit).finish_non_exhaustive()
    }
}

/// A shared cache in Redis.
pub struct RedisCache {
    _io: Io,
    current: Arc<Current>,
    questions: mpsc::Sender<Question>,
    breaker: Arc<Breaker>,
    changes: mpsc::Sender<Change>,
    address: Address,
}

impl SharedCache for RedisCache {
    fn get(&self, id: RecordId) -> Pending<'_, Option<Kept>> {
        Box::pin(async move {
            // Known to be of no use: not even a question.
            if !self.current.is_there() || self.breaker.is_open(Instant::now()) {
                return None;
            }
            let (answer, answered) = oneshot::channel();
            self.questions.try_send(Question { id, answer }).ok()?;
            entry::decode(&answered.await.ok()?, id)
        })
    }

    fn put(&self, kept: Kept) {
        self.tell(Change::Put(Box::new(kept)));
    }

    fn remove(&self, id: RecordId) {
        self.tell(Change::Remove(id));
    }
}

impl RedisCache {
    /// Dropped when too many wait: an entry more or less changes no decision.
    fn tell(&self, change: Change) {
        let _ = self.changes.try_send(change);
    }
}

impl fmt::Debug for RedisCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RedisCache({:?})", self.address)
    }
}

/// The connection, while there is one.
#[derive(Default)]
struct Current(RwLock<Option<Connection>>);

impl Current {
    fn get(&self) -> Option<Connection> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn is_there(&self) -> bool {
        self.0.read().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    fn set(&self, connection: Option<Connection>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = connection;
    }
}
