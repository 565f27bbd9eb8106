//! Connections to the upstream, kept while they may be used again.
//!
//! Why not a ready-made pooled client: it cannot say whether a request that failed was sent, and that is what decides between "run it
//! again" and doubt. A connection here either takes a request or gives it back whole. See docs/decisions/0009-proxy.md.
//!
//! **Invariant:** whoever may send has a connection that takes the request now: in HTTP/1 one of its own, in HTTP/2 a stream that
//! the upstream allows. Nothing waits inside a connection, where no lease would be looked at any more.

mod one;
mod two;

use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Context;
use std::time::Duration;

use http::Response;
use http::uri::{Authority, Scheme};
use hyper::body::Incoming;
use hyper::client::conn::TrySendError;
use oncegate_core::classify::Failure;
use oncegate_tower::Failed;
use tokio::sync::watch;

use super::Outgoing;
use super::body::{Patience, silence};
use super::connect::{Connected, Connector};
use super::forward;
use crate::config::{ConfigError, Http, Upstream};
use crate::public::Progress;

use one::{Idle, LentOne};

pub(super) use one::One;
use two::{Links, Stream};

/// Kept connections.
pub(super) struct Pool {
    connector: Connector,
    scheme: Scheme,
    authority: Authority,
    connect_timeout: Duration,
    idle: Idle,
    /// The lock is held while one is made, so that a burst makes one.
    links: tokio::sync::Mutex<Links>,
    /// What the last connection spoke.
    speaks_two: AtomicBool,
}

/// An answer, and the connection that it comes by.
pub(super) struct Answered {
    pub(super) response: Response<Incoming>,
    pub(super) connection: Lent,
}

/// A connection that an answer is still coming by.
pub(super) enum Lent {
    One(Option<LentOne>),
    Two(Stream),
}

/// What a request goes by.
enum Chosen {
    One(One),
    Two(Stream),
}

type Refused = TrySendError<Outgoing>;

impl Pool {
    pub(super) fn new(upstream: &Upstream) -> Result<Self, ConfigError> {
        Ok(Self {
            connector: Connector::new(upstream)?,
            scheme: if upstream.is_tls { Scheme::HTTPS } else { Scheme::HTTP },
            authority: upstream.authority.clone(),
            connect_timeout: upstream.connect_timeout,
            idle: Idle::new(upstream.idle_max, upstream.idle_timeout),
            links: tokio::sync::Mutex::default(),
            speaks_two: AtomicBool::new(upstream.http == Http::Two),
        })
    }

    /// Sends it, once. `may_send` is asked right before it leaves. Once it is `abandoned` nothing leaves, and what has left is a doubt.
    pub(super) async fn send(
        &self,
        mut request: Outgoing,
        may_send: impl Fn() -> Result<(), Failed>,
        patience: Patience,
        progress: Option<&Progress>,
        abandoned: &watch::Receiver<bool>,
    ) -> Result<Answered, Failed> {
        loop {
            let mut ending = abandoned.clone();
            let (chosen, is_new) = match self.kept().await {
                Some(one) if !*ending.borrow() => (Chosen::One(one), false),
                _ => tokio::select! {
                    biased;
                    _ = ending.wait_for(|is| *is) => return Err(Failed(Failure::Unsent)),
                    // Boxed, as what is rare: a connection being made is larger than all the rest.
                    chosen = Box::pin(self.choose()) => chosen?,
                },
            };
            may_send()?;
            let silence = silent(patience, progress, ending);
            let (sent, lent) = match chosen {
                Chosen::One(one) => {
                    forward::into_one(&mut request);
                    let (sent, one) = unless(silence, one::exchange(one, request)).await.map_err(Failed)?;
                    (sent, Lent::One(one.map(|one| self.idle.lend(one))))
                }
                Chosen::Two(mut stream) => {
                    forward::into_two(&mut request, &self.scheme, &self.authority);
                    let sent = unless(silence, stream.sender.try_send_request(request)).await;
                    if sent.is_err() {
                        // Silence of one request may be the silence of its connection.
                        self.links.lock().await.forget(&stream);
                    }
                    (sent.map_err(Failed)?, Lent::Two(stream))
                }
            };
            match sent {
                Ok(response) => {
                    let connection = lent.told(&response);
                    return Ok(Answered { response, connection });
                }
                Err(mut error) => match error.take_message() {
                    // A kept connection that had ended: nothing was sent, so the next one is not a second time.
                    Some(unsent) if !is_new => {
                        request = unsent;
                        if let Lent::Two(stream) = &lent {
                            // It may not know yet that it has ended.
                            self.links.lock().await.forget(stream);
                        }
                    }
                    Some(_) => return Err(Failed(Failure::Unsent)),
                    None => return Err(Failed(failure_of(&error))),
                },
            }
        }
    }

    /// A connection that was kept, and takes a request now. Nothing is waited for.
    async fn kept(&self) -> Option<One> {
        if self.speaks_two.load(Ordering::Relaxed) {
            return None;
        }
        while let Some(mut one) = self.idle.take() {
            if one.is_ready().await {
                return Some(one);
            }
        }
        None
    }

    /// A new connection, or a stream of one that is there; and which it is.
    async fn choose(&self) -> Result<(Chosen, bool), Failed> {
        if self.speaks_two.load(Ordering::Relaxed) {
            return self.choose_stream().await;
        }
        match self.connector.connect().await? {
            Connected::One(one) => Ok((Chosen::One(one), true)),
            Connected::Two(sender, allowed) => {
                let stream = self.links.lock().await.add(sender, allowed);
                self.speaks_two.store(true, Ordering::Relaxed);
                Ok((Chosen::Two(stream), true))
            }
        }
    }

    async fn choose_stream(&self) -> Result<(Chosen, bool), Failed> {
        // Whoever holds it is connecting; if that takes too long, it would take each who waits for it as long again.
        let waiting = tokio::time::timeout(self.connect_timeout, self.links.lock());
        let mut links = waiting.await.map_err(|_| Failed(Failure::ConnectTimeout))?;
        if let Some(stream) = links.stream() {
            return Ok((Chosen::Two(stream), false));
        }
        match self.connector.connect().await? {
            Connected::Two(sender, allowed) => Ok((Chosen::Two(links.add(sender, allowed)), true)),
            // The upstream has come back as another server.
            Connected::One(one) => {
                self.speaks_two.store(false, Ordering::Relaxed);
                Ok((Chosen::One(one), true))
            }
        }
    }
}

impl Lent {
    pub(super) const fn is_two(&self) -> bool {
        matches!(self, Self::Two(_))
    }

    /// Moves the answer on, where nobody else does.
    pub(super) fn drive(&mut self, cx: &mut Context<'_>) {
        if let Self::One(Some(one)) = self {
            one.drive(cx);
        }
    }

    /// The connection has become a tunnel.
    pub(super) fn let_go(self) {
        if let Self::One(Some(one)) = self {
            one.let_go();
        }
    }

    /// The answer has come whole.
    pub(super) fn give_back(self) {
        if let Self::One(Some(one)) = self {
            one.give_back();
        }
    }

    fn told(self, response: &Response<Incoming>) -> Self {
        match self {
            Self::One(one) => Self::One(one.map(|one| one.told(response.headers()))),
            two @ Self::Two(_) => two,
        }
    }
}

/// Ends when neither the client's body nor the upstream's answer has moved for too long.
async fn silent(
    patience: Patience,
    progress: Option<&Progress>,
    abandoned: watch::Receiver<bool>,
) -> Failure {
    let mut seen = progress.map(Progress::last);
    loop {
        let until = patience.until();
        let failure = silence(until, abandoned.clone()).await;
        let last = progress.map(Progress::last);
        let is_over = patience.deadline.is_some_and(|deadline| deadline <= until);
        if failure != Failure::Timeout || last == seen || is_over {
            return failure;
        }
        seen = last;
    }
}

/// What comes of it, unless the other ends first.
async fn unless<T>(ends: impl Future<Output = Failure>, work: impl Future<Output = T>) -> Result<T, Failure> {
    tokio::select! {
        biased;
        done = work => Ok(done),
        failure = ends => Err(failure),
    }
}

/// The connection took the request, or some of it.
fn failure_of(error: &Refused) -> Failure {
    let error = error.error();
    let refused = std::error::Error::source(error)
        .and_then(|source| source.downcast_ref::<h2::Error>())
        .is_some_and(|error| error.is_remote() && error.reason() == Some(h2::Reason::REFUSED_STREAM));
    if refused {
        Failure::StreamRefused
    } else if error.is_parse() {
        Failure::Protocol
    } else {
        Failure::Reset
    }
}
