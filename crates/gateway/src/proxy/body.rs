//! An answer's body, on its way from the upstream.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use oncegate_core::classify::Failure;
use oncegate_tower::Failed;
use tokio::sync::watch;
use tokio::time::Instant;

use super::limiter::Permit;
use super::pool::Lent;

/// As it comes; ends in an error if the upstream falls silent, or if the gateway has to end.
pub(crate) struct UpstreamBody {
    incoming: Incoming,
    /// Goes back to the pool when all of it has come.
    connection: Option<Lent>,
    permit: Option<Permit>,
    patience: Patience,
    abandoned: watch::Receiver<bool>,
    /// How much may still come before the rest is the client's to take, at its own pace.
    kept_bytes: u64,
    /// Since nothing came.
    silence: Option<Pin<Box<dyn Future<Output = Failure> + Send>>>,
}

impl UpstreamBody {
    pub(super) fn new(
        incoming: Incoming,
        connection: Option<Lent>,
        permit: Option<Permit>,
        patience: Patience,
        abandoned: watch::Receiver<bool>,
        kept_bytes: u64,
    ) -> Self {
        // What nobody keeps goes to the client as fast as it takes it: that must not keep others from being executed.
        let permit = permit.filter(|_| kept_bytes > 0);
        let mut body = Self { incoming, connection, permit, patience, abandoned, kept_bytes, silence: None };
        if body.incoming.is_end_stream() {
            body.has_come();
        }
        body
    }

    /// What has come; the connection reads only while it is asked to.
    fn poll_incoming(&mut self, cx: &mut Context<'_>) -> Poll<Option<hyper::Result<Frame<Bytes>>>> {
        let mut polled = Pin::new(&mut self.incoming).poll_frame(cx);
        if let Some(connection) = &mut self.connection {
            let is_waiting = polled.is_pending();
            // Also after the last piece: then it comes round, and takes the next request.
            if is_waiting || self.incoming.is_end_stream() {
                connection.drive(cx);
            }
            if is_waiting {
                polled = Pin::new(&mut self.incoming).poll_frame(cx);
                if polled.is_ready() && self.incoming.is_end_stream() {
                    connection.drive(cx);
                }
            }
        }
        polled
    }

    fn has_come(&mut self) {
        self.permit = None;
        if let Some(connection) = self.connection.take() {
            connection.give_back();
        }
    }

    fn is_two(&self) -> bool {
        self.connection.as_ref().is_some_and(Lent::is_two)
    }

    fn fail(&mut self, failure: Failure) -> Poll<Option<Result<Frame<Bytes>, Failed>>> {
        self.permit = None;
        self.connection = None;
        Poll::Ready(Some(Err(Failed(failure))))
    }
}

impl Body for UpstreamBody {
    type Data = Bytes;
    type Error = Failed;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Failed>>> {
        let this = &mut *self;
        match this.poll_incoming(cx) {
            Poll::Ready(Some(Ok(frame))) => {
                this.silence = None;
                let bytes = frame.data_ref().map_or(0, |data| data.len() as u64);
                this.kept_bytes = this.kept_bytes.saturating_sub(bytes);
                if this.kept_bytes == 0 {
                    this.permit = None;
                }
                if this.incoming.is_end_stream() {
                    this.has_come();
                }
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(Some(Err(_))) => this.fail(Failure::Truncated),
            // hyper takes a stream that was reset with NO_ERROR for one that has ended; it has not.
            Poll::Ready(None) if this.is_two() && !this.incoming.is_end_stream() => {
                this.fail(Failure::Truncated)
            }
            Poll::Ready(None) => {
                this.has_come();
                Poll::Ready(None)
            }
            Poll::Pending => {
                let (until, abandoned) = (this.patience.until(), &this.abandoned);
                let silence = this.silence.get_or_insert_with(|| Box::pin(silence(until, abandoned.clone())));
                match silence.as_mut().poll(cx) {
                    Poll::Ready(failure) => this.fail(failure),
                    Poll::Pending => Poll::Pending,
                }
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}

/// How long nothing may come, and how long all of it may take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    pub(super) silence: Duration,
    /// Of a protected request: its attempt ends then.
    pub(super) deadline: Option<Instant>,
}

impl Patience {
    /// Nothing has come until now; then it is over.
    pub(super) fn until(self) -> Instant {
        let silence = Instant::now() + self.silence;
        self.deadline.map_or(silence, |deadline| deadline.min(silence))
    }
}

/// Ends with what to make of it that nothing has come until then, or that the gateway has to end.
pub(super) async fn silence(until: Instant, mut abandoned: watch::Receiver<bool>) -> Failure {
    tokio::select! {
        () = tokio::time::sleep_until(until) => Failure::Timeout,
        _ = abandoned.wait_for(|is| *is) => Failure::Abandoned,
    }
}
