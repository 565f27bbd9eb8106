//! Transactions of tokio-postgres, for atomic handlers: what a service with connections of its own would copy.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, PoisonError};

use oncegate_store::join::{Asking, Connection, Shown, Transaction, Transactions, Value};
use oncegate_store::{Effect, Kind, Result, StoreError};
use oncegate_store_sql::postgres::is_of_the_statement;
use tokio_postgres::error::Severity;
use tokio_postgres::types::{FromSqlOwned, ToSql};
use tokio_postgres::{Client, Error, NoTls, Row};

/// A pool of the simplest kind: clients that nobody uses.
#[derive(Clone)]
pub(crate) struct Clients {
    pub(crate) url: String,
    pub(crate) idle: Arc<Mutex<Vec<Client>>>,
}

/// Dropped before its end, its client goes, and the server rolls back.
pub(crate) struct ClientTransaction {
    client: Client,
    clients: Clients,
}

impl Transactions for Clients {
    type Transaction = ClientTransaction;

    async fn begin(&self) -> Result<ClientTransaction> {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let client = if let Some(client) = idle.filter(|client| !client.is_closed()) {
            client
        } else {
            let connecting = tokio_postgres::connect(&self.url, NoTls);
            let (client, connection) = connecting.await.map_err(|error| failed(error, Effect::None))?;
            tokio::spawn(connection);
            client
        };
        client.batch_execute("BEGIN").await.map_err(|error| failed(error, Effect::None))?;
        Ok(ClientTransaction { client, clients: self.clone() })
    }
}

impl ClientTransaction {
    async fn end(self, with: &str) -> std::result::Result<(), Error> {
        self.client.batch_execute(with).await?;
        self.clients.idle.lock().unwrap_or_else(PoisonError::into_inner).push(self.client);
        Ok(())
    }
}

impl Transaction for ClientTransaction {
    type Inner = Client;

    async fn commit(self) -> Result<()> {
        self.end("COMMIT").await.map_err(|error| {
            let is_refusal = error.as_db_error().is_some_and(|error| {
                error.parsed_severity() == Some(Severity::Error) && is_of_the_statement(error.code().code())
            });
            // The server's word that it has rolled back; anything else leaves the commit in doubt.
            failed(error, if is_refusal { Effect::None } else { Effect::Unknown })
        })
    }

    async fn roll_back(self) {
        drop(self.end("ROLLBACK").await);
    }
}

impl Connection for ClientTransaction {
    fn ask<'a>(&'a mut self, sql: &'a str, values: &'a [Value<'a>]) -> Asking<'a> {
        Box::pin(async move {
            let values: Vec<Box<dyn ToSql + Sync + Send + 'a>> = values.iter().map(bound).collect();
            let values: Vec<&(dyn ToSql + Sync)> = values.iter().map(|value| &**value as _).collect();
            let rows = self.client.query(sql, &values).await?;
            rows.iter().map(|row| shown(row).map_err(Into::into)).collect()
        })
    }
}

fn bound<'a>(value: &'a Value<'a>) -> Box<dyn ToSql + Sync + Send + 'a> {
    match value {
        Value::Int(number) => Box::new(*number),
        Value::Text(text) => Box::new(text.as_deref()),
        Value::Bytes(bytes) => Box::new(bytes.as_deref()),
    }
}

fn shown(row: &Row) -> std::result::Result<Shown, Error> {
    Ok(Shown { number: column(row, "number")?, rest: column(row, "rest")?, answer: column(row, "answer")? })
}

/// What the statement does not show is nothing.
fn column<T: FromSqlOwned>(row: &Row, name: &str) -> std::result::Result<Option<T>, Error> {
    let place = row.columns().iter().position(|column| column.name() == name);
    place.map_or(Ok(None), |place| row.try_get(place))
}

fn failed(error: Error, effect: Effect) -> StoreError {
    StoreError::new(Kind::Unavailable, effect, "transaction").because(error)
}

impl Deref for ClientTransaction {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

impl DerefMut for ClientTransaction {
    fn deref_mut(&mut self) -> &mut Client {
        &mut self.client
    }
}
