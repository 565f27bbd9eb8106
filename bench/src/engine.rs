//! The engine and the layer beside the store, fresh keys and replays, in one interleaved run.
//!
//! A fresh request is an arrival and a settlement, both durable, from one of many tasks that each wait for their own. The
//! store's figure is the one of `store` at its best batch size: no decisions, no tasks, records made while the clock
//! stands. A replay is answered from the cache.

mod load;
mod upstream;

use std::time::Instant;

use oncegate_engine::{Engine, Options as EngineOptions};
use oncegate_store::memory::MemoryStore;
use oncegate_store_sql::SqliteStore;
use tokio::runtime::Runtime;

use crate::Outcome;
use crate::cost::{Meter, Turn, column};
use crate::fill;
use crate::measure::{Summary, interleave};
use crate::options::Options;
use crate::store::Driven;
use crate::traffic::{self, Load, Sample};
pub(crate) use load::{Bench, Error, next_key, once};

/// Requests that wait for their answer at the same time.
const IN_FLIGHT: [usize; 3] = [1, 16, 256];
/// The base of the engine's ratios.
const STORE: &str = "SQLite store";
const FILES: [&str; 3] = ["store", "engine", "layer"];

/// Measures all of it.
pub(crate) fn run(options: &Options) -> Outcome {
    let file = |name: &str| options.dir.join(format!("engine-{name}.db"));
    for name in FILES {
        fill::remove(&file(name))?;
    }
    for in_flight in IN_FLIGHT {
        fresh(options, in_flight, &file)?;
    }
    replays(options, &file)?;
    for name in FILES {
        fill::remove(&file(name))?;
    }
    Ok(())
}

pub(crate) type Contender = (&'static str, Box<dyn FnMut() -> Outcome<Turn>>);

fn fresh(options: &Options, in_flight: usize, file: &dyn Fn(&str) -> std::path::PathBuf) -> Outcome {
    let requests = 2 * Options::requests_per_turn(in_flight);
    let mut store = Driven::new(SqliteStore::open(file("store"))?)?;
    let mut maker = fill::fresh_rows();
    let load = Load { batch: in_flight, requests };
    let engine = Bench::start(SqliteStore::open(file("engine"))?, runtime()?, EngineOptions::default())?;
    let layer = Bench::start(SqliteStore::open(file("layer"))?, runtime()?, EngineOptions::default())?;
    let mut contenders: Vec<Contender> = vec![
        (STORE, Box::new(move || Meter::around(|| traffic::run(&mut store, &mut maker, load)))),
        ("engine on SQLite", Box::new(move || engine.fresh(requests, in_flight))),
        ("layer on SQLite", Box::new(move || layer.fresh_through_layer(requests, in_flight))),
        // A store of its own each time: it never forgets.
        (
            "engine on memory",
            Box::new(move || {
                Bench::start(MemoryStore::new(), runtime()?, EngineOptions::default())?
                    .fresh(requests, in_flight)
            }),
        ),
        (
            "layer on memory",
            Box::new(move || {
                Bench::start(MemoryStore::new(), runtime()?, EngineOptions::default())?
                    .fresh_through_layer(requests, in_flight)
            }),
        ),
    ];
    contenders.retain(|(name, _)| options.admits(name));
    let turns = interleave(options.rounds, &mut contenders, |(_, turn)| turn())?;
    let names: Vec<_> = contenders.iter().map(|(name, _)| *name).collect();
    println!("\n| fresh keys, {in_flight} in flight | requests/s | : {STORE} | CPU µs | commits per write |");
    println!("| --- | --- | --- | --- | --- |");
    print(&names, &turns, STORE);
    Ok(())
}

/// One after the other on one core, from the cache.
fn replays(options: &Options, file: &dyn Fn(&str) -> std::path::PathBuf) -> Outcome {
    let requests = 200_000;
    let engine = Bench::start(SqliteStore::open(file("engine"))?, one_core()?, EngineOptions::default())?;
    let layer = Bench::start(SqliteStore::open(file("layer"))?, one_core()?, EngineOptions::default())?;
    let mut contenders: Vec<Contender> = vec![
        ("engine", Box::new(move || engine.replays(requests))),
        ("layer", Box::new(move || layer.replays_through_layer(requests))),
    ];
    let turns = interleave(options.rounds, &mut contenders, |(_, turn)| turn())?;
    println!("\n| replays from the cache, one core | requests/s | : engine | CPU µs | commits per write |");
    println!("| --- | --- | --- | --- | --- |");
    print(&["engine", "layer"], &turns, "engine");
    Ok(())
}

pub(crate) fn print(names: &[&str], turns: &[Vec<Turn>], base: &str) {
    let speeds: Vec<_> = turns.iter().map(|turns| column(turns, |turn| turn.requests_per_s)).collect();
    for ((name, turns), speed) in names.iter().zip(turns).zip(&speeds) {
        let base = names.iter().position(|name| *name == base);
        let ratio = base.map_or_else(String::new, |base| Summary::of_ratio(speed, &speeds[base]).to_string());
        let cpu = Summary::of(&column(turns, |turn| turn.cpu_us));
        let commits = Summary::of(&column(turns, |turn| turn.commits_per_write)).median;
        let commits = if commits > 0.0 { format!("{commits:.3}") } else { "–".to_owned() };
        println!("| {name} | {:.0} | {ratio} | {cpu} | {commits} |", Summary::of(speed).median);
    }
}

fn runtime() -> Outcome<Runtime> {
    Ok(tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build()?)
}

fn one_core() -> Outcome<Runtime> {
    Ok(tokio::runtime::Builder::new_current_thread().enable_time().build()?)
}

/// One turn: all of its time counts.
pub(crate) fn timed(requests: usize, work: impl FnOnce() -> Outcome) -> Outcome<Turn> {
    Meter::around(|| {
        let started = Instant::now();
        work()?;
        Ok(Sample { requests, commits: vec![started.elapsed()] })
    })
}

fn start<S: oncegate_store::Store>(
    store: S,
    runtime: &Runtime,
    options: EngineOptions,
) -> Outcome<Engine<S>> {
    Ok(runtime.block_on(Engine::start(store, options))?)
}
