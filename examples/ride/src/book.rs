//! The service's own rows, the same in both databases. Nothing here is unique on purpose: what was done twice would be seen.

use oncegate_store::join::{Transaction, Transactions};
use oncegate_tower::phased::JobError;
use sqlx::{PgConnection, SqliteConnection};

pub(crate) const SQLITE: &str = "
CREATE TABLE IF NOT EXISTS ride (id INTEGER PRIMARY KEY, key TEXT NOT NULL, destination TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS receipt (id INTEGER PRIMARY KEY, key TEXT NOT NULL, ride BIGINT NOT NULL, charge TEXT NOT NULL);
";
pub(crate) const POSTGRES: &str = "
CREATE TABLE IF NOT EXISTS ride (id BIGSERIAL PRIMARY KEY, key TEXT NOT NULL, destination TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS receipt (id BIGSERIAL PRIMARY KEY, key TEXT NOT NULL, ride BIGINT NOT NULL, charge TEXT NOT NULL);
";

/// What a transaction's statements are run on.
pub(crate) type InnerOf<T> = <<T as Transactions>::Transaction as Transaction>::Inner;

/// Rides and receipts.
pub(crate) trait Book: Send {
    fn create_ride(&mut self, key: &str, to: &str) -> impl Future<Output = Result<i64, JobError>> + Send;
    fn write_receipt(
        &mut self,
        key: &str,
        ride: i64,
        charge: &str,
    ) -> impl Future<Output = Result<i64, JobError>> + Send;
}

/// sqlx's queries are typed by their database: one text, two types.
macro_rules! book_of {
    ($connection:ty) => {
        impl Book for $connection {
            async fn create_ride(&mut self, key: &str, to: &str) -> Result<i64, JobError> {
                let insert = "INSERT INTO ride (key, destination) VALUES ($1, $2) RETURNING id";
                Ok(sqlx::query_scalar(insert).bind(key).bind(to).fetch_one(self).await?)
            }

            async fn write_receipt(&mut self, key: &str, ride: i64, charge: &str) -> Result<i64, JobError> {
                let insert = "INSERT INTO receipt (key, ride, charge) VALUES ($1, $2, $3) RETURNING id";
                Ok(sqlx::query_scalar(insert).bind(key).bind(ride).bind(charge).fetch_one(self).await?)
            }
        }
    };
}

book_of!(PgConnection);
book_of!(SqliteConnection);
