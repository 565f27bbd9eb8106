//! One try: a request goes out once, and its answer is read whole, or it is said whether the request may have got through.
//!
//! Not here: what an answer means (`judge`), and whether there is another try (`course`).

use std::error::Error;
use std::fmt;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::{CONTENT_TYPE, HeaderName};
use http::{HeaderMap, Method};
use reqwest::Url;

use crate::answer::Answer;

/// The header that carries the key.
pub(crate) const KEY: HeaderName = HeaderName::from_static("idempotency-key");
const PREFER: HeaderName = HeaderName::from_static("prefer");

/// What goes out, the same bytes each time.
#[derive(Clone, Debug)]
pub(crate) struct Sending {
    pub(crate) method: Method,
    pub(crate) url: Url,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Option<Bytes>,
}

impl Sending {
    /// A question about accepted work: whoever asks is the same, and nothing is asked for.
    pub(crate) fn question(&self, url: &Url) -> Self {
        let mut headers = self.headers.clone();
        for name in [KEY, CONTENT_TYPE, PREFER] {
            headers.remove(name);
        }
        Self { method: Method::GET, url: url.clone(), headers, body: None }
    }
}

/// How a try ended.
#[derive(Debug)]
pub(crate) enum Exchange {
    Answer(Answer),
    NoAnswer(NoAnswer),
}

/// How long a try may take, and how long its answer may be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub(crate) timeout: Duration,
    pub(crate) answer_bytes_max: usize,
}

/// Sends it, within these bounds. Redirects are answers: what is behind them has another record.
pub(crate) async fn send(http: &reqwest::Client, sending: Sending, bounds: Bounds) -> Exchange {
    let Sending { method, url, headers, body } = sending;
    let mut request = http.request(method, url).headers(headers).timeout(bounds.timeout);
    if let Some(body) = body {
        request = request.body(body);
    }
    match whole(request, bounds.answer_bytes_max).await {
        Ok(answer) => Exchange::Answer(answer),
        Err(error) => Exchange::NoAnswer(error),
    }
}

async fn whole(request: reqwest::RequestBuilder, bytes_max: usize) -> Result<Answer, NoAnswer> {
    let mut response = request.send().await.map_err(NoAnswer::because)?;
    let status = response.status();
    let headers = std::mem::take(response.headers_mut());
    let mut body = BytesMut::new();
    while let Some(piece) = response.chunk().await.map_err(NoAnswer::because)? {
        if body.len().saturating_add(piece.len()) > bytes_max {
            return Err(NoAnswer::too_large());
        }
        body.extend_from_slice(&piece);
    }
    Ok(Answer { status, headers, body: Some(body.freeze()) })
}

/// How a try ended without an answer.
#[derive(Debug)]
pub struct NoAnswer {
    how: How,
    source: Option<reqwest::Error>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    NotSent,
    BrokenOff,
    GivenUp,
    TooLarge,
}

impl NoAnswer {
    /// The caller gave it up in the middle.
    pub(crate) const fn given_up() -> Self {
        Self { how: How::GivenUp, source: None }
    }

    /// One came, and is longer than may be read.
    pub(crate) const fn too_large() -> Self {
        Self { how: How::TooLarge, source: None }
    }

    /// No connection.
    #[cfg(test)]
    pub(crate) const fn of_nobody() -> Self {
        Self { how: How::NotSent, source: None }
    }

    fn because(error: reqwest::Error) -> Self {
        // No address, no connection or no TLS handshake: no byte of the request has left.
        let how = if error.is_connect() || error.is_builder() { How::NotSent } else { How::BrokenOff };
        // A URL may have secrets in its query.
        Self { how, source: Some(error.without_url()) }
    }

    /// Whether the request may have been sent: false only where it is proved that nothing was.
    #[must_use]
    pub const fn is_sent(&self) -> bool {
        !matches!(self.how, How::NotSent)
    }

    pub(crate) const fn is_too_large(&self) -> bool {
        matches!(self.how, How::TooLarge)
    }
}

impl fmt::Display for NoAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.how {
            How::NotSent => "no connection was made, and nothing was sent",
            How::BrokenOff => "no whole answer came, and the request may have been executed",
            How::GivenUp => "the try was given up, and the request may have been executed",
            How::TooLarge => {
                "the answer is longer than `answer_bytes_max` and was not read, and the request may have been executed"
            }
        })
    }
}

impl Error for NoAnswer {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_ref().map(|error| error as _)
    }
}
