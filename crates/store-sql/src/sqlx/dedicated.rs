//! Transactions of a pool that atomic handlers have to themselves.
//!
//! sqlx's pool looks after each connection that comes back, by a round trip, and gives the one out that has rested longest, so that all of a server's sessions
//! take turns. Where nobody else uses the pool neither is needed: a connection whose transaction was committed goes to the next handler as it is, the one that
//! came back last first. Its session has what it needs in the processor's caches.
//!
//! Where somebody waits for a connection, the message that closes one handler's transaction opens the next one's: `…; COMMIT; …; BEGIN`. The server stops at the first statement that fails, and
//! what has ended before that has ended. So a closing that fails has opened nothing, and an opening that fails takes no commit back.
//!
//! sqlx must go on counting one transaction all the while, so that a handler's nested ones are nested ones: its value is kept from one handler to the next, and only the server knows
//! that they are several.
//!
//! **Invariant:** a connection that rests is in no transaction, as far as the server knows. What rests for longer than a moment goes back to the pool.

mod line;

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use ::sqlx::{AssertSqlSafe, PgConnection, PgPool, Postgres};
use futures_util::TryStreamExt as _;
use line::{Line, Served, Waiting, begin_after};
use oncegate_store::join::{Asking, Closed, Connection, Opened, Transaction, Transactions, Value};
use oncegate_store::outlive::Outlive;
use oncegate_store::{Effect, Kind, Result, StoreError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::{
    Closing, PgTransactions, SqlxTransaction, Unlogged, close, is_outside, is_refusal_of_postgres,
    not_closed, not_opened,
};

/// How long a connection waits for the next handler before it goes back to the pool.
const REST: Duration = Duration::from_millis(20);
/// How long the server may take to answer on a connection that has rested; after that it is taken for lost, and another is used.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long it may take to answer a closing that takes an opening along. Whoever is closed waits as long as its policy says; it is the other that must not be kept for ever.
const CLOSING_MAX: Duration = Duration::from_mins(1);
/// After so long it goes back in any case: its lifetime is the pool's to mind.
const HELD_MAX: Duration = Duration::from_secs(10);

/// Begins transactions on a pool of PostgreSQL connections that nobody else uses, at its default isolation level.
///
/// Faster than [`PgTransactions`], because connections are not handed back to the pool while there is work. Whoever else waited for one of them
/// would wait for as long as there is.
#[derive(Clone)]
pub struct PgDedicated(Arc<Dedicated>);

struct Dedicated {
    pool: PgPool,
    /// Who may have a connection: as many as the pool has.
    turns: Arc<Semaphore>,
    /// Who waits for that.
    line: Line,
    resting: Mutex<Resting>,
}

#[derive(Default)]
struct Resting {
    /// The last is the one that came last.
    connections: Vec<(Instant, Held)>,
    /// Whether a task sends back what has rested.
    is_watched: bool,
}

/// A connection, as the transaction that sqlx takes all that happens on it for.
struct Held {
    transaction: SqlxTransaction<Postgres>,
    since: Instant,
}

impl Held {
    /// Its lifetime is the pool's to mind, after so long.
    fn is_due_back(&self) -> bool {
        self.since.elapsed() > HELD_MAX
    }

    /// To the pool, from where it rested, by a task: sqlx ends what it counts, and the server would warn of a transaction that is not there.
    fn give_back(mut self) {
        tokio::spawn(async move {
            let begun = ::sqlx::raw_sql("BEGIN").execute(&mut *self.transaction);
            if !matches!(tokio::time::timeout(PATIENCE, begun).await, Ok(Ok(_))) {
                tracing::debug!("a connection that rested is lost");
            }
        });
    }
}

/// A transaction of [`PgDedicated`]. Used as a connection in the caller's own statements: `query.execute(&mut *transaction)`.
pub struct DedicatedTransaction {
    held: Held,
    of: Arc<Dedicated>,
    turn: OwnedSemaphorePermit,
}

impl PgDedicated {
    /// Of this pool, of which there should be no other user.
    #[must_use]
    pub fn new(pool: PgPool) -> Self {
        let turns = usize::try_from(pool.options().get_max_connections()).unwrap_or(Semaphore::MAX_PERMITS);
        let turns = Arc::new(Semaphore::new(turns.min(Semaphore::MAX_PERMITS)));
        Self(Arc::new(Dedicated { pool, turns, line: Line::default(), resting: Mutex::default() }))
    }

    /// The pool: to look at it, and to close it.
    #[must_use]
    pub fn pool(&self) -> &PgPool {
        &self.0.pool
    }

    /// Seen to its end, whoever gives up; see [`PgTransactions`]. Whoever only waits for its turn leaves.
    async fn begin_by(&self, opening: Option<String>) -> Result<Opened<DedicatedTransaction>> {
        let of = Arc::clone(&self.0);
        // Nobody is passed over: a turn that is free has nobody waiting for it.
        let served = if let Ok(turn) = Arc::clone(&of.turns).try_acquire_owned() {
            Ok(Served::Turn(turn))
        } else {
            let patience = of.pool.options().get_acquire_timeout();
            tokio::time::timeout(patience, of.served(opening.as_deref())).await
        };
        match served {
            Ok(Served::Opened(opened)) => opened,
            Ok(Served::Turn(turn)) => Outlive::new(of.begin(turn, opening)).await,
            Err(_) => {
                let words = "no connection of the pool was free in time";
                Err(StoreError::new(Kind::Unavailable, Effect::None, "begin").because(words))
            }
        }
    }
}

impl fmt::Debug for PgDedicated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PgDedicated").field(&self.0.pool).finish()
    }
}

impl fmt::Debug for DedicatedTransaction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("DedicatedTransaction").field(&self.held.transaction).finish()
    }
}

impl Transactions for PgDedicated {
    type Transaction = DedicatedTransaction;

    async fn begin(&self) -> Result<DedicatedTransaction> {
        match self.begin_by(None).await? {
            Opened::Begun(transaction) => Ok(transaction),
            // It was asked for no key.
            Opened::Occupied | Opened::Unable => {
                Err(StoreError::new(Kind::Other, Effect::None, "begin").because("a key was not asked for"))
            }
        }
    }

    async fn begin_with(&self, opening: String) -> Result<Opened<DedicatedTransaction>> {
        self.begin_by(Some(opening)).await
    }
}

impl Dedicated {
    /// Waits in line.
    async fn served(&self, opening: Option<&str>) -> Served {
        loop {
            let turn = Arc::clone(&self.turns).acquire_owned();
            if let Some(served) = self.line.wait(opening, turn).await {
                return served;
            }
        }
    }

    async fn begin(
        self: Arc<Self>,
        turn: OwnedSemaphorePermit,
        opening: Option<String>,
    ) -> Result<Opened<DedicatedTransaction>> {
        while let Some(mut held) = self.rested() {
            let message = begin_after(opening.as_deref());
            let begun = ::sqlx::raw_sql(AssertSqlSafe(message)).execute(&mut *held.transaction);
            match tokio::time::timeout(PATIENCE, begun).await {
                Ok(Ok(_)) => return Ok(Opened::Begun(DedicatedTransaction { held, of: self, turn })),
                Ok(Err(error)) if is_refusal_of_postgres(&error) => return self.refused(held, error),
                // The server has closed it while it rested, or is not heard of; the pool has others.
                Ok(Err(error)) => tracing::debug!(%error, "a connection that rested is lost"),
                Err(_) => tracing::debug!("a connection that rested says nothing"),
            }
        }
        let begun = PgTransactions(self.pool.clone());
        let since = Instant::now();
        let opened = match opening {
            Some(opening) => begun.begin_with(opening).await?,
            None => Opened::Begun(begun.begin().await?),
        };
        Ok(match opened {
            Opened::Begun(transaction) => {
                Opened::Begun(DedicatedTransaction { held: Held { transaction, since }, of: self, turn })
            }
            Opened::Occupied => Opened::Occupied,
            Opened::Unable => Opened::Unable,
        })
    }

    /// An opening has failed, and nothing has begun.
    fn refused(self: &Arc<Self>, held: Held, error: ::sqlx::Error) -> Result<Opened<DedicatedTransaction>> {
        let opened = not_opened(error);
        // Of an occupied key nothing is wrong with the connection. What else the server says may be the fault of its session:
        // that is the pool's again, and the next request has another.
        match opened {
            Ok(Opened::Occupied) => self.rest(held),
            _ => held.give_back(),
        }
        opened
    }

    /// Whom a closing on this connection takes along.
    fn next(&self, held: &Held) -> Option<Waiting> {
        if held.is_due_back() || self.pool.is_closed() { None } else { self.line.take() }
    }

    /// The connection that came back last, of those that are not due back.
    fn rested(&self) -> Option<Held> {
        if self.pool.is_closed() {
            return None;
        }
        let mut resting = self.resting.lock().unwrap_or_else(PoisonError::into_inner);
        let place = resting.connections.iter().rposition(|(_, held)| !held.is_due_back())?;
        Some(resting.connections.remove(place).1)
    }

    /// Keeps it for the next one, for a moment.
    fn rest(self: &Arc<Self>, held: Held) {
        if held.is_due_back() {
            return held.give_back();
        }
        let mut resting = self.resting.lock().unwrap_or_else(PoisonError::into_inner);
        resting.connections.push((Instant::now(), held));
        if !std::mem::replace(&mut resting.is_watched, true) {
            drop(resting);
            let mut watch = Watch { over: Arc::clone(self), is_done: false };
            tokio::spawn(async move {
                while !watch.is_done {
                    tokio::time::sleep(REST).await;
                    watch.is_done = !watch.over.give_back_rested();
                }
            });
        }
    }

    /// Gives the pool back what nobody has wanted for a while, or what is due. Whether something still rests.
    fn give_back_rested(&self) -> bool {
        let mut resting = self.resting.lock().unwrap_or_else(PoisonError::into_inner);
        let has_rested = |(since, held): &mut (Instant, Held)| since.elapsed() >= REST || held.is_due_back();
        resting.connections.extract_if(.., has_rested).for_each(|(_, held)| held.give_back());
        resting.is_watched = !resting.connections.is_empty();
        resting.is_watched
    }
}

/// Whoever sends back what has rested. It may end with its runtime before it is done; then another will.
struct Watch {
    over: Arc<Dedicated>,
    /// Nothing rested when it looked last, and it has said so.
    is_done: bool,
}

impl Drop for Watch {
    fn drop(&mut self) {
        if !self.is_done {
            self.over.resting.lock().unwrap_or_else(PoisonError::into_inner).is_watched = false;
        }
    }
}

impl Drop for Dedicated {
    /// A connection goes back to its pool by a task. Without a runtime there are none, and nothing to go back to.
    fn drop(&mut self) {
        let resting = self.resting.get_mut().unwrap_or_else(PoisonError::into_inner);
        let rested = std::mem::take(&mut resting.connections).into_iter().map(|(_, held)| held);
        match tokio::runtime::Handle::try_current() {
            Ok(_) => rested.for_each(Held::give_back),
            Err(_) => rested.for_each(std::mem::forget),
        }
    }
}

impl Transaction for DedicatedTransaction {
    type Inner = PgConnection;

    async fn commit(self) -> Result<()> {
        self.held.transaction.commit().await
    }

    async fn commit_with(mut self, closing: String) -> Result<Closed<Self>> {
        if let Some(waiting) = self.of.next(&self.held) {
            // Seen to its end, whoever gives up: it is another's, too.
            return Outlive::new(self.close_with(closing, waiting)).await;
        }
        match close(&mut self.held.transaction, closing, "; COMMIT").await {
            Ok(Closing::Outside) => Ok(Closed::Outside(self)),
            Ok(Closing::Committed) => {
                // Before its turn ends, so that whoever comes next finds it.
                self.of.rest(self.held);
                drop(self.turn);
                Ok(Closed::Committed)
            }
            Err(error) => Err(not_closed(self.held.transaction, error).await),
        }
    }

    async fn roll_back(self) {
        self.held.transaction.roll_back().await;
    }

    fn is_lost(&self) -> bool {
        self.held.transaction.is_lost()
    }

    async fn regain(&mut self) -> Result<()> {
        self.held.transaction.regain().await
    }
}

/// The statements of a message that are a transaction's end: its closing, and `COMMIT`.
const ENDING: usize = 2;

impl DedicatedTransaction {
    /// Commits, and begins the transaction of the one that waits, in one message.
    async fn close_with(self, closing: String, waiting: Waiting) -> Result<Closed<Self>> {
        let Self { mut held, of, turn } = self;
        let message = format!("{closing}; COMMIT; {}", waiting.message());
        let mut ended = 0;
        let sent = Unlogged::new(send(&mut held.transaction, message, &mut ended));
        let sent = tokio::time::timeout(CLOSING_MAX, sent).await.unwrap_or_else(|_| Err(silent()));
        match sent {
            Ok(()) => {
                waiting.tell(Served::Opened(Ok(Opened::Begun(Self { held, of, turn }))));
                Ok(Closed::Committed)
            }
            Err(error) if ended >= ENDING => {
                if is_refusal_of_postgres(&error) {
                    let opened = of.refused(held, error);
                    drop(turn);
                    waiting.tell(Served::Opened(opened));
                } else {
                    // The connection is lost, and with it whatever had begun; the pool has others.
                    tracing::debug!(%error, "a connection was lost after a commit");
                    drop(held);
                    waiting.tell(Served::Turn(turn));
                }
                Ok(Closed::Committed)
            }
            // The transaction is still this one's to end.
            Err(error) if is_outside(&error) => Ok(Closed::Outside(Self { held, of, turn })),
            Err(error) => {
                let error = not_closed(held.transaction, error).await;
                waiting.tell(Served::Turn(turn));
                Err(error)
            }
        }
    }
}

/// Runs the statements of a message, and counts those that have ended.
async fn send(connection: &mut PgConnection, message: String, ended: &mut usize) -> ::sqlx::Result<()> {
    let mut results = ::sqlx::raw_sql(AssertSqlSafe(message)).execute_many(connection);
    while results.try_next().await?.is_some() {
        *ended += 1;
    }
    Ok(())
}

fn silent() -> ::sqlx::Error {
    ::sqlx::Error::Io(std::io::Error::new(std::io::ErrorKind::TimedOut, "the server says nothing"))
}

impl Connection for DedicatedTransaction {
    fn ask<'a>(&'a mut self, sql: &'a str, values: &'a [Value<'a>]) -> Asking<'a> {
        self.held.transaction.ask(sql, values)
    }
}

impl Deref for DedicatedTransaction {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        &self.held.transaction
    }
}

impl DerefMut for DedicatedTransaction {
    fn deref_mut(&mut self) -> &mut PgConnection {
        &mut self.held.transaction
    }
}
