//! The API's payments and refunds.

use std::path::Path;

use rusqlite::{OptionalExtension as _, Row, Transaction, params};
use serde::Serialize;

use super::input::Money;
use crate::file::File;

const TABLES: &str = "
CREATE TABLE IF NOT EXISTS payment (
    id        TEXT PRIMARY KEY,
    kind      TEXT NOT NULL,    -- payment or refund
    of        TEXT,             -- the payment that a refund is of
    reference TEXT NOT NULL,    -- whose, and under which idempotency key; the provider's reference too
    key       TEXT NOT NULL,
    amount    INTEGER NOT NULL,
    currency  TEXT NOT NULL,
    status    TEXT NOT NULL,    -- created, succeeded, declined, failed (nothing was sent), unknown
    charge    TEXT              -- the provider's name for it
);
CREATE INDEX IF NOT EXISTS payment_key ON payment (key);
CREATE INDEX IF NOT EXISTS payment_reference ON payment (reference);
CREATE INDEX IF NOT EXISTS payment_of ON payment (of);
";

/// A payment or a refund.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Payment {
    pub(super) id: String,
    pub(super) kind: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) of: Option<String>,
    #[serde(skip)]
    pub(super) reference: String,
    pub(super) idempotency_key: String,
    pub(super) amount: i64,
    pub(super) currency: String,
    pub(super) status: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) charge: Option<String>,
}

impl Payment {
    pub(super) fn money(&self) -> Money {
        Money { amount: self.amount, currency: self.currency.clone() }
    }
}

/// The file.
#[derive(Clone)]
pub(super) struct Book(File);

impl Book {
    pub(super) fn open(path: &Path) -> rusqlite::Result<Self> {
        File::open(path, TABLES).map(Self)
    }

    pub(super) async fn add(&self, payment: Payment) -> rusqlite::Result<()> {
        self.0.with(move |book| insert(book, &payment)).await
    }

    /// The same of a refund, if so much of the payment is left; else says how much is. What was, or may have been, refunded is not.
    ///
    /// One transaction: of two refunds at once, under two keys, the second sees the first.
    pub(super) async fn add_refund(
        &self,
        refund: Payment,
        paid: &Payment,
    ) -> rusqlite::Result<Result<(), i64>> {
        let (paid, amount) = (paid.id.clone(), paid.amount);
        self.0
            .with(move |book| {
                let refunded: i64 = book.query_row(
                    "SELECT coalesce(sum(amount), 0) FROM payment WHERE of = ?1 AND status NOT IN ('declined', 'failed')",
                    [paid],
                    |row| row.get(0),
                )?;
                if refund.amount > amount - refunded {
                    return Ok(Err(amount - refunded));
                }
                insert(book, &refund).map(Ok)
            })
            .await
    }

    /// Writes down what became of it. What is over stays as it is.
    pub(super) async fn settle(
        &self,
        id: String,
        status: &'static str,
        charge: Option<String>,
    ) -> rusqlite::Result<()> {
        self.0
            .with(move |book| {
                book.execute(
                    "UPDATE payment SET status = ?2, charge = coalesce(?3, charge) WHERE id = ?1 AND status IN ('created', 'unknown')",
                    params![id, status, charge],
                )?;
                Ok(())
            })
            .await
    }

    /// The same by the reference that the provider knows; newest first if there are several.
    pub(super) async fn settle_reference(
        &self,
        reference: String,
        status: &'static str,
        charge: String,
    ) -> rusqlite::Result<()> {
        self.0
            .with(move |book| {
                book.execute(
                    "UPDATE payment SET status = ?2, charge = ?3 WHERE id = (SELECT id FROM payment WHERE reference = ?1 \
                     AND status IN ('created', 'unknown') ORDER BY rowid DESC LIMIT 1)",
                    params![reference, status, charge],
                )?;
                Ok(())
            })
            .await
    }

    pub(super) async fn one(&self, id: String) -> rusqlite::Result<Option<Payment>> {
        self.0
            .with(move |book| book.query_row("SELECT * FROM payment WHERE id = ?1", [id], payment).optional())
            .await
    }

    /// Newest first.
    pub(super) async fn of_key(&self, key: String) -> rusqlite::Result<Vec<Payment>> {
        self.0
            .with(move |book| {
                let mut found = book.prepare("SELECT * FROM payment WHERE key = ?1 ORDER BY rowid DESC")?;
                found.query_map([key], payment)?.collect()
            })
            .await
    }
}

fn insert(book: &Transaction<'_>, payment: &Payment) -> rusqlite::Result<()> {
    let Payment { id, kind, of, reference, idempotency_key, amount, currency, status, charge } = payment;
    book.execute(
        "INSERT INTO payment VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
        params![id, kind, of, reference, idempotency_key, amount, currency, status, charge],
    )?;
    Ok(())
}

fn payment(row: &Row<'_>) -> rusqlite::Result<Payment> {
    Ok(Payment {
        id: row.get("id")?,
        kind: row.get("kind")?,
        of: row.get("of")?,
        reference: row.get("reference")?,
        idempotency_key: row.get("key")?,
        amount: row.get("amount")?,
        currency: row.get("currency")?,
        status: row.get("status")?,
        charge: row.get("charge")?,
    })
}
