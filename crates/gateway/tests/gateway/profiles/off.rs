//! `off`: the header is the upstream's to read, and nothing is recorded.

use crate::client::Call;
use crate::gateway::{Stage, admin, defaults};

#[tokio::test]
async fn every_request_passes_with_its_key() {
    let stage = Stage::numbered(&defaults("off", "")).await;
    for (run, key) in ["one", "one", "\"unterminated", ""].into_iter().enumerate() {
        stage.send(&Call::pay(key)).await.expect_first(200, &format!("run {}", run + 1));
        let seen = stage.upstream.last();
        assert_eq!((seen.header("idempotency-key"), seen.header("idempotency-attempt")), (Some(key), None));
        assert_eq!(seen.body, br#"{"amount":100}"#);
    }
    // Without any identity, with two keys, and with a body that is no JSON.
    let odd = Call::anonymous("POST", "/").key("one").key("two").json("{");
    stage.send(&odd).await.expect_first(200, "run 5");
    assert_eq!(stage.upstream.last().values("idempotency-key"), ["one", "two"]);
    let counts = admin(&stage.gateway, "/api/v1/counts").await.json();
    assert!(
        counts.as_object().unwrap().values().filter_map(serde_json::Value::as_u64).all(|count| count == 0),
        "{counts}"
    );
}

#[tokio::test]
async fn one_route_among_protected_ones() {
    let toml = "[[route]]\nmatch = \"POST /search\"\nprofile = \"off\"\n";
    let stage = Stage::numbered(toml).await;
    stage.send(&Call::post("/search").json("{}")).await.expect_first(200, "run 1");
    stage.send(&Call::post("/payments").json("{}")).await.expect_problem(400, "key_missing");
    assert_eq!(stage.runs(), 1);
}
