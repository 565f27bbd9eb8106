//! The engine on PostgreSQL beside what one would write by hand, over the same tables, in one interleaved run.
//!
//! A server of its own is started for the run, with its defaults for durability. Load, engine and server share the machine's
//! cores, as in every figure of this crate.

mod floor;
pub(crate) mod layouts;

use oncegate_engine::{Options as EngineOptions, Shared};
use oncegate_store_redis::RedisCacheOptions;
use oncegate_store_sql::PostgresStore;
use oncegate_store_sql::postgres::PostgresOptions;
use oncegate_test_servers::{Postgres, Redis};
use tokio::runtime::Runtime;

use crate::Outcome;
use crate::engine::{Bench, Contender, print};
use crate::measure::interleave;
use crate::options::Options;
use floor::Floor;

/// Requests that wait for their answer at the same time.
const IN_FLIGHT: [usize; 3] = [64, 256, 1024];
const TWO_COMMITS: &str = "two commits a request over 64 connections";
const BATCHES: &str = "hand-made batches of 256";

/// What a server that is used for nothing else would be given.
pub(crate) const SETTINGS: [(&str, &str); 3] =
    [("shared_buffers", "512MB"), ("max_wal_size", "4GB"), ("checkpoint_timeout", "15min")];

/// Measures fresh keys and replays.
pub(crate) fn run(options: &Options) -> Outcome {
    let server = Postgres::start(&SETTINGS);
    for in_flight in IN_FLIGHT {
        fresh(options, &server, in_flight)?;
    }
    replays(options, &server)
}

fn fresh(options: &Options, server: &Postgres, in_flight: usize) -> Outcome {
    let requests = 2 * Options::requests_per_turn(in_flight);
    let by_hand = Floor::open(&server.url(), "by_hand", 64)?;
    let batches = Floor::open(&server.url(), "batches", 2)?;
    let engine = |schema: &str, writers: usize| -> Outcome<Bench<PostgresStore>> {
        let runtime = runtime()?;
        let opened = PostgresOptions::new(&server.url())?.schema(schema)?.writers(writers).open();
        let store = runtime.block_on(opened)?;
        Bench::start(store, runtime, EngineOptions::default())
    };
    let (one, two) = (engine("engine_one", 1)?, engine("engine_two", 2)?);
    let mut contenders: Vec<Contender> = vec![
        (TWO_COMMITS, Box::new(move || by_hand.two_commits(requests / 2))),
        (BATCHES, Box::new(move || batches.batches(requests, 256))),
        ("engine with one batch at a time", Box::new(move || one.fresh(requests, in_flight))),
        ("engine with two batches at once", Box::new(move || two.fresh(requests, in_flight))),
    ];
    contenders.retain(|(name, _)| options.admits(name));
    let turns = interleave(options.rounds, &mut contenders, |(_, turn)| turn())?;
    let names: Vec<_> = contenders.iter().map(|(name, _)| *name).collect();
    for base in [TWO_COMMITS, BATCHES] {
        println!(
            "\n| fresh keys, {in_flight} in flight | requests/s | : {base} | CPU µs | commits per write |"
        );
        println!("| --- | --- | --- | --- | --- |");
        print(&names, &turns, base);
    }
    Ok(())
}

/// 64 at a time, each over 2,000 keys that were settled before.
fn replays(options: &Options, server: &Postgres) -> Outcome {
    let redis = Redis::start(&["--save", "", "--appendonly", "no"]);
    let engine = |cache_bytes: u64, with_redis: bool| -> Outcome<Bench<PostgresStore>> {
        let runtime = runtime()?;
        let store = runtime.block_on(PostgresOptions::new(&server.url())?.schema("replays")?.open())?;
        let shared_cache =
            if with_redis { Some(Shared::new(RedisCacheOptions::new(redis.url()).start()?)) } else { None };
        Bench::start(store, runtime, EngineOptions { cache_bytes, shared_cache, ..EngineOptions::default() })
    };
    let (local, shared, none) = (engine(64 << 20, false)?, engine(0, true)?, engine(0, false)?);
    let keys = local.settled_keys(2_000)?;
    let mut contenders: Vec<Contender> = Vec::new();
    let of =
        |bench: Bench<PostgresStore>, requests: usize| -> Box<dyn FnMut() -> Outcome<crate::cost::Turn>> {
            let keys = keys.clone();
            Box::new(move || bench.replays_of(&keys, requests, 64))
        };
    contenders.push(("read from PostgreSQL", of(none, 40_000)));
    contenders.push(("cached in Redis", of(shared, 80_000)));
    contenders.push(("cached in process", of(local, 400_000)));
    contenders.retain(|(name, _)| options.admits(name));
    let turns = interleave(options.rounds, &mut contenders, |(_, turn)| turn())?;
    let names: Vec<_> = contenders.iter().map(|(name, _)| *name).collect();
    println!(
        "\n| replays, 64 in flight | requests/s | : read from PostgreSQL | CPU µs | commits per write |"
    );
    println!("| --- | --- | --- | --- | --- |");
    print(&names, &turns, "read from PostgreSQL");
    Ok(())
}

pub(crate) fn runtime() -> Outcome<Runtime> {
    Ok(tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?)
}

/// The id of the key with this number, spread like a hash.
fn id(n: u64) -> Vec<u8> {
    let mix = |n: u64| {
        let n = (n ^ (n >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let n = (n ^ (n >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        n ^ (n >> 31)
    };
    let n = n.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    [mix(n).to_be_bytes(), mix(!n).to_be_bytes()].concat()
}
