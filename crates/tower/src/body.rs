//! Bodies: passing through untouched, or whole.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use oncegate_core::response::{Answer, Response};
use pin_project_lite::pin_project;

use crate::complete::NoBody;

/// Any error.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

pin_project! {
    /// The body of a request on its way to the inner service: as it comes, or, of a protected one, whole.
    pub struct RequestBody<B> {
        #[pin]
        part: Part<B>,
    }
}

pin_project! {
    /// The body of an answer on its way to the client: as it comes; kept, replayed or made by the layer itself; or too large to keep.
    pub struct ResponseBody<B> {
        #[pin]
        part: Part<B>,
    }
}

pin_project! {
    #[project = Projected]
    enum Part<B> {
        Passing {
            #[pin]
            body: B,
        },
        Whole {
            bytes: Option<Bytes>,
        },
        // What was read already, then the rest as it comes.
        Prefixed {
            first: Option<Bytes>,
            rest: Pin<Box<B>>,
        },
    }
}

impl<B> RequestBody<B> {
    pub(crate) const fn passing(body: B) -> Self {
        Self { part: Part::Passing { body } }
    }

    /// A body that was read already.
    #[must_use]
    pub fn whole(bytes: Bytes) -> Self {
        Self { part: Part::Whole { bytes: some_if_any(bytes) } }
    }

    /// No body.
    #[must_use]
    pub const fn empty() -> Self {
        Self { part: Part::Whole { bytes: None } }
    }
}

impl RequestBody<NoBody> {
    /// The same for an inner service that takes the bodies of clients: a stored request has none, it is whole.
    #[must_use]
    pub fn for_clients<B>(self) -> RequestBody<B> {
        match self.part {
            Part::Whole { bytes } => RequestBody { part: Part::Whole { bytes } },
            Part::Passing { .. } | Part::Prefixed { .. } => RequestBody { part: Part::Whole { bytes: None } },
        }
    }
}

impl<B> ResponseBody<B> {
    pub(crate) const fn passing(body: B) -> Self {
        Self { part: Part::Passing { body } }
    }

    pub(crate) fn whole(bytes: Bytes) -> Self {
        Self { part: Part::Whole { bytes: some_if_any(bytes) } }
    }

    pub(crate) fn prefixed(first: Bytes, rest: Pin<Box<B>>) -> Self {
        Self { part: Part::Prefixed { first: some_if_any(first), rest } }
    }

    /// The bytes of a stored answer, shared with it.
    pub(crate) fn of_answer(answer: Arc<Answer>) -> Self {
        Self::whole(Bytes::from_owner(Stored(answer)))
    }
}

/// Lends a stored body to a response.
struct Stored(Arc<Answer>);

impl AsRef<[u8]> for Stored {
    fn as_ref(&self) -> &[u8] {
        match &*self.0 {
            Answer::Kept(Response { body, .. }) => body,
            Answer::NotKept { .. } => &[],
        }
    }
}

type Polled = Poll<Option<Result<Frame<Bytes>, BoxError>>>;

impl<B> Body for RequestBody<B>
where
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Polled {
        self.project().part.poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.part.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.part.size_hint()
    }
}

impl<B> Body for ResponseBody<B>
where
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Polled {
        self.project().part.poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.part.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.part.size_hint()
    }
}

impl<B> Part<B>
where
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Polled {
        match self.project() {
            Projected::Passing { body } => body.poll_frame(cx).map_err(Into::into),
            Projected::Whole { bytes } => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Projected::Prefixed { first, rest } => match first.take() {
                Some(bytes) => Poll::Ready(Some(Ok(Frame::data(bytes)))),
                None => rest.as_mut().poll_frame(cx).map_err(Into::into),
            },
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Passing { body } => body.is_end_stream(),
            Self::Whole { bytes } => bytes.is_none(),
            Self::Prefixed { first, rest } => first.is_none() && rest.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Passing { body } => body.size_hint(),
            Self::Whole { bytes } => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
            }
            Self::Prefixed { first, rest } => {
                let read = first.as_ref().map_or(0, |first| first.len() as u64);
                let rest = rest.size_hint();
                let mut hint = SizeHint::new();
                hint.set_lower(rest.lower().saturating_add(read));
                if let Some(upper) = rest.upper().and_then(|upper| upper.checked_add(read)) {
                    hint.set_upper(upper);
                }
                hint
            }
        }
    }
}

fn some_if_any(bytes: Bytes) -> Option<Bytes> {
    (!bytes.is_empty()).then_some(bytes)
}
