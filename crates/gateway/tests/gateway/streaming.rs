//! A request that nobody protects streams, both ways, and is never held back.

use tokio::io::{AsyncWriteExt as _, BufReader};
use tokio::net::TcpListener;

use crate::client::{Call, Connection, within};
use crate::gateway::{in_front_of, start};
use crate::wire;

/// The first piece reaches the upstream, and the first piece of the answer the client, before the client has sent its second.
#[tokio::test]
async fn both_ways_at_once() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let gateway = in_front_of(listener.local_addr().unwrap(), "").await;
    let upstream = tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        let mut stream = BufReader::new(stream);
        let (line, headers) = wire::read_head(&mut stream).await.unwrap();
        assert_eq!(line, "PUT /upload HTTP/1.1");
        assert!(headers.contains(&("transfer-encoding".to_owned(), b"chunked".to_vec())), "{headers:?}");
        let first = wire::read_chunk(&mut stream).await.unwrap();
        let head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
        stream.write_all(&[&head[..], &wire::chunk(b"got one")].concat()).await.unwrap();
        let second = wire::read_chunk(&mut stream).await.unwrap();
        assert_eq!(wire::read_chunk(&mut stream).await.unwrap(), None);
        stream.write_all(&[wire::chunk(b"got two"), wire::chunk(b"")].concat()).await.unwrap();
        (first, second)
    });
    let mut client = Connection::to(gateway.address()).await;
    client.write(Call::anonymous("PUT", "/upload").chunked().head()).await;
    client.write(wire::chunk(b"one")).await;
    let (status, _) = client.reply_head().await;
    assert_eq!(status, 200);
    let first = within(wire::read_chunk(&mut client.read)).await.unwrap();
    assert_eq!(first.as_deref(), Some(&b"got one"[..]));
    assert!(client.is_silent(), "the second has not been sent");
    client.write(wire::chunk(b"two")).await;
    client.write(wire::chunk(b"")).await;
    let second = within(wire::read_chunk(&mut client.read)).await.unwrap();
    assert_eq!(second.as_deref(), Some(&b"got two"[..]));
    assert_eq!(within(wire::read_chunk(&mut client.read)).await.unwrap(), None);
    let seen = within(upstream).await.unwrap();
    assert_eq!(seen, (Some(b"one".to_vec()), Some(b"two".to_vec())));
}

/// An upstream that has heard enough answers before it has read everything.
#[tokio::test]
async fn an_answer_before_the_body_is_read() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let gateway = in_front_of(listener.local_addr().unwrap(), "").await;
    let upstream = tokio::spawn(async move {
        let mut heads = Vec::new();
        for answer in ["passing", "protected"] {
            let (stream, _) = listener.accept().await.unwrap();
            let mut stream = BufReader::new(stream);
            let (_, headers) = wire::read_head(&mut stream).await.unwrap();
            let bytes = crate::upstream::answer(403, &[("connection", "close")], answer);
            stream.write_all(&bytes).await.unwrap();
            // Whatever comes until the gateway ends it.
            let _ = wire::read_body(&mut stream, &headers).await;
            heads.push(headers);
        }
        heads
    });
    let mut client = Connection::to(gateway.address()).await;
    client.write(Call::anonymous("PUT", "/upload").chunked().head()).await;
    client.write(wire::chunk(b"some")).await;
    client.reply().await.expect_first(403, "passing");
    drop(client);
    let large = format!("{{\"text\":\"{}\"}}", "x".repeat(500_000));
    let call = Call::post("/payments").key("one").json(&large);
    call.send(gateway.address()).await.expect_first(403, "protected");
    let heads = within(upstream).await.unwrap();
    assert!(heads[1].contains(&("content-length".to_owned(), large.len().to_string().into_bytes())));
}

/// Interim answers are for this hop; the final one is the answer.
#[tokio::test]
async fn interim_answers() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let gateway = start(&format!("http://{}", listener.local_addr().unwrap()), "").await;
    tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        let mut stream = BufReader::new(stream);
        loop {
            let (_, headers) = wire::read_head(&mut stream).await.unwrap();
            stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").await.unwrap();
            wire::read_body(&mut stream, &headers).await.unwrap();
            stream.write_all(b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n").await.unwrap();
            stream.write_all(b"HTTP/1.1 102 Processing\r\n\r\n").await.unwrap();
            stream.write_all(&crate::upstream::answer(200, &[], "final")).await.unwrap();
        }
    });
    for call in [Call::get("/"), Call::pay("one")] {
        let reply = call.send(gateway.address()).await;
        reply.expect_first(200, "final");
        assert_eq!(reply.header("link"), None);
    }
    Call::pay("one").send(gateway.address()).await.expect_replay(200, "final");
}

#[tokio::test]
async fn head_has_the_length_and_no_body() {
    let upstream = crate::upstream::Upstream::start(async |seen: crate::upstream::Seen| {
        if seen.line.starts_with("HEAD") {
            return crate::upstream::Act::Answer(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n".to_vec());
        }
        crate::upstream::numbered(seen).await
    });
    let upstream = upstream.await;
    let gateway = in_front_of(upstream.addr, "").await;
    let mut client = Connection::to(gateway.address()).await;
    let reply = client.ask(&Call::anonymous("HEAD", "/large")).await;
    assert_eq!((reply.status, reply.header("content-length")), (200, Some("1000")));
    // Both connections can go on.
    client.ask(&Call::get("/")).await.expect_first(200, "run 2");
    assert_eq!(upstream.connections(), 1);
}
