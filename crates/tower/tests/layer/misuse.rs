//! One key for two requests, and two callers with one key.

use axum::Router;
use axum::extract::Request;
use axum::response::IntoResponse as _;
use axum::routing::post;
use http::StatusCode;
use oncegate_core::policy::Profile;
use oncegate_engine::{Engine, Options};
use oncegate_store::memory::MemoryStore;
use oncegate_tower::{Idempotency, Routes, scope};

use crate::client::Call;
use crate::stage::{Stage, gated, numbered, simple};

/// Long enough for every profile.
const KEY: &str = "key-of-sixteen-or-more";

fn call() -> Call {
    Call::post("/payments").key(KEY).json(r#"{"amount":100}"#)
}

fn other() -> Call {
    Call::post("/payments").key(KEY).json(r#"{"amount":999}"#)
}

#[tokio::test]
async fn refused_while_in_progress_and_after_completion() {
    for (profile, status) in [(Profile::Ietf, 422), (Profile::Payments, 422), (Profile::Stripe, 400)] {
        let (gate, stage) = gated(MemoryStore::new(), profile).await;
        let mut first = call().open(stage.addr).await;
        gate.entered().await;
        other().send(stage.addr).await.expect_problem(status, "key_reused");
        gate.open();
        first.reply().await.unwrap().expect_first(200, "run 1");
        other().send(stage.addr).await.expect_problem(status, "key_reused");
        let replay = call().send(stage.addr).await;
        assert_eq!((replay.status, &*replay.body), (200, &b"run 1"[..]), "the first answer still stands");
        assert_eq!(stage.runs(), 1);
    }
}

#[tokio::test]
async fn refused_after_a_release_and_the_first_request_may_run_again() {
    let answer = numbered();
    let handler = move |_: Request| {
        let answer = answer();
        // The first run fails, and says so.
        std::future::ready((StatusCode::INTERNAL_SERVER_ERROR, answer))
    };
    let stage = Stage::new(MemoryStore::new(), Profile::Ietf, handler).await;
    call().send(stage.addr).await.expect_first(500, "run 1");
    other().send(stage.addr).await.expect_problem(422, "key_reused");
    call().send(stage.addr).await.expect_first(500, "run 2");
    other().send(stage.addr).await.expect_problem(422, "key_reused");
    assert_eq!(stage.runs(), 2);
}

#[tokio::test]
async fn refused_after_a_doubt_which_stays_one() {
    let handler = |_: Request| async { StatusCode::BAD_GATEWAY.into_response() };
    for profile in [Profile::Ietf, Profile::Payments] {
        let stage = Stage::new(MemoryStore::new(), profile, handler).await;
        call().send(stage.addr).await.expect_first(502, "");
        other().send(stage.addr).await.expect_problem(422, "key_reused");
        call().send(stage.addr).await.expect_problem(409, "outcome_unknown");
        assert_eq!(stage.runs(), 1);
    }
}

/// Method, path, query and content type are part of what was asked.
#[tokio::test]
async fn another_path_query_or_form_is_another_request() {
    let stage = simple(MemoryStore::new(), Profile::Ietf).await;
    call().send(stage.addr).await.expect_first(200, "run 1");
    let body = r#"{"amount":100}"#;
    let others = [
        Call::post("/refunds").key(KEY).json(body),
        Call::post("/payments?dry=1").key(KEY).json(body),
        Call::anonymous("PATCH", "/payments").tenant("acme").key(KEY).json(body),
        Call::post("/payments").key(KEY).header("content-type", b"text/plain").body(body.as_bytes()),
        Call::post("/payments").key(KEY),
    ];
    for other in others {
        other.send(stage.addr).await.expect_problem(422, "key_reused");
    }
    assert_eq!(stage.runs(), 1);
}

#[tokio::test]
async fn json_that_means_the_same_is_the_same_request() {
    let stage = simple(MemoryStore::new(), Profile::Ietf).await;
    let call = |body: &str| Call::post("/payments").key(KEY).json(body);
    call(r#"{"amount":1,"to":{"name":"é","id":7}}"#).send(stage.addr).await.expect_first(200, "run 1");
    let same = r#"{ "to": {"id": 7.0, "name": "\u00e9"}, "amount": 1e0 }"#;
    call(same).send(stage.addr).await.expect_replay(200, "run 1");
    let other = r#"{"amount":1,"to":{"name":"é","id":7.5}}"#;
    call(other).send(stage.addr).await.expect_problem(422, "key_reused");
    assert_eq!(stage.runs(), 1);
}

#[tokio::test]
async fn tenants_do_not_know_of_each_other() {
    let (gate, stage) = gated(MemoryStore::new(), Profile::Ietf).await;
    let call = |tenant: &str| Call::anonymous("POST", "/payments").tenant(tenant).key("same").json("[1]");
    let mut acme = call("acme").open(stage.addr).await;
    gate.entered().await;
    let mut zeta = call("zeta").open(stage.addr).await;
    gate.entered().await;
    for (connection, run) in [(&mut acme, "run 1"), (&mut zeta, "run 2")] {
        gate.open();
        connection.reply().await.unwrap().expect_first(200, run);
    }
    call("acme").send(stage.addr).await.expect_replay(200, "run 1");
    call("zeta").send(stage.addr).await.expect_replay(200, "run 2");
    let other = Call::anonymous("POST", "/payments").tenant("new").key("same").json("[2]");
    let mut other = other.open(stage.addr).await;
    gate.entered().await;
    gate.open();
    other.reply().await.unwrap().expect_first(200, "run 3");
}

/// For clients that cannot be changed: misuse is counted, not refused; and a key reaches no further than one operation.
#[tokio::test]
async fn under_lenient_misuse_replays_and_operations_are_apart() {
    let answer = numbered();
    let handler = move |_: Request| std::future::ready(answer());
    let routes = Routes::none().route("POST /payments", Profile::Lenient).unwrap();
    let routes = routes.route("POST /refunds/{id}", Profile::Lenient).unwrap();
    let stage = Stage::with(MemoryStore::new(), Options::default(), routes, handler).await;
    call().send(stage.addr).await.expect_first(200, "run 1");
    other().send(stage.addr).await.expect_replay(200, "run 1");
    Call::post("/refunds/7").key(KEY).send(stage.addr).await.expect_first(200, "run 2");
    Call::post("/refunds/7").key(KEY).send(stage.addr).await.expect_replay(200, "run 2");
    assert_eq!(stage.runs(), 2);
}

/// axum takes the prefix off before a nested router's own layers see the request: two services under two prefixes would see the same
/// path, and take each other's requests for the same.
#[tokio::test]
async fn routers_that_are_nested_do_not_share_their_requests() {
    let engine = Engine::start(MemoryStore::new(), Options::default()).await.unwrap();
    let layer = || {
        let routes = Routes::none().route("POST /charges/new", Profile::Ietf).unwrap();
        let routes = routes.route("POST /refunds/new", Profile::Ietf).unwrap();
        Idempotency::new(engine.clone(), scope::header("x-tenant"), routes)
    };
    let charges = Router::new().route("/new", post(async || "charged")).layer(layer());
    let refunds = Router::new().route("/new", post(async || "refunded")).layer(layer());
    let app = Router::new().nest("/charges", charges).nest("/refunds", refunds);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let _server = tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });

    let call = |path| Call::post(path).key(KEY).json(r#"{"amount":100}"#);
    call("/charges/new").send(addr).await.expect_first(200, "charged");
    call("/refunds/new").send(addr).await.expect_problem(422, "key_reused");
    let replay = call("/charges/new").send(addr).await;
    assert_eq!((replay.status, &*replay.body), (200, &b"charged"[..]));
}
