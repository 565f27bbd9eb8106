//! A configuration that cannot be used: where, what, and what was expected.
//!
//! **Invariant:** no secret of the file is shown, though the line is. Whoever sees the error may be a CI log's reader.

use std::error::Error;
use std::fmt;
use std::ops::Range;
use std::path::Path;

/// Why a configuration cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// The file, or where else the value came from.
    source: String,
    /// Line and column, from 1, and the line itself.
    place: Option<Place>,
    message: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Place {
    line: usize,
    column: usize,
    width: usize,
    text: String,
}

impl ConfigError {
    pub(super) fn unreadable(path: &Path, error: &std::io::Error) -> Self {
        let message = format!("the file could not be read: {error}");
        Self { source: path.display().to_string(), place: None, message }
    }

    pub(super) fn of_toml(path: Option<&Path>, text: &str, error: &toml::de::Error) -> Self {
        let place = error.span().map(|span| Place::of(text, &span));
        Self { source: name(path), place, message: without_passwords(error.message().trim_end()) }
    }

    pub(super) fn at(
        path: Option<&Path>,
        text: &str,
        span: &Range<usize>,
        message: impl Into<String>,
    ) -> Self {
        Self {
            source: name(path),
            place: Some(Place::of(text, span)),
            message: without_passwords(&message.into()),
        }
    }

    pub(crate) fn of(source: impl Into<String>, message: impl Into<String>) -> Self {
        Self { source: source.into(), place: None, message: without_passwords(&message.into()) }
    }

    /// Line and column, from 1, where the file is at fault.
    #[must_use]
    pub fn line_and_column(&self) -> Option<(usize, usize)> {
        self.place.as_ref().map(|place| (place.line, place.column))
    }
}

fn name(path: Option<&Path>) -> String {
    path.map_or_else(|| "the configuration".to_owned(), |path| path.display().to_string())
}

impl Place {
    fn of(text: &str, span: &Range<usize>) -> Self {
        let start = span.start.min(text.len());
        let before = text.get(..start).unwrap_or(text);
        let line_start = before.rfind('\n').map_or(0, |at| at + 1);
        let rest = text.get(line_start..).unwrap_or_default();
        let line_text = rest.lines().next().unwrap_or_default();
        let column = before.get(line_start..).unwrap_or_default().chars().count() + 1;
        let spanned = text.get(start..span.end.min(text.len())).unwrap_or_default();
        let width = spanned.lines().next().unwrap_or_default().chars().count().max(1);
        let line = before.matches('\n').count() + 1;
        match masked(text, line_start, line_text) {
            None => Self { line, column, width, text: without_passwords(line_text) },
            // What is hidden is not measured either.
            Some(masked) => {
                let chars = masked.chars().count();
                Self {
                    line,
                    column,
                    width: width.min((chars + 1).saturating_sub(column)).max(1),
                    text: masked,
                }
            }
        }
    }
}

/// Whatever stands before the `@` of a URL, or in its query, may be a password, wherever the URL stands. Where it ends is not certain in
/// a file with a mistake in it: too much is hidden rather than too little.
fn without_passwords(text: &str) -> String {
    let Some(start) = text.find("://").map(|at| at + 3) else { return text.to_owned() };
    let (before, url) = text.split_at(start);
    match (url.rfind('@'), url.find('?')) {
        (None, None) => text.to_owned(),
        (Some(at), None) => format!("{before}…{}", &url[at..]),
        (Some(at), Some(query)) if query > at => format!("{before}…{}?…", &url[at..query]),
        (Some(_), Some(_)) => format!("{before}…"),
        (None, Some(query)) => format!("{before}{}?…", &url[..query]),
    }
}

/// Keys whose values are secrets, or may hold one.
const SECRETS: [&str; 5] = ["token", "url", "shared_cache", "headers", "secrets"];

/// The line without what may be a secret in it, if there may be one. A file with a mistake in it cannot be asked what is a value, so
/// that everything after such a key is hidden, also on the lines below it that name no key of their own.
fn masked(text: &str, line_start: usize, line: &str) -> Option<String> {
    if let Some(value) = secret_of(line) {
        let (key, hidden) = line.split_at(value);
        return (!hidden.trim().is_empty()).then(|| format!("{key} …"));
    }
    let above = text.get(..line_start).unwrap_or_default();
    if is_inside(above, "headers", ['{', '}']) || is_inside(above, "secrets", ['[', ']']) {
        return Some("…".to_owned());
    }
    let section = above.lines().rev().find(|line| line.trim_start().starts_with('['));
    if section.is_some_and(|section| section.trim_end().ends_with("headers]"))
        && let Some((name, _)) = line.split_once('=')
    {
        return Some(format!("{name}= …"));
    }
    let begins = |line: &str| line.contains('=') || line.trim_start().starts_with(['[', '#']);
    if begins(line) {
        return None;
    }
    let above = above.lines().rev().find(|line| begins(line))?;
    secret_of(above).map(|_| "…".to_owned())
}

/// Whether a list or table of secrets has begun and not ended.
fn is_inside(above: &str, key: &str, [open, close]: [char; 2]) -> bool {
    let Some((_, rest)) = above.rsplit_once(key) else { return false };
    rest.trim_start().starts_with('=') && rest.matches(open).count() > rest.matches(close).count()
}

/// Where the value of the line's first secret begins.
fn secret_of(line: &str) -> Option<usize> {
    let is_of_a_name = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '_' | '-');
    let mut found: Option<usize> = None;
    for key in SECRETS {
        for (start, _) in line.match_indices(key) {
            let (before, after) = (&line[..start], &line[start + key.len()..]);
            let value = after.trim_start_matches(['"', '\'']).trim_start();
            if !before.ends_with(is_of_a_name) && value.starts_with('=') {
                let value = line.len() - value.len() + 1;
                found = Some(found.map_or(value, |first| first.min(value)));
            }
        }
    }
    found
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(place) = &self.place else { return write!(f, "{}: {}", self.source, self.message) };
        writeln!(f, "{}:{}:{}: {}", self.source, place.line, place.column, self.message)?;
        let number = place.line.to_string();
        writeln!(f, "  {number} | {}", place.text)?;
        let gutter = " ".repeat(number.len());
        let dent = " ".repeat(place.column - 1);
        write!(f, "  {gutter} | {dent}{}", "^".repeat(place.width))
    }
}

impl Error for ConfigError {}
