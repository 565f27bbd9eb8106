//! The memory store passes the suite; and the suite can fail.

use oncegate_conformance::Harness;
use oncegate_conformance::histories::equal_the_model;
use oncegate_core::identity::RecordId;
use oncegate_core::record::Record;
use oncegate_core::time::Timestamp;
use oncegate_store::drive::read_one;
use oncegate_store::memory::MemoryStore;
use oncegate_store::{
    Capability, Counts, Cursor, Due, Effect, Filter, Kind, Outcome, Page, Result, Scan, Store, StoreError,
    Write,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

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

/// How a broken store is broken.
#[derive(Clone, Copy)]
enum Flaw {
    /// Every fifth batch lands and is reported as an error that says this.
    ErrorAfterLanding(Effect),
    /// Swaps do not look at the version.
    SwapsBlindly,
    /// Every fifth batch is acknowledged and lost.
    LosesWrites,
}

#[derive(Clone)]
struct Broken {
    inner: MemoryStore,
    flaw: Flaw,
    calls: Arc<AtomicUsize>,
}

impl Broken {
    fn new(flaw: Flaw) -> Self {
        Self { inner: MemoryStore::new(), flaw, calls: Arc::default() }
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
            Flaw::LosesWrites if is_fifth => Ok(vec![Outcome::Applied; batch.len()]),
            Flaw::SwapsBlindly => {
                let mut outcomes = Vec::new();
                for write in batch {
                    let mut write = write.clone();
                    if let Write::Swap { expect, record } = &mut write
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
        self.inner.read(ids).await
    }

    async fn due(&self, what: Due, now: Timestamp, limit: usize) -> Result<Scan> {
        self.inner.due(what, now, limit).await
    }

    async fn browse(&self, filter: &Filter, after: Option<&Cursor>, limit: usize) -> Result<Page> {
        self.inner.browse(filter, after, limit).await
    }

    async fn counts(&self) -> Result<Counts> {
        self.inner.counts().await
    }

    async fn clock(&self) -> Result<Timestamp> {
        self.inner.clock().await
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
                self.0.clone()
            }
        }
    };
}

broken_harness!(Liar, Flaw::ErrorAfterLanding(Effect::None));
broken_harness!(Honest, Flaw::ErrorAfterLanding(Effect::Unknown));
broken_harness!(Blind, Flaw::SwapsBlindly);
broken_harness!(Forgetful, Flaw::LosesWrites);

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

/// Every bullet of the contract names a case, and every case is named: promises and proofs are one list.
#[test]
fn the_contract_and_the_cases_are_one_list() {
    macro_rules! names {
        ($($case:ident)*) => { [$(stringify!($case)),*] };
    }
    let cases = oncegate_conformance::for_each_case! { [names] };
    let contract = include_str!("../../store/src/lib.rs");
    let named: Vec<_> = contract
        .split("(`")
        .skip(1)
        .filter_map(|rest| rest.split_once("`)").map(|(name, _)| name))
        .filter(|name| name.chars().all(|c| c.is_ascii_lowercase() || c == '_'))
        .collect();
    for name in &named {
        assert!(cases.contains(name), "the contract names {name}, which is no case");
    }
    // Two cases are about the whole rather than about one promise.
    let whole = ["the_rules_hold_over_this_store", "random_histories_equal_the_model"];
    for case in cases.iter().filter(|case| !whole.contains(case)) {
        assert!(named.contains(case), "no promise of the contract names {case}");
    }
}
