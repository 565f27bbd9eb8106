//! The admin listener: health, records, and who may see them.

use serde_json::{Value, json};

use oncegate_gateway::{Config, Given};
use oncegate_test_servers::{Redis, TcpProxy};

use crate::client::Call;
use crate::gateway::{Stage, admin};
use crate::reply::Reply;
use crate::upstream::{Act, Seen, Upstream, answer, numbered};

const TOKEN: &str = "0123456789abcdef";

#[tokio::test]
async fn alive_and_ready() {
    let stage = Stage::numbered("").await;
    let alive = admin(&stage.gateway, "/healthz").await;
    assert_eq!((alive.status, alive.text()), (200, "ok\n"));
    let ready = admin(&stage.gateway, "/readyz").await;
    assert_eq!(ready.status, 200);
    assert_eq!(ready.json(), json!({ "ready": true, "store": "ok", "load": "ok", "life": "ok" }));
    let nothing = admin(&stage.gateway, "/nothing").await;
    assert_eq!((nothing.status, nothing.header("content-type")), (404, Some("application/problem+json")));
}

/// The store goes away and comes back: readiness says so, nothing is executed meanwhile, and nothing is lost.
#[tokio::test(flavor = "multi_thread")]
async fn not_ready_without_its_store() {
    let redis = Redis::start(&[]);
    let cable = TcpProxy::start(&redis.url());
    let stage = Stage::numbered(&format!("[store]\nurl = \"{}\"", cable.url_of(&redis.url()))).await;
    stage.send(&Call::pay("one")).await.expect_first(200, "run 1");
    cable.cut();
    let ready = admin(&stage.gateway, "/readyz").await;
    assert_eq!((ready.status, &ready.json()["ready"]), (503, &false.into()));
    assert_eq!(ready.json()["store"], "not ready");
    assert_eq!(admin(&stage.gateway, "/healthz").await.status, 200, "restarting it would not help");
    let refused = stage.send(&Call::pay("two")).await;
    refused.expect_problem(503, "store_unavailable");
    refused.expect_retry_after(Some(5));
    assert_eq!(stage.runs(), 1);
    for path in ["/api/v1/records", "/api/v1/counts", "/api/v1/records/op_00000000000000000000000000"] {
        let reply = admin(&stage.gateway, path).await;
        assert_eq!(
            (reply.status, reply.header("content-type")),
            (503, Some("application/problem+json")),
            "{path}"
        );
    }
    let own = stage.send(&Call::get("/.oncegate/operations/op_00000000000000000000000000")).await;
    own.expect_problem(503, "store_unavailable");
    cable.mend();
    let mending = async { while admin(&stage.gateway, "/readyz").await.status != 200 {} };
    crate::client::within(mending).await;
    let mut reply = stage.send(&Call::pay("two")).await;
    while reply.status == 503 {
        reply = stage.send(&Call::pay("two")).await;
    }
    reply.expect_first(200, "run 2");
    stage.send(&Call::pay("one")).await.expect_replay(200, "run 1");
}

async fn show(stage: &Stage, path: &str, authorization: Option<&str>) -> Reply {
    let mut call = Call::operator("GET", path);
    if let Some(value) = authorization {
        call = call.header("authorization", value);
    }
    call.send(stage.gateway.admin_address().tcp().unwrap()).await
}

#[tokio::test]
async fn the_token_is_asked_for() {
    let stage = Stage::numbered(&format!("[admin]\ntoken = \"{TOKEN}\"")).await;
    let paths = [
        "/metrics",
        "/api/v1/records",
        "/api/v1/records/op_00000000000000000000000000",
        "/api/v1/counts",
        "/api/v1/audit",
        "/api/v1/openapi.json",
    ];
    let wrong = [
        "Bearer 0123456789abcdeF",
        "Bearer",
        "Bearer ",
        "0123456789abcdef",
        "Basic 0123456789abcdef",
        "Bearer 0123456789abcdef0",
    ];
    for path in paths {
        for authorization in std::iter::once(None).chain(wrong.map(Some)) {
            let reply = show(&stage, path, authorization).await;
            assert_eq!(reply.status, 401, "{path} {authorization:?}");
            assert_eq!(reply.header("www-authenticate"), Some("Bearer"));
            assert_eq!(reply.header("content-type"), Some("application/problem+json"));
            assert!(reply.json()["detail"].as_str().unwrap().contains("admin.token_file"));
        }
        for right in [format!("Bearer {TOKEN}"), format!("bearer {TOKEN}")] {
            assert_ne!(show(&stage, path, Some(&right)).await.status, 401, "{path}");
        }
    }
    for open in ["/healthz", "/readyz"] {
        assert_eq!(show(&stage, open, None).await.status, 200, "{open}");
    }
}

#[test]
fn an_address_that_others_reach_wants_a_token() {
    let parse = |toml: &str| {
        let given = Given { upstream: Some("http://127.0.0.1:1".to_owned()), ..Given::default() };
        Config::parse(None, toml, &given)
    };
    for address in ["0.0.0.0:9090", "[::]:9090", "192.0.2.1:9090"] {
        let open = format!("[admin]\naddress = \"{address}\"\n");
        let error = parse(&open).unwrap_err().to_string();
        assert!(error.contains("admin.token_file"), "{error}");
        assert!(parse(&format!("{open}token = \"{TOKEN}\"\nplaintext = true")).is_ok());
    }
    assert!(parse("[admin]\naddress = \"127.0.0.1:9090\"\n").is_ok());
}

/// Three completed, one unknown that waits for an operator because there is nobody to ask, one released, of two tenants.
pub(crate) async fn with_records() -> Stage {
    let upstream = Upstream::start(async |seen: Seen| match seen.header("idempotency-key").unwrap() {
        "doubted" => Act::AnswerAndClose(Vec::new()),
        "released" => Act::Answer(answer(503, &[], "later")),
        _ => numbered(seen).await,
    });
    let stage = Stage::new(upstream.await, "[[route]]\nmatch = \"POST /refunds\"").await;
    for key in ["one", "two", "doubted", "released"] {
        stage.send(&Call::pay(key)).await;
    }
    let other = Call::anonymous("POST", "/refunds").tenant("umbrella").key("one").json("{}");
    stage.send(&other).await;
    oncegate_test_servers::until("nobody could be asked about the doubted one", async || {
        stage.record("doubted").await.is_some_and(|row| row["doubt"]["parked"] == true)
    })
    .await;
    stage
}

async fn keys(stage: &Stage, query: &str) -> Vec<String> {
    let reply = admin(&stage.gateway, &format!("/api/v1/records?{query}")).await;
    assert_eq!(reply.status, 200, "{reply:?}");
    let page = reply.json();
    assert_eq!(page["unreadable"], 0);
    page["records"].as_array().unwrap().iter().map(|row| row["key"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn records_are_listed_newest_first_and_narrowed() {
    let stage = with_records().await;
    assert_eq!(keys(&stage, "").await, ["one", "released", "doubted", "two", "one"]);
    assert_eq!(keys(&stage, "state=completed").await, ["one", "two", "one"]);
    assert_eq!(keys(&stage, "state=unknown").await, ["doubted"]);
    assert_eq!(keys(&stage, "state=unknown&parked=true").await, ["doubted"]);
    assert_eq!(keys(&stage, "state=unknown&parked=false").await, [""; 0]);
    assert_eq!(keys(&stage, "state=failed_retryable").await, ["released"]);
    assert_eq!(keys(&stage, "key=one").await.len(), 2);
    assert_eq!(keys(&stage, "key=one&operation=POST%20/refunds").await.len(), 1);
    assert_eq!(keys(&stage, "key=never").await, [""; 0]);
    assert_eq!(keys(&stage, "created_from=2000-01-01T00:00:00Z").await.len(), 5);
    assert_eq!(keys(&stage, "created_before=2000-01-01T00:00:00Z").await, [""; 0]);
    let scope = stage.record("two").await.unwrap()["scope"].as_str().unwrap().to_owned();
    assert_eq!(keys(&stage, &format!("scope={scope}")).await.len(), 4);
    let counts = admin(&stage.gateway, "/api/v1/counts").await.json();
    let expected = json!({
        "pending": 0, "in_progress": 0, "completed": 3, "failed_retryable": 1, "unknown": 1, "parked": 1, "expired": 0,
        "clock_steps": { "forward": 0, "back": 0 },
    });
    assert_eq!(counts, expected);
}

#[tokio::test]
async fn page_by_page_each_once() {
    let stage = with_records().await;
    for limit in 1..=6 {
        let (mut seen, mut after) = (Vec::new(), String::new());
        loop {
            let page = admin(&stage.gateway, &format!("/api/v1/records?limit={limit}{after}")).await.json();
            let rows = page["records"].as_array().unwrap();
            assert!(rows.len() <= limit);
            seen.extend(rows.iter().map(|row| row["id"].as_str().unwrap().to_owned()));
            match &page["next"] {
                Value::String(next) => after = format!("&after={next}"),
                next => break assert_eq!(next, &Value::Null),
            }
        }
        let count = seen.len();
        seen.sort();
        seen.dedup();
        assert_eq!((count, seen.len()), (5, 5), "by {limit}");
    }
}

#[tokio::test]
async fn a_record_is_shown_without_its_body_unless_that_is_asked_for() {
    let stage = with_records().await;
    let id = stage.record("two").await.unwrap()["id"].as_str().unwrap().to_owned();
    let shown = admin(&stage.gateway, &format!("/api/v1/records/{id}")).await.json();
    assert_eq!((&shown["key"], &shown["state"]), (&json!("two"), &json!("completed")));
    assert_eq!((&shown["answer"]["status"], &shown["answer"]["body_bytes"]), (&json!(200), &json!(5)));
    assert_eq!(shown["answer"].get("body"), None);
    let whole = admin(&stage.gateway, &format!("/api/v1/records/{id}?body=true")).await.json();
    assert_eq!(whole["answer"]["body"], "run 2");
    let doubted = stage.record("doubted").await.unwrap();
    assert_eq!((&doubted["doubt"]["tries"], &doubted["doubt"]["parked"]), (&json!(1), &json!(true)));
    let absent = admin(&stage.gateway, "/api/v1/records/op_00000000000000000000000000").await;
    assert_eq!(absent.status, 404);
}

#[tokio::test]
async fn questions_that_cannot_be_read() {
    let stage = Stage::numbered("").await;
    for (query, words) in [
        ("records?state=done", "in_progress"),
        ("records?stat=completed", "created_before"),
        ("records?limit=0", "500"),
        ("records?limit=501", "500"),
        ("records?limit=many", "expected"),
        ("records?parked=perhaps", "expected"),
        ("records?created_from=yesterday", "2026-11-16T09:30:00Z"),
        ("records?after=nonsense", ""),
        ("records/nonsense", "op_"),
        ("records/op_00000000000000000000000000?bodies=true", "body=true"),
    ] {
        let reply = admin(&stage.gateway, &format!("/api/v1/{query}")).await;
        assert_eq!(
            (reply.status, reply.header("content-type")),
            (400, Some("application/problem+json")),
            "{query}"
        );
        let detail = reply.json()["detail"].as_str().unwrap().to_owned();
        assert!(detail.contains(words), "{query}: {detail}");
    }
}
