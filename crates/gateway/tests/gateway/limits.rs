//! How much at once.

use serde_json::Value;
use tokio::io::AsyncReadExt as _;

use crate::client::{Call, Connection, within};
use crate::gateway::{Stage, admin};
use crate::upstream::{Gate, Upstream};

async fn stage(limits: &str) -> (Gate, Stage) {
    let (gate, upstream) = Upstream::gated().await;
    (gate, Stage::new(upstream, &format!("[limits]\n{limits}\n")).await)
}

async fn ready(stage: &Stage) -> (u16, Value) {
    let reply = admin(&stage.gateway, "/readyz").await;
    (reply.status, reply.json())
}

/// Waits for something that nobody announces.
async fn until_shedding(stage: &Stage) {
    let asking = async { while ready(stage).await.1["load"] != "shedding" {} };
    within(asking).await;
}

#[tokio::test]
async fn some_run_some_wait_and_the_rest_is_shed() {
    let (gate, stage) = stage("executions_max = 2\nqueue_max = 1\nqueue_timeout = \"2m\"").await;
    let mut first = Call::pay("one").open(stage.addr()).await;
    gate.entered().await;
    let mut second = Call::get("/").open(stage.addr()).await;
    gate.entered().await;
    assert_eq!(ready(&stage).await.0, 200, "one may wait");
    let mut third = Call::pay("three").open(stage.addr()).await;
    until_shedding(&stage).await;
    let (status, said) = ready(&stage).await;
    assert_eq!((status, &said["ready"], &said["store"]), (503, &false.into(), &"ok".into()));

    let shed = stage.send(&Call::pay("four")).await;
    shed.expect_problem(503, "overloaded");
    shed.expect_retry_after(Some(1));
    stage.send(&Call::get("/")).await.expect_problem(503, "overloaded");
    assert_eq!(stage.state("four").await, None, "no record of what was shed");
    assert_eq!(stage.runs(), 2, "who waits has not been sent");
    assert_eq!(stage.state("three").await.as_deref(), Some("in_progress"));

    gate.open();
    first.reply().await.expect_first(200, "run 1");
    gate.entered().await;
    gate.open();
    gate.open();
    assert_eq!(second.reply().await.status, 200);
    third.reply().await.expect_first(200, "run 3");
    assert_eq!(ready(&stage).await.0, 200);
    gate.open();
    stage.send(&Call::pay("four")).await.expect_first(200, "run 4");
}

/// Retries of what is done were refused together with what is new, so that their clients sent them
/// again and again.
#[tokio::test]
async fn replays_are_served_while_new_requests_are_shed() {
    for limits in ["executions_max = 1\nqueue_max = 0", "requests_max = 1\nper_peer_requests_max = 9"] {
        let (gate, stage) = stage(limits).await;
        gate.open();
        stage.send(&Call::pay("done")).await.expect_first(200, "run 1");
        gate.entered().await;
        let mut hanging = Call::pay("hanging").open(stage.addr()).await;
        gate.entered().await;
        for _ in 0..3 {
            stage.send(&Call::pay("done")).await.expect_replay(200, "run 1");
            let other = Call::post("/payments").key("done").json(r#"{"amount":200}"#);
            stage.send(&other).await.expect_problem(422, "key_reused");
            let shed = stage.send(&Call::pay("new")).await;
            shed.expect_problem(503, "overloaded");
            shed.expect_retry_after(Some(1));
            stage.send(&Call::get("/")).await.expect_problem(503, "overloaded");
            // What is asked about operations is admitted like all else.
            let operation = Call::get("/.oncegate/operations/op_00000000000000000000000000");
            stage.send(&operation).await.expect_problem(503, "overloaded");
        }
        assert_eq!(stage.state("new").await, None, "no record of what was shed");
        assert_eq!(stage.runs(), 2);
        gate.open();
        hanging.reply().await.expect_first(200, "run 2");
        gate.open();
        stage.send(&Call::pay("new")).await.expect_first(200, "run 3");
    }
}

/// The upstream is still at work on it, so its place is not free.
#[tokio::test]
async fn a_client_that_hangs_up_keeps_its_place() {
    let (gate, stage) = stage("executions_max = 1\nqueue_max = 0").await;
    let client = Call::pay("one").open(stage.addr()).await;
    gate.entered().await;
    drop(client);
    // Whatever was to happen because of it has happened when others have been answered.
    for _ in 0..5 {
        stage.send(&Call::pay("two")).await.expect_problem(503, "overloaded");
    }
    gate.open();
    let retrying = async {
        loop {
            gate.open();
            let reply = stage.send(&Call::pay("two")).await;
            if reply.status == 200 {
                return reply;
            }
        }
    };
    within(retrying).await.expect_first(200, "run 2");
    stage.send(&Call::pay("one")).await.expect_replay(200, "run 1");
    assert_eq!(stage.runs(), 2);
}

/// A refusal is read by a client that is still sending.
#[tokio::test]
async fn a_large_request_that_is_shed() {
    let (gate, stage) = stage("executions_max = 1\nqueue_max = 0").await;
    let mut running = Call::get("/").open(stage.addr()).await;
    gate.entered().await;
    let large = "x".repeat(8 << 20);
    let keyed = Call::post("/payments").key("one").body(&large[..1 << 20]);
    for call in [keyed, Call::anonymous("PUT", "/").body(&large).chunked()] {
        stage.send(&call).await.expect_problem(503, "overloaded");
    }
    gate.open();
    running.reply().await.expect_first(200, "run 1");
    // And of one that could be read in two ways.
    let two_hosts = Call::anonymous("PUT", "/").header("host", "b.test").body(&large);
    stage.send(&two_hosts).await.expect_problem(400, "request_malformed");
    // And of one that is not for the upstream.
    let own = Call::anonymous("PUT", "/.oncegate/upload").body(&large);
    stage.send(&own).await.expect_problem(404, "operation_not_found");
    assert_eq!(stage.runs(), 1);
}

#[tokio::test]
async fn unprotected_bodies_have_no_limit() {
    let (gate, stage) = stage("executions_max = 1").await;
    gate.open();
    let large = "x".repeat(8 << 20);
    stage.send(&Call::anonymous("PUT", "/upload").body(&large)).await.expect_first(200, "run 1");
    assert_eq!(stage.upstream.last().body.len(), large.len());
}

/// A head that does not come, or not to its end, is not waited for.
#[tokio::test]
async fn connections_that_say_nothing() {
    let stage = Stage::numbered("[listen]\nheader_timeout = \"100ms\"").await;
    // Nothing yet, or what may become HTTP/2: there is no request to answer.
    for begun in ["", "P", "PRI * HTTP/2.0", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"] {
        let mut connection = Connection::to(stage.addr()).await;
        connection.write(begun).await;
        let mut rest = Vec::new();
        within(connection.read.read_to_end(&mut rest)).await.unwrap();
        let told = String::from_utf8_lossy(&rest);
        assert!(!told.contains("HTTP"), "{begun:?}: {told}");
    }
    for begun in ["G", "PO", "\r\n", "POST / HTTP/1.1\r\nhost: a\r\n"] {
        let mut connection = Connection::to(stage.addr()).await;
        connection.write(begun).await;
        let problem = connection.reply().await.expect_problem(408, "request_malformed");
        assert!(problem["detail"].as_str().unwrap().contains("header_timeout"), "{begun:?}: {problem}");
        connection.closed().await;
    }
    assert_eq!(stage.runs(), 0);
}

/// The limit holds for every head of a connection, and a pause between two requests is not one.
#[tokio::test]
async fn a_second_head_that_does_not_end() {
    let stage = Stage::numbered("[listen]\nheader_timeout = \"100ms\"\nidle_timeout = \"1h\"").await;
    let mut connection = Connection::to(stage.addr()).await;
    connection.ask(&Call::get("/")).await.expect_first(200, "run 1");
    connection.ask(&Call::get("/")).await.expect_first(200, "run 2");
    connection.write("GET / HT").await;
    connection.reply().await.expect_problem(408, "request_malformed");
    connection.closed().await;
    assert_eq!(stage.runs(), 2);
}

/// More connections than may be wait to be accepted, and are then served.
#[tokio::test]
async fn more_connections_than_may_be() {
    let (gate, upstream) = Upstream::gated().await;
    let stage = Stage::new(upstream, "[listen]\nconnections_max = 1").await;
    let mut first = Call::get("/").open(stage.addr()).await;
    gate.entered().await;
    let mut second = Call::get("/").open(stage.addr()).await;
    gate.open();
    first.reply().await.expect_first(200, "run 1");
    assert!(second.is_silent());
    assert_eq!(stage.runs(), 1);
    drop(first);
    gate.open();
    second.reply().await.expect_first(200, "run 2");
}
