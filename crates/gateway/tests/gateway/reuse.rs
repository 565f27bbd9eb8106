//! A key that comes with another request: what the client and the operator are told.

use std::io;
use std::sync::{Arc, Mutex, OnceLock};

use oncegate_test_servers::until;
use serde_json::{Value, json};

use crate::acts::story;
use crate::client::Call;
use crate::gateway::Stage;
use crate::reply::Reply;

const FIRST: &str = r#"{"amount":100,"card":"visa-zulu","currency":"EUR"}"#;
const OTHER: &str = r#"{"amount":7000000101,"card":"visa-yankee","currency":"EUR","note":"to Ada"}"#;
/// Values of both requests. No id, time or process number contains one by chance.
const VALUES: [&str; 4] = ["visa-zulu", "visa-yankee", "7000000101", "to Ada"];

fn pay(body: &str) -> Call {
    Call::post("/payments").key("one").json(body)
}

#[track_caller]
fn refused(reply: &Reply) -> Value {
    reply.expect_problem_of_operation(422, "key_reused")
}

/// The entry `key_reused` in the story of a key's record, once it is there.
async fn entry_of(stage: &Stage, key: &str) -> Value {
    let record = stage.record(key).await.unwrap();
    until("the reuse is in the trail", async || !story(stage, &record).await.is_empty()).await;
    let story = story(stage, &record).await;
    // However many refusals there were, they are one entry: no client fills the trail.
    let [entry] = &story[..] else { panic!("{story:#?}") };
    assert_eq!((&entry["act"], &entry["source"]), (&json!("key_reused"), &json!("client 127.0.0.1")));
    entry.clone()
}

async fn detail_of(stage: &Stage, key: &str) -> String {
    entry_of(stage, key).await["reason"]["detail"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn members_that_differ_are_named_and_values_never() {
    let stage = Stage::numbered("").await;
    stage.send(&pay(FIRST)).await.expect_first(200, "run 1");
    for _ in 0..3 {
        let problem = refused(&stage.send(&pay(OTHER)).await);
        assert_eq!(problem["differing_members"], json!(["amount", "card", "note"]), "{problem:#}");
    }
    let entry = entry_of(&stage, "one").await;
    let detail = entry["reason"]["detail"].as_str().unwrap();
    assert!(detail.ends_with(r#"differing members: "amount", "card", "note""#), "{detail}");
    assert!(detail.starts_with("scope ") && !detail.contains("tenant"), "{detail}");
    let all = entry.to_string();
    assert!(VALUES.iter().all(|value| !all.contains(value)), "{all}");
    assert_eq!(stage.runs(), 1);
}

/// Who may use a key could have found out the first request member by member: a PIN of four digits
/// in at most 10,000 requests, whatever the other members are.
#[tokio::test]
async fn members_cannot_be_guessed_one_by_one() {
    let stage = Stage::numbered("").await;
    stage.send(&pay(r#"{"name":"Ada","pin":"0042"}"#)).await.expect_first(200, "run 1");
    let guess = |pin: u32| pay(&format!("{{\"pin\":\"{pin:04}\"}}"));
    for pin in 0..3 {
        let problem = refused(&stage.send(&guess(pin)).await);
        assert_eq!(problem["differing_members"], json!(["pin"]), "{problem:#}");
    }
    // From here on the right guess and a wrong one are answered alike.
    let (wrong, right) = (refused(&stage.send(&guess(41)).await), refused(&stage.send(&guess(42)).await));
    assert_eq!(wrong, right);
    assert_eq!(wrong.get("differing_members"), None, "{wrong:#}");
    // The operator is told all the same, and another record is not affected.
    assert!(detail_of(&stage, "one").await.contains(r#"differing members: "pin""#));
    let two = |body: &str| Call::post("/payments").key("two").json(body);
    stage.send(&two(FIRST)).await.expect_first(200, "run 2");
    let problem = refused(&stage.send(&two(OTHER)).await);
    assert_eq!(problem["differing_members"], json!(["amount", "card", "note"]), "{problem:#}");
}

/// Callers that share a scope because none of them says who it is are told nothing of each other's
/// requests.
#[tokio::test]
async fn strangers_who_share_a_scope_are_told_no_names() {
    for scope in ["", "also = [\"x-account\"]\n"] {
        let stage = Stage::numbered(&format!("[scope]\nanonymous = \"share\"\n{scope}")).await;
        let by_nobody = |body: &str| Call::anonymous("POST", "/payments").key("one").json(body);
        stage.send(&by_nobody(FIRST)).await.expect_first(200, "run 1");
        let problem = refused(&stage.send(&by_nobody(OTHER)).await);
        assert_eq!(problem.get("differing_members"), None, "{problem:#}");
        let problem = refused(&stage.send(&Call::anonymous("POST", "/x").key("one").json(FIRST)).await);
        assert_eq!(problem.get("differs_in"), None, "{problem:#}");
        let detail = detail_of(&stage, "one").await;
        assert!(detail.contains(r#"differing members: "amount", "card", "note""#), "{detail}");
        // Callers who say who they are are told.
        stage.send(&pay(FIRST)).await.expect_first(200, "run 2");
        let problem = refused(&stage.send(&pay(OTHER)).await);
        assert_eq!(problem["differing_members"], json!(["amount", "card", "note"]), "{problem:#}");
    }
}

/// The record is not in this process's memory but in the store: the digests are part of the row.
#[tokio::test]
async fn names_are_known_after_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let store = format!("[store]\nurl = \"sqlite://{}\"", directory.path().join("keys.db").display());
    let first = Stage::numbered(&store).await;
    first.send(&pay(FIRST)).await.expect_first(200, "run 1");
    first.gateway.shut_down().await;
    let second = Stage::numbered(&store).await;
    let problem = refused(&second.send(&pay(OTHER)).await);
    assert_eq!(problem["differing_members"], json!(["amount", "card", "note"]), "{problem:#}");
}

/// Of bodies without members nothing is named; nor of text that only looks like JSON.
#[tokio::test]
async fn what_has_no_members_has_no_names() {
    let stage = Stage::numbered("").await;
    stage.send(&pay("[1,2]")).await.expect_first(200, "run 1");
    for body in ["[1,3]", r#"{"amount":1}"#] {
        let problem = refused(&stage.send(&pay(body)).await);
        assert_eq!(problem.get("differing_members"), None, "{problem:#}");
    }
    assert!(detail_of(&stage, "one").await.ends_with("differing members: not known"));
    let two =
        |kind: &str, body: &str| Call::post("/payments").key("two").header("content-type", kind).body(body);
    stage.send(&two("application/json", FIRST)).await.expect_first(200, "run 2");
    let problem = refused(&stage.send(&two("text/plain", r#"{"amount":1}"#)).await);
    assert_eq!(problem.get("differing_members"), None, "{problem:#}");
}

/// A member that only the first request had has no name in the record, so their number is told.
#[tokio::test]
async fn members_that_are_missing_are_told() {
    let stage = Stage::numbered("").await;
    stage.send(&pay(r#"{"amount":100,"currency":"EUR"}"#)).await.expect_first(200, "run 1");
    let problem = refused(&stage.send(&pay(r#"{"currency":"EUR"}"#)).await);
    assert_eq!(problem.get("differing_members"), None, "{problem:#}");
    let detail = detail_of(&stage, "one").await;
    assert!(detail.ends_with("; members of the first request are missing: 1 or more"), "{detail}");
}

/// The body is the same, and something else is not.
#[tokio::test]
async fn a_difference_outside_of_the_body_is_told() {
    let toml = "[[route]]\nmatch = \"POST /payments\"\nprofile = \"ietf\"\nfingerprint_headers = [\"x-account\"]\n\
                [[route]]\nmatch = \"POST /refunds\"\nprofile = \"ietf\"\n\
                [[route]]\nmatch = \"POST /orders/{id}\"\nprofile = \"ietf\"";
    let stage = Stage::numbered(toml).await;
    let to = |path: &str, key: &str| Call::post(path).key(key).json(FIRST);
    for (key, path, other, differs_in) in [
        ("a", "/payments", to("/refunds", "a"), "method or path"),
        ("b", "/payments", to("/payments?x=1", "b"), "query or headers"),
        ("c", "/payments", to("/payments", "c").header("x-account", "7"), "query or headers"),
        ("d", "/orders/1", to("/orders/2", "d"), "path, query or headers"),
    ] {
        assert_eq!(stage.send(&to(path, key)).await.status, 200);
        let problem = refused(&stage.send(&other).await);
        assert_eq!(problem["differs_in"], differs_in, "{problem:#}");
        assert_eq!(problem.get("differing_members"), None, "{problem:#}");
        let detail = detail_of(&stage, key).await;
        assert!(detail.ends_with(&format!("; differs in: {differs_in}")), "{detail}");
    }
    // Both: the members are named, and the other operation too.
    assert_eq!(stage.send(&to("/payments", "e")).await.status, 200);
    let problem = refused(&stage.send(&Call::post("/refunds").key("e").json(OTHER)).await);
    assert_eq!(problem["differs_in"], "method or path", "{problem:#}");
    assert_eq!(problem["differing_members"], json!(["amount", "card", "note"]), "{problem:#}");
}

/// Names come from the client, and end up in a log, in the audit trail and on a terminal.
#[tokio::test]
async fn hostile_names_are_harmless() {
    let stage = Stage::numbered("").await;
    stage.send(&pay(FIRST)).await.expect_first(200, "run 1");
    let long = "n".repeat(200);
    let body = format!(
        "{{\"a\u{202e}e\u{2028}x\u{2066}y\u{feff}\":1,\"b\\n\\u001b[31m\":1,\"c\\\", id=fake\":1,\
         \"card 4111-1111-1111-1111\":1,\"4111111111111111\":1,\"{long}\":1}}"
    );
    let problem = refused(&stage.send(&pay(&body)).await);
    let mut names: Vec<&str> =
        problem["differing_members"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    names.sort_unstable();
    let cut = format!("{}…", "n".repeat(64));
    assert_eq!(names, ["4111…", "aexy", "b[31m", "c\", id=fake", "card 4111…", cut.as_str()]);
    let detail = detail_of(&stage, "one").await;
    assert!(detail.contains(r#""c\", id=fake""#), "{detail}");
    assert!(!detail.contains("1111") && detail.chars().all(|char| !char.is_control()), "{detail}");
}

/// Everything that is logged in this process.
#[derive(Clone, Debug, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    /// From the first call on.
    pub(crate) fn of_process() -> Self {
        static LOG: OnceLock<Log> = OnceLock::new();
        let start = || {
            let log = Self::default();
            let writer = log.clone();
            let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone());
            tracing::subscriber::set_global_default(subscriber.finish()).unwrap();
            log
        };
        LOG.get_or_init(start).clone()
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        let text = String::from_utf8(self.0.lock().unwrap().clone()).unwrap();
        text.lines().map(str::to_owned).collect()
    }
}

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// One line per record, with what an operator searches for and without values. And one caller's
/// reuses do not silence those of all others.
#[tokio::test]
async fn each_reuse_is_logged_and_no_tenant_silences_the_others() {
    let log = Log::of_process();
    let recorder = crate::metrics::recorder();
    let stage = Stage::measured("", recorder).await;
    stage.send(&pay(FIRST)).await.expect_first(200, "run 1");
    refused(&stage.send(&pay(OTHER)).await);
    let record = stage.record("one").await.unwrap();
    let id = record["id"].as_str().unwrap();
    let told = |id: &str| -> Vec<String> {
        let lines =
            log.lines().into_iter().filter(|line| line.contains("key reused for another request; refused"));
        lines.filter(|line| line.contains(id)).collect()
    };
    let [line] = &told(id)[..] else { panic!("{:#?}", log.lines()) };
    assert!(line.contains("WARN") && line.contains("peer=\"127.0.0.1\""), "{line}");
    assert!(line.contains(r#"differing members: "amount", "card", "note""#), "{line}");
    let detail = detail_of(&stage, "one").await;
    let scope = detail.strip_prefix("scope ").unwrap().split(';').next().unwrap().to_owned();
    assert!(scope.len() == 8 && line.contains(&format!("scope={scope:?}")), "{line}");
    assert!(VALUES.iter().all(|value| !line.contains(value)), "{line}");

    let by = |tenant: &str, key: &str, body: &str| {
        Call::anonymous("POST", "/payments").tenant(tenant).key(key).json(body)
    };
    for n in 0..300 {
        let key = format!("flood-{n}");
        assert_eq!(stage.send(&by("attacker", &key, FIRST)).await.status, 200);
        refused(&stage.send(&by("attacker", &key, OTHER)).await);
    }
    let of_attacker = told("").len() - 1;
    assert_eq!(of_attacker, 16, "of one scope, in a minute");
    assert_eq!(stage.send(&by("victim", "v", FIRST)).await.status, 200);
    refused(&stage.send(&by("victim", "v", OTHER)).await);
    let victims = stage.record("v").await.unwrap();
    assert_eq!(told(victims["id"].as_str().unwrap()).len(), 1);
    // What was not told is counted, and said once.
    assert_eq!(stage.counter("oncegate_key_reuse_unreported_count").await, 284);
    let said =
        log.lines().iter().filter(|line| line.contains("reused keys are not reported one by one")).count();
    assert_eq!(said, 1, "{:#?}", log.lines());
}
