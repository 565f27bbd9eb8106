//! Transactions of a caller's own sqlx pool, for a store that joins them.
//!
//! Not here: statements (the stores bring them), and any other library: what it takes is to implement the traits of
//! [`oncegate_store::join`] for it, see `docs/atomic.md`.

#[cfg(feature = "sqlx-postgres")]
mod dedicated;
#[cfg(feature = "sqlx-sqlite")]
mod dedicated_sqlite;
mod line;
mod resting;
#[cfg(feature = "sqlx-postgres")]
mod unlogged;

use std::ops::{Deref, DerefMut};
use std::time::Duration;

use ::sqlx::Either;
#[cfg(feature = "sqlx-postgres")]
use ::sqlx::postgres::{PgDatabaseError, PgSeverity};
use ::sqlx::{AssertSqlSafe, Column as _, Database, Row as _};
use ::sqlx_core::transaction::TransactionManager as _;
use futures_util::TryStreamExt as _;
use oncegate_store::join::{
    Asking, Call, Cause, Closed, Connection, Last, Shown, Transaction, Transactions, Value,
};
#[cfg(feature = "sqlx-postgres")]
use oncegate_store::join::{OCCUPIED, Opened, Opening};
use oncegate_store::outlive::Outlive;
use oncegate_store::{Effect, Kind, Result, StoreError};

#[cfg(feature = "sqlx-postgres")]
pub use dedicated::{DedicatedTransaction, PgDedicated};
#[cfg(feature = "sqlx-sqlite")]
pub use dedicated_sqlite::{SqliteDedicated, SqliteDedicatedTransaction};
#[cfg(feature = "sqlx-postgres")]
use unlogged::Unlogged;

/// A query with these values.
macro_rules! bound {
    ($query:expr, $values:expr) => {{
        let mut query = $query;
        for value in $values {
            query = match value {
                Value::Int(number) => query.bind(number),
                Value::Text(text) => query.bind(text.as_deref()),
                Value::Bytes(bytes) => query.bind(bytes.as_deref()),
            };
        }
        query
    }};
}

/// Begins transactions on a pool of PostgreSQL connections, at its default isolation level.
#[cfg(feature = "sqlx-postgres")]
#[derive(Clone, Debug)]
pub struct PgTransactions(pub ::sqlx::PgPool);

/// Begins transactions on a pool of SQLite connections, as writers from the start: one that reads first and writes later fails
/// where another has written meanwhile.
///
/// Open the pool with `SqliteConnectOptions` on the store's own file, `synchronous(Full)`, and WAL, which the store has chosen already.
#[cfg(feature = "sqlx-sqlite")]
#[derive(Clone, Debug)]
pub struct SqliteTransactions(pub ::sqlx::SqlitePool);

/// A transaction of sqlx. Used as a connection in the caller's own statements: `query.execute(&mut *transaction)`.
#[derive(Debug)]
pub struct SqlxTransaction<D: Database>(::sqlx::Transaction<'static, D>);

impl<D: Database> Deref for SqlxTransaction<D> {
    type Target = D::Connection;

    fn deref(&self) -> &D::Connection {
        &self.0
    }
}

impl<D: Database> DerefMut for SqlxTransaction<D> {
    fn deref_mut(&mut self) -> &mut D::Connection {
        &mut self.0
    }
}

#[cfg(feature = "sqlx-postgres")]
impl Transactions for PgTransactions {
    type Transaction = SqlxTransaction<::sqlx::Postgres>;

    async fn begin(&self) -> Result<Self::Transaction> {
        self.begin_by(None).await.map_err(not_begun)
    }

    async fn begin_with(&self, opening: Opening) -> Result<Opened<Self::Transaction>> {
        // sqlx gives none of the rows of such a message.
        match self.begin_by(Some(opening.or_fail)).await {
            Ok(transaction) => Ok(Opened::Begun(transaction)),
            Err(error) => not_opened(error),
        }
    }
}

#[cfg(feature = "sqlx-postgres")]
fn not_opened<T>(error: ::sqlx::Error) -> Result<Opened<T>> {
    let code = error.as_database_error().and_then(::sqlx::error::DatabaseError::code);
    match code.as_deref() {
        Some(OCCUPIED) => Ok(Opened::Occupied),
        // Its function is not there (tables alone were restored), is another schema's (it was renamed), or may not be called. The long way needs none.
        Some("42883" | "42P01" | "42501") => {
            tracing::debug!(%error, "a transaction could not begin with its key; it takes the key by itself");
            Ok(Opened::Unable)
        }
        _ => Err(not_begun(error)),
    }
}

#[cfg(feature = "sqlx-postgres")]
impl PgTransactions {
    /// Seen to its end, whoever gives up: sqlx 0.9 does not know of a transaction before its `BEGIN` was acknowledged, and the pool would
    /// hand out a connection that is in one.
    async fn begin_by(&self, opening: Option<String>) -> ::sqlx::Result<SqlxTransaction<::sqlx::Postgres>> {
        let pool = self.0.clone();
        let beginning = async move {
            match opening {
                // What stands before a `BEGIN` in the same query is part of what it begins.
                Some(opening) => pool.begin_with(AssertSqlSafe(opening + "; BEGIN")).await,
                None => pool.begin().await,
            }
        };
        Outlive::new(beginning).await.map(SqlxTransaction)
    }
}

#[cfg(feature = "sqlx-sqlite")]
impl Transactions for SqliteTransactions {
    type Transaction = SqlxTransaction<::sqlx::Sqlite>;

    async fn begin(&self) -> Result<Self::Transaction> {
        self.0.begin_with(crate::sqlite::BEGIN_TO_JOIN).await.map(SqlxTransaction).map_err(not_begun)
    }
}

fn not_begun(error: ::sqlx::Error) -> StoreError {
    StoreError::new(Kind::Unavailable, Effect::None, "begin").because(error)
}

// A handler may have left nested transactions that it has not ended: they are part of what is committed. sqlx would end the innermost in place of the outer one, here, and on a connection that comes back.

#[cfg(feature = "sqlx-postgres")]
async fn end_nested(connection: &mut ::sqlx::PgConnection) -> ::sqlx::Result<()> {
    type Manager = <::sqlx::Postgres as Database>::TransactionManager;
    while Manager::get_transaction_depth(connection) > 1 {
        Manager::commit(connection).await?;
    }
    Ok(())
}

/// Each has its savepoint to end: the one that it had may have gone with the outer transaction, or with the savepoint that a row's statement asks for.
#[cfg(feature = "sqlx-sqlite")]
async fn end_nested_of_sqlite(connection: &mut ::sqlx::SqliteConnection) -> ::sqlx::Result<()> {
    type Manager = <::sqlx::Sqlite as Database>::TransactionManager;
    for nested in (1..Manager::get_transaction_depth(connection)).rev() {
        let savepoint = AssertSqlSafe(format!("SAVEPOINT _sqlx_savepoint_{nested}"));
        ::sqlx::query(savepoint).execute(&mut *connection).await?;
        Manager::commit(connection).await?;
    }
    Ok(())
}

async fn commit<D: Database>(
    transaction: ::sqlx::Transaction<'static, D>,
    ended: ::sqlx::Result<()>,
    is_refusal: impl FnOnce(&::sqlx::Error) -> bool,
) -> Result<()> {
    let committed = match ended {
        Ok(()) => transaction.commit().await,
        Err(error) => Err(error),
    };
    committed.map_err(|error| not_committed(error, is_refusal))
}

/// `COMMIT AND CHAIN` begins another transaction, which is empty, and ends with this one's value: sqlx rolls back what is dropped in the very message by which a
/// pool looks at a connection that comes back to it.
///
/// A handler may have ended its transaction by hand. What it did since is committed; the row must be, too. `COMMIT AND CHAIN` fails then, the statement before it is undone with that, and it
/// goes the long way, which asks for no transaction.
#[cfg(feature = "sqlx-postgres")]
async fn commit_with(
    mut transaction: SqlxTransaction<::sqlx::Postgres>,
    closing: Call,
) -> Result<Closed<SqlxTransaction<::sqlx::Postgres>>> {
    let mut told = Told::default();
    let sent = end(&mut transaction, closing.in_full() + "; COMMIT AND CHAIN", &mut told).await;
    match sent {
        Ok(()) if told.ended == ENDING => Ok(Closed::Committed),
        Ok(()) => Err(out_of_step(transaction)),
        Err(error) if is_outside(&error) => Ok(Closed::Outside(transaction)),
        Err(error) => Err(not_closed(transaction, error).await),
    }
}

/// The statements of a message that are a transaction's end: its closing, and `COMMIT`.
#[cfg(feature = "sqlx-postgres")]
const ENDING: usize = 2;

/// What a message was answered with.
#[cfg(feature = "sqlx-postgres")]
#[derive(Clone, Copy, Default)]
struct Told {
    /// The statements that have ended.
    ended: usize,
    /// What the last row says, if it says whether: that of an opening.
    is_taken: Option<bool>,
}

/// Sends a message that ends a transaction.
#[cfg(feature = "sqlx-postgres")]
async fn end(connection: &mut ::sqlx::PgConnection, message: String, told: &mut Told) -> ::sqlx::Result<()> {
    end_nested(connection).await?;
    Unlogged::new(send(connection, message, told)).await
}

/// Runs the statements of a message, and counts those that have ended.
#[cfg(feature = "sqlx-postgres")]
async fn send(connection: &mut ::sqlx::PgConnection, message: String, told: &mut Told) -> ::sqlx::Result<()> {
    let mut results = ::sqlx::raw_sql(AssertSqlSafe(message)).fetch_many(connection);
    while let Some(result) = results.try_next().await? {
        match result {
            Either::Left(_) => told.ended += 1,
            Either::Right(row) => told.is_taken = row.try_get(0).ok(),
        }
    }
    Ok(())
}

/// How long the server may take to answer on a connection that nobody needs to wait for; after that it is taken for lost, and another is used.
const PATIENCE: Duration = Duration::from_secs(2);

/// What was read on its connection was not the answer to what was sent: a handler has left something unread (the end of a `COPY`, say), and sqlx 0.9 does not know. Each answer would be
/// taken for the next one's. Nobody may have it any more, so the server ends it; and what became of a commit is not known.
#[cfg(feature = "sqlx-postgres")]
fn out_of_step(mut transaction: SqlxTransaction<::sqlx::Postgres>) -> StoreError {
    tracing::error!(
        "a handler has left answers of the database's unread (a COPY that it did not finish?); its connection is closed"
    );
    tokio::spawn(async move {
        let text = "SELECT pg_catalog.pg_terminate_backend(pg_catalog.pg_backend_pid())";
        // Again until there is nobody to answer: what comes first is of before.
        let ending = async { while ::sqlx::raw_sql(text).execute(&mut *transaction).await.is_ok() {} };
        if tokio::time::timeout(PATIENCE, ending).await.is_err() {
            tracing::debug!("a connection that was out of step says nothing");
        }
    });
    in_doubt("what the server said was no answer to what was sent")
}

fn in_doubt(cause: impl Into<Cause>) -> StoreError {
    StoreError::new(Kind::Unavailable, Effect::Unknown, "commit").because(cause)
}

/// It is the server that says so, of this commit, or of the end of a nested transaction that was sent before it. A trigger of the caller's may fail with the
/// same code: that is a refusal, and all is rolled back.
#[cfg(feature = "sqlx-postgres")]
fn is_outside(error: &::sqlx::Error) -> bool {
    let error = error.as_database_error().and_then(|error| error.try_downcast_ref::<PgDatabaseError>());
    error.is_some_and(|error| {
        error.code() == "25P01"
            && matches!(error.routine(), Some("EndTransactionBlock" | "CheckTransactionBlock"))
    })
}

/// sqlx has lost its transaction: it rolls back the outer one where a nested one could not begin. Ending its value would end nothing then, though the handler may have begun one by
/// hand.
#[cfg(feature = "sqlx-postgres")]
fn is_lost(connection: &::sqlx::PgConnection) -> bool {
    !::sqlx::Connection::is_in_transaction(connection)
}

/// Begins another, which the lost one's value ends.
#[cfg(feature = "sqlx-postgres")]
async fn regain(connection: &mut ::sqlx::PgConnection) -> Result<()> {
    let begun = ::sqlx::Connection::begin(connection).await;
    // Not to be ended by its own value.
    begun.map(std::mem::forget).map_err(not_begun)
}

/// Ends what a handler has begun by hand after sqlx had lost its own.
#[cfg(feature = "sqlx-postgres")]
async fn end_uncounted(connection: &mut ::sqlx::PgConnection) {
    // Again where the server has refused: that may be the word about a statement that was given up before.
    for _ in 0..2 {
        if !is_lost(connection) {
            return;
        }
        match ::sqlx::raw_sql("ROLLBACK").execute(&mut *connection).await {
            Err(error) if error.as_database_error().is_some() => {}
            Err(error) => {
                return tracing::debug!(%error, "a transaction was not ended; its connection is lost");
            }
            Ok(_) => return,
        }
    }
}

#[cfg(feature = "sqlx-postgres")]
async fn not_closed(transaction: SqlxTransaction<::sqlx::Postgres>, error: ::sqlx::Error) -> StoreError {
    let error = not_committed(error, is_refusal_of_postgres);
    if error.effect() == Effect::None {
        // It may be the row that was refused: then the transaction has failed, and has not ended.
        transaction.roll_back().await;
    }
    error
}

/// Not the way of this database.
async fn unable<D: Database, C>(transaction: SqlxTransaction<D>, _: C) -> Result<Closed<SqlxTransaction<D>>> {
    Ok(Closed::Unable(transaction))
}

/// The row and the commit in one call. Seen to its end though nobody waits for it any more: half-way, sqlx would count a transaction that is not there.
#[cfg(feature = "sqlx-sqlite")]
async fn commit_after(
    mut transaction: SqlxTransaction<::sqlx::Sqlite>,
    last: Last,
) -> Result<Closed<SqlxTransaction<::sqlx::Sqlite>>> {
    let closing = async move {
        // sqlx goes on counting, and ends what it counts: an empty one, which has locked nothing.
        let text = [&*last.sql, "COMMIT; BEGIN", COMMITTED].join("; ");
        let heard = hear(&mut transaction, &text, &last.values, || last.after.committed()).await;
        if heard.is_committed {
            return Ok(Closed::Committed);
        }
        match not_ended(&mut transaction, heard.error).await {
            Ok(()) => Ok(Closed::Unable(transaction)),
            Err(error) => {
                transaction.roll_back().await;
                Err(error)
            }
        }
    };
    Outlive::new(closing).await
}

/// What stands behind a commit in the same call: that it was run is told by a row. If the thread that owns the connection is gone, sqlx gives no rows, and no error.
#[cfg(feature = "sqlx-sqlite")]
const COMMITTED: &str = "SELECT 1 AS committed";

/// What was heard of a call of several statements, the first of which end a transaction.
#[cfg(feature = "sqlx-sqlite")]
#[derive(Default)]
struct Heard {
    is_committed: bool,
    /// Of the statement that has found out, after the commit, whether the next one's key is new.
    is_new: bool,
    /// Where it has stopped.
    error: Option<::sqlx::Error>,
}

/// Ends what is nested, and runs them; `committed` is called as soon as the commit is acknowledged, and before anything else is.
#[cfg(feature = "sqlx-sqlite")]
async fn hear(
    connection: &mut ::sqlx::SqliteConnection,
    text: &str,
    values: &[Value<'_>],
    committed: impl FnOnce() + Send,
) -> Heard {
    let (mut heard, mut committed) = (Heard::default(), Some(committed));
    if let Err(error) = end_nested_of_sqlite(connection).await {
        return Heard { error: Some(error), ..heard };
    }
    let query = bound!(::sqlx::query(AssertSqlSafe(text)), values);
    let mut results = ::sqlx::Executor::fetch_many(connection, query);
    loop {
        let row = match results.try_next().await {
            Ok(Some(Either::Right(row))) => row,
            Ok(Some(Either::Left(_))) => continue,
            Ok(None) => return heard,
            Err(error) => return Heard { error: Some(error), ..heard },
        };
        // Rows of the statements before the commit are nobody's.
        if row.try_get::<i64, _>("committed").is_ok() {
            heard.is_committed = true;
            if let Some(committed) = committed.take() {
                committed();
            }
        } else if heard.is_committed {
            heard.is_new = row.try_get::<i64, _>("number").is_ok_and(|number| number == 1);
        }
    }
}

/// A call has ended before its commit was acknowledged. If the transaction is still there, what the call has written is taken back, and it goes on. An error says that it is not, and is to be rolled back for sqlx, which counts it.
#[cfg(feature = "sqlx-sqlite")]
async fn not_ended(
    transaction: &mut SqlxTransaction<::sqlx::Sqlite>,
    cause: Option<::sqlx::Error>,
) -> Result<()> {
    let Some(cause) = cause else {
        return Err(in_doubt("the connection has not said that it has committed"));
    };
    // The savepoint is gone with a transaction that was committed, or that has ended behind everybody's back.
    match ::sqlx::query(crate::sqlite::TAKE_BACK).execute(&mut **transaction).await {
        Ok(_) => Ok(()),
        Err(_) => Err(in_doubt(cause)),
    }
}

/// What is not surely refused, and so rolled back, leaves the commit in doubt.
fn not_committed(error: ::sqlx::Error, is_refusal: impl FnOnce(&::sqlx::Error) -> bool) -> StoreError {
    let effect = if is_refusal(&error) { Effect::None } else { Effect::Unknown };
    StoreError::new(Kind::Unavailable, effect, "commit").because(error)
}

/// A deferred constraint, say. Not so if the connection ends with it: then it may be a pooler's guess.
#[cfg(feature = "sqlx-postgres")]
fn is_refusal_of_postgres(error: &::sqlx::Error) -> bool {
    let error = error.as_database_error().and_then(|error| error.try_downcast_ref::<PgDatabaseError>());
    error.is_some_and(|error| {
        error.severity() == PgSeverity::Error && crate::postgres::is_of_the_statement(error.code())
    })
}

/// Never: an error while the log is made durable is an error of the database, and its frames may be there all the same.
#[cfg(feature = "sqlx-sqlite")]
fn is_refusal_of_sqlite(_: &::sqlx::Error) -> bool {
    false
}

async fn roll_back<D: Database>(transaction: ::sqlx::Transaction<'static, D>) {
    if let Err(error) = transaction.rollback().await {
        // The connection goes, and the database rolls back with it.
        tracing::debug!(%error, "a rollback was not acknowledged");
    }
}

/// Where SQLite has rolled back by itself, a `ROLLBACK` fails, and sqlx would take the connection to be in a transaction for ever. So there
/// is one to roll back; an error means that there was.
#[cfg(feature = "sqlx-sqlite")]
async fn within_one(connection: &mut ::sqlx::SqliteConnection) {
    let _ = ::sqlx::query("BEGIN").execute(&mut *connection).await;
    if let Err(error) = end_nested_of_sqlite(connection).await {
        tracing::warn!(%error, "a nested transaction could not be ended; its connection is not fit for another");
    }
}

/// SQLite's row asks for the transaction itself, and is refused where there is none.
#[cfg(feature = "sqlx-sqlite")]
fn is_never_lost(_: &::sqlx::SqliteConnection) -> bool {
    false
}

#[cfg(feature = "sqlx-sqlite")]
async fn as_it_is(_: &mut ::sqlx::SqliteConnection) -> Result<()> {
    Ok(())
}

/// One row, by the names of its columns.
macro_rules! shown {
    ($row:expr) => {{
        let row = $row;
        let mut shown = Shown::default();
        for (place, column) in row.columns().iter().enumerate() {
            match column.name() {
                "number" => shown.number = row.try_get(place)?,
                "rest" => shown.rest = row.try_get(place)?,
                "answer" => shown.answer = row.try_get(place)?,
                _ => {}
            }
        }
        Ok(shown)
    }};
}

macro_rules! of_database {
    ($database:ty, $connection:ty, $is_refusal:path, $commit_with:path, $commit_after:path, $end_nested:path, $before_rollback:path, $is_lost:path, $regain:path) => {
        impl Transaction for SqlxTransaction<$database> {
            type Inner = $connection;

            async fn commit(mut self) -> Result<()> {
                let ended = $end_nested(&mut self.0).await;
                commit(self.0, ended, $is_refusal).await
            }

            async fn commit_with(self, closing: Call) -> Result<Closed<Self>> {
                $commit_with(self, closing).await
            }

            async fn commit_after(self, last: Last) -> Result<Closed<Self>> {
                $commit_after(self, last).await
            }

            async fn roll_back(mut self) {
                $before_rollback(&mut self.0).await;
                roll_back(self.0).await;
            }

            fn is_lost(&self) -> bool {
                $is_lost(&self.0)
            }

            async fn regain(&mut self) -> Result<()> {
                $regain(&mut self.0).await
            }
        }

        impl Connection for SqlxTransaction<$database> {
            fn ask<'a>(&'a mut self, sql: &'a str, values: &'a [Value<'a>]) -> Asking<'a> {
                Box::pin(async move {
                    let query = bound!(::sqlx::query(AssertSqlSafe(sql)), values);
                    let rows = query.fetch_all(&mut **self).await?;
                    rows.iter().map(|row| shown!(row)).collect()
                })
            }
        }
    };
}

#[cfg(feature = "sqlx-postgres")]
of_database!(
    ::sqlx::Postgres,
    ::sqlx::PgConnection,
    is_refusal_of_postgres,
    commit_with,
    unable,
    end_nested,
    end_uncounted,
    is_lost,
    regain
);
#[cfg(feature = "sqlx-sqlite")]
of_database!(
    ::sqlx::Sqlite,
    ::sqlx::SqliteConnection,
    is_refusal_of_sqlite,
    unable,
    commit_after,
    end_nested_of_sqlite,
    within_one,
    is_never_lost,
    as_it_is
);
