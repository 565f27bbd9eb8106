//! Upstreams that are down, slow, or broken: a clear answer, the right state, and nothing lost.

use bytes::Bytes;
use http::Response;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpListener;

use crate::client::{Call, Connection, within};
use crate::gateway::{Stage, admin, in_front_of, start, state};
use crate::tls::Certificates;
use crate::upstream::{Act, Seen, Upstream, answer};
use crate::wire;

/// Each way for an answer not to come, or not to be one.
fn no_answers() -> Vec<(&'static str, Act)> {
    let close = |bytes: &[u8]| Act::AnswerAndClose(bytes.to_vec());
    vec![
        ("closes", close(b"")),
        ("resets", Act::Reset),
        ("closes in the head", close(b"HTTP/1.1 200 OK\r\ncontent-le")),
        ("speaks another protocol", close(b"SSH-2.0-OpenSSH_9.2\r\n\r\n")),
        ("sends garbage", close(&[0xff; 100])),
        ("sends a length that is none", close(b"HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\n")),
        ("sends two lengths", close(b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab")),
        ("sends a head without end", close(&b"x-more: 1\r\n".repeat(100_000))),
    ]
}

/// Each way for a body to end before its end.
fn half_answers() -> Vec<(&'static str, Act)> {
    let head = "HTTP/1.1 200 OK\r\n";
    let close = |bytes: String| Act::AnswerAndClose(bytes.into_bytes());
    vec![
        ("of a length", close(format!("{head}content-length: 100\r\n\r\nhalf"))),
        ("in a chunk", close(format!("{head}transfer-encoding: chunked\r\n\r\n64\r\nhalf"))),
        ("between chunks", close(format!("{head}transfer-encoding: chunked\r\n\r\n4\r\nhalf\r\n"))),
        (
            "with a chunk that is none",
            close(format!("{head}transfer-encoding: chunked\r\n\r\n4\r\nhalf\r\nzz\r\n")),
        ),
    ]
}

async fn doing(act: Act, toml: &str) -> Stage {
    Stage::new(Upstream::start(move |_| std::future::ready(act.clone())).await, toml).await
}

#[tokio::test]
async fn without_an_answer_the_outcome_is_unknown() {
    for (name, act) in no_answers().into_iter().chain(half_answers()) {
        let stage = doing(act, "").await;
        let reply = stage.send(&Call::pay("one")).await;
        let problem = reply.expect_problem_of_operation(504, "outcome_unknown");
        assert_eq!(stage.state("one").await.as_deref(), Some("unknown"), "{name}");
        let retry = stage.send(&Call::pay("one")).await;
        let again = retry.expect_problem_of_operation(409, "outcome_unknown");
        assert_eq!(problem["operation"], again["operation"], "{name}");
        assert_eq!(stage.runs(), 1, "{name}");
    }
}

#[tokio::test]
async fn without_an_answer_and_without_a_key() {
    for (name, act) in no_answers() {
        let stage = doing(act, "").await;
        let reply = stage.send(&Call::get("/")).await;
        let problem = reply.expect_problem(502, "upstream_failed");
        assert!(problem["detail"].as_str().unwrap().contains("may have acted"), "{name}: {problem}");
        reply.expect_retry_after(None);
        assert_eq!(stage.runs(), 1, "{name}: a proxy does not send it again");
    }
}

/// Its head has left by then: the client sees that the rest is missing.
#[tokio::test]
async fn half_an_answer_without_a_key_stays_half() {
    for (name, act) in half_answers() {
        let stage = doing(act, "").await;
        let mut client = Call::get("/").open(stage.addr()).await;
        assert!(client.try_reply().await.is_err(), "{name}");
        assert_eq!(stage.runs(), 1, "{name}");
    }
}

/// Too large to be kept, it is settled before its first byte leaves; then it breaks off.
#[tokio::test]
async fn half_an_answer_that_was_too_large_to_keep() {
    let large = "x".repeat(10_000);
    let bytes = format!("HTTP/1.1 201 Created\r\nlocation: /7\r\ncontent-length: 20000\r\n\r\n{large}");
    let toml = "[defaults]\nanswer_bytes_max = 1000";
    let stage = doing(Act::AnswerAndClose(bytes.into_bytes()), toml).await;
    let mut client = Call::pay("one").open(stage.addr()).await;
    assert!(client.try_reply().await.is_err());
    assert_eq!(stage.state("one").await.as_deref(), Some("completed"));
    let retry = stage.send(&Call::pay("one")).await;
    assert_eq!(retry.expect_problem(409, "answer_not_kept")["answer_location"], "/7");
    assert_eq!(stage.runs(), 1);
}

const SHORT: &str = "[upstream]\ntimeout = \"50ms\"\n";

#[tokio::test]
async fn an_upstream_that_takes_too_long() {
    let upstream = Upstream::start(async |_| std::future::pending::<Act>().await).await;
    let stage = Stage::new(upstream, SHORT).await;
    stage.send(&Call::pay("one")).await.expect_problem_of_operation(504, "outcome_unknown");
    stage.send(&Call::pay("one")).await.expect_problem_of_operation(409, "outcome_unknown");
    assert_eq!((stage.runs(), stage.state("one").await.as_deref()), (1, Some("unknown")));
    let reply = stage.send(&Call::get("/")).await;
    let problem = reply.expect_problem(504, "upstream_failed");
    assert!(problem["detail"].as_str().unwrap().contains("in time"), "{problem}");
}

#[tokio::test]
async fn an_upstream_that_falls_silent_in_its_answer() {
    let half = b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf".to_vec();
    let stage = doing(Act::Answer(half), SHORT).await;
    stage.send(&Call::pay("one")).await.expect_problem_of_operation(504, "outcome_unknown");
    assert_eq!(stage.state("one").await.as_deref(), Some("unknown"));
    let mut client = Call::get("/").open(stage.addr()).await;
    assert!(client.try_reply().await.is_err(), "the client is not left waiting");
}

/// What is silent for less than the timeout may take as long as it likes.
#[tokio::test]
async fn one_hundred_megabytes() {
    const PIECE: usize = 1 << 20;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let upstream = format!("http://{}", listener.local_addr().unwrap());
    let gateway = start(&upstream, "").await;
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let mut stream = BufReader::new(stream);
            while let Ok((_, headers)) = wire::read_head(&mut stream).await {
                wire::read_body(&mut stream, &headers).await.unwrap();
                let head =
                    format!("HTTP/1.1 200 OK\r\nlocation: /7\r\ncontent-length: {}\r\n\r\n", 100 * PIECE);
                stream.write_all(head.as_bytes()).await.unwrap();
                let piece = vec![b'x'; PIECE];
                for _ in 0..100 {
                    stream.write_all(&piece).await.unwrap();
                }
            }
        }
    });
    for call in [Call::get("/"), Call::pay("one")] {
        let mut client = call.open(gateway.address()).await;
        let (status, headers) = client.reply_head().await;
        assert_eq!(status, 200);
        assert!(headers.contains(&("content-length".to_owned(), (100 * PIECE).to_string().into())));
        let mut piece = vec![0; PIECE];
        for _ in 0..100 {
            within(client.read.read_exact(&mut piece)).await.unwrap();
            assert!(piece.iter().all(|byte| *byte == b'x'));
        }
    }
    assert_eq!(state(&gateway, "one").await.as_deref(), Some("completed"));
    let retry = Call::pay("one").send(gateway.address()).await;
    retry.expect_problem(409, "answer_not_kept");
}

/// Nothing can have been sent: the same key runs at once when it is there.
async fn never_sent(upstream: &str, toml: &str, words: &str) {
    let gateway = start(upstream, toml).await;
    for _ in 0..2 {
        let reply = Call::pay("one").send(gateway.address()).await;
        let problem = reply.expect_problem(502, "upstream_unreachable");
        assert!(problem["detail"].as_str().unwrap().contains(words), "{problem}");
        reply.expect_retry_after(Some(1));
        assert_eq!(state(&gateway, "one").await.as_deref(), Some("failed_retryable"));
    }
    let reply = Call::get("/").send(gateway.address()).await;
    let problem = reply.expect_problem(502, "upstream_unreachable");
    assert!(problem["detail"].as_str().unwrap().contains("Nothing was executed"), "{problem}");
    let counts = admin(&gateway, "/api/v1/counts").await.json();
    assert_eq!((&counts["unknown"], &counts["failed_retryable"]), (&0.into(), &1.into()));
}

#[tokio::test]
async fn a_name_that_nobody_has() {
    never_sent("http://nobody.invalid", "", "no address").await;
}

/// Accepts connections, and never says a word.
#[tokio::test]
async fn a_handshake_that_does_not_come() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://localhost:{}", listener.local_addr().unwrap().port());
    tokio::spawn(async move {
        let mut silent = Vec::new();
        loop {
            silent.push(listener.accept().await.unwrap());
        }
    });
    let certificates = Certificates::new();
    let toml = format!("[upstream]\nconnect_timeout = \"50ms\"\n{}", certificates.trust());
    never_sent(&url, &toml, "in time").await;
}

#[tokio::test]
async fn a_handshake_that_fails() {
    let upstream = Upstream::numbered().await;
    let certificates = Certificates::new();
    let url = format!("https://localhost:{}", upstream.addr.port());
    never_sent(&url, &format!("[upstream]\n{}", certificates.trust()), "TLS handshake").await;
    assert_eq!(upstream.runs(), 0);
}

/// HTTP/2 can say that it has not begun: then nothing was executed. Any other reset says nothing.
#[tokio::test]
async fn streams_that_an_upstream_refuses() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let gateway = start(&url, "[upstream]\nhttp = \"2\"\n").await;
    tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        let mut connection = h2::server::handshake(stream).await.unwrap();
        let reasons = [h2::Reason::REFUSED_STREAM, h2::Reason::INTERNAL_ERROR];
        for reason in reasons {
            let (_, mut respond) = connection.accept().await.unwrap().unwrap();
            respond.send_reset(reason);
        }
        while let Some(Ok((_, mut respond))) = connection.accept().await {
            let mut body = respond.send_response(Response::new(()), false).unwrap();
            body.send_data(Bytes::from("answered"), true).unwrap();
        }
    });
    let addr = gateway.address();
    Call::pay("one").send(addr).await.expect_problem(502, "upstream_unreachable");
    assert_eq!(state(&gateway, "one").await.as_deref(), Some("failed_retryable"));
    Call::pay("two").send(addr).await.expect_problem_of_operation(504, "outcome_unknown");
    assert_eq!(state(&gateway, "two").await.as_deref(), Some("unknown"));
    Call::pay("one").send(addr).await.expect_first(200, "answered");
    Call::pay("two").send(addr).await.expect_problem(409, "outcome_unknown");
}

/// A client that hangs up in the middle of its body has asked nothing.
#[tokio::test]
async fn half_a_request() {
    let (gone, hung_up) = tokio::sync::oneshot::channel();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let gateway = in_front_of(listener.local_addr().unwrap(), "").await;
    tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        let mut stream = BufReader::new(stream);
        let (_, headers) = wire::read_head(&mut stream).await.unwrap();
        gone.send(wire::read_body(&mut stream, &headers).await.is_err()).unwrap();
    });
    let mut client = Connection::to(gateway.address()).await;
    client.write(Call::anonymous("PUT", "/upload").chunked().head()).await;
    client.write(wire::chunk(b"01234")).await;
    drop(client);
    assert!(within(hung_up).await.unwrap(), "what is behind sees that the rest is missing");
}

/// An answer that came too late for its client is there for its retry.
#[tokio::test]
async fn a_client_that_does_not_wait() {
    let (gate, upstream) = Upstream::gated().await;
    let stage = Stage::new(upstream, "[defaults]\nin_progress = \"wait\"\nwait_limit = \"2m\"").await;
    let client = Call::pay("one").open(stage.addr()).await;
    gate.entered().await;
    drop(client);
    let mut retry = Call::pay("one").open(stage.addr()).await;
    gate.open();
    retry.reply().await.expect_replay(200, "run 1");
    assert_eq!(stage.runs(), 1);
}

/// An upstream that comes back as another one is asked like any other.
#[tokio::test]
async fn an_upstream_that_restarts() {
    let upstream = Upstream::start(async |seen: Seen| match seen.number {
        2 => Act::AnswerAndClose(Vec::new()),
        _ => Act::Answer(answer(200, &[], format!("run {}", seen.number))),
    });
    let stage = Stage::new(upstream.await, "").await;
    stage.send(&Call::pay("one")).await.expect_first(200, "run 1");
    stage.send(&Call::pay("two")).await.expect_problem(504, "outcome_unknown");
    stage.send(&Call::pay("three")).await.expect_first(200, "run 3");
    stage.send(&Call::pay("one")).await.expect_replay(200, "run 1");
}

/// An upstream sent a byte now and then, never silent for as long as the timeout: the attempt outlived its lease and its deadline by
/// hours, and held its place all the while.
#[tokio::test]
async fn an_upstream_that_drips() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let toml = "[limits]\nexecutions_max = 1\nqueue_max = 0\n[upstream]\ntimeout = \"1m\"\n\
                [defaults]\nlease = \"1s\"\nattempt_deadline = \"1s\"";
    let gateway = in_front_of(listener.local_addr().unwrap(), toml).await;
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            tokio::spawn(async move {
                let mut stream = BufReader::new(stream);
                while let Ok((line, headers)) = wire::read_head(&mut stream).await {
                    wire::read_body(&mut stream, &headers).await.unwrap();
                    if line.contains("/other") {
                        stream.write_all(&answer(200, &[], "other")).await.unwrap();
                        continue;
                    }
                    stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n").await.unwrap();
                    // The pace of the upstream; nobody waits for it.
                    let mut pace = tokio::time::interval(std::time::Duration::from_millis(20));
                    while stream.write_all(b"x").await.is_ok() {
                        pace.tick().await;
                    }
                }
            });
        }
    });
    let reply = Call::pay("one").send(gateway.address()).await;
    reply.expect_problem_of_operation(504, "outcome_unknown");
    assert_eq!(state(&gateway, "one").await.as_deref(), Some("unknown"));
    Call::get("/other").send(gateway.address()).await.expect_first(200, "other");
    Call::pay("one").send(gateway.address()).await.expect_problem(409, "outcome_unknown");
}
