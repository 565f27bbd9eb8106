//! Under `upstream.host = "client"` one upstream serves several hosts, so the host is part of what
//! a request asks for.

use tokio::io::AsyncReadExt as _;

use crate::client::{Call, Connection, send_raw, within};
use crate::gateway::{Stage, config, defaults};
use crate::reply::Reply;

const CLIENTS: &str = "[upstream]\nhost = \"client\"";

/// A payment with one key, by one caller, for this host. `target` is a path or a whole address.
async fn pay(stage: &Stage, target: &str, host: &str) -> Reply {
    let bytes = format!(
        "POST {target} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer acme\r\nIdempotency-Key: one\r\n\
         Content-Length: 2\r\n\r\n{{}}"
    );
    send_raw(stage.addr(), bytes).await
}

/// `Host: b.test` had been answered with what a.test answered.
#[tokio::test]
async fn one_hosts_answer_is_never_replayed_to_another() {
    let stage = Stage::numbered(CLIENTS).await;
    pay(&stage, "/x", "a.test").await.expect_first(200, "run 1");
    for host in ["b.test", "a.test:8080", "a.test.", "c.a.test"] {
        pay(&stage, "/x", host).await.expect_problem_of_operation(422, "key_reused");
    }
    // The address in the request line counts, not the header beside it.
    pay(&stage, "http://b.test/x", "a.test").await.expect_problem_of_operation(422, "key_reused");
    assert_eq!(stage.runs(), 1);
    // Other spellings of the same host are the same.
    for host in ["a.test", "A.Test", "a.test:80", "a.test:"] {
        pay(&stage, "/x", host).await.expect_replay(200, "run 1");
    }
    pay(&stage, "http://A.test:80/x", "b.test").await.expect_replay(200, "run 1");
    assert_eq!(stage.runs(), 1);
}

/// What has no host is sent the upstream's own, so it is a request to that host.
#[tokio::test]
async fn without_a_host_it_is_the_upstreams() {
    let stage = Stage::numbered(CLIENTS).await;
    let own = stage.upstream.addr.to_string();
    pay(&stage, "/x", &own).await.expect_first(200, "run 1");
    let seen = stage.upstream.last();
    assert_eq!(seen.header("host"), Some(own.as_str()));
    let mut connection = Connection::to(stage.addr()).await;
    let hostless = "POST /x HTTP/1.0\r\nAuthorization: Bearer acme\r\nIdempotency-Key: one\r\nContent-Length: 2\r\n\r\n{}";
    connection.write(hostless).await;
    let mut reply = String::new();
    within(connection.read.read_to_string(&mut reply)).await.unwrap();
    assert!(reply.contains("\r\nidempotency-replayed: true\r\n") && reply.ends_with("run 1"), "{reply}");
    assert_eq!(stage.runs(), 1);
}

/// Where the upstream is always sent its own host, the client's does not count.
#[tokio::test]
async fn the_clients_host_does_not_count_where_it_is_not_forwarded() {
    let stage = Stage::numbered("").await;
    pay(&stage, "/x", "a.test").await.expect_first(200, "run 1");
    pay(&stage, "/x", "b.test").await.expect_replay(200, "run 1");
}

/// Earlier releases recorded no host, and neither does `host = "upstream"`. A deploy must not turn
/// a retry into a refusal that tells its client to take a new key.
#[tokio::test]
async fn records_without_a_host_are_still_found() {
    let directory = tempfile::tempdir().unwrap();
    let store = format!("[store]\nurl = \"sqlite://{}\"", directory.path().join("keys.db").display());
    let before = Stage::numbered(&store).await;
    pay(&before, "/x", "a.test").await.expect_first(200, "run 1");
    assert_eq!(before.runs(), 1);
    before.gateway.shut_down().await;
    let after = Stage::numbered(&format!("{CLIENTS}\n{store}")).await;
    pay(&after, "/x", "a.test").await.expect_replay(200, "run 1");
    pay(&after, "/y", "a.test").await.expect_problem_of_operation(422, "key_reused");
    // What is recorded from now on has its host.
    let two = Call::post("/x").key("two").json("{}");
    after.send(&two).await.expect_first(200, "run 1");
    after.send(&two).await.expect_replay(200, "run 1");
    let elsewhere = "POST /x HTTP/1.1\r\nHost: b.test\r\nAuthorization: Bearer acme\r\nIdempotency-Key: two\r\n\
                     Content-Type: application/json\r\nContent-Length: 2\r\n\r\n{}";
    send_raw(after.addr(), elsewhere).await.expect_problem_of_operation(422, "key_reused");
    assert_eq!(after.runs(), 1);
}

/// The upstream is told the client's host as X-Forwarded-Host and Forwarded in any case. One that
/// answers by it had its answers replayed to other hosts.
#[tokio::test]
async fn one_hosts_answer_is_never_replayed_to_another_where_the_route_names_the_host() {
    let route = "[[route]]\nmatch = \"POST /x\"\nfingerprint_headers = [\"Host\", \"x-shop\"]\n";
    let stage = Stage::numbered(route).await;
    pay(&stage, "/x", "a").await.expect_first(200, "run 1");
    let seen = stage.upstream.last();
    assert_eq!(seen.header("x-forwarded-host"), Some("a"), "{seen:?}");
    pay(&stage, "/x", "b").await.expect_problem_of_operation(422, "key_reused");
    pay(&stage, "http://b/x", "a").await.expect_problem_of_operation(422, "key_reused");
    for (target, host) in [("/x", "A:80"), ("/x/", "a"), ("http://a/x", "b")] {
        pay(&stage, target, host).await.expect_replay(200, "run 1");
    }
    assert_eq!(stage.runs(), 1);
    // Not on other routes.
    let call = |host: &str| {
        format!(
            "POST /y HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer acme\r\nIdempotency-Key: two\r\n\
             Content-Length: 2\r\n\r\n{{}}"
        )
    };
    send_raw(stage.addr(), call("a")).await.expect_first(200, "run 2");
    send_raw(stage.addr(), call("b")).await.expect_replay(200, "run 2");
}

/// The host in the request line counts, also for what is run later.
#[tokio::test]
async fn a_deferred_request_keeps_the_host_that_was_compared() {
    let stage = Stage::numbered(&defaults("accepted", "fingerprint_headers = [\"host\"]")).await;
    assert_eq!(pay(&stage, "http://b.test/x", "a.test").await.status, 202);
    stage.upstream.ran(1).await;
    let seen = stage.upstream.last();
    assert_eq!(seen.header("x-forwarded-host"), Some("b.test"), "{seen:?}");
    assert_eq!(seen.header("host"), Some(&*stage.upstream.addr.to_string()), "{seen:?}");
}

/// Where the host is named in vain, the refusal says why.
#[test]
fn the_refusal_of_host_as_a_stored_header_says_why() {
    for setting in
        ["request_headers = [\"host\"]", "preauthorize = { url = \"/auth\", headers = [\"Host\"] }"]
    {
        let refused =
            std::panic::catch_unwind(|| config("http://127.0.0.1:1", &format!("[defaults]\n{setting}")));
        let words = *refused.unwrap_err().downcast::<String>().unwrap();
        assert!(words.contains("X-Forwarded-Host") && words.contains("fingerprint_headers"), "{words}");
    }
}
