//! Request targets, methods and paths: what is matched is what is forwarded, and anything with
//! a second reading is refused.

use crate::client::{Call, send_raw};
use crate::frames::{self, END_HEADERS, END_STREAM, HEADERS};
use crate::gateway::{Stage, start};
use crate::upstream::Upstream;

const KEYED: &str =
    "host: a\r\nauthorization: Bearer acme\r\nidempotency-key: one\r\ncontent-length: 2\r\n\r\n{}";

/// `POST x` is a target in authority form. It matched as the empty path, so that no route was
/// found, and was forwarded as `/`.
#[tokio::test]
async fn a_target_without_a_leading_slash_is_refused() {
    let stage = Stage::numbered("").await;
    for line in ["POST x", "POST a:80", "POST *", "GET *", "GET x", "QUERY *"] {
        let reply = send_raw(stage.addr(), format!("{line} HTTP/1.1\r\n{KEYED}")).await;
        let problem = reply.expect_problem(400, "request_malformed");
        assert!(problem["detail"].as_str().unwrap().contains("target"), "{line}: {problem}");
    }
    assert_eq!(stage.runs(), 0, "{:?}", stage.upstream.seen());
    // The one target that is not a path.
    send_raw(stage.addr(), "OPTIONS * HTTP/1.1\r\nhost: a\r\n\r\n").await.expect_first(200, "run 1");
    assert_eq!(stage.upstream.last().line, "OPTIONS * HTTP/1.1");
}

/// A POST over HTTP/2 whose head has no `:path`.
#[tokio::test]
async fn http_2_without_a_path_is_refused() {
    let stage = Stage::numbered("").await;
    // `:method: POST`, `:scheme: http` by their numbers, and `:authority: a`.
    let block = [0x83, 0x86, 0x41, 0x01, b'a'];
    let reply =
        frames::send(stage.addr(), &[frames::frame(HEADERS, END_HEADERS | END_STREAM, 1, &block)]).await;
    assert!(reply.is_refused(400), "{reply:?}");
    assert_eq!(stage.runs(), 0, "{:?}", stage.upstream.seen());
}

#[tokio::test]
async fn methods_in_lower_case_are_refused() {
    let stage = Stage::numbered("").await;
    for method in ["post", "Post", "get", "pATCH", "query"] {
        let reply = send_raw(stage.addr(), format!("{method} /payments HTTP/1.1\r\n{KEYED}")).await;
        let problem = reply.expect_problem(400, "request_malformed");
        assert!(problem["detail"].as_str().unwrap().contains("method"), "{method}: {problem}");
    }
    assert_eq!(stage.runs(), 0, "{:?}", stage.upstream.seen());
}

/// RFC 10008: safe, with a body.
#[tokio::test]
async fn query_passes_with_its_body() {
    let stage = Stage::numbered("").await;
    let bytes = "QUERY /search HTTP/1.1\r\nhost: a\r\ncontent-length: 7\r\n\r\nselect 1";
    send_raw(stage.addr(), &bytes[..bytes.len() - 1]).await.expect_first(200, "run 1");
    let seen = stage.upstream.last();
    assert_eq!((seen.line.as_str(), seen.body.as_slice()), ("QUERY /search HTTP/1.1", &b"select "[..]));
}

/// `/../../internal` left the base path of the upstream.
#[tokio::test]
async fn the_matched_path_is_forwarded_below_the_base_path() {
    let upstream = Upstream::numbered().await;
    let gateway = start(&format!("http://{}/base/v1", upstream.addr), "").await;
    let stage = Stage { gateway, upstream };
    for (sent, forwarded) in [
        ("/../../internal", "/base/v1/internal"),
        ("/%2e%2e/%2E./internal", "/base/v1/internal"),
        ("/a/../../../internal?x=/../", "/base/v1/internal?x=/../"),
        ("//a//%62/", "/base/v1/a/b/"),
        ("/a/b/..", "/base/v1/a/"),
        ("/caf%c3%a9", "/base/v1/caf%C3%A9"),
        ("/%7Euser/a%20b", "/base/v1/~user/a%20b"),
        ("/", "/base/v1/"),
    ] {
        let reply = stage.send(&Call::get(sent)).await;
        assert_eq!(reply.status, 200, "{sent}: {reply:?}");
        assert_eq!(stage.upstream.last().line, format!("GET {forwarded} HTTP/1.1"), "{sent}");
    }
    let runs = stage.runs();
    for sent in ["/..%2f..%2finternal", "/..%5C..%5cinternal", "/a\\..\\..\\internal", "/..;/..;x/internal"] {
        stage.send(&Call::get(sent)).await.expect_problem(400, "request_malformed");
    }
    assert_eq!(stage.runs(), runs);
}

const ONLY_PAYMENTS: &str =
    "[[route]]\nmatch = \"POST /payments\"\n[[route]]\nmatch = \"POST /payments/{id}\"\n";

/// Separators that one server decodes and another does not, and bytes that end a C string.
#[tokio::test]
async fn encoded_separators_are_refused_on_protected_routes() {
    let off = format!(
        "[defaults]\nprofile = \"off\"\n{}",
        ONLY_PAYMENTS.replace("\"\n", "\"\nprofile = \"ietf\"\n")
    );
    let stage = Stage::numbered(&off).await;
    for path in [
        "/payments%2F",
        "/payments/a%2fb",
        "/payments/a%5Cb",
        "/payments\\a",
        "/payments/%00",
        "/payments%00",
    ] {
        let reply = stage.send(&Call::post(path).key("one").json("{}")).await;
        let problem = reply.expect_problem(400, "request_malformed");
        assert!(problem["detail"].as_str().unwrap().contains("encoded_separators"), "{path}: {problem}");
    }
    assert_eq!(stage.runs(), 0, "{:?}", stage.upstream.seen());
    // Also where no route is found: the upstream may find one.
    stage.send(&Call::post("/files/a%2Fb").json("{}")).await.expect_problem(400, "request_malformed");
    assert_eq!(stage.runs(), 0, "{:?}", stage.upstream.seen());
    // A safe method changes nothing, in any reading.
    stage.send(&Call::get("/files/a%2Fb")).await.expect_first(200, "run 1");
    assert_eq!(stage.upstream.last().line, "GET /files/a%2Fb HTTP/1.1");
    let stage = Stage::numbered("[defaults]\nprofile = \"off\"\n").await;
    stage.send(&Call::post("/files/a%2Fb").json("{}")).await.expect_first(200, "run 1");
    // An API with slashes in its identifiers allows them.
    let stage = Stage::numbered(&format!("[request]\nencoded_separators = \"pass\"\n{ONLY_PAYMENTS}")).await;
    let call = Call::post("/payments/a%2fb").key("one").json("{}");
    stage.send(&call).await.expect_first(200, "run 1");
    stage.send(&Call::post("/payments/a%2Fb").key("one").json("{}")).await.expect_replay(200, "run 1");
}

#[tokio::test]
async fn case_is_folded_where_the_upstream_ignores_it() {
    let toml = format!(
        "[request]\npath_case = \"fold\"\n[defaults]\nprofile = \"off\"\n{}",
        ONLY_PAYMENTS.replace("\"\n", "\"\nprofile = \"ietf\"\n")
    );
    let stage = Stage::numbered(&toml).await;
    stage.send(&Call::post("/Payments?A=B").json("{}")).await.expect_problem(400, "key_missing");
    stage.send(&Call::post("/PAYMENTS?A=B").key("one").json("{}")).await.expect_first(200, "run 1");
    assert_eq!(stage.upstream.last().line, "POST /payments?A=B HTTP/1.1");
    stage.send(&Call::post("/payments?A=B").key("one").json("{}")).await.expect_replay(200, "run 1");
}

#[tokio::test]
async fn parameters_of_segments_are_stripped_where_the_upstream_ignores_them() {
    let toml = format!(
        "[request]\npath_params = \"strip\"\n[defaults]\nprofile = \"off\"\n{}",
        ONLY_PAYMENTS.replace("\"\n", "\"\nprofile = \"ietf\"\n")
    );
    let stage = Stage::numbered(&toml).await;
    stage.send(&Call::post("/payments;jsessionid=7").json("{}")).await.expect_problem(400, "key_missing");
    stage
        .send(&Call::post("/x;a/..;b/payments;v=1?q=;").key("one").json("{}"))
        .await
        .expect_first(200, "run 1");
    assert_eq!(stage.upstream.last().line, "POST /payments?q=; HTTP/1.1");
}
