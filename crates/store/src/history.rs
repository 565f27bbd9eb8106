//! Whether the store still has what this process wrote, and which keys it may have lost.
//!
//! Every handle keeps one small row in the store, its *watermark*: a random value. Only this
//! handle writes it. It rewrites the row every few seconds, on the condition that it finds what it
//! wrote last. If it finds anything else, the store has lost acknowledged writes: a backup was
//! restored, a database was recovered to a point in time, a replica that was behind took over, or
//! a Redis came back without its data.
//!
//! A *quarantine* is a window of time whose keys may have been lost that way. The engine decides
//! what that means for a request.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use oncegate_core::time::Timestamp;

/// What is said once a loss was noticed: to clients, in the log, and by readiness.
pub const RESTORED: &str = "the store was restored to an earlier state while this process ran; declare the \
     lost time with `oncegate quarantine --since TIME`, then restart this process";

/// A watermark that was not rewritten for this long belongs to a process that has ended. The next
/// process that starts removes it.
pub const WATERMARK_AGE_MAX: Duration = Duration::from_hours(7 * 24);

/// How many marks are remembered: one that was written while another task was reading is still
/// recognised.
const MARKS_MAX: usize = 16;

/// What a look at the watermark says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum History {
    /// The store has what this handle wrote last.
    Intact,
    /// It has not: acknowledged writes are gone. This stays so for as long as the handle lives.
    Lost,
}

/// The watermark of one handle, as far as the process knows it. For stores to hold.
#[derive(Debug)]
pub struct Watermark {
    node: i64,
    marks: Mutex<Marks>,
}

#[derive(Debug)]
struct Marks {
    /// Acknowledged ones, the last at the end.
    written: VecDeque<i64>,
    /// How many were acknowledged in all.
    count: usize,
    /// What is written next. It stays the same until that is acknowledged, so that a write in
    /// doubt may be made again.
    next: i64,
    is_lost: bool,
}

/// One conditional write of a watermark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Beat {
    /// Whose row.
    pub node: i64,
    /// What must be there, or [`Beat::next`]; `None`: no row.
    pub last: Option<i64>,
    /// What is written.
    pub next: i64,
}

impl Beat {
    /// Whether the row may be rewritten, given what is in it.
    #[must_use]
    pub fn follows(&self, found: Option<i64>) -> bool {
        found == self.last || found == Some(self.next)
    }
}

/// What must be found in a row that is read at any time after this was taken.
#[derive(Clone, Copy, Debug)]
pub struct Expected {
    /// Whose row.
    pub node: i64,
    count: usize,
}

impl Default for Watermark {
    fn default() -> Self {
        let marks = Marks { written: VecDeque::new(), count: 0, next: random(0), is_lost: false };
        Self { node: random(1), marks: Mutex::new(marks) }
    }
}

impl Watermark {
    /// The next write; nothing once the history is lost.
    #[must_use]
    pub fn beat(&self) -> Option<Beat> {
        let marks = self.marks();
        (!marks.is_lost).then(|| Beat {
            node: self.node,
            last: marks.written.back().copied(),
            next: marks.next,
        })
    }

    /// Takes note of what a beat came to.
    pub fn took_effect(&self, beat: Beat, is_written: bool) -> History {
        let mut marks = self.marks();
        if !is_written {
            marks.is_lost = true;
        } else if marks.next == beat.next {
            marks.written.push_back(beat.next);
            if marks.written.len() > MARKS_MAX {
                marks.written.pop_front();
            }
            marks.count += 1;
            marks.next = random(beat.next);
        }
        if marks.is_lost { History::Lost } else { History::Intact }
    }

    /// Whether the history was found lost.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.marks().is_lost
    }

    /// What must be found in the row from now on; `None` before the first write was acknowledged.
    #[must_use]
    pub fn expected(&self) -> Option<Expected> {
        let marks = self.marks();
        (marks.count > 0).then_some(Expected { node: self.node, count: marks.count })
    }

    /// Judges what a look has found, on a new connection say.
    pub fn judge(&self, expected: Expected, found: Option<i64>) -> History {
        let mut marks = self.marks();
        let newer = (marks.count - expected.count + 1).min(marks.written.len());
        let is_ours =
            |mark: i64| marks.next == mark || marks.written.iter().rev().take(newer).any(|one| *one == mark);
        if !found.is_some_and(is_ours) {
            marks.is_lost = true;
        }
        if marks.is_lost { History::Lost } else { History::Intact }
    }

    fn marks(&self) -> MutexGuard<'_, Marks> {
        self.marks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Another value than `last`. A system without randomness still counts.
fn random(last: i64) -> i64 {
    getrandom::u64().map_or(last.wrapping_add(1), u64::cast_signed)
}

/// A window of time whose keys may have been lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quarantine {
    /// Its name, for operators.
    pub id: Box<str>,
    /// The first moment whose keys may be lost: that of the backup.
    pub since: Timestamp,
    /// The last one: when the store was restored.
    pub until: Timestamp,
    /// When it was declared.
    pub declared_at: Timestamp,
    /// When it was released; `None` while it is active.
    pub released_at: Option<Timestamp>,
    /// Why, and by whom.
    pub reason: Box<str>,
}

impl Quarantine {
    /// Whether a key of this time may have been lost. One without a time may always have been.
    #[must_use]
    pub fn covers(&self, time: Option<Timestamp>, skew: Duration) -> bool {
        time.is_none_or(|time| self.since.minus(skew) <= time && time <= self.until.plus(skew))
    }
}
