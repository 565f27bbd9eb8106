//! What a provider says by itself, over HTTP: believed only if it is signed; and whenever it comes, it has a defined end.

use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use ring::signature::{Ed25519KeyPair, KeyPair as _};
use sha2::Sha256;

use crate::client::Call;
use crate::gateway::{PROVIDER_SECRET, PROVIDER_SECRET_NEXT, Stage, start_with};
use crate::reply::Reply;
use crate::upstream::{Act, Gate, Seen, Upstream, numbered};

const PATH: &str = "/.oncegate/webhooks/provider";
pub(crate) const PLAIN: &str = r#"
[defaults]
forward_key = "derived"

[[webhook]]
name = "provider"
scheme = "standard"
secrets = ["env:PROVIDER_SECRET", "env:PROVIDER_SECRET_NEXT"]
body_bytes_max = 1000
record = { forwarded_key = "/key" }
happened = [{ pointer = "/type", one_of = ["paid", "declined"] }]
did_not_happen = [{ pointer = "/type", equals = "failed" }]
ignored = [{ pointer = "/type", equals = "created" }]
answers = [
  { when = { pointer = "/type", equals = "declined" }, status = 402, body = "declined" },
  { status = 201, body = "paid" },
]
"#;

/// Keys that begin with `doubted` end in doubt, once the gate opens.
async fn stage() -> (Gate, Stage) {
    stage_with(PLAIN).await
}

async fn stage_with(file: &str) -> (Gate, Stage) {
    let gate = Gate::new();
    let upstream = doubting(gate.clone()).await;
    (gate, Stage::new(upstream, file).await)
}

async fn doubting(gate: Gate) -> Upstream {
    Upstream::start(move |seen: Seen| {
        let gate = gate.clone();
        async move {
            if seen.line.starts_with("POST /doubted") {
                gate.pass().await;
                return Act::AnswerAndClose(Vec::new());
            }
            numbered(seen).await
        }
    })
    .await
}

fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

fn event(of: &str, key: &str) -> String {
    format!(r#"{{"type":"{of}","key":"{key}"}}"#)
}

fn signature(secret: &str, signed: &str) -> String {
    let secret = STANDARD.decode(secret.strip_prefix("whsec_").unwrap()).unwrap();
    let mut mac = Hmac::<Sha256>::new_from_slice(&secret).unwrap();
    mac.update(signed.as_bytes());
    format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes()))
}

/// An event as a provider sends it, signed at this second.
fn signed_at(at: u64, secret: &str, body: &str) -> Call {
    signed_to(PATH, at, secret, body)
}

fn signed_to(path: &str, at: u64, secret: &str, body: &str) -> Call {
    Call::anonymous("POST", path)
        .header("webhook-id", "evt_1")
        .header("webhook-timestamp", at.to_string())
        .header("webhook-signature", signature(secret, &format!("evt_1.{at}.{body}")))
        .json(body)
}

async fn tell(stage: &Stage, of: &str, key: &str) -> (u16, String) {
    result(&stage.send(&signed_at(now_s(), PROVIDER_SECRET, &event(of, key))).await)
}

fn result(reply: &Reply) -> (u16, String) {
    (reply.status, reply.json()["result"].as_str().unwrap_or_default().to_owned())
}

/// The key that the upstream was last sent.
fn sent(stage: &Stage) -> String {
    stage.upstream.last().header("idempotency-key").unwrap().trim_matches('"').to_owned()
}

async fn story(stage: &Stage, key: &str) -> Vec<String> {
    let id = stage.record(key).await.unwrap()["id"].as_str().unwrap().to_owned();
    let told = crate::gateway::admin(&stage.gateway, &format!("/api/v1/records/{id}/story")).await.json();
    told["story"].as_array().unwrap().iter().map(|entry| entry["act"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn what_is_not_signed_or_stale_or_changed_is_not_believed() {
    let (gate, stage) = stage().await;
    let mut client = Call::post("/doubted").key("one").json("{}").open(stage.addr()).await;
    gate.entered().await;
    gate.open();
    client.reply().await.expect_problem(504, "outcome_unknown");
    let body = event("paid", &sent(&stage));
    let (now, minute) = (now_s(), 60);
    let other = STANDARD.encode([7; 24]);
    for (call, expected) in [
        (Call::anonymous("POST", PATH).json(&body), "unsigned"),
        (signed_at(now, &format!("whsec_{other}"), &body), "wrong"),
        (signed_at(now, PROVIDER_SECRET, "{}").body(&body), "wrong"),
        (signed_at(now - 6 * minute, PROVIDER_SECRET, &body), "stale"),
        (signed_at(now + 6 * minute, PROVIDER_SECRET, &body), "stale"),
        (signed_at(now, PROVIDER_SECRET, &body).header("webhook-id", "evt_2"), "malformed"),
    ] {
        assert_eq!(result(&stage.send(&call).await), (401, expected.to_owned()));
        assert_eq!(stage.state("one").await.as_deref(), Some("unknown"), "{expected}");
    }
    // Either secret, while they rotate.
    let call = signed_at(now, PROVIDER_SECRET_NEXT, &body);
    assert_eq!(result(&stage.send(&call).await), (200, "settled".to_owned()));
    stage.send(&Call::post("/doubted").key("one").json("{}")).await.expect_replay(201, "paid");
}

/// Standard Webhooks with a key pair: the gateway has only the public half.
#[tokio::test]
async fn an_event_signed_with_ed25519_settles() {
    let pair = Ed25519KeyPair::from_seed_unchecked(&[7; 32]).unwrap();
    let public = format!("whpk_{}", STANDARD.encode(pair.public_key()));
    let secrets = [("PROVIDER_PUBLIC_KEY", &*public), ("PROVIDER_SECRET", PROVIDER_SECRET)];
    let file = PLAIN.replace("env:PROVIDER_SECRET_NEXT", "env:PROVIDER_PUBLIC_KEY");
    let gate = Gate::new();
    let upstream = doubting(gate.clone()).await;
    let gateway = start_with(&format!("http://{}", upstream.addr), &file, &secrets).await;
    let stage = Stage { gateway, upstream };
    let mut client = Call::post("/doubted").key("one").json("{}").open(stage.addr()).await;
    gate.entered().await;
    gate.open();
    client.reply().await.expect_problem(504, "outcome_unknown");
    let (at, body) = (now_s(), event("paid", &sent(&stage)));
    let signed = |by: &Ed25519KeyPair, kind: &str, body: &str| {
        let signature = STANDARD.encode(by.sign(format!("evt_1.{at}.{body}").as_bytes()));
        Call::anonymous("POST", PATH)
            .header("webhook-id", "evt_1")
            .header("webhook-timestamp", at.to_string())
            .header("webhook-signature", format!("{kind},{signature}"))
            .json(body)
    };
    let other = Ed25519KeyPair::from_seed_unchecked(&[8; 32]).unwrap();
    let forged = signature(&public.replace("whpk_", "whsec_"), &format!("evt_1.{at}.{body}"));
    let forged = Call::anonymous("POST", PATH)
        .header("webhook-id", "evt_1")
        .header("webhook-timestamp", at.to_string())
        .header("webhook-signature", forged)
        .json(&body);
    for call in [
        signed(&other, "v1a", &body),
        signed(&pair, "v1", &body),
        forged,
        signed(&pair, "v1a", "{}").body(&body),
    ] {
        assert_eq!(result(&stage.send(&call).await), (401, "wrong".to_owned()), "{call:?}");
    }
    assert_eq!(stage.state("one").await.as_deref(), Some("unknown"));
    assert_eq!(result(&stage.send(&signed(&pair, "v1a", &body)).await), (200, "settled".to_owned()));
    stage.send(&Call::post("/doubted").key("one").json("{}")).await.expect_replay(201, "paid");
}

#[tokio::test]
async fn what_is_signed_and_says_nothing_is_told_so() {
    let (_, stage) = stage().await;
    let large = format!(r#"{{"type":"paid","key":"{}"}}"#, "x".repeat(1_000));
    for (body, expected) in [
        (event("created", "any"), (200, "ignored")),
        (event("refunded", "any"), (422, "not_understood")),
        (event("paid", "no derived key"), (422, "not_understood")),
        ("not json".to_owned(), (422, "not_understood")),
        (large, (413, "too_large")),
    ] {
        let call = signed_at(now_s(), PROVIDER_SECRET, &body);
        assert_eq!(result(&stage.send(&call).await), (expected.0, expected.1.to_owned()), "{body}");
    }
    stage
        .send(&Call::anonymous("POST", "/.oncegate/webhooks/nobody").json("{}"))
        .await
        .expect_problem(404, "operation_not_found");
    assert_eq!(stage.send(&Call::anonymous("GET", PATH)).await.status, 405);
    assert_eq!(stage.runs(), 0, "nothing of it reaches the upstream");
}

/// A provider's webhook follows every payment: it changes nothing, and nothing is written for it. What contradicts it is told.
#[tokio::test]
async fn after_the_answer_it_confirms_or_contradicts() {
    let (_, stage) = stage().await;
    stage.send(&Call::pay("one")).await.expect_first(200, "run 1");
    let key = sent(&stage);
    for _ in 0..2 {
        assert_eq!(tell(&stage, "paid", &key).await, (200, "confirmed".to_owned()));
    }
    assert_eq!(story(&stage, "one").await, Vec::<String>::new());
    assert_eq!(tell(&stage, "declined", &key).await, (200, "nothing_to_do".to_owned()));
    assert_eq!(story(&stage, "one").await, ["happened"]);
    stage.send(&Call::pay("one")).await.expect_replay(200, "run 1");
}

/// It comes while the attempt runs, which then ends in doubt: what was said settles it, without a question.
#[tokio::test]
async fn during_the_attempt_it_is_evidence() {
    let (gate, stage) = stage().await;
    let call = Call::post("/doubted").key("one").json("{}");
    let mut client = call.open(stage.addr()).await;
    gate.entered().await;
    let key = sent(&stage);
    assert_eq!(tell(&stage, "paid", &key).await, (202, "kept_as_evidence".to_owned()));
    // "Failed" proves nothing, and takes nothing back.
    assert_eq!(tell(&stage, "failed", &key).await, (200, "nothing_to_do".to_owned()));
    gate.open();
    assert_eq!(client.reply().await.status, 201);
    stage.send(&call).await.expect_replay(201, "paid");
    assert_eq!(stage.runs(), 1);
}

/// A provider's last word on an attempt that still runs was acknowledged and dropped: its doubt then waited for a word that had been said.
#[tokio::test]
async fn a_last_word_during_the_attempt_is_to_be_said_again() {
    let is_final = "did_not_happen_is_final = true\nfence = \"/fence\"\nignored = ";
    let (gate, stage) = stage_with(&PLAIN.replace("ignored = ", is_final)).await;
    let call = Call::post("/doubted").key("one").json("{}");
    let mut client = call.open(stage.addr()).await;
    gate.entered().await;
    let fence = stage.upstream.last().header("idempotency-attempt").unwrap().to_owned();
    let last_word = format!(r#"{{"type":"failed","key":"{}","fence":"{fence}"}}"#, sent(&stage));
    let early = stage.send(&signed_at(now_s(), PROVIDER_SECRET, &last_word)).await;
    assert_eq!(result(&early), (503, "too_early".to_owned()));
    assert_eq!(early.header("retry-after"), Some("5"));
    gate.open();
    client.reply().await.expect_problem(504, "outcome_unknown");
    let again = stage.send(&signed_at(now_s(), PROVIDER_SECRET, &last_word)).await;
    assert_eq!(result(&again), (200, "settled".to_owned()));
    assert_eq!(stage.state("one").await.as_deref(), Some("failed_retryable"));
    let told = story(&stage, "one").await;
    let negatives = told.iter().filter(|act| *act == "did_not_happen").count();
    assert_eq!(negatives, 1, "nothing is told of the early one: {told:?}");
}

/// As of a probe's, and of any other: it is known what happened, and the bytes are not kept. Whether it comes after the attempt or before its end.
#[tokio::test]
async fn an_answer_over_the_routes_limit_is_not_kept() {
    let narrow = PLAIN.replace("[defaults]", "[defaults]\nanswer_bytes_max = 3");
    for (is_early, expected) in [(false, (200, "settled")), (true, (202, "kept_as_evidence"))] {
        let (gate, stage) = stage_with(&narrow).await;
        let call = Call::post("/doubted").key("one").json("{}");
        let mut client = call.open(stage.addr()).await;
        gate.entered().await;
        let key = sent(&stage);
        if !is_early {
            gate.open();
            client.reply().await.expect_problem(504, "outcome_unknown");
        }
        assert_eq!(tell(&stage, "paid", &key).await, (expected.0, expected.1.to_owned()));
        if is_early {
            gate.open();
            client.reply().await.expect_problem(409, "answer_not_kept");
        }
        stage.send(&call).await.expect_problem(409, "answer_not_kept");
        assert_eq!(stage.record("one").await.unwrap()["answer"]["kept"], false);
    }
}

/// It comes before its record: 202, and kept for a while. That it is applied when the record appears is the engine's to show.
#[tokio::test]
async fn before_the_record_it_is_kept_apart() {
    // By the record's address, which is known before there is a record.
    let by_address = r#"record = { key = "/key", scope = "/scope" }
keys_are_never_reused = true"#;
    let file = PLAIN.replace(r#"record = { forwarded_key = "/key" }"#, by_address);
    let stage = Stage::numbered(&file).await;
    stage.send(&Call::pay("another")).await.expect_first(200, "run 1");
    let scope = stage.record("another").await.unwrap()["scope"].as_str().unwrap().to_owned();
    for key in ["one", "one", "two"] {
        for says in ["paid", "failed"] {
            let body = format!(r#"{{"type":"{says}","key":"{key}","scope":"{scope}"}}"#);
            let reply = stage.send(&signed_at(now_s(), PROVIDER_SECRET, &body)).await;
            assert_eq!(result(&reply), (202, "kept_apart".to_owned()));
        }
    }
    let body = format!(r#"{{"type":"paid","key":"another","scope":"{scope}"}}"#);
    let reply = stage.send(&signed_at(now_s(), PROVIDER_SECRET, &body)).await;
    assert_eq!(result(&reply), (200, "confirmed".to_owned()), "the mapping finds a record that is there");
}

/// The provider names its own charge, of which no record has heard: kept as well. Once an event has told the record its name, the record
/// is found by it.
#[tokio::test]
async fn by_a_reference_that_no_record_has_learnt_it_is_kept_apart() {
    let hook = PLAIN.split_once("[[webhook]]").unwrap().1;
    let by_reference = hook
        .replace(r#"name = "provider""#, r#"name = "charges""#)
        .replace(r#"record = { forwarded_key = "/key" }"#, r#"record = { reference = "/charge" }"#);
    let teaching = PLAIN.replace("body_bytes_max = 1000", "body_bytes_max = 1000\nreference = \"/charge\"");
    let (gate, stage) = stage_with(&format!("{teaching}\n[[webhook]]{by_reference}")).await;
    let paid = r#"{"type":"paid","charge":"ch_1"}"#;
    let paid = signed_to("/.oncegate/webhooks/charges", now_s(), PROVIDER_SECRET, paid);
    for _ in 0..2 {
        assert_eq!(result(&stage.send(&paid).await), (202, "kept_apart".to_owned()));
    }
    let call = Call::post("/doubted").key("one").json("{}");
    let mut client = call.open(stage.addr()).await;
    gate.entered().await;
    let declined = format!(r#"{{"type":"declined","charge":"ch_1","key":"{}"}}"#, sent(&stage));
    let declined = stage.send(&signed_at(now_s(), PROVIDER_SECRET, &declined)).await;
    assert_eq!(result(&declined), (202, "kept_as_evidence".to_owned()));
    assert_eq!(result(&stage.send(&paid).await), (202, "kept_as_evidence".to_owned()));
    gate.open();
    assert_eq!(client.reply().await.status, 201);
}
