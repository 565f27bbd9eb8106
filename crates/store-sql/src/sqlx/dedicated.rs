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

mod calls;
mod line;

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use ::sqlx::{AssertSqlSafe, PgConnection, PgPool, Postgres};
use calls::Calls;
use futures_util::TryStreamExt as _;
use line::{Line, Served, Waiting, begin_after};
use oncegate_store::join::{Asking, Closed, Connection, Opened, Transaction, Transactions, Value};
use oncegate_store::outlive::Outlive;
use oncegate_store::{Effect, Kind, Result, StoreError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::{
    PgTransactions, SqlxTransaction, Unlogged, is_outside, is_refusal_of_postgres, not_closed, not_opened,
};

/// What a connection rests for, unless it is said otherwise.
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
    /// How long a connection waits for the next handler before it goes back to the pool.
    rest: Duration,
    /// Who may have a connection: as many as the pool has.
    turns: Arc<Semaphore>,
    /// Who waits for that.
    line: Line,
    /// What its sessions prepare.
    calls: Calls,
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
    /// Whether its session has the calls prepared.
    is_prepared: bool,
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
    /// Whether its opening was executed by name, so that its closing can be.
    is_by_name: bool,
}

impl PgDedicated {
    /// Of this pool, of which there should be no other user.
    #[must_use]
    pub fn new(pool: PgPool) -> Self {
        Self::resting_for(REST, pool)
    }

    /// The same; a connection waits so long for the next handler before it is the pool's again, instead of 20 ms; ten seconds at most. Where requests come now and
    /// then, a longer rest keeps sessions from being handed to and fro.
    #[must_use]
    pub fn resting_for(rest: Duration, pool: PgPool) -> Self {
        let turns = usize::try_from(pool.options().get_max_connections()).unwrap_or(Semaphore::MAX_PERMITS);
        let turns = Arc::new(Semaphore::new(turns.min(Semaphore::MAX_PERMITS)));
        Self(Arc::new(Dedicated {
            pool,
            rest,
            turns,
            line: Line::default(),
            calls: Calls::default(),
            resting: Mutex::default(),
        }))
    }

    /// The pool: to look at it, and to close it.
    #[must_use]
    pub fn pool(&self) -> &PgPool {
        &self.0.pool
    }

    /// Seen to its end, whoever gives up; see [`PgTransactions`]. Whoever only waits for its turn leaves.
    async fn begin_by(&self, opening: Option<String>) -> Result<Opened<DedicatedTransaction>> {
        let of = Arc::clone(&self.0);
        if let Some(opening) = &opening {
            of.calls.meet_opening(opening);
        }
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
            let (message, is_by_name) = self.beginning(&held, opening.as_deref());
            let begun = ::sqlx::raw_sql(AssertSqlSafe(message)).execute(&mut *held.transaction);
            match tokio::time::timeout(PATIENCE, begun).await {
                Ok(Ok(_)) => {
                    return Ok(Opened::Begun(DedicatedTransaction { held, of: self, turn, is_by_name }));
                }
                // Again, in full.
                Ok(Err(error)) if is_by_name && is_unprepared(&error) => self.rest_unprepared(held),
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
                let held = Held { transaction, since, is_prepared: false };
                Opened::Begun(DedicatedTransaction { held, of: self, turn, is_by_name: false })
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

    /// How a transaction begins on this connection, and whether it is by name.
    fn beginning(&self, held: &Held, opening: Option<&str>) -> (String, bool) {
        let by_name = opening.filter(|_| held.is_prepared && !self.calls.is_off());
        let by_name = by_name.and_then(|opening| self.calls.opening_by_name(opening));
        (begin_after(by_name.as_deref().or(opening)), by_name.is_some())
    }

    /// Its session has not kept what was prepared, or is another.
    fn rest_unprepared(self: &Arc<Self>, held: Held) {
        self.calls.turn_off();
        self.rest(Held { is_prepared: false, ..held });
    }

    /// What a closing on this connection is followed by, in one message.
    fn after(&self, held: &Held) -> After {
        if held.is_due_back() || self.pool.is_closed() {
            return After::Nothing;
        }
        if !held.is_prepared
            && let Some(preparing) = self.calls.preparing()
        {
            return After::Preparing(preparing);
        }
        self.line.take().map_or(After::Nothing, |waiting| {
            let (message, is_by_name) = self.beginning(held, waiting.opening());
            After::Beginning { waiting, message, is_by_name }
        })
    }

    /// The connection that came back last. Those that are due back go there.
    fn rested(&self) -> Option<Held> {
        if self.pool.is_closed() {
            return None;
        }
        let mut resting = self.resting.lock().unwrap_or_else(PoisonError::into_inner);
        let is_due = |(_, held): &mut (Instant, Held)| held.is_due_back();
        resting.connections.extract_if(.., is_due).for_each(|(_, held)| held.give_back());
        resting.connections.pop().map(|(_, held)| held)
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
                    tokio::time::sleep(watch.over.rest.min(HELD_MAX)).await;
                    watch.is_done = !watch.over.give_back_rested();
                }
            });
        }
    }

    /// Gives the pool back what nobody has wanted for a while, or what is due. Whether something still rests.
    fn give_back_rested(&self) -> bool {
        let mut resting = self.resting.lock().unwrap_or_else(PoisonError::into_inner);
        let has_rested =
            |(since, held): &mut (Instant, Held)| since.elapsed() >= self.rest || held.is_due_back();
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

    async fn commit_with(self, closing: String) -> Result<Closed<Self>> {
        self.of.calls.meet_closing(&closing);
        let by_name = if self.is_by_name { self.of.calls.closing_by_name(&closing) } else { None };
        let closing = by_name.unwrap_or(closing);
        match self.of.after(&self.held) {
            // Seen to its end, whoever gives up: it is another's, too.
            after @ After::Beginning { .. } => {
                let closing = tokio::time::timeout(CLOSING_MAX, self.close(closing, after));
                Outlive::new(closing).await.unwrap_or_else(|_| Err(silent()))
            }
            after => self.close(closing, after).await,
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

/// The statements of a message that are a transaction's end: its closing, and `COMMIT`. (Where a handler has ended its transaction by hand, the closing is committed by itself: what
/// the handler did since is committed, too.)
const ENDING: usize = 2;

/// What follows an ending, in the same message.
enum After {
    Nothing,
    /// The session prepares what it will be asked for again and again.
    Preparing(String),
    /// The transaction of the one that waits.
    Beginning {
        waiting: Waiting,
        message: String,
        is_by_name: bool,
    },
}

impl After {
    fn message(&self) -> Option<&str> {
        match self {
            Self::Nothing => None,
            Self::Preparing(message) | Self::Beginning { message, .. } => Some(message),
        }
    }
}

impl DedicatedTransaction {
    /// Commits, with what is to follow in the same message.
    async fn close(self, closing: String, after: After) -> Result<Closed<Self>> {
        let Self { mut held, of, turn, is_by_name } = self;
        let mut message = closing + "; COMMIT";
        message.extend(after.message().into_iter().flat_map(|after| ["; ", after]));
        let mut ended = 0;
        let sent = Unlogged::new(send(&mut held.transaction, message, &mut ended)).await;
        match sent {
            Ok(()) => {
                of.go_on(held, turn, after);
                Ok(Closed::Committed)
            }
            Err(error) if ended >= ENDING => {
                of.go_on_without(held, turn, after, error);
                Ok(Closed::Committed)
            }
            // The transaction is still this one's to end.
            Err(error) if is_outside(&error) => Ok(Closed::Outside(Self { held, of, turn, is_by_name })),
            Err(error) => {
                if is_by_name && is_unprepared(&error) {
                    of.calls.turn_off();
                }
                let error = not_closed(held.transaction, error).await;
                if let After::Beginning { waiting, .. } = after {
                    waiting.tell(Served::Turn(turn));
                }
                Err(error)
            }
        }
    }
}

impl Dedicated {
    /// A transaction has ended on this connection, and what was to follow has happened.
    fn go_on(self: Arc<Self>, held: Held, turn: OwnedSemaphorePermit, after: After) {
        match after {
            // Before its turn ends, so that whoever comes next finds it.
            After::Nothing => self.rest(held),
            After::Preparing(_) => self.rest(Held { is_prepared: true, ..held }),
            After::Beginning { waiting, is_by_name, .. } => {
                let begun = DedicatedTransaction { held, of: self, turn, is_by_name };
                waiting.tell(Served::Opened(Ok(Opened::Begun(begun))));
            }
        }
    }

    /// A transaction has ended on this connection, and what was to follow has failed.
    fn go_on_without(
        self: Arc<Self>,
        held: Held,
        turn: OwnedSemaphorePermit,
        after: After,
        error: ::sqlx::Error,
    ) {
        if !is_refusal_of_postgres(&error) {
            // The connection is lost, and with it whatever had begun; the pool has others.
            tracing::debug!(%error, "a connection was lost after a commit");
            drop(held);
            if let After::Beginning { waiting, .. } = after {
                waiting.tell(Served::Turn(turn));
            }
            return;
        }
        match after {
            After::Nothing => self.rest(held),
            After::Preparing(_) => self.rest_unprepared(held),
            After::Beginning { waiting, is_by_name: true, .. } if is_unprepared(&error) => {
                self.rest_unprepared(held);
                waiting.tell(Served::Turn(turn));
            }
            After::Beginning { waiting, .. } => {
                let opened = self.refused(held, error);
                drop(turn);
                waiting.tell(Served::Opened(opened));
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

/// The server says that it knows of no statement of that name.
fn is_unprepared(error: &::sqlx::Error) -> bool {
    error.as_database_error().and_then(::sqlx::error::DatabaseError::code).as_deref() == Some("26000")
}

fn silent() -> StoreError {
    let words = "the server says nothing";
    StoreError::new(Kind::Unavailable, Effect::Unknown, "commit").because(words)
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
