//! HTTP/2 upstreams that allow few streams, change their mind, or die: no request waits inside a connection.

use std::sync::Arc;

use bytes::Bytes;
use http::Response;
use oncegate_gateway::Gateway;
use tokio::net::TcpListener;
use tokio::sync::{Mutex, watch};
use tokio::task::JoinSet;

use crate::client::{Call, within};
use crate::frames::Frames;
use crate::gateway::{start, state};

async fn stage(toml: &str) -> (TcpListener, Gateway) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let gateway = start(&url, &format!("[upstream]\nhttp = \"2\"\n{toml}")).await;
    (listener, gateway)
}

/// Requests beyond what a connection allows waited inside it, unseen, until another had been answered: also those whose lease had ended
/// meanwhile, which were then sent. They go by another connection.
#[tokio::test]
async fn a_request_beyond_the_limit_goes_by_another_connection() {
    let (listener, gateway) = stage("").await;
    let mut first_client = Call::pay("one").open(gateway.address()).await;
    let mut first = within(Frames::accept(&listener)).await;
    first.begin(Some(1)).await.unwrap();
    let first_stream = first.expect_request().await;

    let mut second_client = Call::pay("two").open(gateway.address()).await;
    let mut second = within(Frames::accept(&listener)).await;
    second.begin(Some(1)).await.unwrap();
    let second_stream = second.expect_request().await;
    second.answer(second_stream, "second").await.unwrap();
    second_client.reply().await.expect_first(200, "second");
    first.answer(first_stream, "first").await.unwrap();
    first_client.reply().await.expect_first(200, "first");

    // Both are free again, and no third is made.
    let mut third_client = Call::pay("three").open(gateway.address()).await;
    let stream = first.expect_request().await;
    first.answer(stream, "third").await.unwrap();
    third_client.reply().await.expect_first(200, "third");
}

/// The lease was looked at before the request was given to a connection, and there it waited for a stream. Its lease ended, its outcome
/// was called unknown, somebody reconciled it: and then it was sent.
#[tokio::test]
async fn nothing_is_sent_after_its_lease() {
    let toml = "connect_timeout = \"1m\"\n[defaults]\nlease = \"1s\"\nattempt_deadline = \"1s\"";
    let (listener, gateway) = stage(toml).await;
    let mut busy = Call::get("/").open(gateway.address()).await;
    let mut first = within(Frames::accept(&listener)).await;
    first.begin(Some(1)).await.unwrap();
    let held = first.expect_request().await;

    let mut late = Call::pay("late").open(gateway.address()).await;
    let mut second = within(Frames::accept(&listener)).await;
    // It says nothing about streams until the lease has ended.
    within(async { while state(&gateway, "late").await.as_deref() != Some("lapsed") {} }).await;
    first.answer(held, "first").await.unwrap();
    busy.reply().await.expect_first(200, "first");
    second.begin(Some(1)).await.unwrap();
    let told = late.reply().await;
    assert!(matches!(told.status, 502 | 504), "{told:?}");

    // What comes next by either connection, and is the first there since, is another's.
    let mut next = Call::get("/next").open(gateway.address()).await;
    assert_eq!(first.expect_request().await, held + 2);
    let mut last = Call::get("/last").open(gateway.address()).await;
    assert_eq!(second.expect_request().await, 1);
    first.answer(held + 2, "next").await.unwrap();
    next.reply().await.expect_first(200, "next");
    second.answer(1, "last").await.unwrap();
    last.reply().await.expect_first(200, "last");
}

/// As many connections as all of them need at once, and each request once.
#[tokio::test]
async fn a_burst_takes_as_many_connections_as_it_needs() {
    const REQUESTS: usize = 50;
    const STREAMS: u32 = 10;
    let (listener, gateway) = stage("").await;
    let keys = Arc::new(Mutex::new(Vec::new()));
    let (arrived, _) = watch::channel(0);
    let connections = Arc::new(Mutex::new(0));
    let (seen, counted, gate) = (Arc::clone(&keys), Arc::clone(&connections), arrived.clone());
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            *counted.lock().await += 1;
            let (seen, gate) = (Arc::clone(&seen), gate.clone());
            tokio::spawn(async move {
                let mut server = h2::server::Builder::new();
                let mut server =
                    server.max_concurrent_streams(STREAMS).handshake::<_, Bytes>(stream).await.unwrap();
                while let Some(Ok((request, mut respond))) = server.accept().await {
                    let key = request.headers()["idempotency-key"].to_str().unwrap().to_owned();
                    seen.lock().await.push(key);
                    gate.send_modify(|count| *count += 1);
                    let mut all = gate.subscribe();
                    tokio::spawn(async move {
                        all.wait_for(|count| *count >= REQUESTS).await.unwrap();
                        let mut body = respond.send_response(Response::new(()), false).unwrap();
                        body.send_data(Bytes::from("answered"), true).unwrap();
                    });
                }
            });
        }
    });
    let mut calls = JoinSet::new();
    for request in 0..REQUESTS {
        let addr = gateway.address();
        calls.spawn(async move { Call::pay(&format!("key-{request:02}")).send(addr).await });
    }
    for reply in calls.join_all().await {
        reply.expect_first(200, "answered");
    }
    let mut keys = keys.lock().await.clone();
    keys.sort();
    let expected: Vec<_> = (0..REQUESTS).map(|request| format!("key-{request:02}")).collect();
    assert_eq!(keys, expected, "each once");
    assert_eq!(*connections.lock().await, 5);
}

/// What an upstream allowed when the connection began was taken for ever. It may allow less later, or more.
#[tokio::test]
async fn an_upstream_may_change_its_mind() {
    const MOMENT: std::time::Duration = std::time::Duration::from_millis(300);
    let (listener, gateway) = stage("").await;
    let mut warm = Call::get("/").open(gateway.address()).await;
    let mut first = within(Frames::accept(&listener)).await;
    first.begin(Some(10)).await.unwrap();
    let stream = first.expect_request().await;
    first.answer(stream, "warm").await.unwrap();
    warm.reply().await.expect_first(200, "warm");

    first.announce(1).await.unwrap();
    let second = async {
        loop {
            let mut holding = Call::get("/holding").open(gateway.address()).await;
            let held = first.expect_request().await;
            let mut other = Call::get("/other").open(gateway.address()).await;
            // The gateway looks every now and then: until it has, one may be given to the connection.
            let accepted = tokio::time::timeout(MOMENT, Frames::accept(&listener)).await;
            first.answer(held, "held").await.unwrap();
            holding.reply().await.expect_first(200, "held");
            if let Ok(mut second) = accepted {
                second.begin(Some(1)).await.unwrap();
                let stream = second.expect_request().await;
                second.answer(stream, "other").await.unwrap();
                other.reply().await.expect_first(200, "other");
                return second;
            }
            let stream = first.expect_request().await;
            first.answer(stream, "other").await.unwrap();
            other.reply().await.expect_first(200, "other");
        }
    };
    let mut second = within(second).await;

    first.announce(10).await.unwrap();
    let more = async {
        loop {
            let mut holding = Call::get("/holding").open(gateway.address()).await;
            let held = first.expect_request().await;
            let mut other = Call::get("/other").open(gateway.address()).await;
            let (stream, is_first) = tokio::select! {
                stream = first.request() => (stream.unwrap(), true),
                stream = second.request() => (stream.unwrap(), false),
            };
            let peer = if is_first { &mut first } else { &mut second };
            peer.answer(stream, "other").await.unwrap();
            other.reply().await.expect_first(200, "other");
            first.answer(held, "held").await.unwrap();
            holding.reply().await.expect_first(200, "held");
            if is_first {
                return;
            }
        }
    };
    within(more).await;
}

/// An HTTP/2 connection died without a word: every request after that was given to it, and each was told after a timeout that its
/// outcome is unknown.
#[tokio::test]
async fn a_connection_that_fell_silent_is_left() {
    let (listener, gateway) = stage("timeout = \"200ms\"").await;
    let mut client = Call::pay("one").open(gateway.address()).await;
    let mut dead = within(Frames::accept(&listener)).await;
    dead.begin(None).await.unwrap();
    let stream = dead.expect_request().await;
    dead.answer(stream, "once").await.unwrap();
    client.reply().await.expect_first(200, "once");

    let silent = Call::pay("two").send(gateway.address()).await;
    silent.expect_problem_of_operation(504, "outcome_unknown");

    let mut client = Call::pay("three").open(gateway.address()).await;
    let mut alive = within(Frames::accept(&listener)).await;
    alive.begin(None).await.unwrap();
    let stream = alive.expect_request().await;
    alive.answer(stream, "alive").await.unwrap();
    client.reply().await.expect_first(200, "alive");
    assert_eq!(dead.expect_request().await, 3, "what was never answered");
}
