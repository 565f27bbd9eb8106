//! A client's body, on its way in: while it is waited for it has a place, and it must come fast
//! enough.

mod pace;

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use oncegate_core::problem::{Code, Problem};
use oncegate_tower::{BoxError, RefusedBody};
use tokio::time::{Instant, Sleep};

use super::PeerUsage;
use crate::proxy::{BodyPlace, Limiter};

use pace::Pace;
pub(crate) use pace::{BodyRules, TooSlow};

/// As it comes, without trailers; ends in an error if it comes too slowly, or if there is no
/// place to wait for it.
pub(crate) struct ClientBody {
    incoming: Incoming,
    timer: Option<Pin<Box<Sleep>>>,
    progress: Progress,
}

/// How far a client's body is; shared with the proxy, which streams it.
#[derive(Clone)]
pub(crate) struct Progress(Arc<Mutex<State>>);

/// On the heap, because futures are as large as the bodies that they move.
struct State {
    pace: Pace,
    /// Has the places for bodies, where there is a limit.
    limiter: Option<Arc<Limiter>>,
    /// When it last moved: the patience with the upstream begins anew then.
    last: Instant,
    peer: Arc<PeerUsage>,
    /// Held while more is to come.
    place: Option<BodyPlace>,
    fault: Option<BodyFault>,
}

/// Why a body was given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyFault {
    TooSlow(TooSlow),
    /// Too many bodies are waited for.
    NoPlace,
    /// Its chunks or trailers are not valid HTTP.
    Malformed,
    /// The client hung up.
    BrokenOff,
}

impl Progress {
    /// When the body last moved: the time to wait for an answer begins then.
    pub(crate) fn last(&self) -> Instant {
        self.state().last
    }

    /// The client whose body it is.
    pub(crate) fn peer(&self) -> Arc<PeerUsage> {
        Arc::clone(&self.state().peer)
    }

    /// Gives the body a place, to be held until all of it has come.
    pub(crate) fn hold(&self, place: BodyPlace) {
        self.state().place = Some(place);
    }

    /// Why it was given up, if it was.
    pub(crate) fn fault(&self) -> Option<BodyFault> {
        self.state().fault
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ClientBody {
    /// Without a limiter it needs no place.
    pub(crate) fn new(
        incoming: Incoming,
        rules: BodyRules,
        limiter: Option<Arc<Limiter>>,
        peer: Arc<PeerUsage>,
    ) -> Self {
        let now = Instant::now();
        let pace = Pace::new(rules, now);
        let state = State { pace, limiter, last: now, peer, place: None, fault: None };
        Self { incoming, timer: None, progress: Progress(Arc::new(Mutex::new(state))) }
    }

    pub(super) fn progress(&self) -> Progress {
        self.progress.clone()
    }
}

impl State {
    /// Some of the body has come, or all of it.
    fn came(
        &mut self,
        frame: Option<&Result<Frame<Bytes>, BoxError>>,
        is_whole: bool,
    ) -> Result<(), BodyFault> {
        if is_whole {
            self.place = None;
        }
        let bytes = match frame {
            None => return Ok(()),
            Some(Ok(frame)) => frame.data_ref().map_or(0, Bytes::len),
            Some(Err(error)) => {
                let is_malformed = oncegate_tower::is_malformed(error);
                self.fault = Some(if is_malformed { BodyFault::Malformed } else { BodyFault::BrokenOff });
                0
            }
        };
        let now = Instant::now();
        self.last = now;
        if is_whole { Ok(()) } else { self.pace.came(bytes, now).map_err(BodyFault::TooSlow) }
    }

    /// More has to be waited for: until when.
    fn wait(&mut self) -> Result<Instant, BodyFault> {
        if let Some(limiter) = &self.limiter
            && self.place.is_none()
        {
            self.place = Some(limiter.wait_for_body().ok_or(BodyFault::NoPlace)?);
        }
        Ok(self.pace.wait(Instant::now()))
    }

    fn fail(&mut self, fault: BodyFault) -> BoxError {
        (self.place, self.fault) = (None, Some(fault));
        let consequence = "Nothing was executed, and a key is unused. Send the request again with the same key, \
                           over a faster connection or with a smaller body.";
        Box::new(RefusedBody(fault.problem(consequence)))
    }
}

impl BodyFault {
    /// What the client is told, with what became of its request.
    pub(crate) fn problem(self, consequence: &str) -> Problem {
        match self {
            Self::NoPlace => Problem::overloaded(),
            Self::Malformed => {
                let words = format!(
                    "The chunks or trailers of the body are not valid HTTP, so that another server might read \
                     another request. {consequence}"
                );
                Problem::new(Code::RequestMalformed, words)
            }
            Self::BrokenOff => {
                Problem::new(Code::RequestInvalid, format!("The body broke off. {consequence}"))
            }
            Self::TooSlow(slow) => Problem::new(Code::BodyTooSlow, format!("{slow}. {consequence}")),
        }
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
        let mut polled = Pin::new(&mut this.incoming).poll_frame(cx);
        // Trailers would reach an HTTP/2 upstream past every rule for headers.
        while matches!(&polled, Poll::Ready(Some(Ok(frame))) if frame.is_trailers()) {
            polled = Pin::new(&mut this.incoming).poll_frame(cx);
        }
        let mut state = this.progress.state();
        if let Poll::Ready(frame) = polled {
            let frame = frame.map(|frame| frame.map_err(BoxError::from));
            let is_whole = frame.is_none() || this.incoming.is_end_stream();
            return Poll::Ready(match state.came(frame.as_ref(), is_whole) {
                Ok(()) => frame,
                Err(fault) => Some(Err(state.fail(fault))),
            });
        }
        let until = match state.wait() {
            Ok(until) => until,
            Err(fault) => return Poll::Ready(Some(Err(state.fail(fault)))),
        };
        let timer = this.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(until)));
        if timer.deadline() != until {
            timer.as_mut().reset(until);
        }
        match timer.as_mut().poll(cx) {
            Poll::Ready(()) => {
                let slow = state.pace.fault(until);
                Poll::Ready(Some(Err(state.fail(BodyFault::TooSlow(slow)))))
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

impl Drop for ClientBody {
    fn drop(&mut self) {
        // What is no longer read needs no place, whatever still knows of its progress.
        self.progress.state().place = None;
    }
}
