//! The in-memory store, which is the reference model: what every other store must be equal to.
//!
//! [`Model`] is plain data and plain functions, so that a test can keep one beside any store and compare. Kept simple
//! rather than fast: it is the meaning of the contract.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use oncegate_core::audit::Entry;
use oncegate_core::identity::RecordId;
use oncegate_core::record::{Record, State, StateKind};
use oncegate_core::scope::Operation;
use oncegate_core::time::Timestamp;

use crate::apart::Apart;
use crate::clock::Clock;
use crate::error::{Effect, Kind, StoreError};
use crate::history::{Beat, History, Quarantine, Watermark};
use crate::query::{Counts, Cursor, Due, Filter, Moments, Page, SCAN_BYTES_MAX, Scan, answer_bytes};
use crate::removed;
use crate::shared_cache::Realm;
use crate::signals::Signals;
use crate::trail::{EntryPage, EntryPlace, TimeSpan};
use crate::turns::{BACKLOG_MAX, Backlog, Calling, Doubts, Line, Turn, Waiting, in_turns};
use crate::write::{Change, Outcome, Write};
use crate::{Capability, Durability, Result, Sharing, Store, Writing};

mod jobs;

use jobs::Outbox;

/// Rows in memory, by id, with the order in which they came.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Model {
    rows: BTreeMap<RecordId, Row>,
    inserted: u64,
    /// With the number of each, in the order of arrival.
    entries: Vec<(i64, Entry)>,
    told: i64,
    /// Days, and digests of the ids of rows that were removed on them.
    removed: BTreeSet<(i64, i64)>,
    apart: Vec<Apart>,
    outbox: Outbox,
    watermarks: BTreeMap<i64, i64>,
    quarantines: Vec<Quarantine>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Row {
    seq: u64,
    record: Record,
}

impl Model {
    /// Applies one write at the store's time `now`.
    pub fn apply(&mut self, write: &Write, now: Timestamp) -> Outcome {
        let outcome = self.change(write, now);
        if let (Outcome::Applied, Some(entry)) = (&outcome, &write.entry) {
            self.tell(entry);
        }
        outcome
    }

    fn change(&mut self, write: &Write, now: Timestamp) -> Outcome {
        let current = self.rows.get_mut(&write.id());
        match (&write.change, current) {
            (Change::Insert(record), None) => {
                self.inserted += 1;
                self.rows.insert(record.id, Row { seq: self.inserted, record: (**record).clone() });
                Outcome::Applied
            }
            (Change::Swap { expect, record }, Some(row)) if row.record.version == *expect => {
                row.record = (**record).clone();
                Outcome::Applied
            }
            (Change::Remove { id, expect, grace, is_remembered }, Some(row))
                if row.record.version == *expect && is_removable(&row.record, now.minus(*grace)) =>
            {
                self.rows.remove(id);
                if *is_remembered {
                    self.removed.insert((removed::day_of(now), removed::digest_of(*id)));
                }
                Outcome::Applied
            }
            (_, current) => Outcome::Refused { current: current.map(|row| Arc::new(row.record.clone())) },
        }
    }

    /// The row with this id.
    #[must_use]
    pub fn read(&self, id: RecordId) -> Option<&Record> {
        self.rows.get(&id).map(|row| &row.record)
    }

    /// All rows, by id.
    pub fn records(&self) -> impl Iterator<Item = &Record> {
        self.rows.values().map(|row| &row.record)
    }

    /// Rows that are due, the longest first.
    #[must_use]
    pub fn due(&self, what: Due, moments: Moments, limit: usize) -> Scan {
        self.due_except(what, &[], moments, limit)
    }

    /// Doubts that are due, but for those of some operations.
    #[must_use]
    pub fn doubted_except(&self, except: &[Operation], moments: Moments, limit: usize) -> Scan {
        self.due_except(Due::Doubted, except, moments, limit)
    }

    fn due_except(&self, what: Due, except: &[Operation], moments: Moments, limit: usize) -> Scan {
        let mut due: Vec<_> = self
            .rows
            .values()
            .filter(|row| !except.contains(&row.record.operation))
            .filter_map(|row| what.moment(&row.record).map(|moment| (moment, row.seq, &row.record)))
            .filter(|(moment, ..)| moments.contain(*moment))
            .collect();
        due.sort_by_key(|(moment, seq, _)| (*moment, *seq));
        let mut scan = Scan::default();
        let mut bytes = 0;
        for (.., record) in due {
            scan.is_cut = scan.records.len() >= limit || bytes >= SCAN_BYTES_MAX;
            if scan.is_cut {
                break;
            }
            bytes += answer_bytes(record);
            scan.records.push(record.clone());
        }
        scan
    }

    /// What waits, in turns.
    #[must_use]
    pub fn waiting(&self, turn: &Turn, now: Timestamp) -> Waiting {
        // Operation and tenant, in this order; of each what waits, the longest due first.
        let mut lines: BTreeMap<String, Vec<(Timestamp, u64, &Record)>> = BTreeMap::new();
        for row in self.rows.values() {
            if let Some(moment) = Due::Pending.moment(&row.record) {
                let (operation, scope) = (row.record.operation.as_str(), row.record.line_scope());
                let line = lines.entry(format!("{operation}\0{scope}")).or_default();
                line.push((moment, row.seq, &row.record));
            }
        }
        for line in lines.values_mut() {
            line.sort_by_key(|(moment, seq, _)| (*moment, *seq));
        }
        let start = turn.after.as_ref().map(|after| after.as_str().to_owned());
        let mut calling = Calling::new(turn, start, now);
        while let Some((after, count)) = calling.asks() {
            let shown = lines.iter().filter(|(place, _)| after.as_ref().is_none_or(|after| *place > after));
            let heads = shown.filter_map(|(place, line)| {
                let (first, _, head) = line.first()?;
                let operation = head.operation.as_str().to_owned();
                Some(Line { place: place.clone(), operation, first: *first })
            });
            calling.sees(heads.take(count).collect());
        }
        let (called, next, is_round) = calling.ended();
        let due = |place: &String| -> Vec<Record> {
            let line = lines.get(place).into_iter().flatten();
            line.filter(|(moment, ..)| *moment <= now).map(|(.., record)| (*record).clone()).collect()
        };
        let records = in_turns(called.iter().map(due).collect(), turn.limit);
        let scan = Scan { records, ..Scan::default() };
        Waiting { scan, next: next.map(Cursor::new), is_round }
    }

    /// How much waits.
    #[must_use]
    pub fn backlog(&self) -> Backlog {
        let moments: Vec<_> = self.records().filter_map(|record| Due::Pending.moment(record)).collect();
        let oldest = moments.iter().min().copied();
        Backlog { rows: (moments.len() as u64).min(BACKLOG_MAX), oldest }
    }

    /// How much is unknown.
    #[must_use]
    pub fn doubts(&self) -> Doubts {
        let mut doubts = Doubts::default();
        for record in self.records() {
            let State::Unknown(doubt) = &record.state else { continue };
            let parked = doubt.parked.then_some(&mut doubts.parked);
            for backlog in [Some(&mut doubts.open), parked].into_iter().flatten() {
                backlog.rows = BACKLOG_MAX.min(backlog.rows + 1);
                backlog.oldest = Some(backlog.oldest.map_or(doubt.since, |oldest| oldest.min(doubt.since)));
            }
        }
        doubts
    }

    /// A page of rows, newest first.
    pub fn browse(&self, filter: &Filter, after: Option<&Cursor>, limit: usize) -> Result<Page> {
        let before = match after {
            None => u64::MAX,
            Some(cursor) => cursor.as_str().parse().map_err(|error| {
                StoreError::new(Kind::Other, Effect::None, "browse").because(format!("not a cursor: {error}"))
            })?,
        };
        let mut rows: Vec<_> =
            self.rows.values().filter(|row| row.seq < before && filter.admits(&row.record)).collect();
        rows.sort_by_key(|row| std::cmp::Reverse(row.seq));
        let next = (rows.len() > limit).then(|| rows.get(limit.wrapping_sub(1))).flatten();
        let next = next.map(|row| Cursor::new(row.seq.to_string()));
        let records = rows.into_iter().take(limit).map(|row| row.record.clone()).collect();
        Ok(Page { records, unreadable: 0, next })
    }

    /// Adds to the audit trail, unless it is there.
    pub fn tell(&mut self, entry: &Entry) {
        if !self.entries.iter().any(|(_, told)| told == entry) {
            self.told += 1;
            self.entries.push((self.told, entry.clone()));
        }
    }

    /// The last `limit` entries of one record, oldest first.
    #[must_use]
    pub fn story(&self, id: RecordId, limit: usize) -> Vec<Entry> {
        let told = self.entries.iter().map(|(_, entry)| entry);
        let story: Vec<_> = told.filter(|entry| entry.id == id).cloned().collect();
        story[story.len().saturating_sub(limit)..].to_vec()
    }

    /// Drops at most `limit` entries that are older than this.
    pub fn drop_entries(&mut self, before: Timestamp, limit: usize) -> usize {
        let mut old: Vec<_> =
            self.entries.iter().map(|(_, entry)| entry.at).filter(|at| *at < before).collect();
        old.sort_unstable();
        old.truncate(limit);
        for at in &old {
            if let Some(place) = self.entries.iter().position(|(_, entry)| entry.at == *at) {
                self.entries.remove(place);
            }
        }
        old.len()
    }

    /// A page of the audit trail of all records.
    #[must_use]
    pub fn entries(&self, span: TimeSpan, after: Option<EntryPlace>, limit: usize) -> EntryPage {
        let start = span.start(after);
        let placed = self.entries.iter().map(|(arrival, entry)| {
            let place = EntryPlace { at: entry.at, arrival: *arrival };
            (place, entry)
        });
        let mut placed: Vec<_> =
            placed.filter(|(place, _)| *place > start && place.at < span.before).collect();
        placed.sort_by_key(|(place, _)| *place);
        let next = (placed.len() > limit).then(|| placed.get(limit.wrapping_sub(1))).flatten();
        let next = next.map(|(place, _)| *place);
        let shown = placed.into_iter().take(limit);
        let entries = shown.map(|(place, entry)| (place, Some(entry.clone()))).collect();
        EntryPage { entries, next }
    }

    /// The day on which the row of this id was last removed.
    #[must_use]
    pub fn removed(&self, id: RecordId, since: Timestamp) -> Option<Timestamp> {
        let digest = removed::digest_of(id);
        let days = self.removed.iter().rev().take_while(|(day, _)| *day >= removed::day_of(since));
        days.filter(|(_, other)| *other == digest).map(|(day, _)| removed::start_of(*day)).next()
    }

    /// Forgets removals of days that ended by this moment, at most `limit`.
    pub fn drop_removed(&mut self, before: Timestamp, limit: usize) -> usize {
        let first = (removed::day_of(before), i64::MIN);
        let old: Vec<_> = self.removed.range(..first).take(limit).copied().collect();
        for one in &old {
            self.removed.remove(one);
        }
        old.len()
    }

    /// Keeps a message apart, unless one of this name is.
    pub fn keep_apart(&mut self, apart: &Apart) {
        if !self.apart.iter().any(|kept| kept.name == apart.name) {
            self.apart.push(apart.clone());
            self.apart.sort_by(|one, other| (one.at, &one.name).cmp(&(other.at, &other.name)));
        }
    }

    /// What is kept apart, after this one.
    #[must_use]
    pub fn apart(&self, after: Option<&Apart>, limit: usize) -> Vec<Apart> {
        let is_after = |one: &&Apart| after.is_none_or(|after| (one.at, &one.name) > (after.at, &after.name));
        self.apart.iter().filter(is_after).take(limit).cloned().collect()
    }

    /// Lets go of messages.
    pub fn drop_apart(&mut self, apart: &[Apart]) {
        self.apart.retain(|kept| !apart.iter().any(|one| one.name == kept.name));
    }

    /// Rewrites a watermark; says whether it was as it must be.
    pub fn beat(&mut self, beat: Beat) -> bool {
        let follows = beat.follows(self.watermarks.get(&beat.node).copied());
        if follows {
            self.watermarks.insert(beat.node, beat.next);
        }
        follows
    }

    /// Keeps a quarantine, unless one of this id is.
    pub fn declare_quarantine(&mut self, quarantine: &Quarantine) {
        if !self.quarantines.iter().any(|kept| kept.id == quarantine.id) {
            self.quarantines.push(quarantine.clone());
            self.quarantines
                .sort_by(|one, other| (one.declared_at, &one.id).cmp(&(other.declared_at, &other.id)));
        }
    }

    /// Ends a quarantine; says whether it was active.
    pub fn release_quarantine(&mut self, id: &str, at: Timestamp) -> bool {
        let is_active = |kept: &&mut Quarantine| &*kept.id == id && kept.released_at.is_none();
        self.quarantines.iter_mut().find(is_active).map(|kept| kept.released_at = Some(at)).is_some()
    }

    /// How many rows are in each state.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let mut counts = Counts::default();
        for record in self.records() {
            *counts.of_state(record.state.kind()) += 1;
            counts.parked += u64::from(is_parked(record));
        }
        counts
    }
}

/// Settled, and past retention by `now`. The store's own last word before a row is gone for ever.
fn is_removable(record: &Record, now: Timestamp) -> bool {
    let settled =
        matches!(record.state.kind(), StateKind::Completed | StateKind::FailedRetryable | StateKind::Expired);
    settled && record.expires_at.is_some_and(|end| end <= now)
}

fn is_parked(record: &Record) -> bool {
    matches!(&record.state, State::Unknown(doubt) if doubt.parked)
}

/// A store in this process's memory. Clones are handles on the same rows. Nothing survives the process.
#[derive(Clone, Debug)]
pub struct MemoryStore {
    model: Arc<Mutex<Model>>,
    watermark: Arc<Watermark>,
    clock: Clock,
}

impl MemoryStore {
    /// All that it holds, as a backup would have it. For tests.
    #[must_use]
    pub fn backup(&self) -> Model {
        self.model().clone()
    }

    /// Sets everything back to a backup, under those who use it. For tests.
    pub fn restore(&self, backup: &Model) {
        self.model().clone_from(backup);
    }

    /// Another handle on the same rows, as another process would have it.
    #[must_use]
    pub fn another_handle(&self) -> Self {
        Self { watermark: Arc::default(), ..self.clone() }
    }

    /// An empty store on the machine's clock.
    #[must_use]
    pub fn new() -> Self {
        Self::with_clock(Clock::system())
    }

    /// An empty store on this clock.
    #[must_use]
    pub fn with_clock(clock: Clock) -> Self {
        Self { model: Arc::default(), watermark: Arc::default(), clock }
    }

    /// A poisoned lock means that a thread panicked between two statements that cannot panic; the rows are whole.
    fn model(&self) -> MutexGuard<'_, Model> {
        self.model.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl Store for MemoryStore {
    fn capability(&self) -> Capability {
        Capability {
            durability: Durability::None,
            sharing: Sharing::Process,
            writing: Writing::Awaits { at_once: 1 },
        }
    }

    async fn apply(&self, batch: &[Write]) -> Result<Vec<Outcome>> {
        let now = self.clock.now();
        let mut model = self.model();
        Ok(batch.iter().map(|write| model.apply(write, now)).collect())
    }

    async fn read(&self, ids: &[RecordId]) -> Result<Vec<Result<Option<Record>>>> {
        let model = self.model();
        Ok(ids.iter().map(|id| Ok(model.read(*id).cloned())).collect())
    }

    async fn due_in(&self, what: Due, moments: Moments, limit: usize) -> Result<Scan> {
        Ok(self.model().due(what, moments, limit))
    }

    async fn doubted_except(&self, except: &[Operation], moments: Moments, limit: usize) -> Result<Scan> {
        Ok(self.model().doubted_except(except, moments, limit))
    }

    async fn waiting(&self, turn: &Turn, now: Timestamp) -> Result<Waiting> {
        Ok(self.model().waiting(turn, now))
    }

    async fn backlog(&self) -> Result<Backlog> {
        Ok(self.model().backlog())
    }

    async fn doubts(&self) -> Result<Doubts> {
        Ok(self.model().doubts())
    }

    async fn browse(&self, filter: &Filter, after: Option<&Cursor>, limit: usize) -> Result<Page> {
        self.model().browse(filter, after, limit)
    }

    async fn counts(&self) -> Result<Counts> {
        Ok(self.model().counts())
    }

    async fn tell(&self, entries: &[Entry]) -> Result<()> {
        let mut model = self.model();
        for entry in entries {
            model.tell(entry);
        }
        Ok(())
    }

    async fn story(&self, id: RecordId, limit: usize) -> Result<Vec<Entry>> {
        Ok(self.model().story(id, limit))
    }

    async fn drop_entries(&self, before: Timestamp, limit: usize) -> Result<usize> {
        Ok(self.model().drop_entries(before, limit))
    }

    async fn entries(&self, span: TimeSpan, after: Option<EntryPlace>, limit: usize) -> Result<EntryPage> {
        Ok(self.model().entries(span, after, limit))
    }

    async fn removed(&self, ids: &[RecordId], since: Timestamp) -> Result<Vec<Option<Timestamp>>> {
        let model = self.model();
        Ok(ids.iter().map(|id| model.removed(*id, since)).collect())
    }

    async fn drop_removed(&self, before: Timestamp, limit: usize) -> Result<usize> {
        Ok(self.model().drop_removed(before, limit))
    }

    async fn keep_apart(&self, apart: &Apart) -> Result<()> {
        self.model().keep_apart(apart);
        Ok(())
    }

    async fn apart(&self, after: Option<&Apart>, limit: usize) -> Result<Vec<Apart>> {
        Ok(self.model().apart(after, limit))
    }

    async fn drop_apart(&self, apart: &[Apart]) -> Result<()> {
        self.model().drop_apart(apart);
        Ok(())
    }

    async fn check_history(&self) -> Result<History> {
        let mut model = self.model();
        let Some(beat) = self.watermark.beat() else { return Ok(History::Lost) };
        Ok(self.watermark.took_effect(beat, model.beat(beat)))
    }

    async fn leave(&self) -> Result<()> {
        if let Some(beat) = self.watermark.beat() {
            self.model().watermarks.remove(&beat.node);
        }
        Ok(())
    }

    async fn declare_quarantine(&self, quarantine: &Quarantine) -> Result<()> {
        self.model().declare_quarantine(quarantine);
        Ok(())
    }

    async fn quarantines(&self) -> Result<Vec<Quarantine>> {
        Ok(self.model().quarantines.clone())
    }

    async fn release_quarantine(&self, id: &str, at: Timestamp) -> Result<bool> {
        Ok(self.model().release_quarantine(id, at))
    }

    async fn clock(&self) -> Result<Timestamp> {
        Ok(self.clock.now())
    }

    fn local_clock(&self) -> Option<Clock> {
        Some(self.clock.clone())
    }

    fn signals(&self) -> Option<Arc<dyn Signals>> {
        None
    }

    fn realm(&self) -> Option<Realm> {
        None
    }
}
