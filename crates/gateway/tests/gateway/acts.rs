//! Operators' acts over the admin interface: settling, asking again, forgetting; and the story that they become part of.

use oncegate_engine::{Engine, NoProbe, Options, Worker, WorkerOptions};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::client::Call;
use crate::gateway::{Stage, admin};
use crate::reply::Reply;
use crate::upstream::{Act, Seen, Upstream, answer, numbered};

const NOBODY: &str = "op_00000000000000000000000000";
const TOKEN: &str = "0123456789abcdef";

/// `doubted…` ends in doubt, the first time; `released` is refused before it acts; `running` never ends.
async fn stage(toml: &str) -> Stage {
    let upstream = Upstream::start(async |seen: Seen| match seen.header("idempotency-key").unwrap() {
        key if key.starts_with("doubted") && seen.number == 1 => Act::AnswerAndClose(Vec::new()),
        "released" => Act::Answer(answer(503, &[], "later")),
        "running" => std::future::pending().await,
        _ => numbered(seen).await,
    });
    Stage::new(upstream.await, toml).await
}

/// With one record whose outcome is not known, and which no machine asks about any more: only operators change it.
pub(crate) async fn with_doubt() -> (Stage, Value, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite://{}", folder.path().join("oncegate.db").display());
    let stage = stage(&format!("[store]\nurl = \"{url}\"")).await;
    stage.send(&Call::pay("doubted")).await.expect_problem(504, "outcome_unknown");
    let record = until_parked(&stage, &folder).await;
    (stage, record, folder)
}

/// Another node of the store asks, and has nobody to ask.
async fn until_parked(stage: &Stage, folder: &TempDir) -> Value {
    let url = format!("sqlite://{}", folder.path().join("oncegate.db").display());
    let store = oncegate::open_existing(&url).await.unwrap();
    let node = Engine::start(store, Options::default()).await.unwrap();
    loop {
        let record = stage.record("doubted").await.unwrap();
        if record["doubt"]["parked"] == true {
            return record;
        }
        node.work(Worker::Reconciler, &WorkerOptions::default(), &NoProbe).await.unwrap();
    }
}

fn call(id: &str, verb: &str, body: &Value) -> Call {
    Call::operator("POST", &format!("/api/v1/records/{id}/{verb}")).json(&body.to_string())
}

async fn act(stage: &Stage, record: &Value, verb: &str, more: Value) -> Reply {
    let mut body = json!({ "version": record["version"], "operator": "ada", "reason": "seen in the ledger" });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    call(record["id"].as_str().unwrap(), verb, &body).send(stage.gateway.admin_address().tcp().unwrap()).await
}

fn happened() -> Value {
    let response =
        json!({ "status": 201, "headers": [["Content-Type", "application/json"]], "body": "{\"id\":7}" });
    json!({ "outcome": "happened", "response": response })
}

pub(crate) async fn story(stage: &Stage, record: &Value) -> Vec<Value> {
    let path = format!("/api/v1/records/{}/story", record["id"].as_str().unwrap());
    let reply = admin(&stage.gateway, &path).await;
    assert_eq!(reply.status, 200, "{reply:?}");
    reply.json()["story"].as_array().unwrap().clone()
}

#[track_caller]
fn is_refused(reply: &Reply, status: u16, words: &[&str]) -> Value {
    assert_eq!((reply.status, reply.header("content-type")), (status, Some("application/problem+json")));
    let problem = reply.json();
    let detail = problem["detail"].as_str().unwrap();
    for words in words {
        assert!(detail.contains(words), "{words:?} is not in {detail:?}");
    }
    problem
}

#[tokio::test]
async fn what_happened_is_answered_with_what_the_operator_gave() {
    let (stage, record, _folder) = with_doubt().await;
    stage.send(&Call::pay("doubted")).await.expect_problem(409, "outcome_unknown");
    let reply = act(&stage, &record, "resolve", happened()).await;
    assert_eq!(reply.status, 200, "{reply:?}");
    let done = reply.json();
    assert_eq!(done["done"], "It happened: the record is completed with a 201.");
    assert_eq!(
        (&done["record"]["state"], &done["record"]["answer"]["status"]),
        (&json!("completed"), &json!(201))
    );
    let again = stage.send(&Call::pay("doubted")).await;
    again.expect_replay(201, "{\"id\":7}");
    assert_eq!(again.header("content-type"), Some("application/json"));
    assert_eq!(stage.runs(), 1);
    let story = story(&stage, &record).await;
    assert_eq!(story.len(), 3, "{story:#?}");
    assert!(story[0]["words"].as_str().unwrap().starts_with("attempt 1 ended in doubt: "), "{story:#?}");
    assert_eq!(story[1]["words"], "nobody to ask: no probe is configured for its route");
    assert_eq!(story[1]["remarks"], json!(["parked: it waits for an operator"]));
    assert_eq!(story[2]["words"], "operator ada: it happened; reason: \"seen in the ledger\"");
    assert_eq!((&story[2]["from"], &story[2]["to"]), (&json!("unknown"), &json!("completed")));
    assert_eq!(story[2]["source"], "operator ada");
    assert_eq!(story[2]["reason"], json!({ "code": "operator", "detail": "seen in the ledger" }));
    assert_eq!(story[2]["version"], done["record"]["version"]);
}

#[tokio::test]
async fn what_did_not_happen_runs_again() {
    let (stage, record, _folder) = with_doubt().await;
    let reply = act(&stage, &record, "resolve", json!({ "outcome": "did_not_happen" })).await;
    assert_eq!(
        (reply.status, &reply.json()["record"]["state"]),
        (200, &json!("failed_retryable")),
        "{reply:?}"
    );
    assert!(reply.json()["next"].as_str().unwrap().contains("may run again"));
    stage.send(&Call::pay("doubted")).await.expect_first(200, "run 2");
    let story = story(&stage, &record).await;
    assert_eq!(story[2]["words"], "operator ada: it did not happen; reason: \"seen in the ledger\"");
    assert_eq!(story[3]["words"], "attempt 2 began; the one before had no effect");
}

#[tokio::test]
async fn it_is_asked_about_again() {
    let (stage, record, _folder) = with_doubt().await;
    let reply = act(&stage, &record, "retry", json!({})).await;
    assert_eq!(reply.status, 200, "{reply:?}");
    let shown = &reply.json()["record"];
    assert_ne!(shown["version"], record["version"]);
    let told = story(&stage, &record).await;
    let again = told.iter().find(|entry| entry["act"] == "asked_again").unwrap();
    assert_eq!(again["source"], "operator ada");
    assert_eq!(again["words"], "operator ada: to be asked about again; reason: \"seen in the ledger\"");
}

/// The answer is gone from the cache of the node that is asked, at once; the key is shut for a while.
#[tokio::test]
async fn a_forgotten_answer_is_not_replayed() {
    let stage = stage("").await;
    stage.send(&Call::pay("one")).await.expect_first(200, "run 1");
    stage.send(&Call::pay("one")).await.expect_replay(200, "run 1");
    let record = stage.record("one").await.unwrap();
    let reply = act(&stage, &record, "forget", json!({})).await;
    assert_eq!((reply.status, &reply.json()["record"]["state"]), (200, &json!("expired")), "{reply:?}");
    let done = reply.json();
    let (next, bound) = (done["next"].as_str().unwrap(), done["record"]["expires_at"].as_str().unwrap());
    assert!(next.contains(&format!("not after {bound}")) && next.contains("runs again"), "{next}");
    stage.send(&Call::pay("one")).await.expect_problem(410, "key_expired");
    assert_eq!(stage.runs(), 1);
    let told = story(&stage, &record).await;
    assert_eq!(told[0]["source"], "operator ada");
    assert!(told[0]["words"].as_str().unwrap().starts_with("operator ada: the stored answer is dropped"));
    is_refused(&act(&stage, &done["record"], "forget", json!({})).await, 409, &["is expired", "tombstone"]);
}

/// Ada and Bob look at the same record, and both act at the same time: one wins, the other is told, and both can read who it was.
#[tokio::test(flavor = "multi_thread")]
async fn of_two_operators_one_wins_and_the_other_is_told() {
    for _ in 0..20 {
        let (stage, record, _folder) = with_doubt().await;
        let ada = act(&stage, &record, "resolve", happened());
        let bob = act(&stage, &record, "resolve", json!({ "outcome": "did_not_happen", "operator": "bob" }));
        let (ada, bob) = tokio::join!(ada, bob);
        let (won, lost, expected) =
            if ada.status == 200 { (ada, bob, "completed") } else { (bob, ada, "failed_retryable") };
        assert_eq!(won.status, 200, "{won:?}");
        let seen = record["version"].as_str().unwrap();
        let problem = is_refused(&lost, 409, &["has changed", seen, expected, "Look at it again"]);
        assert_eq!(problem["title"], "The record has changed");
        assert_eq!(problem["record"]["state"], expected);
        assert_eq!(stage.state("doubted").await.as_deref(), Some(expected));
        let verdicts = story(&stage, &record).await;
        let verdicts = verdicts.iter().filter(|entry| entry["reason"]["code"] == "operator");
        assert_eq!(verdicts.count(), 1, "one act, one entry");
    }
}

#[tokio::test]
async fn a_version_that_is_over_is_refused_by_every_verb() {
    let (stage, record, folder) = with_doubt().await;
    assert_eq!(act(&stage, &record, "retry", json!({})).await.status, 200);
    until_parked(&stage, &folder).await;
    let before = story(&stage, &record).await;
    for (verb, more) in [
        ("retry", json!({})),
        ("forget", json!({})),
        ("resolve", happened()),
        ("resolve", json!({ "outcome": "did_not_happen" })),
    ] {
        is_refused(
            &act(&stage, &record, verb, more).await,
            409,
            &["has changed", "unknown", "Nothing was changed"],
        );
    }
    assert_eq!(stage.state("doubted").await.as_deref(), Some("unknown"));
    assert_eq!(story(&stage, &record).await, before);
}

#[tokio::test]
async fn a_state_that_does_not_allow_it_says_what_does() {
    let stage = stage("").await;
    stage.send(&Call::pay("done")).await;
    stage.send(&Call::pay("released")).await;
    let _running = Call::pay("running").open(stage.addr()).await;
    stage.upstream.ran(3).await;
    let not = json!({ "outcome": "did_not_happen" });
    for (key, verb, more, words) in [
        ("done", "retry", json!({}), "only be forgotten"),
        ("done", "resolve", not.clone(), "only be forgotten"),
        ("done", "resolve", happened(), "only be forgotten"),
        ("released", "retry", json!({}), "may run again"),
        ("released", "resolve", not.clone(), "may run again"),
        ("running", "retry", json!({}), "wait for its end"),
        ("running", "forget", json!({}), "wait for its end"),
        ("running", "resolve", not, "wait for its end"),
    ] {
        let record = stage.record(key).await.unwrap();
        let reply = act(&stage, &record, verb, more).await;
        let problem =
            is_refused(&reply, 409, &[record["state"].as_str().unwrap(), words, "Nothing was changed"]);
        assert_eq!(problem["record"]["version"], record["version"], "{key} {verb}");
        assert_eq!(stage.record(key).await.unwrap()["state"], record["state"], "{key} {verb}");
    }
}

/// Whoever knows that it happened may say so while it runs; it is kept, and the attempt's own answer goes before it.
#[tokio::test]
async fn what_happened_while_it_runs_is_kept_as_evidence() {
    let stage = stage("").await;
    let _running = Call::pay("running").open(stage.addr()).await;
    stage.upstream.ran(1).await;
    let record = stage.record("running").await.unwrap();
    let reply = act(&stage, &record, "resolve", happened()).await;
    assert_eq!((reply.status, &reply.json()["record"]["state"]), (200, &json!("in_progress")), "{reply:?}");
    assert!(reply.json()["done"].as_str().unwrap().contains("evidence"));
    let words = story(&stage, &record).await[0]["words"].clone();
    assert_eq!(
        words,
        "operator ada: it happened; kept as evidence until the attempt ends; reason: \"seen in the ledger\""
    );
}

#[tokio::test]
async fn what_is_not_there() {
    let stage = stage("").await;
    let record = json!({ "id": NOBODY, "version": "1" });
    for (verb, more) in [("retry", json!({})), ("forget", json!({})), ("resolve", happened())] {
        let problem = is_refused(&act(&stage, &record, verb, more).await, 404, &[NOBODY]);
        assert_eq!(problem["title"], "No such record");
    }
    is_refused(&admin(&stage.gateway, &format!("/api/v1/records/{NOBODY}/story")).await, 404, &[NOBODY]);
    is_refused(&admin(&stage.gateway, "/api/v1/records/nonsense/story").await, 400, &["op_"]);
    // There, and nothing to tell of it.
    stage.send(&Call::pay("one")).await;
    assert_eq!(story(&stage, &stage.record("one").await.unwrap()).await, [] as [Value; 0]);
}

#[tokio::test]
async fn bad_input_changes_nothing_and_says_what_is_wrong() {
    let (stage, record, _folder) = with_doubt().await;
    let with = |more: Value| {
        let mut response = happened()["response"].clone();
        response.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({ "outcome": "happened", "response": response })
    };
    for (more, words) in [
        (json!({}), "outcome is happened or did_not_happen"),
        (json!({ "outcome": "perhaps" }), "outcome is happened or did_not_happen"),
        (json!({ "outcome": "happened" }), "response is missing"),
        (json!({ "outcome": "did_not_happen", "response": { "status": 200 } }), "leave it out"),
        (json!({ "outcome": "happened", "response": {} }), "missing field `status`"),
        (json!({ "outcome": "happened", "response": 201 }), "expected"),
        (with(json!({ "status": 100 })), "200 to 599"),
        (with(json!({ "status": 600 })), "200 to 599"),
        (with(json!({ "status": 70000 })), "u16"),
        (with(json!({ "status": "201" })), "expected u16"),
        (with(json!({ "status": 204 })), "has no body"),
        (with(json!({ "headers": [["a b", "c"]] })), "not the name of a header"),
        (with(json!({ "headers": [["a", "b\r\nc: d"]] })), "characters"),
        (with(json!({ "headers": [["a"]] })), "expected"),
        (with(json!({ "headers": { "a": "b" } })), "expected"),
        (with(json!({ "headers": [["Transfer-Encoding", "chunked"]] })), "transfer-encoding is not kept"),
        (with(json!({ "headers": [["content-length", "7"]] })), "content-length is not kept"),
        (with(json!({ "headers": [["set-cookie", "a=b"]] })), "set-cookie is not kept"),
        (with(json!({ "headers": [["idempotency-replayed", "true"]] })), "is not kept"),
        (with(json!({ "body_base64": "eHg=" })), "keep one"),
        (with(json!({ "body": null, "body_base64": "???" })), "not base64"),
        (with(json!({ "trailers": [] })), "unknown field `trailers`"),
        (json!({ "outcome": "did_not_happen", "version": null }), "version is missing"),
        (json!({ "outcome": "did_not_happen", "version": "latest" }), "not a version"),
        (json!({ "outcome": "did_not_happen", "version": 17 }), "as a string"),
        (json!({ "outcome": "did_not_happen", "reason": null }), "reason is missing"),
        (json!({ "outcome": "did_not_happen", "reason": " \t" }), "reason is missing or empty"),
        (json!({ "outcome": "did_not_happen", "reason": "two\nlines" }), "one line"),
        (json!({ "outcome": "did_not_happen", "reason": "x".repeat(2_001) }), "2000"),
        (json!({ "outcome": "did_not_happen", "operator": "" }), "operator is missing or empty"),
        (json!({ "outcome": "did_not_happen", "operator": "\u{1b}[2J" }), "control characters"),
        (json!({ "outcome": "did_not_happen", "operator": "x".repeat(201) }), "200"),
        (json!({ "outcome": "did_not_happen", "because": "x" }), "unknown field `because`"),
    ] {
        let reply = act(&stage, &record, "resolve", more.clone()).await;
        let words = [words, "Nothing was changed"];
        is_refused(&reply, 400, &words);
    }
    for verb in ["retry", "forget"] {
        is_refused(&act(&stage, &record, verb, happened()).await, 400, &["for resolving only"]);
        is_refused(&act(&stage, &record, verb, json!({ "reason": "" })).await, 400, &["reason is missing"]);
    }
    let id = record["id"].as_str().unwrap();
    for body in ["", "nonsense", "[]", "null", "{\"version\":", "{\"version\":\"1\",\"version\":\"1\"}"] {
        let call = Call::operator("POST", &format!("/api/v1/records/{id}/retry")).json(body);
        is_refused(
            &call.send(stage.gateway.admin_address().tcp().unwrap()).await,
            400,
            &["expected a JSON object of version"],
        );
    }
    let nonsense =
        call("nonsense", "retry", &json!({})).send(stage.gateway.admin_address().tcp().unwrap()).await;
    is_refused(&nonsense, 400, &["op_"]);
    let huge =
        Call::operator("POST", &format!("/api/v1/records/{id}/retry")).json(&" ".repeat((16 << 20) + 1));
    is_refused(
        &huge.send(stage.gateway.admin_address().tcp().unwrap()).await,
        413,
        &["16777216", "Nothing was changed"],
    );
    assert_eq!(stage.record("doubted").await.unwrap(), record);
    assert_eq!(story(&stage, &record).await.len(), 2);
}

#[tokio::test]
async fn a_body_that_is_not_text_is_replayed_byte_for_byte() {
    let (stage, record, _folder) = with_doubt().await;
    let response = json!({ "status": 200, "body_base64": "AP8b" });
    let reply = act(&stage, &record, "resolve", json!({ "outcome": "happened", "response": response })).await;
    assert_eq!(reply.status, 200, "{reply:?}");
    assert_eq!(stage.send(&Call::pay("doubted")).await.body, [0, 0xFF, 0x1B]);
}

#[tokio::test]
async fn whoever_acts_shows_the_token() {
    let stage = stage(&format!("[admin]\ntoken = \"{TOKEN}\"")).await;
    stage.send(&Call::pay("done")).await;
    for path in ["resolve", "retry", "forget"].map(|verb| format!("/api/v1/records/{NOBODY}/{verb}")) {
        let call = Call::operator("POST", &path).json("{}");
        for call in [call.clone(), call.clone().header("authorization", "Bearer 0123456789abcdeF")] {
            is_refused(
                &call.send(stage.gateway.admin_address().tcp().unwrap()).await,
                401,
                &["admin.token_file"],
            );
        }
        let call = call.header("authorization", format!("Bearer {TOKEN}"));
        assert_eq!(call.send(stage.gateway.admin_address().tcp().unwrap()).await.status, 400);
        // A dashboard of elsewhere, and a proxy, may show it too.
        let call = call.header("origin", "https://ops.example.com").header("via", "1.1 proxy");
        assert_eq!(call.send(stage.gateway.admin_address().tcp().unwrap()).await.status, 400);
    }
    let path = format!("/api/v1/records/{NOBODY}/story");
    is_refused(&admin(&stage.gateway, &path).await, 401, &["admin.token_file"]);
}

/// Without a token the address is this machine's. A web page that its user looks at must not reach it through the browser, by a
/// form or under a name of its own that resolves to this machine; nor may a proxy let others in.
#[tokio::test]
async fn without_a_token_only_this_machine_acts() {
    let (stage, record, _folder) = with_doubt().await;
    let id = record["id"].as_str().unwrap();
    let body = json!({ "version": record["version"], "operator": "mallory", "reason": "x" }).to_string();
    let post = Call::operator("POST", &format!("/api/v1/records/{id}/retry"));
    for form in [
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "application/jsonp",
    ] {
        let call = post.clone().header("content-type", form).body(&body);
        is_refused(
            &call.send(stage.gateway.admin_address().tcp().unwrap()).await,
            415,
            &["application/json"],
        );
    }
    is_refused(
        &post.clone().body(&body).send(stage.gateway.admin_address().tcp().unwrap()).await,
        415,
        &["application/json"],
    );
    for (name, value) in [
        ("origin", "http://evil.example"),
        ("origin", "http://evil.example:9090"),
        ("origin", "http://localhost.evil.example"),
        ("origin", "http://127.0.0.1.evil.example:9090"),
        ("origin", "http://127.0.0.1:9090.evil.example"),
        ("origin", "null"),
        ("x-forwarded-for", "192.0.2.1"),
        ("forwarded", "for=192.0.2.1"),
        ("via", "1.1 proxy"),
    ] {
        let call = post.clone().header(name, value).json(&body);
        is_refused(
            &call.send(stage.gateway.admin_address().tcp().unwrap()).await,
            403,
            &["ONCEGATE_ADMIN_TOKEN"],
        );
    }
    assert_eq!(stage.record("doubted").await.unwrap(), record);
    for origin in ["http://127.0.0.1:9090", "http://localhost", "http://[::1]:9090"] {
        let reply = post
            .clone()
            .header("origin", origin)
            .json("{}")
            .send(stage.gateway.admin_address().tcp().unwrap())
            .await;
        assert_eq!(reply.status, 400, "{origin}");
    }
    let named = post.header("content-type", "Application/JSON; charset=utf-8").body(&body);
    assert_eq!(named.send(stage.gateway.admin_address().tcp().unwrap()).await.status, 200);
}
