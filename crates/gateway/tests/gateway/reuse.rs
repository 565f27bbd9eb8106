//! A key that comes with another request: what the client and the operator are told.

use oncegate_test_servers::until;
use serde_json::json;

use crate::acts::story;
use crate::client::Call;
use crate::gateway::Stage;

const FIRST: &str = r#"{"amount":100,"card":"4242","currency":"EUR"}"#;
const OTHER: &str = r#"{"amount":101,"card":"4343","currency":"EUR","note":"to Ada"}"#;

#[tokio::test]
async fn members_that_differ_are_named_and_values_never() {
    let stage = Stage::numbered("").await;
    let pay = |body: &str| Call::post("/payments").key("one").json(body);
    stage.send(&pay(FIRST)).await.expect_first(200, "run 1");
    for _ in 0..5 {
        let problem = stage.send(&pay(OTHER)).await.expect_problem_of_operation(422, "key_reused");
        assert_eq!(problem["differing_members"], json!(["amount", "card", "note"]), "{problem:#}");
    }
    let record = stage.record("one").await.unwrap();
    until("the reuse is in the trail", async || !story(&stage, &record).await.is_empty()).await;
    let story = story(&stage, &record).await;
    // Five refusals are one entry: no client fills the trail.
    let [entry] = &story[..] else { panic!("{story:#?}") };
    assert_eq!((&entry["act"], &entry["source"]), (&json!("key_reused"), &json!("client 127.0.0.1")));
    let detail = entry["reason"]["detail"].as_str().unwrap();
    assert!(detail.ends_with("differing members: amount, card, note"), "{detail}");
    assert!(detail.starts_with("scope ") && !detail.contains("tenant"), "{detail}");
    let all = json!(story).to_string();
    assert!(["4343", "4242", "101", "Ada"].iter().all(|value| !all.contains(value)), "{all}");
    assert_eq!(stage.runs(), 1);
}

/// The record is not in this process's memory but in the store: the digests are part of the row.
#[tokio::test]
async fn names_are_known_after_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let store = format!("[store]\nurl = \"sqlite://{}\"", directory.path().join("keys.db").display());
    let pay = |body: &str| Call::post("/payments").key("one").json(body);
    let first = Stage::numbered(&store).await;
    first.send(&pay(FIRST)).await.expect_first(200, "run 1");
    first.gateway.shut_down().await;
    let second = Stage::numbered(&store).await;
    let problem = second.send(&pay(OTHER)).await.expect_problem_of_operation(422, "key_reused");
    assert_eq!(problem["differing_members"], json!(["amount", "card", "note"]), "{problem:#}");
}

/// Of bodies without members nothing is named.
#[tokio::test]
async fn what_has_no_members_has_no_names() {
    let stage = Stage::numbered("").await;
    let pay = |body: &str| Call::post("/payments").key("one").json(body);
    stage.send(&pay("[1,2]")).await.expect_first(200, "run 1");
    for body in ["[1,3]", r#"{"amount":1}"#] {
        let problem = stage.send(&pay(body)).await.expect_problem_of_operation(422, "key_reused");
        assert_eq!(problem.get("differing_members"), None, "{problem:#}");
    }
}
