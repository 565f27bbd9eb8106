//! Sorting more than fits into memory: runs are sorted in memory, kept in files that have no name, and merged.
//!
//! **Invariant:** memory has a bound, whatever comes in: one buffer of [`RUN_BYTES`], one entry and one small buffer for each run, and at
//! most [`FAN`] runs of each size. Entries that are equal in key and side come out as they went in. Not here: what entries mean.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read as _, Seek as _, Write as _};
use std::mem;

/// How much is sorted at once.
const RUN_BYTES: usize = 32 << 20;
/// So many runs are merged into one of the next size.
const FAN: usize = 64;
/// What is read of a run at once.
const READ_BYTES: usize = 64 << 10;

/// What is sorted: by key, then by side, then in the order of arrival.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) key: Vec<u8>,
    pub(crate) side: u8,
    pub(crate) value: Vec<u8>,
}

/// Takes entries in any order.
#[derive(Default)]
pub(crate) struct Sorter {
    bytes: Vec<u8>,
    places: Vec<Place>,
    /// Runs of one size; each level is of those that hold [`FAN`] of the level before, and older than they.
    levels: Vec<Vec<File>>,
    entries: u64,
}

/// An entry in the buffer.
#[derive(Clone, Copy)]
struct Place {
    start: usize,
    key_bytes: usize,
    value_bytes: usize,
    side: u8,
}

impl Place {
    fn key(self, bytes: &[u8]) -> &[u8] {
        &bytes[self.start..self.start + self.key_bytes]
    }

    fn value(self, bytes: &[u8]) -> &[u8] {
        let start = self.start + self.key_bytes;
        &bytes[start..start + self.value_bytes]
    }
}

impl Sorter {
    /// Takes one.
    pub(crate) fn add(&mut self, key: &[u8], side: u8, value: &[u8]) -> io::Result<()> {
        let more = key.len() + value.len() + size_of::<Place>();
        let held = self.bytes.len() + self.places.len() * size_of::<Place>();
        if held + more > RUN_BYTES && held > 0 {
            self.end_run()?;
        }
        let start = self.bytes.len();
        self.bytes.extend_from_slice(key);
        self.bytes.extend_from_slice(value);
        self.places.push(Place { start, key_bytes: key.len(), value_bytes: value.len(), side });
        self.entries += 1;
        Ok(())
    }

    /// How many were taken.
    pub(crate) const fn entries(&self) -> u64 {
        self.entries
    }

    /// All of them, in order.
    pub(crate) fn sorted(mut self) -> io::Result<Merge> {
        self.end_run()?;
        // The oldest are in the largest.
        Merge::of(self.levels.into_iter().rev().flatten())
    }

    fn end_run(&mut self) -> io::Result<()> {
        let bytes = &self.bytes;
        self.places.sort_unstable_by(|one, other| {
            let of = |place: &Place| (place.key(bytes), place.side, place.start);
            of(one).cmp(&of(other))
        });
        let mut run = BufWriter::with_capacity(READ_BYTES, tempfile::tempfile()?);
        for place in &self.places {
            write(&mut run, place.key(bytes), place.side, place.value(bytes))?;
        }
        self.bytes.clear();
        self.places.clear();
        self.keep(run, 0)
    }

    fn keep(&mut self, run: BufWriter<File>, level: usize) -> io::Result<()> {
        let run = run.into_inner().map_err(io::IntoInnerError::into_error)?;
        if self.levels.len() == level {
            self.levels.push(Vec::new());
        }
        self.levels[level].push(run);
        if self.levels[level].len() < FAN {
            return Ok(());
        }
        let mut merge = Merge::of(mem::take(&mut self.levels[level]).into_iter())?;
        let mut larger = BufWriter::with_capacity(READ_BYTES, tempfile::tempfile()?);
        let mut entry = Entry::default();
        while merge.next(&mut entry)? {
            write(&mut larger, &entry.key, entry.side, &entry.value)?;
        }
        self.keep(larger, level + 1)
    }
}

/// Several runs as one.
pub(crate) struct Merge {
    runs: Vec<BufReader<File>>,
    heads: BinaryHeap<Head>,
}

/// The first entry of a run.
#[derive(PartialEq, Eq)]
struct Head {
    entry: Entry,
    run: usize,
}

impl Ord for Head {
    /// The heap gives the greatest: that is whatever comes first.
    fn cmp(&self, other: &Self) -> Ordering {
        let of = |head: &Self| (head.entry.side, head.run);
        other.entry.key.cmp(&self.entry.key).then_with(|| of(other).cmp(&of(self)))
    }
}

impl PartialOrd for Head {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Merge {
    fn of(runs: impl Iterator<Item = File>) -> io::Result<Self> {
        let mut merge = Self { runs: Vec::new(), heads: BinaryHeap::new() };
        for mut run in runs {
            run.rewind()?;
            let mut run = BufReader::with_capacity(READ_BYTES, run);
            let mut entry = Entry::default();
            if read(&mut run, &mut entry)? {
                merge.heads.push(Head { entry, run: merge.runs.len() });
            }
            merge.runs.push(run);
        }
        Ok(merge)
    }

    /// The next one, into a place whose room is used again; false: there is none.
    pub(crate) fn next(&mut self, into: &mut Entry) -> io::Result<bool> {
        let Some(mut head) = self.heads.peek_mut() else { return Ok(false) };
        mem::swap(&mut head.entry, into);
        let run = head.run;
        if !read(&mut self.runs[run], &mut head.entry)? {
            PeekMut::pop(head);
        }
        Ok(true)
    }
}

/// Both lengths and the side, then key and value.
fn write(run: &mut BufWriter<File>, key: &[u8], side: u8, value: &[u8]) -> io::Result<()> {
    let length = |bytes: &[u8]| u32::try_from(bytes.len()).map_err(|_| io::ErrorKind::FileTooLarge);
    run.write_all(&length(key)?.to_le_bytes())?;
    run.write_all(&length(value)?.to_le_bytes())?;
    run.write_all(&[side])?;
    run.write_all(key)?;
    run.write_all(value)
}

fn read(run: &mut BufReader<File>, entry: &mut Entry) -> io::Result<bool> {
    let mut head = [0; 9];
    // Runs are ours: what begins also ends.
    if run.read(&mut head[..1])? == 0 {
        return Ok(false);
    }
    run.read_exact(&mut head[1..])?;
    let [k0, k1, k2, k3, v0, v1, v2, v3, side] = head;
    entry.side = side;
    for (bytes, length) in [(&mut entry.key, [k0, k1, k2, k3]), (&mut entry.value, [v0, v1, v2, v3])] {
        bytes.clear();
        bytes.resize(u32::from_le_bytes(length) as usize, 0);
        run.read_exact(bytes)?;
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(sorter: Sorter) -> Vec<Entry> {
        let mut merge = sorter.sorted().unwrap();
        let mut entries = Vec::new();
        let mut entry = Entry::default();
        while merge.next(&mut entry).unwrap() {
            entries.push(entry.clone());
        }
        entries
    }

    /// More than one run, more than [`FAN`] of them, equal keys in all of them.
    #[test]
    fn what_comes_out_is_what_went_in_sorted_and_in_order_of_arrival() {
        let mut sorter = Sorter::default();
        let mut expected = Vec::new();
        for number in 0..u32::try_from(3 * FAN + 7).unwrap() {
            for key in [number % 5, number % 3] {
                let key = "k".repeat(key as usize).into_bytes();
                let (side, value) = (u8::try_from(number % 2).unwrap(), number.to_le_bytes().to_vec());
                sorter.add(&key, side, &value).unwrap();
                expected.push(Entry { key, side, value });
            }
            sorter.end_run().unwrap();
        }
        assert_eq!(sorter.levels.iter().map(Vec::len).collect::<Vec<_>>(), [7, 3]);
        expected.sort_by(|one, other| (&one.key, one.side).cmp(&(&other.key, other.side)));
        assert_eq!(all(sorter), expected);
    }

    #[test]
    fn a_key_that_goes_on_with_zeros_is_another() {
        let mut sorter = Sorter::default();
        for (key, side) in [(&b"a\0"[..], 1), (b"a", 1), (b"a\0", 0), (b"a", 0)] {
            sorter.add(key, side, b"").unwrap();
        }
        let sides: Vec<_> = all(sorter).into_iter().map(|entry| (entry.key, entry.side)).collect();
        let of = |key: &[u8], side| (key.to_vec(), side);
        assert_eq!(sides, [of(b"a", 0), of(b"a", 1), of(b"a\0", 0), of(b"a\0", 1)]);
    }

    #[test]
    fn nothing_comes_of_nothing() {
        assert_eq!(all(Sorter::default()), []);
    }
}
