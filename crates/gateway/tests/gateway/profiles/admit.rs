//! What is refused before anything is recorded: `scope_missing`, `key_missing`, `request_invalid`, `too_large`.

use super::{Expected, by_profile};
use crate::client::{Call, Connection};
use crate::gateway::Stage;

by_profile! {
    scope_missing: super::nobody_to_scope_the_key_to;
    key_missing: super::no_key;
    request_invalid: super::a_body_that_cannot_be_compared;
    too_large: super::a_body_over_the_limit;
}

async fn nobody_to_scope_the_key_to(profile: &Expected) {
    let stage = Stage::numbered(&profile.toml("")).await;
    let nobody = Call::anonymous("POST", "/payments").key(profile.key.0).json("{}");
    let reply = stage.send(&nobody).await;
    let problem = reply.expect_problem(401, "scope_missing");
    let words = problem["detail"].as_str().unwrap();
    assert!(words.contains("scope.from") && words.contains("scope.anonymous"), "names the settings: {words}");
    assert!(reply.header("www-authenticate").is_some(), "{reply:?}");
    reply.expect_retry_after(None);
    // Two of them are nobody, too.
    let two = nobody.tenant("acme").tenant("umbrella");
    stage.send(&two).await.expect_problem(401, "scope_missing");
    assert_eq!((stage.runs(), stage.state(profile.key.1).await), (0, None));
}

async fn no_key(profile: &Expected) {
    let stage = Stage::numbered(&profile.toml("")).await;
    let reply = stage.send(&Call::post("/payments").json("{}")).await;
    if profile.key_required {
        reply.expect_problem(400, "key_missing");
        reply.expect_retry_after(None);
        assert_eq!(stage.runs(), 0);
    } else {
        reply.expect_first(200, "run 1");
        assert_eq!(stage.upstream.last().header("idempotency-attempt"), None, "nothing protects it");
    }
    let runs = stage.runs();
    let reply = stage.send(&Call::post("/payments").key("").json("{}")).await;
    match profile.key_empty {
        Some(code) => {
            reply.expect_problem(400, code);
            assert_eq!(stage.runs(), runs);
        }
        None => reply.expect_first(200, "run 2"),
    }
    let counts = crate::gateway::admin(&stage.gateway, "/api/v1/counts").await.json();
    assert!(
        counts.as_object().unwrap().values().filter_map(serde_json::Value::as_u64).all(|count| count == 0),
        "{counts}"
    );
}

async fn a_body_that_cannot_be_compared(profile: &Expected) {
    let stage = Stage::numbered(&profile.toml("")).await;
    for body in [r#"{"amount":1,"amount":2}"#, r#"{"note":"\ud800"}"#, r#"{"amount":"#, "{} {}"] {
        let reply = stage.send(&Call::post("/payments").key(profile.key.0).json(body)).await;
        let problem = reply.expect_problem(400, "request_invalid");
        assert!(problem["detail"].as_str().unwrap().contains("Nothing was executed"), "{problem}");
        reply.expect_retry_after(None);
    }
    // A body that breaks off is none.
    let mut half = Connection::to(stage.addr()).await;
    half.write(profile.call().head()).await;
    half.write(r#"{"amo"#).await;
    drop(half);
    assert_eq!((stage.runs(), stage.state(profile.key.1).await), (0, None));
    // The key is as unused as before.
    stage.send(&profile.call()).await.expect_first(200, "run 1");
}

async fn a_body_over_the_limit(profile: &Expected) {
    let stage = Stage::numbered(&profile.toml("body_bytes_max = 20")).await;
    let call = |length: usize| {
        let text = "x".repeat(length);
        Call::post("/payments").key(profile.key.0).header("content-type", "text/plain").body(text)
    };
    for over in [call(21), call(21).chunked(), call(4 << 20), call(4 << 20).chunked()] {
        let reply = stage.send(&over).await;
        reply.expect_problem(413, "too_large");
        reply.expect_retry_after(None);
    }
    // One that asks first is told before it sends anything.
    let mut asking = Connection::to(stage.addr()).await;
    asking.write(call(1 << 20).header("expect", "100-continue").head()).await;
    asking.reply().await.expect_problem(413, "too_large");
    assert_eq!((stage.runs(), stage.state(profile.key.1).await), (0, None));
    stage.send(&call(20)).await.expect_first(200, "run 1");
}
