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

use super::limiter::Permit;
use super::pool::Lent;

/// As it comes; ends in an error if the upstream falls silent, or if the gateway has to end.
pub(crate) struct UpstreamBody {
    incoming: Incoming,
    /// Goes back to the pool when all of it has come.
    connection: Option<Lent>,
    permit: Option<Permit>,
    timeout: Duration,
    abandoned: watch::Receiver<bool>,
    /// Since nothing came.
    silence: Option<Pin<Box<dyn Future<Output = Failure> + Send>>>,
}

impl UpstreamBody {
    pub(super) fn new(
        incoming: Incoming,
        connection: Option<Lent>,
        permit: Permit,
        timeout: Duration,
        abandoned: watch::Receiver<bool>,
    ) -> Self {
        let mut body = Self { incoming, connection, permit: Some(permit), timeout, abandoned, silence: None };
        if body.incoming.is_end_stream() {
            body.has_come();
        }
        body
    }

    fn has_come(&mut self) {
        self.permit = None;
        if let Some(connection) = self.connection.take() {
            connection.give_back();
        }
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
        match Pin::new(&mut this.incoming).poll_frame(cx) {
            Poll::Ready(Some(Ok(frame))) => {
                this.silence = None;
                if this.incoming.is_end_stream() {
                    this.has_come();
                }
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(Some(Err(_))) => this.fail(Failure::Truncated),
            Poll::Ready(None) => {
                this.has_come();
                Poll::Ready(None)
            }
            Poll::Pending => {
                let (timeout, abandoned) = (this.timeout, &this.abandoned);
                let silence =
                    this.silence.get_or_insert_with(|| Box::pin(silence(timeout, abandoned.clone())));
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

/// Ends with what to make of it that nothing has come for so long, or that the gateway has to end.
pub(super) async fn silence(timeout: Duration, mut abandoned: watch::Receiver<bool>) -> Failure {
    tokio::select! {
        () = tokio::time::sleep(timeout) => Failure::Timeout,
        _ = abandoned.wait_for(|is| *is) => Failure::Abandoned,
    }
}
