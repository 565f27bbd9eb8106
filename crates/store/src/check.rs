//! Checking what a store keeps for contradictions, at rest or while it serves.
//!
//! A check only reads. It goes part by part, so that a store under load answers others in between.
//! Not here: repair.

use std::fmt;
use std::future::Future;

use crate::query::{Cursor, Filter};
use crate::{Result, Store};

/// A store whose contents can be checked.
pub trait Check: Store {
    /// Checks the part behind `after`; `None` begins with the first.
    ///
    /// # Contract
    /// - A sound store has no problems, also while it is written to. (each store's own tests)
    /// - A row that cannot be decoded, columns that say otherwise than their record, an id that
    ///   occurs twice, and a reference to a row that is not there are problems. (each store's own
    ///   tests)
    fn check(&self, after: Option<&Cursor>) -> impl Future<Output = Result<CheckedPart>> + Send;
}

/// What the check of one part came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckedPart {
    /// What was looked at, such as `records`.
    pub area: &'static str,
    /// How many rows of it.
    pub rows: u64,
    /// What is wrong.
    pub problems: Vec<Problem>,
    /// Where the next part begins; `None`: this was the last.
    pub next: Option<Cursor>,
}

/// One contradiction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// What kind of contradiction.
    pub kind: ProblemKind,
    /// Which row: a record's or a job's id, or a place in a table.
    pub subject: String,
    /// What was expected, and what was found.
    pub detail: String,
}

/// The kinds of contradictions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProblemKind {
    /// An id has two rows.
    DuplicateId,
    /// A row cannot be decoded.
    Unreadable,
    /// A column, or what finds the row, says otherwise than its record.
    Inconsistent,
    /// A reference to a row that is not there.
    Dangling,
    /// The database says that its file or an index is damaged.
    Damaged,
}

impl ProblemKind {
    /// The name, for people and programs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::DuplicateId => "duplicate_id",
            Self::Unreadable => "unreadable",
            Self::Inconsistent => "inconsistent",
            Self::Dangling => "dangling",
            Self::Damaged => "damaged",
        }
    }
}

impl fmt::Display for ProblemKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Checks a part of a store that has no check of its own: that every listed record can be decoded,
/// which on Redis includes what scripts read of it.
pub async fn check_pages<S: Store>(store: &S, after: Option<&Cursor>) -> Result<CheckedPart> {
    let page = store.browse(&Filter::default(), after, 500).await?;
    let unreadable = Problem {
        kind: ProblemKind::Unreadable,
        subject: "page of records".to_owned(),
        detail: format!("{} of its records cannot be decoded", page.unreadable),
    };
    let rows = page.records.len() + page.unreadable;
    Ok(CheckedPart {
        area: "records",
        rows: rows as u64,
        problems: if page.unreadable > 0 { vec![unreadable] } else { Vec::new() },
        next: page.next,
    })
}

/// Where a part begins: an area, and a place in it. For stores whose rows have numbers.
#[must_use]
pub fn cursor(area: &str, place: i64) -> Cursor {
    Cursor::new(format!("{area}:{place}"))
}

/// Reads back what [`cursor`] made.
pub fn area_and_place(cursor: &Cursor) -> std::result::Result<(&str, i64), String> {
    let parts = cursor.as_str().split_once(':');
    let parts = parts.and_then(|(area, place)| Some((area, place.parse().ok()?)));
    parts.ok_or_else(|| format!("{:?} is not where a part of a check begins", cursor.as_str()))
}
