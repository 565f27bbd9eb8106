//! Connections of clients that have nothing more to ask.

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt as _, Empty, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};

use crate::client::{Call, Connection, within};
use crate::gateway::{Stage, in_front_of};
use crate::http2;
use crate::upstream::{Gate, Upstream};
use crate::wire;

const IDLE: &str = "[listen]\nidle_timeout = \"100ms\"\n";

/// A client spoke HTTP/2, made one request and stayed: hyper's limit for a head is for HTTP/1 only, and its pings were answered by the
/// client's library. Ten thousand of those, and nobody else was let in.
#[tokio::test]
async fn idle_connections_make_room() {
    let stage = Stage::numbered(&format!("{IDLE}connections_max = 1")).await;
    let stream = within(TcpStream::connect(stage.addr())).await.unwrap();
    let shaking = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream));
    let (mut client, connection) = within(shaking).await.unwrap();
    let ended = tokio::spawn(connection);
    let request = Request::get("http://a.test/").body(Full::<Bytes>::default()).unwrap();
    http2::reply(within(client.send_request(request)).await.unwrap()).await.expect_first(200, "run 1");

    // The next two are let in one after the other, as soon as there is room.
    let mut kept = Connection::to(stage.addr()).await;
    kept.ask(&Call::get("/")).await.expect_first(200, "run 2");
    let _ = within(ended).await.unwrap();
    stage.send(&Call::get("/")).await.expect_first(200, "run 3");
    kept.closed().await;
}

/// Waits until connections that say nothing have been closed, one after the other: that takes longer than the limit.
async fn idle_for_long(to: std::net::SocketAddr) {
    for _ in 0..4 {
        let mut idle = Connection::to(to).await;
        idle.ask(&Call::get("/.oncegate/")).await.expect_problem(404, "operation_not_found");
        idle.closed().await;
    }
}

#[tokio::test]
async fn a_connection_that_waits_for_its_answer_is_not_idle() {
    let (gate, upstream) = Upstream::gated().await;
    let stage = Stage::new(upstream, IDLE).await;
    let mut one = Call::pay("one").open(stage.addr()).await;
    gate.entered().await;
    let mut client = http2::connect(stage.addr()).await;
    let two = tokio::spawn(async move {
        let request = Request::get("http://a.test/").body(Empty::new().into()).unwrap();
        http2::ask(&mut client, request).await
    });
    gate.entered().await;
    idle_for_long(stage.addr()).await;
    gate.open();
    gate.open();
    assert_eq!(one.reply().await.status, 200);
    assert_eq!(within(two).await.unwrap().status, 200);
}

/// An answer in pieces, with long pauses; an event stream is one.
#[tokio::test]
async fn a_connection_whose_answer_goes_on_is_not_idle() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let gateway = in_front_of(listener.local_addr().unwrap(), IDLE).await;
    let gate = Gate::new();
    let at_gate = gate.clone();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let gate = at_gate.clone();
            tokio::spawn(async move {
                let mut stream = BufReader::new(stream);
                wire::read_head(&mut stream).await.unwrap();
                stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n01234").await.unwrap();
                gate.pass().await;
                stream.write_all(b"56789").await.unwrap();
                gate.pass().await;
            });
        }
    });
    let mut one = Call::get("/").open(gateway.address()).await;
    assert_eq!(one.reply_head().await.0, 200);
    let mut client = http2::connect(gateway.address()).await;
    let request = Request::get("http://a.test/").body(Full::default()).unwrap();
    let two = within(client.send_request(request)).await.unwrap();
    idle_for_long(gateway.address()).await;
    gate.open();
    gate.open();
    let mut body = [0; 10];
    within(one.read.read_exact(&mut body)).await.unwrap();
    assert_eq!(&body, b"0123456789");
    assert_eq!(within(two.into_body().collect()).await.unwrap().to_bytes(), "0123456789");
}

/// An answer that has left the upstream, and waits in the gateway for a client that takes its time, is still being taken: the connection
/// was called idle, and the rest of the answer was lost.
#[tokio::test]
async fn a_connection_whose_answer_is_being_taken_is_not_idle() {
    const LENGTH: usize = 32 << 20;
    let upstream = Upstream::start(async |_| crate::upstream::ok(vec![b'x'; LENGTH])).await;
    let rules = "[defaults]\nanswer_bytes_max = \"64 MiB\"\n";
    let stage = Stage::new(upstream, &format!("{IDLE}{rules}")).await;
    // It is kept, and its client gets all of it at once from memory.
    let mut one = Call::pay("one").open(stage.addr()).await;
    assert_eq!(one.reply_head().await.0, 200);
    let mut client = http2::connect(stage.addr()).await;
    let request = Request::post("http://a.test/payments").header("authorization", "Bearer acme");
    let request = request.header("idempotency-key", "two").body(Full::default()).unwrap();
    let two = within(client.send_request(request)).await.unwrap();
    assert_eq!(two.status(), 200);
    idle_for_long(stage.addr()).await;
    let mut body = vec![0; LENGTH];
    within(one.read.read_exact(&mut body)).await.unwrap();
    assert_eq!(within(two.into_body().collect()).await.unwrap().to_bytes().len(), LENGTH);
}
