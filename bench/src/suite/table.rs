//! A table of ratios, the same on the terminal and on the page.

use std::fmt::Write as _;

use super::results::Part;
use crate::measure::Summary;

pub(crate) const PROCESSES: [(&str, &str); 4] =
    [("front", "in front"), ("store", "store"), ("upstream", "upstream"), ("load", "load")];

/// One table of a part, as Markdown.
pub(crate) fn of(part: &Part, table: &str, connections: usize) -> String {
    let rows = part.of_table(table, connections);
    let Some(base) = rows.first() else { return String::new() };
    let mut text = format!("| {table}, {connections} connections | : {} | requests/s |", base.name);
    for (_, title) in PROCESSES {
        let _ = write!(text, " CPU µs, {title} |");
    }
    text.push_str(" p50 ms | p99 ms |\n| --- | --- | --- | --- | --- | --- | --- | --- | --- |\n");
    for row in &rows {
        let ratio = part.ratio(row).map_or_else(String::new, |ratio| ratio.to_string());
        let _ = write!(text, "| {} | {ratio} | {:.0} |", row.name, row.per_s());
        for (process, _) in PROCESSES {
            match row.cpu_us(process) {
                us if us > 0.0 => {
                    let _ = write!(text, " {us:.1} |");
                }
                _ => text.push_str(" – |"),
            }
        }
        let ms = |of: fn(&super::results::Round) -> f64| Summary::of(&row.series(of)).median / 1e3;
        let _ = writeln!(text, " {:.2} | {:.2} |", ms(|round| round.p50_us), ms(|round| round.p99_us));
    }
    text
}
