//! Heads on their way: what is of one connection stays there, what a proxy has to say is added.

use http::Request;

use crate::client::{Call, Connection};
use crate::gateway::{Stage, defaults, start};
use crate::http2;
use crate::upstream::{Act, Upstream, answer};

#[tokio::test]
async fn what_is_of_a_connection_stays_there() {
    let headers = [
        ("connection", "keep-alive, X-Hop-Back"),
        ("x-hop-back", "1"),
        ("keep-alive", "timeout=60"),
        ("proxy-authenticate", "Basic"),
        ("proxy-connection", "keep-alive"),
        ("trailer", "x-sum"),
        ("upgrade", "h2c"),
        ("te", "trailers"),
        ("x-end-to-end", "2"),
    ];
    let bytes = answer(200, &headers, "answered");
    let upstream = Upstream::start(move |_| std::future::ready(Act::Answer(bytes.clone()))).await;
    let stage = Stage::new(upstream, "").await;
    for call in [Call::get("/"), Call::pay("one")] {
        let call = call
            .header("connection", "X-Hop, x-other")
            .header("connection", "x-third")
            .header("x-hop", "1")
            .header("x-other", "2")
            .header("x-third", "3")
            .header("keep-alive", "timeout=5")
            .header("proxy-authorization", "Basic c2VjcmV0")
            .header("proxy-connection", "keep-alive")
            .header("te", "trailers")
            .header("trailer", "x-sum")
            .header("upgrade", "h2c")
            .header("expect", "100-continue")
            .header("idempotency-attempt", "99")
            .header("x-end-to-end", "4");
        let mut connection = call.open(stage.addr()).await;
        let mut reply = connection.reply().await;
        if reply.status == 100 {
            reply = connection.reply().await;
        }
        assert_eq!(reply.text(), "answered");
        for name in
            ["x-hop-back", "keep-alive", "proxy-authenticate", "proxy-connection", "trailer", "upgrade", "te"]
        {
            assert_eq!(reply.header(name), None, "{name}");
        }
        assert_eq!(reply.header("x-end-to-end"), Some("2"));
        let seen = stage.upstream.last();
        for name in [
            "connection",
            "x-hop",
            "x-other",
            "x-third",
            "keep-alive",
            "proxy-authorization",
            "proxy-connection",
            "te",
            "trailer",
            "upgrade",
            "expect",
        ] {
            assert_eq!(seen.values(name), [""; 0], "{name}");
        }
        assert_ne!(seen.header("idempotency-attempt"), Some("99"));
        assert_eq!(seen.header("x-end-to-end"), Some("4"));
    }
    assert_eq!(stage.runs(), 2);
}

#[tokio::test]
async fn who_asked_and_by_which_way() {
    let stage = Stage::numbered("").await;
    let call = Call::get("/x")
        .header("via", "1.0 before")
        .header("forwarded", "for=192.0.2.1")
        .header("x-forwarded-for", "192.0.2.1")
        .header("x-forwarded-host", "spoofed.test")
        .header("x-forwarded-proto", "https");
    let reply = stage.send(&call).await;
    assert_eq!(reply.header("via"), Some("1.1 oncegate"));
    let seen = stage.upstream.last();
    assert_eq!(seen.values("via"), ["1.0 before", "1.1 oncegate"]);
    let own = "for=127.0.0.1;host=\"api.test\";proto=http";
    assert_eq!(seen.values("forwarded"), [own], "a client's own is dropped");
    assert_eq!(seen.values("x-forwarded-for"), ["127.0.0.1"]);
    assert_eq!(seen.header("x-forwarded-host"), Some("api.test"));
    assert_eq!(seen.header("x-forwarded-proto"), Some("http"));
}

#[tokio::test]
async fn the_host_is_the_upstreams_or_the_clients() {
    let stage = Stage::numbered("").await;
    stage.send(&Call::get("/x?y=%20z")).await.expect_first(200, "run 1");
    let seen = stage.upstream.last();
    assert_eq!(seen.line, "GET /x?y=%20z HTTP/1.1", "as a server is asked, not as a proxy is");
    assert_eq!(seen.header("host"), Some(stage.upstream.addr.to_string().as_str()));

    let stage = Stage::numbered("[upstream]\nhost = \"client\"").await;
    stage.send(&Call::get("/")).await.expect_first(200, "run 1");
    assert_eq!(stage.upstream.last().header("host"), Some("api.test"));
}

#[tokio::test]
async fn the_base_path_goes_before() {
    for base in ["/v1/api", "/v1/api/"] {
        let upstream = Upstream::numbered().await;
        let gateway = start(&format!("http://{}{base}", upstream.addr), "").await;
        for (path, expected) in
            [("/payments?a=b", "/v1/api/payments?a=b"), ("/", "/v1/api/"), ("/a//b/../c", "/v1/api/a/c")]
        {
            Call::get(path).send(gateway.address()).await;
            assert_eq!(upstream.last().line, format!("GET {expected} HTTP/1.1"));
        }
        // The route is the client's path.
        Call::pay("one").send(gateway.address()).await.expect_first(200, "run 4");
        assert_eq!(upstream.last().line, "POST /v1/api/payments HTTP/1.1");
    }
}

/// HTTP/2 may send a cookie in crumbs, and HTTP/1.1 knows one line.
#[tokio::test]
async fn cookie_crumbs_are_joined() {
    let stage = Stage::numbered("").await;
    let mut client = http2::connect(stage.addr()).await;
    let request = Request::get("http://a.test/").header("cookie", "a=1").header("cookie", "b=2");
    let request = request.header("cookie", "c=3").body("".into()).unwrap();
    http2::ask(&mut client, request).await.expect_first(200, "run 1");
    let seen = stage.upstream.last();
    assert_eq!(seen.header("cookie"), Some("a=1; b=2; c=3"));
    assert_eq!(seen.header("via"), Some("2 oncegate"));
}

#[tokio::test]
async fn no_compression_where_an_answer_is_kept() {
    let stage = Stage::numbered(&defaults("ietf", "")).await;
    stage.send(&Call::pay("one").header("accept-encoding", "br, gzip")).await;
    assert_eq!(stage.upstream.last().header("accept-encoding"), Some("identity"));
    stage.send(&Call::get("/").header("accept-encoding", "br, gzip")).await;
    assert_eq!(stage.upstream.last().header("accept-encoding"), Some("br, gzip"));
}

/// The server as a whole is asked, and it has no path: the base path made `/base*` of it.
#[tokio::test]
async fn options_of_the_server_itself() {
    for base in ["", "/base"] {
        let upstream = Upstream::numbered().await;
        let gateway = start(&format!("http://{}{base}", upstream.addr), "").await;
        Call::anonymous("OPTIONS", "*").send(gateway.address()).await.expect_first(200, "run 1");
        assert_eq!(upstream.last().line, "OPTIONS * HTTP/1.1");
    }
}

/// The upstream's word to the gateway reached clients where nothing is protected, though it is for this hop.
#[tokio::test]
async fn the_outcome_is_not_for_clients() {
    let upstream = Upstream::start(async |_| {
        Act::Answer(answer(200, &[("idempotency-outcome", "completed"), ("x-more", "1")], "answered"))
    });
    let toml = "[[route]]\nmatch = \"POST /off\"\nprofile = \"off\"";
    let stage = Stage::new(upstream.await, toml).await;
    for call in [Call::get("/"), Call::post("/off").key("one").json("{}"), Call::pay("one")] {
        let reply = stage.send(&call).await;
        reply.expect_first(200, "answered");
        assert_eq!((reply.header("idempotency-outcome"), reply.header("x-more")), (None, Some("1")));
    }
}

/// The version of the upstream's answer was passed on, and with it the end of the client's connection.
#[tokio::test]
async fn an_answer_in_http_1_0() {
    let upstream = Upstream::start(async |_| {
        Act::AnswerAndClose(b"HTTP/1.0 200 OK\r\ncontent-length: 3\r\n\r\nold".to_vec())
    });
    let stage = Stage::new(upstream.await, "").await;
    // The client insists on HTTP/1.1, and its connection goes on.
    let mut client = Connection::to(stage.addr()).await;
    for call in [Call::get("/"), Call::pay("one"), Call::get("/")] {
        let reply = client.ask(&call).await;
        reply.expect_first(200, "old");
        assert_eq!(reply.header("connection"), None);
    }
    client.ask(&Call::pay("one")).await.expect_replay(200, "old");
}
