//! `outcome_unknown`, `answer_not_kept`, and what a 500 is.

use super::{Expected, by_profile};
use crate::gateway::Stage;
use crate::upstream::{Act, Upstream, answer};

by_profile! {
    outcome_unknown: super::a_connection_that_ends_without_an_answer;
    answer_not_kept: super::an_answer_over_the_storage_limit;
    server_error: super::a_500;
}

async fn a_connection_that_ends_without_an_answer(profile: &Expected) {
    let upstream = Upstream::start(async |_| Act::AnswerAndClose(Vec::new())).await;
    let stage = Stage::new(upstream, &profile.toml("wait_limit = \"20ms\"")).await;
    let first = stage.send(&profile.call()).await;
    let problem = first.expect_problem_of_operation(504, "outcome_unknown");
    first.expect_retry_after(Some(5));
    let second = stage.send(&profile.call()).await;
    assert_eq!(second.expect_problem_of_operation(409, "outcome_unknown")["operation"], problem["operation"]);
    second.expect_retry_after(Some(5));
    let record = stage.record(profile.key.1).await.unwrap();
    assert_eq!((&record["state"], &record["id"]), (&"unknown".into(), &problem["operation"]));
    assert!(record["doubt"]["since"].is_string() && record["last_error"]["detail"].is_string(), "{record}");
    assert_eq!(stage.runs(), 1, "never guessed");
}

async fn an_answer_over_the_storage_limit(profile: &Expected) {
    let large = "x".repeat(100_000);
    let bytes = answer(201, &[("location", "/payments/7"), ("x-kept", "no")], &large);
    let upstream = Upstream::start(move |_| std::future::ready(Act::Answer(bytes.clone()))).await;
    let stage = Stage::new(upstream, &profile.toml("answer_bytes_max = 1000")).await;
    let first = stage.send(&profile.call()).await;
    first.expect_first(201, &large);
    assert_eq!(first.header("location"), Some("/payments/7"));
    assert_eq!(first.header("idempotency-expires"), None, "nothing is kept");
    let second = stage.send(&profile.call()).await;
    let problem = second.expect_problem(409, "answer_not_kept");
    assert_eq!(
        (&problem["answer_status"], &problem["answer_location"]),
        (&201.into(), &"/payments/7".into())
    );
    assert_eq!(second.header("location"), Some("/payments/7"));
    second.expect_retry_after(None);
    let record = stage.record(profile.key.1).await.unwrap();
    assert_eq!((&record["state"], &record["answer"]["kept"]), (&"completed".into(), &false.into()));
    assert_eq!(stage.runs(), 1);
}

async fn a_500(profile: &Expected) {
    let upstream =
        Upstream::start(async |seen| Act::Answer(answer(500, &[], format!("run {}", seen.number)))).await;
    let stage = Stage::new(upstream, &profile.toml("wait_limit = \"20ms\"")).await;
    stage.send(&profile.call()).await.expect_first(500, "run 1");
    assert_eq!(stage.state(profile.key.1).await.as_deref(), Some(profile.server_error));
    let second = stage.send(&profile.call()).await;
    match profile.server_error {
        "completed" => second.expect_replay(500, "run 1"),
        "failed_retryable" => second.expect_first(500, "run 2"),
        _ => drop(second.expect_problem_of_operation(409, "outcome_unknown")),
    }
}
