//! Every refusal is counted once, by its reason and by the declared pattern of its route.

use oncegate_test_servers::{Redis, TcpProxy};

use crate::client::{Call, within};
use crate::gateway::{Stage, start_measured};
use crate::metrics::recorder;
use crate::upstream::{Refusing, Upstream};

fn route(pattern: &str, rules: &str) -> String {
    format!("[[route]]\nmatch = \"{pattern}\"\nprofile = \"ietf\"\n{rules}\n")
}

/// A stage where only this route is protected.
async fn only(pattern: &str, rules: &str, more: &str) -> Stage {
    let toml = format!("{more}\n[defaults]\nprofile = \"off\"\n{}", route(pattern, rules));
    Stage::measured(&toml, recorder()).await
}

#[tokio::test]
async fn a_full_queue() {
    let (gate, upstream) = Upstream::gated().await;
    let toml = format!("[limits]\nexecutions_max = 1\nqueue_max = 0\n{}", route("POST /queued", ""));
    let stage = Stage::measured_in_front_of(upstream, &toml, recorder()).await;
    let mut first = Call::post("/queued").key("one").json("{}").open(stage.addr()).await;
    gate.entered().await;
    stage.send(&Call::post("/queued").key("two").json("{}")).await.expect_problem(503, "overloaded");
    assert_eq!(stage.refusals("queue", "POST /queued").await, 1);
    gate.open();
    first.reply().await.expect_first(200, "run 1");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_fails_and_then_is_left_alone() {
    let redis = Redis::start(&[]);
    let cable = TcpProxy::start(&redis.url());
    let store = format!("[store]\nurl = \"{}\"", cable.url_of(&redis.url()));
    let stage = only("POST /stored", "", &store).await;
    let pay = |key: u32| Call::post("/stored").key(&format!("key-{key}")).json("{}");
    stage.send(&pay(0)).await.expect_first(200, "run 1");
    cable.cut();
    let mut sent = 0;
    let failing = async {
        while stage.refusals("breaker", "POST /stored").await == 0 {
            sent += 1;
            stage.send(&pay(sent)).await.expect_problem(503, "store_unavailable");
        }
    };
    within(failing).await;
    let (store, breaker) =
        (stage.refusals("store", "POST /stored").await, stage.refusals("breaker", "POST /stored").await);
    assert!(store > 0, "{store}");
    assert_eq!(store + breaker, u64::from(sent), "each once");
    cable.mend();
}

#[tokio::test]
async fn by_the_clients_fault() {
    let rules = "retention = \"1ms\"\nafter_retention = 410\nbody_bytes_max = \"1 KiB\"";
    let stage = only("POST /kept", rules, "").await;
    let pay = |key: &str, body: &str| Call::post("/kept").key(key).json(body);
    stage.send(&pay("one", "{}")).await.expect_first(200, "run 1");
    let mut gone = 0;
    let asking = async {
        while gone == 0 {
            let reply = stage.send(&pay("one", "{}")).await;
            if !reply.is_replay() {
                reply.expect_problem_of_operation(410, "key_expired");
                gone += 1;
            }
        }
    };
    within(asking).await;
    assert_eq!(stage.refusals("key_expired", "POST /kept").await, 1);

    let large = format!("\"{}\"", "x".repeat(2 << 10));
    stage.send(&pay("two", &large)).await.expect_problem(413, "too_large");
    assert_eq!(stage.refusals("too_large", "POST /kept").await, 1);

    let stage = only("POST /reused", "", "").await;
    let pay = |body: &str| Call::post("/reused").key("one").json(body);
    stage.send(&pay("[1]")).await.expect_first(200, "run 1");
    stage.send(&pay("[2]")).await.expect_problem_of_operation(422, "key_reused");
    assert_eq!(stage.refusals("key_reused", "POST /reused").await, 1);
    // Whatever its body says: the declared type decides.
    stage.send(&pay("[1")).await.expect_problem(400, "request_invalid");
    assert_eq!(stage.refusals("request_invalid", "POST /reused").await, 1);
}

/// Refusals before the route is matched had been counted by the path as it was sent, so that other
/// spellings of a protected path counted for no route.
#[tokio::test]
async fn under_the_route_that_the_path_means() {
    let stage = only("POST /payments", "", "").await;
    let mut count = 0;
    let two_types = |path: &str| {
        Call::post(path).key("one").header("content-type", "a/b").header("content-type", "c/d").body("{}")
    };
    for path in ["/payments", "/payments/", "//payments", "/%70ayments", "/x/../payments"] {
        stage.send(&two_types(path)).await.expect_problem(400, "request_malformed");
        count += 1;
        assert_eq!(stage.refusals("request_malformed", "POST /payments").await, count, "{path}");
    }
    for path in ["/payments%2F", "/payments%00", "/payments%2F%2e%2e%2Fpayments"] {
        stage.send(&Call::post(path).key("one").json("{}")).await.expect_problem(400, "request_malformed");
        count += 1;
        assert_eq!(stage.refusals("request_malformed", "POST /payments").await, count, "{path}");
    }
    let overriding = Call::post("/payments/").key("one").header("x-http-method-override", "GET").json("{}");
    stage.send(&overriding).await.expect_problem(400, "request_malformed");
    assert_eq!(stage.refusals("request_malformed", "POST /payments").await, count + 1);
    assert_eq!(stage.refusals("request_malformed", "none").await, 0);
    stage.send(&two_types("/elsewhere")).await.expect_problem(400, "request_malformed");
    assert_eq!(stage.refusals("request_malformed", "none").await, 1);
}

/// A request without a key on a route where keys are optional, whose upstream cannot be reached.
#[tokio::test]
async fn without_a_key_and_without_an_upstream() {
    let refusing = Refusing::new();
    let toml = route("POST /optional", "key_required = false");
    let gateway = start_measured(&format!("http://{}", refusing.addr()), &toml, recorder()).await;
    let call = Call::post("/optional").json("{}");
    call.send(gateway.address()).await.expect_problem(502, "upstream_unreachable");
    let count = crate::metrics::refusals(&gateway, "upstream_unreachable", "POST /optional").await;
    assert_eq!(count, 1);
    // Of no route at all.
    Call::get("/x").send(gateway.address()).await.expect_problem(502, "upstream_unreachable");
    assert_eq!(crate::metrics::refusals(&gateway, "upstream_unreachable", "none").await, 1);
}

/// What does not come as an event to a webhook that is declared.
#[tokio::test]
async fn webhooks_that_are_not_there_and_methods_that_are_not_taken() {
    let stage = Stage::measured(crate::webhooks::PLAIN, recorder()).await;
    let nope = Call::anonymous("POST", "/.oncegate/webhooks/nope").json("{}");
    stage.send(&nope).await.expect_problem(404, "operation_not_found");
    assert_eq!(stage.refusals("operation_not_found", "none").await, 1);
    let reply = stage.send(&Call::anonymous("GET", "/.oncegate/webhooks/provider")).await;
    assert_eq!((reply.status, reply.header("allow")), (405, Some("POST")), "{reply:?}");
    let labels = "oncegate_webhook_count{webhook=\"provider\",result=\"method_not_allowed\"}";
    assert_eq!(stage.counter(labels).await, 1);
    let unsigned = Call::anonymous("POST", "/.oncegate/webhooks/provider").json("{}");
    assert_eq!(stage.send(&unsigned).await.status, 401);
}
