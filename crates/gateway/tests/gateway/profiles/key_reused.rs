//! `key_reused`: same key, other request.

use super::{Expected, by_profile};
use crate::client::Call;
use crate::gateway::Stage;

by_profile! {
    key_reused: super::one_key_for_two_requests;
    replayed: super::one_key_for_one_request;
}

async fn one_key_for_two_requests(profile: &Expected) {
    let stage = Stage::numbered(&profile.toml("")).await;
    stage.send(&profile.call()).await.expect_first(200, "run 1");
    let other = Call::post("/payments").key(profile.key.0).json(r#"{"amount":101}"#);
    let reply = stage.send(&other).await;
    match profile.key_reused {
        Some(status) => {
            reply.expect_problem_of_operation(status, "key_reused");
            reply.expect_retry_after(None);
        }
        None => reply.expect_replay(200, "run 1"),
    }
    stage.send(&profile.call()).await.expect_replay(200, "run 1");
    assert_eq!(stage.runs(), 1);
}

async fn one_key_for_one_request(profile: &Expected) {
    let stage = Stage::numbered(&profile.toml("")).await;
    let first = stage.send(&profile.call()).await;
    first.expect_first(200, "run 1");
    // Members in another order are the same request.
    let again = stage.send(&Call::post("/payments").key(profile.key.0).json("{ \"amount\" : 1e2 }")).await;
    again.expect_replay(200, "run 1");
    assert_eq!(again.header(profile.replayed), Some("true"));
    assert!(first.header("idempotency-expires").is_some(), "{first:?}");
    assert_eq!(first.in_common(), again.in_common());
    assert_eq!((stage.runs(), stage.state(profile.key.1).await.as_deref()), (1, Some("completed")));
}
