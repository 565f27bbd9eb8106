//! `in_progress`: a duplicate while the first runs.

use super::{Expected, by_profile};
use crate::gateway::Stage;
use crate::upstream::Upstream;

by_profile! {
    in_progress: super::a_duplicate_while_the_first_runs;
}

async fn a_duplicate_while_the_first_runs(profile: &Expected) {
    let (gate, upstream) = Upstream::gated().await;
    // So long that a test which waits for it in vain hangs.
    let stage = Stage::new(upstream, &profile.toml("wait_limit = \"2m\"")).await;
    let mut first = profile.call().open(stage.addr()).await;
    gate.entered().await;
    assert_eq!(stage.state(profile.key.1).await.as_deref(), Some("in_progress"));
    if profile.waits {
        let mut second = profile.call().open(stage.addr()).await;
        assert!(second.is_silent());
        gate.open();
        second.reply().await.expect_replay(200, "run 1");
    } else {
        let reply = stage.send(&profile.call()).await;
        reply.expect_problem_of_operation(409, "in_progress");
        reply.expect_retry_after(Some(1));
        gate.open();
    }
    first.reply().await.expect_first(200, "run 1");
    stage.send(&profile.call()).await.expect_replay(200, "run 1");
    assert_eq!(stage.runs(), 1);
}

/// Who waits does not wait for ever.
#[tokio::test]
async fn lenient_waits_up_to_its_limit() {
    let (gate, upstream) = Upstream::gated().await;
    let stage = Stage::new(upstream, &super::LENIENT.toml("wait_limit = \"20ms\"")).await;
    let mut first = super::LENIENT.call().open(stage.addr()).await;
    gate.entered().await;
    let reply = stage.send(&super::LENIENT.call()).await;
    reply.expect_problem_of_operation(409, "in_progress");
    gate.open();
    first.reply().await.expect_first(200, "run 1");
    assert_eq!(stage.runs(), 1);
}
