//! HTTP/2 answers that end before their end, without an error: they must not be taken for whole.

use http::Request;
use http_body_util::{BodyExt as _, Full};
use oncegate_gateway::Gateway;
use tokio::net::TcpListener;

use crate::client::{Call, within};
use crate::frames::{DATA, END_STREAM, Frames, GOAWAY, RST_STREAM, frame};
use crate::gateway::{start, state};
use crate::http2;

/// How an answer ends.
#[derive(Clone, Copy, Debug)]
enum Ending {
    /// Its stream is reset, and the connection goes on.
    Reset,
    /// The connection says that it ends, that this stream will not, and closes.
    LeftOut,
    /// The connection says that it ends after this stream, and closes before.
    LetEnd,
}

const NO_ERROR: [u8; 4] = [0; 4];

/// An upstream that says what the head promises, sends half of it, and ends so.
async fn in_front_of(length: Option<&'static str>, ending: Ending) -> Gateway {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        loop {
            let mut peer = Frames::accept(&listener).await;
            tokio::spawn(async move {
                peer.begin(None).await?;
                loop {
                    let stream = peer.request().await?;
                    peer.head(stream, length).await?;
                    peer.write(DATA, 0, stream, b"half").await?;
                    let last = match ending {
                        Ending::Reset => {
                            peer.write(RST_STREAM, 0, stream, &NO_ERROR).await?;
                            continue;
                        }
                        Ending::LeftOut => 0,
                        Ending::LetEnd => stream,
                    };
                    peer.write(GOAWAY, 0, 0, &[last.to_be_bytes(), NO_ERROR].concat()).await?;
                    return Ok::<_, std::io::Error>(());
                }
            });
        }
    });
    start(&url, "[upstream]\nhttp = \"2\"").await
}

const LENGTHS: [Option<&str>; 2] = [None, Some("100")];
const ENDINGS: [Ending; 3] = [Ending::Reset, Ending::LeftOut, Ending::LetEnd];

/// hyper takes a stream that was reset with `NO_ERROR`, or left out by a `GOAWAY` with it, for one that has ended. So half an answer was
/// kept as `completed`, and replayed as if it were whole.
#[tokio::test]
async fn half_an_answer_is_not_an_outcome() {
    for length in LENGTHS {
        for ending in ENDINGS {
            let gateway = in_front_of(length, ending).await;
            let reply = Call::pay("one").send(gateway.address()).await;
            let first = reply.expect_problem_of_operation(504, "outcome_unknown");
            assert_eq!(state(&gateway, "one").await.as_deref(), Some("unknown"), "{length:?} {ending:?}");
            let retry = Call::pay("one").send(gateway.address()).await;
            let second = retry.expect_problem_of_operation(409, "outcome_unknown");
            assert_eq!(first["operation"], second["operation"], "{length:?} {ending:?}");
        }
    }
}

/// The same answer to a request that nothing protects was closed by the gateway in good order: the client could not see that the rest
/// is missing.
#[tokio::test]
async fn half_an_answer_breaks_off_for_the_client_too() {
    for length in LENGTHS {
        for ending in ENDINGS {
            let gateway = in_front_of(length, ending).await;
            let mut client = Call::get("/").open(gateway.address()).await;
            assert!(client.try_reply().await.is_err(), "HTTP/1, {length:?} {ending:?}");
            let mut client = http2::connect(gateway.address()).await;
            let request = Request::get("http://a.test/").body(Full::default()).unwrap();
            // It may also break off before the head has left.
            if let Ok(response) = within(client.send_request(request)).await {
                let rest = within(response.into_body().collect()).await;
                assert!(rest.is_err(), "HTTP/2, {length:?} {ending:?}");
            }
        }
    }
}

/// A server that needs no more of a request's body sends its whole answer, and then resets the stream with `NO_ERROR` (RFC 9113, 8.1;
/// Go's does). Where the length was said, all of it has come.
#[tokio::test]
async fn a_whole_answer_before_a_reset_is_whole() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let gateway = start(&url, "[upstream]\nhttp = \"2\"").await;
    tokio::spawn(async move {
        let mut peer = Frames::accept(&listener).await;
        peer.begin(None).await.unwrap();
        // The head of the request, and not its body.
        let stream = loop {
            let frame = peer.read().await.unwrap();
            if frame.kind == crate::frames::HEADERS {
                break frame.stream;
            }
        };
        peer.head(stream, Some("5")).await.unwrap();
        // Both are there before either is looked at.
        let answer = frame(DATA, END_STREAM, stream, b"whole");
        peer.write_raw(&[answer, frame(RST_STREAM, 0, stream, &NO_ERROR)].concat()).await.unwrap();
        while peer.read().await.is_ok() {}
    });
    let upload = Call::anonymous("PUT", "/upload").chunked();
    let mut client = crate::client::Connection::to(gateway.address()).await;
    client.write(upload.head()).await;
    client.write(crate::wire::chunk(b"01234")).await;
    client.reply().await.expect_first(200, "whole");
}
