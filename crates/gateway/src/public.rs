//! The public listener: what every request passes, in order.

mod client_body;
mod guard;
mod names;
mod operations;
pub(crate) mod path;
mod peers;
mod webhooks;

use std::net::IpAddr;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use bytes::Bytes;
use http::uri::PathAndQuery;
use http::{HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri, header};
use http_body_util::{Either, Full};
use hyper::body::Incoming;
use oncegate::AnyStore;
use oncegate_core::policy::Policy;
use oncegate_core::problem::{Code, Problem};
use oncegate_engine::{Engine, Finisher, Route};
use oncegate_tower::{
    Failed, Idempotency, Idempotent, OriginalAddress, RequestLimit, ResponseBody, Routes, count_refusal,
};
use tokio::sync::OwnedSemaphorePermit;
use tower_layer::Layer as _;
use tower_service::Service as _;

use crate::ask::Asker;
use crate::config::{Config, HostHeader, RequestRules, ScopeRule, Upstream};
use crate::deferred::{self, Later};
use crate::gateway::StartError;
use crate::listener::HttpService;
use crate::preauthorize::Preauthorizer;
use crate::proxy::{Limiter, Proxy, UpstreamBody, target_host};
use crate::reconcile::Webhook;

use webhooks::Ear;

pub(crate) use client_body::{BodyFault, BodyRules, ClientBody, Progress};
pub(crate) use names::is_of_proxies;
pub(crate) use oncegate_tower::Peer;
pub(crate) use peers::{PeerConnection, PeerLimit, PeerUpload, PeerUsage, Peers};

/// It came by TLS; in a request's extensions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Secure;

/// The connection's place among those that are open; in a request's extensions, because a tunnel outlives its connection.
#[derive(Clone)]
pub(crate) struct Room(pub(crate) Arc<ConnectionPlace>);

/// Held, and given back when dropped: to its address first, so that the next connection finds it.
pub(crate) struct ConnectionPlace {
    pub(crate) peer: PeerConnection,
    pub(crate) _permit: OwnedSemaphorePermit,
}

/// What the gateway answers with.
pub(crate) type Answer = Response<Either<ResponseBody<UpstreamBody>, Full<Bytes>>>;

/// Paths that are the gateway's own: this one, and all beneath it.
const OWN: &str = "/.oncegate";
/// Where callers look at their operations.
const OPERATIONS: &str = "/.oncegate/operations/";

/// What all connections share.
pub(crate) struct Public {
    engine: Engine<AnyStore>,
    proxy: Proxy,
    limiter: Arc<Limiter>,
    body_rules: BodyRules,
    peers: Arc<Peers>,
    upstream: Upstream,
    apart_for: Duration,
    asker: Arc<Asker>,
    /// Exchanged as a whole when the file is read again.
    current: RwLock<Arc<Current>>,
}

/// What may change while the gateway runs.
struct Current {
    layer: Idempotency<AnyStore>,
    layered: Idempotent<AnyStore, Proxy>,
    /// Runs what was accepted.
    finisher: Arc<dyn Finisher<AnyStore>>,
    /// Whether anything may be accepted, to be run later.
    may_defer: bool,
    scope: ScopeRule,
    routes: Routes,
    request: RequestRules,
    /// Headers that the configuration names.
    named_headers: Vec<HeaderName>,
    /// Whether any route names the host among the headers of its fingerprint.
    may_compare_host: bool,
    webhooks: Vec<Webhook>,
}

impl Public {
    pub(crate) fn new(
        engine: Engine<AnyStore>,
        proxy: Proxy,
        limiter: Arc<Limiter>,
        asker: Arc<Asker>,
        config: &Config,
    ) -> Result<Self, StartError> {
        let current = RwLock::new(Arc::new(Current::new(&engine, &proxy, &limiter, config)?));
        Ok(Self {
            engine,
            proxy,
            limiter,
            body_rules: BodyRules::of(&config.listen),
            peers: Arc::new(Peers::new(&config.limits)),
            upstream: config.upstream.clone(),
            apart_for: config.workers.options.apart_for,
            asker,
            current,
        })
    }

    /// Takes over routes and scope of another configuration. Requests that are under way end as they began.
    pub(crate) fn reload(&self, config: &Config) -> Result<(), StartError> {
        let new = Arc::new(Current::new(&self.engine, &self.proxy, &self.limiter, config)?);
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = new;
        Ok(())
    }

    /// What runs accepted requests, by the routes as they are now.
    pub(crate) fn finisher(&self) -> Arc<dyn Finisher<AnyStore>> {
        Arc::clone(&self.current().finisher)
    }

    fn current(&self) -> Arc<Current> {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner))
    }

    async fn answer_request(
        &self,
        request: Request<Incoming>,
        connection: &PeerConnection,
        peer_requests: usize,
    ) -> Answer {
        let current = self.current();
        if !connection.allows(peer_requests) {
            return self.refuse_peer(&request, &current);
        }
        let (limiter, peer) = (Arc::clone(&self.limiter), Arc::clone(connection.usage()));
        let mut request =
            request.map(|incoming| ClientBody::new(incoming, self.body_rules, Some(limiter), peer));
        current.scope.strip_untrusted(&mut request);
        let checked = guard::check(&request, &current.named_headers, self.upstream.base_path.len())
            .and_then(|()| guard::check_identity(&request, &current.scope))
            .and_then(|()| normalize(&mut request, current.request))
            .and_then(|()| guard::check_readings(&request, current.request));
        if let Err(problem) = checked {
            return Box::pin(refuse(&problem, &current, request)).await;
        }
        let is_told = request.uri().path().starts_with(webhooks::WEBHOOKS);
        if is_own(request.uri().path()) && !is_told {
            // Boxed, as all that is rare: the future of a request would be as large as the largest of them.
            let answer = Box::pin(operations::answer(self, &current, request)).await;
            count_refusal(&answer, None);
            return answer;
        }
        if is_told {
            let limiter = &*self.limiter;
            let ear = Ear { engine: &self.engine, asker: &self.asker, limiter, keep_for: self.apart_for };
            return Box::pin(webhooks::answer(ear, &current.webhooks, request)).await;
        }
        let progress = request.body().progress();
        request.extensions_mut().insert(progress.clone());
        if current.may_defer {
            let kept = deferred::of_client(&request);
            request.extensions_mut().insert(kept);
        }
        if self.upstream.host == HostHeader::Client || current.compares_host(&request) {
            let host = target_host(&request, &self.upstream);
            request.extensions_mut().insert(host);
        }
        let (method, address) = (request.method().clone(), request.uri().clone());
        let mut layered = current.layered.clone();
        match layered.call(request).await {
            Ok(response) => response.map(Either::Left),
            Err(failed) => {
                let answer = refusal(&unprotected(failed, progress.fault()));
                count_refusal(&answer, current.route_of(&method, address.path()));
                answer
            }
        }
    }
}

impl HttpService for Public {
    type Body = Either<ResponseBody<UpstreamBody>, Full<Bytes>>;

    fn connect(&self, peer: Option<IpAddr>) -> Option<PeerConnection> {
        let Some(peer) = peer else { return Some(PeerConnection::uncounted()) };
        let connection = self.peers.connect(peer, &self.current().scope.trusted_peers);
        if connection.is_none() {
            self.peers.log(peer, PeerLimit::Connections);
            oncegate_engine::count_refusal(PeerLimit::Connections.reason(), None);
        }
        connection
    }

    fn answer(
        &self,
        request: Request<Incoming>,
        connection: &PeerConnection,
        peer_requests: usize,
    ) -> impl Future<Output = Answer> + Send {
        self.answer_request(request, connection, peer_requests)
    }

    fn count_malformed() {
        oncegate_engine::count_refusal(Code::RequestMalformed.name(), None);
    }
}

impl Public {
    /// Refuses a request of an address that has too many. Its body is not waited for: that would
    /// be one more thing that it holds.
    fn refuse_peer(&self, request: &Request<Incoming>, current: &Current) -> Answer {
        if let Some(Peer(peer)) = request.extensions().get() {
            self.peers.log(peer.ip(), PeerLimit::Requests);
        }
        let words = "There are too many requests from your address at once. Nothing was executed. Send the same \
                     request again later.";
        let problem = Problem::new(Code::Overloaded, words).retry_after(Duration::from_secs(1));
        let answer = refusal(&problem.counted_as(PeerLimit::Requests.reason()));
        count_refusal(&answer, current.route_of(request.method(), request.uri().path()));
        answer
    }
}

impl Current {
    fn new(
        engine: &Engine<AnyStore>,
        proxy: &Proxy,
        limiter: &Arc<Limiter>,
        config: &Config,
    ) -> Result<Self, StartError> {
        let scope = config.scope.clone();
        let routes = config.layer_routes().map_err(StartError::Routes)?;
        let layer = Idempotency::new(engine.clone(), scope.clone(), routes.clone());
        let limit: Arc<dyn RequestLimit> = Arc::<Limiter>::clone(limiter);
        let layer = layer.operations_at(OPERATIONS).limit(limit);
        let layer = match Preauthorizer::of(config, proxy)? {
            Some(preauthorizer) => layer.authorize(preauthorizer),
            None => layer,
        };
        let layer = match &config.store.request_time_header {
            Some(name) => layer.request_time_header(name.clone()),
            None => layer,
        };
        let layered = layer.layer(proxy.clone());
        let finisher = layer.finisher(Later(proxy.clone()));
        let may_defer = config.rules().any(|rule| rule.policy.may_defer());
        let may_compare_host = config.rules().any(|rule| names_host(&rule.policy));
        Ok(Self {
            layer,
            layered,
            finisher,
            may_defer,
            scope,
            routes,
            request: config.request_rules(),
            named_headers: config.named_headers(),
            may_compare_host,
            webhooks: config.webhooks.clone(),
        })
    }

    /// Whether the route of a request names the host among the headers of its fingerprint.
    fn compares_host<B>(&self, request: &Request<B>) -> bool {
        let route = || self.routes.of(request.method(), path::matched(request.uri().path()));
        self.may_compare_host && route().is_some_and(|route| names_host(route.policy()))
    }

    /// The route that a request means, also if its path is ambiguous or not normalized yet: for
    /// counting, not for deciding.
    fn route_of(&self, method: &Method, path: &str) -> Option<&Route> {
        let normal = path::normal(path, self.request);
        let normal = normal.as_deref().unwrap_or(path);
        let of = |path: &str| self.routes.of(method, path::matched(path));
        if path::is_ambiguous(normal) {
            return of(&path::likely_reading(normal, self.request)).or_else(|| of(normal));
        }
        of(normal)
    }
}

fn names_host(policy: &Policy) -> bool {
    policy.fingerprint_headers.iter().any(|name| **name == *header::HOST.as_str())
}

/// What a request without protection is told that got no answer.
fn unprotected(failed: Failed, fault: Option<BodyFault>) -> Problem {
    use oncegate_core::classify::Failure;
    let failure = failed.0;
    if failure == Failure::QueueFull {
        return Problem::overloaded();
    }
    if let Some(fault) = fault {
        return fault.problem(if failure.proves_nothing_sent() {
            "Nothing was forwarded, and nothing was executed."
        } else {
            "The service behind got the beginning of the request, and the connection to it was closed before \
             its end."
        });
    }
    if failure.proves_nothing_sent() {
        let words = format!("{failure}. Nothing was executed. Send the same request again.");
        return Problem::new(Code::UpstreamUnreachable, words).retry_after(Duration::from_secs(1));
    }
    let words = format!(
        "{failure}. It may have acted on this request, which no idempotency key protected: look its result up before you send it \
         again, unless it is safe to repeat."
    );
    let status = if failure == Failure::Timeout { 504 } else { 502 };
    Problem::new(Code::UpstreamFailed, words).with_status(status)
}

/// Gives the path its one spelling: routes are matched, requests compared and the upstream asked
/// by it. Only a slash at its end is forwarded and not compared.
fn normalize<B>(request: &mut Request<B>, rules: RequestRules) -> Result<(), Problem> {
    let path = request.uri().path();
    if path == "*" {
        return Ok(());
    }
    let with_query = |uri: &Uri, path: &str| match uri.query() {
        Some(query) => format!("{path}?{query}"),
        None => path.to_owned(),
    };
    let unusable =
        || Problem::new(Code::RequestMalformed, "The path cannot be normalized. Nothing was forwarded.");
    let normal = path::normal(path, rules);
    // `http://a?b` has no path at all, which is `/`.
    let lacks_path = request.uri().path_and_query().is_some_and(|target| target.as_str().starts_with('?'));
    if normal.is_some() || lacks_path {
        let normal = normal.unwrap_or_else(|| path.to_owned());
        let target: PathAndQuery = with_query(request.uri(), &normal).parse().map_err(|_| unusable())?;
        let mut parts = std::mem::take(request.uri_mut()).into_parts();
        parts.path_and_query = Some(target);
        *request.uri_mut() = Uri::from_parts(parts).map_err(|_| unusable())?;
    }
    let path = request.uri().path();
    let matched = path::matched(path);
    if matched.len() < path.len() {
        let address = with_query(request.uri(), matched).parse().map_err(|_| unusable())?;
        request.extensions_mut().insert(OriginalAddress(address));
    }
    Ok(())
}

fn is_own(path: &str) -> bool {
    path.strip_prefix(OWN).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Refuses a request that may still be coming.
async fn refuse(problem: &Problem, current: &Current, request: Request<ClientBody>) -> Answer {
    let (head, body) = request.into_parts();
    let answer = refusal(problem);
    count_refusal(&answer, current.route_of(&head.method, head.uri.path()));
    oncegate_tower::leave(&head.headers, body).await;
    answer
}

/// An answer of the gateway's own.
fn refusal(problem: &Problem) -> Answer {
    oncegate_tower::refusal(problem).map(Either::Left)
}

fn own(status: StatusCode, content_type: &'static str, body: Vec<u8>) -> Answer {
    let mut response = Response::new(Either::Right(Full::new(Bytes::from(body))));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}
