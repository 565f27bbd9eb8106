//! Which requests are protected, by which key, and whose.

use axum::body::Body;
use axum::extract::Request;
use axum::response::{IntoResponse as _, Response};
use oncegate_core::policy::{Policy, Profile};
use oncegate_store::memory::MemoryStore;
use oncegate_store::{Counts, Store as _};
use oncegate_tower::Attempt;

use crate::client::{Call, Connection};
use crate::reply::Reply;
use crate::stage::{Stage, policy, simple};

/// Sends the request's body back as it comes, and says whether it was protected.
async fn echo(request: Request) -> Response {
    let is_protected = request.extensions().get::<Attempt>().is_some();
    let encoding = request.headers().get("accept-encoding").cloned();
    let mut response = Response::new(Body::new(request.into_body()));
    response.headers_mut().insert("x-protected", is_protected.to_string().parse().unwrap());
    if let Some(encoding) = encoding {
        response.headers_mut().insert("x-encoding", encoding);
    }
    response
}

/// So that whatever is gathered, instead of passing, does not fit.
fn tight(profile: Profile) -> Policy {
    policy(profile, |policy| (policy.body_bytes_max, policy.answer_bytes_max) = (1_000, 1_000))
}

#[track_caller]
fn expect_passed(reply: &Reply, body: &[u8]) {
    assert_eq!((reply.status, reply.header("x-protected")), (200, Some("false")), "{reply:?}");
    assert_eq!(reply.header("x-encoding"), Some("gzip"), "as the client asked");
    assert!(reply.body == body, "{reply:?}");
    for name in ["idempotency-replayed", "idempotency-expires"] {
        assert_eq!(reply.header(name), None);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_protected_passes_untouched_at_any_size() {
    let body = vec![b'x'; 100_000];
    let unkeyed = Call::post("/").header("accept-encoding", b"gzip").body(&body);
    let keyed = |method: &str| {
        let call = Call::anonymous(method, "/").key("one").header("accept-encoding", b"gzip");
        call.body(&body)
    };
    let cases = [
        (Profile::Stripe, unkeyed.clone()),
        (Profile::Stripe, unkeyed.clone().chunked()),
        (Profile::Stripe, keyed("PATCH")),
        (Profile::Lenient, unkeyed.clone()),
        (Profile::Lenient, unkeyed.key("")),
        (Profile::Ietf, keyed("GET")),
        (Profile::Ietf, keyed("PUT")),
        (Profile::Ietf, keyed("DELETE")),
        (Profile::Off, keyed("POST")),
    ];
    for (profile, call) in cases {
        let store = MemoryStore::new();
        let stage = Stage::new(store.clone(), tight(profile), echo).await;
        for _ in 0..2 {
            expect_passed(&call.send(stage.addr).await, &body);
        }
        assert_eq!(stage.runs(), 2, "{profile}");
        assert_eq!(store.counts().await.unwrap(), Counts::default());
    }
}

/// Its answer begins before its body has ended: neither is gathered.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_protected_streams() {
    let stage = Stage::new(MemoryStore::new(), tight(Profile::Stripe), echo).await;
    let mut client = Connection::to(stage.addr).await.unwrap();
    client.write(&Call::post("/").header("accept-encoding", b"gzip").chunked().head()).await.unwrap();
    client.write(b"5\r\nfirst\r\n").await.unwrap();
    assert_eq!(client.first_byte().await, b'H');
    let rest = vec![b'y'; 0x2000];
    client.write(&[b"2000\r\n", &*rest, b"\r\n0\r\n\r\n"].concat()).await.unwrap();
    expect_passed(&client.reply().await.unwrap(), &[b"first", &*rest].concat());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_is_missing_or_cannot_be_read_is_400_and_nothing_runs() {
    let long = "x".repeat(256);
    let cases: [(Profile, &[&[u8]], &str); 18] = [
        (Profile::Ietf, &[], "key_missing"),
        (Profile::Ietf, &[b""], "key_missing"),
        (Profile::Ietf, &[b"  "], "key_missing"),
        (Profile::Payments, &[], "key_missing"),
        (Profile::Stripe, &[b""], "key_invalid"),
        (Profile::Ietf, &[b"\"\""], "key_invalid"),
        (Profile::Ietf, &[b"\"open"], "key_invalid"),
        (Profile::Ietf, &[b"a, b"], "key_invalid"),
        (Profile::Ietf, &[b"\"a\", \"b\""], "key_invalid"),
        (Profile::Ietf, &[b"caf\xe9"], "key_invalid"),
        (Profile::Ietf, &[b"one", b"one"], "key_invalid"),
        (Profile::Ietf, &[b"one", b"two"], "key_invalid"),
        (Profile::Stripe, &[b"one", b"two"], "key_invalid"),
        (Profile::Lenient, &[b"one", b""], "key_invalid"),
        (Profile::IetfStrict, &[b"bare"], "key_invalid"),
        (Profile::Payments, &[b"fifteen-letters"], "key_invalid"),
        (Profile::Ietf, &[long.as_bytes()], "key_invalid"),
        (Profile::Stripe, &[long.as_bytes()], "key_invalid"),
    ];
    for (profile, lines, code) in cases {
        let stage = simple(MemoryStore::new(), profile).await;
        let call =
            lines.iter().fold(Call::post("/").json("{}"), |call, line| call.header("idempotency-key", line));
        let reply = call.send(stage.addr).await;
        assert_eq!((reply.status, reply.code().as_deref()), (400, Some(code)), "{profile} {lines:?}");
        reply.expect_problem(400, code);
        assert_eq!(reply.header("retry-after"), None, "waiting does not help");
        assert_eq!(stage.runs(), 0, "{profile} {lines:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_quoted_and_the_bare_form_are_one_key() {
    let stage = simple(MemoryStore::new(), Profile::Ietf).await;
    Call::post("/").key("\"8e03978e\"").send(stage.addr).await.expect_first(200, "run 1");
    for same in ["8e03978e", " 8e03978e ", "\"8e03978e\";p=1"] {
        Call::post("/").key(same).send(stage.addr).await.expect_replay(200, "run 1");
    }
    Call::post("/").key("8E03978E").send(stage.addr).await.expect_first(200, "run 2");

    // To an opaque reader the quotes are part of it.
    let stage = simple(MemoryStore::new(), Profile::Stripe).await;
    Call::post("/").key("\"a\"").send(stage.addr).await.expect_first(200, "run 1");
    Call::post("/").key("a").send(stage.addr).await.expect_first(200, "run 2");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_of_nobody_is_401_and_nothing_runs() {
    let store = MemoryStore::new();
    let stage = simple(store.clone(), Profile::Ietf).await;
    let nobody = Call::anonymous("POST", "/").key("one");
    let calls = [
        nobody.clone(),
        nobody.clone().tenant(""),
        nobody.clone().tenant("acme").tenant("zeta"),
        nobody.clone().header("x-tenant", b"caf\xe9"),
        nobody.tenant(&"x".repeat(256)),
    ];
    for call in calls {
        let reply = call.send(stage.addr).await;
        reply.expect_problem(401, "scope_missing");
        assert_eq!(reply.header("retry-after"), None);
    }
    assert_eq!(stage.runs(), 0);
    assert_eq!(store.counts().await.unwrap(), Counts::default());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_cannot_be_compared_is_400_and_its_key_is_unused() {
    let stage = Stage::new(MemoryStore::new(), Profile::Ietf, |_: Request| async { "ok".into_response() });
    let stage = stage.await;
    let call = |body: &str| Call::post("/").key("one").json(body);
    for body in [r#"{"amount":1,"amount":2}"#, r#"{"name":"\ud800"}"#, "{\"amount\":"] {
        call(body).send(stage.addr).await.expect_problem(400, "request_invalid");
    }
    let grpc = Call::post("/").key("one").header("content-type", b"application/grpc+proto").body(b"\0\0");
    grpc.send(stage.addr).await.expect_problem(400, "request_invalid");
    assert_eq!(stage.runs(), 0);
    call(r#"{"amount":1}"#).send(stage.addr).await.expect_first(200, "ok");
}
