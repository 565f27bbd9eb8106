//! An attempt whose lease is another's changes nothing.

use oncegate_core::decide::Decision;
use oncegate_core::record::StateKind;
use oncegate_engine::Settled;
use oncegate_engine::phases::{DownstreamKey, PhaseError, Retry};

use crate::ride::{LEASE, Town, insert};
use crate::world::{complete, held};

#[tokio::test]
async fn an_older_grant_s_atomic_phase_is_rolled_back() {
    let town = Town::new().await;
    let older = town.attempt().await;
    let mut late = town.run(&older);
    town.hand.turn(2 * LEASE);
    let newer = town.attempt().await;
    let mut run = town.run(&newer);
    let fenced = late.atomic("ride", async |tx| insert(tx, "late ride").await).await.unwrap_err();
    assert_eq!(fenced, PhaseError::Fenced { phase: "ride".into() });
    assert_eq!(town.effects().await, [""; 0], "rolled back with its recovery point");
    run.atomic("ride", async |tx| insert(tx, "ride").await).await.unwrap();
    // Nothing more runs in the older one, whatever it asks for, and it settles nothing.
    let call = async |_: DownstreamKey| -> Result<String, _> { panic!("it was fenced") };
    assert!(late.foreign("charge", Retry, call).await.is_err());
    assert!(late.finish("late").is_err());
    let settlement = older.as_its_phases_say(complete("late"));
    assert!(matches!(older.settle(settlement).await, Settled::Fenced(Some(_))));
    run.finish("ride").unwrap();
    let settlement = newer.as_its_phases_say(complete("ride"));
    assert!(matches!(newer.settle(settlement).await, Settled::Done(_)));
    assert_eq!(town.effects().await, ["ride"]);
}

#[tokio::test]
async fn an_older_grant_s_foreign_phase_is_not_begun() {
    let town = Town::new().await;
    let older = town.attempt().await;
    let mut late = town.run(&older);
    town.hand.turn(2 * LEASE);
    let _newer = town.attempt().await;
    let call = async |key: DownstreamKey| town.provider.charge(&key);
    let fenced = late.foreign("charge", Retry, call).await.unwrap_err();
    assert_eq!(fenced, PhaseError::Fenced { phase: "charge".into() });
    assert_eq!(town.provider.calls(), 0);
}

#[tokio::test]
async fn a_grant_of_another_node_fences_too() {
    let town = Town::new().await;
    let older = town.attempt().await;
    let mut late = town.run(&older);
    town.hand.turn(2 * LEASE);
    let node = town.another_node().await;
    let _newer = held(&node, &town.route, crate::ride::KEY).await;
    let fenced = late.atomic("ride", async |tx| insert(tx, "late ride").await).await.unwrap_err();
    assert_eq!(fenced, PhaseError::Fenced { phase: "ride".into() });
    assert_eq!(town.effects().await, [""; 0]);
    assert_eq!(town.state().await, StateKind::InProgress);
}

/// A webhook may tell the row something while a phase runs: it is still ours.
#[tokio::test]
async fn a_row_that_was_told_something_meanwhile_is_no_reason_to_roll_back() {
    let town = Town::new().await;
    let held = town.attempt().await;
    let mut run = town.run(&held);
    let id = crate::world::id(&town.route, crate::ride::KEY);
    assert_eq!(crate::world::happened(&town.engine, id, "early").await, Decision::Done);
    run.atomic("ride", async |tx| insert(tx, "ride").await).await.unwrap();
    assert_eq!(town.effects().await, ["ride"]);
}
