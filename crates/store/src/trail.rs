//! Pages of the audit trail: the entries of all records, in the order of their time.

use std::error::Error;
use std::fmt;
use std::str::FromStr;

use oncegate_core::audit::Entry;
use oncegate_core::time::Timestamp;

/// Which time a page is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeSpan {
    /// The first moment.
    pub from: Timestamp,
    /// The moment after the last one.
    pub before: Timestamp,
}

impl TimeSpan {
    /// All of it.
    pub const ALL: Self =
        Self { from: Timestamp::from_micros(i64::MIN), before: Timestamp::from_micros(i64::MAX) };

    /// The place after which a page begins: `after`, or just before this span.
    #[must_use]
    pub fn start(self, after: Option<EntryPlace>) -> EntryPlace {
        let first = self.from.as_micros().checked_sub(1).map_or(
            EntryPlace { at: self.from, arrival: i64::MIN },
            |micros| EntryPlace { at: Timestamp::from_micros(micros), arrival: i64::MAX },
        );
        after.map_or(first, |after| after.max(first))
    }
}

/// Where an entry is in the trail: entries of one moment are in the order in which they came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct EntryPlace {
    /// Its time.
    pub at: Timestamp,
    /// The store's number of it, which grows with every entry.
    pub arrival: i64,
}

impl fmt::Display for EntryPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.at.as_micros(), self.arrival)
    }
}

impl FromStr for EntryPlace {
    type Err = InvalidPlace;

    fn from_str(text: &str) -> Result<Self, InvalidPlace> {
        let (at, arrival) = text.split_once('.').ok_or(InvalidPlace)?;
        let number = |text: &str| text.parse::<i64>().map_err(|_| InvalidPlace);
        Ok(Self { at: Timestamp::from_micros(number(at)?), arrival: number(arrival)? })
    }
}

/// A text that no [`EntryPlace`] is written as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidPlace;

impl fmt::Display for InvalidPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("expected the end of an earlier page, such as 1763285400000000.42")
    }
}

impl Error for InvalidPlace {}

/// A page of the trail, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EntryPage {
    /// Where each entry is, and the entry; `None`: it cannot be read.
    pub entries: Vec<(EntryPlace, Option<Entry>)>,
    /// The place of the last entry, to be passed as `after` for the next page; `None`: this page
    /// is the last.
    pub next: Option<EntryPlace>,
}
