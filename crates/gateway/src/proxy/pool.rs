//! Connections to the upstream, kept while they may be used again.
//!
//! Why not a ready-made pooled client: it cannot say whether a request that failed was sent, and that is what decides between "run it
//! again" and doubt. A connection here either takes a request or gives it back whole. See docs/decisions/0009-proxy.md.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use http::Response;
use http::uri::{Authority, Scheme};
use hyper::body::Incoming;
use hyper::client::conn::{TrySendError, http1, http2};
use oncegate_core::classify::Failure;
use oncegate_tower::{Failed, RequestBody};

use super::Outgoing;
use super::connect::{Connected, Connector};
use super::forward;
use crate::config::{ConfigError, Http, Upstream};

type One = http1::SendRequest<RequestBody<Incoming>>;
type Two = http2::SendRequest<RequestBody<Incoming>>;
type Refused = TrySendError<Outgoing>;

/// Kept connections.
pub(super) struct Pool {
    connector: Connector,
    scheme: Scheme,
    authority: Authority,
    connect_timeout: Duration,
    /// How long an answer's head may take.
    timeout: Duration,
    idle: Arc<Idle>,
    /// One connection carries all requests in HTTP/2. The lock is held while it is made, so that a burst makes one.
    two: tokio::sync::Mutex<Option<Two>>,
    /// What the last connection spoke.
    speaks_two: std::sync::atomic::AtomicBool,
}

/// An answer, and the connection that it comes by.
pub(super) struct Answered {
    pub(super) response: Response<Incoming>,
    pub(super) connection: Option<Lent>,
}

impl Pool {
    pub(super) fn new(upstream: &Upstream) -> Result<Self, ConfigError> {
        Ok(Self {
            connector: Connector::new(upstream)?,
            scheme: if upstream.is_tls { Scheme::HTTPS } else { Scheme::HTTP },
            authority: upstream.authority.clone(),
            connect_timeout: upstream.connect_timeout,
            timeout: upstream.timeout,
            idle: Arc::new(Idle {
                kept: Mutex::default(),
                most: upstream.idle_max,
                longest: upstream.idle_timeout,
            }),
            two: tokio::sync::Mutex::new(None),
            speaks_two: std::sync::atomic::AtomicBool::new(upstream.http == Http::Two),
        })
    }

    /// Sends it, once. `may_send` is asked right before it leaves.
    pub(super) async fn send(
        &self,
        mut request: Outgoing,
        may_send: impl Fn() -> Result<(), Failed>,
    ) -> Result<Answered, Failed> {
        loop {
            let (connection, is_new) = self.connection().await?;
            may_send()?;
            let (sent, lent) = match connection {
                Connected::One(one) => {
                    forward::into_one(&mut request);
                    match tokio::time::timeout(self.timeout, exchange(one, request)).await {
                        Ok((sent, one)) => (Ok(sent), one.map(|one| Lent::new(one, &self.idle))),
                        Err(elapsed) => (Err(elapsed), None),
                    }
                }
                Connected::Two(mut two) => {
                    forward::into_two(&mut request, &self.scheme, &self.authority);
                    (tokio::time::timeout(self.timeout, two.try_send_request(request)).await, None)
                }
            };
            match sent {
                Ok(Ok(response)) => {
                    let connection = lent.map(|lent| lent.told(&response));
                    return Ok(Answered { response, connection });
                }
                Err(_) => return Err(Failed(Failure::Timeout)),
                Ok(Err(mut error)) => match error.take_message() {
                    // A kept connection that had ended: nothing was sent, so the next one is not a second time.
                    Some(unsent) if !is_new => request = unsent,
                    Some(_) => return Err(Failed(Failure::Unsent)),
                    None => return Err(Failed(failure_of(&error))),
                },
            }
        }
    }

    /// A kept connection, or a new one; and which it is.
    async fn connection(&self) -> Result<(Connected, bool), Failed> {
        use std::sync::atomic::Ordering;
        if self.speaks_two.load(Ordering::Relaxed) {
            return self.shared().await;
        }
        while let Some(mut one) = self.idle.take() {
            if one.ready().await.is_ok() {
                return Ok((Connected::One(one), false));
            }
        }
        let connected = self.connector.connect().await?;
        if let Connected::Two(two) = &connected {
            *self.two.lock().await = Some(two.clone());
            self.speaks_two.store(true, Ordering::Relaxed);
        }
        Ok((connected, true))
    }

    async fn shared(&self) -> Result<(Connected, bool), Failed> {
        // Whoever holds it is connecting; if that takes too long, it would take each who waits for it as long again.
        let waiting = tokio::time::timeout(self.connect_timeout, self.two.lock());
        let mut shared = waiting.await.map_err(|_| Failed(Failure::ConnectTimeout))?;
        if let Some(two) = shared.as_ref()
            && !two.is_closed()
        {
            return Ok((Connected::Two(two.clone()), false));
        }
        let connected = self.connector.connect().await?;
        match &connected {
            Connected::Two(two) => *shared = Some(two.clone()),
            // The upstream has come back as another server.
            Connected::One(_) => self.speaks_two.store(false, std::sync::atomic::Ordering::Relaxed),
        }
        Ok((connected, true))
    }
}

/// Gives a request to a connection, and waits for the head of its answer. The connection comes back unless it has ended.
///
/// A request that is put into a connection's channel in the very moment in which the connection ends may stay there, neither taken nor
/// refused, for as long as there is a sender (hyperium/hyper#4122). So the sender goes when the connection has: then the request comes
/// back at once, and not as a timeout, which would be a doubt.
async fn exchange(mut one: One, request: Outgoing) -> (Result<Response<Incoming>, Refused>, Option<One>) {
    let mut answer = std::pin::pin!(one.try_send_request(request));
    let ended = async {
        // It is ready for another before this one is answered: never, but then there is nothing to watch.
        if one.ready().await.is_ok() {
            std::future::pending::<()>().await;
        }
    };
    let answered = tokio::select! {
        biased;
        answered = &mut answer => Some(answered),
        () = ended => None,
    };
    if let Some(answered) = answered {
        return (answered, Some(one));
    }
    drop(one);
    (answer.await, None)
}

/// Idle connections, the last used first.
struct Idle {
    kept: Mutex<VecDeque<Kept>>,
    most: usize,
    longest: Duration,
}

struct Kept {
    one: One,
    until: Instant,
}

impl Idle {
    fn take(&self) -> Option<One> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        // From the other end, those that are too old.
        while kept.front().is_some_and(|oldest| oldest.until <= now || oldest.one.is_closed()) {
            kept.pop_front();
        }
        while let Some(Kept { one, until }) = kept.pop_back() {
            if until > now && one.is_ready() {
                return Some(one);
            }
        }
        None
    }

    fn put(&self, one: One, longest: Duration) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.push_back(Kept { one, until: Instant::now() + longest });
        if kept.len() > self.most {
            kept.pop_front();
        }
    }
}

/// A connection that an answer is still coming by.
pub(super) struct Lent {
    one: One,
    idle: Arc<Idle>,
    /// How long it may be idle afterwards.
    longest: Duration,
}

impl Lent {
    fn new(one: One, idle: &Arc<Idle>) -> Self {
        Self { one, idle: Arc::clone(idle), longest: idle.longest }
    }

    /// A server may say how long it keeps an idle connection. One that is closed just as a request leaves by it is a doubt, so
    /// ours end well before.
    fn told(mut self, response: &Response<Incoming>) -> Self {
        let hint = response.headers().get("keep-alive").and_then(|value| {
            let mut parameters = value.to_str().ok()?.split(',');
            parameters.find_map(|parameter| parameter.trim().strip_prefix("timeout=")?.parse::<u64>().ok())
        });
        if let Some(seconds) = hint {
            self.longest = self.longest.min(Duration::from_secs(seconds).mul_f64(0.8));
        }
        self
    }

    /// The answer has come whole.
    pub(super) fn give_back(self) {
        let Self { mut one, idle, longest } = self;
        if one.is_ready() {
            idle.put(one, longest);
            return;
        }
        // Its task has not come round yet; it will, or the connection ends.
        tokio::spawn(async move {
            if one.ready().await.is_ok() {
                idle.put(one, longest);
            }
        });
    }
}

/// The connection took the request, or some of it.
fn failure_of<T>(error: &TrySendError<T>) -> Failure {
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
