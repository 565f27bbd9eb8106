//! The audit trail through the admin interface: by time, scope and operation, page by page; and
//! what becomes a part of it.

use serde_json::{Value, json};

use crate::admin::with_records;
use crate::client::Call;
use crate::gateway::{Stage, admin};

async fn page(stage: &Stage, query: &str) -> Value {
    let reply = admin(&stage.gateway, &format!("/api/v1/audit?{query}")).await;
    assert_eq!(reply.status, 200, "{query}: {reply:?}");
    reply.json()
}

async fn acts(stage: &Stage, query: &str) -> Vec<String> {
    let page = page(stage, query).await;
    let entries = page["entries"].as_array().unwrap().iter();
    entries.map(|entry| entry["act"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn it_is_narrowed_and_paged() {
    let stage = with_records().await;
    let mut all = acts(&stage, "").await;
    all.sort();
    assert_eq!(all, ["doubted", "not_known", "released"]);
    assert_eq!(acts(&stage, "act=released").await, ["released"]);
    let scope = stage.record("two").await.unwrap()["scope"].as_str().unwrap().to_owned();
    assert_eq!(acts(&stage, &format!("scope={scope}")).await.len(), 3);
    assert_eq!(acts(&stage, "scope=umbrella").await, [""; 0]);
    assert_eq!(acts(&stage, "operation=POST%20/refunds").await, [""; 0]);
    assert_eq!(acts(&stage, "since=2000-01-01T00:00:00Z").await.len(), 3);
    assert_eq!(acts(&stage, "until=2000-01-01T00:00:00Z").await, [""; 0]);
    let (mut seen, mut after) = (Vec::new(), String::new());
    loop {
        let page = page(&stage, &format!("limit=1{after}")).await;
        seen.extend(page["entries"].as_array().unwrap().clone());
        match &page["next"] {
            Value::String(next) => after = format!("&after={next}"),
            next => break assert_eq!(next, &Value::Null),
        }
    }
    assert_eq!(json!(seen), page(&stage, "").await["entries"]);
    let released = page(&stage, "act=released").await;
    assert_eq!(released["entries"][0]["id"], stage.record("released").await.unwrap()["id"]);
}

#[tokio::test]
async fn questions_that_cannot_be_read() {
    let stage = Stage::numbered("").await;
    for (query, words) in [
        ("since=yesterday", "2026-11-16T09:30:00Z"),
        ("limit=0", "500"),
        ("limit=501", "500"),
        ("after=17", "`next` of an earlier page"),
        ("after=1.2.3", "`next` of an earlier page"),
        ("act=exploded", "ran_after_expiry"),
        ("key=k", "since, until"),
    ] {
        let reply = admin(&stage.gateway, &format!("/api/v1/audit?{query}")).await;
        assert_eq!(
            (reply.status, reply.header("content-type")),
            (400, Some("application/problem+json")),
            "{query}"
        );
        let detail = reply.json()["detail"].as_str().unwrap().to_owned();
        assert!(detail.contains(words), "{query}: {detail}");
    }
}

const RUN: &str = r#"{"name":"acme-pay","charges":120,"records":118,"differences":3,"unreadable":1}"#;

async fn send(stage: &Stage, call: Call) -> crate::reply::Reply {
    call.send(stage.gateway.admin_address().tcp().unwrap()).await
}

#[tokio::test]
async fn the_end_of_a_comparison_becomes_an_entry() {
    let stage = Stage::numbered("").await;
    let post = || Call::operator("POST", "/api/v1/comparisons");
    let recorded = send(&stage, post().json(RUN)).await;
    assert_eq!(recorded.status, 200, "{recorded:?}");
    let page = page(&stage, "act=compared").await;
    let [entry] = &page["entries"].as_array().unwrap()[..] else { panic!("{page}") };
    assert_eq!((&entry["at"], &entry["id"]), (&recorded.json()["recorded_at"], &Value::Null));
    let detail = "name=acme-pay charges=120 records=118 differences=3 unreadable=1";
    assert_eq!(entry["reason"], json!({ "code": "different", "detail": detail }));
    let bad = [
        RUN.replace("acme-pay", "acme pay"),
        RUN.replace("acme-pay", ""),
        RUN.replace("acme-pay", &"x".repeat(65)),
        RUN.replace("120", "-1"),
        RUN.replace("\"charges\"", "\"charge\""),
        "{}".to_owned(),
        "[".to_owned(),
    ];
    for body in bad {
        assert_eq!(send(&stage, post().json(&body)).await.status, 400, "{body}");
    }
    let large = RUN.replace("acme-pay", &"x".repeat(5_000));
    assert_eq!(send(&stage, post().json(&large)).await.status, 413);
    // A web page can make a browser post forms, and without a token only this machine may write.
    let form = post().header("content-type", "text/plain").body(RUN);
    assert_eq!(send(&stage, form).await.status, 415);
    let elsewhere = post().header("origin", "https://elsewhere.example").json(RUN);
    assert_eq!(send(&stage, elsewhere).await.status, 403);
    assert_eq!(acts(&stage, "").await, ["compared"], "and nothing of those");
}

/// The retry came after retention, and the reaper had removed the row: it ran again in silence.
#[tokio::test]
async fn a_retry_after_its_row_was_removed_is_told() {
    let toml = "[workers]\nreap_every = \"10ms\"\n[defaults]\nretention = \"1s\"\nclient_retry = \"0s\"";
    let stage = Stage::numbered(toml).await;
    stage.send(&Call::pay("one")).await.expect_first(200, "run 1");
    let id = stage.record("one").await.unwrap()["id"].clone();
    oncegate_test_servers::until("the row was removed", async || stage.record("one").await.is_none()).await;
    assert_eq!(acts(&stage, "").await, [""; 0]);
    stage.send(&Call::pay("one")).await.expect_first(200, "run 2");
    oncegate_test_servers::until("it is told", async || {
        acts(&stage, "").await.iter().any(|act| act == "ran_after_expiry")
    })
    .await;
    let told = page(&stage, "act=ran_after_expiry").await;
    assert_eq!(told["entries"][0]["id"], id);
    assert_eq!(told["entries"][0]["operation"], "POST *");
}
