//! Random histories: any store beside the memory model, with faults, until they differ.
//!
//! A history is a proptest state machine. Its reference only steers what is generated (so that swaps often fit). What is
//! *true* is an account kept from what the store said: outcomes are believed, an error that says "nothing was written"
//! is believed, and an error that says "it may have landed" leaves its writes in doubt, to be explained by what is read
//! later. A row that no belief explains ends the history. So a store that says "did not" of what did is found out.
//!
//! Some writes carry entries of the audit trail, and the story of each record is read beside its row: both must be explained, by the
//! same writes. So an entry is there exactly if its change is, and nothing about it is left open: where several writes in doubt
//! explain what is read, they explain the same row and the same story.

use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use oncegate_core::audit::{Act, Entry};
use oncegate_core::identity::{RecordId, Version};
use oncegate_core::record::{Record, StateKind};
use oncegate_core::time::Timestamp;
use oncegate_store::faulty::{Fault, Faulty};
use oncegate_store::memory::Model;
use oncegate_store::{Due, Effect, Filter, Moments, Outcome, Store, StoreError, Write};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use proptest_state_machine::{ReferenceStateMachine, StateMachineTest};
use tokio::runtime::Runtime;

use crate::Harness;
use crate::samples::{FAR_AHEAD, LONG_AGO, entry, id, moved_to, parked, reserved};

/// Runs `cases` random histories; the error shows the shortest one that differs.
pub fn equal_the_model<H: Harness>(cases: u32) -> Result<(), String> {
    let config = Config { cases, failure_persistence: None, max_shrink_iters: 2_000, ..Config::default() };
    let histories = Generator::sequential_strategy(1..40);
    let run = |(initial, moves, seen)| {
        History::<H>::test_sequential(config.clone(), initial, moves, seen);
        Ok(())
    };
    TestRunner::new(config.clone()).run(&histories, run).map_err(|error| error.to_string())
}

/// Runs one history, of steps that are given. Panics where the store and the model differ.
pub fn replay<H: Harness>(moves: Vec<Move>) {
    History::<H>::test_sequential(Config::default(), Guess::default(), moves, None);
}

/// One step of a history.
#[derive(Clone, Debug)]
pub enum Move {
    /// A batch, and what goes wrong with it.
    Apply(Vec<Write>, Fault),
    /// The oldest late write lands.
    Land,
    /// The crashed store comes back.
    Revive,
    /// The store is closed and opened again.
    Reopen,
    /// The next read fails; then all is read again.
    FailRead,
}

/// Few keys, so that writes meet.
const KEYS: [&str; 5] = ["a", "b", "c", "d", "e"];
/// Between [`LONG_AGO`] and [`FAR_AHEAD`], as every store's clock is.
const PRESENT: Timestamp = Timestamp::from_micros(2_500_000_000_000_000);

/// Steers what is generated.
struct Generator;

#[derive(Clone, Debug, Default)]
struct Guess {
    model: Model,
    late: Vec<Vec<Write>>,
}

impl ReferenceStateMachine for Generator {
    type State = Guess;
    type Transition = Move;

    fn init_state() -> BoxedStrategy<Guess> {
        Just(Guess::default()).boxed()
    }

    fn transitions(guess: &Guess) -> BoxedStrategy<Move> {
        let batch = proptest::collection::vec(writes(&guess.model), 1..6);
        prop_oneof![
            12 => (batch, faults()).prop_map(|(batch, fault)| Move::Apply(batch, fault)),
            2 => Just(Move::Land),
            2 => Just(Move::Revive),
            1 => Just(Move::Reopen),
            1 => Just(Move::FailRead),
        ]
        .boxed()
    }

    fn apply(mut guess: Guess, step: &Move) -> Guess {
        let lands = match step {
            Move::Apply(batch, Fault::LandsLate) => {
                guess.late.push(batch.clone());
                None
            }
            Move::Apply(_, Fault::BeforeWrite | Fault::ConnectionLost | Fault::CrashBefore) => None,
            Move::Apply(batch, _) => Some(batch.clone()),
            Move::Land if !guess.late.is_empty() => Some(guess.late.remove(0)),
            Move::Land | Move::Revive | Move::Reopen | Move::FailRead => None,
        };
        for write in lands.iter().flatten() {
            let _ = guess.model.apply(write, PRESENT);
        }
        guess
    }
}

fn faults() -> impl Strategy<Value = Fault> {
    prop_oneof![
        10 => Just(Fault::None),
        1 => Just(Fault::BeforeWrite),
        2 => Just(Fault::AcknowledgementLost),
        1 => Just(Fault::ConnectionLost),
        2 => Just(Fault::LandsLate),
        1 => Just(Fault::Delayed),
        1 => Just(Fault::CrashBefore),
        1 => Just(Fault::CrashAfter),
    ]
}

/// A write of one of the keys: an insert, a swap or a removal, over the right version or a wrong one.
fn writes(model: &Model) -> BoxedStrategy<Write> {
    let rows: BTreeMap<_, _> = KEYS.iter().map(|key| (*key, model.read(id(key)).cloned())).collect();
    let contents = (any::<u8>(), prop::sample::select(&StateKind::ALL[..]), any::<bool>(), any::<bool>());
    // Few moments and nodes, so that entries meet too.
    let told = proptest::option::of((0..4_u64, prop::sample::select(&Act::ALL[..4]), 0..2_u8));
    (prop::sample::select(&KEYS[..]), 0..10_u8, contents, told)
        .prop_map(move |(key, choice, (n, state, is_past, is_parked), told)| {
            let base = rows[key].clone().unwrap_or_else(|| reserved(key, u64::from(n), LONG_AGO));
            let moment = if is_past { LONG_AGO.plus(Duration::from_secs(u64::from(n))) } else { FAR_AHEAD };
            let mut next = moved_to(&base, state, moment);
            if is_parked && state == StateKind::Unknown {
                next = Record { version: next.version, ..parked(&base) };
            }
            next.attempts = u32::from(n);
            let wrong = Version::from_raw(base.version.as_raw() + 7);
            let told = told.map(|(second, act, node)| Entry {
                node: format!("node-{node}").into(),
                ..entry(&next, LONG_AGO.plus(Duration::from_secs(second)), act)
            });
            let write = match choice {
                0..=3 => Write::insert(Arc::new(next)),
                4..=6 => Write::swap(base.version, Arc::new(next)),
                7 => Write::swap(wrong, Arc::new(next)),
                8 => Write::remove(base.id, base.version, Duration::ZERO),
                _ => Write::remove(base.id, wrong, Duration::ZERO),
            };
            write.telling(told)
        })
        .boxed()
}

/// The store under test, and the account of what must be true of it.
struct History<H>(PhantomData<H>);

struct Running<H: Harness> {
    runtime: Runtime,
    harness: H,
    store: Faulty<H::Store>,
    truth: Model,
    doubts: BTreeMap<RecordId, Doubts>,
    /// What there was of each of the keys after the last step.
    observed: Vec<Observed>,
}

/// What may still land on one row, or have landed unseen: each entry a list of batches that is possible, by what was read so
/// far. Two batches may explain the same row, and which of them did shows only later, if ever.
struct Doubts(Vec<Vec<Vec<Write>>>);

impl Default for Doubts {
    fn default() -> Self {
        Self(vec![Vec::new()])
    }
}

impl Doubts {
    fn add(&mut self, writes: &[Write]) {
        for possible in &mut self.0 {
            possible.push(writes.to_vec());
        }
    }

    /// The row or its story is other than the account says: one batch in doubt has landed, its first writes, in their order, as
    /// many as it takes. None remain possible if none explains both.
    fn explain(&mut self, id: RecordId, truth: &Model, observed: &Observed) -> Option<Model> {
        let mut explained = None;
        let mut left = Vec::new();
        for possible in &self.0 {
            for (n, writes) in possible.iter().enumerate() {
                let landed = (1..=writes.len()).find_map(|count| {
                    let mut after = truth.clone();
                    for write in &writes[..count] {
                        let _ = after.apply(write, PRESENT);
                    }
                    (of_model(&after, id) == *observed).then_some(after)
                });
                if let Some(after) = landed {
                    let mut others = possible.clone();
                    others.remove(n);
                    if !left.contains(&others) {
                        left.push(others);
                    }
                    explained = Some(after);
                }
            }
        }
        self.0 = left;
        explained
    }
}

impl<H: Harness> StateMachineTest for History<H> {
    type SystemUnderTest = Running<H>;
    type Reference = Generator;

    fn init_test(_: &Guess) -> Running<H> {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime starts");
        let harness = H::start();
        let store = Faulty::new(runtime.block_on(harness.open()));
        let observed = KEYS.map(|key| of_model(&Model::default(), id(key))).to_vec();
        Running { runtime, harness, store, truth: Model::default(), doubts: BTreeMap::new(), observed }
    }

    fn apply(mut running: Running<H>, _: &Guess, step: Move) -> Running<H> {
        match step {
            Move::Apply(batch, fault) => running.apply(&batch, fault),
            // A late write may fail of itself as well: it stays in doubt either way.
            Move::Land => drop(running.runtime.block_on(running.store.land())),
            Move::Revive => running.store.revive(),
            Move::Reopen => {
                let reopened = running.runtime.block_on(running.harness.open());
                running.store = Faulty::new(reopened);
            }
            Move::FailRead => {
                running.store.fail_reads(1);
                let read = running.runtime.block_on(running.store.read(&[id("a")]));
                assert!(read.is_err_and(|error| error.effect() == Effect::None), "a read writes nothing");
            }
        }
        running.explain();
        running
    }

    fn check_invariants(running: &Running<H>, _: &Guess) {
        running.compare();
    }
}

impl<H: Harness> Running<H> {
    fn apply(&mut self, batch: &[Write], fault: Fault) {
        self.store.queue(fault);
        let applied = if fault == Fault::Delayed {
            self.apply_delayed(batch)
        } else {
            self.runtime.block_on(self.store.apply(batch))
        };
        match applied {
            Ok(outcomes) => {
                assert_eq!(outcomes.len(), batch.len(), "one outcome per write");
                let expected: Vec<_> = batch.iter().map(|write| self.truth.apply(write, PRESENT)).collect();
                for ((write, got), expected) in batch.iter().zip(outcomes).zip(expected) {
                    self.check_outcome(write.id(), &got, &expected);
                }
            }
            Err(error) if error.effect() == Effect::None => {}
            Err(_) => {
                for id in KEYS.map(id) {
                    let own: Vec<_> = batch.iter().filter(|write| write.id() == id).cloned().collect();
                    if !own.is_empty() {
                        self.doubts.entry(id).or_default().add(&own);
                    }
                }
            }
        }
    }

    /// Submits the batch, sees that nothing has landed while it is held back, and lets it go.
    fn apply_delayed(&self, batch: &[Write]) -> Result<Vec<Outcome>, StoreError> {
        self.runtime.block_on(async {
            let mut apply = std::pin::pin!(self.store.apply(batch));
            let mut context = Context::from_waker(Waker::noop());
            // A store that is down answers at once.
            if let Poll::Ready(answer) = apply.as_mut().poll(&mut context) {
                return answer;
            }
            assert_eq!(observe(self.store.inner()).await, self.observed, "held back, yet there");
            self.store.let_go();
            apply.await
        })
    }

    /// A refusal may show the row as it was in its turn, or as the batch left it.
    fn check_outcome(&self, id: RecordId, got: &Outcome, expected: &Outcome) {
        let after = self.truth.read(id).map(|row| Arc::new(row.clone()));
        let newer =
            matches!(expected, Outcome::Refused { .. }) && *got == Outcome::Refused { current: after };
        assert!(got == expected || newer, "{id}: the store says {got:?}, the model {expected:?}");
    }

    /// Lets writes in doubt explain what is there and was not expected.
    fn explain(&mut self) {
        self.observed = self.runtime.block_on(observe(self.store.inner()));
        for (id, observed) in KEYS.map(id).into_iter().zip(&self.observed) {
            if of_model(&self.truth, id) != *observed
                && let Some(doubts) = self.doubts.get_mut(&id)
                && let Some(after) = doubts.explain(id, &self.truth, observed)
            {
                self.truth = after;
            }
        }
    }

    /// Rows, stories, scans, pages and counts are those of the account.
    fn compare(&self) {
        let expected = KEYS.map(|key| of_model(&self.truth, id(key)));
        assert_eq!(self.observed, expected, "rows or stories that nothing explains");
        let store = self.store.inner();
        self.runtime.block_on(async {
            assert_eq!(store.counts().await.expect("counted"), self.truth.counts());
            for what in Due::ALL {
                let found = store.due(what, PRESENT, 100).await.expect("scanned").records;
                let moments: Vec<_> = found.iter().map(|row| what.moment(row)).collect();
                assert!(moments.is_sorted(), "{what:?}: oldest first");
                assert_eq!(
                    by_id(found),
                    by_id(self.truth.due(what, Moments::by(PRESENT), 100).records),
                    "{what:?}"
                );
            }
            for state in [None, Some(StateKind::Completed)] {
                let filter = Filter { state, ..Filter::default() };
                let page = store.browse(&filter, None, 3).await.expect("browsed");
                let model = self.truth.browse(&filter, None, 3).expect("browsed");
                // Several writes of one batch may have explained themselves in another order than they came in.
                assert_eq!(page.records.len(), model.records.len());
                assert_eq!(page.next.is_some(), model.next.is_some());
                assert!(page.records.iter().all(|row| self.truth.read(row.id) == Some(row)));
            }
        });
    }
}

/// A record's row, and its story.
type Observed = (Option<Record>, Vec<Entry>);

/// Longer than any story here.
const STORY_MAX: usize = 1_000;

fn of_model(model: &Model, id: RecordId) -> Observed {
    (model.read(id).cloned(), model.story(id, STORY_MAX))
}

async fn observe(store: &impl Store) -> Vec<Observed> {
    let ids = KEYS.map(id);
    let rows = store.read(&ids).await.expect("the store beneath reads");
    let mut observed = Vec::new();
    for (id, row) in ids.into_iter().zip(rows) {
        let told = store.story(id, STORY_MAX).await.expect("the story is told");
        observed.push((row.expect("the row can be read"), told));
    }
    observed
}

fn by_id(rows: Vec<Record>) -> BTreeMap<RecordId, Record> {
    rows.into_iter().map(|row| (row.id, row)).collect()
}
