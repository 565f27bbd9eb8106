//! A backup is restored that has an operation in the middle of its phases: what ran in the lost
//! time is not in the journal.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use oncegate_core::decide::QUARANTINED;
use oncegate_core::policy::Credentials;
use oncegate_core::record::{Record, State, StateKind, StoredRequest};
use oncegate_engine::phases::{DownstreamKey, Park, PhaseError};
use oncegate_engine::{
    Arrived, Engine, Finisher, Finishing, Held, Left, Operator, Route, Runs, WorkerOptions,
};
use oncegate_store_sql::SqliteStore;
use oncegate_store_sql::sqlx::SqliteTransactions;

use crate::ride::{KEY, LEASE, Town, insert};
use crate::world::{HOUR, SOON, complete, doubt, id, request};

/// Charges and writes the receipt of a ride that was created before.
#[derive(Clone)]
struct Charging {
    route: Route,
    pool: sqlx::SqlitePool,
    /// How often the provider was called.
    calls: Arc<AtomicUsize>,
}

impl Charging {
    fn of(town: &Town) -> Self {
        Self { route: town.route.clone(), pool: town.pool.clone(), calls: Arc::default() }
    }

    async fn go_on(&self, held: &mut Held<SqliteStore>) -> Result<&'static str, PhaseError> {
        let mut run = held.phases().run(Arc::new(SqliteTransactions(self.pool.clone()))).unwrap();
        let work = async {
            run.atomic("ride", async |tx| insert(tx, "ride").await).await?;
            run.foreign("charge", Park, async |_: DownstreamKey| {
                self.calls.fetch_add(1, Ordering::SeqCst);
                Ok(())
            })
            .await?;
            run.finish("done")
        };
        held.run(work).await
    }

    async fn run(&self, mut held: Box<Held<SqliteStore>>) {
        let settlement = match self.go_on(&mut held).await {
            Ok(answer) => complete(answer),
            Err(_) => doubt(),
        };
        let settlement = held.as_its_phases_say(settlement);
        drop(held.settle(settlement).await);
    }

    fn calls(&self) -> usize {
        self.calls.load(Ordering::SeqCst)
    }
}

impl Finisher<SqliteStore> for Charging {
    fn runs(&self) -> Runs {
        Runs { operations: vec![self.route.operation().clone()].into(), resumes: true }
    }

    fn route(&self, _: &Record) -> Option<Route> {
        Some(self.route.clone())
    }

    fn finish(&self, held: Box<Held<SqliteStore>>, _: Left) -> Finishing<'_> {
        Box::pin(self.run(held))
    }
}

fn ada() -> Operator {
    Operator { name: "ada".into(), reason: "restored last night's backup".into() }
}

/// A client's attempt whose request is kept, after its first phase.
async fn after_the_first_phase(town: &Town) -> Box<Held<SqliteStore>> {
    let stored = StoredRequest {
        method: "POST".into(),
        target: "/payments".into(),
        headers: vec![],
        body: vec![],
        credentials: Some(Credentials::Kept),
    };
    let arrival = oncegate_core::decide::Arrival { request: Some(stored), ..request(&town.route, KEY) };
    let arrived = town.engine.arrive(&town.route, arrival).await.unwrap();
    let Arrived::Execute(mut held) = arrived else { panic!("{arrived:?}") };
    held.begin().unwrap();
    let mut run = town.run(&held);
    run.atomic("ride", async |tx| insert(tx, "ride").await).await.unwrap();
    held
}

/// The completer's pass, and the client's retry.
async fn passes_and_retries(town: &Town, node: &Engine<SqliteStore>, charging: &Charging) {
    let finisher: Arc<dyn Finisher<SqliteStore>> = Arc::new(charging.clone());
    node.complete(&WorkerOptions::default(), &finisher).await.unwrap();
    assert!(node.drain(SOON).await);
    if let Arrived::Execute(held) = node.arrive(&town.route, request(&town.route, KEY)).await.unwrap() {
        charging.run(held).await;
    }
}

/// A backup was taken after the first phase of an operation. In the lost time its second phase, a
/// call of a provider, began and was made. After the restore the journal knew nothing of it, so
/// the completer and the client's retry called again, without asking, although a quarantine was
/// declared.
#[tokio::test]
async fn attack_29_an_operation_in_phases_is_held_back_and_calls_nobody_again() {
    for lapses_first in [false, true] {
        let town = Town::new().await;
        let charging = Charging::of(&town);
        let held = after_the_first_phase(&town).await;
        let backup = town.backup();
        town.dies(*held);
        passes_and_retries(&town, &town.another_node().await, &charging).await;
        assert_eq!((town.state().await, charging.calls()), (StateKind::Completed, 1), "in the lost time");

        town.restore(&backup);
        if lapses_first {
            town.hand.turn(2 * LEASE);
        }
        let node = town.another_node().await;
        let now = node.now().at;
        let window = node.declare_quarantine(now.minus(HOUR), now, &ada()).await.unwrap();
        town.hand.turn(2 * LEASE);
        passes_and_retries(&town, &node, &charging).await;
        assert_eq!(charging.calls(), 1, "the provider was called again");
        // The first engine notices the restore and reads nothing more.
        let record = async || crate::world::row(&node, id(&town.route, KEY)).await;
        let parked = record().await;
        assert!(matches!(&parked.state, State::Unknown(doubt) if doubt.parked), "{parked:?}");
        assert_eq!(parked.last_error.unwrap().code(), QUARANTINED);

        // An operator says that nothing happened in the lost time: then it goes on behind its
        // first phase, whose row is in the backup too.
        assert_eq!(node.release_quarantine(&window.id, &ada()).await.unwrap().keys, 1);
        town.hand.turn(LEASE);
        passes_and_retries(&town, &node, &charging).await;
        assert_eq!((record().await.state.kind(), charging.calls()), (StateKind::Completed, 2));
        assert_eq!(town.effects().await, ["ride"], "the first phase ran twice");
    }
}
