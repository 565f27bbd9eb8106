//! Whose credentials a deferred request runs with, and what becomes of callers that the upstream
//! refuses.

use serde_json::{Value, json};

use crate::client::{Call, within};
use crate::gateway::{Stage, defaults};
use crate::reply::Reply;
use crate::upstream::{Act, Seen, Upstream, answer};

const HEADER: &str = "[scope]\nfrom = \"header\"\nheader = \"X-Tenant\"\nalso = [\"Stripe-Account\"]\n\
                      trusted_peers = [\"127.0.0.1/32\"]\n";

/// An upstream that refuses every caller.
async fn refusing(status: u16) -> Upstream {
    Upstream::start(move |_: Seen| async move { Act::Answer(answer(status, &[], "")) }).await
}

fn accepted(reply: &Reply) -> String {
    assert_eq!(reply.status, 202, "{reply:?}");
    reply.header("location").unwrap().to_owned()
}

/// `Authorization: garbage` was answered 202, and reached an upstream that trusts the gateway
/// without any `Authorization`.
#[tokio::test]
async fn attack_33_deferred_requests_run_with_the_credentials_of_their_caller() {
    for (profile, prefer) in [("accepted", "wait=0"), ("ietf", "respond-async")] {
        let stage = Stage::numbered(&defaults(profile, "respond_async = true")).await;
        let call = Call::anonymous("POST", "/payments")
            .header("authorization", "garbage")
            .header("cookie", "session=s1; theme=dark")
            .header("proxy-authorization", "Basic cHJveHk6cHJveHk=")
            .header("prefer", prefer)
            .key("one")
            .json("{}");
        accepted(&stage.send(&call).await);
        stage.upstream.ran(1).await;
        let seen = stage.upstream.last();
        assert_eq!(seen.header("authorization"), Some("garbage"), "{profile}: {seen:?}");
        assert_eq!(seen.header("cookie"), Some("session=s1; theme=dark"), "{profile}: {seen:?}");
        assert_eq!(seen.header("proxy-authorization"), None, "of one connection: {seen:?}");
        assert_eq!(seen.header("oncegate-credentials"), None, "{seen:?}");
    }
}

/// The header that says whose request it is was dropped, too.
#[tokio::test]
async fn attack_33_deferred_requests_keep_the_headers_that_name_the_tenant() {
    let stage = Stage::numbered(&format!("{HEADER}{}", defaults("accepted", ""))).await;
    let call = Call::pay("one").header("x-tenant", "acme").header("stripe-account", "acct_A");
    accepted(&stage.send(&call).await);
    stage.upstream.ran(1).await;
    let seen = stage.upstream.last();
    let values = ["x-tenant", "stripe-account", "authorization"].map(|name| seen.header(name));
    assert_eq!(values, [Some("acme"), Some("acct_A"), Some("Bearer acme")], "{seen:?}");
}

/// A tenant that is named by the host that a trusted proxy was asked for: the gateway says that
/// header of untrusted peers itself.
#[tokio::test]
async fn attack_33_a_tenant_named_by_the_forwarded_host_is_kept() {
    let scope = HEADER.replace("X-Tenant", "X-Forwarded-Host");
    let stage = Stage::numbered(&format!("{scope}{}", defaults("accepted", ""))).await;
    accepted(&stage.send(&Call::pay("one").header("x-forwarded-host", "acme.shop.test")).await);
    stage.upstream.ran(1).await;
    let seen = stage.upstream.last();
    assert_eq!(seen.header("x-forwarded-host"), Some("acme.shop.test"), "{seen:?}");
    assert!(seen.headers.iter().all(|(name, _)| !name.starts_with("oncegate-")), "{seen:?}");
    // With the credentials it goes, and the gateway says the host that it was asked for.
    let dropped = defaults("accepted", "credentials = \"dropped\"");
    let stage = Stage::numbered(&format!("{scope}{dropped}")).await;
    let call = Call::pay("one").header("x-forwarded-host", "acme.shop.test");
    accepted(&stage.send(&call.header("x-forwarded-port", "443")).await);
    stage.upstream.ran(1).await;
    let seen = stage.upstream.last();
    let values = ["x-forwarded-host", "x-forwarded-port"].map(|name| seen.header(name));
    assert_eq!(values, [Some("api.test"), Some("443")], "{seen:?}");
}

/// The operator says that the upstream does not take such requests for authorized ones.
#[tokio::test]
async fn attack_33_credentials_are_dropped_only_where_the_route_says_so() {
    let stage =
        Stage::numbered(&format!("{HEADER}{}", defaults("accepted", "credentials = \"dropped\""))).await;
    let call = Call::pay("one").header("x-tenant", "acme").header("cookie", "session=s1");
    accepted(&stage.send(&call).await);
    stage.upstream.ran(1).await;
    let seen = stage.upstream.last();
    for name in ["x-tenant", "authorization", "cookie", "oncegate-credentials"] {
        assert_eq!(seen.header(name), None, "{name}: {seen:?}");
    }
    assert_eq!(seen.header("content-type"), Some("application/json"));
}

/// The record of `one` once no attempt runs.
async fn settled(stage: &Stage) -> Value {
    within(async {
        loop {
            let record = stage.record("one").await.unwrap();
            if record["state"] != "in_progress" {
                return record;
            }
        }
    })
    .await
}

/// With credentials that are refused it was sent again for a day.
#[tokio::test]
async fn attack_33_a_caller_that_is_refused_twice_is_parked() {
    for status in [401, 403] {
        let stage = Stage::new(refusing(status).await, &defaults("accepted", "")).await;
        let location = accepted(&stage.send(&Call::pay("one")).await);
        stage.upstream.ran(2).await;
        let record = settled(&stage).await;
        assert_eq!((&record["state"], &record["attempts"]), (&json!("unknown"), &json!(2)), "{record}");
        assert_eq!(record["doubt"]["parked"], true, "{record}");
        let why = &record["last_error"];
        assert_eq!(why["code"], "caller_refused", "{record}");
        let detail = why["detail"].as_str().unwrap();
        assert!(detail.contains(&status.to_string()) && detail.contains("not tried again"), "{detail}");
        let story = crate::acts::story(&stage, &record).await;
        let last = story.last().unwrap();
        assert_eq!((&last["act"], &last["to"]), (&json!("released"), &json!("unknown")), "{story:#?}");
        assert_eq!(last["remarks"], json!(["parked: it waits for an operator"]), "{story:#?}");
        // Its client is not told that it failed: an operator decides.
        let reply = stage.send(&Call::get(&location)).await;
        assert_eq!((reply.status, &reply.json()["state"]), (202, &json!("unknown")), "{reply:?}");
        assert_eq!(stage.runs(), 2);
    }
}

/// Where an effect may be found out later, the row of a refused caller stays. A caller that is
/// refused before leaves none.
#[tokio::test]
async fn preauthorize_keeps_refused_callers_out_of_the_store() {
    for setting in ["horizon = \"1m\"", "forward_key = \"derived\""] {
        for (asks, row) in [("", Some("failed_retryable")), ("preauthorize = { url = \"/auth\" }", None)] {
            let rules = defaults("ietf", &format!("{setting}\n{asks}"));
            let stage = Stage::new(refusing(401).await, &rules).await;
            let made_up = Call::anonymous("POST", "/payments").header("authorization", "made-up").key("one");
            let reply = stage.send(&made_up).await;
            assert_eq!((reply.status, stage.runs()), (401, 1), "{setting}, {asks}");
            assert_eq!(stage.state("one").await.as_deref(), row, "{setting}, {asks}");
        }
    }
}

/// `Authorization: made-up` left a row for the whole retention.
#[tokio::test]
async fn rows_of_refused_callers_live_for_seconds() {
    let lifetime = |record: &Value| {
        let moment = |name: &str| humantime::parse_rfc3339(record[name].as_str().unwrap()).unwrap();
        moment("expires_at").duration_since(moment("settled_at")).unwrap().as_secs()
    };
    for (status, seconds) in
        [(401, 10), (403, 10), (407, 10), (405, 86_400), (429, 86_400), (503, 86_400), (404, 86_400)]
    {
        let stage = Stage::new(refusing(status).await, "").await;
        let made_up = Call::anonymous("POST", "/payments").header("authorization", "made-up").key("one");
        assert_eq!(stage.send(&made_up).await.status, status);
        let record = stage.record("one").await.unwrap();
        assert_eq!(lifetime(&record), seconds, "{status}: {record}");
        // A retry executes again, but of what is stored: a 404 is an answer.
        assert_eq!(stage.send(&made_up).await.status, status);
        let runs = if status == 404 { 1 } else { 2 };
        assert_eq!(
            (stage.runs(), lifetime(&stage.record("one").await.unwrap())),
            (runs, seconds),
            "{status}"
        );
    }
}
