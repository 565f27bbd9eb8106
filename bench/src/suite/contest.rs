//! Contenders that take turns: A, B, A, B …

use std::collections::BTreeMap;

use super::commits::Commits;
use super::load::{Keys, Load, Sample};
use super::meter::{Reading, Watched};
use super::results::{Part, Round, Row};
use crate::Outcome;
use crate::measure::{interleave, percentile};

/// One of them.
pub(crate) struct Contender {
    pub(crate) name: String,
    pub(crate) work: Work,
}

/// What it does in a turn.
pub(crate) enum Work {
    /// Takes a load, while processes are watched.
    Load { load: Load, watched: Vec<Watched> },
    /// Commits to a store, one row at a time.
    Commits(Box<Commits>),
}

/// What stands above their table.
pub(crate) struct Contest<'a> {
    pub(crate) table: &'a str,
    pub(crate) connections: usize,
    pub(crate) rounds: usize,
}

impl Contest<'_> {
    /// Lets them run, prints their table, and adds their rows to the part. The first is what the others are held against.
    pub(crate) fn hold(&self, contenders: &mut [Contender], keys: &mut Keys, part: &mut Part) -> Outcome {
        let turns = contenders.len() * (self.rounds + 1);
        let mut turn = 0;
        let series = interleave(self.rounds, contenders, |contender| {
            turn += 1;
            let round = contender.turn(keys)?;
            eprintln!(
                "  {}, {} connections, {turn}/{turns}: {:>8.0}/s  {}",
                self.table, self.connections, round.per_s, contender.name
            );
            Ok(round)
        })?;
        for (contender, rounds) in contenders.iter().zip(series) {
            part.rows.push(Row {
                table: self.table.to_owned(),
                name: contender.name.clone(),
                connections: self.connections,
                rounds,
            });
        }
        println!("\n{}", super::table::of(part, self.table, self.connections));
        Ok(())
    }
}

impl Contender {
    pub(crate) fn turn(&mut self, keys: &mut Keys) -> Outcome<Round> {
        let (load, watched) = match &mut self.work {
            Work::Load { load, watched } => (load, watched),
            Work::Commits(commits) => return Ok(round(commits.turn()?, &[])),
        };
        let mut readings = Vec::with_capacity(2);
        let mut mark = || -> Outcome {
            readings.push(Reading::of(watched)?);
            Ok(())
        };
        let sample = load.run(keys, &mut mark).map_err(|error| format!("{}: {error}", self.name))?;
        let [before, after] = readings.as_slice() else { return Err("a turn without an end".into()) };
        Ok(round(sample, &after.since(before)))
    }
}

#[expect(clippy::cast_precision_loss, reason = "a count of requests is far below 2^52")]
fn round(mut sample: Sample, used: &[(&'static str, f64)]) -> Round {
    let requests = (sample.requests as f64).max(1.0);
    let cpu_us: BTreeMap<String, f64> =
        used.iter().map(|(name, us)| ((*name).to_owned(), tenth(us / requests))).collect();
    let mut at = |share| tenth(percentile(&mut sample.latencies, share).as_secs_f64() * 1e6);
    let (p50_us, p99_us) = (at(0.5), at(0.99));
    let failures = sample.failures as f64;
    let failed = failures / (requests + failures);
    Round { per_s: tenth(requests / sample.seconds), cpu_us, p50_us, p99_us, failed }
}

/// Files are read by people, too.
fn tenth(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}
