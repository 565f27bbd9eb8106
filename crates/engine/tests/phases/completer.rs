//! What clients have left is finished without them, by whichever node takes it first.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use oncegate_core::policy::{Credentials, Profile};
use oncegate_core::record::{Record, StateKind, StoredRequest};
use oncegate_engine::{
    Arrived, Engine, Finisher, Finishing, Held, JobError, Left, Route, Runs, WorkerOptions, Workers,
};
use oncegate_store_sql::SqliteStore;
use oncegate_store_sql::sqlx::SqliteTransactions;

use crate::ride::{KEY, Town, insert};
use crate::world::{SOON, complete, doubt, request};

/// Goes on with two-phase operations over a town's pool.
struct Driver {
    route: Route,
    pool: sqlx::SqlitePool,
    runs: AtomicUsize,
    fails: AtomicUsize,
}

impl Driver {
    fn of(town: &Town) -> Arc<Self> {
        let (route, pool) = (town.route.clone(), town.pool.clone());
        Arc::new(Self { route, pool, runs: AtomicUsize::new(0), fails: AtomicUsize::new(0) })
    }

    async fn go_on(&self, held: &mut Held<SqliteStore>, left: &Left) -> Result<&'static str, JobError> {
        assert_eq!(left.request.body, b"a ride");
        let mut run = held.phases().run(Arc::new(SqliteTransactions(self.pool.clone()))).unwrap();
        let work = async {
            run.atomic("ride", async |tx| insert(tx, "ride").await).await?;
            if self.fails.try_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok() {
                return Err(JobError::unknown("the provider is down"));
            }
            run.atomic("receipt", async |tx| insert(tx, "receipt").await).await?;
            Ok(run.finish("done")?)
        };
        held.run(work).await
    }
}

impl Finisher<SqliteStore> for Driver {
    fn runs(&self) -> Runs {
        Runs { operations: vec![self.route.operation().clone()].into(), resumes: true }
    }

    fn route(&self, record: &Record) -> Option<Route> {
        (record.operation == *self.route.operation()).then(|| self.route.clone())
    }

    fn finish(&self, mut held: Box<Held<SqliteStore>>, left: Left) -> Finishing<'_> {
        Box::pin(async move {
            self.runs.fetch_add(1, Ordering::SeqCst);
            let settlement = match self.go_on(&mut held, &left).await {
                Ok(answer) => complete(answer),
                Err(_) => doubt(),
            };
            let settlement = held.as_its_phases_say(settlement);
            drop(held.settle(settlement).await);
        })
    }
}

/// A client's attempt that dies after its first phase, with its request kept.
async fn left_behind(town: &Town, key: &str) {
    let stored = StoredRequest {
        method: "POST".into(),
        target: "/payments".into(),
        headers: vec![],
        body: b"a ride".to_vec(),
        credentials: Some(Credentials::Kept),
    };
    let mut arrival = request(&town.route, key);
    arrival.request = Some(stored);
    let Ok(Arrived::Execute(held)) = town.engine.arrive(&town.route, arrival).await else {
        panic!("no lease")
    };
    let mut run = town.run(&held);
    run.atomic("ride", async |tx| insert(tx, "ride").await).await.unwrap();
    std::mem::forget(held);
}

async fn pass(engine: &Engine<SqliteStore>, driver: &Arc<Driver>) -> usize {
    let finisher: Arc<dyn Finisher<SqliteStore>> = Arc::clone(driver) as _;
    let pass = engine.complete(&WorkerOptions::default(), &finisher).await.unwrap();
    assert!(engine.drain(SOON).await);
    pass.changed
}

#[tokio::test]
async fn what_a_client_has_left_is_finished_once_its_lease_is_over() {
    let town = Town::new().await;
    let driver = Driver::of(&town);
    left_behind(&town, KEY).await;
    // mem::forget above keeps the count of attempts in hand: nothing of this engine's drains.
    let node = town.another_node().await;
    assert_eq!(pass(&node, &driver).await, 0, "its holder may still be at it");
    town.hand.turn(2 * crate::ride::LEASE);
    assert_eq!(pass(&node, &driver).await, 1);
    assert_eq!(town.state().await, StateKind::Completed);
    assert_eq!(town.effects().await, ["ride", "receipt"]);
    assert_eq!(pass(&node, &driver).await, 0);
    assert!(matches!(town.arrive().await, Arrived::Replay { .. }), "and its client gets the answer");
}

#[tokio::test]
async fn after_a_failure_it_waits_and_tries_again() {
    let town = Town::new().await;
    let driver = Driver::of(&town);
    driver.fails.store(2, Ordering::SeqCst);
    left_behind(&town, KEY).await;
    town.hand.turn(2 * crate::ride::LEASE);
    let node = town.another_node().await;
    for failure in 1..=2 {
        assert_eq!(pass(&node, &driver).await, 1);
        assert_eq!(town.state().await, StateKind::Pending, "failure {failure}");
        assert_eq!(pass(&node, &driver).await, 0, "not before its time");
        town.hand.turn(Duration::from_mins(5));
    }
    assert_eq!(pass(&node, &driver).await, 1);
    assert_eq!(town.effects().await, ["ride", "receipt"]);
}

#[tokio::test]
async fn two_nodes_share_the_work_and_run_nothing_twice() {
    const KEYS: usize = 20;
    let town = Town::new().await;
    let driver = Driver::of(&town);
    for n in 0..KEYS {
        left_behind(&town, &format!("ride-number-{n:05}")).await;
    }
    town.hand.turn(2 * crate::ride::LEASE);
    let (a, b) = (town.another_node().await, town.another_node().await);
    let mut all = 0;
    while all < KEYS {
        let (by_a, by_b) = tokio::join!(pass(&a, &driver), pass(&b, &driver));
        all += by_a + by_b;
    }
    assert_eq!((all, driver.runs.load(Ordering::SeqCst)), (KEYS, KEYS));
    let effects = town.effects().await;
    assert_eq!(effects.iter().filter(|effect| *effect == "ride").count(), KEYS);
    assert_eq!(effects.iter().filter(|effect| *effect == "receipt").count(), KEYS);
}

#[tokio::test]
async fn an_operation_of_another_service_is_left_alone() {
    let town = Town::new().await;
    left_behind(&town, KEY).await;
    town.hand.turn(2 * crate::ride::LEASE);
    let operation = oncegate_core::scope::Operation::new("POST /other").unwrap();
    let other = Driver { route: Route::of_profile(Profile::Resume, operation), ..fresh(&town) };
    assert_eq!(pass(&town.another_node().await, &Arc::new(other)).await, 0);
    assert_eq!(town.state().await, StateKind::InProgress);
}

fn fresh(town: &Town) -> Driver {
    let (route, pool) = (town.route.clone(), town.pool.clone());
    Driver { route, pool, runs: AtomicUsize::new(0), fails: AtomicUsize::new(0) }
}

#[tokio::test]
async fn the_loop_goes_on_by_itself() {
    let town = Town::new().await;
    let driver = Driver::of(&town);
    left_behind(&town, KEY).await;
    town.hand.turn(2 * crate::ride::LEASE);
    let options = WorkerOptions { complete_every: Duration::from_millis(1), ..WorkerOptions::default() };
    let _workers: Workers = town.engine.start_completer(&options, Arc::clone(&driver) as _);
    oncegate_test_servers::until("it is completed", async || town.state().await == StateKind::Completed)
        .await;
    assert_eq!(town.effects().await, ["ride", "receipt"]);
}
