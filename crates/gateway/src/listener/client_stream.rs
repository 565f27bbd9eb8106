//! A client's connection, such that the client can read every refusal.
//!
//! hyper answers a head that it cannot parse with a bare status. Here that becomes a problem
//! document. A head of HTTP/1.1 that has begun and does not come within its time is refused with
//! 408. And hyper closes at once after its last answer: if the client is still sending, the
//! system then resets the connection, and the client may lose the answer. Here the gateway closes
//! its side first, and reads and drops what still comes, within bounds.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf as _, Bytes};
use http::StatusCode;
use oncegate_core::problem::{self, Code, Problem};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

use super::Use;

/// So much is read and dropped after the last answer,
const LINGER_BYTES_MAX: usize = 16 << 20;
/// for no longer than this,
const LINGER_TIME_MAX: Duration = Duration::from_secs(1);
/// and until nothing has come for so long: a round trip to a client that is far away.
const LINGER_PAUSE_MAX: Duration = Duration::from_millis(300);
/// How a connection of HTTP/2 begins.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A stream of bytes to and from a client.
pub(super) struct ClientStream<T> {
    stream: T,
    requests: Arc<Use>,
    /// How many requests had begun when all of them were answered and everything was sent.
    answered: Option<u64>,
    /// What is left of a refusal to send.
    refusal: Bytes,
    linger: Option<Linger>,
    has_ended: bool,
    /// How much of HTTP/2's preface has come; `None`: the client speaks HTTP/1.1.
    preface: Option<usize>,
    heads: Heads,
    head_end: Option<Pin<Box<Sleep>>>,
    /// Whether a head did not come in time, so that nothing more is read.
    is_late: bool,
}

/// What becomes of heads that never are a request.
#[derive(Clone, Copy)]
pub(super) struct Heads {
    /// Within this time a head must come that has begun.
    pub(super) timeout: Duration,
    /// Called for each that is refused.
    pub(super) count_malformed: fn(),
}

/// How long and how much the gateway still reads.
struct Linger {
    end: Instant,
    pause: Pin<Box<Sleep>>,
    bytes: usize,
}

impl<T> ClientStream<T> {
    pub(super) fn new(stream: T, requests: Arc<Use>, heads: Heads) -> Self {
        Self {
            stream,
            requests,
            answered: Some(0),
            refusal: Bytes::new(),
            linger: None,
            has_ended: false,
            preface: Some(0),
            heads,
            head_end: None,
            is_late: false,
        }
    }

    /// Notes what has come: it is the beginning of a head if no request is under way.
    fn received(&mut self, bytes: &[u8]) {
        if let Some(matched) = self.preface {
            let expected = &PREFACE[matched..];
            let length = expected.len().min(bytes.len());
            self.preface = (bytes[..length] == expected[..length]).then_some(matched + length);
        }
        if self.preface.is_none() && !bytes.is_empty() {
            self.requests.receive_head();
        }
    }

    /// Ready when a head has begun and its time is over.
    fn poll_head_end(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(since) = self.requests.head_since() else { return Poll::Pending };
        let end = since + self.heads.timeout;
        let sleep = self.head_end.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(end)));
        if sleep.deadline() != end {
            sleep.as_mut().reset(end);
        }
        sleep.as_mut().poll(cx)
    }

    /// The refusal in place of these bytes, if hyper writes them on its own account: an error, and
    /// no request has begun since everything was sent.
    fn own_refusal(&self, bytes: &[u8]) -> Option<Bytes> {
        let status = bytes.strip_prefix(b"HTTP/1.1 ")?.get(..3)?;
        let is_own =
            status.starts_with(b"4") && self.answered.is_some() && self.answered == self.requests.answered();
        // The bytes of a tunnel are the upstream's, whatever they look like.
        if !is_own || !bytes.ends_with(b"\r\n\r\n") || self.requests.is_tunnel() {
            return None;
        }
        Some(self.refusal_of_head(StatusCode::from_bytes(status).ok()?))
    }

    /// The answer to a head that never is a request, which is counted.
    fn refusal_of_head(&self, status: StatusCode) -> Bytes {
        let what = match status {
            StatusCode::URI_TOO_LONG => "The request target is too long",
            StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE => {
                "The head is too large, has too many headers, or says a length that is too large"
            }
            StatusCode::REQUEST_TIMEOUT => "The head did not come within `listen.header_timeout`",
            _ => "The head is not valid HTTP/1.1, so that another server might read another request",
        };
        let words = format!("{what}. Nothing was forwarded, and nothing was executed.");
        let body = Problem::new(Code::RequestMalformed, words).with_status(status.as_u16()).to_json();
        let head = format!(
            "HTTP/1.1 {status}\r\ncontent-type: {}\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
            problem::CONTENT_TYPE,
            body.len()
        );
        (self.heads.count_malformed)();
        Bytes::from([head.into_bytes(), body].concat())
    }
}

impl<T: AsyncWrite + Unpin> ClientStream<T> {
    fn poll_refusal(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.refusal.is_empty() {
            let written = ready!(Pin::new(&mut self.stream).poll_write(cx, &self.refusal))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.refusal.advance(written);
        }
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncRead + Unpin> ClientStream<T> {
    /// Reads and drops until the client ends, or for as long as is bearable.
    fn poll_linger(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let linger = self.linger.get_or_insert_with(|| Linger {
            end: Instant::now() + LINGER_TIME_MAX,
            pause: Box::pin(tokio::time::sleep(LINGER_PAUSE_MAX)),
            bytes: 0,
        });
        let mut dropped = [0; 8 << 10];
        while !self.has_ended && linger.bytes < LINGER_BYTES_MAX {
            let mut buffer = ReadBuf::new(&mut dropped);
            match Pin::new(&mut self.stream).poll_read(cx, &mut buffer) {
                Poll::Ready(Ok(())) if !buffer.filled().is_empty() => {
                    linger.bytes += buffer.filled().len();
                    linger.pause.as_mut().reset(linger.end.min(Instant::now() + LINGER_PAUSE_MAX));
                }
                Poll::Ready(_) => self.has_ended = true,
                Poll::Pending => return linger.pause.as_mut().poll(cx),
            }
        }
        Poll::Ready(())
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> AsyncRead for ClientStream<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.is_late {
            let before = buffer.filled().len();
            if let Poll::Ready(read) = Pin::new(&mut self.stream).poll_read(cx, buffer) {
                let bytes = &buffer.filled()[before..];
                self.has_ended |= read.is_err() || (bytes.is_empty() && buffer.remaining() > 0);
                self.received(bytes);
                return Poll::Ready(read);
            }
            ready!(self.poll_head_end(cx));
            self.is_late = true;
            self.refusal = self.refusal_of_head(StatusCode::REQUEST_TIMEOUT);
        }
        // To hyper this is the end of the stream, so that it drops what it has of the head.
        self.poll_shutdown(cx)
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> AsyncWrite for ClientStream<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        ready!(self.poll_refusal(cx))?;
        if let Some(refusal) = self.own_refusal(bytes) {
            self.refusal = refusal;
            return Poll::Ready(Ok(bytes.len()));
        }
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match bytes {
            [only] => self.poll_write(cx, only),
            bytes => {
                ready!(self.poll_refusal(cx))?;
                Pin::new(&mut self.stream).poll_write_vectored(cx, bytes)
            }
        }
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_refusal(cx))?;
        ready!(Pin::new(&mut self.stream).poll_flush(cx))?;
        self.answered = self.requests.answered();
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_refusal(cx))?;
        ready!(Pin::new(&mut self.stream).poll_shutdown(cx))?;
        // What comes through a tunnel is not the gateway's to drop.
        if !self.requests.is_tunnel() {
            ready!(self.poll_linger(cx));
        }
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    const HEADS: Heads = Heads { timeout: Duration::from_secs(30), count_malformed: || {} };
    const BARE: &[u8] = b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";

    /// An answer may contain the same bytes as an error of hyper: they pass as they are.
    #[tokio::test(start_paused = true)]
    async fn only_bytes_that_belong_to_no_answer_become_a_problem_document() {
        let requests = Arc::new(Use::new(Arc::default()));
        let (near, mut far) = tokio::io::duplex(4096);
        let mut stream = ClientStream::new(near, Arc::clone(&requests), HEADS);
        let (under_way, _) = requests.begin();
        stream.write_all(BARE).await.unwrap();
        stream.flush().await.unwrap();
        drop(under_way);
        // The rest of the same answer.
        stream.write_all(BARE).await.unwrap();
        let mut read = vec![0; 2 * BARE.len()];
        far.read_exact(&mut read).await.unwrap();
        assert_eq!(read, [BARE, BARE].concat());
        // Everything was answered and sent.
        stream.flush().await.unwrap();
        stream.write_all(BARE).await.unwrap();
        stream.shutdown().await.unwrap();
        let mut text = String::new();
        drop(stream);
        far.read_to_string(&mut text).await.unwrap();
        assert!(
            text.starts_with("HTTP/1.1 400 Bad Request\r\ncontent-type: application/problem+json"),
            "{text}"
        );
        assert!(text.contains("request_malformed"), "{text}");
    }

    #[tokio::test(start_paused = true)]
    async fn what_still_comes_is_dropped_for_a_while_before_the_connection_closes() {
        let (near, mut far) = tokio::io::duplex(16);
        let mut stream = ClientStream::new(near, Arc::new(Use::new(Arc::default())), HEADS);
        let begun = Instant::now();
        let closing = tokio::spawn(async move { stream.shutdown().await });
        // More than the buffer holds, and then a client that keeps its side open.
        far.write_all(&[0; 64]).await.unwrap();
        tokio::time::sleep(Duration::from_millis(200)).await;
        far.write_all(&[0; 64]).await.unwrap();
        closing.await.unwrap().unwrap();
        assert_eq!(begun.elapsed(), Duration::from_millis(500));
        // A client that sends without end.
        let (near, mut far) = tokio::io::duplex(16);
        let mut stream = ClientStream::new(near, Arc::new(Use::new(Arc::default())), HEADS);
        let begun = Instant::now();
        let closing = tokio::spawn(async move { stream.shutdown().await });
        while far.write_all(&[0; 1]).await.is_ok() && !closing.is_finished() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        assert!(begun.elapsed() <= LINGER_TIME_MAX + Duration::from_millis(100), "{:?}", begun.elapsed());
    }

    /// A body, a tunnel and HTTP/2 have limits of their own.
    #[tokio::test(start_paused = true)]
    async fn a_head_that_has_begun_must_come_in_time() {
        for (sent, is_under_way, is_tunnel, is_refused) in [
            ("GET / HT", false, false, true),
            ("P", false, false, false),
            ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\nmore", false, false, false),
            ("PRI * HTTP/2.1\r\n", false, false, true),
            ("a body", true, false, false),
            ("a message", false, true, false),
            ("", false, false, false),
        ] {
            let requests = Arc::new(Use::new(Arc::default()));
            let _under_way = is_under_way.then(|| requests.begin());
            requests.is_tunnel.store(is_tunnel, std::sync::atomic::Ordering::Relaxed);
            let (near, mut far) = tokio::io::duplex(4096);
            let mut stream = ClientStream::new(near, requests, HEADS);
            far.write_all(sent.as_bytes()).await.unwrap();
            let mut read = vec![0; sent.len()];
            stream.read_exact(&mut read).await.unwrap();
            let mut byte = [0];
            let early = tokio::time::timeout(HEADS.timeout / 2, stream.read(&mut byte)).await;
            assert!(early.is_err(), "{sent:?}");
            let end = tokio::time::timeout(HEADS.timeout, stream.read(&mut byte)).await;
            assert_eq!(end.is_ok_and(|end| end.unwrap() == 0), is_refused, "{sent:?}");
            drop(stream);
            let mut told = String::new();
            far.read_to_string(&mut told).await.unwrap();
            assert_eq!(told.starts_with("HTTP/1.1 408 "), is_refused, "{sent:?}: {told}");
            assert_eq!(told.is_empty(), !is_refused, "{sent:?}: {told}");
        }
    }
}
