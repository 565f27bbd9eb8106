//! Clients that send their bodies slowly: how long they may take, and that others do not wait for
//! them.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use tokio::net::{TcpSocket, TcpStream};

use crate::client::{Call, Connection, within};
use crate::gateway::Stage;
use crate::reply::Reply;
use crate::upstream::Upstream;
use crate::wire;

const SLOW: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));
const FAST: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 3));

/// A protected request whose body does not come. The gateway's 100 says that it waits for it.
async fn begin(stage: &Stage, from: IpAddr, key: &str) -> Connection {
    let mut client = Connection::from(from, stage.addr()).await;
    let call = Call::post("/payments").key(key).header("expect", "100-continue").body("0123456789");
    client.write(call.head()).await;
    assert_eq!(client.reply_head().await.0, 100);
    client.write("0").await;
    client
}

/// Sends one byte after the other, never silent for long, until the gateway answers.
async fn trickle(client: &mut Connection, piece: &[u8], pieces: usize) -> Reply {
    let mut pace = tokio::time::interval(Duration::from_millis(20));
    for _ in 0..pieces {
        pace.tick().await;
        if !client.is_open_and_silent() {
            break;
        }
        client.write(piece).await;
    }
    client.reply().await
}

/// A client that sent a byte every 20 s was never silent for long enough to be cut off, and held a
/// place for as long as it liked.
#[tokio::test]
async fn a_protected_body_that_is_too_slow_is_answered_with_408() {
    let stage = Stage::numbered("[listen]\nbody_timeout = \"200ms\"").await;
    let mut client = Connection::to(stage.addr()).await;
    client.write(Call::post("/payments").key("one").body("x".repeat(400)).head()).await;
    let reply = trickle(&mut client, b"x", 400).await;
    let problem = reply.expect_problem(408, "body_too_slow");
    assert!(problem["detail"].as_str().unwrap().contains("240 bytes"), "{problem}");
    reply.expect_retry_after(None);
    client.closed().await;
    assert_eq!((stage.runs(), stage.state("one").await), (0, None));
    stage.send(&Call::pay("one")).await.expect_first(200, "run 1");
}

#[tokio::test]
async fn an_open_upload_that_is_too_slow_is_answered_with_408() {
    let toml = "[listen]\nbody_timeout = \"200ms\"\n[limits]\nexecutions_max = 1\nqueue_max = 0";
    let stage = Stage::numbered(toml).await;
    let mut client = Connection::to(stage.addr()).await;
    client.write(Call::anonymous("PUT", "/upload").chunked().head()).await;
    let reply = trickle(&mut client, &wire::chunk(b"x"), 400).await;
    reply.expect_problem(408, "body_too_slow");
    assert_eq!(stage.runs(), 0, "the upstream had no whole request");
    // A small one of a declared length is not even begun at the upstream.
    let mut client = Connection::to(stage.addr()).await;
    client.write(Call::anonymous("PUT", "/upload").body("x".repeat(400)).head()).await;
    trickle(&mut client, b"x", 400).await.expect_problem(408, "body_too_slow");
    stage.send(&Call::get("/")).await.expect_first(200, "run 1");
}

#[tokio::test]
async fn a_body_that_takes_too_long_in_all_is_answered_with_408() {
    let stage = Stage::numbered("[listen]\nbody_deadline = \"300ms\"").await;
    let mut client = Connection::to(stage.addr()).await;
    client.write(Call::post("/payments").key("one").body("x".repeat(40_000)).head()).await;
    let reply = trickle(&mut client, &[b'x'; 100], 400).await;
    let problem = reply.expect_problem(408, "body_too_slow");
    assert!(problem["detail"].as_str().unwrap().contains("300ms"), "{problem}");
    let mut client = Connection::to(stage.addr()).await;
    client.write(Call::anonymous("PUT", "/upload").chunked().head()).await;
    let reply = trickle(&mut client, &wire::chunk(&[b'x'; 100]), 400).await;
    reply.expect_problem(408, "body_too_slow");
    assert_eq!((stage.runs(), stage.state("one").await), (0, None));
}

/// The same of one stream, and the others of its connection go on.
#[tokio::test]
async fn a_stream_that_is_too_slow_is_answered_with_408() {
    let stage = Stage::numbered("[listen]\nbody_timeout = \"200ms\"").await;
    let stream = TcpStream::connect(stage.addr()).await.unwrap();
    let (client, connection) = within(h2::client::handshake(stream)).await.unwrap();
    tokio::spawn(connection);
    let request = |key: &str| {
        let request = Request::post("http://a.test/payments").header("authorization", "Bearer acme");
        request.header("idempotency-key", key).body(()).unwrap()
    };
    let mut client = within(client.ready()).await.unwrap();
    let (response, mut body) = client.send_request(request("one"), false).unwrap();
    let sending = async {
        let mut pace = tokio::time::interval(Duration::from_millis(20));
        while body.send_data(Bytes::from("x"), false).is_ok() {
            pace.tick().await;
        }
    };
    let response = within(async {
        tokio::select! {
            biased;
            response = response => response.unwrap(),
            () = async { sending.await; std::future::pending().await } => unreachable!(),
        }
    });
    assert_eq!(response.await.status(), 408);
    assert_eq!((stage.runs(), stage.state("one").await), (0, None));
    let (response, _) = client.send_request(request("two"), true).unwrap();
    assert_eq!(within(response).await.unwrap().status(), 200);
}

/// Slow bodies held the places of requests, and slow uploads those of executions: one client with
/// enough connections blocked all others.
#[tokio::test]
async fn nothing_waits_for_two_thousand_slow_senders() {
    const SENDERS: usize = 2_000;
    let toml = "[listen]\nbody_timeout = \"10m\"\n[limits]\nrequests_max = 2200\nexecutions_max = 4\n\
                queue_max = 1\nper_peer_connections_max = 4000\nper_peer_requests_max = 4000\n";
    let stage = Stage::numbered(toml).await;
    let mut slow = Vec::new();
    for number in 0..SENDERS {
        slow.push(begin(&stage, SLOW, &format!("slow-{number}")).await);
    }
    // Uploads have as many places as a peer may have.
    let mut uploads = Vec::new();
    for _ in 0..10 {
        let mut client = Connection::from(SLOW, stage.addr()).await;
        client.write(Call::anonymous("PUT", "/upload").chunked().head()).await;
        client.write(wire::chunk(b"x")).await;
        uploads.push(client);
    }
    for number in 0..50 {
        let key = format!("fast-{number}");
        let calls = [
            Call::pay(&key),
            Call::pay(&key),
            Call::get("/"),
            Call::anonymous("PUT", "/upload").body("whole"),
            Call::anonymous("PUT", "/upload").body("in chunks").chunked(),
        ];
        for (position, call) in calls.iter().enumerate() {
            let mut client = Connection::from(FAST, stage.addr()).await;
            let reply = client.ask(call).await;
            assert_eq!((reply.status, reply.is_replay()), (200, position == 1), "{call:?}: {reply:?}");
        }
    }
    assert_eq!(stage.runs(), 50 * 4);
    for client in &mut uploads[1..] {
        client.reply().await.expect_problem(503, "overloaded");
    }
    // Each of the slow ones still is.
    for client in slow.iter_mut().chain(&mut uploads[..1]) {
        assert!(client.is_open_and_silent());
    }
    slow[0].write("123456789").await;
    slow[0].reply().await.expect_first(200, "run 201");
}

/// One address with more connections than it may have: the rest is closed, and others come in.
#[tokio::test]
async fn an_address_has_so_many_connections() {
    let stage = Stage::numbered("[limits]\nper_peer_connections_max = 2\nper_peer_requests_max = 9").await;
    let mut first = Connection::from(SLOW, stage.addr()).await;
    first.ask(&Call::get("/")).await.expect_first(200, "run 1");
    let mut second = begin(&stage, SLOW, "two").await;
    for _ in 0..3 {
        let mut more = Connection::from(SLOW, stage.addr()).await;
        more.closed().await;
    }
    let mut other = Connection::from(FAST, stage.addr()).await;
    other.ask(&Call::get("/")).await.expect_first(200, "run 2");
    second.write("123456789").await;
    second.reply().await.expect_first(200, "run 3");
    // Its place is given back when it has gone.
    drop(first);
    let asking = async {
        loop {
            let mut next = Connection::from(SLOW, stage.addr()).await;
            next.send(&Call::get("/")).await;
            if let Ok(reply) = next.try_reply().await {
                return reply;
            }
        }
    };
    within(asking).await.expect_first(200, "run 4");
}

/// The same of requests, whether they come by one connection or by many.
#[tokio::test]
async fn an_address_has_so_many_requests() {
    let stage = Stage::numbered("[limits]\nper_peer_requests_max = 2").await;
    let mut first = begin(&stage, SLOW, "one").await;
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind((SLOW, 0).into()).unwrap();
    let stream = within(socket.connect(stage.addr())).await.unwrap();
    let (client, connection) = within(h2::client::handshake(stream)).await.unwrap();
    tokio::spawn(connection);
    let request = || Request::put("http://a.test/upload").body(()).unwrap();
    let mut client = within(client.ready()).await.unwrap();
    let (second, mut body) = client.send_request(request(), false).unwrap();
    let (third, _third) = client.send_request(request(), false).unwrap();
    let third = within(third).await.unwrap();
    assert_eq!((third.status().as_u16(), &third.headers()["retry-after"]), (503, &"1".parse().unwrap()));
    let mut more = Connection::from(SLOW, stage.addr()).await;
    for call in [Call::pay("two"), Call::get("/"), Call::get("/.oncegate/operations/x")] {
        let mut more = Connection::from(SLOW, stage.addr()).await;
        let reply = more.ask(&call).await;
        reply.expect_problem(503, "overloaded");
        reply.expect_retry_after(Some(1));
    }
    assert_eq!((stage.runs(), stage.state("two").await), (0, None));
    let mut other = Connection::from(FAST, stage.addr()).await;
    other.ask(&Call::pay("two")).await.expect_first(200, "run 1");
    body.send_data(Bytes::from("all"), true).unwrap();
    assert_eq!(within(second).await.unwrap().status(), 200);
    more.ask(&Call::get("/")).await.expect_first(200, "run 3");
    first.write("123456789").await;
    first.reply().await.expect_first(200, "run 4");
}

/// One after the other it sent requests and hung up, and filled the upstream: each attempt goes on.
#[tokio::test]
async fn an_address_that_hangs_up_keeps_what_it_has_at_the_upstream() {
    let (gate, upstream) = Upstream::gated().await;
    let stage = Stage::new(upstream, "[limits]\nper_peer_requests_max = 2").await;
    for key in ["one", "two"] {
        let mut client = Connection::from(SLOW, stage.addr()).await;
        client.send(&Call::pay(key)).await;
        gate.entered().await;
    }
    // What was to happen because they hung up has happened when others have been answered.
    for _ in 0..5 {
        let mut more = Connection::from(SLOW, stage.addr()).await;
        more.ask(&Call::pay("three")).await.expect_problem(503, "overloaded");
    }
    let mut other = Connection::from(FAST, stage.addr()).await;
    other.send(&Call::pay("other")).await;
    gate.entered().await;
    for _ in 0..3 {
        gate.open();
    }
    let reply = other.reply().await;
    assert_eq!((reply.status, stage.runs()), (200, 3));
}

/// Proxies in front have the requests of many clients.
#[tokio::test]
async fn proxies_in_front_may_be_exempt() {
    let by_name = "[limits]\nper_peer_connections_max = 1\nper_peer_requests_max = 1\n\
                   per_peer_exempt = [\"127.0.0.2\"]";
    let trusted = "[scope]\nfrom = \"header\"\nheader = \"x-tenant\"\ntrusted_peers = [\"127.0.0.2\"]\n\
                   [limits]\nper_peer_connections_max = 1\nper_peer_requests_max = 1";
    for toml in [by_name, trusted] {
        let stage = Stage::numbered(toml).await;
        let mut open = Vec::new();
        for _ in 0..3 {
            let mut client = Connection::from(SLOW, stage.addr()).await;
            client
                .write(Call::anonymous("PUT", "/upload").chunked().header("expect", "100-continue").head())
                .await;
            assert_eq!(client.reply_head().await.0, 100);
            open.push(client);
        }
        let mut first = Connection::from(FAST, stage.addr()).await;
        first.ask(&Call::get("/")).await.expect_first(200, "run 1");
        let mut second = Connection::from(FAST, stage.addr()).await;
        second.closed().await;
    }
}

/// 2,000 slow senders of one address, with the limits as they are by default.
#[tokio::test]
async fn an_address_with_two_thousand_connections_keeps_no_other_out() {
    let stage = Stage::numbered("").await;
    let mut slow = Vec::new();
    let head = Call::post("/payments").key("slow").body("0123456789").head();
    for _ in 0..2_000 {
        let mut client = Connection::from(SLOW, stage.addr()).await;
        // It may be closed already.
        let _ = tokio::io::AsyncWriteExt::write_all(&mut client.write, &head).await;
        slow.push(client);
    }
    for number in 0..50 {
        let mut client = Connection::from(FAST, stage.addr()).await;
        client.ask(&Call::pay(&format!("fast-{number}"))).await;
        client.ask(&Call::get("/")).await;
    }
    assert_eq!(stage.runs(), 100);
    let open = slow.iter_mut().map(|client| usize::from(client.is_open_and_silent())).sum::<usize>();
    // As many requests as an address has by default; the others were refused.
    assert_eq!(open, 512);
}
