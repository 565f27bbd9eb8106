//! `key_invalid`, each way.

use super::{Expected, by_profile};
use crate::client::Call;
use crate::gateway::{Stage, admin};

by_profile! {
    key_invalid: super::keys_that_cannot_be_used;
}

async fn keys_that_cannot_be_used(profile: &Expected) {
    let stage = Stage::numbered(&profile.toml("")).await;
    for key in profile.keys_invalid {
        let reply = stage.send(&Call::post("/payments").header("idempotency-key", key).json("{}")).await;
        reply.expect_problem(400, "key_invalid");
        reply.expect_retry_after(None);
    }
    // Two lines, also of the same key.
    for second in [profile.key.0, "another-key-of-some-length"] {
        let reply = stage.send(&profile.call().key(second)).await;
        reply.expect_problem(400, "key_invalid");
    }
    let counts = admin(&stage.gateway, "/api/v1/counts").await.json();
    assert!(
        counts.as_object().unwrap().values().filter_map(serde_json::Value::as_u64).all(|count| count == 0),
        "{counts}"
    );
    assert_eq!(stage.runs(), 0);
    stage.send(&profile.call()).await.expect_first(200, "run 1");
}
