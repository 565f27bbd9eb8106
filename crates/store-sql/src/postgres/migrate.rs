//! Creates the schema and brings it up to date, once, however many nodes start together.

use oncegate_store::{Effect, Kind, Result, StoreError};

use super::error::Failure;
use super::session::Session;
use super::settings::{Schema, Settings};

/// The tables as they are, for a new schema: what all of [`MIGRATIONS`] come to.
const SCHEMA: &str = include_str!("../../migrations/postgres/schema.sql");

/// Functions and a view, made anew after either.
const ROUTINES: &str = include_str!("../../migrations/postgres/routines.sql");

/// The scripts that bring an older schema up to date, in order; the table `migration` says how many it has had. (A column that is dropped still costs every insert a little, so a new schema has none of
/// those.)
const MIGRATIONS: [&str; 15] = [
    include_str!("../../migrations/postgres/0001_records.sql"),
    include_str!("../../migrations/postgres/0002_trail.sql"),
    include_str!("../../migrations/postgres/0003_references.sql"),
    include_str!("../../migrations/postgres/0004_jobs.sql"),
    include_str!("../../migrations/postgres/0005_kept.sql"),
    include_str!("../../migrations/postgres/0006_doubts.sql"),
    include_str!("../../migrations/postgres/0007_waiting.sql"),
    include_str!("../../migrations/postgres/0008_doubts_since.sql"),
    include_str!("../../migrations/postgres/0009_jobs_apart.sql"),
    include_str!("../../migrations/postgres/0010_take.sql"),
    include_str!("../../migrations/postgres/0011_close.sql"),
    include_str!("../../migrations/postgres/0012_tell.sql"),
    include_str!("../../migrations/postgres/0013_lean.sql"),
    include_str!("../../migrations/postgres/0014_restore.sql"),
    include_str!("../../migrations/postgres/0015_removed.sql"),
];

/// Migrates. All of it is one transaction behind a lock of that transaction, which also works through a pooler.
pub(super) async fn run(settings: &Settings) -> Result<()> {
    let failed = |failure: Failure| failure.during("open", Effect::None);
    let session = Session::open(settings, "").await.map_err(failed)?;
    // Looked at first, without the lock and without the right to create anything: most starts have nothing to do.
    if applied(&session, &settings.schema).await.map_err(failed)? == Some(MIGRATIONS.len()) {
        return Ok(());
    }
    // Whatever the database's default: each look must see what was committed before it.
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

/// Whether the schema is there and up to date; changes nothing.
pub(super) async fn check(settings: &Settings) -> Result<()> {
    let failed = |failure: Failure| failure.during("open", Effect::None);
    let session = Session::open(settings, "").await.map_err(failed)?;
    let done = applied(&session, &settings.schema).await.map_err(failed)?;
    if done == Some(MIGRATIONS.len()) {
        return Ok(());
    }
    let name = settings.schema.as_str();
    let words = match done {
        None => format!(
            "there is no schema {name} of Oncegate's; nothing was created. Name another: ?schema=…, or run `oncegate migrate`."
        ),
        Some(done) if done > MIGRATIONS.len() => {
            format!("schema {name} is of a newer release; it was not touched. Run the newer release.")
        }
        Some(_) => format!(
            "schema {name} is not up to date with this release; it was not touched. Run `oncegate migrate` first."
        ),
    };
    Err(StoreError::new(Kind::Misconfigured, Effect::None, "open").because(words))
}

/// The outer error is the server's, the inner one ours.
async fn in_transaction(session: &Session, schema: &Schema) -> std::result::Result<Result<()>, Failure> {
    let (name, quoted) = (schema.as_str(), schema.quoted());
    // One at a time; whoever comes second sees what the first has done. Nothing may be looked at in this transaction before:
    // the server forgets what it remembers of names when a transaction first opens a table, and not when it gets a lock.
    session
        .run(&format!("SELECT pg_advisory_xact_lock(hashtextextended('oncegate migrations of {name}', 0))"))
        .await?;
    let done = applied(session, schema).await?;
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
    if done.is_none() && is_there(session, schema, "record").await? {
        let words = format!(
            "schema {name} has a table `record` that is not Oncegate's; it was not touched. Name another schema: ?schema=…"
        );
        return Ok(Err(StoreError::new(Kind::Misconfigured, Effect::None, "open").because(words)));
    }
    // Asked first: even IF NOT EXISTS needs the right to create schemas, which who has been given one may lack.
    let rows = session.query_once(&format!("SELECT FROM pg_namespace WHERE nspname = '{name}'"), &[]).await?;
    if rows.is_empty() {
        session.run(&format!("CREATE SCHEMA {quoted}")).await?;
    }
    session
        .run(&format!(
            "CREATE TABLE IF NOT EXISTS {quoted}.migration \
             (number integer PRIMARY KEY, applied_at timestamptz NOT NULL DEFAULT clock_timestamp())"
        ))
        .await?;
    let scripts = match done {
        None | Some(0) => &[SCHEMA][..],
        Some(done) => &MIGRATIONS[done.min(MIGRATIONS.len())..],
    };
    for script in scripts.iter().chain([&ROUTINES]) {
        session.run(&script.replace("{schema}", &quoted).replace("{name}", name)).await?;
    }
    let missing = format!(
        "INSERT INTO {quoted}.migration (number) SELECT n FROM generate_series({}, {}) n",
        done.unwrap_or(0) + 1,
        MIGRATIONS.len()
    );
    session.run(&missing).await?;
    Ok(Ok(()))
}

/// How many scripts the schema has had; `None` if it is not there.
async fn applied(session: &Session, schema: &Schema) -> std::result::Result<Option<usize>, Failure> {
    if !is_there(session, schema, "migration").await? {
        return Ok(None);
    }
    let text = format!("SELECT count(*) FROM {}.migration", schema.quoted());
    let rows = session.query_once(&text, &[]).await?;
    let count: i64 = rows.first().map_or(Ok(0), |row| row.try_get(0))?;
    Ok(Some(usize::try_from(count).unwrap_or(usize::MAX)))
}

/// Asks the catalogue, as of now. `to_regclass` would answer from what the session remembers.
async fn is_there(session: &Session, schema: &Schema, table: &str) -> std::result::Result<bool, Failure> {
    let text = format!(
        "SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace \
         WHERE n.nspname = '{}' AND c.relname = '{table}'",
        schema.as_str()
    );
    Ok(!session.query_once(&text, &[]).await?.is_empty())
}
