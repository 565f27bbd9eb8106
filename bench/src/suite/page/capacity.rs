//! What a given rate of fresh keys needs, from the costs that were measured.
//!
//! Limits are those of one machine of a stated size. Each is a rate: the lowest one comes first.

use std::fmt::Write as _;
use std::path::Path;

use crate::Outcome;
use crate::suite::results::Part;

const RATES: [f64; 3] = [1_000.0, 10_000.0, 100_000.0];
/// The machine that is reckoned with.
const CORES: f64 = 8.0;
/// How much of it may be busy, so that a burst finds room.
const BUSY: f64 = 0.6;
const DISK_BYTES: f64 = 1e12;
const DISK_BYTES_PER_S: f64 = 200e6;
/// The default.
const RETENTION_S: f64 = 86_400.0;

/// What one fresh key costs.
struct Costs {
    sqlite_us: f64,
    gateway_us: f64,
    postgres_us: f64,
    sqlite_bytes: f64,
    postgres_bytes: f64,
    sqlite_written: f64,
    postgres_written: f64,
}

pub(super) fn text(results: &Path) -> Outcome<String> {
    let (fresh, million) = (Part::read(results, "fresh")?, Part::read(results, "million")?);
    let costs = fresh.zip(million).and_then(|(fresh, million)| Costs::of(&fresh, &million));
    Ok(costs.map_or_else(|| "Not measured yet.".to_owned(), |costs| costs.text()))
}

impl Costs {
    /// At 256 connections, where batches are as large as in the rates that matter here.
    fn of(fresh: &Part, million: &Part) -> Option<Self> {
        let (sqlite, postgres) =
            (fresh.row("gateway on SQLite", 256)?, fresh.row("gateway on PostgreSQL", 256)?);
        let fact = |name: &str| million.facts.get(name).copied();
        Some(Self {
            sqlite_us: sqlite.cpu_us("front"),
            gateway_us: postgres.cpu_us("front"),
            postgres_us: postgres.cpu_us("store"),
            sqlite_bytes: fact("SQLite: database bytes a key")?,
            postgres_bytes: fact("PostgreSQL: database bytes a key")?,
            sqlite_written: fact("SQLite: bytes written a key")?,
            postgres_written: fact("PostgreSQL: bytes written a key")?,
        })
    }

    fn text(&self) -> String {
        let Self { sqlite_us, gateway_us, postgres_us, .. } = self;
        let mut text = format!(
            "Measured for one fresh key with bodies of 200 bytes, at 256 connections:\n\n\
             | | gateway on SQLite | gateways on PostgreSQL |\n| --- | --- | --- |\n\
             | CPU of the gateway | {sqlite_us:.0} µs, the store's included | {gateway_us:.0} µs |\n\
             | CPU of PostgreSQL | – | {postgres_us:.0} µs |\n\
             | bytes in the database | {:.0} | {:.0} |\n\
             | bytes written to disk | {:.0} | {:.0} (its log) |\n\n",
            self.sqlite_bytes, self.postgres_bytes, self.sqlite_written, self.postgres_written
        );
        text.push_str(
            "What that comes to, at 60 % of the cores busy and with a retention of one day:\n\n\
             | fresh keys a second | on SQLite: cores | on PostgreSQL: cores of gateways | cores of PostgreSQL | records of a day, SQLite / PostgreSQL | PostgreSQL's log |\n\
             | --- | --- | --- | --- | --- | --- |\n",
        );
        for rate in RATES {
            let _ = writeln!(
                text,
                "| {} | {} | {} | {} | {} / {} | {}/s |",
                thousands(rate),
                cores(rate * sqlite_us),
                cores(rate * gateway_us),
                cores(rate * postgres_us),
                size(rate * RETENTION_S * self.sqlite_bytes),
                size(rate * RETENTION_S * self.postgres_bytes),
                size(rate * self.postgres_written),
            );
        }
        text.push_str("\nWhat gives way first, on machines of 8 cores with 1 TB that writes 200 MB/s:\n\n");
        let setups = self.setups();
        for (title, limits) in &setups {
            let limits = limits.iter().map(|(what, rate)| format!("{what}, {} a second", thousands(*rate)));
            let _ = writeln!(text, "- **{title}**: {}.", limits.collect::<Vec<_>>().join("; then "));
        }
        text.push_str("\n| fresh keys a second | what one such machine lacks, with SQLite | with PostgreSQL |\n| --- | --- | --- |\n");
        for rate in RATES {
            let lacks = setups.iter().map(|(_, limits)| {
                let short = limits.iter().filter(|(_, limit)| *limit < rate).map(|(what, _)| *what);
                let short: Vec<_> = short.collect();
                if short.is_empty() { "nothing".to_owned() } else { short.join("; ") }
            });
            let _ = writeln!(text, "| {} | {} |", thousands(rate), lacks.collect::<Vec<_>>().join(" | "));
        }
        text
    }

    /// Each way to run it, with its limits as rates: the lowest comes first.
    fn setups(&self) -> [(&'static str, Vec<(&'static str, f64)>); 2] {
        let mut sqlite = vec![
            ("cores", per_s(self.sqlite_us)),
            ("space for a day of records", DISK_BYTES / RETENTION_S / self.sqlite_bytes),
            ("the disk's speed", DISK_BYTES_PER_S / self.sqlite_written),
        ];
        let mut postgres = vec![
            ("a gateway's cores (add gateways)", per_s(self.gateway_us)),
            ("PostgreSQL's cores", per_s(self.postgres_us)),
            ("space for a day of records", DISK_BYTES / RETENTION_S / self.postgres_bytes),
            ("the disk's speed, for PostgreSQL's log alone", DISK_BYTES_PER_S / self.postgres_written),
        ];
        for limits in [&mut sqlite, &mut postgres] {
            limits.sort_by(|(_, a), (_, b)| a.total_cmp(b));
        }
        [("One gateway with SQLite", sqlite), ("Gateways on one PostgreSQL", postgres)]
    }
}

fn per_s(us: f64) -> f64 {
    CORES * BUSY * 1e6 / us.max(1e-9)
}

fn cores(us_per_s: f64) -> String {
    format!("{:.1}", us_per_s / 1e6 / BUSY)
}

fn thousands(value: f64) -> String {
    // Two digits are all that such an estimate knows.
    let digits = value.max(1.0).log10().floor() - 1.0;
    let round = 10_f64.powf(digits.max(0.0));
    let text = format!("{:.0}", (value / round).round() * round);
    let mut parted = String::new();
    for (place, digit) in text.chars().enumerate() {
        if place > 0 && (text.len() - place).is_multiple_of(3) {
            parted.push(',');
        }
        parted.push(digit);
    }
    parted
}

fn size(bytes: f64) -> String {
    let units = [(1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")];
    let (one, unit) = units.into_iter().find(|(one, _)| bytes >= *one).unwrap_or((1.0, "B"));
    let value = bytes / one;
    if value < 10.0 { format!("{value:.1} {unit}") } else { format!("{value:.0} {unit}") }
}

#[cfg(test)]
mod tests {
    use super::{size, thousands};

    #[test]
    fn figures_are_for_people() {
        assert_eq!([1_000.0, 12_345.0, 100_000.0].map(thousands), ["1,000", "12,000", "100,000"]);
        assert_eq!([950.0, 5_500_000.0, 86_400.0e6].map(size), ["950 B", "5.5 MB", "86 GB"]);
    }
}
