//! A client's connection, such that the client can read every refusal.
//!
//! hyper answers a head that it cannot parse with a bare status. Here that becomes a problem
//! document. And hyper closes at once after its last answer: if the client is still sending, the
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
}

/// How long and how much the gateway still reads.
struct Linger {
    end: Instant,
    pause: Pin<Box<Sleep>>,
    bytes: usize,
}

impl<T> ClientStream<T> {
    pub(super) fn new(stream: T, requests: Arc<Use>) -> Self {
        Self { stream, requests, answered: Some(0), refusal: Bytes::new(), linger: None, has_ended: false }
    }

    /// The refusal in place of these bytes, if hyper writes them on its own account: an error, and
    /// no request has begun since everything was sent.
    fn own_refusal(&self, bytes: &[u8]) -> Option<Bytes> {
        let status = bytes.strip_prefix(b"HTTP/1.1 ")?.get(..3)?;
        let is_own =
            status.starts_with(b"4") && self.answered.is_some() && self.answered == self.requests.answered();
        if !is_own || !bytes.ends_with(b"\r\n\r\n") {
            return None;
        }
        let status = StatusCode::from_bytes(status).ok()?;
        let what = match status {
            StatusCode::URI_TOO_LONG => "The request target is too long",
            StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE => {
                "The head is too large, has too many headers, or says a length that is too large"
            }
            _ => "The head is not valid HTTP/1.1, so that another server might read another request",
        };
        let words = format!("{what}. Nothing was forwarded, and nothing was executed.");
        let body = Problem::new(Code::RequestMalformed, words).with_status(status.as_u16()).to_json();
        let head = format!(
            "HTTP/1.1 {status}\r\ncontent-type: {}\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
            problem::CONTENT_TYPE,
            body.len()
        );
        Some(Bytes::from([head.into_bytes(), body].concat()))
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

impl<T: AsyncRead + Unpin> AsyncRead for ClientStream<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = ready!(Pin::new(&mut self.stream).poll_read(cx, buffer));
        self.has_ended |= read.is_err() || (buffer.filled().len() == before && buffer.remaining() > 0);
        Poll::Ready(read)
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

    const BARE: &[u8] = b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";

    /// An answer may contain the same bytes as an error of hyper: they pass as they are.
    #[tokio::test(start_paused = true)]
    async fn only_bytes_that_belong_to_no_answer_become_a_problem_document() {
        let requests = Arc::new(Use::new());
        let (near, mut far) = tokio::io::duplex(4096);
        let mut stream = ClientStream::new(near, Arc::clone(&requests));
        let under_way = requests.begin();
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
        let mut stream = ClientStream::new(near, Arc::new(Use::new()));
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
        let mut stream = ClientStream::new(near, Arc::new(Use::new()));
        let begun = Instant::now();
        let closing = tokio::spawn(async move { stream.shutdown().await });
        while far.write_all(&[0; 1]).await.is_ok() && !closing.is_finished() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        assert!(begun.elapsed() <= LINGER_TIME_MAX + Duration::from_millis(100), "{:?}", begun.elapsed());
    }
}
