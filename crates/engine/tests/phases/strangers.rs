//! What no handler of this service can go on with stays due, for another service: it stands in nobody's way.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use oncegate_core::decide::{Event, Next, decide};
use oncegate_core::policy::{Credentials, Profile};
use oncegate_core::record::{Record, StateKind, StoredRequest};
use oncegate_core::scope::Operation;
use oncegate_core::time::{Now, Timestamp};
use oncegate_engine::{Engine, Finisher, Finishing, Held, Left, Options, Route, Runs, Worker, WorkerOptions};
use oncegate_store::memory::MemoryStore;
use oncegate_store::{Store, Write};
use oncegate_test_servers::until;

use crate::stores::{Schema, sqlite};
use crate::world::{SOON, complete, request, soon, start, state};

/// A pass looks at fifteen batches.
const BATCH: usize = 4;
const PASS: usize = 15 * BATCH;
/// As many as no pass sees behind.
const STRANGERS: usize = 3 * PASS;
const OURS: usize = 3;

/// Finishes what is on its route, in one step.
struct Finishes {
    route: Route,
    runs: AtomicUsize,
}

impl<S: Store> Finisher<S> for Finishes {
    fn runs(&self) -> Runs {
        Runs { operations: vec![self.route.operation().clone()].into(), resumes: true }
    }

    fn route(&self, record: &Record) -> Option<Route> {
        (record.operation == *self.route.operation()).then(|| self.route.clone())
    }

    fn finish(&self, mut held: Box<Held<S>>, _: Left) -> Finishing<'_> {
        Box::pin(async move {
            self.runs.fetch_add(1, Ordering::SeqCst);
            held.begin().unwrap();
            drop(held.settle(complete("done")).await);
        })
    }
}

fn route(operation: &str) -> Route {
    Route::of_profile(Profile::Resume, Operation::new(operation).unwrap())
}

/// An attempt that was left long ago, at this second.
fn left(route: &Route, key: &str, second: i64) -> Record {
    let mut arrival = request(route, key);
    let (method, target) = ("POST".into(), "/payments".into());
    arrival.request = Some(StoredRequest {
        method,
        target,
        headers: vec![],
        body: vec![],
        credentials: Some(Credentials::Kept),
    });
    let then = Timestamp::from_micros(1_600_000_000_000_000 + 1_000_000 * second);
    match decide(None, &Event::Arrive(arrival), Now::exact(then)).next {
        Next::Put(record) => Arc::unwrap_or_clone(record),
        other => panic!("not reserved but {other:?}"),
    }
}

/// Many that are due earlier, half of them in one and the same moment; and a few of ours behind them.
async fn left_behind<S: Store>(engine: &Engine<S>, ours: &Route) -> Vec<Record> {
    let other = route("POST /rides-of-another-service");
    let stranger = |n: usize| left(&other, &format!("stranger-{n:05}"), i64::try_from(n).unwrap().max(99));
    let own = |n: usize| left(ours, &format!("our-own-ride-{n:05}"), 1_000);
    let strangers = (0..STRANGERS).map(stranger);
    let own: Vec<_> = (0..OURS).map(own).collect();
    let writes: Vec<_> = strangers.chain(own.iter().cloned()).map(Arc::new).map(Write::insert).collect();
    engine.store().apply(&writes).await.unwrap();
    own
}

fn options() -> WorkerOptions {
    WorkerOptions { batch: BATCH, complete_every: Duration::from_millis(1), ..WorkerOptions::default() }
}

async fn ours_flow<S: Store>(engine: Engine<S>) {
    let finisher = Arc::new(Finishes { route: route("POST /payments"), runs: AtomicUsize::new(0) });
    let own = left_behind(&engine, &finisher.route).await;
    // One pass is bounded, whatever there is.
    let one: Arc<dyn Finisher<S>> = Arc::clone(&finisher) as _;
    let pass = engine.complete(&options(), &one).await.unwrap();
    assert_eq!((pass.seen, pass.changed), (PASS, 0));
    // And the next one goes on behind it.
    let mut completer = engine.start_completer(&options(), one);
    for record in &own {
        until("it is finished", async || state(&engine, record.id).await == StateKind::Completed).await;
    }
    assert_eq!(finisher.runs.load(Ordering::SeqCst), OURS);
    // Afterwards it begins again, with what has become due since.
    let late = left(&finisher.route, "one-that-comes-late", 1);
    engine.store().apply(&[Write::insert(Arc::new(late.clone()))]).await.unwrap();
    until("it is found", async || state(&engine, late.id).await == StateKind::Completed).await;
    let passes = completer.passes(Worker::Completer);
    soon(completer.until_passes(Worker::Completer, passes + 1)).await;
    drop(completer);
    assert!(engine.drain(SOON).await);
    let counts = engine.store().counts().await.unwrap();
    assert_eq!((counts.in_progress, counts.completed), (STRANGERS as u64, OURS as u64 + 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn strangers_stand_in_nobody_s_way_in_memory() {
    ours_flow(start(MemoryStore::new(), Options::default()).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn strangers_stand_in_nobody_s_way_on_sqlite() {
    let (engine, _place) = sqlite(None).await;
    ours_flow(engine).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn strangers_stand_in_nobody_s_way_on_postgres() {
    let schema = Schema::new();
    Box::pin(ours_flow(schema.node().await)).await;
}
