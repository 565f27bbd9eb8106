//! WebSockets and the like: a request that no route protects may turn its connection into a tunnel.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http::header::UPGRADE;
use http::{HeaderValue, Request, Response, Version};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use oncegate_tower::headers::connection_options;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

use crate::public::Room;

/// A client that wants to speak something else from here on.
pub(super) struct Tunnel {
    pub(super) protocol: HeaderValue,
    client: OnUpgrade,
    room: Option<Room>,
}

/// Whether the request asks for it.
pub(super) fn asked_for<B>(request: &mut Request<B>) -> Option<Tunnel> {
    let asks = connection_options(request.headers()).any(|option| option.eq_ignore_ascii_case("upgrade"));
    if request.version() != Version::HTTP_11 || !asks {
        return None;
    }
    let protocol = request.headers().get(UPGRADE)?.clone();
    // Any other, h2c above all, would be a way round everything that this gateway does.
    if !protocol.as_bytes().eq_ignore_ascii_case(b"websocket") {
        return None;
    }
    let room = request.extensions_mut().remove::<Room>();
    Some(Tunnel { protocol, client: hyper::upgrade::on(request), room })
}

impl Tunnel {
    /// The upstream has agreed: from here on bytes pass both ways until either end closes, or until
    /// none has passed for `idle_timeout`.
    pub(super) fn join<B>(self, response: &mut Response<B>, idle_timeout: Duration) {
        let upstream = hyper::upgrade::on(response);
        tokio::spawn(async move {
            let _room = self.room;
            let (client, upstream) = match tokio::try_join!(self.client, upstream) {
                Ok(ends) => ends,
                Err(error) => return tracing::debug!(%error, "a tunnel could not be made"),
            };
            copy(TokioIo::new(client), TokioIo::new(upstream), idle_timeout).await;
        });
    }
}

/// Copies both ways. A peer that is gone without a word, or says nothing more, must not hold its
/// connections for ever.
async fn copy<C, U>(client: C, upstream: U, idle_timeout: Duration)
where
    C: AsyncRead + AsyncWrite + Unpin,
    U: AsyncRead + AsyncWrite + Unpin,
{
    let last_read = Arc::new(Mutex::new(Instant::now()));
    let watch = Arc::clone(&last_read);
    let mut client = Observed { stream: client, last_read: Arc::clone(&last_read) };
    let mut upstream = Observed { stream: upstream, last_read };
    let mut copying = std::pin::pin!(tokio::io::copy_bidirectional(&mut client, &mut upstream));
    loop {
        let end = *watch.lock().unwrap_or_else(PoisonError::into_inner) + idle_timeout;
        tokio::select! {
            biased;
            copied = &mut copying => {
                if let Err(error) = copied {
                    tracing::debug!(%error, "a tunnel ended");
                }
                return;
            }
            () = tokio::time::sleep_until(end) => {
                if Instant::now() >= *watch.lock().unwrap_or_else(PoisonError::into_inner) + idle_timeout {
                    return tracing::debug!(?idle_timeout, "closing idle tunnel");
                }
            }
        }
    }
}

/// A stream that notes when bytes were last read from it.
struct Observed<T> {
    stream: T,
    last_read: Arc<Mutex<Instant>>,
}

impl<T: AsyncRead + Unpin> AsyncRead for Observed<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = ready!(Pin::new(&mut self.stream).poll_read(cx, buffer));
        *self.last_read.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        Poll::Ready(read)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Observed<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    const IDLE: Duration = Duration::from_secs(10);
    const ALMOST_IDLE: Duration = Duration::from_secs(9);

    /// A client that vanished without closing held its connections, and its place among them, for
    /// ever.
    #[tokio::test(start_paused = true)]
    async fn a_tunnel_in_which_nothing_moves_is_closed_and_no_other() {
        let (mut client, near) = tokio::io::duplex(64);
        let (far, mut upstream) = tokio::io::duplex(64);
        let copying = tokio::spawn(copy(near, far, IDLE));
        // Either direction keeps it open.
        let mut byte = [0];
        for _ in 0..5 {
            tokio::time::sleep(ALMOST_IDLE).await;
            client.write_all(b"a").await.unwrap();
            upstream.read_exact(&mut byte).await.unwrap();
            tokio::time::sleep(ALMOST_IDLE).await;
            upstream.write_all(b"b").await.unwrap();
            client.read_exact(&mut byte).await.unwrap();
        }
        let idle_since = Instant::now();
        copying.await.unwrap();
        assert_eq!(idle_since.elapsed(), IDLE);
        assert_eq!(client.read(&mut byte).await.unwrap(), 0, "both ends are closed");
        assert_eq!(upstream.read(&mut byte).await.unwrap(), 0);
    }

    /// One that takes nothing is idle too: bytes that wait do not move.
    #[tokio::test(start_paused = true)]
    async fn a_tunnel_whose_end_takes_nothing_is_closed() {
        let (mut client, near) = tokio::io::duplex(64);
        let (far, _upstream) = tokio::io::duplex(64);
        let copying = tokio::spawn(copy(near, far, IDLE));
        let writing = tokio::spawn(async move { client.write_all(&vec![0; 1 << 20]).await });
        copying.await.unwrap();
        assert!(writing.await.unwrap().is_err());
    }
}
