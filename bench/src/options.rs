//! The flags all experiments share.

use std::path::PathBuf;

use crate::Outcome;
use crate::layouts::{CHOSEN, Layout, named};

/// What the flags say. The defaults make a run of a minute or two; a decision wants `--rows 5000000`.
#[derive(Debug)]
pub(crate) struct Options {
    /// Rows in a file before it is measured.
    pub(crate) rows: usize,
    /// Turns per contender.
    pub(crate) rounds: usize,
    /// Rows per transaction, each measured.
    pub(crate) batches: Vec<usize>,
    /// Names of the contenders to run; empty means all.
    pub(crate) only: Vec<String>,
    /// Connections of a service's own pool, where `atomic` is measured.
    pub(crate) pool: u32,
    /// The layout that `checkpoints` and `drivers` work on.
    pub(crate) layout: Layout,
    /// Where the files go. Filled files are kept and found again by name.
    pub(crate) dir: PathBuf,
}

/// Printed when the arguments make no sense.
pub(crate) const USAGE: &str = "\
oncegate-bench store | engine | gateway | slow-senders | sqlite-rows | postgres | atomic | outbox | sweeper | reaper | <postgres-layouts | layouts | variants | checkpoints | headline | drivers> [flags]
  --rows N         rows in a file before it is measured; of the reaper, what has piled up (100000)
  --rounds N       turns per contender (5)
  --batches A,B    rows per transaction (1,16,64,256)
  --only A,B       contenders by name; the first one is the base of all ratios (atomic: also sqlite, postgres)
  --pool N         connections of a service's own pool, on PostgreSQL (atomic; 16)
  --layout A       the layout that checkpoints and drivers work on (the chosen one)
  --dir PATH       where the files go; filled files are reused, delete them yourself";

impl Options {
    /// Reads `--flag value` pairs.
    pub(crate) fn parse(mut arguments: impl Iterator<Item = String>) -> Outcome<Self> {
        let mut options = Self {
            rows: 100_000,
            rounds: 5,
            batches: vec![1, 16, 64, 256],
            only: Vec::new(),
            pool: 16,
            layout: CHOSEN,
            dir: std::env::temp_dir().join("oncegate-bench"),
        };
        while let Some(flag) = arguments.next() {
            let value = arguments.next().ok_or(USAGE)?;
            match flag.as_str() {
                "--rows" => options.rows = value.parse()?,
                "--rounds" => options.rounds = value.parse()?,
                "--batches" => {
                    options.batches = value.split(',').map(str::parse).collect::<Result<_, _>>()?;
                }
                "--only" => options.only = value.split(',').map(String::from).collect(),
                "--pool" => options.pool = value.parse()?,
                "--layout" => options.layout = named(&value).ok_or(USAGE)?,
                "--dir" => options.dir = value.into(),
                _ => return Err(USAGE.into()),
            }
        }
        std::fs::create_dir_all(&options.dir)?;
        Ok(options)
    }

    /// Does `--only` admit this contender?
    pub(crate) fn admits(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|only| only == name)
    }

    /// How many requests make a turn: long enough to pay for its own checkpoints, short enough to take turns.
    pub(crate) fn requests_per_turn(batch: usize) -> usize {
        match batch {
            0..=3 => 1_000,
            4..=31 => 6_000,
            32..=127 => 10_000,
            _ => 20_000,
        }
    }
}
