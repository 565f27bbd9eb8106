//! What was measured, as files: pages are made of these alone, so that they can be made again without measuring.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use crate::Outcome;
use crate::measure::Summary;

/// One part of a run: `bench/results/NAME.json`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Part {
    pub(crate) name: String,
    pub(crate) taken: String,
    pub(crate) commit: String,
    pub(crate) machine: String,
    /// A rehearsal: few rounds.
    pub(crate) quick: bool,
    pub(crate) rows: Vec<Row>,
    /// What is one number: bytes per key, resident memory.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) facts: BTreeMap<String, f64>,
    /// What could not be measured, and why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) remarks: Vec<String>,
}

/// One contender of one table.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Row {
    /// What stands above the table; all its rows took turns.
    pub(crate) table: String,
    pub(crate) name: String,
    pub(crate) connections: usize,
    pub(crate) rounds: Vec<Round>,
}

/// One turn.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Round {
    pub(crate) per_s: f64,
    /// CPU µs a request, by process.
    pub(crate) cpu_us: BTreeMap<String, f64>,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    /// The share of answers that were failures; of ours, none.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) failed: f64,
}

impl Part {
    pub(crate) fn new(name: &str, quick: bool) -> Self {
        Self {
            name: name.to_owned(),
            taken: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
            commit: commit(),
            machine: machine(),
            quick,
            rows: Vec::new(),
            facts: BTreeMap::new(),
            remarks: Vec::new(),
        }
    }

    pub(crate) fn write(&self, directory: &Path) -> Outcome {
        fs::create_dir_all(directory)?;
        let text = serde_json::to_string_pretty(self)? + "\n";
        Ok(fs::write(directory.join(format!("{}.json", self.name)), text)?)
    }

    /// Nothing, if it was never measured.
    pub(crate) fn read(directory: &Path, part: &str) -> Outcome<Option<Self>> {
        match fs::read_to_string(directory.join(format!("{part}.json"))) {
            Ok(text) => Ok(Some(serde_json::from_str(&text)?)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Tables, in the order in which they were measured.
    pub(crate) fn tables(&self) -> Vec<(&str, usize)> {
        let mut tables: Vec<(&str, usize)> = Vec::new();
        for row in &self.rows {
            if !tables.contains(&(&row.table, row.connections)) {
                tables.push((&row.table, row.connections));
            }
        }
        tables
    }

    pub(crate) fn of_table(&self, table: &str, connections: usize) -> Vec<&Row> {
        self.rows.iter().filter(|row| row.table == table && row.connections == connections).collect()
    }

    pub(crate) fn row(&self, name: &str, connections: usize) -> Option<&Row> {
        self.rows.iter().find(|row| row.name == name && row.connections == connections)
    }

    /// Requests a second over those of the first row of the same table, round by round.
    pub(crate) fn ratio(&self, row: &Row) -> Option<Summary> {
        let base = *self.of_table(&row.table, row.connections).first()?;
        Some(Summary::of_ratio(&row.series(|round| round.per_s), &base.series(|round| round.per_s)))
    }
}

impl Row {
    pub(crate) fn series(&self, of: impl Fn(&Round) -> f64) -> Vec<f64> {
        self.rounds.iter().map(of).collect()
    }

    pub(crate) fn per_s(&self) -> f64 {
        Summary::of(&self.series(|round| round.per_s)).median
    }

    /// CPU µs a request of one process; zero if it was not there.
    pub(crate) fn cpu_us(&self, process: &str) -> f64 {
        Summary::of(&self.series(|round| round.cpu_us.get(process).copied().unwrap_or_default())).median
    }

    /// CPU µs a request of what is in front and of its store: what a user pays.
    pub(crate) fn paid_us(&self) -> Vec<f64> {
        self.series(|round| ["front", "store"].iter().filter_map(|name| round.cpu_us.get(*name)).sum())
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks so")]
fn is_zero(value: &f64) -> bool {
    value.abs() < f64::EPSILON
}

fn commit() -> String {
    let told = Command::new("git").args(["describe", "--always", "--dirty", "--abbrev=12"]).output();
    told.map(|told| String::from_utf8_lossy(&told.stdout).trim().to_owned()).unwrap_or_default()
}

fn machine() -> String {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let cpus = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpus.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let model = model.map_or("unknown", |(_, model)| model.trim());
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    format!("{cores} cores of {model}, Linux {}", kernel.trim())
}
