//! Transactions of a pool on an SQLite file that atomic handlers have to themselves.
//!
//! A call of SQLite's through sqlx wakes the thread that owns the connection, and that one wakes whoever has called; these wake-ups are most of what a small transaction costs. sqlx's pool makes
//! one more of them for each connection that comes back, to look after it. Where nobody else uses the pool it is not needed: a connection whose transaction was committed goes to the next
//! handler as it is.
//!
//! Where handlers wait for their turn, the call that commits one transaction begins the next: `…; COMMIT; …; BEGIN`. SQLite stops at the first statement that fails, and what has ended before that has ended. So
//! a closing that fails has begun nothing, and a beginning that fails takes no commit back. Whoever is committed is told so without waiting for the other to begin.
//!
//! As in [`super::dedicated`], sqlx goes on counting one transaction all the while.
//!
//! **Invariant:** a connection that rests is in no transaction, as far as SQLite knows, and has locked nothing. A turn is handed on, or ends, after the connection was.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ::sqlx::{Sqlite, SqliteConnection, SqlitePool};
use futures_util::future::{Either, select};
use oncegate_core::identity::RecordId;
use oncegate_store::join::{
    Asking, Cause, Closed, Connection, First, Join, Last, Opened, Transaction, Transactions, Turn, Value,
    Waited,
};
use oncegate_store::outlive::Outlive;
use oncegate_store::{Effect, Kind, Result, StoreError};
use tokio::sync::oneshot;

use super::line::{self, Line};
use super::resting::{self, Held as _, REST, Resting};
use super::{COMMITTED, PATIENCE, SqliteTransactions, SqlxTransaction, hear, in_doubt, not_ended};
use crate::sqlite::BEGIN_TO_JOIN;

/// Begins transactions on a pool of SQLite connections that nobody else uses, as writers from the start: see [`SqliteTransactions`], also for how to open the pool. It wants one connection.
///
/// Faster, because the connection is not handed back to the pool while there is work. Whoever else waited for it would wait for as long as there is.
#[derive(Clone)]
pub struct SqliteDedicated(Arc<Dedicated>);

struct Dedicated {
    pool: SqlitePool,
    /// Who waits for a turn to take this key.
    line: Line<RecordId, Served>,
    resting: Arc<Resting<Held>>,
}

type Served = Waited<SqliteDedicatedTransaction>;

/// Whom a commit takes along, and what is asked of its key.
type Next = (line::Waiting<RecordId, Served>, First);

/// A connection, as the transaction that sqlx takes all that happens on it for.
struct Held {
    transaction: SqlxTransaction<Sqlite>,
    since: Instant,
}

impl resting::Held for Held {
    fn since(&self) -> Instant {
        self.since
    }

    /// sqlx ends what it counts, and would take the connection to be in a transaction for ever if there were none to end.
    fn give_back(self) {
        tokio::spawn(self.transaction.roll_back());
    }
}

/// A transaction of [`SqliteDedicated`]. Used as a connection in the caller's own statements: `query.execute(&mut *transaction)`.
pub struct SqliteDedicatedTransaction {
    held: Held,
    of: Arc<Dedicated>,
    /// Where it was begun with its key; elsewhere the turn is its caller's.
    turn: Turn,
}

impl SqliteDedicated {
    /// Of this pool, of which there should be no other user.
    #[must_use]
    pub fn new(pool: SqlitePool) -> Self {
        Self::resting_for(REST, pool)
    }

    /// The same; a connection waits so long for the next handler before it is the pool's again, instead of 20 ms; ten seconds at most.
    #[must_use]
    pub fn resting_for(rest: Duration, pool: SqlitePool) -> Self {
        Self(Arc::new(Dedicated { pool, line: Line::default(), resting: Arc::new(Resting::new(rest)) }))
    }

    /// The pool: to look at it, and to close it.
    #[must_use]
    pub fn pool(&self) -> &SqlitePool {
        &self.0.pool
    }
}

impl fmt::Debug for SqliteDedicated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SqliteDedicated").field(&self.0.pool).finish()
    }
}

impl fmt::Debug for SqliteDedicatedTransaction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SqliteDedicatedTransaction").field(&self.held.transaction).finish()
    }
}

impl Transactions for SqliteDedicated {
    type Transaction = SqliteDedicatedTransaction;

    async fn begin(&self) -> Result<SqliteDedicatedTransaction> {
        match self.0.begin(None, Turn::everybodys()).await? {
            Opened::Begun(transaction) => Ok(transaction),
            // It was asked for no key.
            Opened::Occupied | Opened::Unable => Err(not_begun("a key was not asked for")),
        }
    }

    const LOOKS_FIRST: bool = true;

    async fn wait<J: Join>(&self, store: &J, id: RecordId) -> Served {
        loop {
            let turn = async { Some(Waited::Turn(store.turn().await)) };
            if let Some(served) = self.0.line.wait(id, turn, PATIENCE).await {
                return served;
            }
        }
    }

    async fn begin_first(&self, first: First, turn: Turn) -> Result<Opened<SqliteDedicatedTransaction>> {
        self.0.begin(Some(first), turn).await
    }
}

impl Dedicated {
    /// Whoever only waits for a connection may leave, and the turn with it; what has begun is seen to its end: half-way, a connection would rest in a transaction that holds the file.
    async fn begin(
        self: &Arc<Self>,
        first: Option<First>,
        turn: Turn,
    ) -> Result<Opened<SqliteDedicatedTransaction>> {
        let rested = if self.pool.is_closed() { None } else { self.resting.take() };
        let (held, begin) = if let Some(held) = rested {
            (held, Some(BEGIN_TO_JOIN))
        } else {
            let transaction = SqliteTransactions(self.pool.clone()).begin().await?;
            (Held { since: Instant::now(), transaction }, None)
        };
        let transaction = SqliteDedicatedTransaction { held, of: Arc::clone(self), turn };
        Outlive::new(transaction.open(begin, first)).await
    }
}

fn not_begun(cause: impl Into<Cause>) -> StoreError {
    StoreError::new(Kind::Unavailable, Effect::None, "begin").because(cause)
}

impl Transaction for SqliteDedicatedTransaction {
    type Inner = SqliteConnection;

    async fn commit(self) -> Result<()> {
        self.held.transaction.commit().await
    }

    async fn commit_after(self, last: Last) -> Result<Closed<Self>> {
        let next = self.next(&last);
        let (tell, told) = oneshot::channel();
        // Seen to its end, whoever gives up: half-way, sqlx would count a transaction that is not there; and it may be another's, too.
        let closing = Outlive::new(self.close(last, next, tell));
        let told = match select(told, closing).await {
            Either::Left((told, _)) => told,
            Either::Right(((), told)) => told.await,
        };
        told.unwrap_or_else(|_| Err(in_doubt("nothing was heard of the commit")))
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

impl SqliteDedicatedTransaction {
    async fn open(mut self, begin: Option<&'static str>, first: Option<First>) -> Result<Opened<Self>> {
        let text = begin.into_iter().chain(first.as_ref().map(|first| first.sql));
        let text = text.collect::<Vec<_>>().join("; ");
        let values = first.as_ref().map_or(&[][..], |first| &first.values);
        // Nothing to say, where sqlx has begun it and nobody asks.
        let told = if text.is_empty() { Ok(Vec::new()) } else { self.ask(&text, values).await };
        let is_new =
            told.map(|told| first.is_none() || told.first().is_some_and(|row| row.number == Some(1)));
        self.opened(is_new).await
    }

    /// It was begun, and may go on if its key is new. Otherwise nothing has begun.
    async fn opened(self, is_new: std::result::Result<bool, Cause>) -> Result<Opened<Self>> {
        match is_new {
            Ok(true) => Ok(Opened::Begun(self)),
            Ok(false) => {
                self.give_up().await;
                Ok(Opened::Occupied)
            }
            Err(error) => {
                self.roll_back().await;
                Err(not_begun(error))
            }
        }
    }

    /// Rolls back what has done nothing; the connection rests.
    async fn give_up(mut self) {
        match ::sqlx::query("ROLLBACK").execute(&mut *self.held.transaction).await {
            Ok(_) => self.of.resting.put(self.held),
            Err(_) => self.held.transaction.roll_back().await,
        }
    }

    /// Whom this commit takes along, and hands the turn to, if it has one: the one that has waited longest, if all who wait for a turn are in this line. Otherwise another may have come before it: a batch of
    /// the engine's, say. (One that comes in this very moment is in the line before it is counted: it may go before a batch then, once.)
    fn next(&self, last: &Last) -> Option<Next> {
        let Dedicated { pool, line, .. } = &*self.of;
        if self.held.is_due_back() || pool.is_closed() {
            return None;
        }
        let are_in_line = |in_line| self.turn.waiting().is_some_and(|waiting| waiting <= in_line);
        line.take_if(|in_line, id| if are_in_line(in_line) { last.after.first(*id) } else { None })
    }

    /// Writes the row, commits, and begins the next one's transaction, in one call. `tell` hears of the commit without waiting for that.
    async fn close(self, last: Last, next: Option<Next>, tell: oneshot::Sender<Result<Closed<Self>>>) {
        // Dropped half-way, it is the connection that goes first.
        let Self { turn, of, mut held } = self;
        let Last { sql, mut values, after } = last;
        let mut statements = vec![&*sql, "COMMIT", COMMITTED];
        if let Some((_, first)) = &next {
            statements.extend([BEGIN_TO_JOIN, first.sql]);
            values.extend_from_slice(&first.values);
        }
        let mut tell = Some(tell);
        let committed = || {
            after.committed();
            // Whoever has no other to begin first lays the connection down.
            if let Some(tell) = tell.take_if(|_| next.is_some()) {
                drop(tell.send(Ok(Closed::Committed)));
            }
        };
        let heard = hear(&mut held.transaction, &statements.join("; "), &values, committed).await;
        let next = next.map(|(waiting, _)| waiting);
        let ended = match (heard.is_committed, next) {
            (true, Some(next)) => {
                let is_new = heard.error.map_or(Ok(heard.is_new), |error| Err(error.into()));
                return next.tell(Waited::Along(Self { held, of, turn }.opened(is_new).await));
            }
            (true, None) => {
                of.resting.put(held);
                drop(turn);
                Ok(Closed::Committed)
            }
            (false, next) => match not_ended(&mut held.transaction, heard.error).await {
                Ok(()) => {
                    if let Some(next) = next {
                        of.line.put_back(next);
                    }
                    Ok(Closed::Unable(Self { held, of, turn }))
                }
                Err(error) => {
                    held.transaction.roll_back().await;
                    if let Some(next) = next {
                        next.tell(Waited::Turn(turn));
                    }
                    Err(error)
                }
            },
        };
        if let Some(tell) = tell {
            drop(tell.send(ended));
        }
    }
}

impl Connection for SqliteDedicatedTransaction {
    fn ask<'a>(&'a mut self, sql: &'a str, values: &'a [Value<'a>]) -> Asking<'a> {
        self.held.transaction.ask(sql, values)
    }
}

impl Deref for SqliteDedicatedTransaction {
    type Target = SqliteConnection;

    fn deref(&self) -> &SqliteConnection {
        &self.held.transaction
    }
}

impl DerefMut for SqliteDedicatedTransaction {
    fn deref_mut(&mut self) -> &mut SqliteConnection {
        &mut self.held.transaction
    }
}
