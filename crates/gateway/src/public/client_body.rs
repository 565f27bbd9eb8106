//! A client's body, on its way in. A client that falls silent does not hold its place for ever.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use oncegate_tower::BoxError;
use tokio::time::{Instant, Sleep};

/// As it comes, without trailers; ends in an error if nothing comes for too long.
pub(crate) struct ClientBody {
    incoming: Incoming,
    patience: Duration,
    silence: Option<Pin<Box<Sleep>>>,
    progress: Progress,
}

/// How far a client's body has come.
#[derive(Clone, Debug)]
pub(crate) struct Progress(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    moved_at: Instant,
    fault: Option<BodyFault>,
}

/// Why a client's body did not come whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyFault {
    /// Its chunks or trailers are not valid HTTP.
    Malformed,
    /// The client fell silent or hung up.
    BrokenOff,
}

impl Progress {
    /// When the body last moved: the time to wait for an answer begins then.
    pub(crate) fn last(&self) -> Instant {
        self.state().moved_at
    }

    /// What is wrong with the body, as far as it was read.
    pub(crate) fn fault(&self) -> Option<BodyFault> {
        self.state().fault
    }

    fn moved(&self) {
        self.state().moved_at = Instant::now();
    }

    fn failed(&self, error: BoxError) -> BoxError {
        let is_malformed = oncegate_tower::is_malformed(&error);
        self.state().fault = Some(if is_malformed { BodyFault::Malformed } else { BodyFault::BrokenOff });
        error
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ClientBody {
    pub(crate) fn new(incoming: Incoming, patience: Duration) -> Self {
        let state = State { moved_at: Instant::now(), fault: None };
        let progress = Progress(Arc::new(Mutex::new(state)));
        Self { incoming, patience, silence: None, progress }
    }

    pub(super) fn progress(&self) -> Progress {
        self.progress.clone()
    }
}

impl Body for ClientBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = &mut *self;
        while let Poll::Ready(frame) = Pin::new(&mut this.incoming).poll_frame(cx) {
            this.silence = None;
            this.progress.moved();
            // Trailers would reach an HTTP/2 upstream past every rule for headers.
            if matches!(&frame, Some(Ok(frame)) if frame.is_trailers()) {
                continue;
            }
            return Poll::Ready(frame.map(|frame| frame.map_err(|error| this.progress.failed(error.into()))));
        }
        let patience = this.patience;
        let silence = this.silence.get_or_insert_with(|| Box::pin(tokio::time::sleep(patience)));
        match silence.as_mut().poll(cx) {
            Poll::Ready(()) => {
                let error = format!("nothing came for {patience:?}").into();
                Poll::Ready(Some(Err(this.progress.failed(error))))
            }
            Poll::Pending => Poll::Pending,
        }
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}
