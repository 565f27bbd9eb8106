//! Creates the schema and brings it up to date, once, however many nodes start together.

use oncegate_store::{Effect, Kind, Result, StoreError};

use super::error::Failure;
use super::session::Session;
use super::settings::{Schema, Settings};

/// The scripts, in order; the table `migration` says how many a schema has had.
const MIGRATIONS: [&str; 1] = [include_str!("../../migrations/postgres/0001_records.sql")];

/// Migrates. All of it is one transaction behind a lock of that transaction, which also works through a pooler.
pub(super) async fn run(settings: &Settings) -> Result<()> {
    let failed = |failure: Failure| failure.during("open", Effect::None);
    let session = Session::open(settings, "").await.map_err(failed)?;
    // Looked at first, without the lock and without the right to create anything: most starts have nothing to do.
    if applied(&session, settings.schema.as_str()).await.map_err(failed)? == Some(MIGRATIONS.len()) {
        return Ok(());
    }
    // Read committed, whatever the default: who has waited for the lock must see what was done meanwhile.
    session.run("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE").await.map_err(failed)?;
    match in_transaction(&session, &settings.schema).await {
        Ok(Ok(())) => session.run("COMMIT").await.map_err(failed),
        Ok(Err(refused)) => {
            let _ = session.run("ROLLBACK").await;
            Err(refused)
        }
        Err(failure) => {
            let _ = session.run("ROLLBACK").await;
            Err(failed(failure))
        }
    }
}

/// The outer error is the server's, the inner one ours.
async fn in_transaction(session: &Session, schema: &Schema) -> std::result::Result<Result<()>, Failure> {
    let name = schema.as_str();
    // One at a time; whoever comes second sees what the first has done.
    session
        .run(&format!("SELECT pg_advisory_xact_lock(hashtextextended('oncegate migrations of {name}', 0))"))
        .await?;
    let done = applied(session, name).await?;
    if let Some(done) = done
        && done > MIGRATIONS.len()
    {
        let words = format!(
            "schema {name} is of a newer release ({done} migrations; this release knows {}); it was not touched. Run the newer \
             release.",
            MIGRATIONS.len()
        );
        return Ok(Err(StoreError::new(Kind::Unreadable, Effect::None, "open").because(words)));
    }
    if done.is_none() && is_there(session, name, "record").await? {
        let words = format!(
            "schema {name} has a table `record` that is not Oncegate's; it was not touched. Name another schema: ?schema=…"
        );
        return Ok(Err(StoreError::new(Kind::Misconfigured, Effect::None, "open").because(words)));
    }
    session.run(&format!("CREATE SCHEMA IF NOT EXISTS {name}")).await?;
    session
        .run(&format!(
            "CREATE TABLE IF NOT EXISTS {name}.migration \
             (number integer PRIMARY KEY, applied_at timestamptz NOT NULL DEFAULT clock_timestamp())"
        ))
        .await?;
    for (number, script) in (1..).zip(MIGRATIONS).skip(done.unwrap_or(0)) {
        session.run(&script.replace("{schema}", name)).await?;
        session.run(&format!("INSERT INTO {name}.migration (number) VALUES ({number})")).await?;
    }
    Ok(Ok(()))
}

/// How many scripts the schema has had; `None` if it is not there.
async fn applied(session: &Session, name: &str) -> std::result::Result<Option<usize>, Failure> {
    if !is_there(session, name, "migration").await? {
        return Ok(None);
    }
    let rows = session.query_once(&format!("SELECT count(*) FROM {name}.migration"), &[]).await?;
    let count: i64 = rows.first().map_or(Ok(0), |row| row.try_get(0))?;
    Ok(Some(usize::try_from(count).unwrap_or(usize::MAX)))
}

/// Whether the schema has this table. The catalogue's rows are asked: `to_regclass` remembers that there was no such schema,
/// and an advisory lock does not make it look again.
async fn is_there(session: &Session, name: &str, table: &str) -> std::result::Result<bool, Failure> {
    let text = format!(
        "SELECT EXISTS (SELECT FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
         WHERE n.nspname = '{name}' AND c.relname = '{table}')"
    );
    let rows = session.query_once(&text, &[]).await?;
    Ok(rows.first().is_some_and(|row| row.get(0)))
}
