//! `docs/performance.md` and `docs/capacity.md`: what stands between two markers is made of the results; all around it is written by people.
//!
//! ```text
//! <!-- generated: fresh --> … <!-- end: fresh -->
//! ```

mod capacity;
mod plots;

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use super::options::Options;
use super::results::Part;
use super::{PARTS, table, targets};
use crate::Outcome;

/// The pages that have such places.
const PAGES: [&str; 2] = ["performance.md", "capacity.md"];

/// Makes them anew.
pub(crate) fn write(options: &Options) -> Outcome {
    let repository = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../docs");
    for page in PAGES {
        let path = options.docs.join(page);
        // A rehearsal takes the words from the repository, and writes its page elsewhere.
        let text = fs::read_to_string(repository.join(page))?;
        fs::create_dir_all(&options.docs)?;
        fs::write(&path, filled(&text, &|name| block(options, name))?)?;
        eprintln!("wrote {}", path.display());
    }
    Ok(())
}

/// The text with each marked place filled in.
fn filled(text: &str, block: &dyn Fn(&str) -> Outcome<String>) -> Outcome<String> {
    const START: &str = "<!-- generated: ";
    let mut made = String::new();
    let mut rest = text;
    while let Some(start) = rest.find(START) {
        let name = rest[start + START.len()..].split(" -->").next().unwrap_or_default().to_owned();
        let end_marker = format!("<!-- end: {name} -->");
        let end = rest.find(&end_marker).ok_or_else(|| format!("{end_marker} is missing"))?;
        let _ =
            write!(made, "{}{START}{name} -->\n\n{}\n\n{end_marker}", &rest[..start], block(&name)?.trim());
        rest = &rest[end + end_marker.len()..];
    }
    Ok(made + rest)
}

fn block(options: &Options, name: &str) -> Outcome<String> {
    match name {
        "targets" => targets::table(&options.results),
        "conditions" => conditions(&options.results),
        "capacity" => capacity::text(&options.results),
        part => match Part::read(&options.results, part)? {
            Some(part) => of_part(&part, &options.docs),
            None => Ok("Not measured yet.".to_owned()),
        },
    }
}

/// Plots, tables, and what is one number.
fn of_part(part: &Part, docs: &Path) -> Outcome<String> {
    let directory = docs.join("performance");
    fs::create_dir_all(&directory)?;
    let mut text = String::new();
    for (name, alt, svg) in plots::of(part) {
        fs::write(directory.join(format!("{name}.svg")), svg)?;
        let _ = writeln!(text, "![{alt}](performance/{name}.svg)\n");
    }
    for (title, connections) in part.tables() {
        let _ = writeln!(text, "{}", table::of(part, title, connections));
    }
    let facts = part.facts.iter().filter(|(name, _)| !name.starts_with("durable: "));
    let facts: Vec<_> = facts.map(|(name, value)| format!("| {name} | {value} |")).collect();
    if !facts.is_empty() {
        let _ = writeln!(text, "| | |\n| --- | --- |\n{}\n", facts.join("\n"));
    }
    for remark in &part.remarks {
        let _ = writeln!(text, "- {remark}");
    }
    Ok(text)
}

/// Where and when.
fn conditions(results: &Path) -> Outcome<String> {
    let mut text =
        "| part | taken | commit | rounds | machine |\n| --- | --- | --- | --- | --- |\n".to_owned();
    for (name, _) in PARTS {
        let Some(part) = Part::read(results, name)? else { continue };
        let rounds = part.rows.iter().map(|row| row.rounds.len()).max().unwrap_or(0);
        let quick = if part.quick { " (a rehearsal)" } else { "" };
        let Part { taken, commit, machine, .. } = &part;
        let _ = writeln!(text, "| {name}{quick} | {taken} | `{commit}` | {rounds} | {machine} |");
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::filled;

    #[test]
    fn what_people_wrote_stays() {
        let page = "Before.\n\n<!-- generated: a -->\nold\n<!-- end: a -->\n\nBetween.\n<!-- generated: b --><!-- end: b -->\nAfter.\n";
        let made = filled(page, &|name| Ok(format!("new {name}"))).unwrap();
        assert_eq!(
            made,
            "Before.\n\n<!-- generated: a -->\n\nnew a\n\n<!-- end: a -->\n\nBetween.\n\
             <!-- generated: b -->\n\nnew b\n\n<!-- end: b -->\nAfter.\n"
        );
        assert_eq!(filled(&made, &|name| Ok(format!("new {name}"))).unwrap(), made, "again changes nothing");
        assert!(filled("<!-- generated: a -->", &|_| Ok(String::new())).is_err());
    }
}
