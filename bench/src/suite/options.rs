//! The flags of a run.

use std::path::PathBuf;

use super::PARTS;
use crate::Outcome;

#[derive(Debug)]
pub(crate) struct Options {
    /// A rehearsal of a few minutes: few rounds, short turns, small tables.
    pub(crate) quick: bool,
    /// Parts to run; empty means all but the optional ones.
    pub(crate) only: Vec<String>,
    pub(crate) rounds: usize,
    /// Sizes of tables beside the empty one.
    pub(crate) rows: Vec<u64>,
    /// Whether others are installed and measured, too.
    pub(crate) peers: bool,
    /// Where files go. Filled ones are kept there and found again.
    pub(crate) dir: PathBuf,
    /// Where results go.
    pub(crate) results: PathBuf,
    /// Where the pages are.
    pub(crate) docs: PathBuf,
    /// Make the pages of what was measured before.
    pub(crate) only_pages: bool,
}

fn usage() -> String {
    format!(
        "cargo xtask bench [flags]: the whole matrix, into bench/results and docs/performance.md
  --quick          a rehearsal of a few minutes; its results and page go to --dir, not into the repository
  --only A,B       parts: {}
  --rounds N       turns per contender (5; quick 3)
  --rows A,B       sizes of tables beside the empty one (1000000; quick 100000); filled ones are kept in --dir
  --peers          install others from their registries into --dir and measure them, too
  --dir PATH       where files go
  --results PATH   where results go
  --pages          measure nothing: make the pages of the results that are there",
        PARTS.map(|(name, _)| name).join(", ")
    )
}

impl Options {
    pub(crate) fn parse(mut arguments: impl Iterator<Item = String>) -> Outcome<Self> {
        let mut options = Self {
            quick: false,
            only: Vec::new(),
            rounds: 0,
            rows: Vec::new(),
            peers: false,
            dir: std::env::temp_dir().join("oncegate-bench"),
            results: PathBuf::new(),
            docs: PathBuf::new(),
            only_pages: false,
        };
        let mut results = None;
        while let Some(flag) = arguments.next() {
            let mut value = || arguments.next().ok_or_else(usage);
            match flag.as_str() {
                "--quick" => options.quick = true,
                "--peers" => options.peers = true,
                "--pages" => options.only_pages = true,
                "--only" => options.only = value()?.split(',').map(String::from).collect(),
                "--rounds" => options.rounds = value()?.parse()?,
                "--rows" => options.rows = value()?.split(',').map(str::parse).collect::<Result<_, _>>()?,
                "--dir" => options.dir = value()?.into(),
                "--results" => results = Some(PathBuf::from(value()?)),
                _ => return Err(usage().into()),
            }
        }
        if let Some(unknown) = options.only.iter().find(|only| PARTS.iter().all(|(name, _)| name != only)) {
            return Err(format!("there is no part {unknown}\n{}", usage()).into());
        }
        if options.rounds == 0 {
            options.rounds = if options.quick { 3 } else { 5 };
        }
        if options.rows.is_empty() {
            options.rows = vec![if options.quick { 100_000 } else { 1_000_000 }];
        }
        let repository = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..");
        (options.results, options.docs) = if options.quick {
            (options.dir.join("results"), options.dir.join("docs"))
        } else {
            (repository.join("bench/results"), repository.join("docs"))
        };
        options.results = results.unwrap_or(options.results);
        std::fs::create_dir_all(&options.dir)?;
        Ok(options)
    }

    /// Is this part asked for?
    pub(crate) fn admits(&self, part: &str) -> bool {
        if self.only.is_empty() {
            part != "peers" || self.peers
        } else {
            self.only.iter().any(|only| only == part)
        }
    }
}
