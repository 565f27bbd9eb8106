//! Transactions of a pool on an SQLite file that atomic handlers have to themselves.
//!
//! A call of SQLite's through sqlx wakes the thread that owns the connection, and that one wakes whoever has called; these wake-ups are most of what a small transaction costs. sqlx's pool makes
//! one more of them for each connection that comes back, to look after it. Where nobody else uses the pool it is not needed: a connection whose transaction was committed goes to the next
//! handler as it is.
//!
//! As in [`super::dedicated`], sqlx goes on counting one transaction all the while. **Invariant:** a connection that rests is in no transaction, as far as SQLite knows, and has locked nothing.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ::sqlx::{Sqlite, SqliteConnection, SqlitePool};
use oncegate_store::join::{
    Asking, Closed, Connection, First, Last, Opened, Transaction, Transactions, Value,
};
use oncegate_store::outlive::Outlive;
use oncegate_store::{Effect, Kind, Result, StoreError};

use super::resting::{self, REST, Resting};
use super::{Ending, SqliteTransactions, SqlxTransaction, close};
use crate::sqlite::BEGIN_TO_JOIN;

/// Begins transactions on a pool of SQLite connections that nobody else uses, as writers from the start: see [`SqliteTransactions`], also for how to open the pool. It wants one connection.
///
/// Faster, because the connection is not handed back to the pool while there is work. Whoever else waited for it would wait for as long as there is.
#[derive(Clone)]
pub struct SqliteDedicated(Arc<Dedicated>);

struct Dedicated {
    pool: SqlitePool,
    resting: Arc<Resting<Held>>,
}

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
        Self(Arc::new(Dedicated { pool, resting: Arc::new(Resting::new(rest)) }))
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

    /// Seen to its end, whoever gives up: half-way, a connection would rest in a transaction that holds the file.
    async fn begin(&self) -> Result<SqliteDedicatedTransaction> {
        let (transaction, _) = Outlive::new(Arc::clone(&self.0).begin(None)).await?;
        Ok(transaction)
    }

    const LOOKS_FIRST: bool = true;

    async fn begin_first(&self, first: First) -> Result<Opened<SqliteDedicatedTransaction>> {
        let of = Arc::clone(&self.0);
        let beginning = async move {
            let (transaction, is_new) = of.begin(Some(&first)).await?;
            if is_new {
                return Ok(Opened::Begun(transaction));
            }
            transaction.give_up().await;
            Ok(Opened::Occupied)
        };
        Outlive::new(beginning).await
    }
}

impl Dedicated {
    /// Says, too, whether it was told that the key is new.
    async fn begin(self: Arc<Self>, first: Option<&First>) -> Result<(SqliteDedicatedTransaction, bool)> {
        let rested = if self.pool.is_closed() { None } else { self.resting.take() };
        let (mut held, begin) = if let Some(held) = rested {
            (held, Some(BEGIN_TO_JOIN))
        } else {
            let transaction = SqliteTransactions(self.pool.clone()).begin().await?;
            (Held { since: Instant::now(), transaction }, None)
        };
        let text = begin.into_iter().chain(first.map(|first| first.sql)).collect::<Vec<_>>().join("; ");
        let values = first.map_or(&[][..], |first| &first.values);
        // Nothing to say, where sqlx has begun it and nobody asks.
        let told = if text.is_empty() { Ok(Vec::new()) } else { held.transaction.ask(&text, values).await };
        match told {
            Ok(told) => {
                let is_new = told.first().is_some_and(|row| row.number == Some(1));
                Ok((SqliteDedicatedTransaction { held, of: self }, is_new))
            }
            Err(error) => {
                held.transaction.roll_back().await;
                Err(StoreError::new(Kind::Unavailable, Effect::None, "begin").because(error))
            }
        }
    }
}

impl Transaction for SqliteDedicatedTransaction {
    type Inner = SqliteConnection;

    async fn commit(self) -> Result<()> {
        self.held.transaction.commit().await
    }

    async fn commit_after(self, last: Last) -> Result<Closed<Self>> {
        Outlive::new(self.close(last)).await
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
    /// Rolls back what has done nothing; the connection rests.
    async fn give_up(mut self) {
        match ::sqlx::query("ROLLBACK").execute(&mut *self.held.transaction).await {
            Ok(_) => self.of.resting.put(self.held),
            Err(_) => self.held.transaction.roll_back().await,
        }
    }

    async fn close(mut self, last: Last) -> Result<Closed<Self>> {
        match close(&mut self.held.transaction, &last, "COMMIT").await {
            Ok(Ending::Committed) => {
                self.of.resting.put(self.held);
                Ok(Closed::Committed)
            }
            Ok(Ending::Unable) => Ok(Closed::Unable(self)),
            Err(error) => {
                self.held.transaction.roll_back().await;
                Err(error)
            }
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
