//! The whole measurement: `cargo xtask bench`.
//!
//! Load, what stands in front, upstream and store are processes of their own on one machine: the gateway is the real `oncegate serve` with a file, the
//! others are this program in another role. Every figure is a ratio to a bare hyper proxy that takes its turns in between, as a median with the lowest
//! and highest round; CPU time is read by process.
//!
//! Not here: counted budgets, which are tests.

mod cluster;
mod commits;
mod contest;
mod latency;
pub(crate) mod load;
mod matrix;
mod meter;
mod million;
mod nodes;
mod options;
mod page;
mod peers;
mod profiles;
mod program;
mod results;
pub(crate) mod role;
mod sizes;
mod svg;
mod table;
mod tables;
mod targets;
mod world;

use std::ops::Range;
use std::time::{Duration, Instant};

use crate::Outcome;
use load::{Keys, Kind, Load, Pace, Until};
use options::Options;
use results::Part;
use world::{Front, World};

type Measure = fn(&mut Run) -> Outcome<Part>;

/// In the order in which they run.
const PARTS: [(&str, Measure); 12] = [
    ("fresh", matrix::fresh),
    ("replays", matrix::replays),
    ("reads", matrix::reads),
    ("mixed", matrix::mixed),
    ("layer", matrix::layer),
    ("latency", latency::run),
    ("million", million::run),
    ("rows", tables::run),
    ("sizes", sizes::run),
    ("nodes", nodes::run),
    ("profiles", profiles::run),
    ("peers", peers::run),
];

/// What all parts share.
pub(crate) struct Run {
    options: Options,
    world: World,
    keys: Keys,
}

/// Measures what is asked for, and writes it down.
pub(crate) fn run(arguments: impl Iterator<Item = String>) -> Outcome {
    let options = Options::parse(arguments)?;
    if options.only_pages {
        return page::write(&options);
    }
    let started = Instant::now();
    let world = World::start(&options.dir)?;
    let mut run = Run { options, world, keys: Keys::new() };
    for (name, measure) in PARTS {
        if !run.options.admits(name) {
            continue;
        }
        eprintln!("{name} ({:.0} s after the start)", started.elapsed().as_secs_f64());
        measure(&mut run)?.write(&run.options.results)?;
    }
    println!("\n{}", targets::table(&run.options.results)?);
    page::write(&run.options)?;
    eprintln!("{:.0} s; results are in {}", started.elapsed().as_secs_f64(), run.options.results.display());
    Ok(())
}

impl Run {
    fn part(&self, name: &str) -> Part {
        Part::new(name, self.options.quick)
    }

    /// How long a turn counts.
    fn turn(&self) -> Duration {
        Duration::from_millis(if self.options.quick { 300 } else { 1_000 })
    }

    /// How long it runs before: connections are opened, pools filled, plans made.
    fn warming(&self) -> Duration {
        Duration::from_millis(if self.options.quick { 150 } else { 250 })
    }

    /// Makes so many keys and settles them, to be replayed.
    fn settle(&mut self, front: &Front, count: u64) -> Outcome<Range<u64>> {
        self.settle_of(front, count, 200, 200)
    }

    /// The same with bodies of another size.
    fn settle_of(
        &mut self,
        front: &Front,
        count: u64,
        request_bytes: usize,
        answer_bytes: usize,
    ) -> Outcome<Range<u64>> {
        let load = Load {
            addresses: front.addresses.clone(),
            connections: 64,
            kind: Kind::Fresh,
            pace: Pace::Closed,
            until: Until::Sent(count),
            request_bytes,
            answer_bytes,
            settled: 0..1,
            is_ours: true,
            path: None,
        };
        let first = self.keys.take(0).start;
        load.run(&mut self.keys, &mut || Ok(()))?;
        Ok(first..first + count)
    }
}
