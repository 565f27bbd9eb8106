//! What must be so in an answer or an event.

use std::fmt;

use oncegate_core::fingerprint::Pointer;

use super::document::{Document, NotJson};

/// Several tests that must all hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// One of these; empty: any.
    pub statuses: Vec<Statuses>,
    /// All of these, of the body.
    pub tests: Vec<Test>,
}

/// A status, or a hundred of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Statuses {
    /// This one.
    One(u16),
    /// All that begin with this digit.
    Class(u16),
}

/// A test of a part of the body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Test {
    /// Which part.
    pub pointer: Pointer,
    /// What it must be.
    pub expected: Expected,
}

/// What a part must be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expected {
    /// One of these.
    OneOf(Vec<Scalar>),
    /// There, or not; `null` is not.
    Exists(bool),
    /// A list, an object or a text with nothing in it, or with something; what is none of these is neither.
    Empty(bool),
}

/// A value to compare with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scalar {
    /// A text.
    Text(String),
    /// A whole number, written as one.
    Integer(i64),
    /// True or false.
    Bool(bool),
}

/// What was found: an answer, or an event, which has no status.
pub(super) struct Found<'a> {
    pub(super) status: Option<u16>,
    pub(super) content_type: Option<&'a [u8]>,
    pub(super) body: &'a [u8],
    pub(super) document: Result<Document<'a>, NotJson>,
}

impl Condition {
    /// Whether all of it holds; an error where the body would have to be asked and cannot be. The status is asked first.
    pub(super) fn holds(&self, found: &Found<'_>) -> Result<bool, NotJson> {
        let is_status = found.status.is_none_or(|status| {
            self.statuses.is_empty() || self.statuses.iter().any(|statuses| statuses.contain(status))
        });
        if !is_status {
            return Ok(false);
        }
        for test in &self.tests {
            if !test.holds(&found.document?)? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Whether one of them holds.
pub(super) fn any(conditions: &[Condition], found: &Found<'_>) -> Result<bool, NotJson> {
    for condition in conditions {
        if condition.holds(found)? {
            return Ok(true);
        }
    }
    Ok(false)
}

impl Statuses {
    fn contain(self, status: u16) -> bool {
        match self {
            Self::One(one) => status == one,
            Self::Class(class) => status / 100 == class,
        }
    }
}

impl Test {
    fn holds(&self, document: &Document<'_>) -> Result<bool, NotJson> {
        let part = document.part(&self.pointer)?;
        Ok(match &self.expected {
            Expected::Exists(expected) => part.is_some_and(|part| !part.is_null()) == *expected,
            Expected::Empty(expected) => part.and_then(super::document::Part::is_empty) == Some(*expected),
            Expected::OneOf(values) => {
                let Some(part) = part else { return Ok(false) };
                let text = part.text()?;
                values.iter().any(|value| match value {
                    Scalar::Text(expected) => text.as_deref() == Some(expected.as_str()),
                    Scalar::Integer(expected) => part.integer() == Some(*expected),
                    Scalar::Bool(expected) => part.raw() == if *expected { "true" } else { "false" },
                })
            }
        })
    }
}

impl fmt::Display for Statuses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::One(status) => write!(f, "{status}"),
            Self::Class(class) => write!(f, "\"{class}xx\""),
        }
    }
}
