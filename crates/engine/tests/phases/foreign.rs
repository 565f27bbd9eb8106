//! Foreign phases: one call an attempt, always under the same key, and what is done about one that nobody heard of again.

use std::sync::Mutex;
use std::time::Duration;

use oncegate_core::policy::Policy;
use oncegate_core::record::StateKind;
use oncegate_engine::phases::{DownstreamKey, Found, Park, PhaseError, Probe, Recovery, Retry};
use oncegate_engine::{Arrived, JobError, Route, Settled};

use crate::ride::{LEASE, Town, insert};

/// A ride whose process dies while it charges.
async fn dead_while_charging(town: &Town) {
    let held = town.attempt().await;
    let mut run = town.run(&held);
    run.atomic("ride", async |tx| insert(tx, "ride").await).await.unwrap();
    let call = async |key: DownstreamKey| {
        town.provider.charge(&key).unwrap();
        std::future::pending::<Result<String, JobError>>().await
    };
    let mut charging = Box::pin(run.foreign("charge", Retry, call));
    oncegate_test_servers::until("the provider was called", async || {
        crate::world::poll_once(&mut charging).await;
        town.provider.calls() == 1
    })
    .await;
    drop(charging);
    town.dies(held);
}

#[tokio::test]
async fn retry_calls_again_under_the_same_key() {
    let town = Town::new().await;
    dead_while_charging(&town).await;
    assert_eq!(town.ride(Retry).await.0.unwrap(), "ride charge receipt");
    let calls = town.provider.calls.lock().unwrap().clone();
    assert_eq!(calls.len(), 2);
    assert_eq!(calls[0], calls[1], "whoever is called dedupes by it");
    assert_eq!(town.effects().await, ["ride", "receipt"]);
}

#[tokio::test]
async fn park_puts_it_before_an_operator_and_calls_nobody() {
    let town = Town::new().await;
    dead_while_charging(&town).await;
    let (ended, settled) = town.ride(Park).await;
    assert!(matches!(ended, Err(PhaseError::Parked { .. })), "{ended:?}");
    assert!(matches!(settled, Settled::Done(_)));
    let reason = town.parked().await;
    assert!(reason.contains("\"charge\"") && reason.contains("resolve this record"), "{reason}");
    assert_eq!(town.provider.calls(), 1);
    assert!(matches!(town.arrive().await, Arrived::Unsettled { parked: true, .. }));
}

#[tokio::test]
async fn a_probe_that_finds_it_gives_the_output_and_nobody_is_called() {
    let town = Town::new().await;
    dead_while_charging(&town).await;
    let asked = Mutex::new(String::new());
    let probe = Probe(async |key: DownstreamKey| {
        *asked.lock().unwrap() = key.to_string();
        Found::Happened("found".to_owned())
    });
    assert_eq!(town.ride(probe).await.0.unwrap(), "ride found receipt");
    assert_eq!(town.provider.calls.lock().unwrap()[..], [asked.into_inner().unwrap()]);
}

#[tokio::test]
async fn a_probe_that_finds_nothing_past_the_horizon_has_it_called() {
    let town = Town::new().await;
    dead_while_charging(&town).await;
    // Asked after this very moment: then nothing is on its way any more.
    let held = town.attempt().await;
    let mut run = town.run(&held);
    run.atomic("ride", async |_| Ok(String::new())).await.unwrap();
    town.hand.turn(Duration::from_millis(1));
    let charged = run
        .foreign("charge", Probe(async |_| Found::<String>::DidNotHappen), async |key: DownstreamKey| {
            town.provider.charge(&key)
        })
        .await;
    assert_eq!(charged.unwrap(), "charge");
    assert_eq!(town.provider.calls(), 2);
}

#[tokio::test]
async fn a_probe_that_finds_nothing_before_the_horizon_asks_again_after_it() {
    const HORIZON: Duration = Duration::from_mins(1);
    let town = Town::under(|policy| policy.horizon = Some(HORIZON)).await;
    dead_while_charging(&town).await;
    let questions = Mutex::new(0);
    let held = town.attempt().await;
    let mut run = town.run(&held);
    run.atomic("ride", async |_| Ok(String::new())).await.unwrap();
    tokio::time::pause();
    // What was on its way arrives before the horizon, after the first question.
    let probe = Probe(async |_| {
        let mut questions = questions.lock().unwrap();
        *questions += 1;
        town.hand.turn(HORIZON);
        if *questions == 1 { Found::DidNotHappen } else { Found::Happened("late".to_owned()) }
    });
    let charged = run.foreign("charge", probe, async |_| panic!("it would be a second charge")).await;
    assert_eq!(charged.unwrap(), "late");
    assert_eq!(*questions.lock().unwrap(), 2);
}

/// A foreign call was begun on a route with a horizon of one minute. A deploy then set the horizon to
/// zero. The next attempt read the new value, believed the first "not found" at once, and called again
/// while the first call was still on its way. The horizon that the record was begun under counts.
#[tokio::test]
async fn attack_25_a_shortened_horizon_does_not_apply_to_a_phase_that_was_begun_before() {
    const HORIZON: Duration = Duration::from_mins(1);
    let mut town = Town::under(|policy| policy.horizon = Some(HORIZON)).await;
    dead_while_charging(&town).await;
    let shortened = Policy { horizon: Some(Duration::ZERO), ..town.route.policy().clone() };
    town.route = Route::new("resume", shortened, town.route.operation().clone());
    let held = town.attempt().await;
    let mut run = town.run(&held);
    run.atomic("ride", async |_| Ok(String::new())).await.unwrap();
    tokio::time::pause();
    let questions = Mutex::new(0);
    // One second into the attempt: past the new horizon, long before the old one.
    town.hand.turn(Duration::from_secs(1));
    let probe = Probe(async |_| {
        let mut questions = questions.lock().unwrap();
        *questions += 1;
        town.hand.turn(HORIZON);
        if *questions == 1 { Found::DidNotHappen } else { Found::Happened("late".to_owned()) }
    });
    let charged = run.foreign("charge", probe, async |_| Ok("a second charge".to_owned())).await;
    assert_eq!(charged.unwrap(), "late");
    assert_eq!(*questions.lock().unwrap(), 2);
}

/// A deploy that declares a horizon proves nothing about calls that were begun without one.
#[tokio::test]
async fn attack_25_a_new_horizon_does_not_apply_to_a_phase_that_was_begun_without_one() {
    let mut town = Town::under(|policy| policy.horizon = None).await;
    dead_while_charging(&town).await;
    let declared = Policy { horizon: Some(Duration::ZERO), ..town.route.policy().clone() };
    town.route = Route::new("resume", declared, town.route.operation().clone());
    let (ended, _) = town.ride(Probe(async |_| Found::DidNotHappen)).await;
    assert!(matches!(ended, Err(PhaseError::Parked { .. })), "{ended:?}");
    assert!(town.parked().await.contains("without a horizon"));
    assert_eq!(town.provider.calls(), 1);
}

#[tokio::test]
async fn without_a_horizon_not_found_proves_nothing() {
    let town = Town::under(|policy| policy.horizon = None).await;
    dead_while_charging(&town).await;
    let (ended, _) = town.ride(Probe(async |_| Found::DidNotHappen)).await;
    assert!(matches!(ended, Err(PhaseError::Parked { .. })), "{ended:?}");
    let reason = town.parked().await;
    assert!(reason.contains("without a horizon"), "{reason}");
    assert_eq!(town.provider.calls(), 1);
}

#[tokio::test]
async fn a_probe_that_does_not_know_is_asked_by_the_next_attempt() {
    let town = Town::new().await;
    dead_while_charging(&town).await;
    let (ended, settled) = town.ride(Probe(async |_| Found::NotKnown("it is down".into()))).await;
    assert!(matches!(ended, Err(PhaseError::Interrupted { .. })), "{ended:?}");
    // Some of it was done: the client is told so, and whoever comes next goes on at once.
    assert!(matches!(settled, Settled::Fenced(Some(_))), "{settled:?}");
    assert_eq!(town.state().await, StateKind::InProgress);
    assert!(town.record().await.last_error.unwrap().to_string().contains("it is down"));
    town.hand.turn(Duration::from_millis(1));
    let found = Probe(async |_| Found::Happened("found".to_owned()));
    assert_eq!(town.ride(found).await.0.unwrap(), "ride found receipt");
}

#[tokio::test]
async fn an_error_of_a_call_ends_the_attempt_and_the_next_one_recovers() {
    let town = Town::new().await;
    town.provider.fail(JobError::unknown("timed out"));
    let (ended, _) = town.ride(Park).await;
    assert!(matches!(ended, Err(PhaseError::Interrupted { .. })), "{ended:?}");
    town.hand.turn(Duration::from_millis(1));
    let (ended, _) = town.ride(Park).await;
    assert!(matches!(ended, Err(PhaseError::Parked { .. })), "{ended:?}");
    assert_eq!(town.provider.calls(), 1);
}

#[tokio::test]
async fn what_was_surely_not_sent_is_called_by_the_next_attempt_whatever_it_declares() {
    let town = Town::new().await;
    town.provider.fail(JobError::not_executed("connection refused"));
    let (ended, _) = town.ride(Park).await;
    assert!(matches!(ended, Err(PhaseError::Failed { .. })), "{ended:?}");
    town.hand.turn(Duration::from_millis(1));
    assert_eq!(town.ride(Park).await.0.unwrap(), "ride charge receipt");
    assert_eq!(town.effects().await, ["ride", "receipt"]);
}

/// The first call may have been heard: that the second was not sent does not say that there is no charge.
#[tokio::test]
async fn what_an_earlier_attempt_had_begun_stays_so_if_the_next_call_is_not_sent() {
    let town = Town::new().await;
    dead_while_charging(&town).await;
    town.provider.fail(JobError::not_executed("connection refused"));
    let (ended, _) = town.ride(Retry).await;
    assert!(matches!(ended, Err(PhaseError::Interrupted { .. })), "{ended:?}");
    town.hand.turn(Duration::from_millis(1));
    let (ended, _) = town.ride(Park).await;
    assert!(matches!(ended, Err(PhaseError::Parked { .. })), "{ended:?}");
    assert_eq!(town.provider.calls(), 2);
}

#[tokio::test]
async fn nobody_is_called_after_the_lease() {
    async fn late(recovery: impl Recovery<String>, town: &Town) -> Result<String, PhaseError> {
        let held = town.attempt().await;
        let mut run = town.run(&held);
        run.atomic("ride", async |tx| insert(tx, "ride").await).await.unwrap();
        town.hand.turn(LEASE);
        let charged =
            run.foreign("charge", recovery, async |key: DownstreamKey| town.provider.charge(&key)).await;
        town.dies(held);
        charged
    }
    let town = Town::new().await;
    let ended = late(Park, &town).await;
    assert!(matches!(ended, Err(PhaseError::Interrupted { .. })), "{ended:?}");
    assert_eq!(town.provider.calls(), 0);
    // And it counts as not begun.
    assert_eq!(town.ride(Park).await.0.unwrap(), "ride charge receipt");
}
