//! `key_expired`: past retention. Here time is what is tested, so it passes: as little of it as can be configured.

use super::{Expected, by_profile};
use crate::client::within;
use crate::gateway::Stage;
use crate::reply::Reply;

by_profile! {
    key_expired: super::past_retention;
    key_expired_404: super::past_retention_under_404;
}

/// Asks until the answer is no longer kept.
async fn until_expired(stage: &Stage, profile: &Expected) -> Reply {
    let asking = async {
        loop {
            let reply = stage.send(&profile.call()).await;
            if !reply.is_replay() {
                return reply;
            }
        }
    };
    within(asking).await
}

async fn past_retention(profile: &Expected) {
    let stage = Stage::numbered(&profile.toml("retention = \"1ms\"")).await;
    stage.send(&profile.call()).await.expect_first(200, "run 1");
    let reply = until_expired(&stage, profile).await;
    match profile.expired {
        Some(status) => {
            reply.expect_problem_of_operation(status, "key_expired");
            reply.expect_retry_after(None);
            assert_eq!(stage.state(profile.key.1).await.as_deref(), Some("expired"));
            assert_eq!(stage.runs(), 1);
        }
        None => reply.expect_first(200, "run 2"),
    }
}

async fn past_retention_under_404(profile: &Expected) {
    let stage = Stage::numbered(&profile.toml("retention = \"1ms\"\nafter_retention = 404")).await;
    stage.send(&profile.call()).await.expect_first(200, "run 1");
    until_expired(&stage, profile).await.expect_problem_of_operation(404, "key_expired");
    assert_eq!(stage.runs(), 1);
}
