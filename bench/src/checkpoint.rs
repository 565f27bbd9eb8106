//! Who copies the WAL back into the file, and when: what that does to throughput and to the slowest commit.
//!
//! Inline, SQLite's default, makes every n-th commit pay for the whole copy. A second connection can copy
//! while the writer goes on (PASSIVE takes no lock the writer needs), but as long as frames keep arriving
//! it never reaches the end of the log, so the log never restarts from its beginning and grows for ever.
//! The writer therefore takes the last step itself, between two batches, when only little is left.

mod scheme;
mod writer;

use std::path::PathBuf;
use std::time::Duration;

pub(crate) use scheme::CHOSEN;
pub(crate) use writer::Checkpointed;

use crate::Outcome;
use crate::cost::{Meter, Turn, column};
use crate::fill;
use crate::layouts::{self, Layout, P};
use crate::measure::{Summary, interleave, percentile};
use crate::options::Options;
use crate::traffic::{self, Load, Sample};
use scheme::{DEFAULT, MIB, SCHEMES, Scheme};

/// One scheme on one layout. Schemes of one layout take turns on the same file, which is opened anew for
/// each: copies of a file differ in how much of them the page cache still holds, by more than schemes do.
struct Contender {
    layout: Layout,
    scheme: Scheme,
    path: PathBuf,
    commits: Vec<Duration>,
    wal_longest: i64,
}

/// Every scheme, on `options.layout`.
pub(crate) fn run(options: &Options) -> Outcome {
    let admitted = SCHEMES.iter().filter(|scheme| options.admits(scheme.name));
    compare(options, admitted.map(|scheme| (options.layout, *scheme)))
}

/// What was decided against what one would have without deciding: layout and scheme, each alone and both.
pub(crate) fn headline(options: &Options) -> Outcome {
    let pairs = [(P, DEFAULT), (P, CHOSEN), (layouts::CHOSEN, DEFAULT), (layouts::CHOSEN, CHOSEN)];
    compare(options, pairs.into_iter())
}

fn compare(options: &Options, pairs: impl Iterator<Item = (Layout, Scheme)>) -> Outcome {
    let mut contenders = Vec::new();
    for (layout, scheme) in pairs {
        let path = fill::filled(options, layout)?;
        contenders.push(Contender { layout, scheme, path, commits: Vec::new(), wal_longest: 0 });
    }
    for &batch in &options.batches {
        // Twice the usual turn: the longest log should fill up more than once.
        let load = Load { batch, requests: 2 * Options::requests_per_turn(batch) };
        let turns =
            interleave(options.rounds, &mut contenders, |contender| Meter::around(|| contender.turn(load)))?;
        let speeds: Vec<Vec<f64>> =
            turns.iter().map(|turns| column(turns, |turn| turn.requests_per_s)).collect();
        println!(
            "\n| batch {batch} | speed | p50 ms | p99 ms | max ms | longest WAL MiB | CPU µs | KiB written |"
        );
        println!("| --- | --- | --- | --- | --- | --- | --- | --- |");
        for ((contender, speed), turns) in contenders.iter_mut().zip(&speeds).zip(&turns) {
            contender.print_row(&Summary::of_ratio(speed, &speeds[0]), turns);
        }
    }
    Ok(())
}

impl Contender {
    fn turn(&mut self, load: Load) -> Outcome<Sample> {
        let mut subject = Checkpointed::open(&self.path, self.layout, self.scheme)?;
        let sample = traffic::run(&mut subject, &mut fill::fresh_rows(), load)?;
        self.commits.extend_from_slice(&sample.commits);
        self.wal_longest = self.wal_longest.max(subject.wal_longest());
        Ok(sample)
    }

    fn print_row(&mut self, ratio: &Summary, turns: &[Turn]) {
        let [p50, p99, max] =
            [0.5, 0.99, 1.0].map(|share| percentile(&mut self.commits, share).as_secs_f64() * 1e3);
        let wal = std::mem::take(&mut self.wal_longest) / MIB;
        let cpu = Summary::of(&column(turns, |turn| turn.cpu_us));
        let written = Summary::of(&column(turns, |turn| turn.written_kib));
        let (layout, scheme) = (self.layout.name, self.scheme.name);
        println!(
            "| {layout}, {scheme} | {ratio} | {p50:.2} | {p99:.2} | {max:.1} | {wal} | {cpu} | {written} |"
        );
        self.commits.clear();
    }
}
