//! How a request differs from the first one with its key, as far as the record tells.
//!
//! Names only, never values. Not here: who may be told (`engine::reuse`).

use std::fmt;

use super::members::BodyDifference;
use super::{Content, Family, Fingerprint, Mode, canonical};

/// How a request differs from the first one with its key. Empty where that is not known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Difference {
    /// The names of top-level members with another value, and of those that the first request did
    /// not have. Short, few, and without characters that could harm a terminal.
    pub members: Vec<String>,
    /// How many such members are not named.
    pub more: usize,
    /// How many members of the first request are missing, at least. Their names are not recorded.
    pub missing: usize,
    /// What differs outside of the body.
    pub outside: Option<&'static str>,
}

/// What is known of the operation that a record is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordedOperation {
    /// The request's own. It stands for one path.
    Same,
    /// The request's own. It is a pattern, and stands for many paths.
    SamePattern,
    /// Another one.
    Other,
    /// A route of the record's operation does not exist any more.
    Unknown,
}

impl Difference {
    /// Compares a request with the one that `kept` is the fingerprint of. The fingerprints differ.
    #[must_use]
    pub fn of(mode: &Mode, content: &Content<'_>, kept: Fingerprint, operation: RecordedOperation) -> Self {
        let body = body_difference(mode, content, kept);
        let is_same_body = body.as_ref().is_some_and(|body| *body == BodyDifference::default());
        let outside = match operation {
            RecordedOperation::Other => Some("method or path"),
            RecordedOperation::Same if is_same_body => Some("query or headers"),
            RecordedOperation::SamePattern if is_same_body => Some("path, query or headers"),
            RecordedOperation::Unknown if is_same_body => Some("method, path, query or headers"),
            _ => None,
        };
        let BodyDifference { names, more, missing } = body.unwrap_or_default();
        Self { members: names, more, missing, outside }
    }
}

/// How the bodies differ; `None` where that is not known. A record has digests of the members of a
/// JSON object only. A text that is declared as something else has none, whatever it looks like.
fn body_difference(mode: &Mode, content: &Content<'_>, kept: Fingerprint) -> Option<BodyDifference> {
    let canonical = canonical(mode, content).ok()?;
    let is_json = matches!(canonical.family, Family::Json | Family::JsonIncluded | Family::JsonExcluded);
    if !is_json {
        return None;
    }
    kept.members.compare(&canonical.bytes, &kept.digest)
}

/// For a log line and the audit trail. Names are in quotes with escapes, so that no name can pass
/// for two, or for the words behind the names.
impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::default() {
            return f.write_str("differing members: not known");
        }
        let mut separator = "";
        if !self.members.is_empty() {
            f.write_str("differing members: ")?;
            for (at, name) in self.members.iter().enumerate() {
                write!(f, "{}{name:?}", if at == 0 { "" } else { ", " })?;
            }
            if self.more > 0 {
                write!(f, " and {} more", self.more)?;
            }
            separator = "; ";
        }
        if self.missing > 0 {
            write!(f, "{separator}members of the first request are missing: {} or more", self.missing)?;
            separator = "; ";
        }
        if let Some(outside) = self.outside {
            write!(f, "{separator}differs in: {outside}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fingerprint::of_request;

    fn content<'a>(content_type: &'a [u8], body: &'a [u8]) -> Content<'a> {
        Content { method: "POST", path: "/a", query: None, content_type: Some(content_type), body }
    }

    #[test]
    fn only_json_is_compared_by_members() {
        let first = content(b"application/json", br#"{"amount":1,"to":"Ada"}"#);
        let kept = of_request(&Mode::Json, &first, &[], None).unwrap().current;
        let of = |kind: &[u8], body: &[u8]| {
            Difference::of(&Mode::Json, &content(kind, body), kept, RecordedOperation::Same)
        };
        let other = of(b"application/json", br#"{"amount":2}"#);
        assert_eq!((&*other.members, other.missing, other.outside), (&["amount".to_owned()][..], 1, None));
        assert_eq!(of(b"text/plain", br#"{"amount":2}"#), Difference::default());
        assert_eq!(of(b"application/json", first.body).outside, Some("query or headers"));
    }

    #[test]
    fn no_name_passes_for_two() {
        let members = vec!["a\", \"b".to_owned(), "c, d".to_owned(), "e; differs in: x".to_owned()];
        let difference = Difference { members, more: 2, missing: 1, outside: Some("method or path") };
        assert_eq!(
            difference.to_string(),
            r#"differing members: "a\", \"b", "c, d", "e; differs in: x" and 2 more; members of the first "#
                .to_owned()
                + "request are missing: 1 or more; differs in: method or path"
        );
    }
}
