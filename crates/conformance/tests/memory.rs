//! The memory store passes the suite; and the suite can fail.

use oncegate_conformance::Harness;
use oncegate_conformance::histories::{Move, equal_the_model, replay};
use oncegate_conformance::samples::{LONG_AGO, id, moved_to, reserved};
use oncegate_core::audit::Entry;
use oncegate_core::identity::RecordId;
use oncegate_core::record::{Record, StateKind};
use oncegate_core::scope::Operation;
use oncegate_core::time::Timestamp;
use oncegate_store::clock::Clock;
use oncegate_store::drive::read_one;
use oncegate_store::faulty::Fault;
use oncegate_store::memory::MemoryStore;
use oncegate_store::shared_cache::Realm;
use oncegate_store::signals::Signals;
use oncegate_store::{
    Apart, Backlog, Capability, Change, Counts, Cursor, Doubts, Due, Effect, EntryPage, EntryPlace, Filter,
    History, Kind, Moments, Outcome, Page, Quarantine, Result, Scan, Store, StoreError, TimeSpan, Turn,
    Waiting, Write,
};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

struct Memory(MemoryStore);

impl Harness for Memory {
    type Store = MemoryStore;

    fn start() -> Self {
        Self(MemoryStore::new())
    }

    async fn open(&self) -> MemoryStore {
        self.0.clone()
    }
}

oncegate_conformance::suite!(memory, Memory);
oncegate_conformance::outbox_suite!(outbox, Memory);

/// Two batches in doubt remove the same row; that the other did it shows when the late one lands and inserts.
#[test]
fn which_of_two_doubtful_batches_landed_may_show_later() {
    let row = moved_to(&reserved("a", 1, LONG_AGO), StateKind::Completed, LONG_AGO);
    let insert = Write::insert(Arc::new(row.clone()));
    let remove = Write::remove(id("a"), row.version, Duration::ZERO);
    replay::<Memory>(vec![
        Move::Apply(vec![insert.clone()], Fault::None),
        Move::Apply(vec![remove.clone(), insert], Fault::LandsLate),
        Move::Apply(vec![remove], Fault::AcknowledgementLost),
        Move::Land,
    ]);
}

/// How a broken store is broken.
#[derive(Clone, Copy)]
enum Flaw {
    /// Every fifth batch lands and is reported as an error that says this.
    ErrorAfterLanding(Effect),
    /// Swaps do not look at the version.
    SwapsBlindly,
    /// Every fifth batch is acknowledged and lost.
    LosesWrites,
    /// Every handle remembers what it has read.
    CachesReads,
    /// Scans return the youngest of what is due.
    ScansTheYoungest,
    /// Scans show what is excepted.
    ExceptsNothing,
    /// A scan says that it came to the end if it has fewer rows than its limit.
    ScansToTheEnd,
    /// Scans begin with the first, whatever they are told.
    ScansFromTheFirst,
    /// Who has most waits least.
    TakesNoTurns,
    /// What is parked is counted no more.
    ForgetsTheParked,
    /// Later pages forget the filter.
    PagesForgetTheFilter,
    /// The clock stands still.
    FrozenClock,
    /// What a write would tell is told before it is known whether it is applied.
    TellsOfRefusals,
    /// What a write tells goes missing, now and then.
    LosesEntries,
    /// A page of the trail goes on behind a moment, and not behind an entry.
    SkipsOfOneMoment,
    /// Nothing that was removed is remembered.
    ForgetsRemovals,
}

#[derive(Clone)]
struct Broken {
    inner: MemoryStore,
    flaw: Flaw,
    calls: Arc<AtomicUsize>,
    seen: Arc<Mutex<BTreeMap<RecordId, Option<Record>>>>,
}

impl Broken {
    fn new(flaw: Flaw) -> Self {
        Self { inner: MemoryStore::new(), flaw, calls: Arc::default(), seen: Arc::default() }
    }

    /// Another handle on the same rows, with a memory of its own.
    fn handle(&self) -> Self {
        Self { seen: Arc::default(), ..self.clone() }
    }
}

impl Store for Broken {
    fn capability(&self) -> Capability {
        self.inner.capability()
    }

    async fn apply(&self, batch: &[Write]) -> Result<Vec<Outcome>> {
        let is_fifth = self.calls.fetch_add(1, Ordering::Relaxed) % 5 == 4;
        match self.flaw {
            Flaw::ErrorAfterLanding(effect) if is_fifth => {
                self.inner.apply(batch).await?;
                Err(StoreError::new(Kind::Unavailable, effect, "apply"))
            }
            Flaw::TellsOfRefusals => {
                for entry in batch.iter().filter_map(|write| write.entry.as_ref()) {
                    self.inner.tell(std::slice::from_ref(entry)).await?;
                }
                self.inner.apply(batch).await
            }
            Flaw::LosesEntries if is_fifth => {
                let silent: Vec<_> = batch.iter().map(|write| write.clone().telling(None)).collect();
                self.inner.apply(&silent).await
            }
            Flaw::LosesWrites if is_fifth => Ok(vec![Outcome::Applied; batch.len()]),
            Flaw::SwapsBlindly => {
                let mut outcomes = Vec::new();
                for write in batch {
                    let mut write = write.clone();
                    if let Change::Swap { expect, record } = &mut write.change
                        && let Some(row) = read_one(&self.inner, record.id).await?
                    {
                        *expect = row.version;
                    }
                    outcomes.extend(self.inner.apply(&[write]).await?);
                }
                Ok(outcomes)
            }
            _ => self.inner.apply(batch).await,
        }
    }

    async fn read(&self, ids: &[RecordId]) -> Result<Vec<Result<Option<Record>>>> {
        if !matches!(self.flaw, Flaw::CachesReads) {
            return self.inner.read(ids).await;
        }
        let mut found = Vec::new();
        for id in ids {
            let fresh = read_one(&self.inner, *id).await?;
            let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
            found.push(Ok(seen.entry(*id).or_insert(fresh).clone()));
        }
        Ok(found)
    }

    async fn due_in(&self, what: Due, moments: Moments, limit: usize) -> Result<Scan> {
        match self.flaw {
            Flaw::ScansTheYoungest => {}
            Flaw::ScansToTheEnd => {
                let scan = self.inner.due_in(what, moments, limit).await?;
                return Ok(Scan { is_cut: scan.records.len() >= limit, ..scan });
            }
            Flaw::ScansFromTheFirst => return self.inner.due(what, moments.by, limit).await,
            _ => return self.inner.due_in(what, moments, limit).await,
        }
        let mut scan = self.inner.due_in(what, moments, usize::MAX).await?;
        let surplus = scan.records.len().saturating_sub(limit);
        scan.records.drain(..surplus);
        Ok(scan)
    }

    async fn doubted_except(&self, except: &[Operation], moments: Moments, limit: usize) -> Result<Scan> {
        if matches!(self.flaw, Flaw::ExceptsNothing) {
            return self.inner.due_in(Due::Doubted, moments, limit).await;
        }
        self.inner.doubted_except(except, moments, limit).await
    }

    async fn waiting(&self, turn: &Turn, now: Timestamp) -> Result<Waiting> {
        let waiting = self.inner.waiting(turn, now).await?;
        match self.flaw {
            // Whoever has waited longest goes first, whoever it is.
            Flaw::TakesNoTurns => {
                let mut scan = self.inner.due(Due::Pending, now, turn.limit).await?;
                scan.records.retain(|row| turn.operations.contains(row.operation.as_str()));
                Ok(Waiting { scan, ..waiting })
            }
            _ => Ok(waiting),
        }
    }

    async fn backlog(&self) -> Result<Backlog> {
        self.inner.backlog().await
    }

    async fn doubts(&self) -> Result<Doubts> {
        let doubts = self.inner.doubts().await?;
        match self.flaw {
            // Whatever was parked is done with.
            Flaw::ForgetsTheParked => Ok(Doubts { parked: Backlog::default(), ..doubts }),
            _ => Ok(doubts),
        }
    }

    async fn browse(&self, filter: &Filter, after: Option<&Cursor>, limit: usize) -> Result<Page> {
        match (self.flaw, after) {
            (Flaw::PagesForgetTheFilter, Some(_)) => {
                self.inner.browse(&Filter::default(), after, limit).await
            }
            _ => self.inner.browse(filter, after, limit).await,
        }
    }

    async fn counts(&self) -> Result<Counts> {
        self.inner.counts().await
    }

    async fn tell(&self, entries: &[Entry]) -> Result<()> {
        self.inner.tell(entries).await
    }

    async fn story(&self, id: RecordId, limit: usize) -> Result<Vec<Entry>> {
        self.inner.story(id, limit).await
    }

    async fn drop_entries(&self, before: Timestamp, limit: usize) -> Result<usize> {
        self.inner.drop_entries(before, limit).await
    }

    async fn entries(&self, span: TimeSpan, after: Option<EntryPlace>, limit: usize) -> Result<EntryPage> {
        let after = match self.flaw {
            Flaw::SkipsOfOneMoment => after.map(|after| EntryPlace { arrival: i64::MAX, ..after }),
            _ => after,
        };
        self.inner.entries(span, after, limit).await
    }

    async fn removed(&self, ids: &[RecordId], since: Timestamp) -> Result<Vec<Option<Timestamp>>> {
        match self.flaw {
            Flaw::ForgetsRemovals => Ok(vec![None; ids.len()]),
            _ => self.inner.removed(ids, since).await,
        }
    }

    async fn drop_removed(&self, before: Timestamp, limit: usize) -> Result<usize> {
        self.inner.drop_removed(before, limit).await
    }

    async fn keep_apart(&self, apart: &Apart) -> Result<()> {
        self.inner.keep_apart(apart).await
    }

    async fn apart(&self, after: Option<&Apart>, limit: usize) -> Result<Vec<Apart>> {
        self.inner.apart(after, limit).await
    }

    async fn drop_apart(&self, apart: &[Apart]) -> Result<()> {
        self.inner.drop_apart(apart).await
    }

    async fn check_history(&self) -> Result<History> {
        self.inner.check_history().await
    }

    async fn leave(&self) -> Result<()> {
        self.inner.leave().await
    }

    async fn declare_quarantine(&self, quarantine: &Quarantine) -> Result<()> {
        self.inner.declare_quarantine(quarantine).await
    }

    async fn quarantines(&self) -> Result<Vec<Quarantine>> {
        self.inner.quarantines().await
    }

    async fn release_quarantine(&self, id: &str, at: Timestamp) -> Result<bool> {
        self.inner.release_quarantine(id, at).await
    }

    async fn clock(&self) -> Result<Timestamp> {
        if matches!(self.flaw, Flaw::FrozenClock) {
            static STOPPED: OnceLock<Timestamp> = OnceLock::new();
            let now = self.inner.clock().await?;
            return Ok(*STOPPED.get_or_init(|| now));
        }
        self.inner.clock().await
    }

    fn local_clock(&self) -> Option<Clock> {
        None
    }

    fn signals(&self) -> Option<Arc<dyn Signals>> {
        None
    }

    fn realm(&self) -> Option<Realm> {
        None
    }
}

macro_rules! broken_harness {
    ($name:ident, $flaw:expr) => {
        struct $name(Broken);

        impl Harness for $name {
            type Store = Broken;

            fn start() -> Self {
                Self(Broken::new($flaw))
            }

            async fn open(&self) -> Broken {
                self.0.handle()
            }
        }
    };
}

broken_harness!(Liar, Flaw::ErrorAfterLanding(Effect::None));
broken_harness!(Honest, Flaw::ErrorAfterLanding(Effect::Unknown));
broken_harness!(Blind, Flaw::SwapsBlindly);
broken_harness!(Forgetful, Flaw::LosesWrites);
broken_harness!(Caching, Flaw::CachesReads);
broken_harness!(Youngest, Flaw::ScansTheYoungest);
broken_harness!(Exceptless, Flaw::ExceptsNothing);
broken_harness!(ToTheEnd, Flaw::ScansToTheEnd);
broken_harness!(FromTheFirst, Flaw::ScansFromTheFirst);
broken_harness!(Unfiltered, Flaw::PagesForgetTheFilter);
broken_harness!(Forgetting, Flaw::ForgetsTheParked);
broken_harness!(Turnless, Flaw::TakesNoTurns);
broken_harness!(Frozen, Flaw::FrozenClock);
broken_harness!(Talkative, Flaw::TellsOfRefusals);
broken_harness!(Silent, Flaw::LosesEntries);
broken_harness!(Skipping, Flaw::SkipsOfOneMoment);
broken_harness!(Amnesiac, Flaw::ForgetsRemovals);

/// "May have landed" must never be treated as "did not": a store that says `Effect::None` of what landed is found out,
/// and one that says `Effect::Unknown` of the very same is not.
#[test]
fn a_store_that_lies_about_landing_is_found_out() {
    assert!(equal_the_model::<Honest>(100).is_ok());
    assert!(equal_the_model::<Liar>(100).is_err());
}

#[test]
fn a_store_that_swaps_blindly_or_loses_writes_is_found_out() {
    assert!(equal_the_model::<Blind>(100).is_err());
    assert!(equal_the_model::<Forgetful>(100).is_err());
}

/// An entry is there exactly if its change is.
#[test]
fn a_store_that_tells_too_much_or_too_little_is_found_out() {
    assert!(equal_the_model::<Talkative>(100).is_err());
    assert!(equal_the_model::<Silent>(100).is_err());
}

/// Flaws that one case is there for: with them, that case must fail.
#[test]
fn each_flaw_is_found_out_by_its_case() {
    use oncegate_conformance::{cases, run};
    let fails = |name: &str, case: fn()| {
        assert!(std::panic::catch_unwind(case).is_err(), "{name} does not notice");
    };
    fails("reads_follow_writes", || run::<Caching, _>(cases::reads_follow_writes));
    fails("due_finds_what_is_due", || run::<Youngest, _>(cases::due_finds_what_is_due));
    fails("due_goes_on_from_a_moment", || run::<FromTheFirst, _>(cases::due_goes_on_from_a_moment));
    fails("excepted_operations_hide_no_other", || {
        run::<Exceptless, _>(cases::excepted_operations_hide_no_other);
    });
    fails("a_scan_says_whether_it_came_to_the_end", || {
        run::<ToTheEnd, _>(cases::a_scan_says_whether_it_came_to_the_end);
    });
    fails("lines_take_turns", || run::<Turnless, _>(cases::lines_take_turns));
    fails("no_line_is_passed_over", || run::<Turnless, _>(cases::no_line_is_passed_over));
    fails("the_doubts_are_true", || run::<Forgetting, _>(cases::the_doubts_are_true));
    fails("browsing_filters", || run::<Unfiltered, _>(cases::browsing_filters));
    fails("the_clock_never_runs_backwards", || run::<Frozen, _>(cases::the_clock_never_runs_backwards));
    fails("an_entry_comes_with_its_write", || run::<Talkative, _>(cases::an_entry_comes_with_its_write));
    fails("pages_of_the_trail_show_each_entry_once", || {
        run::<Skipping, _>(cases::pages_of_the_trail_show_each_entry_once);
    });
    fails("a_removal_is_remembered", || run::<Amnesiac, _>(cases::a_removal_is_remembered));
    fails("a_stale_swap_is_refused", || run::<Blind, _>(cases::a_stale_swap_is_refused));
}

/// Every bullet of the contract names a case, and every case is named: promises and proofs are one list.
#[test]
fn the_contract_and_the_cases_are_one_list() {
    macro_rules! names {
        ($($case:ident)*) => { [$(stringify!($case)),*] };
    }
    are_one_list(
        &oncegate_conformance::for_each_case! { [names] },
        include_str!("../../store/src/lib.rs"),
        // Two cases are about the whole rather than about one promise.
        &["the_rules_hold_over_this_store", "random_histories_equal_the_model"],
    );
    are_one_list(
        &oncegate_conformance::for_each_outbox_case! { [names] },
        include_str!("../../store/src/jobs.rs"),
        &[],
    );
}

fn are_one_list(cases: &[&str], contract: &str, whole: &[&str]) {
    let named: Vec<_> = contract
        .split("(`")
        .skip(1)
        .filter_map(|rest| rest.split_once("`)").map(|(name, _)| name))
        .filter(|name| name.chars().all(|c| c.is_ascii_lowercase() || c == '_'))
        .collect();
    for name in &named {
        assert!(cases.contains(name), "the contract names {name}, which is no case");
    }
    for case in cases.iter().filter(|case| !whole.contains(case)) {
        assert!(named.contains(case), "no promise of the contract names {case}");
    }
}
