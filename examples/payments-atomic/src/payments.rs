//! The table of payments, in the database that has the keys and the promises too. The SQL is the same for both.

use oncegate::{PostgresStore, SqliteStore};
use serde::{Deserialize, Serialize};
use sqlx::sqlite::{SqliteConnectOptions, SqliteSynchronous};
use sqlx::{PgPool, Row, SqlitePool};

use crate::Error;

/// A payment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Payment {
    /// Its name.
    pub id: String,
    /// In cents.
    pub amount: i64,
    /// Three letters.
    pub currency: String,
    /// `pending`, `succeeded`, `declined`.
    pub status: String,
    /// The provider's name for its charge.
    pub charge: Option<String>,
}

const TABLE: &str = "CREATE TABLE IF NOT EXISTS payment (id TEXT PRIMARY KEY, amount BIGINT NOT NULL, currency TEXT NOT NULL, \
                     status TEXT NOT NULL, charge TEXT)";
/// A request that is run once more (after its charge was given up, and an operator has said that it did not happen) finds its own row.
pub(crate) const ADD: &str = "INSERT INTO payment (id, amount, currency, status) VALUES ($1, $2, $3, 'pending') \
                              ON CONFLICT (id) DO UPDATE SET status = 'pending', charge = NULL";
const SETTLE: &str = "UPDATE payment SET status = $2, charge = $3 WHERE id = $1";
const ONE: &str = "SELECT id, amount, currency, status, charge FROM payment WHERE id = $1";

/// One file: Oncegate's, with a table more in it.
pub(crate) async fn sqlite(path: &str) -> Result<(SqliteStore, SqlitePool), Error> {
    let store = SqliteStore::open(path)?;
    let options = SqliteConnectOptions::new().filename(path).synchronous(SqliteSynchronous::Full);
    let pool = SqlitePool::connect_with(options).await?;
    sqlx::query(TABLE).execute(&pool).await?;
    Ok((store, pool))
}

/// One database: Oncegate in a schema of its own, the payments where the connection puts them.
pub(crate) async fn postgres(url: &str) -> Result<(PostgresStore, PgPool), Error> {
    let store = PostgresStore::open(url).await?;
    // What comes after the question mark may be Oncegate's own.
    let pool = PgPool::connect(url.split('?').next().unwrap_or(url)).await?;
    sqlx::query(TABLE).execute(&pool).await?;
    Ok((store, pool))
}

/// Outside of any request.
#[derive(Clone)]
pub(crate) enum Payments {
    Postgres(PgPool),
    Sqlite(SqlitePool),
}

/// The same on whichever it is.
macro_rules! on {
    ($payments:expr, $pool:ident => $call:expr) => {
        match $payments {
            Payments::Postgres($pool) => $call,
            Payments::Sqlite($pool) => $call,
        }
    };
}

impl Payments {
    /// Again and again is once.
    pub(crate) async fn settle(&self, id: &str, status: &str, charge: &str) -> Result<(), sqlx::Error> {
        on!(self, pool => {
            sqlx::query(SETTLE).bind(id).bind(status).bind(charge).execute(pool).await.map(|_| ())
        })
    }

    pub(crate) async fn one(&self, id: &str) -> Result<Option<Payment>, sqlx::Error> {
        on!(self, pool => {
            let row = sqlx::query(ONE).bind(id).fetch_optional(pool).await?;
            row.map(|row| {
                Ok(Payment {
                    id: row.try_get("id")?,
                    amount: row.try_get("amount")?,
                    currency: row.try_get("currency")?,
                    status: row.try_get("status")?,
                    charge: row.try_get("charge")?,
                })
            })
            .transpose()
        })
    }
}
