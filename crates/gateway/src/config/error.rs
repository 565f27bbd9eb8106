//! A configuration that cannot be used: where, what, and what was expected.

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
        Self { source: name(path), place, message: error.message().trim_end().to_owned() }
    }

    pub(super) fn at(
        path: Option<&Path>,
        text: &str,
        span: &Range<usize>,
        message: impl Into<String>,
    ) -> Self {
        Self { source: name(path), place: Some(Place::of(text, span)), message: message.into() }
    }

    pub(crate) fn of(source: impl Into<String>, message: impl Into<String>) -> Self {
        Self { source: source.into(), place: None, message: message.into() }
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
        Self { line: before.matches('\n').count() + 1, column, width, text: line_text.to_owned() }
    }
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
