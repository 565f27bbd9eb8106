//! One try: a request goes out once, and its answer is read whole, or it is said whether the request may have got through.
//!
//! Not here: what an answer means (`judge`), and whether there is another try (`course`).

use std::error::Error;
use std::fmt;
use std::time::Duration;

use bytes::Bytes;
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

/// Sends it, for no longer than this. Redirects are answers: what is behind them has another record.
pub(crate) async fn send(http: &reqwest::Client, sending: Sending, timeout: Duration) -> Exchange {
    let Sending { method, url, headers, body } = sending;
    let mut request = http.request(method, url).headers(headers).timeout(timeout);
    if let Some(body) = body {
        request = request.body(body);
    }
    match whole(request).await {
        Ok(answer) => Exchange::Answer(answer),
        Err(error) => Exchange::NoAnswer(NoAnswer::because(error)),
    }
}

async fn whole(request: reqwest::RequestBuilder) -> reqwest::Result<Answer> {
    let mut response = request.send().await?;
    let status = response.status();
    let headers = std::mem::take(response.headers_mut());
    let body = response.bytes().await?;
    Ok(Answer { status, headers, body: Some(body) })
}

/// How a try ended without an answer.
#[derive(Debug)]
pub struct NoAnswer {
    is_sent: bool,
    source: Option<reqwest::Error>,
}

impl NoAnswer {
    /// The caller gave it up in the middle.
    pub(crate) const fn given_up() -> Self {
        Self { is_sent: true, source: None }
    }

    /// No connection.
    #[cfg(test)]
    pub(crate) const fn of_nobody() -> Self {
        Self { is_sent: false, source: None }
    }

    fn because(error: reqwest::Error) -> Self {
        // No address, no connection or no TLS handshake: no byte of the request has left.
        let is_sent = !error.is_connect() && !error.is_builder();
        // A URL may have secrets in its query.
        Self { is_sent, source: Some(error.without_url()) }
    }

    /// Whether the request may have been sent: false only where it is proved that nothing was.
    #[must_use]
    pub const fn is_sent(&self) -> bool {
        self.is_sent
    }
}

impl fmt::Display for NoAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match (self.is_sent, &self.source) {
            (false, _) => "no connection was made, and nothing was sent",
            (true, Some(_)) => "no whole answer came, and the request may have been executed",
            (true, None) => "the try was given up, and the request may have been executed",
        })
    }
}

impl Error for NoAnswer {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_ref().map(|error| error as _)
    }
}
