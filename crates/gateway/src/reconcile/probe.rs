//! A probe: what is asked about a record, and what the answer means.

use std::fmt;
use std::time::Duration;

use http::Uri;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::uri::PathAndQuery;
use oncegate_core::fingerprint::Pointer;
use oncegate_core::policy::ForwardKey;
use oncegate_core::response::Answer;

use super::about::About;
use super::answer::Build;
use super::condition::{Condition, Found, any};
use super::document::Document;
use super::life::Proof;
use super::template::{HeaderTemplate, UrlTemplate, Variable};
use super::why::Why;
use crate::config::Authorities;

/// How to find out, over HTTP, what became of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    /// Where to ask.
    pub url: UrlTemplate,
    /// How.
    pub method: Method,
    /// With which headers.
    pub headers: Vec<(HeaderName, HeaderTemplate)>,
    /// Who may vouch for the certificate of the server, besides those who may anyway.
    pub tls_ca: Option<Authorities>,
    /// How long the whole exchange may take.
    pub timeout: Duration,
    /// The largest body that is read.
    pub body_bytes_max: u64,
    /// One of these holds: it happened.
    pub happened: Vec<Condition>,
    /// One of these holds, and none of the above: it did not happen, if it was asked late enough.
    pub did_not_happen: Vec<Condition>,
    /// One of these holds, and none of the above: not known, and in words.
    pub not_yet: Vec<Condition>,
    /// How it is known which life a *happened* is of.
    pub proof: Proof,
    /// What is stored.
    pub answer: Build,
    /// Where the provider's own name for the effect stands.
    pub reference: Option<Pointer>,
}

/// Methods that change nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// With a body to look at.
    Get,
    /// Without.
    Head,
}

/// A request, ready to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// To whom, and for what.
    pub target: Target,
    /// How.
    pub method: http::Method,
    /// All headers but those of the connection. Those with secrets are marked as sensitive.
    pub headers: HeaderMap,
}

/// Who is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// The upstream; its own base path goes before this one.
    Upstream(PathAndQuery),
    /// Somebody else.
    Elsewhere(Uri),
}

/// Why there is nothing to ask. The record can be settled by a webhook or by an operator only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unaskable {
    /// There is nothing yet that stands for this variable.
    Missing(Variable),
    /// This variable's value, in the path, would lead out of it.
    Climbs(Variable),
    /// What came out is not a URL.
    NotAUrl,
    /// A value that no header may hold.
    NotAHeader(HeaderName),
}

impl fmt::Display for Unaskable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing(variable) => {
                write!(f, "the probe needs {{{}}}, and this record has none", variable.name())
            }
            Self::Climbs(variable) => write!(
                f,
                "{{{}}} of this record would lead to another path; put it into the probe's query instead",
                variable.name()
            ),
            Self::NotAUrl => f.write_str("the probe's URL, filled with this record's values, is none"),
            Self::NotAHeader(name) => write!(f, "the probe's header {name} cannot hold this record's values"),
        }
    }
}

impl std::error::Error for Unaskable {}

impl Probe {
    /// Whether the question holds this variable.
    #[must_use]
    pub fn asks_by(&self, variable: Variable) -> bool {
        self.url.names(variable) || self.headers.iter().any(|(_, text)| text.names(variable))
    }

    /// Whether the question can only mean one life of a key that was forwarded in this way.
    #[must_use]
    pub fn names_life(&self, forwarded: ForwardKey) -> bool {
        self.asks_by(Variable::Life)
            || (self.asks_by(Variable::ForwardedKey) && forwarded == ForwardKey::Derived)
    }

    /// The request that asks about a record.
    pub fn question(&self, about: &About) -> Result<Question, Unaskable> {
        let url = self.url.fill(about)?;
        let target = if url.starts_with('/') {
            Target::Upstream(url.parse().map_err(|_| Unaskable::NotAUrl)?)
        } else {
            Target::Elsewhere(url.parse().map_err(|_| Unaskable::NotAUrl)?)
        };
        let mut headers = HeaderMap::with_capacity(self.headers.len() + 2);
        headers.insert(header::ACCEPT, HeaderValue::from_static("application/json"));
        headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        for (name, value) in &self.headers {
            headers.insert(name.clone(), value.fill(name, about)?);
        }
        let method = match self.method {
            Method::Get => http::Method::GET,
            Method::Head => http::Method::HEAD,
        };
        Ok(Question { target, method, headers })
    }
}

/// What a probe was told.
#[derive(Clone, Copy, Debug)]
pub struct ProbeAnswer<'a> {
    /// The status.
    pub status: u16,
    /// The headers.
    pub headers: &'a HeaderMap,
    /// The whole body, or more of it than the probe's limit.
    pub body: &'a [u8],
}

/// What it means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Judgement {
    /// It happened.
    Happened {
        /// What clients are told.
        answer: Answer,
        /// The provider's name for the effect.
        reference: Option<Box<str>>,
    },
    /// There is nothing. Whether that means that it did not happen is for the horizon to say.
    DidNotHappen,
    /// Nothing was learnt.
    NotKnown {
        /// Why.
        why: Why,
    },
}

/// What an answer says about a record.
#[must_use]
pub fn judge(probe: &Probe, answer: &ProbeAnswer<'_>, about: &About) -> Judgement {
    judged(probe, answer, about).unwrap_or_else(|why| Judgement::NotKnown { why })
}

fn judged(probe: &Probe, answer: &ProbeAnswer<'_>, about: &About) -> Result<Judgement, Why> {
    if u64::try_from(answer.body.len()).is_ok_and(|bytes| bytes > probe.body_bytes_max) {
        return Err(Why::TooLarge);
    }
    let found = Found {
        status: Some(answer.status),
        content_type: answer.headers.get(header::CONTENT_TYPE).map(HeaderValue::as_bytes),
        body: answer.body,
        document: Document::read(answer.body),
    };
    if any(&probe.happened, &found)? {
        // The probe was checked against the present policy; the record may have begun under another.
        if probe.proof == Proof::Name && !probe.names_life(about.forward_key) {
            return Err(Why::LifeNotAsked);
        }
        if !probe.proof.claim(&found)?.is_of(about) {
            return Err(Why::EarlierLife);
        }
        let answer = probe.answer.answer(&found)?.bounded(about.answer_bytes_max);
        return Ok(Judgement::Happened { answer, reference: reference(probe.reference.as_ref(), &found)? });
    }
    if any(&probe.did_not_happen, &found)? {
        return Ok(Judgement::DidNotHappen);
    }
    Err(if any(&probe.not_yet, &found)? { Why::NotYet } else { Why::Undecided })
}

/// The longest name that is kept.
const REFERENCE_BYTES_MAX: usize = 512;

/// The provider's name for the effect; one that is not there, or is no name, is none.
pub(super) fn reference(pointer: Option<&Pointer>, found: &Found<'_>) -> Result<Option<Box<str>>, Why> {
    let Some(pointer) = pointer else { return Ok(None) };
    let name = found.document?.part(pointer)?.map(super::document::Part::name).transpose()?.flatten();
    Ok(name.filter(|name| (1..=REFERENCE_BYTES_MAX).contains(&name.len())).map(Box::from))
}
