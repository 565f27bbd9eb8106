//! Requests with fresh keys, with and without a reaper that works off what has piled up; and whether it removes as fast as they come.
//!
//! Once at a constant rate, timed from the moment at which a request was to be sent; and once as many as the machine bears, in a
//! closed loop. The reaper does what its worker does: pass after pass, for there is always more.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use oncegate_core::policy::Profile;
use oncegate_core::scope::Operation;
use oncegate_engine::{Engine, NoProbe, Route, Worker, WorkerOptions};
use oncegate_store::Store;
use oncegate_test_servers::Postgres;
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;

use super::{Node, POSTGRES, SQLITE, no_file, on_postgres, on_sqlite};
use crate::engine::{Error, next_key, once};
use crate::measure::{Summary, interleave, percentile};
use crate::options::Options;
use crate::rows::RowMaker;
use crate::store::{reserved, settled};
use crate::{Outcome, fill, postgres};

/// How long a turn takes.
const TURN: Duration = Duration::from_secs(4);
/// Rows of one write while filling: on PostgreSQL, those under one note.
const FILL_BATCH: usize = 64;

/// How requests come.
#[derive(Clone, Copy)]
enum Load {
    /// So many a second.
    Rate(u32),
    /// So many at a time, each followed by the next.
    Closed(usize),
}

const LOADS: [(&str, Load); 2] = [("2,000 a second", Load::Rate(2_000)), ("64 in flight", Load::Closed(64))];

#[derive(Clone, Copy)]
struct Turn {
    requests_per_s: f64,
    p50_ms: f64,
    p99_ms: f64,
    removed_per_s: f64,
}

/// Measures both stores.
pub(crate) fn run(options: &Options) -> Outcome {
    if options.admits(SQLITE) {
        let file = no_file(options, "reaper")?;
        measure(options, SQLITE, Subject::new(on_sqlite(&file)?)?)?;
        fill::remove(&file)?;
    }
    if options.admits(POSTGRES) {
        let server = Postgres::start(&postgres::SETTINGS);
        measure(options, POSTGRES, Subject::new(on_postgres(&server, "reaper")?)?)?;
    }
    Ok(())
}

fn measure<S: Store>(options: &Options, store: &str, mut subject: Subject<S>) -> Outcome {
    for (name, load) in LOADS {
        let turns = interleave(options.rounds, &mut [false, true], |with_reaper| {
            subject.pile_up(options.rows)?;
            let turn = subject.turn(load, *with_reaper)?;
            eprintln!(
                "{store}, {name}, reaper {with_reaper}: {:.0}/s, {:.0}/s removed",
                turn.requests_per_s, turn.removed_per_s
            );
            Ok(turn)
        })?;
        print(&format!("{store}, {name}"), &turns);
    }
    Ok(())
}

fn print(title: &str, turns: &[Vec<Turn>]) {
    println!("\n| {title} | without | with the reaper | ratio |");
    println!("| --- | --- | --- | --- |");
    let column = |turns: &Vec<Turn>, of: fn(&Turn) -> f64| -> Vec<f64> { turns.iter().map(of).collect() };
    let row = |what: &str, of: fn(&Turn) -> f64| {
        let (without, with) = (column(&turns[0], of), column(&turns[1], of));
        let ratio = Summary::of_ratio(&with, &without);
        println!(
            "| {what} | {:.1} | {:.1} | {ratio} |",
            Summary::of(&without).median,
            Summary::of(&with).median
        );
    };
    row("requests/s", |turn| turn.requests_per_s);
    row("p50 ms", |turn| turn.p50_ms);
    row("p99 ms", |turn| turn.p99_ms);
    let (removed, arrived) =
        (column(&turns[1], |turn| turn.removed_per_s), column(&turns[1], |turn| turn.requests_per_s));
    let ratio = Summary::of_ratio(&removed, &arrived);
    println!("| removed/s : arrived/s | – | {:.0} | {ratio} |", Summary::of(&removed).median);
}

/// A node, and how many rows past retention its store holds.
struct Subject<S: Store> {
    node: Node<S>,
    route: Route,
    old: RowMaker,
    piled_up: usize,
}

impl<S: Store> Subject<S> {
    fn new(node: Node<S>) -> Outcome<Self> {
        let route = Route::of_profile(Profile::Ietf, Operation::new("POST /payments")?);
        Ok(Self { node, route, old: fill::old_rows(), piled_up: 0 })
    }

    /// Until so many rows are past retention.
    fn pile_up(&mut self, rows: usize) -> Outcome {
        if self.piled_up >= rows {
            return Ok(());
        }
        let mut written = 0;
        while self.piled_up < rows {
            let batch = self.old.batch(FILL_BATCH);
            let done = |row| settled(&reserved(row)?, row);
            self.node.insert(batch.iter().map(done).collect::<Outcome<_>>()?)?;
            self.piled_up += FILL_BATCH;
            written += FILL_BATCH;
            if written.is_multiple_of(FILL_BATCH << 10) {
                eprintln!("filling: {} of {rows}", self.piled_up);
            }
        }
        // As in service, where the sweeper has been by before anything expires.
        self.node.pass(Worker::Sweeper, &WorkerOptions::default())?;
        Ok(())
    }

    fn turn(&mut self, load: Load, with_reaper: bool) -> Outcome<Turn> {
        let (engine, route) = (self.node.engine.clone(), self.route.clone());
        let is_over = Arc::new(AtomicBool::new(false));
        let reaper = with_reaper.then(|| self.node.runtime.spawn(reap(engine.clone(), Arc::clone(&is_over))));
        let started = Instant::now();
        let requests = async {
            match load {
                Load::Rate(rate) => at_rate(&engine, &route, rate).await,
                Load::Closed(in_flight) => closed(&engine, &route, in_flight).await,
            }
        };
        let mut times = self.node.runtime.block_on(requests).map_err(|error| error.to_string())?;
        let taken = started.elapsed().as_secs_f64();
        is_over.store(true, Ordering::Relaxed);
        let removed = match reaper {
            Some(reaper) => self.node.runtime.block_on(reaper)?.map_err(|error| error.to_string())?,
            None => 0,
        };
        self.piled_up = self.piled_up.checked_sub(removed).ok_or("it removed more than there was")?;
        #[expect(clippy::cast_precision_loss, reason = "counts of one turn are far below 2^52")]
        let per_s = |count: usize| count as f64 / taken;
        let mut ms = |share| percentile(&mut times, share).as_secs_f64() * 1e3;
        let (p50_ms, p99_ms) = (ms(0.5), ms(0.99));
        Ok(Turn { requests_per_s: per_s(times.len()), p50_ms, p99_ms, removed_per_s: per_s(removed) })
    }
}

/// Passes until it is over; how many rows they have removed.
async fn reap<S: Store>(engine: Engine<S>, is_over: Arc<AtomicBool>) -> Result<usize, Error> {
    let options = WorkerOptions::default();
    let mut removed = 0;
    while !is_over.load(Ordering::Relaxed) {
        let pass = engine.work(Worker::Reaper, &options, &NoProbe).await?;
        if !pass.more {
            return Err("there was nothing more to remove: begin with more rows".into());
        }
        removed += pass.changed;
        tokio::task::yield_now().await;
    }
    Ok(removed)
}

/// Sends what is due every millisecond, and times it from then on.
async fn at_rate<S: Store>(engine: &Engine<S>, route: &Route, rate: u32) -> Result<Vec<Duration>, Error> {
    let mut ticks = tokio::time::interval(Duration::from_millis(1));
    // A late tick is followed by those that were missed: what they send counts from when it was to be sent.
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let started = Instant::now();
    let mut requests = JoinSet::new();
    let mut sent = 0;
    while started.elapsed() < TURN {
        let due = ticks.tick().await.into_std();
        let until = f64::from(rate) * (due.saturating_duration_since(started).as_secs_f64());
        while f64::from(sent) < until {
            let (engine, route) = (engine.clone(), route.clone());
            requests.spawn(async move {
                once(&engine, &route, &next_key()).await?;
                Ok::<_, Error>(due.elapsed())
            });
            sent += 1;
        }
    }
    requests.join_all().await.into_iter().collect()
}

async fn closed<S: Store>(
    engine: &Engine<S>,
    route: &Route,
    in_flight: usize,
) -> Result<Vec<Duration>, Error> {
    let until = Instant::now() + TURN;
    let mut tasks = JoinSet::new();
    for _ in 0..in_flight {
        let (engine, route) = (engine.clone(), route.clone());
        tasks.spawn(async move {
            let mut times = Vec::new();
            while Instant::now() < until {
                let started = Instant::now();
                once(&engine, &route, &next_key()).await?;
                times.push(started.elapsed());
            }
            Ok::<_, Error>(times)
        });
    }
    let times: Result<Vec<_>, Error> = tasks.join_all().await.into_iter().collect();
    Ok(times?.into_iter().flatten().collect())
}
