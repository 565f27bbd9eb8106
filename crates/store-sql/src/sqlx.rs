//! Transactions of a caller's own sqlx pool, for a store that joins them.
//!
//! Not here: statements (the stores bring them), and any other library: what it takes is to implement the traits of
//! [`oncegate_store::join`] for it, see `docs/atomic.md`.

use std::error::Error;
use std::ops::{Deref, DerefMut};

use ::sqlx::{AssertSqlSafe, Database, ValueRef as _};
use oncegate_store::join::{Asking, Cause, Connection, Shown, Transaction, Transactions, Value};
use oncegate_store::{Effect, Kind, Result, StoreError};

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
        self.0.begin().await.map(SqlxTransaction).map_err(not_begun)
    }
}

#[cfg(feature = "sqlx-sqlite")]
impl Transactions for SqliteTransactions {
    type Transaction = SqlxTransaction<::sqlx::Sqlite>;

    async fn begin(&self) -> Result<Self::Transaction> {
        self.0.begin_with("BEGIN IMMEDIATE").await.map(SqlxTransaction).map_err(not_begun)
    }
}

fn not_begun(error: ::sqlx::Error) -> StoreError {
    StoreError::new(Kind::Unavailable, Effect::None, "begin").because(error)
}

/// An error of the database itself means that it has refused, and rolled back. Whatever else goes wrong leaves the commit in doubt.
async fn commit<D: Database>(
    transaction: ::sqlx::Transaction<'static, D>,
    refusal_is_final: bool,
) -> Result<()> {
    let error = match transaction.commit().await {
        Ok(()) => return Ok(()),
        Err(error) => error,
    };
    let effect =
        if refusal_is_final && error.as_database_error().is_some() { Effect::None } else { Effect::Unknown };
    Err(StoreError::new(Kind::Unavailable, effect, "commit").because(error))
}

async fn roll_back<D: Database>(transaction: ::sqlx::Transaction<'static, D>) {
    if let Err(error) = transaction.rollback().await {
        // The connection goes, and the database rolls back with it.
        tracing::debug!(%error, "a rollback was not acknowledged");
    }
}

/// One row; columns that the statement does not show are left out.
macro_rules! shown {
    ($row:expr) => {{
        let row = $row;
        Ok(Shown {
            number: column(row, "number")?,
            clock: column(row, "clock")?,
            id: column(row, "id")?,
            scope: column(row, "scope")?,
            key: column(row, "key")?,
            operation: column(row, "operation")?,
            rest: column(row, "rest")?,
            answer: column(row, "answer")?,
        })
    }};
}

macro_rules! of_database {
    ($database:ty, $connection:ty, $refusal_is_final:literal) => {
        impl Transaction for SqlxTransaction<$database> {
            type Inner = $connection;

            async fn commit(self) -> Result<()> {
                commit(self.0, $refusal_is_final).await
            }

            async fn roll_back(self) {
                roll_back(self.0).await;
            }
        }

        impl Connection for SqlxTransaction<$database> {
            fn ask<'a>(&'a mut self, sql: &'a str, values: &'a [Value<'a>]) -> Asking<'a> {
                Box::pin(async move {
                    let mut query = ::sqlx::query(AssertSqlSafe(sql));
                    for value in values {
                        query = match value {
                            Value::Int(number) => query.bind(number),
                            Value::Text(text) => query.bind(text.as_deref()),
                            Value::Bytes(bytes) => query.bind(bytes.as_deref()),
                        };
                    }
                    let rows = query.fetch_all(&mut **self).await?;
                    rows.iter().map(|row| shown!(row)).collect()
                })
            }
        }
    };
}

#[cfg(feature = "sqlx-postgres")]
of_database!(::sqlx::Postgres, ::sqlx::PgConnection, true);
// An error while the log is made durable is an error of the database, and its frames may be there all the same.
#[cfg(feature = "sqlx-sqlite")]
of_database!(::sqlx::Sqlite, ::sqlx::SqliteConnection, false);

fn column<'r, R, T>(row: &'r R, name: &str) -> std::result::Result<Option<T>, Cause>
where
    R: ::sqlx::Row,
    for<'n> &'n str: ::sqlx::ColumnIndex<R>,
    T: ::sqlx::Decode<'r, R::Database> + ::sqlx::Type<R::Database>,
{
    match row.try_get_raw(name) {
        Err(::sqlx::Error::ColumnNotFound(_)) => Ok(None),
        Err(error) => Err(error.into()),
        Ok(value) if value.is_null() => Ok(None),
        Ok(_) => row.try_get(name).map(Some).map_err(|error| Box::new(error) as Box<dyn Error + Send + Sync>),
    }
}
