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

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ::sqlx::{AssertSqlSafe, PgConnection, PgPool, Postgres};
use calls::Calls;
use oncegate_store::join::{
    Asking, Call, Closed, Connection, Opened, Opening, Transaction, Transactions, Value,
};
use oncegate_store::outlive::Outlive;
use oncegate_store::{Effect, Kind, Result, StoreError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::line::{self, Line};
use super::resting::{self, Held as _, REST, Resting};
use super::{
    ENDING, PATIENCE, PgTransactions, SqlxTransaction, Told, end, in_doubt, is_outside,
    is_refusal_of_postgres, not_closed, not_opened, out_of_step, send,
};

/// How long a closing that takes an opening along is seen to, at most. Whoever it closes waits as long as its policy says; whoever it opens, as long as the pool says.
const CLOSING_MAX: Duration = Duration::from_mins(1);
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
    line: Line<Option<Call>, Served>,
    /// What its sessions prepare.
    calls: Calls,
    resting: Arc<Resting<Held>>,
}

type Waiting = line::Waiting<Option<Call>, Served>;

/// How the waiting for a connection ended.
enum Served {
    /// What came of its opening, which went with another's closing.
    Opened(Result<Opened<DedicatedTransaction>>),
    /// It has a turn; its opening was not tried.
    Turn(OwnedSemaphorePermit),
}

/// A connection, as the transaction that sqlx takes all that happens on it for.
struct Held {
    transaction: SqlxTransaction<Postgres>,
    since: Instant,
    /// Whether it has served a handler before.
    is_used: bool,
    /// Whether its session has the calls prepared.
    is_prepared: bool,
}

impl Held {
    /// Whether sqlx counts a transaction on it. Where it has lost count, that is the pool's to mend.
    fn is_counted(&self) -> bool {
        !self.transaction.is_lost()
    }
}

impl resting::Held for Held {
    fn since(&self) -> Instant {
        self.since
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
            turns,
            line: Line::default(),
            calls: Calls::default(),
            resting: Arc::new(Resting::new(rest)),
        }))
    }

    /// The pool: to look at it, and to close it.
    #[must_use]
    pub fn pool(&self) -> &PgPool {
        &self.0.pool
    }

    /// Seen to its end, whoever gives up; see [`PgTransactions`]. Whoever only waits for its turn leaves.
    async fn begin_by(&self, opening: Option<Opening>) -> Result<Opened<DedicatedTransaction>> {
        let of = Arc::clone(&self.0);
        if let Some(opening) = &opening {
            of.calls.meet_opening(&opening.or_tell);
        }
        // Nobody is passed over: a turn that is free has nobody waiting for it.
        let served = if let Ok(turn) = Arc::clone(&of.turns).try_acquire_owned() {
            Ok(Served::Turn(turn))
        } else {
            let patience = of.pool.options().get_acquire_timeout();
            tokio::time::timeout(patience, of.served(opening.as_ref().map(|opening| &opening.or_tell))).await
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

    async fn begin_with(&self, opening: Opening) -> Result<Opened<DedicatedTransaction>> {
        self.begin_by(Some(opening)).await
    }
}

impl Dedicated {
    /// Waits in line.
    async fn served(&self, opening: Option<&Call>) -> Served {
        loop {
            let turn = async { Arc::clone(&self.turns).acquire_owned().await.ok().map(Served::Turn) };
            if let Some(served) = self.line.wait(opening.cloned(), turn, PATIENCE).await {
                return served;
            }
        }
    }

    async fn begin(
        self: Arc<Self>,
        turn: OwnedSemaphorePermit,
        opening: Option<Opening>,
    ) -> Result<Opened<DedicatedTransaction>> {
        while let Some(mut held) = self.rested() {
            let beginning = self.beginning(&held, opening.as_ref().map(|opening| &opening.or_tell));
            let mut told = Told::default();
            let sent = send(&mut held.transaction, beginning.message.clone(), &mut told);
            match tokio::time::timeout(PATIENCE, sent).await {
                Ok(Ok(())) if !beginning.is_answered_by(told, 0) => drop(out_of_step(held.transaction)),
                Ok(Ok(())) => return Ok(self.begun(held, turn, &beginning, told)),
                // Again, in full.
                Ok(Err(error)) if beginning.is_by_name && is_unprepared(&error) => self.rest_unprepared(held),
                Ok(Err(error)) if is_refusal_of_postgres(&error) => return refused(held, error),
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
                let held = Held { transaction, since, is_used: false, is_prepared: false };
                Opened::Begun(DedicatedTransaction { held, of: self, turn, is_by_name: false })
            }
            Opened::Occupied => Opened::Occupied,
            Opened::Unable => Opened::Unable,
        })
    }

    /// A transaction has begun, and if it was to take a key, it says whether it has.
    fn begun(
        self: Arc<Self>,
        held: Held,
        turn: OwnedSemaphorePermit,
        beginning: &Beginning,
        told: Told,
    ) -> Opened<DedicatedTransaction> {
        if told.is_taken == Some(false) {
            self.rest_after("ROLLBACK".to_owned(), held, turn);
            return Opened::Occupied;
        }
        let is_by_name = beginning.is_by_name;
        Opened::Begun(DedicatedTransaction { held, of: self, turn, is_by_name })
    }

    /// How a transaction begins on this connection.
    fn beginning(&self, held: &Held, opening: Option<&Call>) -> Beginning {
        let by_name = opening.filter(|_| held.is_prepared && !self.calls.is_off());
        let by_name = by_name.and_then(|opening| self.calls.opening_by_name(opening));
        let is_by_name = by_name.is_some();
        match by_name.or_else(|| opening.map(Call::in_full)) {
            // What stands before a `BEGIN` in the same query is part of what it begins.
            Some(opening) => {
                Beginning { message: opening + "; BEGIN", statements: 2, takes: true, is_by_name }
            }
            None => Beginning { message: "BEGIN".to_owned(), statements: 1, takes: false, is_by_name },
        }
    }

    /// Its session has not kept what was prepared, or is another.
    fn rest_unprepared(self: &Arc<Self>, held: Held) {
        self.calls.turn_off();
        self.rest(Held { is_prepared: false, ..held });
    }

    /// Whom a closing on this connection takes along. One that is used again prepares its calls first.
    fn next(&self, held: &Held) -> Option<(Waiting, Beginning)> {
        if held.is_due_back() || !held.is_counted() || self.pool.is_closed() || self.is_to_prepare(held) {
            return None;
        }
        let (waiting, ()) = self.line.take_if(|_, _| Some(()))?;
        let beginning = self.beginning(held, waiting.wish().as_ref());
        Some((waiting, beginning))
    }

    /// Whether its session is to prepare the calls before it goes on. Not one that has served a single handler: there may be no other for a while.
    fn is_to_prepare(&self, held: &Held) -> bool {
        held.is_used && !held.is_prepared && self.calls.are_known()
    }

    /// Runs a statement on a connection that is to rest, by a task: nobody waits for it, but the turn ends with it.
    fn rest_after(self: &Arc<Self>, statement: String, mut held: Held, turn: OwnedSemaphorePermit) {
        let of = Arc::clone(self);
        tokio::spawn(async move {
            let ran = ::sqlx::raw_sql(AssertSqlSafe(statement)).execute(&mut *held.transaction);
            match tokio::time::timeout(PATIENCE, ran).await {
                Ok(Ok(_)) => of.rest(held),
                Ok(Err(error)) if is_refusal_of_postgres(&error) => {
                    tracing::debug!(%error, "a connection could not be made ready for the next handler");
                    of.calls.turn_off();
                    held.give_back();
                }
                Ok(Err(error)) => tracing::debug!(%error, "a connection was lost after a transaction"),
                Err(_) => tracing::debug!("a connection says nothing after a transaction"),
            }
            drop(turn);
        });
    }

    /// The connection that came back last.
    fn rested(&self) -> Option<Held> {
        if self.pool.is_closed() {
            return None;
        }
        self.resting.take()
    }

    /// Keeps it for the next one, for a moment.
    fn rest(&self, held: Held) {
        if held.is_counted() {
            self.resting.put(held);
        }
    }
}

impl Transaction for DedicatedTransaction {
    type Inner = PgConnection;

    async fn commit(self) -> Result<()> {
        self.held.transaction.commit().await
    }

    async fn commit_with(self, closing: Call) -> Result<Closed<Self>> {
        self.of.calls.meet_closing(&closing);
        match self.of.next(&self.held) {
            None => self.close(closing, None).await,
            // Seen to its end, whoever gives up: it is another's, too.
            next => {
                let closing = tokio::time::timeout(CLOSING_MAX, self.close(closing, next));
                Outlive::new(closing).await.unwrap_or_else(|_| Err(in_doubt("the server says nothing")))
            }
        }
    }

    async fn roll_back(self) {
        self.held.transaction.roll_back().await;
    }

    fn is_lost(&self) -> bool {
        self.held.transaction.is_lost()
    }

    async fn regain(&mut self) -> Result<()> {
        // Behind a pooler it may be on another session.
        self.is_by_name = false;
        self.held.transaction.regain().await
    }
}

/// How a transaction begins.
struct Beginning {
    message: String,
    statements: usize,
    /// Whether it takes a key, and tells so.
    takes: bool,
    is_by_name: bool,
}

impl Beginning {
    /// Whether it is this that was answered, after so many statements of another's. If not, what was read was meant for something else.
    const fn is_answered_by(&self, told: Told, before: usize) -> bool {
        told.ended == before + self.statements && told.is_taken.is_some() == self.takes
    }
}

impl DedicatedTransaction {
    /// Commits, and begins the next one's in the same message.
    async fn close(mut self, closing: Call, next: Option<(Waiting, Beginning)>) -> Result<Closed<Self>> {
        let by_name = if self.is_by_name { self.of.calls.closing_by_name(&closing) } else { None };
        let is_by_name = by_name.is_some();
        let mut message = by_name.unwrap_or_else(|| closing.in_full()) + "; COMMIT";
        if let Some((_, beginning)) = &next {
            message.extend(["; ", &beginning.message]);
        }
        let mut told = Told::default();
        let sent = end(&mut self.held.transaction, message, &mut told).await;
        match sent {
            Ok(()) => self.closed(next, told),
            Err(error) if told.ended >= ENDING => {
                let Self { held, of, turn, .. } = self;
                of.go_on_without(held, turn, next, error);
                Ok(Closed::Committed)
            }
            // The transaction is still this one's to end.
            Err(error) if is_outside(&error) => Ok(Closed::Outside(self)),
            // It has failed with that; unless a handler has ended it by hand, and then the row must be there. Of the commit, the same code is a trigger's of the caller's: all is rolled back.
            Err(error) if is_by_name && told.ended == 0 && is_unprepared(&error) => {
                self.of.calls.turn_off();
                self.is_by_name = false;
                Box::pin(self.close(closing, None)).await
            }
            Err(error) => {
                let error = not_closed(self.held.transaction, error).await;
                if let Some((waiting, _)) = next {
                    waiting.tell(Served::Turn(self.turn));
                }
                Err(error)
            }
        }
    }

    /// All that was sent was answered.
    fn closed(self, next: Option<(Waiting, Beginning)>, told: Told) -> Result<Closed<Self>> {
        let Self { held, of, turn, .. } = self;
        let is_answer = match &next {
            Some((_, beginning)) => beginning.is_answered_by(told, ENDING),
            None => told.ended == ENDING,
        };
        if !is_answer {
            if let Some((waiting, _)) = next {
                waiting.tell(Served::Turn(turn));
            }
            return Err(out_of_step(held.transaction));
        }
        let preparing = if of.is_to_prepare(&held) { of.calls.preparing() } else { None };
        let held = Held { is_used: true, ..held };
        match (next, preparing) {
            (Some((waiting, beginning)), _) => {
                let opened = of.begun(held, turn, &beginning, told);
                waiting.tell(Served::Opened(Ok(opened)));
            }
            (None, Some(preparing)) => {
                of.rest_after(preparing, Held { is_prepared: true, ..held }, turn);
            }
            // Before its turn ends, so that whoever comes next finds it.
            (None, None) => of.rest(held),
        }
        Ok(Closed::Committed)
    }
}

impl Dedicated {
    /// A transaction has ended on this connection, and what was to follow has failed.
    fn go_on_without(
        self: Arc<Self>,
        held: Held,
        turn: OwnedSemaphorePermit,
        next: Option<(Waiting, Beginning)>,
        error: ::sqlx::Error,
    ) {
        let is_refusal = is_refusal_of_postgres(&error);
        match next {
            Some((waiting, beginning)) if beginning.is_by_name && is_unprepared(&error) => {
                self.rest_unprepared(held);
                waiting.tell(Served::Turn(turn));
            }
            Some((waiting, _)) if is_refusal => {
                drop(turn);
                waiting.tell(Served::Opened(refused(held, error)));
            }
            // The connection is lost, and with it whatever had begun; the pool has others.
            next => {
                tracing::debug!(%error, "a connection was lost after a commit");
                drop(held);
                if let Some((waiting, _)) = next {
                    waiting.tell(Served::Turn(turn));
                }
            }
        }
    }
}

/// An opening has failed, and nothing has begun. What the server says may be the fault of its session: that is the pool's again, and the next request has another.
fn refused(held: Held, error: ::sqlx::Error) -> Result<Opened<DedicatedTransaction>> {
    held.give_back();
    not_opened(error)
}

/// The server says that it knows of no statement of that name.
fn is_unprepared(error: &::sqlx::Error) -> bool {
    error.as_database_error().and_then(::sqlx::error::DatabaseError::code).as_deref() == Some("26000")
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
