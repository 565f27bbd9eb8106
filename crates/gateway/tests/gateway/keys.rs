//! What the upstream is told of key and attempt, and what it says about its own answer.

use crate::client::{Call, within};
use crate::gateway::{Stage, defaults};
use crate::upstream::{Act, Seen, Upstream, answer, numbered};

/// Refuses every other time, then says which run it is.
async fn refusing_first(seen: Seen) -> Act {
    if seen.number % 2 == 1 { Act::Answer(answer(503, &[], "later")) } else { numbered(seen).await }
}

#[tokio::test]
async fn the_attempts_number_grows() {
    let upstream = Upstream::start(async |seen: Seen| match seen.number {
        1..=3 => Act::Answer(answer(503, &[], "later")),
        _ => numbered(seen).await,
    });
    let stage = Stage::new(upstream.await, "").await;
    for _ in 0..3 {
        stage.send(&Call::pay("one").header("idempotency-attempt", "7")).await.expect_first(503, "later");
    }
    stage.send(&Call::pay("one")).await.expect_first(200, "run 4");
    stage.send(&Call::pay("two")).await.expect_first(200, "run 5");
    let attempts: Vec<u64> = stage
        .upstream
        .seen()
        .iter()
        .map(|seen| seen.header("idempotency-attempt").unwrap().parse().unwrap())
        .collect();
    assert!(attempts.is_sorted_by(|earlier, later| earlier < later), "{attempts:?}");
    assert_eq!(stage.record("one").await.unwrap()["attempts"], 4);
    // A request that nobody protects is no attempt, whatever its client says.
    stage.send(&Call::get("/").header("idempotency-attempt", "7")).await;
    assert_eq!(stage.upstream.last().header("idempotency-attempt"), None);
}

#[tokio::test]
async fn the_key_in_one_spelling() {
    let stage = Stage::numbered("").await;
    stage.send(&Call::pay("\"one\";p=1")).await.expect_first(200, "run 1");
    assert_eq!(stage.upstream.last().header("idempotency-key"), Some("one"));
}

#[tokio::test]
async fn no_key() {
    let stage = Stage::numbered(&defaults("ietf", "forward_key = \"none\"")).await;
    stage.send(&Call::pay("one")).await.expect_first(200, "run 1");
    let seen = stage.upstream.last();
    assert_eq!(seen.header("idempotency-key"), None);
    assert!(seen.header("idempotency-attempt").is_some());
}

#[tokio::test]
async fn a_derived_key_names_scope_key_and_life() {
    let rules = "forward_key = \"derived\"\nretention = \"1ms\"";
    let stage = Stage::new(Upstream::start(refusing_first).await, &defaults("ietf", rules)).await;
    let key = |stage: &Stage| stage.upstream.last().header("idempotency-key").unwrap().to_owned();

    // The retry of a released key is the same operation.
    stage.send(&Call::pay("one")).await.expect_first(503, "later");
    let first = key(&stage);
    assert!(first.starts_with('"') && first.len() == 38 && !first.contains("one"), "{first}");
    // Its retention may be over by then, which makes it a new life: only the longest kept one can be compared.
    let lasting =
        Stage::new(Upstream::start(refusing_first).await, &defaults("ietf", "forward_key = \"derived\""))
            .await;
    lasting.send(&Call::pay("one")).await.expect_first(503, "later");
    let released = key(&lasting);
    lasting.send(&Call::pay("one")).await.expect_first(200, "run 2");
    assert_eq!(key(&lasting), released);
    // Operators are shown it, to find it in the upstream's books.
    let record = lasting.record("one").await.unwrap();
    assert_eq!(format!("\"{}\"", record["derived_key"].as_str().unwrap()), released);

    // Another tenant's, and another key's, are others.
    let other = Call::anonymous("POST", "/payments").tenant("umbrella").key("one").json(r#"{"amount":100}"#);
    lasting.send(&other).await.expect_first(503, "later");
    assert_ne!(key(&lasting), released);
    lasting.send(&Call::pay("two")).await.expect_first(200, "run 4");
    assert_ne!(key(&lasting), released);

    // A new life is another operation.
    let living_again = async {
        loop {
            let runs = stage.runs();
            let reply = stage.send(&Call::pay("one")).await;
            if stage.runs() > runs && reply.status == 200 {
                return key(&stage);
            }
        }
    };
    let second = within(living_again).await;
    let third = within(async {
        loop {
            let runs = stage.runs();
            stage.send(&Call::pay("one")).await;
            if stage.runs() > runs {
                return key(&stage);
            }
        }
    });
    assert_ne!(third.await, second);
}

/// Its own word stands before the status, and is not the client's to see.
#[tokio::test]
async fn the_upstreams_own_account() {
    let rows = [
        ("completed", 500, "completed"),
        ("not-executed", 200, "failed_retryable"),
        ("unknown", 200, "unknown"),
        ("nonsense", 200, "completed"),
        // Of this hop or not: it is for this hop.
        ("not-executed\r\nconnection: idempotency-outcome", 201, "failed_retryable"),
    ];
    for (account, status, state) in rows {
        let bytes = answer(status, &[("Idempotency-Outcome", account)], "answered");
        let upstream = Upstream::start(move |_| std::future::ready(Act::Answer(bytes.clone()))).await;
        let stage = Stage::new(upstream, "").await;
        let reply = stage.send(&Call::pay("one")).await;
        reply.expect_first(status, "answered");
        assert_eq!(reply.header("idempotency-outcome"), None, "{account}");
        assert_eq!(stage.state("one").await.as_deref(), Some(state), "{account}");
        let again = stage.send(&Call::pay("one")).await;
        assert_eq!(again.header("idempotency-outcome"), None, "{account}");
        match state {
            "completed" => again.expect_replay(status, "answered"),
            "unknown" => drop(again.expect_problem_of_operation(409, "outcome_unknown")),
            _ => again.expect_first(status, "answered"),
        }
        assert_eq!(stage.runs(), if state == "failed_retryable" { 2 } else { 1 });
    }
}
