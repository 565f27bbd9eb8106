//! Which plots a part has.

use crate::suite::results::Part;
use crate::suite::svg::{self, Bar};
use crate::suite::table::PROCESSES;

/// File name, words for those who do not see it, and the plot.
pub(super) fn of(part: &Part) -> Vec<(String, String, String)> {
    let mut plots = Vec::new();
    if part.rows.iter().all(|row| row.rounds.len() < 2) {
        return plots;
    }
    // At a given rate there is no ratio of rates.
    if part.name != "latency" {
        let title = format!("{}: requests/s, bare proxy = 1; red: the target", part.name);
        plots.push((part.name.clone(), title.clone(), svg::bars(&title, &ratios(part))));
    }
    let title = format!("{}: CPU µs a request, by process", part.name);
    let bars: Vec<_> = part
        .rows
        .iter()
        .map(|row| (label(part, row), PROCESSES.map(|(process, _)| row.cpu_us(process)).to_vec()))
        // Commits without a process of their own.
        .filter(|(_, parts)| parts.iter().sum::<f64>() > 0.0)
        .collect();
    let names = PROCESSES.map(|(_, title)| title);
    plots.push((format!("{}-cpu", part.name), title.clone(), svg::stacks(&title, &names, &bars)));
    plots
}

fn ratios(part: &Part) -> Vec<Bar> {
    let bar = |row| {
        let value = part.ratio(row)?;
        Some(Bar { label: label(part, row), value, wanted: wanted(&part.name, &row.name, row.connections) })
    };
    part.rows.iter().filter_map(bar).collect()
}

/// A part of several tables says which; sizes stand in the tables' names.
fn label(part: &Part, row: &crate::suite::results::Row) -> String {
    match part.name.as_str() {
        "sizes" => {
            let sizes = row.table.replace("request of ", "").replace(" bytes, answer of ", " → ");
            format!("{}, {sizes} B", row.name)
        }
        "latency" | "rows" | "nodes" | "peers" => row.name.clone(),
        _ => format!("{}, {}", row.name, row.connections),
    }
}

/// The targets.
fn wanted(part: &str, row: &str, connections: usize) -> Option<f64> {
    let is_many = connections == 256;
    match (part, row) {
        ("fresh", "gateway on SQLite") => Some(if is_many { 0.90 } else { 0.65 }),
        ("fresh", "gateway on PostgreSQL") => Some(if is_many { 0.75 } else { 0.45 }),
        ("replays", "gateway on SQLite, warm" | "gateway on PostgreSQL, warm") => Some(3.0),
        ("replays", "gateway on PostgreSQL, cold") => Some(if is_many { 1.5 } else { 1.0 }),
        ("reads", "gateway") => Some(1.0),
        _ => None,
    }
}
