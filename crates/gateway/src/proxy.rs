//! The inner service: sends a request to the upstream, and never twice by itself.
//!
//! **Invariants:** a request goes out again only if its connection gave it back whole, unsent; under a lease, the lease is looked at
//! right before it goes out. An error says whether it is proved that nothing was sent; what is not proved is doubt.

mod body;
mod connect;
mod forward;
mod limiter;
mod pool;
mod tls;
mod upgrade;

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, Uri, header};
use http_body::Body as _;
use http_body_util::BodyExt as _;
use oncegate_core::classify::Failure;
use oncegate_tower::{Attempt, Failed, RequestBody, RequestLimit as _};
use tokio::sync::watch;
use tokio::time::Instant;
use tower_service::Service;

use crate::config::{Config, ConfigError, Upstream};
use crate::listener::InFlight;
use crate::public::{ClientBody, Progress, Room};

pub(crate) use body::UpstreamBody;
pub(crate) use connect::{Connector, Wire};
pub(crate) use forward::{add_client_headers, client_host, target_host};
pub(crate) use limiter::{BodyPlace, Limiter};

use body::Patience;
use pool::Pool;

/// A reverse proxy for one upstream. Clones share everything.
#[derive(Clone)]
pub(crate) struct Proxy(Arc<Inner>);

struct Inner {
    upstream: Upstream,
    pool: Pool,
    limiter: Arc<Limiter>,
    tunnel_idle_timeout: Duration,
    /// Turns true when what is still in flight has to end.
    abandoned: watch::Receiver<bool>,
}

impl Proxy {
    pub(crate) fn new(
        config: &Config,
        limiter: Arc<Limiter>,
        abandoned: watch::Receiver<bool>,
    ) -> Result<Self, ConfigError> {
        let upstream = config.upstream.clone();
        let pool = Pool::new(&upstream)?;
        let tunnel_idle_timeout = config.listen.tunnel_idle_timeout;
        Ok(Self(Arc::new(Inner { upstream, pool, limiter, tunnel_idle_timeout, abandoned })))
    }
}

/// Asks short questions beside the requests, over connections of its own, and never waits for a
/// place.
pub(crate) struct Client {
    upstream: Upstream,
    pool: Pool,
    abandoned: watch::Receiver<bool>,
}

/// So much of an answer's body is read, so that its connection can be used again.
const DRAIN_BYTES_MAX: u64 = 64 << 10;

impl Proxy {
    /// A client of this server, which ends when the proxy is abandoned.
    pub(crate) fn client(&self, upstream: &Upstream) -> Result<Client, ConfigError> {
        let pool = Pool::new(upstream)?;
        Ok(Client { upstream: upstream.clone(), pool, abandoned: self.0.abandoned.clone() })
    }
}

impl Client {
    /// Sends a GET without a body, and gives the head of the answer.
    pub(crate) async fn get(
        &self,
        path: &PathAndQuery,
        headers: HeaderMap,
        timeout: Duration,
    ) -> Result<(StatusCode, HeaderMap), Failed> {
        let mut request = Outgoing::new(RequestBody::empty());
        *request.uri_mut() = Uri::from(path.clone());
        *request.headers_mut() = headers;
        forward::join_cookies(request.headers_mut());
        let host = HeaderValue::from_str(self.upstream.authority.as_str());
        request.headers_mut().insert(header::HOST, host.map_err(|_| Failed(Failure::ConnectFailed))?);
        let patience = Patience { silence: timeout, deadline: Some(Instant::now() + timeout) };
        let answered = self.pool.send(request, || Ok(()), patience, None, &self.abandoned).await?;
        let (head, incoming) = answered.response.into_parts();
        let connection = Some(answered.connection);
        let mut body = UpstreamBody::new(incoming, connection, None, patience, self.abandoned.clone(), 0);
        let mut read_bytes = 0;
        while read_bytes <= DRAIN_BYTES_MAX
            && let Some(Ok(frame)) = body.frame().await
        {
            read_bytes += frame.data_ref().map_or(0, |data| data.len() as u64);
        }
        Ok((head.status, head.headers))
    }
}

/// What goes upstream.
pub(crate) type Outgoing = Request<RequestBody<ClientBody>>;

impl Service<Outgoing> for Proxy {
    type Response = Response<UpstreamBody>;
    type Error = Failed;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Failed>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Failed>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Outgoing) -> Self::Future {
        let inner = Arc::clone(&self.0);
        Box::pin(async move {
            // A protected request was admitted before it was recorded.
            if request.extensions().get::<Attempt>().is_some() {
                return inner.exchange(request).await.inspect_err(|failed| count(*failed));
            }
            inner.pass(request).await
        })
    }
}

/// Bodies of a declared length up to this are read before a request takes a place; larger ones, and
/// those of unknown length, are streamed.
const READ_FIRST_BYTES_MAX: u64 = 64 << 10;

impl Inner {
    /// A request that no key protects: admitted here, with its body whole or as a stream.
    async fn pass(&self, mut request: Outgoing) -> Result<Response<UpstreamBody>, Failed> {
        let progress = request.extensions().get::<Progress>().cloned();
        if is_read_first(&request) {
            let (head, body) = request.into_parts();
            // Why it did not come whole is in its progress.
            let whole = body.collect().await.map_err(|_| Failed(Failure::Unsent))?;
            request = Outgoing::from_parts(head, RequestBody::whole(whole.to_bytes()));
        } else if let Some(progress) = progress.as_ref().filter(|_| !request.body().is_end_stream()) {
            match self.limiter.begin_upload(&progress.peer()).await {
                Ok(place) => progress.hold(place),
                Err(full) => return Err(shed(request, full).await),
            }
        }
        let Some(_place) = self.limiter.admit() else {
            return Err(shed(request, Failed(Failure::QueueFull)).await);
        };
        self.exchange(request).await.inspect_err(|failed| count(*failed))
    }

    async fn exchange(&self, mut request: Outgoing) -> Result<Response<UpstreamBody>, Failed> {
        // Held until the upstream has answered, also if the client hangs up before.
        let _in_flight = request.extensions_mut().remove::<InFlight>();
        let _room = request.extensions().get::<Room>().cloned();
        let mut abandoned = self.abandoned.clone();
        let permit = match self.limiter.enter_now() {
            Some(permit) if !*abandoned.borrow() => permit,
            _ => tokio::select! {
                biased;
                // Whoever still waits for its turn at a shutdown is not sent: places become free because others were given up.
                _ = abandoned.wait_for(|is| *is) => return Err(Failed(Failure::QueueFull)),
                permit = self.limiter.enter() => permit?,
            },
        };
        let attempt = request.extensions_mut().remove::<Attempt>();
        // A protected request is answered whole, so it cannot become a tunnel.
        let tunnel = if attempt.is_none() { upgrade::asked_for(&mut request) } else { None };
        let progress = request.extensions_mut().remove::<Progress>();
        let request = forward::request(request, attempt.as_ref(), tunnel.as_ref(), &self.upstream);
        let deadline = attempt.as_ref().map(|attempt| Instant::now() + attempt.deadline);
        let patience = Patience { silence: self.upstream.timeout, deadline };

        let may_send = || match &attempt {
            Some(attempt) => attempt.permit.check().map_err(|_| Failed(Failure::LeaseEnded)),
            None => Ok(()),
        };
        let sent = self.pool.send(request, may_send, patience, progress.as_ref(), &abandoned).await;
        // A body that the client did not send whole is no failure of the upstream's.
        let is_clients = || progress.as_ref().is_some_and(|progress| progress.fault().is_some());
        let answered =
            sent.map_err(|failed| if is_clients() { Failed(Failure::RequestBody) } else { failed })?;
        let response = match tunnel {
            Some(tunnel) if answered.response.status() == StatusCode::SWITCHING_PROTOCOLS => {
                let mut response = forward::switching(answered.response);
                tunnel.join(&mut response, self.tunnel_idle_timeout);
                answered.connection.let_go();
                let body = |incoming| UpstreamBody::new(incoming, None, Some(permit), patience, abandoned, 0);
                return Ok(response.map(body));
            }
            // Nobody asked for another protocol: passed on, it would take the client's connection with it.
            _ if answered.response.status().is_informational() => return Err(Failed(Failure::Protocol)),
            _ => forward::response(answered.response, attempt.is_some()),
        };
        let kept_bytes = attempt.map_or(0, |attempt| attempt.answer_bytes_max.saturating_add(1));
        let body = |incoming| {
            let connection = Some(answered.connection);
            UpstreamBody::new(incoming, connection, Some(permit), patience, abandoned, kept_bytes)
        };
        Ok(response.map(body))
    }
}

/// Whether a body is worth waiting for before it takes a place.
fn is_read_first(request: &Outgoing) -> bool {
    let length = request.body().size_hint().exact();
    length.is_some_and(|bytes| (1..=READ_FIRST_BYTES_MAX).contains(&bytes))
}

/// Refuses a request such that a client which is still sending can read it.
async fn shed(request: Outgoing, failed: Failed) -> Failed {
    let (head, body) = request.into_parts();
    oncegate_tower::leave(&head.headers, body).await;
    failed
}

fn count(failed: Failed) {
    if failed.0 == Failure::RequestBody {
        return tracing::debug!("a client's body broke off while it was being sent on");
    }
    let kind = if failed.0.proves_nothing_sent() { "not_sent" } else { "doubt" };
    metrics::counter!("oncegate.gateway.upstream.failure.count", "kind" => kind).increment(1);
    tracing::warn!(error = %failed, kind, "a request to the upstream failed");
}
