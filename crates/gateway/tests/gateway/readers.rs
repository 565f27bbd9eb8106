//! Clients that do not read what they are sent: nobody else waits for them, and they are not waited for without end.

use oncegate_gateway::Gateway;
use tokio::io::{AsyncWriteExt as _, BufReader};
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::client::{Call, within};
use crate::gateway::{in_front_of, state};
use crate::upstream::answer;
use crate::wire;

const LENGTH: u64 = 1 << 40;

/// An upstream with an answer that no buffer holds, for all but `/small`; and how many of those broke off.
async fn stage(toml: &str) -> (Gateway, watch::Receiver<usize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let gateway = in_front_of(listener.local_addr().unwrap(), toml).await;
    let (broken, has_broken) = watch::channel(0);
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let broken = broken.clone();
            tokio::spawn(async move {
                let mut stream = BufReader::new(stream);
                while let Ok((line, headers)) = wire::read_head(&mut stream).await {
                    wire::read_body(&mut stream, &headers).await.unwrap();
                    if line.contains("/small") {
                        stream.write_all(&answer(200, &[], "small")).await.unwrap();
                        continue;
                    }
                    let head = format!("HTTP/1.1 200 OK\r\nlocation: /7\r\ncontent-length: {LENGTH}\r\n\r\n");
                    stream.write_all(head.as_bytes()).await.unwrap();
                    let piece = vec![b'x'; 1 << 16];
                    while stream.write_all(&piece).await.is_ok() {}
                    return broken.send_modify(|count| *count += 1);
                }
            });
        }
    });
    (gateway, has_broken)
}

const LIMITS: &str = "[limits]\nexecutions_max = 2\nqueue_max = 0\n";

/// An answer held its place at the upstream until its client had taken all of it: a few clients that read nothing, and nobody was
/// served any more.
#[tokio::test]
async fn readers_that_stop_hold_no_places() {
    let toml = format!("{LIMITS}[defaults]\nanswer_bytes_max = 1000");
    let (gateway, broken) = stage(&toml).await;
    let mut stopped = Vec::new();
    for call in [
        Call::get("/"),
        Call::get("/"),
        Call::get("/"),
        // Too large to be kept: from there on it is like any other.
        Call::pay("one"),
        Call::pay("two"),
        Call::pay("three"),
    ] {
        let mut client = call.open(gateway.address()).await;
        assert_eq!(client.reply_head().await.0, 200);
        stopped.push(client);
    }
    let small = Call::get("/small").send(gateway.address()).await;
    small.expect_first(200, "small");
    let protected = Call::post("/small").key("small").send(gateway.address()).await;
    protected.expect_first(200, "small");
    assert_eq!(*broken.borrow(), 0, "they were not cut off for it");
}

/// And they stayed for ever: a connection each to the client and to the upstream.
#[tokio::test]
async fn readers_that_stop_are_cut_off() {
    let toml = "[listen]\nbody_timeout = \"300ms\"\n[defaults]\nanswer_bytes_max = 1000";
    let (gateway, mut broken) = stage(toml).await;
    let mut stopped = Vec::new();
    for call in [Call::get("/"), Call::pay("one")] {
        let mut client = call.open(gateway.address()).await;
        assert_eq!(client.reply_head().await.0, 200);
        stopped.push(client);
    }
    within(broken.wait_for(|count| *count == 2)).await.unwrap();
    for mut client in stopped {
        let mut sink = tokio::io::sink();
        let taken = within(tokio::io::copy(&mut client.read, &mut sink)).await.unwrap_or_default();
        assert!(taken < LENGTH);
    }
    assert_eq!(state(&gateway, "one").await.as_deref(), Some("completed"));
    Call::pay("one").send(gateway.address()).await.expect_problem(409, "answer_not_kept");
}
