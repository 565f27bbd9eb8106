//! What the tests have in common: routes, requests, answers, and clocks that are turned by hand.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use oncegate_core::decide::{Arrival, Decision, Event, Finding, Grounds, Retry, Verdict};
use oncegate_core::fingerprint::{self, Content, Mode};
use oncegate_core::identity::RecordId;
use oncegate_core::key::Key;
use oncegate_core::policy::{Policy, Profile};
use oncegate_core::record::{Reason, Record, StateKind};
use oncegate_core::response::{Answer, Response};
use oncegate_core::scope::{Address, Operation, Scope};
use oncegate_core::time::{Now, Timestamp};
use oncegate_engine::{
    Arrived, BackgroundWorkers, Engine, Held, NodeClock, Options, Route, Settled, Settlement,
};
use oncegate_store::Store;
use oncegate_store::clock::Clock;
use oncegate_store::faulty::Faulty;
use oncegate_store::memory::MemoryStore;

/// Longer than anything here takes; for what must not be waited for.
pub(crate) const HOUR: Duration = Duration::from_hours(1);
/// A bound on what a test waits for. Reached only by a test that fails.
pub(crate) const SOON: Duration = Duration::from_secs(20);

/// A store that fails when told to.
pub(crate) type Shaky = Faulty<MemoryStore>;

pub(crate) fn shaky() -> Shaky {
    Faulty::new(MemoryStore::new())
}

/// The same, on a clock that is turned by hand.
pub(crate) fn shaky_on(hand: &Hand) -> Shaky {
    Faulty::new(MemoryStore::with_clock(hand.clock()))
}

/// An engine without background workers: what a test does not do by hand must not happen.
pub(crate) async fn start<S: Store>(store: S, options: Options) -> Engine<S> {
    let options = Options { workers: BackgroundWorkers::None, ..options };
    Engine::start(store, options).await.unwrap()
}

/// Options under which a reserve in doubt is given up at once.
pub(crate) fn impatient() -> Options {
    Options { doubt_patience: Duration::ZERO, ..Options::default() }
}

pub(crate) fn ietf() -> Route {
    route(|_| ())
}

pub(crate) fn lenient() -> Route {
    Route::of_profile(Profile::Lenient, operation())
}

/// A route under `ietf` but for what `change` changes.
pub(crate) fn route(change: impl FnOnce(&mut Policy)) -> Route {
    let mut policy = Profile::Ietf.policy();
    change(&mut policy);
    Route::new("ietf", policy, operation())
}

/// A route whose duplicates wait.
pub(crate) fn lenient_but(change: impl FnOnce(&mut Policy)) -> Route {
    let mut policy = Profile::Lenient.policy();
    change(&mut policy);
    Route::new("lenient", policy, operation())
}

fn operation() -> Operation {
    Operation::new("POST /payments").unwrap()
}

/// A request of the tenant `acme`, always with the same body.
pub(crate) fn request(route: &Route, key: &str) -> Arrival {
    request_of(route, "acme", key, "100 for Ada")
}

pub(crate) fn request_of(route: &Route, tenant: &str, key: &str, body: &str) -> Arrival {
    let content =
        Content { method: "POST", path: "/payments", query: None, content_type: None, body: body.as_bytes() };
    let fingerprint = fingerprint::of(&Mode::Raw, &content).unwrap();
    let key = Key::from_text(key).unwrap();
    route.arrival(route.scope(tenant).unwrap(), key, fingerprint, None)
}

pub(crate) fn scope(route: &Route) -> Scope {
    route.scope("acme").unwrap()
}

pub(crate) fn id(route: &Route, key: &str) -> RecordId {
    RecordId::of(&Address { scope: scope(route), key: Key::from_text(key).unwrap() })
}

pub(crate) fn answer(body: &str) -> Answer {
    let headers = vec![("set-of".to_owned(), b"\xff".to_vec()), ("set-of".to_owned(), b"".to_vec())];
    Answer::Kept(Response { status: 201, headers, body: body.as_bytes().to_vec() })
}

pub(crate) fn complete(body: &str) -> Settlement {
    Settlement::Complete(Arc::new(answer(body)))
}

pub(crate) fn release() -> Settlement {
    Settlement::Release { reason: Reason::new("refused", "connection refused"), backoff: Duration::ZERO }
}

pub(crate) fn doubt() -> Settlement {
    Settlement::Doubt(Reason::new("timeout", "no answer"))
}

/// Arrives, and must be granted the lease.
pub(crate) async fn held<S: Store>(engine: &Engine<S>, route: &Route, key: &str) -> Held<S> {
    granted(engine.arrive(route, request(route, key)).await.unwrap())
}

/// Arrives, and must be answered by a replay.
pub(crate) async fn replayed<S: Store>(engine: &Engine<S>, route: &Route, key: &str) -> Arc<Answer> {
    replay(engine.arrive(route, request(route, key)).await.unwrap())
}

pub(crate) fn granted<S: Store>(arrived: Arrived<S>) -> Held<S> {
    match arrived {
        Arrived::Execute(held) => *held,
        other => panic!("no lease but {other:?}"),
    }
}

pub(crate) fn replay<S: Store>(arrived: Arrived<S>) -> Arc<Answer> {
    match arrived {
        Arrived::Replay { answer, .. } => answer,
        other => panic!("no replay but {other:?}"),
    }
}

/// Settles, and must be done.
pub(crate) async fn done<S: Store>(held: Held<S>, settlement: Settlement) -> Record {
    match held.settle(settlement).await {
        Settled::Done(row) => Arc::unwrap_or_clone(row),
        Settled::Fenced(row) => panic!("fenced by {row:?}"),
    }
}

/// Runs the whole life of a key: granted, begun, completed with `body`.
pub(crate) async fn completed<S: Store>(engine: &Engine<S>, route: &Route, key: &str, body: &str) {
    let mut held = held(engine, route, key).await;
    held.begin().unwrap();
    done(held, complete(body)).await;
}

pub(crate) async fn row<S: Store>(engine: &Engine<S>, id: RecordId) -> Record {
    engine.read(id).await.unwrap().unwrap()
}

pub(crate) async fn state<S: Store>(engine: &Engine<S>, id: RecordId) -> StateKind {
    row(engine, id).await.state.kind()
}

/// The sweeper looks at the row.
pub(crate) async fn sweep<S: Store>(engine: &Engine<S>, id: RecordId) -> Decision {
    engine.drive(id, &Event::Sweep).await.unwrap().decision
}

/// An operator says that the attempt did not happen.
pub(crate) async fn did_not_happen<S: Store>(engine: &Engine<S>, id: RecordId) -> Decision {
    let row = row(engine, id).await;
    let otherwise = Retry { at: row.created_at, park_after: 1 };
    let grounds = Grounds::Operator { version: row.version };
    let finding = Finding::DidNotHappen { grounds, backoff: Duration::ZERO, otherwise };
    verdict(engine, &row, finding).await
}

/// A probe says that it happened.
pub(crate) async fn happened<S: Store>(engine: &Engine<S>, id: RecordId, body: &str) -> Decision {
    let row = row(engine, id).await;
    verdict(engine, &row, Finding::Happened(Arc::new(answer(body)))).await
}

async fn verdict<S: Store>(engine: &Engine<S>, row: &Record, finding: Finding) -> Decision {
    let verdict = Verdict { life: row.life, source: "test".into(), reference: None, finding };
    engine.drive(row.id, &Event::Verdict(verdict)).await.unwrap().decision
}

/// Polls once, and must not be ready: from here on it waits for something.
pub(crate) async fn must_wait<F: Future + Unpin>(future: &mut F) {
    assert!(poll_once(future).await.is_none(), "it does not wait");
}

pub(crate) async fn poll_once<F: Future + Unpin>(future: &mut F) -> Option<F::Output> {
    tokio::select! {
        biased;
        output = future => Some(output),
        () = std::future::ready(()) => None,
    }
}

/// The output, or the test fails.
pub(crate) async fn soon<F: Future>(future: F) -> F::Output {
    tokio::time::timeout(SOON, future).await.unwrap()
}

/// A clock that stands still until it is turned.
#[derive(Clone)]
pub(crate) struct Hand(Arc<AtomicI64>);

impl Hand {
    pub(crate) fn new() -> Self {
        Self(Arc::new(AtomicI64::new(1_800_000_000_000_000)))
    }

    pub(crate) fn turn(&self, by: Duration) {
        self.0.fetch_add(i64::try_from(by.as_micros()).unwrap(), Ordering::SeqCst);
    }

    pub(crate) fn turn_back(&self, by: Duration) {
        self.0.fetch_sub(i64::try_from(by.as_micros()).unwrap(), Ordering::SeqCst);
    }

    pub(crate) fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.0.load(Ordering::SeqCst))
    }

    /// As a store's own clock.
    pub(crate) fn clock(&self) -> Clock {
        let hand = self.clone();
        Clock::from_fn(move || hand.now())
    }

    /// As a node knows it: `late` behind the truth, with this error.
    pub(crate) fn late(&self, late: Duration, error: Duration) -> NodeClock {
        let hand = self.clone();
        NodeClock::from_fn(move || Now { at: hand.now().minus(late), error })
    }

    /// As a node knows it: `early` ahead of the truth, with this error.
    pub(crate) fn early(&self, early: Duration, error: Duration) -> NodeClock {
        let hand = self.clone();
        NodeClock::from_fn(move || Now { at: hand.now().plus(early), error })
    }
}
