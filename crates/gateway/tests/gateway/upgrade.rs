//! WebSockets and the like pass where nothing is protected; a protected request stays a request.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpListener;

use crate::client::{Call, Connection, within};
use crate::gateway::{in_front_of, state};
use crate::upstream::{Act, Seen, Upstream, numbered};
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

/// A tunnel without traffic was never closed, so that clients that had vanished held connections to
/// the upstream and places of `listen.connections_max`.
#[tokio::test]
async fn an_idle_tunnel_is_closed_at_both_ends() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let toml = "[listen]\ntunnel_idle_timeout = \"100ms\"\nconnections_max = 1";
    let gateway = in_front_of(listener.local_addr().unwrap(), toml).await;
    let upstream = tokio::spawn(async move {
        let mut stream = BufReader::new(listener.accept().await.unwrap().0);
        wire::read_head(&mut stream).await.unwrap();
        stream.write_all(SWITCHING).await.unwrap();
        let mut rest = Vec::new();
        let ended = stream.read_to_end(&mut rest).await;
        (ended.is_ok(), rest, listener)
    });
    let mut client = asking(Call::get("/socket")).open(gateway.address()).await;
    assert_eq!(client.reply_head().await.0, 101);
    client.write("ping").await;
    client.closed().await;
    let (_, rest, listener) = within(upstream).await.unwrap();
    assert_eq!(rest, b"ping");
    // Its place is free, although the client still holds its end.
    let call = Call::get("/next").header("connection", "close");
    let next = tokio::spawn(async move { call.send(gateway.address()).await });
    let mut stream = BufReader::new(within(listener.accept()).await.unwrap().0);
    within(wire::read_head(&mut stream)).await.unwrap();
    stream.write_all(&crate::upstream::answer(200, &[], "next")).await.unwrap();
    assert_eq!(within(next).await.unwrap().body, b"next");
    drop(client);
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

/// Any protocol was tunnelled, so a client could speak HTTP/2 with the upstream behind the gateway's back: no keys, no scope, no limits.
#[tokio::test]
async fn no_tunnel_for_http() {
    let upstream = Upstream::start(async |seen: Seen| {
        if seen.header("upgrade").is_some() { Act::Answer(SWITCHING.to_vec()) } else { numbered(seen).await }
    });
    let upstream = upstream.await;
    let gateway = in_front_of(upstream.addr, "").await;
    let calls = [
        Call::get("/").header("connection", "Upgrade, HTTP2-Settings").header("upgrade", "h2c"),
        Call::get("/").header("connection", "Upgrade").header("upgrade", "h2c"),
        Call::get("/").header("connection", "Upgrade").header("upgrade", "h2c, websocket"),
        Call::get("/").header("connection", "Upgrade").header("upgrade", "TLS/1.3"),
    ];
    for (run, call) in calls.into_iter().enumerate() {
        for settings in [false, true] {
            let call = if settings {
                call.clone().header("http2-settings", "AAMAAABkAAQAAP__")
            } else {
                call.clone()
            };
            let mut client = call.open(gateway.address()).await;
            // What would be the tunnel's first bytes.
            client.write("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await;
            let run = 2 * run + usize::from(settings) + 1;
            client.reply().await.expect_first(200, &format!("run {run}"));
            let seen = upstream.last();
            for name in ["upgrade", "http2-settings", "connection"] {
                assert_eq!(seen.header(name), None, "{name} in {seen:?}");
            }
            // It is taken for another request, which it is not.
            let mut rest = Vec::new();
            let _ = within(client.read.read_to_end(&mut rest)).await;
            assert_eq!(upstream.runs(), run, "nothing more was passed on");
        }
    }
}

/// The name of the protocol is the same in any case.
#[tokio::test]
async fn a_web_socket_however_it_is_spelled() {
    for name in ["websocket", "WebSocket", "WEBSOCKET"] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let gateway = in_front_of(listener.local_addr().unwrap(), "").await;
        tokio::spawn(async move {
            let mut stream = BufReader::new(listener.accept().await.unwrap().0);
            wire::read_head(&mut stream).await.unwrap();
            stream.write_all(SWITCHING).await.unwrap();
            let mut said = [0; 4];
            stream.read_exact(&mut said).await.unwrap();
            stream.write_all(&said).await.unwrap();
        });
        let call = Call::get("/").header("connection", "upgrade").header("upgrade", name);
        let mut client = call.open(gateway.address()).await;
        assert_eq!(client.reply_head().await.0, 101, "{name}");
        client.write("ping").await;
        let mut echoed = [0; 4];
        within(client.read.read_exact(&mut echoed)).await.unwrap();
        assert_eq!(&echoed, b"ping", "{name}");
    }
}

/// The gateway took bytes of a tunnel that look like an error for one of hyper's own, and replaced
/// them by a problem document.
#[tokio::test]
async fn bytes_of_a_tunnel_that_look_like_a_refusal_pass_as_they_are() {
    const LIKE_A_REFUSAL: &[u8] = b"HTTP/1.1 400 From the tunnel\r\nx: y\r\n\r\n";
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let gateway = in_front_of(listener.local_addr().unwrap(), "").await;
    tokio::spawn(async move {
        let mut stream = BufReader::new(listener.accept().await.unwrap().0);
        wire::read_head(&mut stream).await.unwrap();
        stream.write_all(SWITCHING).await.unwrap();
        // The client has read the 101, and nothing else is in the way.
        for _ in 0..2 {
            let mut said = [0; 2];
            stream.read_exact(&mut said).await.unwrap();
            stream.write_all(LIKE_A_REFUSAL).await.unwrap();
        }
    });
    let mut client = asking(Call::get("/socket")).open(gateway.address()).await;
    assert_eq!(client.reply_head().await.0, 101);
    for _ in 0..2 {
        client.write("go").await;
        let mut told = vec![0; LIKE_A_REFUSAL.len()];
        within(client.read.read_exact(&mut told)).await.unwrap();
        assert_eq!(String::from_utf8_lossy(&told), String::from_utf8_lossy(LIKE_A_REFUSAL));
    }
}
