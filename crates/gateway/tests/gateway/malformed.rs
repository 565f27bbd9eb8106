//! What could be read in two ways is refused, and nothing of it is forwarded: each over a raw socket, for hyper is lenient here.

use http::Request;
use http_body_util::Empty;

use crate::client::{Call, Connection, send_raw};
use crate::gateway::{Stage, admin, start};
use crate::http2;
use crate::upstream::Upstream;

/// Nothing reached the upstream, and nothing was recorded.
async fn nothing_happened(stage: &Stage) {
    assert_eq!(stage.runs(), 0, "{:?}", stage.upstream.seen());
    let counts = admin(&stage.gateway, "/api/v1/counts").await.json();
    assert!(
        counts.as_object().unwrap().values().filter_map(serde_json::Value::as_u64).all(|count| count == 0),
        "{counts}"
    );
}

#[tokio::test]
async fn requests_that_have_two_readings() {
    let stage = Stage::numbered("").await;
    let tricks = [
        ("no Host", "POST / HTTP/1.1\r\n"),
        ("two Hosts", "POST / HTTP/1.1\r\nhost: a.test\r\nhost: b.test\r\n"),
        ("the same Host twice", "POST / HTTP/1.1\r\nhost: a.test\r\nHost: a.test\r\n"),
        ("the key is of this hop", "POST / HTTP/1.1\r\nhost: a\r\nconnection: Idempotency-Key\r\n"),
        ("among others", "POST / HTTP/1.1\r\nhost: a\r\nconnection: close ,\tidempotency-KEY\r\n"),
        (
            "in a second line",
            "POST / HTTP/1.1\r\nhost: a\r\nconnection: close\r\nconnection: idempotency-key\r\n",
        ),
    ];
    for (name, head) in tricks {
        for credentials in ["", "authorization: Bearer acme\r\nidempotency-key: one\r\n"] {
            let reply =
                send_raw(stage.addr(), format!("{head}{credentials}content-length: 2\r\n\r\n{{}}")).await;
            let problem = reply.expect_problem(400, "request_malformed");
            assert!(
                problem["detail"].as_str().unwrap().contains("Nothing was forwarded"),
                "{name}: {problem}"
            );
        }
    }
    // Unprotected requests too: what is behind has its own readings.
    send_raw(stage.addr(), "GET / HTTP/1.1\r\n\r\n").await.expect_problem(400, "request_malformed");
    nothing_happened(&stage).await;
}

#[tokio::test]
async fn codings_that_another_hop_would_read_otherwise() {
    let stage = Stage::numbered("").await;
    let codings = [
        "transfer-encoding: chunked, chunked\r\n",
        "transfer-encoding: junk, chunked\r\n",
        "transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n",
        "transfer-encoding: gzip, chunked\r\n",
    ];
    for coding in codings {
        let head = "POST / HTTP/1.1\r\nhost: a\r\nauthorization: Bearer acme\r\nidempotency-key: one\r\n";
        let reply = send_raw(stage.addr(), format!("{head}{coding}\r\n2\r\n{{}}\r\n0\r\n\r\n")).await;
        assert_eq!(reply.status, 400, "{coding}: {reply:?}");
    }
    // Not chunked at all: hyper itself refuses it.
    let reply = send_raw(stage.addr(), "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: junk\r\n\r\n").await;
    reply.expect_problem(400, "request_malformed");
    nothing_happened(&stage).await;
}

#[tokio::test]
async fn a_key_in_two_lines_or_not_in_ascii() {
    let stage = Stage::numbered("").await;
    let call = || Call::post("/payments").json("{}");
    stage.send(&call().key("one").key("two")).await.expect_problem(400, "key_invalid");
    stage.send(&call().key("one").key("one")).await.expect_problem(400, "key_invalid");
    stage.send(&call().header("idempotency-key", b"caf\xe9")).await.expect_problem(400, "key_invalid");
    stage.send(&call().header("idempotency-key", "café")).await.expect_problem(400, "key_invalid");
    nothing_happened(&stage).await;
}

#[tokio::test]
async fn connect_is_for_forward_proxies() {
    let stage = Stage::numbered("").await;
    let reply = send_raw(stage.addr(), "CONNECT b.test:443 HTTP/1.1\r\nhost: b.test:443\r\n\r\n").await;
    reply.expect_problem(400, "request_malformed");
    nothing_happened(&stage).await;
}

/// Two lengths, the oldest trick: one meaning is forwarded, framed anew.
#[tokio::test]
async fn a_length_beside_chunks_has_one_meaning_behind() {
    let stage = Stage::numbered("").await;
    let head = "POST / HTTP/1.1\r\nhost: a\r\nauthorization: Bearer acme\r\n";
    let smuggled = "0\r\n\r\nPOST /smuggled HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n\r\n";
    let framing = format!("content-length: {}\r\ntransfer-encoding: chunked\r\n\r\n", smuggled.len());
    let mut connection = Connection::to(stage.addr()).await;
    connection.write(format!("{head}idempotency-key: one\r\n{framing}{smuggled}")).await;
    connection.reply().await.expect_first(200, "run 1");
    let seen = stage.upstream.last();
    assert_eq!((seen.line.as_str(), seen.body.as_slice()), ("POST / HTTP/1.1", &b""[..]));
    // Framed anew: neither of the two it came with.
    assert_eq!(
        (seen.header("transfer-encoding"), seen.header("content-length")),
        (None, None),
        "there is none"
    );
    // What came after it is not read at all.
    connection.closed().await;
    // Two lengths that differ have no meaning at all.
    let reply =
        send_raw(stage.addr(), format!("{head}content-length: 2\r\ncontent-length: 3\r\n\r\n{{}}1")).await;
    assert_eq!(reply.status, 400);
    assert_eq!(stage.runs(), 1);
}

#[tokio::test]
async fn http_2_with_two_hosts() {
    let stage = Stage::numbered("").await;
    let mut client = http2::connect(stage.addr()).await;
    let request = |host: &str| {
        let request = Request::get("http://a.test/").header("host", host);
        request.body(Empty::new().into()).unwrap()
    };
    let reply = http2::ask(&mut client, request("b.test")).await;
    reply.expect_problem(400, "request_malformed");
    nothing_happened(&stage).await;
    // The same one twice is one.
    http2::ask(&mut client, request("A.test")).await.expect_first(200, "run 1");
}

/// HTTP/1.1 in absolute form: the address counts, whatever the header says.
#[tokio::test]
async fn the_host_of_an_absolute_address() {
    let stage = Stage::numbered("[upstream]\nhost = \"client\"").await;
    let reply = send_raw(stage.addr(), "GET http://a.test/x?y=1 HTTP/1.1\r\nhost: b.test\r\n\r\n").await;
    reply.expect_first(200, "run 1");
    let seen = stage.upstream.last();
    assert_eq!((seen.line.as_str(), seen.header("host")), ("GET /x?y=1 HTTP/1.1", Some("a.test")));
    assert_eq!(seen.header("x-forwarded-host"), Some("a.test"));
}

#[tokio::test]
async fn a_head_over_the_limit() {
    let stage = Stage::numbered("[listen]\nheader_bytes_max = \"8 KiB\"").await;
    let large = Call::pay("one").header("x-large", "x".repeat(20_000));
    let reply = stage.send(&large).await;
    reply.expect_problem(431, "request_malformed");
    nothing_happened(&stage).await;
    stage.send(&Call::pay("one").header("x-large", "x".repeat(4_000))).await.expect_first(200, "run 1");
}

/// Together with the base path it was no address any more, and the upstream's root was asked instead.
#[tokio::test]
async fn an_address_that_is_too_long() {
    let upstream = Upstream::numbered().await;
    let toml = "[listen]\nheader_bytes_max = \"1 MiB\"";
    let base = "/base".repeat(20);
    let gateway = start(&format!("http://{}{base}", upstream.addr), toml).await;
    let stage = Stage { gateway, upstream };
    for length in [64_950, 65_001, 65_530] {
        let path = format!("/{}", "x".repeat(length - 1));
        for call in [Call::get(&path), Call::post(&path).key("one").json("{}")] {
            let problem = stage.send(&call).await.expect_problem(414, "request_malformed");
            assert!(problem["detail"].as_str().unwrap().contains("nothing was executed"), "{problem}");
        }
    }
    nothing_happened(&stage).await;
    let path = format!("/{}", "x".repeat(60_000));
    stage.send(&Call::get(&path)).await.expect_first(200, "run 1");
    assert_eq!(stage.upstream.last().line, format!("GET {base}{path} HTTP/1.1"));
}

/// `Connection: authorization` had the gateway drop the credentials that it had told the caller by, and the upstream executed the request
/// as somebody else's; the same with what requests are compared by.
#[tokio::test]
async fn what_is_needed_behind_is_not_of_one_connection() {
    let toml = "[scope]\nfrom = \"header\"\nheader = \"X-Tenant\"\ntrusted_peers = [\"127.0.0.1/32\"]\n";
    let stage = Stage::numbered(toml).await;
    let names =
        ["Authorization", "content-type", "Content-Length", "cookie", "host", "x-tenant", "close, X-TENANT"];
    for name in names {
        let call = Call::pay("one").header("x-tenant", "acme").header("connection", name);
        stage.send(&call).await.expect_problem(400, "request_malformed");
        let call = Call::get("/").header("connection", name);
        stage.send(&call).await.expect_problem(400, "request_malformed");
    }
    nothing_happened(&stage).await;
    let call =
        Call::pay("one").header("x-tenant", "acme").header("connection", "x-other").header("x-other", "1");
    stage.send(&call).await.expect_first(200, "run 1");
    assert_eq!(stage.upstream.last().header("x-other"), None);
}
