//! Bodies of clients: how many at once, and what becomes of one that stands still.

use bytes::Bytes;
use http::Request;
use tokio::net::TcpStream;

use crate::client::{Call, Connection, within};
use crate::gateway::Stage;
use crate::upstream::Upstream;

/// Half of a request by this key. The gateway's 100 says that it waits for the rest.
async fn begin(stage: &Stage, key: &str) -> Connection {
    let mut client = Connection::to(stage.addr()).await;
    let call = Call::post("/payments").key(key).header("expect", "100-continue").body("0123456789");
    client.write(call.head()).await;
    assert_eq!(client.reply_head().await.0, 100);
    client.write("01234").await;
    client
}

/// Bodies were read before anything counted them: as many as there were connections, each up to its limit, and the process was out of
/// memory long before `executions_max` was reached. Then each held the place of a request that
/// could have been executed.
#[tokio::test]
async fn bodies_that_are_being_read_count() {
    let stage = Stage::numbered("[limits]\nrequests_max = 2\nper_peer_requests_max = 9").await;
    let mut first = begin(&stage, "one").await;
    let mut second = begin(&stage, "two").await;
    let mut third = Connection::to(stage.addr()).await;
    third.write(Call::pay("three").head()).await;
    third.reply().await.expect_problem(503, "overloaded");
    for key in ["one", "two", "three"] {
        assert_eq!(stage.state(key).await, None, "nothing is recorded of what was shed, or has not come yet");
    }
    assert_eq!(stage.runs(), 0);
    // What has come needs none of these places.
    stage.send(&Call::get("/")).await.expect_first(200, "run 1");
    first.write("56789").await;
    first.reply().await.expect_first(200, "run 2");
    stage.send(&Call::pay("three")).await.expect_first(200, "run 3");
    second.write("56789").await;
    second.reply().await.expect_first(200, "run 4");
}

/// The same on one HTTP/2 connection, which is one of `connections_max` and had two hundred bodies.
#[tokio::test]
async fn streams_of_one_connection_count() {
    let stage = Stage::numbered("[limits]\nrequests_max = 3\nper_peer_requests_max = 9").await;
    let stream = TcpStream::connect(stage.addr()).await.unwrap();
    let (client, connection) = within(h2::client::handshake(stream)).await.unwrap();
    tokio::spawn(connection);
    let request = |key: &str| {
        let request = Request::post("http://a.test/payments").header("authorization", "Bearer acme");
        request.header("idempotency-key", key).body(()).unwrap()
    };
    let mut begun = Vec::new();
    for key in ["one", "two", "three", "four"] {
        let mut client = within(client.clone().ready()).await.unwrap();
        let (response, mut body) = client.send_request(request(key), false).unwrap();
        body.send_data(Bytes::from("01234"), false).unwrap();
        begun.push((response, body));
    }
    let (response, _body) = begun.pop().unwrap();
    assert_eq!(within(response).await.unwrap().status(), 503);
    assert_eq!((stage.runs(), stage.state("four").await), (0, None));
    for (response, mut body) in begun {
        body.send_data(Bytes::from("56789"), true).unwrap();
        assert_eq!(within(response).await.unwrap().status(), 200);
    }
    assert_eq!(stage.runs(), 3);
}

/// A client sent half a body and nothing more, and held its memory and its place until it went away by itself.
#[tokio::test]
async fn a_body_that_stands_still_is_given_up() {
    let stage = Stage::numbered("[listen]\nbody_timeout = \"200ms\"\n[limits]\nrequests_max = 1").await;
    let mut stopped = begin(&stage, "one").await;
    stopped.reply().await.expect_problem(408, "body_too_slow");
    stopped.closed().await;
    assert_eq!((stage.runs(), stage.state("one").await), (0, None));
    stage.send(&Call::pay("one")).await.expect_first(200, "run 1");
}

/// The same of a request that nothing protects: what is behind sees that the rest does not come.
#[tokio::test]
async fn an_upload_that_stands_still_is_given_up() {
    let toml = "[listen]\nbody_timeout = \"200ms\"\n[limits]\nexecutions_max = 1\nqueue_max = 0";
    let stage = Stage::numbered(toml).await;
    let mut stopped = Connection::to(stage.addr()).await;
    stopped.write(Call::anonymous("PUT", "/upload").body("0123456789").head()).await;
    stopped.write("01234").await;
    stopped.reply().await.expect_problem(408, "body_too_slow");
    assert_eq!(stage.runs(), 0, "the upstream had no whole request");
    stage.send(&Call::pay("one")).await.expect_first(200, "run 1");
}

/// One connection could have two hundred requests at once, each with a body.
#[tokio::test]
async fn a_connection_takes_one_hundred_streams() {
    let (gate, upstream) = Upstream::gated().await;
    let stage = Stage::new(upstream, "").await;
    let stream = TcpStream::connect(stage.addr()).await.unwrap();
    let (client, mut connection) =
        within(h2::client::Builder::new().initial_max_send_streams(0).handshake::<_, Bytes>(stream))
            .await
            .unwrap();
    // Until the gateway has said how many.
    within(std::future::poll_fn(|cx| {
        let _ = Future::poll(std::pin::Pin::new(&mut connection), cx);
        if connection.max_concurrent_send_streams() == 0 {
            cx.waker().wake_by_ref();
            return std::task::Poll::Pending;
        }
        std::task::Poll::Ready(())
    }))
    .await;
    assert_eq!(connection.max_concurrent_send_streams(), 100);
    tokio::spawn(connection);
    let mut responses = Vec::new();
    for _ in 0..101 {
        let mut client = client.clone();
        responses.push(tokio::spawn(async move {
            client = client.ready().await.unwrap();
            let request = Request::get("http://a.test/").body(()).unwrap();
            client.send_request(request, true).unwrap().0.await.unwrap().status()
        }));
    }
    for _ in 0..100 {
        gate.entered().await;
    }
    assert_eq!(stage.runs(), 100);
    gate.open();
    gate.entered().await;
    (0..100).for_each(|_| gate.open());
    for response in responses {
        assert_eq!(within(response).await.unwrap(), 200);
    }
}

/// The answer to an upload comes after it, so that whatever took longer than `upstream.timeout` to send was cut off, though nobody had
/// been silent.
#[tokio::test]
async fn an_upload_that_goes_on_is_not_cut_off() {
    use std::time::{Duration, Instant};
    let stage = Stage::numbered("[upstream]\ntimeout = \"500ms\"").await;
    let mut client = Connection::to(stage.addr()).await;
    client.write(Call::anonymous("PUT", "/upload").chunked().head()).await;
    let (begun, mut sent) = (Instant::now(), 0);
    // The pace of the client; nobody waits for it.
    let mut pace = tokio::time::interval(Duration::from_millis(20));
    while begun.elapsed() < Duration::from_millis(1_500) {
        client.write(crate::wire::chunk(b"piece")).await;
        sent += 5;
        assert!(client.is_silent(), "it is not answered yet");
        pace.tick().await;
    }
    client.write("0\r\n\r\n").await;
    client.reply().await.expect_first(200, "run 1");
    assert_eq!(stage.upstream.last().body.len(), sent);
}

/// One whose pieces stop is not waited for longer than any other silence.
#[tokio::test]
async fn an_upload_that_stops_is_cut_off() {
    let stage = Stage::numbered("[upstream]\ntimeout = \"200ms\"\n[listen]\nbody_timeout = \"1h\"").await;
    let mut client = Connection::to(stage.addr()).await;
    client.write(Call::anonymous("PUT", "/upload").chunked().head()).await;
    client.write(crate::wire::chunk(b"piece")).await;
    client.reply().await.expect_problem(504, "upstream_failed");
    assert_eq!(stage.runs(), 0);
}
