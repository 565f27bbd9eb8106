//! Every charge, durably. The judge.

use std::path::Path;

use rusqlite::{OptionalExtension as _, Row, Transaction, params};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::file::File;

const TABLES: &str = "
CREATE TABLE IF NOT EXISTS charge (
    no        INTEGER PRIMARY KEY,
    reference TEXT NOT NULL, -- the merchant's name for it
    kind      TEXT NOT NULL, -- payment or refund
    amount    INTEGER NOT NULL,
    currency  TEXT NOT NULL,
    status    TEXT NOT NULL, -- succeeded or declined
    key       TEXT,          -- the merchant's idempotency key, if it says so: shown, and told in webhooks
    attempt   TEXT           -- which attempt of it the merchant makes, if it says so: the same
);
CREATE INDEX IF NOT EXISTS charge_reference ON charge (reference);
-- The provider's own idempotency.
CREATE TABLE IF NOT EXISTS used_key (key TEXT PRIMARY KEY, no INTEGER NOT NULL) WITHOUT ROWID;
";

/// What a merchant asks for.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Order {
    pub(super) reference: String,
    #[serde(default = "payment")]
    pub(super) kind: String,
    pub(super) amount: i64,
    pub(super) currency: String,
    /// The key under which the merchant was asked for it.
    #[serde(default)]
    pub(super) merchant_key: Option<String>,
    /// Which attempt of that this is.
    #[serde(default)]
    pub(super) merchant_attempt: Option<String>,
}

fn payment() -> String {
    "payment".to_owned()
}

/// What became of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Charge {
    pub(super) id: String,
    pub(super) reference: String,
    pub(super) kind: String,
    pub(super) amount: i64,
    pub(super) currency: String,
    pub(super) status: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) merchant_key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) merchant_attempt: Option<String>,
}

/// The book of charges.
pub(super) struct Ledger(File);

impl Ledger {
    pub(super) fn open(path: &Path) -> rusqlite::Result<Self> {
        File::open(path, TABLES).map(Self)
    }

    /// Books it, or finds what the same key had booked before.
    pub(super) async fn book(
        &self,
        order: Order,
        status: &'static str,
        key: Option<String>,
    ) -> rusqlite::Result<Charge> {
        self.0
            .with(move |ledger| {
                let Some(key) = &key else { return insert(ledger, &order, status) };
                if let Some(charge) = used(ledger, key)? {
                    return Ok(charge);
                }
                let charge = insert(ledger, &order, status)?;
                let no = ledger.last_insert_rowid();
                ledger.execute("INSERT INTO used_key (key, no) VALUES (?1, ?2)", params![key, no])?;
                Ok(charge)
            })
            .await
    }

    pub(super) async fn find(&self, reference: String) -> rusqlite::Result<Vec<Charge>> {
        self.0
            .with(move |ledger| {
                let mut found = ledger.prepare("SELECT * FROM charge WHERE reference = ?1 ORDER BY no")?;
                found.query_map([reference], charge)?.collect()
            })
            .await
    }

    pub(super) async fn one(&self, no: i64) -> rusqlite::Result<Option<Charge>> {
        self.0
            .with(move |ledger| {
                ledger.query_row("SELECT * FROM charge WHERE no = ?1", [no], charge).optional()
            })
            .await
    }

    /// How many charges there are, and which references were charged more than once.
    pub(super) async fn verdict(&self) -> rusqlite::Result<Value> {
        self.0.with(|ledger| {
            let (charges, declined): (i64, i64) = ledger.query_row(
                "SELECT count(*) FILTER (WHERE status = 'succeeded'), count(*) FILTER (WHERE status = 'declined') FROM charge",
                [],
                |row| Ok((row.get(0)?, row.get(1)?)),
            )?;
            let mut twice = ledger.prepare(
                "SELECT reference, count(*) FROM charge WHERE status = 'succeeded' GROUP BY reference HAVING count(*) > 1",
            )?;
            let twice: Vec<Value> = twice
                .query_map([], |row| Ok(json!({ "reference": row.get::<_, String>(0)?, "charges": row.get::<_, i64>(1)? })))?
                .collect::<rusqlite::Result<_>>()?;
            Ok(json!({ "charges": charges, "declined": declined, "charged_twice": twice }))
        })
        .await
    }
}

fn used(ledger: &Transaction<'_>, key: &str) -> rusqlite::Result<Option<Charge>> {
    let found = "SELECT charge.* FROM charge JOIN used_key USING (no) WHERE used_key.key = ?1";
    ledger.query_row(found, [key], charge).optional()
}

fn insert(ledger: &Transaction<'_>, order: &Order, status: &str) -> rusqlite::Result<Charge> {
    let Order { reference, kind, amount, currency, merchant_key, merchant_attempt } = order;
    ledger.query_row(
        "INSERT INTO charge (reference, kind, amount, currency, status, key, attempt) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7) \
         RETURNING *",
        params![reference, kind, amount, currency, status, merchant_key, merchant_attempt],
        charge,
    )
}

fn charge(row: &Row<'_>) -> rusqlite::Result<Charge> {
    Ok(Charge {
        id: format!("ch_{}", row.get::<_, i64>("no")?),
        reference: row.get("reference")?,
        kind: row.get("kind")?,
        amount: row.get("amount")?,
        currency: row.get("currency")?,
        status: row.get("status")?,
        merchant_key: row.get("key")?,
        merchant_attempt: row.get("attempt")?,
    })
}
