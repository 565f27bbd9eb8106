//! Bodies whose framing is broken: the client's fault, not the upstream's.

use tokio::io::BufReader;
use tokio::net::TcpListener;

use crate::client::{Call, Connection, within};
use crate::frames::{DATA, END_STREAM, Frames, RST_STREAM};
use crate::gateway::{Stage, in_front_of, start};
use crate::wire;

/// Chunks that end in no body.
const BROKEN: [&str; 6] = [
    "5\r\nhelloXX",
    "5\r\nhello\rX",
    "2\r\n{}\r\nzz\r\n",
    "2\r\n{}\r\n2;a\n{}\r\n",
    "2\r\n{}\r\n0\r\nno colon\r\n\r\n",
    "2\r\n{}\r\n0\r\nname: a\0b\r\n\r\n",
];

/// It was 400 `request_invalid`, which is what a client gets whose connection broke: "send it
/// again".
#[tokio::test]
async fn a_broken_chunk_of_a_protected_request_is_malformed() {
    let stage = Stage::numbered("").await;
    for body in BROKEN {
        let mut client = Connection::to(stage.addr()).await;
        client.write(Call::post("/payments").key("one").chunked().head()).await;
        client.write(body).await;
        client.reply().await.expect_problem(400, "request_malformed");
        client.closed().await;
        assert_eq!((stage.runs(), stage.state("one").await), (0, None), "{body:?}");
    }
    stage.send(&Call::pay("one")).await.expect_first(200, "run 1");
}

/// It was 502 `upstream_failed`, and counted as a doubt about the upstream: a client could fire its
/// alerts.
#[tokio::test]
async fn a_broken_chunk_of_an_open_request_is_malformed_and_the_upstream_sees_no_end() {
    for body in BROKEN {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let gateway = in_front_of(listener.local_addr().unwrap(), "").await;
        let upstream = tokio::spawn(async move {
            let mut stream = BufReader::new(listener.accept().await.unwrap().0);
            let (_, headers) = wire::read_head(&mut stream).await.unwrap();
            wire::read_body(&mut stream, &headers).await
        });
        let mut client = Connection::to(gateway.address()).await;
        client.write(Call::anonymous("PUT", "/upload").chunked().head()).await;
        client.write(body).await;
        client.reply().await.expect_problem(400, "request_malformed");
        client.closed().await;
        assert!(within(upstream).await.unwrap().is_err(), "{body:?}");
    }
}

/// The same towards an upstream that speaks HTTP/2: the stream is reset.
#[tokio::test]
async fn a_broken_chunk_of_an_open_request_resets_the_stream_to_the_upstream() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let gateway = start(&url, "[upstream]\nhttp = \"2\"").await;
    let upstream = tokio::spawn(async move {
        let mut peer = Frames::accept(&listener).await;
        peer.begin(None).await.unwrap();
        loop {
            let frame = peer.read().await.unwrap();
            assert!(frame.kind != DATA || frame.flags & END_STREAM == 0, "the body has no end");
            if frame.kind == RST_STREAM {
                return;
            }
        }
    });
    let mut client = Connection::to(gateway.address()).await;
    client.write(Call::anonymous("PUT", "/upload").chunked().head()).await;
    client.write(BROKEN[0]).await;
    client.reply().await.expect_problem(400, "request_malformed");
    within(upstream).await.unwrap();
}

/// A client that hangs up its side, or falls silent, is no fault of the upstream's either.
#[tokio::test]
async fn an_open_request_that_breaks_off_is_the_clients_fault() {
    let stage = Stage::numbered("[listen]\nbody_timeout = \"200ms\"").await;
    for hangs_up in [true, false] {
        let mut client = Connection::to(stage.addr()).await;
        client.write(Call::anonymous("PUT", "/upload").body("0123456789").head()).await;
        client.write("01234").await;
        if hangs_up {
            tokio::io::AsyncWriteExt::shutdown(&mut client.write).await.unwrap();
        }
        let (status, code) = if hangs_up { (400, "request_invalid") } else { (408, "body_too_slow") };
        client.reply().await.expect_problem(status, code);
        assert_eq!(stage.runs(), 0, "the upstream had no whole request");
    }
}
