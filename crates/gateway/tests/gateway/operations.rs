//! `GET /.oncegate/operations/{id}`: a caller's own operation, and nobody else's.

use serde_json::{Value, json};

use crate::client::Call;
use crate::gateway::{Stage, defaults};
use crate::http2;
use crate::upstream::{Act, Seen, Upstream, answer};

/// What the caller is shown.
async fn shown(stage: &Stage, id: &str) -> Value {
    let reply = stage.send(&Call::get(&format!("/.oncegate/operations/{id}"))).await;
    assert_eq!((reply.status, reply.header("content-type")), (200, Some("application/json")), "{reply:?}");
    reply.json()
}

async fn id_of(stage: &Stage, key: &str) -> String {
    stage.record(key).await.unwrap()["id"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn in_each_state() {
    let gate = crate::upstream::Gate::new();
    let at_gate = gate.clone();
    let upstream = Upstream::start(move |seen: Seen| {
        let gate = at_gate.clone();
        async move {
            match seen.header("x-do").unwrap() {
                "wait" => gate.pass().await,
                "release" => return Act::Answer(answer(503, &[], "later")),
                "doubt" => return Act::AnswerAndClose(Vec::new()),
                "bytes" => return Act::Answer(answer(201, &[("link", "a"), ("link", "b")], b"\x00\xff")),
                _ => return Act::Answer(answer(201, &[("location", "/7")], "x".repeat(2000))),
            }
            Act::Answer(answer(201, &[("location", "/7"), ("content-type", "text/plain")], "paid"))
        }
    });
    let stage = Stage::new(upstream.await, &defaults("ietf", "answer_bytes_max = 1000")).await;
    let call = |key: &str, act: &str| Call::pay(key).header("x-do", act);

    let mut running = call("running", "wait").open(stage.addr()).await;
    gate.entered().await;
    // As a client learns of it: from the problem.
    let problem = stage.send(&call("running", "wait")).await.expect_problem_of_operation(409, "in_progress");
    let path = problem["instance"].as_str().unwrap();
    let running_now = stage.send(&Call::get(path)).await.json();
    assert_eq!(running_now["state"], "in_progress");
    assert_eq!((&running_now["answer"], &running_now["settled_at"]), (&Value::Null, &Value::Null));
    assert_eq!((&running_now["key"], &running_now["operation"]), (&json!("running"), &json!("POST *")));
    assert_eq!((&running_now["id"], &running_now["attempts"]), (&problem["operation"], &json!(1)));

    gate.open();
    running.reply().await.expect_first(201, "paid");
    let done = stage.send(&Call::get(path)).await.json();
    assert_eq!((&done["state"], &done["answer"]["status"]), (&json!("completed"), &json!(201)));
    assert_eq!((&done["answer"]["kept"], &done["answer"]["body"]), (&json!(true), &json!("paid")));
    let headers = done["answer"]["headers"].as_array().unwrap();
    assert!(headers.contains(&json!(["location", "/7"])), "{headers:?}");
    assert!(done["settled_at"].is_string() && done["expires_at"].is_string(), "{done}");

    stage.send(&call("released", "release")).await.expect_first(503, "later");
    let released = shown(&stage, &id_of(&stage, "released").await).await;
    assert_eq!((&released["state"], &released["answer"]), (&json!("failed_retryable"), &Value::Null));
    stage.send(&call("doubted", "doubt")).await.expect_problem(504, "outcome_unknown");
    let doubted = shown(&stage, &id_of(&stage, "doubted").await).await;
    assert_eq!((&doubted["state"], &doubted["answer"]), (&json!("unknown"), &Value::Null));
    stage.send(&call("bytes", "bytes")).await;
    let bytes = shown(&stage, &id_of(&stage, "bytes").await).await;
    assert_eq!((&bytes["answer"]["body_hex"], bytes["answer"].get("body")), (&json!("00ff"), None));
    let links = bytes["answer"]["headers"].as_array().unwrap().iter().filter(|pair| pair[0] == "link");
    assert_eq!(links.count(), 2);
    stage.send(&call("large", "large")).await;
    let large = shown(&stage, &id_of(&stage, "large").await).await;
    assert_eq!(large["answer"], json!({ "status": 201, "kept": false, "location": "/7" }));
    // None of it is an operator's view.
    for secret in ["scope", "tenant", "fence", "version", "last_error"] {
        assert_eq!(done.get(secret), None, "{secret}");
    }
    assert_eq!(stage.runs(), 5, "nothing of it was forwarded");
}

#[tokio::test]
async fn another_tenants_is_as_absent_as_one_that_never_was() {
    let stage = Stage::numbered("").await;
    stage.send(&Call::pay("one")).await.expect_first(200, "run 1");
    let id = id_of(&stage, "one").await;
    let ask = |id: &str| Call::anonymous("GET", &format!("/.oncegate/operations/{id}")).tenant("umbrella");
    let mut anothers = stage.send(&ask(&id)).await;
    let mut nobodys = stage.send(&ask("op_00000000000000000000000000")).await;
    let mut nonsense = stage.send(&ask("nonsense")).await;
    for reply in [&mut anothers, &mut nobodys, &mut nonsense] {
        reply.expect_problem(404, "operation_not_found");
        reply.headers.retain(|(name, _)| name != "date");
    }
    assert_eq!(anothers, nobodys);
    assert_eq!(anothers, nonsense);
    assert_eq!(stage.runs(), 1);
}

#[tokio::test]
async fn who_does_not_say_who_is_told_to() {
    let stage = Stage::numbered("").await;
    stage.send(&Call::pay("one")).await.expect_first(200, "run 1");
    let path = format!("/.oncegate/operations/{}", id_of(&stage, "one").await);
    for call in [Call::anonymous("GET", &path), Call::get(&path).tenant("umbrella")] {
        let reply = stage.send(&call).await;
        let problem = reply.expect_problem(401, "scope_missing");
        assert!(problem["detail"].as_str().unwrap().contains("Authorization"), "{problem}");
        assert!(reply.header("www-authenticate").is_some());
    }
    let reply = stage.send(&Call::anonymous("HEAD", &path).tenant("acme")).await;
    assert_eq!(reply.status, 200);
}

#[tokio::test]
async fn the_gateways_own_paths_are_never_forwarded() {
    let stage = Stage::numbered(&defaults("off", "")).await;
    for path in [
        "/.oncegate",
        "/.oncegate/",
        "/.oncegate?a=b",
        "/.oncegate/admin",
        "/.oncegate/operations",
        "/.oncegate/operations/",
        "/.oncegate/operations/x/y",
        // In any spelling.
        "/x/../.oncegate/operations",
        "//.oncegate/%6Fperations",
        "/%2eoncegate",
    ] {
        for method in ["GET", "POST", "PUT", "DELETE", "OPTIONS"] {
            let reply = stage.send(&Call::anonymous(method, path).tenant("acme").key("one")).await;
            reply.expect_problem(404, "operation_not_found");
        }
    }
    let mut client = http2::connect(stage.addr()).await;
    let request = http::Request::post("http://a.test/.oncegate/x").body("".into()).unwrap();
    http2::ask(&mut client, request).await.expect_problem(404, "operation_not_found");
    assert_eq!(stage.runs(), 0);
    // Only these.
    stage.send(&Call::get("/.oncegated")).await.expect_first(200, "run 1");
}
