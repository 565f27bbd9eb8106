//! Accepted work takes turns: whoever has much of it waits longer for the last of it, and nobody waits behind it.
//!
//! What waits of one operation and one tenant is a *line*, the longest due first. A turn calls one after the other of the lines that have
//! something due, goes on after the one that was called last, and takes one row of each before it takes a second of any. So how much of
//! one line waits is nothing to the others, nor to how much is read: stores look at the head of each line, and at no row that they do
//! not give.
//!
//! Which lines are called is decided here, once for all stores; a store shows lines in an order of its own.

use std::fmt;
use std::sync::Arc;

use oncegate_core::scope::Operation;
use oncegate_core::time::Timestamp;

use crate::query::{Cursor, Scan};

/// The operations that a worker can run, by the text that is stored in their records. Also what a
/// route was called when the record was made: the configuration may have changed since.
#[derive(Clone, Default)]
pub struct Operations(Option<Arc<Test>>);

/// Whether an operation can be run.
type Test = dyn Fn(&str) -> bool + Send + Sync;

impl Operations {
    /// Those of which this is true.
    #[must_use]
    pub fn new(is_run: impl Fn(&str) -> bool + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(is_run)))
    }

    /// Whether records of this operation can be run.
    #[must_use]
    pub fn contains(&self, operation: &str) -> bool {
        self.0.as_ref().is_some_and(|is_run| is_run(operation))
    }

    /// Whether it is known that there is none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_none()
    }
}

impl From<Vec<Operation>> for Operations {
    fn from(operations: Vec<Operation>) -> Self {
        if operations.is_empty() {
            return Self::default();
        }
        Self::new(move |text| operations.iter().any(|operation| operation.as_str() == text))
    }
}

impl fmt::Debug for Operations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_empty() { "no operations" } else { "some operations" })
    }
}

/// A worker's wish for work.
#[derive(Clone, Debug)]
pub struct Turn {
    /// What it can run.
    pub operations: Operations,
    /// Where the last turn ended; `None`: anywhere.
    pub after: Option<Cursor>,
    /// At most so many rows.
    pub limit: usize,
}

/// What a turn came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Waiting {
    /// The rows: the first of each line that was called, then the second of each, and so on. Whether there are more says `is_round`.
    pub scan: Scan,
    /// Where the next turn goes on.
    pub next: Option<Cursor>,
    /// Every line was looked at. If not, there may be more to do than was found.
    pub is_round: bool,
}

/// How much waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backlog {
    /// Rows; no more than [`BACKLOG_MAX`] are counted.
    pub rows: u64,
    /// When the first of them is, or was, due; of doubts, when it began.
    pub oldest: Option<Timestamp>,
}

/// How many outcomes nobody knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Doubts {
    /// All of them, and since when the oldest has been unknown.
    pub open: Backlog,
    /// Those of them that are parked, however many others there are.
    pub parked: Backlog,
}

/// So many rows are counted; past that the number says "at least".
pub const BACKLOG_MAX: u64 = 100_000;

/// So many heads of lines are read at once by whoever looks for the oldest of them.
pub const HEADS_AT_ONCE: usize = 1_000;
/// And so often: one of as many lines as rows are counted.
pub const HEADS_TIMES: usize = 100;

/// So many lines are looked at in one turn, whatever there is.
pub const LINES_MAX: usize = 256;
/// So many at once, at least.
const LINES_AT_ONCE: usize = 16;

/// A line, as a store comes to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line<L> {
    /// Its place among the lines.
    pub place: L,
    /// The operation at its head.
    pub operation: String,
    /// When its head is due.
    pub first: Timestamp,
}

/// The head that has been due longest, of these and of those before.
#[must_use]
pub fn oldest_head<L>(lines: &[Line<L>], before: Option<Timestamp>) -> Option<Timestamp> {
    lines.iter().map(|line| line.first).chain(before).min()
}

/// Goes over lines, and calls some.
#[derive(Debug)]
pub struct Calling<'t, L> {
    turn: &'t Turn,
    now: Timestamp,
    /// After which the turn began.
    start: Option<L>,
    /// The last one that was looked at, this time round.
    at: Option<L>,
    has_begun_anew: bool,
    looked_at: usize,
    called: Vec<L>,
    end: Option<End>,
}

/// Why no more lines are looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Enough,
    Round,
}

impl<'t, L: Clone + Ord> Calling<'t, L> {
    /// Begins after `start`, the turn's cursor as the store reads it.
    pub fn new(turn: &'t Turn, start: Option<L>, now: Timestamp) -> Self {
        let end = (turn.limit == 0 || turn.operations.is_empty()).then_some(End::Round);
        let at = start.clone();
        Self { turn, now, start, at, has_begun_anew: false, looked_at: 0, called: Vec::new(), end }
    }

    /// What the store is to show: so many lines after this one (`None`: from the first on). `None`: nothing more.
    #[must_use]
    pub fn asks(&self) -> Option<(Option<L>, usize)> {
        let count = self.turn.limit.clamp(LINES_AT_ONCE, LINES_MAX);
        self.end.is_none().then(|| (self.at.clone(), count.min(LINES_MAX - self.looked_at)))
    }

    /// What the store shows, in its order; fewer than it was asked for: there are no more.
    pub fn sees(&mut self, lines: Vec<Line<L>>) {
        let Some((_, asked)) = self.asks() else { return };
        let is_last = lines.len() < asked;
        for line in lines {
            if self.has_begun_anew && self.start.as_ref().is_some_and(|start| line.place > *start) {
                self.end = Some(End::Round);
                return;
            }
            self.looked_at += 1;
            let is_ours = self.turn.operations.contains(&line.operation);
            if is_ours && line.first <= self.now {
                self.called.push(line.place.clone());
            }
            self.at = Some(line.place);
            if self.called.len() >= self.turn.limit || self.looked_at >= LINES_MAX {
                self.end = Some(End::Enough);
                return;
            }
        }
        if is_last && self.start.is_some() && !self.has_begun_anew {
            (self.has_begun_anew, self.at) = (true, None);
        } else if is_last {
            self.end = Some(End::Round);
        }
    }

    /// The lines that were called, in order; where the next turn goes on; and whether all were looked at.
    #[must_use]
    pub fn ended(self) -> (Vec<L>, Option<L>, bool) {
        (self.called, self.at.or(self.start), self.end == Some(End::Round))
    }
}

/// The first of each line, then the second of each, and so on.
#[must_use]
pub fn in_turns<T>(lines: Vec<Vec<T>>, limit: usize) -> Vec<T> {
    let mut lines: Vec<_> = lines.into_iter().map(Vec::into_iter).collect();
    let mut all = Vec::new();
    loop {
        let before = all.len();
        for line in &mut lines {
            if all.len() == limit {
                return all;
            }
            all.extend(line.next());
        }
        if all.len() == before {
            return all;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turn(after: Option<u32>, limit: usize) -> (Turn, Option<u32>) {
        let operations = vec![Operation::new("POST /a").unwrap()].into();
        (Turn { operations, after: after.map(|place| Cursor::new(place.to_string())), limit }, after)
    }

    /// What is called of `lines` (place, operation, due), and how many were looked at.
    fn called(
        (turn, start): (Turn, Option<u32>),
        lines: &[(u32, &str, i64)],
    ) -> (Vec<u32>, Option<u32>, bool) {
        let mut calling = Calling::new(&turn, start, Timestamp::from_micros(10));
        while let Some((after, count)) = calling.asks() {
            let shown = lines.iter().filter(|(place, ..)| after.is_none_or(|after| *place > after));
            let shown = shown.take(count).map(|(place, operation, due)| Line {
                place: *place,
                operation: (*operation).to_owned(),
                first: Timestamp::from_micros(*due),
            });
            calling.sees(shown.collect());
        }
        calling.ended()
    }

    #[test]
    fn a_turn_goes_on_after_the_last_one_and_comes_round() {
        let lines: Vec<_> = (0..5).map(|place| (place, "POST /a", 0)).collect();
        assert_eq!(called(turn(None, 2), &lines), (vec![0, 1], Some(1), false));
        assert_eq!(called(turn(Some(1), 2), &lines), (vec![2, 3], Some(3), false));
        assert_eq!(called(turn(Some(3), 2), &lines), (vec![4, 0], Some(0), false));
        // Each once, however many could be taken.
        assert_eq!(called(turn(Some(3), 9), &lines), (vec![4, 0, 1, 2, 3], Some(3), true));
        // The one that it ended with has gone meanwhile.
        assert_eq!(called(turn(Some(9), 9), &lines), (vec![0, 1, 2, 3, 4], Some(4), true));
        assert_eq!(called(turn(None, 9), &[]), (vec![], None, true));
        assert_eq!(called(turn(None, 0), &lines), (vec![], None, true));
    }

    #[test]
    fn only_lines_that_are_due_and_known_are_called() {
        let lines = [(0, "POST /a", 11), (1, "POST /b", 0), (2, "POST /a", 10)];
        assert_eq!(called(turn(None, 2), &lines), (vec![2], Some(2), true));
    }

    #[test]
    fn no_turn_looks_at_more_lines_than_it_may() {
        let lines: Vec<_> = (0..1_000).map(|place| (place, "POST /b", 0)).collect();
        assert_eq!(called(turn(None, 8), &lines), (vec![], Some(255), false));
        assert_eq!(called(turn(Some(900), 8), &lines), (vec![], Some(156), false));
    }

    #[test]
    fn one_of_each_line_before_a_second_of_any() {
        let lines = vec![vec!["a1", "a2", "a3"], vec!["b1"], vec!["c1", "c2"]];
        assert_eq!(in_turns(lines.clone(), 9), ["a1", "b1", "c1", "a2", "c2", "a3"]);
        assert_eq!(in_turns(lines, 4), ["a1", "b1", "c1", "a2"]);
    }
}
