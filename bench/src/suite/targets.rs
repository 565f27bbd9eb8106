//! Each target, and whether it is met: a pure function of the results.

use std::fmt::Write as _;
use std::path::Path;

use super::results::{Part, Row};
use super::world::Store;
use super::{latency, tables};
use crate::Outcome;
use crate::measure::Summary;

/// What is wanted of a figure.
#[derive(Clone, Copy, Debug)]
enum Wanted {
    AtLeast(f64),
    AtMost(f64),
}

struct Target {
    what: String,
    wanted: Wanted,
    unit: &'static str,
    /// Nothing, if it was not measured.
    measured: Option<Summary>,
}

/// All of them, as a table.
pub(crate) fn table(results: &Path) -> Outcome<String> {
    let mut text = "| target | wanted | measured | |\n| --- | --- | --- | --- |\n".to_owned();
    for target in all(results)? {
        let (sign, bound) = match target.wanted {
            Wanted::AtLeast(bound) => ("≥", bound),
            Wanted::AtMost(bound) => ("≤", bound),
        };
        let measured = target.measured.map_or_else(|| "–".to_owned(), |measured| figures(&measured));
        let Target { what, unit, .. } = &target;
        let verdict = target.verdict();
        let _ = writeln!(text, "| {what} | {sign} {}{unit} | {measured} | {verdict} |", figure(bound));
    }
    Ok(text)
}

impl Target {
    fn verdict(&self) -> String {
        let Some(Summary { median, .. }) = self.measured else { return "not measured".to_owned() };
        let (is_met, bound) = match self.wanted {
            Wanted::AtLeast(bound) => (median >= bound, bound),
            Wanted::AtMost(bound) => (median <= bound, bound),
        };
        if is_met {
            "met".to_owned()
        } else {
            let by = (median - bound).abs();
            // A share says nothing of what is left of a difference.
            let by = if self.unit == " ms" {
                format!("{} ms", figure(by))
            } else {
                format!("{:.0} %", 100.0 * by / bound)
            };
            format!("**missed by {by}**")
        }
    }
}

fn figure(value: f64) -> String {
    if value.abs() < 20.0 { format!("{value:.2}") } else { format!("{value:.0}") }
}

fn figures(Summary { median, low, high }: &Summary) -> String {
    if low.total_cmp(high).is_eq() {
        return figure(*median);
    }
    format!("{} ({}–{})", figure(*median), figure(*low), figure(*high))
}

fn all(results: &Path) -> Outcome<Vec<Target>> {
    let read = |part: &str| Part::read(results, part);
    let mut targets = Vec::new();
    targets.extend(ratios(read("fresh")?.as_ref(), read("replays")?.as_ref(), read("reads")?.as_ref()));
    targets.extend(waits(read("latency")?.as_ref()));
    targets.extend(sizes(read("million")?.as_ref()));
    targets.extend(growth(read("rows")?.as_ref()));
    targets.extend(peers(read("peers")?.as_ref()));
    Ok(targets)
}

/// Those against the bare proxy.
fn ratios(fresh: Option<&Part>, replays: Option<&Part>, reads: Option<&Part>) -> Vec<Target> {
    let wanted = [
        (fresh, "gateway on SQLite", "fresh keys, embedded store", [0.65, 0.90]),
        (fresh, "gateway on PostgreSQL", "fresh keys, PostgreSQL", [0.45, 0.75]),
        (replays, "gateway on SQLite, warm", "replays, embedded store, warm", [3.0, 3.0]),
        (replays, "gateway on PostgreSQL, warm", "replays, PostgreSQL, warm", [3.0, 3.0]),
        (replays, "gateway on PostgreSQL, cold", "replays, PostgreSQL, cold", [1.0, 1.5]),
        (reads, "gateway", "unprotected GET", [1.0, 1.0]),
    ];
    let mut targets = Vec::new();
    for (part, row, what, bounds) in wanted {
        for (connections, bound) in [64, 256].into_iter().zip(bounds) {
            let measured = part.and_then(|part| part.ratio(part.row(row, connections)?));
            let what = format!("{what}, {connections} connections: requests/s against the bare proxy");
            targets.push(Target { what, wanted: Wanted::AtLeast(bound), unit: "", measured });
        }
    }
    targets
}

/// p99 above the bare proxy's, less two commits: at most 1 ms.
fn waits(part: Option<&Part>) -> Vec<Target> {
    let one = |store: Store| {
        let measured = part.and_then(|part| {
            let rows = part.rows.iter().filter(|row| row.table == latency::table(store));
            let rows: Vec<&Row> = rows.collect();
            let [bare, gateway, commits] = rows.as_slice() else { return None };
            let rounds = gateway.rounds.iter().zip(&bare.rounds).zip(&commits.rounds);
            let above = rounds.map(|((gateway, bare), commits)| {
                (gateway.p99_us - bare.p99_us - 2.0 * commits.p50_us) / 1e3
            });
            Some(Summary::of(&above.collect::<Vec<_>>()))
        });
        let what = format!(
            "p99 of a fresh key at half of the saturating rate, {}: above the bare proxy's p99 and two commits",
            store.name()
        );
        Target { what, wanted: Wanted::AtMost(1.0), unit: " ms", measured }
    };
    latency::STORES.map(one).into()
}

fn sizes(part: Option<&Part>) -> Vec<Target> {
    let fact = |name: String| {
        let value = *part?.facts.get(&name)?;
        Some(Summary { median: value, low: value, high: value })
    };
    let keys = fact("keys".to_owned()).map_or(0.0, |keys| keys.median);
    let cache = fact("configured cache, MiB".to_owned()).map_or(64.0, |cache| cache.median);
    let mut targets = Vec::new();
    for store in ["SQLite", "PostgreSQL"] {
        targets.push(Target {
            what: format!(
                "resident memory at most, 256 connections, {keys} fresh keys, {store}: 150 MiB and the cache of {cache:.0}"
            ),
            wanted: Wanted::AtMost(150.0 + cache),
            unit: " MiB",
            measured: fact(format!("{store}: MiB at most")),
        });
        targets.push(Target {
            what: format!("database size per completed key with a 200-byte answer, {store}"),
            wanted: Wanted::AtMost(700.0),
            unit: " bytes",
            measured: fact(format!("{store}: database bytes a key")),
        });
    }
    targets
}

/// Cost at the most rows over cost at none: CPU of gateway and store.
fn growth(part: Option<&Part>) -> Vec<Target> {
    let mut targets = Vec::new();
    for store in [Store::Sqlite, Store::Postgres] {
        let empty = part.and_then(|part| part.rows.iter().find(|row| row.name == tables::on(0, store)));
        let start = format!("gateway on {}, ", store.name());
        let most = part.and_then(|part| {
            let count = |row: &Row| -> Option<u64> {
                row.name.strip_prefix(&start)?.strip_suffix(" rows")?.parse().ok()
            };
            part.rows.iter().filter_map(|row| Some((count(row)?, row))).max_by_key(|(count, _)| *count)
        });
        let rows = most.map_or(0, |(count, _)| count);
        let both = empty.zip(most.map(|(_, row)| row));
        let (cpu, time) = both.map_or((None, None), |(empty, most)| {
            let per_s = |row: &Row| row.series(|round| round.per_s);
            (
                Some(Summary::of_ratio(&most.paid_us(), &empty.paid_us())),
                Some(Summary::of_ratio(&per_s(empty), &per_s(most))),
            )
        });
        for (of, measured) in [("CPU of gateway and store", cpu), ("time", time)] {
            let what = format!("cost per fresh key at {rows} rows against none, {}: {of}", store.name());
            targets.push(Target { what, wanted: Wanted::AtMost(1.3), unit: "", measured });
        }
    }
    targets
}

/// The slowest durable Oncegate against the fastest of the others.
fn peers(part: Option<&Part>) -> Vec<Target> {
    let is_durable =
        |row: &Row| part.is_some_and(|part| part.facts.contains_key(&format!("durable: {}", row.name)));
    let is_ours = |row: &Row| row.name.starts_with("gateway on ");
    let best = |table: &str, only_durable: bool| {
        let rows = part?.rows.iter().filter(|row| row.table == table);
        let (ours, others): (Vec<&Row>, Vec<&Row>) =
            rows.filter(|row| row.name != super::matrix::BARE).partition(|row| is_ours(row));
        let others = others.into_iter().filter(|row| !only_durable || is_durable(row));
        let fastest = others.max_by(|a, b| a.per_s().total_cmp(&b.per_s()))?;
        let slowest = ours.into_iter().min_by(|a, b| a.per_s().total_cmp(&b.per_s()))?;
        let per_s = |row: &Row| row.series(|round| round.per_s);
        Some((fastest.name.clone(), Summary::of_ratio(&per_s(slowest), &per_s(fastest))))
    };
    let wanted = [
        ("fresh keys", false, 2.0, "fresh keys against the fastest peer"),
        ("replays", false, 3.0, "replays against the fastest peer"),
        ("fresh keys", true, 8.0, "fresh keys against the fastest durable peer"),
    ];
    let mut targets = Vec::new();
    for (table, only_durable, bound, what) in wanted {
        let found = best(table, only_durable);
        let name = found.as_ref().map_or_else(String::new, |(name, _)| format!(" ({name})"));
        let measured = found.map(|(_, ratio)| ratio);
        targets.push(Target {
            what: format!("{what}{name}"),
            wanted: Wanted::AtLeast(bound),
            unit: "",
            measured,
        });
    }
    targets
}
