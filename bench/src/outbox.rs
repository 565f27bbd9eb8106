//! The outbox, delivering to an effect that does nothing, beside what one writes by hand: one job a transaction, on the same database.
//!
//! By hand: lock the next job that nobody has, do it, mark it, commit. On PostgreSQL by one worker and by sixteen at once; on SQLite, which
//! has one writer, by one. Each turn begins with so many jobs promised and ends when all of them are done. Not here: delivering while
//! handlers promise (`atomic/promises`).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use oncegate_core::identity::{RecordId, Token};
use oncegate_engine::{
    Delivering, Delivery, Effect, Effects, Engine, Options as EngineOptions, OutboxOptions, Sent,
};
use oncegate_store::jobs::{Job, JobId, Jobs};
use oncegate_store_sql::{PostgresOptions, SqliteStore};
use oncegate_test_servers::Postgres;
use rusqlite::OptionalExtension as _;
use tokio::runtime::Runtime;
use tokio::sync::Notify;

use crate::cost::Turn;
use crate::engine::{Contender, print, timed};
use crate::measure::interleave;
use crate::options::Options;
use crate::postgres::SETTINGS;
use crate::{Outcome, fill};

/// Jobs of one turn.
const JOBS: usize = 4_000;
const PAYLOAD: &[u8] = br#"{"payment":"pay_0123456789abcdef","amount":4200,"currency":"EUR"}"#;
const BY_HAND: &str = "by hand, one worker";

/// Measures both databases.
pub(crate) fn run(options: &Options) -> Outcome {
    let server = Postgres::start(&SETTINGS);
    let store = runtime()?.block_on(async { PostgresOptions::new(&server.url())?.open().await })?;
    drop(store);
    let contenders: Vec<Contender> = vec![
        (BY_HAND, by_hand_on_postgres(&server, "by_one", 1)?),
        ("by hand, 16 workers", by_hand_on_postgres(&server, "by_many", 16)?),
        ("the outbox", {
            let runtime = runtime()?;
            let store = runtime.block_on(async { PostgresOptions::new(&server.url())?.open().await })?;
            outbox(runtime, store)?
        }),
    ];
    measure(options, "PostgreSQL", contenders)?;
    let files = ["by-hand", "outbox"].map(|name| options.dir.join(format!("jobs-{name}.db")));
    for file in &files {
        fill::remove(file)?;
    }
    let [by_hand, joined] = &files;
    let contenders: Vec<Contender> = vec![
        (BY_HAND, by_hand_on_sqlite(by_hand)?),
        ("the outbox", outbox(runtime()?, SqliteStore::open(joined)?)?),
    ];
    measure(options, "SQLite", contenders)?;
    files.iter().try_for_each(|file| fill::remove(file))
}

fn measure(options: &Options, database: &str, mut contenders: Vec<Contender>) -> Outcome {
    contenders.retain(|(name, _)| options.admits(name));
    let turns: Vec<Vec<Turn>> = interleave(options.rounds, &mut contenders, |(_, turn)| turn())?;
    let names: Vec<_> = contenders.iter().map(|(name, _)| *name).collect();
    println!("\n| {database} | jobs/s | : {BY_HAND} | CPU µs of this process | |");
    println!("| --- | --- | --- | --- | --- |");
    print(&names, &turns, BY_HAND);
    Ok(())
}

fn runtime() -> Outcome<Runtime> {
    Ok(tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?)
}

type Take = Box<dyn FnMut() -> Outcome<Turn>>;

/// Does nothing, and says when enough of it was done.
#[derive(Clone, Default)]
struct Nothing(Arc<Done>);

#[derive(Default)]
struct Done {
    count: AtomicUsize,
    enough: Notify,
}

impl Effect for Nothing {
    fn deliver<'a>(&'a self, _: &'a Delivery<'a>) -> Delivering<'a> {
        Box::pin(async {
            if self.0.count.fetch_add(1, Ordering::Relaxed) + 1 == JOBS {
                self.0.enough.notify_one();
            }
            Sent::Delivered { reference: Some("ch_0123456789".into()), answer: None }
        })
    }
}

fn outbox<S: Jobs>(runtime: Runtime, store: S) -> Outcome<Take> {
    let engine = runtime.block_on(Engine::start(store, EngineOptions::default()))?;
    let lives = AtomicU64::new(1);
    Ok(Box::new(move || {
        let nothing = Nothing::default();
        let effects = Effects::new().with("charge", nothing.clone());
        runtime.block_on(promise(&engine, lives.fetch_add(1, Ordering::Relaxed)))?;
        timed(JOBS, || {
            runtime.block_on(async {
                let _outbox = engine.start_outbox(&effects, &OutboxOptions::default());
                nothing.0.enough.notified().await;
                until_marked(&engine).await
            })
        })
    }))
}

/// Delivered is not done: the marking counts too.
pub(crate) async fn until_marked<S: Jobs>(engine: &Engine<S>) -> Outcome {
    while engine.store().depth().await?.iter().any(|depth| depth.waiting > 0) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    Ok(())
}

async fn promise<S: Jobs>(engine: &Engine<S>, life: u64) -> Outcome {
    let mut token = [0; 16];
    token[..8].copy_from_slice(&life.to_be_bytes());
    let (record, life, now) = (RecordId::from_bytes(token), Token::from_bytes(token), engine.now().at);
    let jobs: Vec<Job> = (0..u32::try_from(JOBS)?)
        .map(|place| Job::promised(JobId::of(life, place), "charge", PAYLOAD.to_vec(), (record, life), now))
        .collect();
    for jobs in jobs.chunks(500) {
        engine.store().promise(jobs).await?;
    }
    Ok(())
}

/// What one writes by hand: `FOR UPDATE SKIP LOCKED`, one job, one commit.
fn by_hand_on_postgres(server: &Postgres, table: &'static str, workers: usize) -> Outcome<Take> {
    let runtime = runtime()?;
    let url = server.url();
    let clients = runtime.block_on(async {
        let mut clients = Vec::new();
        for _ in 0..workers {
            let (client, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await?;
            tokio::spawn(connection);
            clients.push(Arc::new(client));
        }
        let create = format!(
            "CREATE TABLE {table} (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, payload bytea NOT NULL, \
             reference text, done boolean NOT NULL DEFAULT false); \
             CREATE INDEX {table}_open ON {table} (id) WHERE NOT done"
        );
        clients[0].batch_execute(&create).await?;
        Outcome::Ok(clients)
    })?;
    let fill = format!("INSERT INTO {table} (payload) SELECT $1::bytea FROM generate_series(1, {JOBS})");
    let next =
        format!("SELECT id, payload FROM {table} WHERE NOT done ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED");
    let mark = format!("UPDATE {table} SET done = true, reference = $2::text WHERE id = $1::bigint");
    Ok(Box::new(move || {
        runtime.block_on(async { clients[0].execute(&fill, &[&PAYLOAD]).await })?;
        timed(JOBS, || {
            runtime.block_on(async {
                let work = clients.iter().map(|client| async {
                    let (next, mark) = (client.prepare(&next).await?, client.prepare(&mark).await?);
                    loop {
                        client.batch_execute("BEGIN").await?;
                        let Some(row) = client.query_opt(&next, &[]).await? else {
                            client.batch_execute("ROLLBACK").await?;
                            return Outcome::Ok(());
                        };
                        let id: i64 = row.get(0);
                        client.execute(&mark, &[&id, &"ch_0123456789"]).await?;
                        client.batch_execute("COMMIT").await?;
                    }
                });
                futures_util::future::try_join_all(work).await.map(drop)
            })
        })
    }))
}

fn by_hand_on_sqlite(file: &std::path::Path) -> Outcome<Take> {
    let connection = rusqlite::Connection::open(file)?;
    connection.execute_batch(
        "PRAGMA journal_mode = wal; PRAGMA synchronous = full; \
         CREATE TABLE job (id INTEGER PRIMARY KEY, payload BLOB NOT NULL, reference TEXT, done INTEGER NOT NULL DEFAULT 0); \
         CREATE INDEX job_open ON job (id) WHERE done = 0",
    )?;
    Ok(Box::new(move || {
        connection.execute_batch("BEGIN")?;
        for _ in 0..JOBS {
            connection.prepare_cached("INSERT INTO job (payload) VALUES (?1)")?.execute([PAYLOAD])?;
        }
        connection.execute_batch("COMMIT")?;
        timed(JOBS, || {
            loop {
                connection.execute_batch("BEGIN IMMEDIATE")?;
                let mut next =
                    connection.prepare_cached("SELECT id FROM job WHERE done = 0 ORDER BY id LIMIT 1")?;
                let id: Option<i64> = next.query_row([], |row| row.get(0)).optional()?;
                let Some(id) = id else {
                    connection.execute_batch("ROLLBACK")?;
                    return Ok(());
                };
                let mark = "UPDATE job SET done = 1, reference = 'ch_0123456789' WHERE id = ?1";
                connection.prepare_cached(mark)?.execute([id])?;
                connection.execute_batch("COMMIT")?;
            }
        })
    }))
}
