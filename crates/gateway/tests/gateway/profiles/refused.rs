//! Nothing was executed: `upstream_unreachable`, `store_unavailable`, `overloaded`.

use super::{Expected, by_profile};
use crate::client::Call;
use crate::gateway::{Stage, in_front_of, record, state};
use crate::upstream::{Refusing, Upstream, numbered};

by_profile! {
    upstream_unreachable: super::a_refused_connection;
    store_unavailable: super::a_store_that_does_not_write;
    overloaded: super::too_much_at_once;
    overloaded_in_line: super::too_long_in_line;
}

async fn a_refused_connection(profile: &Expected) {
    let refusing = Refusing::new();
    let gateway = in_front_of(refusing.addr(), &profile.toml("")).await;
    let reply = profile.call().send(gateway.address()).await;
    let problem = reply.expect_problem(502, "upstream_unreachable");
    assert!(problem["detail"].as_str().unwrap().contains("same key"), "{problem}");
    reply.expect_retry_after(Some(1));
    let record = record(&gateway, profile.key.1).await.unwrap();
    assert_eq!(
        (&record["state"], &record["last_error"]["code"]),
        (&"failed_retryable".into(), &"not_sent".into())
    );
    // There it is: the same key runs at once.
    let upstream = Upstream::on(refusing.listen(), numbered);
    profile.call().send(gateway.address()).await.expect_first(200, "run 1");
    profile.call().send(gateway.address()).await.expect_replay(200, "run 1");
    assert_eq!(upstream.runs(), 1);
}

/// A file that is not where it was is not written to: another process would not see it.
async fn a_store_that_does_not_write(profile: &Expected) {
    let folder = tempfile::tempdir().unwrap();
    let (file, away) = (folder.path().join("records.db"), folder.path().join("away.db"));
    let store = format!("[store]\nurl = \"sqlite://{}\"\n", file.display());
    let stage = Stage::numbered(&(store + &profile.toml(""))).await;
    std::fs::rename(&file, &away).unwrap();
    let reply = stage.send(&profile.call()).await;
    let problem = reply.expect_problem(503, "store_unavailable");
    assert!(problem["detail"].as_str().unwrap().contains("Nothing was executed"), "{problem}");
    reply.expect_retry_after(Some(5));
    assert_eq!(stage.runs(), 0, "it fails closed");
    // What nobody protects goes on.
    stage.send(&Call::get("/payments/7")).await.expect_first(200, "run 1");
    std::fs::rename(&away, &file).unwrap();
    assert_eq!(stage.state(profile.key.1).await, None);
    stage.send(&profile.call()).await.expect_first(200, "run 2");
}

async fn too_much_at_once(profile: &Expected) {
    let (gate, upstream) = Upstream::gated().await;
    let limits = "[limits]\nexecutions_max = 1\nqueue_max = 0\n".to_owned();
    let stage = Stage::new(upstream, &(limits + &profile.toml(""))).await;
    let mut running = Call::get("/slow").open(stage.addr()).await;
    gate.entered().await;
    let reply = stage.send(&profile.call()).await;
    let problem = reply.expect_problem(503, "overloaded");
    assert!(problem["detail"].as_str().unwrap().contains("Nothing was executed"), "{problem}");
    reply.expect_retry_after(Some(1));
    assert_eq!(stage.state(profile.key.1).await, None, "nothing is recorded of it");
    gate.open();
    running.reply().await.expect_first(200, "run 1");
    gate.open();
    stage.send(&profile.call()).await.expect_first(200, "run 2");
}

async fn too_long_in_line(profile: &Expected) {
    let (gate, upstream) = Upstream::gated().await;
    let limits = "[limits]\nexecutions_max = 1\nqueue_max = 9\nqueue_timeout = \"1ms\"\n".to_owned();
    let stage = Stage::new(upstream, &(limits + &profile.toml(""))).await;
    let mut running = Call::get("/slow").open(stage.addr()).await;
    gate.entered().await;
    let reply = stage.send(&profile.call()).await;
    reply.expect_problem(503, "overloaded");
    reply.expect_retry_after(Some(1));
    assert_eq!(state(&stage.gateway, profile.key.1).await.as_deref(), Some("failed_retryable"));
    assert_eq!(stage.runs(), 1);
    gate.open();
    running.reply().await.expect_first(200, "run 1");
    gate.open();
    stage.send(&profile.call()).await.expect_first(200, "run 2");
}
