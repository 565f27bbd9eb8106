//! The whole engine on a SQLite file that already has rows: what a fresh key costs as the file
//! grows.
//!
//! The file is filled by the store itself, kept, and found again by its name; a run works on a
//! copy.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use oncegate_engine::Options as EngineOptions;
use oncegate_store::{Store as _, Write};
use oncegate_store_sql::SqliteStore;

use crate::cost::column;
use crate::engine::Bench;
use crate::measure::Summary;
use crate::options::Options;
use crate::store::{check, reserved, settled};
use crate::{Outcome, fill, postgres};

/// Rows that are written in one commit while a file is filled.
const CHUNK: usize = 20_000;

/// Measures every number of requests in flight.
pub(crate) fn run(options: &Options) -> Outcome {
    let file = filled(options)?;
    let work = options.dir.join("sqlite-rows.db");
    fill::remove(&work)?;
    fs::copy(&file, &work)?;
    let engine = Bench::start(SqliteStore::open(&work)?, postgres::runtime()?, EngineOptions::default())?;
    println!(
        "\n| {} rows, in flight | requests/s | CPU µs | KiB written | commits per write |",
        options.rows
    );
    println!("| --- | --- | --- | --- | --- |");
    for &in_flight in &options.batches {
        let requests = 4 * Options::requests_per_turn(in_flight);
        let turns = (0..options.rounds).map(|_| engine.fresh(requests, in_flight));
        let turns = turns.collect::<Outcome<Vec<_>>>()?;
        let speed = Summary::of(&column(&turns, |turn| turn.requests_per_s)).median;
        let cpu = Summary::of(&column(&turns, |turn| turn.cpu_us));
        let written = Summary::of(&column(&turns, |turn| turn.written_kib));
        let commits = Summary::of(&column(&turns, |turn| turn.commits_per_write)).median;
        println!("| {in_flight} | {speed:.0} | {cpu} | {written} | {commits:.3} |");
    }
    drop(engine);
    fill::remove(&work)
}

fn filled(options: &Options) -> Outcome<std::path::PathBuf> {
    let path = options.dir.join(format!("sqlite-rows-{}.db", options.rows));
    if !path.exists() {
        let part = path.with_extension("part");
        fill::remove(&part)?;
        make(&part, options.rows)?;
        fs::rename(part, &path)?;
    }
    Ok(path)
}

fn make(path: &Path, rows: usize) -> Outcome {
    let store = SqliteStore::open(path)?;
    let runtime = postgres::runtime()?;
    let mut fresh = fill::fresh_rows();
    let mut made = 0;
    while made < rows {
        let batch = fresh.batch(CHUNK.min(rows - made));
        made += batch.len();
        let mut writes = Vec::with_capacity(2 * batch.len());
        for row in &batch {
            let held = reserved(row)?;
            writes.push(Write::insert(Arc::new(held.clone())));
            writes.push(Write::swap(held.version, Arc::new(settled(&held, row)?)));
        }
        check(runtime.block_on(store.apply(&writes))?)?;
        if made % 1_000_000 < CHUNK {
            eprintln!("filling: {made} of {rows}");
        }
    }
    drop(store);
    let connection = rusqlite::Connection::open(path)?;
    connection.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)")?;
    Ok(())
}
