//! Whose the rows of `record_settled` are, in memory: id to place, in less than 40 bytes a key.
//!
//! The ids stand in runs, in the order of their places, so a place is all that the hash tables keep; a table's own 64-bit hash only leads
//! there, and the id itself is compared. There are many small tables, which grow one at a time: the rehashing of one large one would
//! stop every writer for as long as it takes.
//!
//! **Invariant:** an entry is a hint for whoever looks at the row, which carries its id; that an id has *no* entry is a statement, and
//! true of the generation that the memory is at.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};

use hashbrown::HashTable;
use oncegate_core::identity::RecordId;

/// Places in a run.
pub(super) const RUN: i64 = 4096;
const RUN_ROWS: usize = 4096;
const SHARDS: usize = 256;
/// An id in a run that is written down: its place in two bytes, then itself.
pub(super) const WRITTEN_BYTES: usize = 18;

type Bytes = [u8; 16];

/// Id to place.
#[derive(Debug)]
pub(super) struct Ids {
    shards: Vec<HashTable<i64>>,
    runs: BTreeMap<i64, Run>,
    /// Keys are chosen by clients, so where their ids fall must not be theirs to choose.
    seeds: [u64; 2],
}

#[derive(Debug)]
struct Run {
    ids: Written,
    live: usize,
}

/// The ids of a run, most of which are there, or few.
#[derive(Debug)]
enum Written {
    Dense(Vec<Bytes>),
    Sparse(Vec<(u16, Bytes)>),
}

impl Default for Ids {
    fn default() -> Self {
        let state = RandomState::new();
        let seeds = [state.hash_one(1_u8), state.hash_one(2_u8)];
        Self { shards: (0..SHARDS).map(|_| HashTable::new()).collect(), runs: BTreeMap::new(), seeds }
    }
}

impl Ids {
    /// Where the row of this id is, as far as is known.
    pub(super) fn get(&self, id: RecordId) -> Option<i64> {
        let bytes = id.as_bytes();
        let hash = hash(self.seeds, bytes);
        self.shards.get(shard_of(hash))?.find(hash, |seq| id_at(&self.runs, *seq) == Some(bytes)).copied()
    }

    /// Takes note of a row. An entry of the same id is of a row that is gone.
    pub(super) fn insert(&mut self, id: RecordId, seq: i64) {
        self.remove(id);
        let bytes = *id.as_bytes();
        let run = self.runs.entry(seq.div_euclid(RUN)).or_insert_with(Run::new);
        run.put(offset(seq), bytes);
        let Self { shards, runs, seeds } = self;
        let hasher = |seq: &i64| id_at(runs, *seq).map_or(0, |id| hash(*seeds, id));
        let hash = hash(*seeds, &bytes);
        if let Some(shard) = shards.get_mut(shard_of(hash)) {
            shard.insert_unique(hash, seq, hasher);
        }
    }

    /// Lets go of an id.
    pub(super) fn remove(&mut self, id: RecordId) {
        let Self { shards, runs, seeds } = self;
        let bytes = id.as_bytes();
        let hash = hash(*seeds, bytes);
        let Some(shard) = shards.get_mut(shard_of(hash)) else { return };
        let found = shard.find_entry(hash, |seq| id_at(runs, *seq) == Some(bytes));
        let Ok(entry) = found else { return };
        let (seq, _) = entry.remove();
        self.left(seq);
    }

    /// Lets go of all whose place is before this one.
    pub(super) fn drop_before(&mut self, seq: i64) {
        while let Some(run) = self.runs.first_entry() {
            let first = *run.key() * RUN;
            if first + RUN > seq {
                break;
            }
            let run = run.remove();
            let ids: Vec<_> = run.ids.all(first).collect();
            for (seq, bytes) in ids {
                let hash = hash(self.seeds, &bytes);
                let Some(shard) = self.shards.get_mut(shard_of(hash)) else { continue };
                if let Ok(entry) = shard.find_entry(hash, |entry| *entry == seq) {
                    entry.remove();
                }
            }
        }
        self.shrink();
    }

    /// Takes note of a whole run, as it is written down.
    pub(super) fn insert_run(&mut self, run: i64, written: &[u8]) {
        if written.len() / WRITTEN_BYTES < RUN_ROWS / 2 {
            self.runs.entry(run).or_insert(Run { ids: Written::Sparse(Vec::new()), live: 0 });
        }
        for entry in written.chunks_exact(WRITTEN_BYTES) {
            if let Some((place, id)) = entry.split_first_chunk::<2>()
                && let Some(id) = id.first_chunk::<16>()
            {
                let place = i64::from(u16::from_le_bytes(*place));
                self.insert(RecordId::from_bytes(*id), run * RUN + place);
            }
        }
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.shards.iter().map(HashTable::len).sum()
    }

    /// What it takes, near enough.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        let tables: usize = self.shards.iter().map(HashTable::allocation_size).sum();
        let of_run = |run: &Run| match &run.ids {
            Written::Dense(ids) => ids.capacity() * size_of::<Bytes>(),
            Written::Sparse(ids) => ids.capacity() * size_of::<(u16, Bytes)>(),
        };
        tables + self.runs.values().map(|run| of_run(run) + 2 * size_of::<(i64, Run)>()).sum::<usize>()
    }

    /// The entry of this place is gone from its table.
    fn left(&mut self, seq: i64) {
        let number = seq.div_euclid(RUN);
        let is_last = self.runs.last_key_value().is_some_and(|(last, _)| *last == number);
        let Some(run) = self.runs.get_mut(&number) else { return };
        run.live -= 1;
        if is_last {
            return;
        }
        if run.live == 0 {
            self.runs.remove(&number);
            self.shrink();
            return;
        }
        match &mut run.ids {
            Written::Sparse(ids) => {
                if let Ok(place) = ids.binary_search_by_key(&offset(seq), |(offset, _)| *offset) {
                    ids.remove(place);
                }
                if ids.len() < ids.capacity() / 2 {
                    ids.shrink_to_fit();
                }
            }
            Written::Dense(ids) if run.live * 2 < ids.len() => {
                let (shards, seeds) = (&self.shards, self.seeds);
                let is_there = |seq: i64, id: &Bytes| {
                    let hash = hash(seeds, id);
                    let shard = shards.get(shard_of(hash));
                    shard.is_some_and(|shard| shard.find(hash, |entry| *entry == seq).is_some())
                };
                let all = (0_u16..).zip(ids.iter().copied());
                let there = all.filter(|(place, id)| is_there(number * RUN + i64::from(*place), id));
                run.ids = Written::Sparse(there.collect());
                self.shrink();
            }
            Written::Dense(_) => {}
        }
    }

    /// Tables that are mostly empty give back what they do not need; a few at a time would do, but this is rare.
    fn shrink(&mut self) {
        let Self { shards, runs, seeds } = self;
        for shard in shards {
            if shard.capacity() > 64 && shard.len() < shard.capacity() / 4 {
                shard.shrink_to(shard.len() * 2, |seq| id_at(runs, *seq).map_or(0, |id| hash(*seeds, id)));
            }
        }
    }
}

impl Run {
    const fn new() -> Self {
        Self { ids: Written::Dense(Vec::new()), live: 0 }
    }

    fn put(&mut self, offset: u16, id: Bytes) {
        self.live += 1;
        match &mut self.ids {
            Written::Dense(ids) => {
                let place = usize::from(offset);
                if place >= ids.len() {
                    // Places that were left out have no entry, so nobody looks at them.
                    ids.resize(place, [0; 16]);
                    ids.push(id);
                } else if let Some(there) = ids.get_mut(place) {
                    *there = id;
                }
            }
            Written::Sparse(ids) => match ids.binary_search_by_key(&offset, |(offset, _)| *offset) {
                Ok(place) => ids[place].1 = id,
                Err(place) => ids.insert(place, (offset, id)),
            },
        }
    }
}

impl Written {
    fn at(&self, offset: u16) -> Option<&Bytes> {
        match self {
            Self::Dense(ids) => ids.get(usize::from(offset)),
            Self::Sparse(ids) => {
                let place = ids.binary_search_by_key(&offset, |(offset, _)| *offset).ok()?;
                ids.get(place).map(|(_, id)| id)
            }
        }
    }

    fn all(&self, first: i64) -> Box<dyn Iterator<Item = (i64, Bytes)> + '_> {
        match self {
            Self::Dense(ids) => Box::new((first..).zip(ids.iter().copied())),
            Self::Sparse(ids) => {
                Box::new(ids.iter().map(move |(place, id)| (first + i64::from(*place), *id)))
            }
        }
    }
}

fn id_at(runs: &BTreeMap<i64, Run>, seq: i64) -> Option<&Bytes> {
    runs.get(&seq.div_euclid(RUN))?.ids.at(offset(seq))
}

/// The place within its run.
pub(super) fn offset(seq: i64) -> u16 {
    u16::try_from(seq.rem_euclid(RUN)).unwrap_or(0)
}

/// By bits that a table makes no use of.
fn shard_of(hash: u64) -> usize {
    usize::from(hash.to_le_bytes()[5])
}

/// An id is a digest: two halves, multiplied under seeds that nobody outside knows, are as good a hash as any.
fn hash(seeds: [u64; 2], id: &Bytes) -> u64 {
    let number = u128::from_le_bytes(*id);
    let mask = u128::from(u64::MAX);
    let [low, high] = [number & mask, number >> 64];
    let product = (low ^ u128::from(seeds[0])) * (high ^ u128::from(seeds[1]));
    let [low, high] = [product & mask, product >> 64];
    u64::try_from(low ^ high).unwrap_or(0)
}
