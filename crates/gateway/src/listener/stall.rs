//! A client that does not take what it is sent is not waited for without end.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

/// A stream whose writes fail once they have stood still for too long.
pub(super) struct Stalling<T> {
    stream: T,
    patience: Duration,
    stalled: Option<Pin<Box<Sleep>>>,
    /// Whether something waits to be taken.
    is_stuck: Arc<AtomicBool>,
}

impl<T> Stalling<T> {
    pub(super) fn new(stream: T, patience: Duration) -> Self {
        Self { stream, patience, stalled: None, is_stuck: Arc::default() }
    }

    /// Tells whether something waits to be taken by the client.
    pub(super) fn is_stuck(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.is_stuck)
    }

    fn unless_stalled<R>(
        &mut self,
        cx: &mut Context<'_>,
        polled: Poll<io::Result<R>>,
    ) -> Poll<io::Result<R>> {
        self.is_stuck.store(polled.is_pending(), Ordering::Relaxed);
        if polled.is_ready() {
            self.stalled = None;
            return polled;
        }
        let patience = self.patience;
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(tokio::time::sleep(patience)));
        match stalled.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Stalling<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Stalling<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.unless_stalled(cx, polled)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write_vectored(cx, bytes);
        self.unless_stalled(cx, polled)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_flush(cx);
        self.unless_stalled(cx, polled)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_shutdown(cx);
        self.unless_stalled(cx, polled)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_reader_that_stopped_ends_the_connection_and_a_slow_one_does_not() {
        let (near, mut far) = tokio::io::duplex(16);
        let mut stalling = Stalling::new(near, Duration::from_secs(30));
        let writing = tokio::spawn(async move {
            let written = stalling.write_all(&[0; 64]).await;
            (written, stalling)
        });
        let mut piece = [0; 16];
        for _ in 0..4 {
            tokio::time::sleep(Duration::from_secs(29)).await;
            far.read_exact(&mut piece).await.unwrap();
        }
        let (written, mut stalling) = writing.await.unwrap();
        written.unwrap();
        let stuck = stalling.write_all(&[0; 64]).await.unwrap_err();
        assert_eq!(stuck.kind(), io::ErrorKind::TimedOut);
    }
}
