//! A doubt about an operation of another service on the same store is left to that service: nobody else asks about it, claims it or parks it,
//! and it stands in nobody's way.

use std::time::Duration;

use oncegate_core::policy::Profile;
use oncegate_core::record::StateKind;
use oncegate_core::scope::Operation;
use oncegate_engine::{NoProbe, OnlyOf, Pass, Route, Worker, WorkerOptions};

use crate::crew::{Script, doubt_of, doubted, found, node, nodes, reconcile};
use crate::world::{HOUR, replayed, row, state};

/// Of each scan as many as this at first; so a pass looks at fifteen times as many.
const BATCH: usize = 4;
const PASS: usize = 15 * BATCH;

fn operation(name: &str) -> Operation {
    Operation::new(name).unwrap()
}

fn route(name: &str) -> Route {
    Route::of_profile(Profile::Ietf, operation(name))
}

/// A node that had no probe for an operation put its records before an operator at once, although another node knew whom to ask.
#[tokio::test]
async fn who_does_not_know_the_operation_leaves_it_to_who_does() {
    let (a, b, _, hand) = nodes().await;
    let (ours, theirs) = (route("POST /rides"), route("POST /payments"));
    let stranger = doubted(&b, &theirs, "k").await;
    let own = doubted(&a, &ours, "ours").await;
    let before = row(&a, stranger).await;
    let only_ours = OnlyOf::new([operation("POST /rides")], NoProbe);
    for _ in 0..25 {
        reconcile(&a, &only_ours).await;
        hand.turn(HOUR);
    }
    assert_eq!(row(&a, stranger).await, before, "neither claimed nor parked");
    assert!(doubt_of(&a, own).await.parked, "of its own it is as before");
    let knowing = OnlyOf::new([operation("POST /payments")], Script::finding([found(201)]));
    assert_eq!(reconcile(&b, &knowing).await.changed, 1);
    assert_eq!(replayed(&b, &theirs, "k").await.status(), 201);
}

/// More strangers than a pass looks at, all of them due earlier, and half of them in one moment: what is ours is asked about all the same, also where
/// a pass fails on the way.
#[tokio::test]
async fn strangers_stand_in_nobody_s_way() {
    let (engine, store, hand) = node().await;
    let (ours, theirs) = (route("POST /rides"), route("POST /payments"));
    for n in 0..3 * PASS {
        doubted(&engine, &theirs, &format!("stranger-{n}")).await;
        if n % 2 == 0 && n > PASS {
            hand.turn(Duration::from_millis(1));
        }
    }
    hand.turn(Duration::from_secs(1));
    let own = doubted(&engine, &ours, "k").await;
    let options = WorkerOptions { batch: BATCH, ..WorkerOptions::default() };
    let probe = OnlyOf::new([operation("POST /rides")], Script::finding([found(201), found(202)]));
    let pass = async || engine.work(Worker::Reconciler, &options, &probe).await;
    // One scan meets strangers, and the next passes over their operation.
    store.fail_reads(1);
    pass().await.unwrap_err();
    assert_eq!(pass().await.unwrap(), Pass { seen: BATCH + 1, changed: 1, more: false });
    assert_eq!(state(&engine, own).await, StateKind::Completed);
    // Afterwards it begins again, with what has become due since.
    let late = doubted(&engine, &ours, "late").await;
    pass().await.unwrap();
    assert_eq!(state(&engine, late).await, StateKind::Completed);
    let counts = oncegate_store::Store::counts(engine.store()).await.unwrap();
    assert_eq!(counts.unknown, 3 * PASS as u64);
}
