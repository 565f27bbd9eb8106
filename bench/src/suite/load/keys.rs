//! Which key comes next.

use std::ops::Range;
use std::time::SystemTime;

use super::Kind;

/// Numbers of keys, never used twice: also not by a later run on a file that is kept.
#[derive(Debug)]
pub(crate) struct Keys {
    next: u64,
}

impl Keys {
    pub(crate) fn new() -> Self {
        let seconds = SystemTime::UNIX_EPOCH.elapsed().map_or(0, |elapsed| elapsed.as_secs());
        Self { next: seconds << 28 }
    }

    /// The next so many are given away.
    pub(crate) fn take(&mut self, count: u64) -> Range<u64> {
        let first = self.next;
        self.next += count;
        first..self.next
    }
}

/// What a request asks.
pub(super) struct Ask {
    pub(super) key: u64,
    /// Whether another with the same key is under way.
    pub(super) may_clash: bool,
}

pub(super) struct Picker<'a> {
    kind: Kind,
    settled: Range<u64>,
    keys: &'a mut Keys,
    count: u64,
    /// The key of the first comer, whose twin comes next.
    twin: Option<u64>,
}

impl<'a> Picker<'a> {
    pub(super) fn new(kind: Kind, settled: Range<u64>, keys: &'a mut Keys) -> Self {
        Self { kind, settled, keys, count: 0, twin: None }
    }

    pub(super) fn next(&mut self) -> Ask {
        self.count += 1;
        match self.kind {
            Kind::Fresh => Ask { key: self.fresh(), may_clash: false },
            Kind::Replay => Ask { key: self.again(), may_clash: false },
            Kind::Get => Ask { key: 0, may_clash: false },
            Kind::Mixed => self.mixed(),
        }
    }

    fn mixed(&mut self) -> Ask {
        if let Some(key) = self.twin.take() {
            return Ask { key, may_clash: true };
        }
        if self.count % 10 == 5 {
            return Ask { key: self.again(), may_clash: false };
        }
        let key = self.fresh();
        let is_raced = self.count % 100 == 1;
        self.twin = is_raced.then_some(key);
        Ask { key, may_clash: is_raced }
    }

    fn fresh(&mut self) -> u64 {
        self.keys.take(1).start
    }

    fn again(&self) -> u64 {
        let count = (self.settled.end - self.settled.start).max(1);
        self.settled.start + self.count % count
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::{Keys, Picker};
    use crate::suite::load::Kind;

    #[test]
    fn a_mix_is_ninety_to_ten_with_one_race_in_a_hundred() {
        let mut keys = Keys::new();
        let settled = keys.take(50);
        let mut picker = Picker::new(Kind::Mixed, settled.clone(), &mut keys);
        let asked: Vec<_> = (0..1000).map(|_| picker.next()).collect();
        let replays = asked.iter().filter(|ask| settled.contains(&ask.key)).count();
        assert_eq!(replays, 100);
        let mut counts = HashMap::new();
        for ask in asked.iter().filter(|ask| !settled.contains(&ask.key)) {
            *counts.entry(ask.key).or_insert(0) += 1;
        }
        assert_eq!(counts.values().filter(|count| **count == 2).count(), 10);
        assert!(counts.values().all(|count| *count <= 2));
    }
}
