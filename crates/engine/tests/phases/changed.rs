//! A handler that was changed under an operation in flight: put before an operator, and nothing more runs.

use oncegate_core::record::StateKind;
use oncegate_engine::phases::{DownstreamKey, PhaseError, Retry};
use oncegate_engine::{Arrived, Settled};

use crate::ride::{Town, insert};
use crate::world::{complete, release};

/// An operation whose first phase is done, and whose process is dead.
async fn begun() -> Town {
    let town = Town::new().await;
    let held = town.attempt().await;
    let mut run = town.run(&held);
    run.atomic("ride", async |tx| insert(tx, "ride").await).await.unwrap();
    town.dies(held);
    town
}

async fn is_parked_as(town: Town, held: oncegate_engine::Held<oncegate_store_sql::SqliteStore>, words: &str) {
    // Whatever the handler answers.
    let settlement = held.as_its_phases_say(complete("done"));
    assert!(matches!(held.settle(settlement).await, Settled::Done(_)));
    let reason = town.parked().await;
    assert!(reason.starts_with("changed_handler: ") && reason.contains(words), "{reason}");
    assert!(reason.contains("resolve this record"), "{reason}");
    assert!(matches!(town.arrive().await, Arrived::Unsettled { parked: true, .. }));
    assert_eq!(town.effects().await, ["ride"]);
}

#[tokio::test]
async fn a_renamed_phase_parks() {
    let town = begun().await;
    let held = town.attempt().await;
    let mut run = town.run(&held);
    let changed = run.atomic("trip", async |tx| insert(tx, "trip").await).await;
    assert!(matches!(changed, Err(PhaseError::Parked { .. })), "{changed:?}");
    // And nothing more runs, also if the handler does not look.
    assert!(run.atomic("ride", async |tx| insert(tx, "ride").await).await.is_err());
    is_parked_as(town, held, "\"ride\" (atomic) when this operation began, and is \"trip\"").await;
}

#[tokio::test]
async fn reordered_phases_park() {
    let town = begun().await;
    let held = town.attempt().await;
    let mut run = town.run(&held);
    let call = async |_: DownstreamKey| -> Result<String, _> { panic!("nobody is called") };
    assert!(run.foreign("charge", Retry, call).await.is_err());
    is_parked_as(town, held, "is \"charge\" (foreign)").await;
}

#[tokio::test]
async fn a_handler_that_leaves_out_what_was_done_parks() {
    let town = begun().await;
    let held = town.attempt().await;
    assert!(matches!(town.run(&held).finish("done"), Err(PhaseError::Parked { .. })));
    is_parked_as(town, held, "ended without asking for it").await;
}

#[tokio::test]
async fn a_handler_that_does_not_even_finish_parks() {
    let town = begun().await;
    let held = town.attempt().await;
    drop(town.run(&held));
    is_parked_as(town, held, "ended without asking for it").await;
}

/// It was refused before it asked for its phases: by a header that the stored request does not carry, say.
#[tokio::test]
async fn a_refusal_in_front_of_the_phases_does_not_complete_what_was_begun() {
    let town = begun().await;
    let held = town.attempt().await;
    is_parked_as(town, held, "ended without asking for it").await;
}

#[tokio::test]
async fn a_passing_failure_in_front_of_the_phases_is_no_change() {
    let town = begun().await;
    let held = town.attempt().await;
    let settlement = held.as_its_phases_say(release());
    assert!(matches!(held.settle(settlement).await, Settled::Fenced(Some(_))));
    assert_eq!(town.state().await, StateKind::InProgress);
    town.hand.turn(std::time::Duration::from_millis(1));
    assert_eq!(town.ride(Retry).await.0.unwrap(), "ride charge receipt");
}

#[tokio::test]
async fn an_output_of_another_type_parks() {
    let town = begun().await;
    let held = town.attempt().await;
    let changed = town.run(&held).atomic("ride", async |_| Ok(17)).await;
    assert!(matches!(changed, Err(PhaseError::Parked { .. })), "{changed:?}");
    is_parked_as(town, held, "cannot be read as what the handler").await;
}

#[tokio::test]
async fn two_phases_of_one_name_are_refused_before_the_second_runs() {
    let town = Town::new().await;
    let held = town.attempt().await;
    let mut run = town.run(&held);
    run.atomic("ride", async |tx| insert(tx, "ride").await).await.unwrap();
    let repeated = run.atomic("ride", async |tx| insert(tx, "ride").await).await;
    assert!(matches!(repeated, Err(PhaseError::Parked { .. })), "{repeated:?}");
    is_parked_as(town, held, "two phases called \"ride\"").await;
}
