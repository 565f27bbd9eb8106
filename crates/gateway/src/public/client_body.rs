//! A client's body, on its way in. A client that falls silent does not hold its place for ever.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use oncegate_tower::BoxError;
use tokio::time::{Instant, Sleep};

/// As it comes; ends in an error if nothing comes for too long.
pub(crate) struct ClientBody {
    incoming: Incoming,
    patience: Duration,
    silence: Option<Pin<Box<Sleep>>>,
    progress: Progress,
}

/// When a client's body last moved; whoever waits for an answer waits from then on.
#[derive(Clone, Debug)]
pub(crate) struct Progress(Arc<Mutex<Instant>>);

impl Progress {
    pub(crate) fn last(&self) -> Instant {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn moved(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }
}

impl ClientBody {
    pub(crate) fn new(incoming: Incoming, patience: Duration) -> Self {
        let progress = Progress(Arc::new(Mutex::new(Instant::now())));
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
        if let Poll::Ready(frame) = Pin::new(&mut this.incoming).poll_frame(cx) {
            this.silence = None;
            this.progress.moved();
            return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
        }
        let patience = this.patience;
        let silence = this.silence.get_or_insert_with(|| Box::pin(tokio::time::sleep(patience)));
        match silence.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(Some(Err(format!("nothing came for {patience:?}").into()))),
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
