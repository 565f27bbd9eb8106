//! One operation: what is asked for, and the loop that asks.
//!
//! **Invariant:** an operation has one key, made and kept before the first byte leaves, whatever the answers are.

use std::error::Error;
use std::fmt;
use std::future::{Future, pending};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::{Either, select};
use http::header::{AUTHORIZATION, CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, HOST, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri};
use reqwest::Url;
use serde::Serialize;

use crate::backoff::Limits;
use crate::client::{Client, Inner, Tls};
use crate::course::{Course, Next};
use crate::judge::Trace;
use crate::keep::{AnyKeep, Begun, Keep};
use crate::key::Key;
use crate::outcome::{Asked, Outcome, Why};
use crate::send::{self, NoAnswer, Sending, send};

/// An operation that is being put together, by [`Client::post`] or [`Client::request`].
///
/// The same bytes are sent each time it is asked again.
#[must_use = "nothing is sent before it is run"]
#[derive(Debug)]
pub struct Operation<'c, K> {
    client: &'c Client<K>,
    method: Method,
    url: String,
    headers: HeaderMap,
    body: Option<Bytes>,
    which: Which,
    limits: Limits,
    wrong: Option<Unsendable>,
}

/// Which operation it is.
#[derive(Debug)]
enum Which {
    New,
    Named(String),
    Begun(Key),
}

impl<'c, K> Operation<'c, K> {
    pub(crate) fn new(client: &'c Client<K>, method: Method, url: &str, limits: Limits) -> Self {
        let (url, headers) = (url.to_owned(), HeaderMap::new());
        Self { client, method, url, headers, body: None, which: Which::New, limits, wrong: None }
    }

    /// Adds a header. Who asks must be the same each time: a scope may hang on it.
    pub fn header(mut self, name: &str, value: &str) -> Self {
        match (HeaderName::try_from(name), HeaderValue::try_from(value)) {
            (Ok(name), Ok(value)) => self.add(name, value),
            _ => self.refuse(Unsendable::Header { name: name.to_owned() }),
        }
        self
    }

    /// The body, as it is.
    pub fn body(mut self, body: impl Into<Bytes>) -> Self {
        if self.body.replace(body.into()).is_some() {
            self.refuse(Unsendable::TwoBodies);
        }
        self
    }

    /// The body, as JSON.
    pub fn json(mut self, value: &impl Serialize) -> Self {
        self.headers.entry(CONTENT_TYPE).or_insert(HeaderValue::from_static("application/json"));
        match serde_json::to_vec(value) {
            Ok(body) => self.body(body),
            Err(error) => {
                self.refuse(Unsendable::Json(error));
                self
            }
        }
    }

    /// Goes on with an operation that was begun earlier, under this key.
    pub fn key(self, key: Key) -> Self {
        self.which(Which::Begun(key))
    }

    /// How long and how often to ask this time.
    pub const fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    fn which(mut self, which: Which) -> Self {
        if !matches!(std::mem::replace(&mut self.which, which), Which::New) {
            self.refuse(Unsendable::TwoKeys);
        }
        self
    }

    fn add(&mut self, name: HeaderName, mut value: HeaderValue) {
        if [CONNECTION, CONTENT_LENGTH, HOST, TRANSFER_ENCODING].contains(&name) {
            return self.refuse(Unsendable::OwnHeader { name });
        }
        if name == send::KEY {
            return self.refuse(Unsendable::KeyHeader);
        }
        value.set_sensitive(value.is_sensitive() || name == AUTHORIZATION);
        self.headers.append(name, value);
    }

    /// The first thing that is wrong is told.
    fn refuse(&mut self, wrong: Unsendable) {
        self.wrong.get_or_insert(wrong);
    }
}

impl<K: Keep> Operation<'_, K> {
    /// The caller's name for this one operation: with it the key is kept, and found again after a restart.
    ///
    /// `payment of order 17`, not `payment`: another operation needs another name.
    pub fn named(self, name: impl Into<String>) -> Self {
        self.which(Which::Named(name.into()))
    }
}

impl<K: AnyKeep> Operation<'_, K> {
    /// Asks until it is known what became of the operation, or the time is up. Fails only before anything is sent.
    ///
    /// # Dropped
    ///
    /// A future that is dropped in the middle says nothing, and the operation may have happened. One with a name goes on under its key when
    /// it is run again. To be told what is known so far, give it up by [`run_until`](Self::run_until).
    pub async fn run(self) -> Result<Outcome, NotBegun> {
        self.run_until(pending()).await
    }

    /// As [`run`](Self::run), and gives up when `cancel` is ready; the outcome says what is known until then.
    pub async fn run_until(self, cancel: impl Future<Output = ()>) -> Result<Outcome, NotBegun> {
        let inner = Arc::clone(&self.client.inner);
        let limits = self.limits;
        let (mut sending, which) = self.prepared()?;
        let (Begun { key, trace }, name) = match which {
            Which::New => (Begun::fresh()?, None),
            Which::Named(name) => (inner.keep.key_of(&name).await?, Some(name)),
            Which::Begun(key) => (Begun { key, trace: Trace::Doubt }, None),
        };
        let line = HeaderValue::try_from(inner.key_form.line(&key));
        let line = line.map_err(|_| Unsendable::Header { name: send::KEY.to_string() })?;
        sending.headers.insert(send::KEY, line);
        let asked = Asked { key, name, attempts: 0 };
        let course = Course::new(asked, sending.url.clone(), limits, trace, inner.pace.now());
        Ok(ask(&inner, &sending, course, pin!(cancel)).await)
    }

    /// What would fail each time is refused here: later it would look like a failure on the way.
    fn prepared(self) -> Result<(Sending, Which), Unsendable> {
        let Self { client, method, url, headers, body, which, wrong, .. } = self;
        if let Some(wrong) = wrong {
            return Err(wrong);
        }
        let url = sendable(&url, client.inner.tls)?;
        Ok((Sending { method, url, headers, body }, which))
    }
}

fn sendable(text: &str, tls: Tls) -> Result<Url, Unsendable> {
    let not_a_url = || Unsendable::Url { url: text.to_owned() };
    let url = Url::parse(text).map_err(|_| not_a_url())?;
    // First: other words would show the password.
    if !url.username().is_empty() || url.password().is_some() {
        return Err(Unsendable::Credentials);
    }
    if !matches!(url.scheme(), "http" | "https") || Uri::try_from(url.as_str()).is_err() {
        return Err(not_a_url());
    }
    if url.scheme() == "https" && tls == Tls::Missing {
        return Err(Unsendable::NoTls);
    }
    Ok(url)
}

/// The loop: waits, sends and takes note, until it is over or given up.
async fn ask<K>(
    inner: &Inner<K>,
    sending: &Sending,
    mut course: Course,
    mut cancel: Pin<&mut impl Future<Output = ()>>,
) -> Outcome {
    let mut wait = Duration::ZERO;
    loop {
        if let Some(why) = course.stop(inner.pace.now(), wait) {
            return course.give_up(why);
        }
        if let Either::Left(_) = select(cancel.as_mut(), inner.pace.wait(wait)).await {
            return course.give_up(Why::Cancelled);
        }
        let bounds = course.begin_try(inner.pace.now());
        let next = course.place().map_or_else(|| sending.clone(), |place| sending.question(place));
        let exchange = match select(cancel.as_mut(), pin!(send(&inner.http, next, bounds))).await {
            Either::Left(_) => return course.break_off(NoAnswer::given_up()),
            Either::Right((exchange, _)) => exchange,
        };
        match course.heard(exchange, inner.pace.date(), inner.pace.dice()) {
            Next::Over(outcome) => return outcome,
            Next::Wait(span) => wait = span,
        }
    }
}

/// Why an operation was not begun: nothing was sent.
#[derive(Debug)]
pub enum NotBegun {
    /// It cannot be sent as it is.
    Unsendable(Unsendable),
    /// Its key could not be kept or read.
    Keep(Box<dyn Error + Send + Sync>),
    /// The system has no random bits for a key.
    NoRandomness(getrandom::Error),
}

impl From<Unsendable> for NotBegun {
    fn from(wrong: Unsendable) -> Self {
        Self::Unsendable(wrong)
    }
}

impl fmt::Display for NotBegun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unsendable(wrong) => write!(f, "nothing was sent: {wrong}"),
            Self::Keep(error) => {
                write!(f, "nothing was sent, because the operation's key could not be kept: {error}")
            }
            Self::NoRandomness(error) => {
                write!(f, "nothing was sent, because no key could be made: {error}")
            }
        }
    }
}

impl Error for NotBegun {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Unsendable(wrong) => Some(wrong),
            Self::Keep(error) => Some(&**error),
            Self::NoRandomness(error) => Some(error),
        }
    }
}

/// What is wrong with a request that would fail each time.
#[derive(Debug)]
pub enum Unsendable {
    /// Not an http or https URL.
    Url {
        /// As it was given.
        url: String,
    },
    /// A URL with a user or a password in it.
    Credentials,
    /// https, and the client was built without.
    NoTls,
    /// A name or value that HTTP does not allow.
    Header {
        /// Its name.
        name: String,
    },
    /// A header that is the client's to set.
    OwnHeader {
        /// Its name.
        name: HeaderName,
    },
    /// The key, as a header.
    KeyHeader,
    /// Two bodies.
    TwoBodies,
    /// Two keys, or a name and a key.
    TwoKeys,
    /// A value that is no JSON.
    Json(serde_json::Error),
}

impl fmt::Display for Unsendable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Url { url } => write!(f, "{url:?} is not an http or https URL"),
            Self::Credentials => f.write_str("a URL must not have credentials in it; send them in a header"),
            Self::NoTls => f.write_str("https needs the feature `rustls`, or an HTTP client of your own"),
            Self::Header { name } => {
                write!(f, "the header {name:?} has characters in its name or value that HTTP does not allow")
            }
            Self::OwnHeader { name } => write!(f, "the header {name} is the client's to set"),
            Self::KeyHeader => {
                f.write_str("the key is the client's to make; to go on with one, give it by `key`")
            }
            Self::TwoBodies => f.write_str("an operation has one body; give it by `body` or by `json`"),
            Self::TwoKeys => f.write_str("an operation has one key; give its name, or its key"),
            Self::Json(error) => write!(f, "the body cannot be written as JSON: {error}"),
        }
    }
}

impl Error for Unsendable {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Json(error) => Some(error),
            _ => None,
        }
    }
}
