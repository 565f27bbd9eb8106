//! How the two writes of a key could lie in PostgreSQL's tables: speed, HOT updates, growth.
//!
//! A commit reserves a batch and settles an earlier one, on two connections, as the engine does. What differs is where the
//! answer is, how rows whose moment has come are found, and how much of a page is left free.

use std::sync::Arc;
use std::time::Instant;

use futures_util::join;
use oncegate_test_servers::{Postgres, wait_until};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, NoTls, SimpleQueryMessage};

use super::{SETTINGS, id};
use crate::Outcome;
use crate::options::Options;

type Error = Box<dyn std::error::Error + Send + Sync>;

const CONNECTIONS: u64 = 2;
const BATCH: u64 = 128;
/// Batches between a row's reserve and its settle.
const LAG: usize = 2;

/// Where the answer is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Answer {
    /// In the row, which is updated in place.
    Inline,
    /// In a table of its own; the row is updated in place.
    Apart,
    /// With all else that a settle says, in a table that is only inserted into; the row is only locked.
    InsertOnly,
}

/// How rows whose moment has come are found.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Due {
    Index,
    Notes,
}

#[derive(Clone, Copy)]
struct Layout {
    name: &'static str,
    answer: Answer,
    due: Due,
    fillfactor: u32,
}

const LAYOUTS: [Layout; 7] = [
    Layout { name: "inline, index", answer: Answer::Inline, due: Due::Index, fillfactor: 100 },
    Layout { name: "inline, index, half free", answer: Answer::Inline, due: Due::Index, fillfactor: 50 },
    Layout { name: "apart, index", answer: Answer::Apart, due: Due::Index, fillfactor: 100 },
    Layout { name: "apart, notes", answer: Answer::Apart, due: Due::Notes, fillfactor: 100 },
    Layout { name: "apart, notes, a fifth free", answer: Answer::Apart, due: Due::Notes, fillfactor: 80 },
    Layout { name: "apart, notes, half free", answer: Answer::Apart, due: Due::Notes, fillfactor: 50 },
    Layout { name: "insert-only, notes", answer: Answer::InsertOnly, due: Due::Notes, fillfactor: 100 },
];

/// Writes `--rows` keys into each layout.
pub(crate) fn run(options: &Options) -> Outcome {
    let server = Postgres::start(&SETTINGS);
    let runtime = super::runtime()?;
    println!(
        "| layout | keys/s | HOT | WAL MiB | row MiB | its indexes MiB | answers, notes MiB | dead rows |"
    );
    println!("| --- | --- | --- | --- | --- | --- | --- | --- |");
    for layout in LAYOUTS.iter().filter(|layout| options.admits(layout.name)) {
        runtime.block_on(measure(&server, layout, options.rows as u64)).map_err(|error| error.to_string())?;
    }
    Ok(())
}

async fn measure(server: &Postgres, layout: &Layout, keys: u64) -> Result<(), Error> {
    let client = connect(&server.url()).await?;
    client.batch_execute("DROP SCHEMA IF EXISTS layout CASCADE; CREATE SCHEMA layout").await?;
    client.batch_execute(&layout.tables()).await?;
    client.batch_execute("CHECKPOINT").await?;
    let wal_before = one(&client, "SELECT pg_current_wal_insert_lsn()").await?;
    let started = Instant::now();
    let rounds = keys / CONNECTIONS / BATCH;
    let writers = (0..CONNECTIONS).map(|writer| write(server.url(), *layout, writer * rounds, rounds));
    for written in futures_util::future::join_all(writers.map(tokio::spawn)).await {
        written??;
    }
    let seconds = started.elapsed().as_secs_f64();
    let wal = format!("SELECT (pg_current_wal_insert_lsn() - '{wal_before}'::pg_lsn)::bigint / 1048576");
    let wal = one(&client, &wal).await?;
    let updates = if layout.answer == Answer::InsertOnly { 0 } else { keys - keys % (CONNECTIONS * BATCH) };
    wait_until("the counters arrive", || {
        server.sql(
            "SELECT n_tup_ins FROM pg_stat_all_tables WHERE schemaname = 'layout' AND relname = 'record'",
        ) == (rounds * CONNECTIONS * BATCH).to_string()
    });
    let counters = "SELECT n_tup_hot_upd, n_dead_tup FROM pg_stat_all_tables \
                    WHERE schemaname = 'layout' AND relname = 'record'";
    let counters = one(&client, counters).await?;
    let (hot, dead) = counters.split_once(' ').unwrap_or_default();
    let mib = |size: &str| format!("SELECT coalesce({size}, 0) / 1048576");
    let row = one(&client, &mib("pg_table_size('record')")).await?;
    let indexes = one(&client, &mib("pg_indexes_size('record')")).await?;
    let others = one(
        &client,
        &mib("coalesce(pg_total_relation_size(to_regclass('answer')), 0) \
              + coalesce(pg_total_relation_size(to_regclass('note')), 0)"),
    )
    .await?;
    #[expect(clippy::cast_precision_loss, reason = "counts far below 2^52")]
    let (speed, hot) = (
        keys as f64 / seconds,
        if updates == 0 {
            "–".to_owned()
        } else {
            format!("{:.0} %", hot.parse::<f64>()? * 100.0 / updates as f64)
        },
    );
    println!("| {} | {speed:.0} | {hot} | {wal} | {row} | {indexes} | {others} | {dead} |", layout.name);
    Ok(())
}

async fn write(url: String, layout: Layout, first: u64, rounds: u64) -> Result<(), Error> {
    let client = connect(&url).await?;
    let reserve = client.prepare(&layout.reserve()).await?;
    let settle = client.prepare(&layout.settle()).await?;
    let mut waiting: std::collections::VecDeque<Arc<Vec<Vec<u8>>>> = std::collections::VecDeque::new();
    for round in 0..rounds + LAG as u64 {
        let now = 1_767_225_600_000_000 + i64::try_from(round)? * 1_000;
        let fresh = if round < rounds {
            (0..BATCH).map(|n| id((first + round) * BATCH + n)).collect()
        } else {
            vec![]
        };
        let mut fresh: Vec<Vec<u8>> = fresh;
        fresh.sort_unstable();
        let fresh = Arc::new(fresh);
        let count = fresh.len();
        let base = i64::try_from((first + round) * BATCH)?;
        let seqs: Vec<i64> = (base..).take(count).collect();
        let keys: Vec<String> = seqs.iter().map(|seq| format!("{seq:016x}-{seq:016x}-00")).collect();
        let rest = vec![&[7_u8; 160][..]; count];
        let reserved: [&(dyn ToSql + Sync); 5] = [&seqs, &*fresh, &keys, &rest, &now];
        let old = if waiting.len() == LAG { waiting.pop_front().unwrap_or_default() } else { Arc::default() };
        let (old_rest, answers) = (vec![&[8_u8; 160][..]; old.len()], vec![&[9_u8; 300][..]; old.len()]);
        let settled: [&(dyn ToSql + Sync); 4] = [&*old, &old_rest, &answers, &now];
        let (begun, reserved, settled, committed) = join!(
            client.batch_execute("BEGIN"),
            client.query(&reserve, &reserved),
            client.query(&settle, &settled),
            client.batch_execute("COMMIT")
        );
        begun?;
        committed?;
        if (reserved?.len(), settled?.len()) != (count, old.len()) {
            return Err("a row was refused".into());
        }
        waiting.push_back(fresh);
    }
    Ok(())
}

impl Layout {
    fn tables(&self) -> String {
        let answer = if self.answer == Answer::Inline { ", answer bytea" } else { "" };
        let mut sql = format!(
            "CREATE TABLE record (seq bigint NOT NULL, id bytea NOT NULL, version bigint NOT NULL, state smallint NOT NULL, \
             due_at bigint, attention_at bigint, expires_at bigint, created_at bigint NOT NULL, resumable boolean NOT NULL, \
             scope text NOT NULL, key text NOT NULL, operation text NOT NULL, rest bytea NOT NULL{answer}) \
             WITH (fillfactor = {}); \
             CREATE UNIQUE INDEX ON record (id); CREATE UNIQUE INDEX ON record (seq);",
            self.fillfactor
        );
        sql += match self.answer {
            Answer::Inline => "",
            Answer::Apart => "CREATE TABLE answer (seq bigint PRIMARY KEY, bytes bytea NOT NULL);",
            Answer::InsertOnly => {
                "CREATE TABLE answer (seq bigint PRIMARY KEY, version bigint NOT NULL, expires_at bigint NOT NULL, \
                 rest bytea NOT NULL, bytes bytea NOT NULL);"
            }
        };
        sql += match self.due {
            Due::Index => "CREATE INDEX ON record (due_at);",
            Due::Notes => {
                "CREATE INDEX ON record (attention_at) WHERE attention_at IS NOT NULL; \
                 CREATE TABLE note (no bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, state smallint NOT NULL, \
                 due_at bigint NOT NULL, seqs bigint[] NOT NULL); CREATE INDEX ON note (state, due_at);"
            }
        };
        sql
    }

    fn note(&self, state: u32, rows: &str) -> String {
        match self.due {
            Due::Index => String::new(),
            Due::Notes => format!(
                ", noted AS (INSERT INTO note (state, due_at, seqs) SELECT {state}, min(due_at), array_agg(seq) FROM {rows} \
                 HAVING count(*) > 0)"
            ),
        }
    }

    fn reserve(&self) -> String {
        format!(
            "WITH inserted AS (INSERT INTO record (seq, id, version, state, due_at, created_at, resumable, scope, key, \
             operation, rest) SELECT seq, id, 1, 1, $5::bigint + 60000000, $5::bigint, false, 'tenant', key, \
             'POST /payments', rest FROM unnest($1::bigint[], $2::bytea[], $3::text[], $4::bytea[]) \
             AS new (seq, id, key, rest) ON CONFLICT (id) DO NOTHING RETURNING id, seq, due_at){} SELECT id FROM inserted",
            self.note(1, "inserted")
        )
    }

    fn settle(&self) -> String {
        let new = "unnest($1::bytea[], $2::bytea[], $3::bytea[]) AS new (id, rest, answer)";
        let due = "$4::bigint + 86400000000";
        let found = "r.id = ANY($1) AND r.id = new.id AND r.version = 1";
        let note = self.note(2, "settled");
        match self.answer {
            Answer::Inline => format!(
                "WITH settled AS (UPDATE record r SET version = 2, state = 2, due_at = {due}, expires_at = {due}, \
                 rest = new.rest, answer = new.answer FROM {new} WHERE {found} RETURNING r.id, r.seq, r.due_at){note} \
                 SELECT id FROM settled"
            ),
            Answer::Apart => format!(
                "WITH settled AS (UPDATE record r SET version = 2, state = 2, due_at = {due}, expires_at = {due}, \
                 rest = new.rest FROM {new} WHERE {found} RETURNING r.id, r.seq, r.due_at, new.answer){note}, \
                 kept AS (INSERT INTO answer SELECT seq, answer FROM settled) SELECT id FROM settled"
            ),
            Answer::InsertOnly => format!(
                "WITH settled AS (SELECT r.id, r.seq, {due} AS due_at, new.rest, new.answer FROM record r, {new} \
                 WHERE {found} FOR NO KEY UPDATE OF r){note}, \
                 kept AS (INSERT INTO answer SELECT seq, 2, due_at, rest, answer FROM settled \
                 ON CONFLICT (seq) DO NOTHING RETURNING seq) SELECT id FROM settled JOIN kept USING (seq)"
            ),
        }
    }
}

async fn connect(url: &str) -> Result<Client, Error> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(connection);
    let setup = "SET enable_seqscan = off; SET enable_nestloop = off; SET enable_mergejoin = off; SET search_path = layout";
    client.batch_execute(setup).await?;
    Ok(client)
}

/// The first row's columns, with spaces between.
async fn one(client: &Client, sql: &str) -> Result<String, Error> {
    for message in client.simple_query(sql).await? {
        if let SimpleQueryMessage::Row(row) = message {
            let columns: Vec<_> = (0..row.len()).map(|n| row.get(n).unwrap_or("0")).collect();
            return Ok(columns.join(" "));
        }
    }
    Err(format!("no row: {sql}").into())
}
