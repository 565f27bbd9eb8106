//! Metrics in Prometheus' format. The recorder is the whole process's, so tests share it and count
//! on routes of their own.

use std::sync::OnceLock;

use oncegate_gateway::{Gateway, MetricsHandle, install_recorder};

use crate::client::{Call, Connection, send_raw};
use crate::gateway::{admin, config};
use crate::upstream::Upstream;

/// The recorder of this process. Take it before a gateway is started.
pub(crate) fn recorder() -> MetricsHandle {
    static RECORDER: OnceLock<MetricsHandle> = OnceLock::new();
    RECORDER.get_or_init(|| install_recorder().unwrap()).clone()
}

/// A counter by its name and labels, as Prometheus reads it; 0 where it is not there.
pub(crate) async fn counter(gateway: &Gateway, series: &str) -> u64 {
    let reply = admin(gateway, "/metrics").await;
    let counts =
        reply.text().lines().filter_map(|line| line.strip_prefix(series)?.trim().parse::<u64>().ok());
    counts.sum()
}

/// So many requests were refused for this reason on this route.
pub(crate) async fn refusals(gateway: &Gateway, reason: &str, route: &str) -> u64 {
    counter(gateway, &format!("oncegate_refusal_count{{reason=\"{reason}\",route=\"{route}\"}}")).await
}

#[tokio::test]
async fn in_prometheus_text_format() {
    let handle = recorder();
    let upstream = Upstream::numbered().await;
    let toml = "[listen]\nheader_timeout = \"1s\"\n\
                [[route]]\nmatch = \"POST /metered\"\nprofile = \"stripe\"\n\
                [[route]]\nmatch = \"POST /guarded\"\npreauthorize = { url = \"/auth\" }\n\
                [[route]]\nmatch = \"POST /shut\"\npreauthorize = { url = \"http://127.0.0.1:1/auth\" }";
    let gateway = Gateway::start(config(&format!("http://{}", upstream.addr), toml), Some(handle));
    let gateway = gateway.await.unwrap();
    let call = Call::post("/metered").key("one").json("{}");
    call.send(gateway.address()).await.expect_first(200, "run 1");
    call.send(gateway.address()).await.expect_replay(200, "run 1");
    call.send(gateway.address()).await.expect_replay(200, "run 1");
    let reply = admin(&gateway, "/metrics").await;
    assert_eq!(reply.header("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    let text = reply.text();
    assert!(text.contains("# TYPE "), "{text}");
    assert!(text.contains("oncegate_gateway_upstream_connect_count"), "{text}");
    let labels = "{profile=\"stripe\",route=\"POST /metered\"}";
    for (name, count) in [("created", 1), ("replay", 2), ("key_misuse", 0)] {
        let expected = format!("api_idempotency_reserve_{name}_count{labels} {count}");
        assert!(text.lines().any(|line| line == expected), "{expected} is not in:\n{text}");
    }
    counts_of_refusals(&gateway).await;
    clients_faults_and_preauthorization(&gateway).await;
    // Every line is a comment, or a name with a number.
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let number = line.rsplit(' ').next().unwrap();
        assert!(number.parse::<f64>().is_ok(), "{line}");
    }
}

/// Each refusal is counted once, by its reason and by the declared pattern of its route.
async fn counts_of_refusals(gateway: &Gateway) {
    let address = gateway.address();
    let other = Call::post("/metered").key("one").json(r#"{"amount":2}"#);
    for _ in 0..2 {
        assert_eq!(other.send(address).await.status, 400, "stripe's status for a reused key");
    }
    assert_eq!(Call::post("/metered").key("").json("{}").send(address).await.status, 400);
    assert_eq!(Call::anonymous("POST", "/metered").key("k").json("{}").send(address).await.status, 401);
    assert_eq!(Call::post("/metered%2Fx").key("k").json("{}").send(address).await.status, 400);
    // What hyper refuses by itself, and a head that does not end.
    assert_eq!(send_raw(address, "GET / HTTP/1.1\r\nx y: 1\r\n\r\n").await.status, 400);
    assert_eq!(send_raw(address, "GET / HTTP/1.1\r\nhost: a\r\n").await.status, 408);
    // Without a key, where keys are optional: it passes, and is counted.
    assert_eq!(Call::post("/metered").json("{}").send(address).await.status, 200);
    let reply = admin(gateway, "/metrics").await;
    let text = reply.text();
    for (reason, route, count) in [
        ("key_reused", "POST /metered", 2),
        ("key_invalid", "POST /metered", 1),
        ("scope_missing", "POST /metered", 1),
        ("request_malformed", "POST *", 1),
        ("request_malformed", "none", 2),
        ("breaker", "none", 0),
    ] {
        let expected = format!("oncegate_refusal_count{{reason=\"{reason}\",route=\"{route}\"}} {count}");
        assert!(text.lines().any(|line| line == expected), "{expected} is not in:\n{text}");
    }
    let keyless = "api_idempotency_keyless_count{profile=\"stripe\",route=\"POST /metered\"} 1";
    assert!(text.lines().any(|line| line == keyless), "{keyless} is not in:\n{text}");
}

/// A body that its client breaks off is no failure of the upstream's; what was asked before a
/// request
/// is counted by its result.
async fn clients_faults_and_preauthorization(gateway: &Gateway) {
    let address = gateway.address();
    let mut client = Connection::to(address).await;
    client.write(Call::anonymous("PUT", "/upload").chunked().head()).await;
    client.write("5\r\nhelloXX").await;
    client.reply().await.expect_problem(400, "request_malformed");
    assert_eq!(Call::post("/guarded").key("two").json("{}").send(address).await.status, 200);
    let reply = Call::post("/shut").key("three").json("{}").send(address).await;
    reply.expect_problem(503, "authorization_unavailable");
    let reply = admin(gateway, "/metrics").await;
    let text = reply.text();
    for expected in [
        "oncegate_refusal_count{reason=\"request_malformed\",route=\"none\"} 3",
        "oncegate_refusal_count{reason=\"authorization_unavailable\",route=\"POST /shut\"} 1",
        "oncegate_gateway_preauthorize_count{result=\"allowed\"} 1",
        "oncegate_gateway_preauthorize_count{result=\"failed\"} 1",
    ] {
        assert!(text.lines().any(|line| line == expected), "{expected} is not in:\n{text}");
    }
    assert!(!text.contains("oncegate_gateway_upstream_failure_count"), "{text}");
}
