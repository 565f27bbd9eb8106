//! WebSockets and the like pass where nothing is protected; a protected request stays a request.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpListener;

use crate::client::{Call, Connection, within};
use crate::gateway::{in_front_of, state};
use crate::upstream::{Act, Upstream};
use crate::wire;

const SWITCHING: &[u8] =
    b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\nx-more: 1\r\n\r\n";

fn asking(call: Call) -> Call {
    call.header("connection", "keep-alive, Upgrade")
        .header("upgrade", "websocket")
        .header("sec-websocket-key", "abc")
}

#[tokio::test]
async fn bytes_pass_both_ways() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let gateway = in_front_of(listener.local_addr().unwrap(), "").await;
    let upstream = tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        let mut stream = BufReader::new(stream);
        let (_, headers) = wire::read_head(&mut stream).await.unwrap();
        // The first bytes right behind the head.
        stream.write_all(&[SWITCHING, b"hello"].concat()).await.unwrap();
        let mut said = [0; 4];
        stream.read_exact(&mut said).await.unwrap();
        stream.write_all(&said).await.unwrap();
        // The client closes, and that is seen here.
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).await.unwrap();
        (headers, rest)
    });
    let mut client = asking(Call::get("/socket")).open(gateway.address()).await;
    let (status, headers) = client.reply_head().await;
    assert_eq!(status, 101);
    for (name, value) in [("upgrade", "websocket"), ("connection", "upgrade"), ("x-more", "1")] {
        assert!(headers.contains(&(name.to_owned(), value.into())), "{headers:?}");
    }
    let mut hello = [0; 5];
    within(client.read.read_exact(&mut hello)).await.unwrap();
    assert_eq!(&hello, b"hello");
    client.write(b"\x00\xffab").await;
    let mut echoed = [0; 4];
    within(client.read.read_exact(&mut echoed)).await.unwrap();
    assert_eq!(&echoed, b"\x00\xffab");
    client.write(b"bye").await;
    drop(client);
    let (headers, rest) = within(upstream).await.unwrap();
    assert_eq!(rest, b"bye");
    for (name, value) in [("upgrade", "websocket"), ("connection", "upgrade"), ("sec-websocket-key", "abc")] {
        assert!(headers.contains(&(name.to_owned(), value.into())), "{headers:?}");
    }
}

/// A protected request is answered whole, so it cannot become a tunnel: it is asked without the wish.
#[tokio::test]
async fn a_protected_request_stays_a_request() {
    let upstream = Upstream::numbered().await;
    let gateway = in_front_of(upstream.addr, "").await;
    asking(Call::pay("one")).send(gateway.address()).await.expect_first(200, "run 1");
    let seen = upstream.last();
    assert_eq!((seen.header("upgrade"), seen.header("connection")), (None, None));
    asking(Call::pay("one")).send(gateway.address()).await.expect_replay(200, "run 1");
}

#[tokio::test]
async fn an_upstream_that_declines() {
    let upstream = Upstream::numbered().await;
    let gateway = in_front_of(upstream.addr, "").await;
    let mut client = Connection::to(gateway.address()).await;
    client.ask(&asking(Call::get("/socket"))).await.expect_first(200, "run 1");
    client.ask(&Call::get("/")).await.expect_first(200, "run 2");
}

/// Nobody asked for another protocol, so this is no answer: what the upstream did is not known.
#[tokio::test]
async fn an_upstream_that_switches_unasked() {
    let upstream = Upstream::start(async |_| Act::Answer(SWITCHING.to_vec())).await;
    let gateway = in_front_of(upstream.addr, "").await;
    let reply = asking(Call::pay("one")).send(gateway.address()).await;
    reply.expect_problem_of_operation(504, "outcome_unknown");
    assert_eq!(state(&gateway, "one").await.as_deref(), Some("unknown"));
    let reply = Call::get("/").send(gateway.address()).await;
    reply.expect_problem(502, "upstream_failed");
}
