//! Replays, byte for byte.

use std::time::SystemTime;

use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::response::Response;
use futures_util::stream;
use http::HeaderValue;
use http::response::Builder;
use oncegate_core::policy::Profile;
use oncegate_core::record::State;
use oncegate_core::response::Answer;
use oncegate_store::memory::MemoryStore;
use oncegate_store_sql::SqliteStore;

use crate::client::Call;
use crate::reply::Reply;
use crate::stage::{Stage, policy};

fn value(bytes: &[u8]) -> HeaderValue {
    HeaderValue::from_bytes(bytes).unwrap()
}

fn respond(status: u16) -> Builder {
    Response::builder().status(status)
}

/// What the handler answers, by path.
fn answer(path: &str) -> Response {
    let builder = match path {
        "/no-content" => respond(204).header("etag", "\"7\""),
        "/not-modified" => respond(304).header("etag", "\"7\""),
        "/created" => respond(201).header("location", "/payments/7"),
        "/elsewhere" => respond(303).header("location", "/payments/7"),
        "/refused" => respond(402).header("content-type", "application/json"),
        "/headers" => respond(200)
            .header("link", "</a>; rel=next, </b>; rel=prev")
            .header("x-between", "1")
            .header("link", value(b"<caf\xe9>; rel=last"))
            .header("vary", "accept")
            .header("vary", "x-tenant, origin")
            .header("x-empty", ""),
        _ => respond(200),
    };
    let body = match path {
        "/binary" => Body::from((0..=255).collect::<Vec<u8>>()),
        "/in-pieces" => {
            let pieces = [&b"one "[..], b"", b"\xff\xfe", b" three"];
            Body::from_stream(stream::iter(
                pieces.map(|piece| Ok::<_, std::io::Error>(Bytes::from_static(piece))),
            ))
        }
        "/created" | "/headers" | "/refused" => Body::from("{\"id\": 7}"),
        _ => Body::empty(),
    };
    builder.body(body).unwrap()
}

const PATHS: [&str; 9] = [
    "/binary",
    "/in-pieces",
    "/empty",
    "/no-content",
    "/not-modified",
    "/created",
    "/elsewhere",
    "/refused",
    "/headers",
];

async fn check(first: &Stage<impl oncegate_store::Store>, another: &Stage<impl oncegate_store::Store>) {
    for path in PATHS {
        let call = Call::post(path).key(path.trim_start_matches('/'));
        let one = call.send(first.addr).await;
        assert!(!one.is_replay() && one.header("date").is_some(), "{path}: {one:?}");
        let until = httpdate::parse_http_date(one.header("idempotency-expires").unwrap()).unwrap();
        assert!(until > SystemTime::now(), "{path}: it is kept for a while");
        // From the cache, and from what the store keeps.
        for stage in [first.addr, another.addr, another.addr] {
            let replay = call.send(stage).await;
            assert_eq!(replay.in_common(), one.in_common(), "{path}");
            assert!(replay.is_replay() && replay.header("date").is_some(), "{path}: {replay:?}");
        }
    }
    assert_eq!((first.runs(), another.runs()), (PATHS.len(), 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn equal_the_first_answer_in_memory() {
    let store = MemoryStore::new();
    let handler = |request: Request| async move { answer(request.uri().path()) };
    let first = Stage::new(store.clone(), Profile::Ietf, handler).await;
    let another = Stage::new(store, Profile::Ietf, handler).await;
    check(&first, &another).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn equal_the_first_answer_on_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    let store = || SqliteStore::open(folder.path().join("records.db")).unwrap();
    let handler = |request: Request| async move { answer(request.uri().path()) };
    let first = Stage::new(store(), Profile::Ietf, handler).await;
    let another = Stage::new(store(), Profile::Ietf, handler).await;
    check(&first, &another).await;
}

#[tokio::test]
async fn the_bytes_are_the_handlers() {
    let handler = |request: Request| async move { answer(request.uri().path()) };
    let stage = Stage::new(MemoryStore::new(), Profile::Ietf, handler).await;
    let get = async |path: &str| -> Reply { Call::post(path).key(&path[1..]).send(stage.addr).await };
    for _first_and_replay in 0..2 {
        assert_eq!(get("/binary").await.body, (0..=255).collect::<Vec<u8>>());
        assert_eq!(get("/in-pieces").await.body, b"one \xff\xfe three");
        assert_eq!(get("/empty").await.header("content-length"), Some("0"));
        assert_eq!(get("/no-content").await.status, 204);
        assert_eq!(get("/not-modified").await.status, 304);
        assert_eq!(get("/created").await.header("location"), Some("/payments/7"));
        let headers = get("/headers").await;
        assert_eq!(headers.values("link"), [&b"</a>; rel=next, </b>; rel=prev"[..], b"<caf\xe9>; rel=last"]);
        assert_eq!(headers.values("vary"), [&b"accept"[..], b"x-tenant, origin"]);
        assert_eq!(headers.values("x-empty"), [b""]);
    }
}

/// What belongs to one connection or one moment is not kept; nor are cookies, which belong to one client.
#[tokio::test]
async fn nothing_of_the_first_connection_is_kept() {
    let handler = |_: Request| async {
        respond(200)
            .header("date", "Mon, 01 Jan 2001 00:00:00 GMT")
            .header("connection", "x-hop, keep-alive")
            .header("x-hop", "1")
            .header("keep-alive", "timeout=5")
            .header("set-cookie", "a=1; Path=/")
            .header("set-cookie", "b=2, still b; Path=/")
            .header("x-kept", "1")
            .body(Body::from("ok"))
            .unwrap()
    };
    let store = MemoryStore::new();
    let stage = Stage::new(store.clone(), Profile::Ietf, handler).await;
    let call = Call::post("/").key("one");
    let cookies = [&b"a=1; Path=/"[..], b"b=2, still b; Path=/"];
    assert_eq!(call.send(stage.addr).await.values("set-cookie"), cookies);
    let replay = call.send(stage.addr).await;
    replay.expect_replay(200, "ok");
    let names: Vec<_> = replay.headers.iter().map(|(name, _)| &**name).collect();
    assert_eq!(names, ["x-kept", "idempotency-replayed", "idempotency-expires", "content-length", "date"]);
    assert_ne!(replay.header("date"), Some("Mon, 01 Jan 2001 00:00:00 GMT"));

    let record = stage.record(&store, "one").await.unwrap();
    let State::Completed(kept) = &record.state else { unreachable!("{record:?}") };
    let Answer::Kept(kept) = &**kept else { unreachable!("{kept:?}") };
    assert_eq!(kept.headers, [("x-kept".to_owned(), b"1".to_vec())]);

    let keeping = policy(Profile::Ietf, |policy| policy.keeps_cookies = true);
    let stage = Stage::new(MemoryStore::new(), keeping, handler).await;
    assert_eq!(call.send(stage.addr).await.values("set-cookie"), cookies);
    assert_eq!(call.send(stage.addr).await.values("set-cookie"), cookies, "asked for");
}

#[tokio::test]
async fn stripes_clients_know_a_replay_by_another_name() {
    let handler = |_: Request| async { "ok" };
    let stage = Stage::new(MemoryStore::new(), Profile::Stripe, handler).await;
    let call = Call::post("/").key("one");
    assert_eq!(call.send(stage.addr).await.header("idempotent-replayed"), None);
    let replay = call.send(stage.addr).await;
    assert_eq!(replay.header("idempotent-replayed"), Some("true"));
    assert_eq!(replay.header("idempotency-replayed"), None);
}

/// The marks are the layer's to set. A handler that passes on what another service answered may carry that one's.
#[tokio::test]
async fn a_handler_cannot_set_the_marks_of_a_replay() {
    let handler = |_: Request| async {
        let head = respond(200).header("idempotency-replayed", "true").header("idempotency-state", "unknown");
        head.header("idempotency-expires", "Mon, 01 Jan 2001 00:00:00 GMT").body(Body::from("ok")).unwrap()
    };
    let stage = Stage::new(MemoryStore::new(), Profile::Ietf, handler).await;
    let call = Call::post("/").key("one");
    let first = call.send(stage.addr).await;
    first.expect_first(200, "ok");
    assert_eq!(first.header("idempotency-state"), None);
    let replay = call.send(stage.addr).await;
    replay.expect_replay(200, "ok");
    assert_eq!(replay.in_common(), first.in_common());
}
