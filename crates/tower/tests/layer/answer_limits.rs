//! Answers too large to keep, and answers that break off.

use std::io;

use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::response::Response;
use futures_util::stream;
use http::HeaderMap;
use oncegate_core::policy::{Policy, Profile};
use oncegate_core::record::{State, StateKind};
use oncegate_core::response::Answer;
use oncegate_store::faulty::{Fault, Faulty};
use oncegate_store::memory::MemoryStore;

use crate::client::Call;
use crate::stage::{Gate, Stage, policy};

const LIMIT: usize = 64 << 10;

fn limited() -> Policy {
    policy(Profile::Ietf, |policy| policy.answer_bytes_max = LIMIT as u64)
}

fn number(headers: &HeaderMap, name: &str) -> usize {
    headers.get(name).map_or(0, |value| value.to_str().unwrap().parse().unwrap())
}

/// As many bytes as `x-bytes` says, in pieces of `x-piece` or whole; stopping at the gate after the first `x-stop`, and
/// breaking off where `x-break` says.
fn answer(request: &Request, gate: &Gate) -> Response {
    let headers = request.headers();
    let (bytes, piece) = (number(headers, "x-bytes"), number(headers, "x-piece"));
    let (stop, breaks) = (number(headers, "x-stop"), number(headers, "x-break"));
    let body: Vec<u8> = (0..bytes).map(|n| u8::try_from(n % 251).unwrap()).collect();
    let response = Response::builder().status(201).header("location", "/reports/7");
    if piece == 0 {
        return response.body(Body::from(body)).unwrap();
    }
    let gate = gate.clone();
    let pieces = stream::unfold((0, body, gate), move |(sent, body, gate)| async move {
        if stop > 0 && sent == stop {
            gate.pass().await;
        }
        if breaks > 0 && sent == breaks {
            return Some((Err(io::Error::other("broken off")), (sent, body, gate)));
        }
        let next: Vec<u8> = body[sent..].iter().copied().take(piece).collect();
        let sent = sent + next.len();
        (!next.is_empty()).then(|| (Ok(Bytes::from(next)), (sent, body, gate)))
    });
    response.body(Body::from_stream(pieces)).unwrap()
}

async fn stage<S: oncegate_store::Store>(store: S) -> (Gate, Stage<S>) {
    let gate = Gate::new();
    let at_gate = gate.clone();
    let handler = move |request: Request| {
        let gate = at_gate.clone();
        async move { answer(&request, &gate) }
    };
    (gate, Stage::new(store, limited(), handler).await)
}

fn call(bytes: usize, piece: usize) -> Call {
    let header = |call: Call, name: &str, value: usize| call.header(name, value.to_string().as_bytes());
    header(header(Call::post("/reports").key("one"), "x-bytes", bytes), "x-piece", piece)
}

fn expected(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|n| u8::try_from(n % 251).unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_at_the_limit_is_kept() {
    for piece in [0, 1_000] {
        let (_, stage) = stage(MemoryStore::new()).await;
        let first = call(LIMIT, piece).send(stage.addr).await;
        let replay = call(LIMIT, piece).send(stage.addr).await;
        assert!(replay.is_replay());
        assert_eq!(replay.in_common(), first.in_common());
        assert!(replay.body == expected(LIMIT));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_over_the_limit_streams_through_and_is_not_kept() {
    for (bytes, piece) in [(LIMIT + 1, 0), (LIMIT + 1, 1_000), (10 * LIMIT, 0), (10 * LIMIT, 1_000)] {
        let (_, stage) = stage(MemoryStore::new()).await;
        let first = call(bytes, piece).send(stage.addr).await;
        assert_eq!((first.status, first.header("location")), (201, Some("/reports/7")));
        assert!(first.body == expected(bytes), "{} of {bytes} bytes, all equal", first.body.len());
        assert_eq!(first.header("idempotency-expires"), None, "only kept answers say how long they are kept");
        for _ in 0..2 {
            let retry = call(bytes, piece).send(stage.addr).await;
            let problem = retry.expect_problem(409, "answer_not_kept");
            assert_eq!(problem["answer_status"], 201);
            assert_eq!(problem["answer_location"], "/reports/7");
            assert_eq!(retry.header("location"), Some("/reports/7"));
        }
        assert_eq!(stage.runs(), 1);
    }
}

/// It is not gathered first: the client has the beginning while the handler still makes the rest.
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_over_the_limit_is_settled_before_its_first_byte_leaves() {
    let store = Faulty::new(MemoryStore::new());
    let (gate, stage) = stage(store.clone()).await;
    store.queue(Fault::None);
    store.queue(Fault::Delayed);
    let stopping = call(4 * LIMIT, LIMIT).header("x-stop", (2 * LIMIT).to_string().as_bytes());
    let mut client = stopping.open(stage.addr).await;
    stage.commits(2).await;
    for _ in 0..20 {
        Call::anonymous("GET", "/").send(stage.addr).await;
    }
    assert!(client.is_silent(), "its end is not recorded yet");
    store.let_go();
    assert_eq!(client.first_byte().await, b'H');
    let record = stage.record(store.inner(), "one").await.unwrap();
    let State::Completed(kept) = &record.state else { unreachable!("{record:?}") };
    assert_eq!(**kept, Answer::NotKept { status: 201, location: Some(b"/reports/7".to_vec()) });
    stopping.send(stage.addr).await.expect_problem(409, "answer_not_kept");
    gate.entered().await;
    gate.open();
    assert!(client.reply().await.unwrap().body == expected(4 * LIMIT));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_breaks_off_is_a_doubt() {
    let store = MemoryStore::new();
    let (_, stage) = stage(store.clone()).await;
    let breaking = call(LIMIT, 1_000).header("x-break", b"3000");
    let first = breaking.send(stage.addr).await;
    first.expect_problem(504, "outcome_unknown");
    assert_eq!(first.header("retry-after"), Some("5"));
    assert_eq!(first.header("location"), None, "nothing of the answer");
    assert_eq!(stage.state(&store, "one").await, Some(StateKind::Unknown));
    breaking.send(stage.addr).await.expect_problem(409, "outcome_unknown");
    assert_eq!(stage.runs(), 1);
}

/// Then it was settled already: it is over, and was not kept.
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_breaks_off_past_the_limit_breaks_off_for_the_client_too() {
    let (_, stage) = stage(MemoryStore::new()).await;
    let breaking = call(4 * LIMIT, LIMIT).header("x-break", (3 * LIMIT).to_string().as_bytes());
    let mut client = breaking.open(stage.addr).await;
    let error = client.reply().await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    breaking.send(stage.addr).await.expect_problem(409, "answer_not_kept");
    assert_eq!(stage.runs(), 1);
}

/// The first client reads a large answer slowly, or not at all: nobody else waits for it.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_does_not_read_holds_nobody_up() {
    let (_, stage) = stage(MemoryStore::new()).await;
    let large = call(300 * LIMIT, LIMIT);
    let mut lazy = large.open(stage.addr).await;
    lazy.first_byte().await;
    large.send(stage.addr).await.expect_problem(409, "answer_not_kept");
    drop(lazy);
    large.send(stage.addr).await.expect_problem(409, "answer_not_kept");
    assert_eq!(stage.runs(), 1);
}
