//! An effect over HTTP: what a provider is told of a job, and what its answer means.
//!
//! **Invariant:** only an answer that a condition covers is *delivered* or *refused*. Everything else is tried again, under the same key.

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use oncegate_core::fingerprint::Pointer;
use oncegate_engine::{Patience, Sent};

use super::answer::Build;
use super::condition::{Condition, Found, any};
use super::document::Document;
use super::probe::{ProbeAnswer, Question, Target, reference};
use super::template::{HeaderTemplate, Inserted};
use super::why::Why;
use crate::config::Authorities;

/// Whoever answers so says something of himself, and nothing of the job.
const OUT_OF_ORDER: u16 = 503;

/// How a job is delivered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpEffect {
    /// Which jobs are its.
    pub name: String,
    /// To whom.
    pub target: Target,
    /// How.
    pub method: http::Method,
    /// With which headers.
    pub headers: Vec<(HeaderName, HeaderTemplate)>,
    /// The header that carries the downstream key.
    pub key_header: HeaderName,
    /// What is said, with insertions of the job's payload; `None`: the payload as it is.
    pub body: Option<Inserted>,
    /// Who may vouch for the certificate of the server, besides those who may anyway.
    pub tls_ca: Option<Authorities>,
    /// The largest answer that is read.
    pub body_bytes_max: u64,
    /// One of these holds: the provider has done it.
    pub delivered: Vec<Condition>,
    /// One of these holds, and none of the above: it is tried again.
    pub later: Vec<Condition>,
    /// One of these holds, and none of the above: the provider will not do it.
    pub refused: Vec<Condition>,
    /// Where the provider's own name for it stands.
    pub reference: Option<Pointer>,
    /// What clients are told, where a job's answer is its record's.
    pub answer: Option<Build>,
    /// How long, and how often.
    pub patience: Patience,
    /// How old a job becomes while the provider is out of order.
    pub outage: Duration,
}

impl HttpEffect {
    /// The request that delivers a job.
    pub fn order(&self, payload: &[u8], downstream_key: &str) -> Result<(Question, Bytes), String> {
        let mut headers = HeaderMap::with_capacity(self.headers.len() + 3);
        headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        for (name, value) in &self.headers {
            let value = value.fixed().ok_or_else(|| format!("the header {name} has a variable"))?;
            headers.insert(name.clone(), value);
        }
        let key = HeaderValue::from_str(downstream_key).map_err(|error| error.to_string())?;
        headers.insert(self.key_header.clone(), key);
        let body = match &self.body {
            None => payload.to_vec(),
            Some(text) => {
                let found = Found {
                    status: None,
                    content_type: None,
                    body: payload,
                    document: Document::read(payload),
                };
                text.json(&found).map_err(|why| format!("the job's payload: {why}"))?.into_bytes()
            }
        };
        Ok((Question { target: self.target.clone(), method: self.method.clone(), headers }, body.into()))
    }

    /// What an answer says of the delivery.
    #[must_use]
    pub fn sent(&self, answer: &ProbeAnswer<'_>, now: SystemTime) -> Sent {
        let found = Found {
            status: Some(answer.status),
            content_type: answer.headers.get(header::CONTENT_TYPE).map(HeaderValue::as_bytes),
            body: answer.body,
            document: Document::read(answer.body),
        };
        let later = |words: &str| {
            let (after, why) = (retry_after(answer.headers, now), format!("status {}{words}", answer.status));
            match answer.status {
                OUT_OF_ORDER => Sent::Unreachable { after, why: why.into() },
                _ => Sent::Later { after, why: why.into() },
            }
        };
        if u64::try_from(answer.body.len()).is_ok_and(|bytes| bytes > self.body_bytes_max) {
            return later(", with more than body_bytes_max");
        }
        match self.judged(&found) {
            Ok(Some(sent)) => sent,
            Ok(None) => later(""),
            Err(why) => later(&format!(": {why}")),
        }
    }

    fn judged(&self, found: &Found<'_>) -> Result<Option<Sent>, Why> {
        if any(&self.delivered, found)? {
            // It is done, whatever can be read of it.
            let reference = reference(self.reference.as_ref(), found).ok().flatten();
            let answer = self.answer.as_ref().and_then(|build| build.answer(found).ok()).map(Box::new);
            return Ok(Some(Sent::Delivered { reference, answer }));
        }
        if any(&self.later, found)? || !any(&self.refused, found)? {
            return Ok(None);
        }
        Ok(Some(Sent::Refused(format!("status {}", found.status.unwrap_or_default()).into())))
    }
}

/// A number of seconds, or a moment.
fn retry_after(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let text = headers.get(header::RETRY_AFTER)?.to_str().ok()?.trim();
    if let Ok(seconds) = text.parse() {
        return Some(Duration::from_secs(seconds));
    }
    Some(httpdate::parse_http_date(text).ok()?.duration_since(now).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_after_is_seconds_or_a_moment() {
        let now = httpdate::parse_http_date("Mon, 16 Nov 2026 12:00:00 GMT").unwrap();
        for (text, expected) in [
            ("120", Some(120)),
            (" 5 ", Some(5)),
            ("Mon, 16 Nov 2026 12:01:00 GMT", Some(60)),
            ("Mon, 16 Nov 2026 11:00:00 GMT", Some(0)),
            ("soon", None),
            ("-1", None),
        ] {
            let headers = HeaderMap::from_iter([(header::RETRY_AFTER, HeaderValue::from_static(text))]);
            assert_eq!(retry_after(&headers, now), expected.map(Duration::from_secs), "{text:?}");
        }
    }
}
