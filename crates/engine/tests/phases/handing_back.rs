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

/// The handler of the story: no driver, so the client goes on the waiting list. It dies after it was listed, and before it has answered.
/// The next attempt, in the same handler, was parked as one that had been changed: it asked for the ride where the list stood.
async fn listed(town: &Town, drivers: Drivers) -> Result<String, PhaseError> {
    let held = town.attempt().await;
    let mut run = town.run(&held);
    let mut tries = 0;
    let ride = loop {
        let found = run
            .atomic("ride", async |_| match drivers {
                Drivers::None => Err(JobError::unknown("no driver")),
                Drivers::Some => Ok("a ride".to_owned()),
            })
            .await;
        tries += 1;
        if found.is_ok() || tries == 2 {
            break found;
        }
    };
    let offered = run
        .foreign("offer", Retry, async |_| match drivers {
            Drivers::None => Err(JobError::not_executed("nobody is there")),
            Drivers::Some => Ok("an offer".to_owned()),
        })
        .await;
    let listed = run.atomic("waiting_list", async |tx| insert(tx, "listed").await).await?;
    let words = |outcome: Result<String, PhaseError>| outcome.unwrap_or_else(|error| error.to_string());
    let answer = run.finish(format!("{}; {}; {listed}", words(ride), words(offered)))?;
    match drivers {
        Drivers::None => town.dies(held),
        Drivers::Some => {
            let settlement = held.as_its_phases_say(crate::world::complete(&answer));
            assert!(matches!(held.settle(settlement).await, Settled::Done(_)));
        }
    }
    Ok(answer)
}

#[derive(Clone, Copy)]
enum Drivers {
    None,
    Some,
}

#[tokio::test]
async fn a_handler_that_went_on_after_a_failure_and_died_is_told_the_same_failure_again() {
    let town = Town::new().await;
    let first = listed(&town, Drivers::None).await.unwrap();
    assert!(first.contains("no driver") && first.contains("nobody is there"), "{first}");
    // By now there would be a driver; but the client is on the list.
    let second = listed(&town, Drivers::Some).await.unwrap();
    assert_eq!(first, second, "the same outcomes, whatever a new try would give");
    assert_eq!(town.effects().await, ["listed"]);
    assert_eq!(town.state().await, StateKind::Completed);
}

/// It died before anything followed from the failure: nothing is kept of it.
#[tokio::test]
async fn a_failure_that_nothing_followed_from_is_tried_again() {
    let town = Town::new().await;
    let held = town.attempt().await;
    let mut run = town.run(&held);
    assert!(run.atomic("ride", async |_| Err::<String, _>(JobError::unknown("no driver"))).await.is_err());
    let failed =
        run.atomic("waiting_list", async |_| Err::<String, _>(JobError::unknown("it is full"))).await;
    assert!(failed.is_err());
    town.dies(held);
    assert_eq!(town.ride(Retry).await.0.unwrap(), "ride charge receipt");
    assert_eq!(town.effects().await, ["ride", "receipt"]);
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
