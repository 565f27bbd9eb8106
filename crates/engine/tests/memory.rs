//! A million records pass through an engine, and its memory stays bounded. In a binary of its own, so that the memory is its own.

#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, clippy::panic, reason = "tests")]

#[expect(dead_code, reason = "shared with the other tests, which use all of it")]
#[path = "engine/world.rs"]
mod world;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use oncegate_engine::{Engine, Options};
use oncegate_store_sql::sqlite::SqliteStore;

use world::{answer, completed, ietf, replayed, start};

const CLIENTS: usize = 256;
const RECORDS: usize = 1_000_000;
const CACHE_BYTES: u64 = 16 << 20;
/// What an engine on SQLite may take besides its cache. Of the 88 MiB measured, SQLite's page cache is 64; the rest is the program, its
/// threads, and what 256 clients have in flight.
const BESIDES_BYTES: u64 = 112 << 20;
/// What it may still grow by once all of that is filled, besides the index: less than 14 bytes a record.
const GROWTH_BYTES: u64 = 8 << 20;
/// The store's index over ids is in memory: 40 bytes a record at most, the moment after it has doubled.
const INDEX_BYTES: u64 = 40 * RECORDS as u64;

/// Each client takes the next key until there are no more.
async fn pass(engine: &Engine<SqliteStore>, keys: Range<usize>) {
    let next = Arc::new(AtomicUsize::new(keys.start));
    let clients: Vec<_> = (0..CLIENTS)
        .map(|_| {
            let (engine, next, keys) = (engine.clone(), Arc::clone(&next), keys.clone());
            tokio::spawn(async move {
                let route = ietf();
                loop {
                    let n = next.fetch_add(1, Ordering::Relaxed);
                    if n >= keys.end {
                        return;
                    }
                    completed(&engine, &route, &format!("key-{n}"), &format!("payment {n} of a million"))
                        .await;
                }
            })
        })
        .collect();
    for client in clients {
        client.await.unwrap();
    }
}

/// A service that runs for months: every record is in the file, its id in the index, some are in the cache, none is anywhere else.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_million_records_pass_in_bounded_memory() {
    let folder = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(folder.path().join("oncegate.db")).unwrap();
    let engine = start(store, Options { cache_bytes: CACHE_BYTES, ..Options::default() }).await;
    let filled = RECORDS * 2 / 5;
    pass(&engine, 0..filled).await;
    let before = resident();
    pass(&engine, filled..RECORDS).await;
    let after = resident();
    assert!(after < CACHE_BYTES + BESIDES_BYTES + INDEX_BYTES, "{} MiB", after >> 20);
    assert!(after < before + GROWTH_BYTES + INDEX_BYTES, "from {} to {} MiB", before >> 20, after >> 20);
    assert!(engine.stats().cache_bytes <= CACHE_BYTES);
    assert_eq!(engine.stats().writes, 2 * RECORDS as u64, "a reserve and a settlement each");
    for n in [0, filled, RECORDS - 1] {
        let key = format!("key-{n}");
        assert_eq!(
            *replayed(&engine, &ietf(), &key).await,
            answer(&paid(n)),
            "the first and the last still replay"
        );
    }
}

fn paid(n: usize) -> String {
    format!("payment {n} of a million")
}

/// What the process keeps in memory, in bytes.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}
