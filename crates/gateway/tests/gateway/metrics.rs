//! Metrics in Prometheus' format. The recorder is the whole process's, so there is one test, and it looks for names.

use metrics_exporter_prometheus::PrometheusBuilder;
use oncegate_gateway::Gateway;

use crate::client::Call;
use crate::gateway::{admin, config};
use crate::upstream::Upstream;

#[tokio::test]
async fn in_prometheus_text_format() {
    let handle = PrometheusBuilder::new().install_recorder().unwrap();
    let upstream = Upstream::numbered().await;
    let toml = "[[route]]\nmatch = \"POST /metered\"\nprofile = \"stripe\"";
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
    // Every line is a comment, or a name with a number.
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let number = line.rsplit(' ').next().unwrap();
        assert!(number.parse::<f64>().is_ok(), "{line}");
    }
}
