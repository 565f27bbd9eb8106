//! One transaction's changes of the two tables, and what the memory takes over from them once they are committed.
//!
//! What the transaction has done so far lies over the memory, which stays as it is: others read it meanwhile, and a transaction that
//! fails leaves nothing to take back.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use oncegate_core::identity::{RecordId, Version};
use oncegate_core::record::Record;
use rusqlite::{Connection, params};

use super::super::error::{Failure, PerhapsReserved};
use super::ids::{Ids, RUN};
use super::reserved::{self, Held, Reserved, Row};
use super::settled::{self, Appending, Head};
use super::{Found, Ledger, Memory, Stamp};

/// Where a row is, in this transaction.
#[derive(Clone, Debug)]
pub(in super::super) enum Place {
    InFlight(Held),
    Settled(Head),
    /// In `record`, or nowhere.
    Elsewhere,
}

/// The two tables in a transaction of the file's one writer.
pub(in super::super) struct Append<'c> {
    connection: &'c Connection,
    memory: &'c Memory,
    before: Ledger,
    ledger: Ledger,
    /// What is no longer where the memory has it.
    places: HashMap<RecordId, Place>,
    /// Reserved in this transaction, and where in the order of arrival.
    fresh: Vec<(RecordId, i64)>,
    /// In flight before it, and no longer; and how many of each blob.
    ended: HashSet<RecordId>,
    ended_of: BTreeMap<i64, usize>,
    /// Blobs that name a row which is removed.
    stripped: BTreeSet<i64>,
    /// Runs that have lost rows.
    thinned: BTreeSet<i64>,
    /// A row of any table was written.
    has_written: bool,
    appending: Appending<'c>,
}

impl<'c> Append<'c> {
    /// The memory is at the ledger's stamp.
    pub(in super::super) fn begin(
        connection: &'c Connection,
        memory: &'c Memory,
        ledger: Ledger,
        writes: usize,
    ) -> Result<Self, Failure> {
        Ok(Self {
            connection,
            memory,
            before: ledger,
            ledger,
            places: HashMap::with_capacity(writes),
            fresh: Vec::with_capacity(writes),
            ended: HashSet::with_capacity(writes),
            ended_of: BTreeMap::new(),
            stripped: BTreeSet::new(),
            thinned: BTreeSet::new(),
            has_written: false,
            appending: Appending::prepare(connection)?,
        })
    }

    /// Where a row is. A row that `record_settled` is said to have is there.
    pub(in super::super) fn place(&mut self, id: RecordId) -> Result<Place, Failure> {
        if let Some(place) = self.places.get(&id) {
            return Ok(place.clone());
        }
        Ok(match self.memory.find(id) {
            Found::InFlight(held) => Place::InFlight(held),
            Found::Elsewhere => Place::Elsewhere,
            Found::SettledAt(seq) => {
                if let Some(head) = settled::head(self.connection, seq, id)? {
                    Place::Settled(head)
                } else {
                    // Another process has removed or moved it.
                    self.places.insert(id, Place::Elsewhere);
                    Place::Elsewhere
                }
            }
        })
    }

    /// Whether `record` may have rows at all.
    pub(in super::super) const fn has_records(&self) -> bool {
        self.ledger.has_records
    }

    /// The next place in the order of arrival.
    pub(in super::super) const fn arrive(&mut self) -> i64 {
        self.ledger.arrived += 1;
        self.ledger.arrived
    }

    /// A row for `record`, which then has some.
    pub(in super::super) const fn arrive_in_record(&mut self) -> i64 {
        self.ledger.has_records = true;
        self.arrive()
    }

    pub(in super::super) fn reserve(&mut self, record: &Arc<Record>) {
        let arrival = self.arrive();
        let held = Held { arrival, row: Row::Readable(Arc::clone(record)) };
        self.fresh.push((record.id, arrival));
        self.places.insert(record.id, Place::InFlight(held));
    }

    /// What was in flight is completed.
    pub(in super::super) fn settle(&mut self, arrival: i64, record: &Record) -> Result<(), Failure> {
        let seq = self.ledger.settled;
        self.appending.add(seq, arrival, record)?;
        self.ledger.settled += 1;
        self.end(record.id);
        self.places.insert(record.id, Place::Settled(Head { seq, arrival, version: record.version }));
        Ok(())
    }

    /// What was in flight goes to `record`.
    pub(in super::super) fn leave_flight(&mut self, id: RecordId) {
        self.end(id);
        self.leave(id);
    }

    /// What was completed goes to `record`.
    pub(in super::super) fn leave_settled(&mut self, id: RecordId, head: Head) -> Result<(), Failure> {
        let bound = params![head.seq, &id.as_bytes()[..]];
        self.connection.prepare_cached(settled::DROP)?.execute(bound)?;
        self.thinned.insert(head.seq.div_euclid(RUN));
        self.leave(id);
        Ok(())
    }

    /// Removes what was completed, if it has this version and ended by then.
    pub(in super::super) fn remove(
        &mut self,
        id: RecordId,
        head: Head,
        expect: Version,
        before: i64,
    ) -> Result<bool, Failure> {
        let bound = params![head.seq, &id.as_bytes()[..], expect.as_raw(), before];
        if self.connection.prepare_cached(settled::REMOVE)?.execute(bound)? == 0 {
            return Ok(false);
        }
        self.thinned.insert(head.seq.div_euclid(RUN));
        self.places.insert(id, Place::Elsewhere);
        Ok(true)
    }

    /// A row is nowhere any more, so no blob may name it: it would be in flight again.
    pub(in super::super) fn strip(&mut self, id: RecordId) -> Result<(), PerhapsReserved> {
        if let Some(batch) = self.memory.reserved.batch_of(id) {
            if self.memory.reserved.is_damaged(batch) {
                return Err(PerhapsReserved { seq: batch });
            }
            self.stripped.insert(batch);
        }
        Ok(())
    }

    /// Whether a key that is found nowhere may be in flight all the same.
    pub(in super::super) fn damaged(&self) -> Option<PerhapsReserved> {
        self.memory.reserved.damaged()
    }

    /// What has been in flight for longer than that.
    pub(in super::super) fn older_than(&self, age: Duration, most: usize) -> Vec<(RecordId, Held)> {
        self.memory.reserved.older_than(age, most)
    }

    /// A row was written, in whichever table.
    pub(in super::super) const fn wrote(&mut self) {
        self.has_written = true;
    }

    /// Writes what is left to write. Nothing, if all tables are as they were. Otherwise the file gets a new stamp,
    /// also where only `record` has changed: a restore that takes such a commit back is noticed by it.
    pub(in super::super) fn finish(mut self) -> Result<Option<Changed>, Failure> {
        let is_changed = self.has_written
            || !self.fresh.is_empty()
            || !self.ended.is_empty()
            || !self.stripped.is_empty()
            || !self.thinned.is_empty()
            || self.ledger.settled != self.before.settled;
        if !is_changed {
            return Ok(None);
        }
        self.ledger.stamp = self.before.stamp.next()?;
        self.look_over_runs()?;
        let fresh = self.add_fresh()?;
        let purged = self.drop_over()?;
        self.ledger.keep(self.connection)?;
        Ok(Some(Changed {
            from: self.before.stamp,
            to: self.ledger.stamp,
            settled: self.ledger.settled,
            places: self.places,
            ended: self.ended,
            purged,
            fresh,
        }))
    }

    /// Runs that have become whole, and those that were and have lost rows.
    fn look_over_runs(&mut self) -> Result<(), Failure> {
        let open = self.ledger.settled.div_euclid(RUN);
        self.thinned.retain(|run| *run < open);
        self.thinned.extend(self.before.settled.div_euclid(RUN)..open);
        self.thinned.iter().try_for_each(|run| settled::survey(self.connection, *run))
    }

    /// What this transaction has reserved, and not settled again.
    fn add_fresh(&self) -> Result<Vec<(RecordId, Held)>, Failure> {
        let mut fresh = Vec::with_capacity(self.fresh.len());
        for (id, arrival) in &self.fresh {
            if let Some(Place::InFlight(held)) = self.places.get(id)
                && held.arrival == *arrival
            {
                fresh.push((*id, held.clone()));
            }
        }
        if !fresh.is_empty() {
            let blob = reserved::write(fresh.iter().map(|(id, held)| (*id, held)));
            let bound = params![self.ledger.stamp.generation, blob];
            self.connection.prepare_cached(reserved::ADD)?.execute(bound)?;
        }
        Ok(fresh)
    }

    /// Blobs of which nothing is in flight any more go; those that name a removed row are written anew. Says which.
    fn drop_over(&self) -> Result<Vec<i64>, Failure> {
        let memory = &self.memory.reserved;
        let left = |batch: i64| memory.live(batch) - self.ended_of.get(&batch).copied().unwrap_or(0);
        let over = self.ended_of.keys().copied().filter(|batch| left(*batch) == 0);
        let purged = over.chain(self.stripped.iter().copied());
        let purged: BTreeSet<_> = purged.filter(|batch| !memory.is_damaged(*batch)).collect();
        for batch in &purged {
            let rows = memory.of_batch(*batch).filter(|(id, _)| !self.ended.contains(id));
            let rows: Vec<_> = rows.collect();
            if rows.is_empty() {
                self.connection.prepare_cached(reserved::DROP)?.execute([batch])?;
            } else {
                let blob = reserved::write(rows.into_iter());
                self.connection.prepare_cached(reserved::REPLACE)?.execute(params![batch, blob])?;
            }
        }
        Ok(purged.into_iter().collect())
    }

    /// It is not in flight any more; a blob that the file has goes on naming it.
    fn end(&mut self, id: RecordId) {
        if self.memory.reserved.get(id).is_some()
            && self.ended.insert(id)
            && let Some(batch) = self.memory.reserved.batch_of(id)
        {
            *self.ended_of.entry(batch).or_default() += 1;
        }
    }

    fn leave(&mut self, id: RecordId) {
        self.ledger.has_records = true;
        self.places.insert(id, Place::Elsewhere);
    }
}

/// What a commit has changed, for the memory.
#[derive(Debug)]
pub(in super::super) struct Changed {
    pub(super) from: Stamp,
    pub(super) to: Stamp,
    pub(super) settled: i64,
    places: HashMap<RecordId, Place>,
    ended: HashSet<RecordId>,
    purged: Vec<i64>,
    fresh: Vec<(RecordId, Held)>,
}

impl Changed {
    /// The row that was settled last, with its place.
    pub(super) fn last_settled(&self) -> Option<(i64, RecordId)> {
        let settled = self.places.iter().filter_map(|(id, place)| match place {
            Place::Settled(head) => Some((head.seq, *id)),
            Place::InFlight(_) | Place::Elsewhere => None,
        });
        settled.max()
    }

    pub(super) fn apply(self, ids: &mut Ids, reserved: &mut Reserved) {
        for id in self.ended {
            reserved.end(id);
        }
        for batch in self.purged {
            reserved.purge(batch);
        }
        for (id, place) in self.places {
            match place {
                Place::Settled(head) => ids.insert(id, head.seq),
                Place::Elsewhere => ids.remove(id),
                Place::InFlight(_) => {}
            }
        }
        if !self.fresh.is_empty() {
            reserved.add(self.to.generation, self.fresh);
        }
    }
}
