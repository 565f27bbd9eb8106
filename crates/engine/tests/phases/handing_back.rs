//! What is finished is handed back, and never run again.

use oncegate_core::record::StateKind;
use oncegate_engine::phases::{PhaseError, Retry};
use oncegate_engine::{Arrived, JobError, Settled};

use crate::ride::{Town, insert};

#[tokio::test]
async fn a_ride_takes_effect_once_in_every_phase() {
    let town = Town::new().await;
    let (answer, settled) = town.ride(Retry).await;
    assert_eq!(answer.unwrap(), "ride charge receipt");
    assert!(matches!(settled, Settled::Done(_)));
    assert_eq!(town.effects().await, ["ride", "receipt"]);
    assert!(matches!(town.arrive().await, Arrived::Replay { .. }));
    let record = town.record().await;
    assert_eq!((record.recovery, record.request), (None, None), "and nothing of it is kept any longer");
}

#[tokio::test]
async fn an_attempt_that_dies_after_a_phase_is_gone_on_with_after_it() {
    let town = Town::new().await;
    let held = town.attempt().await;
    let mut run = town.run(&held);
    run.atomic("ride", async |tx| insert(tx, "ride").await).await.unwrap();
    town.dies(held);
    let (answer, _) = town.ride(Retry).await;
    assert_eq!(answer.unwrap(), "ride charge receipt");
    assert_eq!(town.effects().await, ["ride", "receipt"]);
    assert_eq!(town.provider.calls(), 1);
}

#[tokio::test]
async fn an_output_is_the_first_run_s_whatever_a_later_one_would_give() {
    let town = Town::new().await;
    let held = town.attempt().await;
    let mut run = town.run(&held);
    let first = run.atomic("number", async |_| Ok(17)).await.unwrap();
    town.dies(held);
    let held = town.attempt().await;
    let mut run = town.run(&held);
    let again: i32 = run.atomic("number", async |_| panic!("it is finished")).await.unwrap();
    assert_eq!(first, again);
}

#[tokio::test]
async fn a_phase_that_fails_leaves_nothing_and_is_run_by_the_next_attempt() {
    let town = Town::new().await;
    let held = town.attempt().await;
    let mut run = town.run(&held);
    let work = async |tx: &mut sqlx::SqliteConnection| {
        insert(tx, "ride").await?;
        Err::<String, _>(JobError::unknown("no driver"))
    };
    let failed = run.atomic("ride", work).await.unwrap_err();
    assert_eq!(failed, PhaseError::Failed { phase: "ride".into(), words: "no driver".into() });
    assert_eq!(town.effects().await, [""; 0], "rolled back");
    let settlement = held.as_its_phases_say(crate::world::doubt());
    assert!(matches!(held.settle(settlement).await, Settled::Done(_)));
    // Nothing has happened at all: the key is free.
    assert_eq!(town.state().await, StateKind::FailedRetryable);
    assert!(town.record().await.last_error.unwrap().to_string().contains("no driver"));
    assert_eq!(town.ride(Retry).await.0.unwrap(), "ride charge receipt");
    assert_eq!(town.effects().await, ["ride", "receipt"]);
}

#[tokio::test]
async fn a_handler_may_go_on_after_a_phase_that_failed() {
    let town = Town::new().await;
    let held = town.attempt().await;
    let mut run = town.run(&held);
    let refused = run.atomic("ride", async |_| Err::<String, _>(JobError::unknown("no driver"))).await;
    assert!(refused.is_err());
    run.atomic("waiting_list", async |tx| insert(tx, "listed").await).await.unwrap();
    let answer = run.finish("listed").unwrap();
    let settlement = held.as_its_phases_say(crate::world::complete(answer));
    assert!(matches!(held.settle(settlement).await, Settled::Done(_)));
    assert_eq!(town.state().await, StateKind::Completed);
}

#[tokio::test]
async fn phases_are_asked_for_once_an_attempt() {
    let town = Town::new().await;
    let held = town.attempt().await;
    let phases = held.phases();
    let transactions = std::sync::Arc::new(oncegate_store_sql::sqlx::SqliteTransactions(town.pool.clone()));
    drop(phases.run(std::sync::Arc::clone(&transactions)).unwrap());
    assert!(phases.run(transactions).is_err());
}
