//! The configuration: as typed (`file`), then checked. What is checked can be used as it stands.
//!
//! Flags override environment variables, which override the file; the command line gives the first two as [`Given`].

mod admin;
mod check;
mod effect;
mod error;
mod file;
mod limits;
mod reconcile;
mod request;
mod rules;
mod scope;
mod secret_file;
mod show;
mod trust;
mod warnings;
mod word;

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use http::HeaderName;
use ipnet::IpNet;
use oncegate_engine::WorkerOptions;
use oncegate_tower::Routes;

pub use admin::{Admin, ListenAddress, TlsFiles};
pub use error::ConfigError;
pub use file::{HostHeader, Http};
pub use reconcile::Environment;
pub use request::{Ambiguous, PathCase, PathParams, RequestRules};
pub use rules::Rule;
pub(crate) use scope::From;
pub use scope::ScopeRule;
pub use secret_file::store_url;
pub use trust::{Authorities, Trust};
pub use word::Secret;
pub(crate) use word::{Size, Words};

use file::File;

use crate::reconcile::{HttpEffect, Webhook};

/// What the command line and the environment say; it stands before the file.
#[derive(Clone, Debug, Default)]
pub struct Given {
    /// Where requests go.
    pub upstream: Option<String>,
    /// Where clients come.
    pub listen: Option<String>,
    /// Where operators come.
    pub admin: Option<String>,
    /// What operators must show.
    pub admin_token: Option<Secret>,
    /// Where records are kept.
    pub store: Option<Secret>,
    /// What holds where no route matches.
    pub profile: Option<String>,
    /// Where the secrets are that the file only names.
    pub environment: Environment,
}

/// Everything that a gateway is told.
#[derive(Clone, Debug)]
pub struct Config {
    /// The public listener.
    pub listen: Listen,
    /// The admin listener.
    pub admin: Admin,
    /// What is behind.
    pub upstream: Upstream,
    /// Where records are kept.
    pub store: Store,
    /// Whose key it is.
    pub scope: ScopeRule,
    /// How the spelling of a request is read.
    pub request: RequestRules,
    /// How much at once.
    pub limits: Limits,
    /// What goes on without any request.
    pub workers: Workers,
    /// How long a shutdown waits for what is in flight.
    pub drain: Duration,
    /// Routes, in the order of the file.
    pub routes: Vec<Rule>,
    /// What holds where no route matches.
    pub otherwise: Rule,
    /// What providers tell by themselves.
    pub webhooks: Vec<Webhook>,
    /// What the outbox delivers.
    pub effects: Vec<HttpEffect>,
    /// What is allowed and hardly meant.
    pub warnings: Vec<String>,
}

/// The public listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listen {
    /// Where.
    pub address: SocketAddr,
    /// Its certificate.
    pub tls: Option<TlsFiles>,
    /// The largest head of a request.
    pub header_bytes_max: usize,
    /// How long a head may take to come.
    pub header_timeout: Duration,
    /// How long a client's body may stand still or be slower than `body_rate_min`, and a client may
    /// leave what it is sent unread.
    pub body_timeout: Duration,
    /// How long a client's body may take in all.
    pub body_deadline: Duration,
    /// Bytes per second that a client's body must bring, beyond `body_timeout`; 0: any rate will
    /// do.
    pub body_rate_min: u64,
    /// How long a connection may be without a request.
    pub idle_timeout: Duration,
    /// How long a tunnel (a WebSocket) may be without a byte in either direction.
    pub tunnel_idle_timeout: Duration,
    /// The most connections at once; more wait to be accepted.
    pub connections_max: usize,
}

/// What is behind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Upstream {
    /// `http` or `https`.
    pub is_tls: bool,
    /// Host, and port if it is not the scheme's.
    pub authority: http::uri::Authority,
    /// What is put before each path; no slash at its end.
    pub base_path: String,
    /// How long a connection may take, with its handshake.
    pub connect_timeout: Duration,
    /// How long the head of an answer may take, and then each piece of its body.
    pub timeout: Duration,
    /// Which version of HTTP.
    pub http: Http,
    /// Which `Host`.
    pub host: HostHeader,
    /// The most idle connections.
    pub idle_max: usize,
    /// How long a connection may be idle.
    pub idle_timeout: Duration,
    /// Who may vouch for its certificate.
    pub trust: Trust,
}

/// Where records are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Store {
    /// Its URL.
    pub url: Secret,
    /// What the cache of completed records may hold.
    pub cache_bytes: u64,
    /// A Redis that nodes share in front of it.
    pub shared_cache: Option<Secret>,
    /// The field in which clients say when they first sent an operation; only a quarantine asks for it.
    pub request_time_header: Option<HeaderName>,
}

/// How much at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Requests that have come whole: waiting, executed. As many more may still be sending.
    pub requests_max: usize,
    /// Requests at the upstream.
    pub executions_max: usize,
    /// Requests that wait for their turn.
    pub queue_max: usize,
    /// How long they wait.
    pub queue_timeout: Duration,
    /// Connections of one address.
    pub per_peer_connections_max: usize,
    /// Requests of one address, until their answers have been taken.
    pub per_peer_requests_max: usize,
    /// Addresses without these two limits; `None`: the trusted peers of the scope.
    pub per_peer_exempt: Option<Vec<IpNet>>,
}

/// What goes on without any request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Workers {
    /// This gateway, in the audit trail; `None`: host and process.
    pub node: Option<String>,
    /// How often, and how much at a time.
    pub options: WorkerOptions,
    /// Whether the audit trail tells of every first execution.
    pub audit_executions: bool,
    /// How long the ids of removed rows are remembered.
    pub removed_keys_for: Duration,
}

impl Config {
    /// Reads a file, if there is one, and what stands before it.
    pub fn load(path: Option<&Path>, given: &Given) -> Result<Self, ConfigError> {
        let text = match path {
            Some(path) => {
                std::fs::read_to_string(path).map_err(|error| ConfigError::unreadable(path, &error))?
            }
            None => String::new(),
        };
        Self::parse(path, &text, given)
    }

    /// The same of a text; `path` is what errors call it, and relative paths in it are relative to its folder.
    pub fn parse(path: Option<&Path>, text: &str, given: &Given) -> Result<Self, ConfigError> {
        let file: File = toml::from_str(text).map_err(|error| ConfigError::of_toml(path, text, &error))?;
        check::check(&file, given, &check::Source { path, text, environment: &given.environment })
    }

    /// All of them: the routes, and what holds where none matches.
    pub(crate) fn rules(&self) -> impl Iterator<Item = &Rule> {
        self.routes.iter().chain([&self.otherwise])
    }

    /// Whether a service is asked before a request of this operation is recorded or replayed.
    pub(crate) fn is_preauthorized(&self, operation: &str) -> bool {
        let is_of = |rule: &&Rule| rule.pattern == operation;
        self.routes.iter().find(is_of).unwrap_or(&self.otherwise).preauthorize.is_some()
    }

    /// How requests are read. Where no route is protected, no reading is refused: none could run
    /// what must be recorded.
    pub(crate) fn request_rules(&self) -> RequestRules {
        if self.rules().any(|rule| !rule.is_off()) {
            return self.request;
        }
        RequestRules { encoded_separators: Ambiguous::Pass, method_override: Ambiguous::Pass, ..self.request }
    }

    /// Every header that the file gives a meaning: no client may write it in a second way, nor
    /// have it dropped on the way.
    pub(crate) fn named_headers(&self) -> Vec<HeaderName> {
        let of_rules = self.rules().flat_map(|rule| {
            let policy = &rule.policy;
            policy.fingerprint_headers.iter().chain(&policy.request_headers)
        });
        let mut named: Vec<HeaderName> = of_rules.filter_map(|name| name.parse().ok()).collect();
        named.extend(self.preauthorize_headers().cloned());
        named.extend(self.scope.header().cloned());
        named.extend(self.scope.also.iter().cloned());
        named.extend(self.store.request_time_header.clone());
        named.sort_by(|one, other| one.as_str().cmp(other.as_str()));
        named.dedup();
        named
    }

    /// The headers that `preauthorize` of any route sends along besides the usual ones.
    pub(crate) fn preauthorize_headers(&self) -> impl Iterator<Item = &HeaderName> {
        let asked = self.rules().filter_map(|rule| rule.preauthorize.as_ref());
        asked.flat_map(|asked| &asked.headers)
    }

    /// The routes, for the layer.
    pub fn layer_routes(&self) -> Result<Routes, oncegate_tower::RouteError> {
        let mut routes = Routes::none().otherwise(self.otherwise.named())?;
        for rule in &self.routes {
            routes = routes.route(&rule.pattern, rule.named())?;
        }
        Ok(routes)
    }
}
