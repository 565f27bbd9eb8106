//! Asks a service of the operator whether a caller may use a route, before anything is recorded,
//! replayed or shown: like nginx's `auth_request` and Envoy's `ext_authz`.
//!
//! **Invariants:** only a 2xx lets a request pass; whatever goes wrong refuses it (503).
//! Credentials go
//! to the service that is named in the configuration, and into no log. Not here: when it is asked
//! (the
//! layer, and `public::operations`).

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use http::header::{AUTHORIZATION, COOKIE, WWW_AUTHENTICATE};
use http::request::Parts;
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use oncegate_core::problem::{Code, Problem};
use oncegate_engine::Route;
use oncegate_tower::{Authorize, Checking, Denied};

use crate::config::{Authorities, Config, ConfigError, Http, Rule, Trust, Upstream};
use crate::proxy::{Client, Proxy, add_client_headers};
use crate::reconcile::Target;

/// The method of the request that is asked about.
pub(crate) const ORIGINAL_METHOD: HeaderName = HeaderName::from_static("oncegate-original-method");
/// Its normalized path and query, without the base path of the upstream.
pub(crate) const ORIGINAL_URI: HeaderName = HeaderName::from_static("oncegate-original-uri");
/// The pattern of its route; of an operation, the route that it was made by.
pub(crate) const ORIGINAL_ROUTE: HeaderName = HeaderName::from_static("oncegate-original-route");

/// `preauthorize` of a route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Preauthorize {
    /// Who is asked.
    pub target: Target,
    /// How long the answer may take.
    pub timeout: Duration,
    /// Who may vouch for the certificate of the service, besides those who may anyway.
    pub tls_ca: Option<Authorities>,
    /// Headers of the request that are sent along, besides those that identify the caller.
    pub headers: Vec<HeaderName>,
}

impl Preauthorize {
    /// Who is asked, as it is written in the file.
    pub(crate) fn url(&self) -> String {
        match &self.target {
            Target::Upstream(path) => path.to_string(),
            Target::Elsewhere(url) => url.to_string(),
        }
    }
}

/// Asks for all routes that say so.
pub(crate) struct Preauthorizer {
    by_route: HashMap<String, Check>,
    /// Where no route matches.
    otherwise: Option<Check>,
}

/// How one route asks.
struct Check {
    rule: Arc<Preauthorize>,
    client: Arc<Client>,
    path: PathAndQuery,
    /// All headers that are sent along.
    headers: Vec<HeaderName>,
}

impl Preauthorizer {
    /// None if no route asks.
    pub(crate) fn of(config: &Config, proxy: &Proxy) -> Result<Option<Self>, ConfigError> {
        let mut clients: Vec<(Upstream, Arc<Client>)> = Vec::new();
        let mut check = |rule: &Rule| -> Result<Option<Check>, ConfigError> {
            let Some(asks) = rule.preauthorize.as_ref().filter(|_| !rule.is_off()) else { return Ok(None) };
            let (upstream, path) = service(asks, &config.upstream)?;
            let known = clients.iter().find(|(known, _)| *known == upstream);
            let client = if let Some((_, client)) = known {
                Arc::clone(client)
            } else {
                let client = Arc::new(proxy.client(&upstream)?);
                clients.push((upstream, Arc::clone(&client)));
                client
            };
            let scope = config.scope.header().into_iter().chain(&config.scope.also);
            let mut headers = vec![AUTHORIZATION, COOKIE];
            for name in scope.chain(&asks.headers) {
                if !headers.contains(name) {
                    headers.push(name.clone());
                }
            }
            Ok(Some(Check { rule: Arc::clone(asks), client, path, headers }))
        };
        let mut by_route = HashMap::new();
        for rule in &config.routes {
            by_route.extend(check(rule)?.map(|check| (rule.pattern.clone(), check)));
        }
        let otherwise = check(&config.otherwise)?;
        Ok((!by_route.is_empty() || otherwise.is_some()).then_some(Self { by_route, otherwise }))
    }

    fn of_route(&self, route: &Route) -> Option<&Check> {
        let pattern = route.operation().as_str();
        if crate::ask::is_otherwise(pattern) { self.otherwise.as_ref() } else { self.by_route.get(pattern) }
    }
}

impl Authorize for Preauthorizer {
    fn check<'a>(&'a self, route: &'a Route, request: &'a Parts) -> Option<Checking<'a>> {
        let check = self.of_route(route)?;
        Some(Box::pin(check.decide(route, request)))
    }
}

impl Check {
    async fn decide(&self, route: &Route, request: &Parts) -> Result<(), Denied> {
        let count = |result: &'static str| {
            metrics::counter!("oncegate.gateway.preauthorize.count", "result" => result).increment(1);
        };
        let why = match self.ask(route, request).await {
            Ok((status, _)) if status.is_success() => {
                count("allowed");
                return Ok(());
            }
            Ok((status @ (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN), headers)) => {
                count("denied");
                return Err(denied(status, &headers));
            }
            Ok((status, _)) => format!("status {status}; expected 2xx, 401 or 403"),
            Err(why) => why,
        };
        count("failed");
        tracing::warn!(route = %route.operation(), url = self.rule.url(), error = why, "preauthorization failed; request refused");
        let words = "The service that authorizes requests of this route gave no usable answer. This request was not \
                     executed, and nothing was recorded. Send the same request with the same key again later.";
        let problem = Problem::new(Code::AuthorizationUnavailable, words);
        let problem = problem.retry_after(route.policy().retry_unknown);
        Err(Denied { problem, challenges: Vec::new() })
    }

    /// The head of the answer, or why there is none.
    async fn ask(&self, route: &Route, request: &Parts) -> Result<(StatusCode, HeaderMap), String> {
        let headers = self.headers(route, request)?;
        let timeout = self.rule.timeout;
        let asking = self.client.get(&self.path, headers, timeout);
        match tokio::time::timeout(timeout, asking).await {
            Ok(answered) => answered.map_err(|failed| failed.to_string()),
            Err(_) => Err(format!("no answer within {timeout:?}")),
        }
    }

    fn headers(&self, route: &Route, request: &Parts) -> Result<HeaderMap, String> {
        let mut headers = HeaderMap::new();
        for name in &self.headers {
            for value in request.headers.get_all(name) {
                headers.append(name, value.clone());
            }
        }
        let uri = request.uri.path_and_query().map_or("/", PathAndQuery::as_str);
        for (name, text) in [
            (ORIGINAL_METHOD, request.method.as_str()),
            (ORIGINAL_URI, uri),
            (ORIGINAL_ROUTE, route.operation().as_str()),
        ] {
            let value =
                HeaderValue::from_bytes(text.as_bytes()).map_err(|_| format!("{name} is no header"))?;
            headers.insert(name, value);
        }
        add_client_headers(&mut headers, request);
        Ok(headers)
    }
}

/// Who is asked, and at which path.
fn service(asks: &Preauthorize, upstream: &Upstream) -> Result<(Upstream, PathAndQuery), ConfigError> {
    let wrong = |words: String| ConfigError::of("preauthorize", words);
    let more = asks.tls_ca.as_ref();
    match &asks.target {
        Target::Upstream(path) => {
            let path = format!("{}{path}", upstream.base_path).parse();
            let service = Upstream { trust: upstream.trust.and(more), ..upstream.clone() };
            Ok((service, path.map_err(|_| wrong("the path is too long".to_owned()))?))
        }
        Target::Elsewhere(url) => {
            let authority = url.authority().cloned();
            let authority = authority.ok_or_else(|| wrong("the URL has no host".to_owned()))?;
            let is_tls = url.scheme() == Some(&http::uri::Scheme::HTTPS);
            let path = url.path_and_query().cloned().unwrap_or(PathAndQuery::from_static("/"));
            let trust = Trust::system_and(more);
            let service = Upstream { authority, is_tls, trust, http: Http::Auto, ..upstream.clone() };
            Ok((service, path))
        }
    }
}

fn denied(status: StatusCode, headers: &HeaderMap) -> Denied {
    let words = "The service that authorizes requests of this route refused the caller. This request was not executed, \
                 and nothing was recorded. What became of an earlier request with the same key is not said to a caller \
                 who is not authorized.";
    let problem = Problem::new(Code::NotAuthorized, words).with_status(status.as_u16());
    Denied { problem, challenges: headers.get_all(WWW_AUTHENTICATE).iter().cloned().collect() }
}
