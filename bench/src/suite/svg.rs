//! Plots by hand: bars with their spread, and bars made of parts. They read in light and in dark.

use std::fmt::Write as _;

use crate::measure::Summary;

const WIDTH: f64 = 860.0;
const LABELS: f64 = 340.0;
const ROW: f64 = 22.0;
const TOP: f64 = 46.0;
/// Right of the longest bar, for its figure.
const MARGIN: f64 = 110.0;

/// One bar.
pub(crate) struct Bar {
    pub(crate) label: String,
    pub(crate) value: Summary,
    /// Where it should end at least.
    pub(crate) wanted: Option<f64>,
}

/// Bars to the right of their labels, with a line at 1: the base of the ratios.
pub(crate) fn bars(title: &str, bars: &[Bar]) -> String {
    let most = bars.iter().map(|bar| bar.value.high.max(bar.wanted.unwrap_or(0.0))).fold(1.0, f64::max);
    let scale = (WIDTH - LABELS - MARGIN) / most;
    let mut svg = open(title, bars.len());
    let base = LABELS + scale;
    let bottom = height(bars.len()) - 12.0;
    let _ = writeln!(
        svg,
        r#"<line class="base" x1="{base:.1}" x2="{base:.1}" y1="{}" y2="{bottom}"/>"#,
        TOP - 8.0
    );
    for (place, bar) in (0_u16..).zip(bars) {
        let y = TOP + f64::from(place) * ROW;
        let at = |value: f64| LABELS + value * scale;
        let Bar { label, value, wanted } = bar;
        text(&mut svg, "label", LABELS - 8.0, y + 13.0, label);
        rectangle(&mut svg, "bar", (LABELS, y + 3.0), value.median * scale);
        let (middle, low, high) = (y + 10.0, at(value.low), at(value.high));
        let _ = writeln!(
            svg,
            r#"<line class="spread" x1="{low:.1}" x2="{high:.1}" y1="{middle}" y2="{middle}"/>"#
        );
        if let Some(wanted) = wanted {
            let x = at(*wanted);
            let _ =
                writeln!(svg, r#"<line class="wanted" x1="{x:.1}" x2="{x:.1}" y1="{y}" y2="{}"/>"#, y + 20.0);
        }
        let right = high.max(at(value.median)).max(wanted.map_or(0.0, at));
        text(&mut svg, "figure", right + 6.0, y + 14.0, &format!("{:.2}", value.median));
    }
    svg + "</svg>\n"
}

/// Bars of parts, one colour for each.
pub(crate) fn stacks(title: &str, parts: &[&str], bars: &[(String, Vec<f64>)]) -> String {
    let most = bars.iter().map(|(_, values)| values.iter().sum()).fold(1.0, f64::max);
    let scale = (WIDTH - LABELS - MARGIN) / most;
    let mut svg = open(title, bars.len() + 1);
    for (place, (label, values)) in (0_u16..).zip(bars) {
        let y = TOP + f64::from(place) * ROW;
        text(&mut svg, "label", LABELS - 8.0, y + 13.0, label);
        let mut x = LABELS;
        for (part, value) in values.iter().enumerate() {
            rectangle(&mut svg, &format!("part{part}"), (x, y + 3.0), value * scale);
            x += value * scale;
        }
        text(&mut svg, "figure", x + 6.0, y + 14.0, &format!("{:.0}", values.iter().sum::<f64>()));
    }
    let y = height(bars.len() + 1) - 24.0;
    for (place, part) in (0_u16..).zip(parts) {
        let x = LABELS + f64::from(place) * 110.0;
        rectangle(&mut svg, &format!("part{place}"), (x, y), 14.0);
        text(&mut svg, "figure", x + 20.0, y + 11.0, part);
    }
    svg + "</svg>\n"
}

fn height(rows: usize) -> f64 {
    TOP + f64::from(u16::try_from(rows).unwrap_or(u16::MAX)) * ROW + 20.0
}

fn open(title: &str, rows: usize) -> String {
    let height = height(rows);
    let title = escaped(title);
    format!(
        r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img" aria-label="{title}">
<style>
text {{ font: 12px system-ui, sans-serif; fill: #24292f; }} .title {{ font-weight: 600; font-size: 14px; }} .label {{ text-anchor: end; }}
.bar {{ fill: #2f6f9f; }} .spread {{ stroke: #d1803a; stroke-width: 2; }} .base {{ stroke: #6e7781; stroke-dasharray: 3 3; }} .wanted {{ stroke: #b3261e; stroke-width: 2; }}
.part0 {{ fill: #2f6f9f; }} .part1 {{ fill: #d1803a; }} .part2 {{ fill: #8a9ba8; }} .part3 {{ fill: #c9d1d9; }}
@media (prefers-color-scheme: dark) {{ text {{ fill: #e6edf3; }} .bar, .part0 {{ fill: #58a6d6; }} .part3 {{ fill: #57606a; }} .wanted {{ stroke: #ff7b72; }} }}
</style>
<text class="title" x="8" y="20">{title}</text>
"#
    )
}

fn text(svg: &mut String, class: &str, x: f64, y: f64, words: &str) {
    let _ = writeln!(svg, r#"<text class="{class}" x="{x:.1}" y="{y:.1}">{}</text>"#, escaped(words));
}

fn rectangle(svg: &mut String, class: &str, (x, y): (f64, f64), width: f64) {
    let width = width.max(0.0);
    let _ = writeln!(svg, r#"<rect class="{class}" x="{x:.1}" y="{y:.1}" width="{width:.1}" height="14"/>"#);
}

fn escaped(words: &str) -> String {
    words.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::{Bar, bars, stacks};
    use crate::measure::Summary;

    #[test]
    fn a_plot_has_a_bar_for_each_and_words_that_are_escaped() {
        let bar = |label: &str| Bar {
            label: label.to_owned(),
            value: Summary { median: 0.5, low: 0.4, high: 0.6 },
            wanted: Some(0.65),
        };
        let svg = bars("a < b", &[bar("x"), bar("y & z")]);
        assert_eq!(svg.matches(r#"class="bar""#).count(), 2);
        assert!(svg.contains("a &lt; b") && svg.contains("y &amp; z"));
        let svg = stacks("cpu", &["front", "store"], &[("a".to_owned(), vec![1.0, 2.0])]);
        assert!(svg.contains(">3</text>"));
    }
}
