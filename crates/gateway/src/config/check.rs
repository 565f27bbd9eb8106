//! From what was typed to what can be used.

use std::net::{SocketAddr, ToSocketAddrs as _};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use http::header::AUTHORIZATION;
use http::{HeaderName, Uri};
use oncegate_core::policy::{ForwardKey, Profile};
use oncegate_engine::{Options, REMOVED_KEYS_MAX, WorkerOptions};
use toml::Spanned;

use super::admin;
use super::effect;
use super::error::ConfigError;
use super::file::{self, Anonymous, File, HostHeader, Http, ScopeFrom};
use super::limits;
use super::reconcile::{self, Environment};
use super::request::{self, RequestRules};
use super::rules::{self, Rule};
use super::scope::{From, ScopeRule};
use super::secret_file;
use super::show::without_secrets;
use super::trust::{self, Trust};
use super::word::{Count, Secret, Size, Span};
use super::{Config, Given, Listen, Store, TlsFiles, Upstream, Workers};

/// Where a value comes from that is not in the file.
const UPSTREAM: &str = "--upstream (ONCEGATE_UPSTREAM)";
const LISTEN: &str = "--listen (ONCEGATE_LISTEN)";
const STORE: &str = "--store (ONCEGATE_STORE)";
const PROFILE: &str = "--profile (ONCEGATE_PROFILE)";

/// Accepted requests that are executed at once, on one gateway: they share `limits.executions_max` with all others.
const DEFERRED_MAX: usize = 32;

/// What is being checked.
pub(super) struct Source<'a> {
    pub(super) path: Option<&'a Path>,
    pub(super) text: &'a str,
    pub(super) environment: &'a Environment,
}

impl Source<'_> {
    pub(super) fn error(&self, span: &Range<usize>, message: impl Into<String>) -> ConfigError {
        ConfigError::at(self.path, self.text, span, message)
    }

    /// The line of a setting, before a warning about it; nothing if it is not in the file.
    pub(super) fn line(&self, span: Option<Range<usize>>) -> String {
        let before = span.and_then(|span| self.text.get(..span.start));
        before.map_or_else(String::new, |text| format!("line {}: ", text.matches('\n').count() + 1))
    }

    /// Paths in the file are relative to its folder.
    pub(super) fn file(&self, path: &Path) -> PathBuf {
        match self.path.and_then(Path::parent) {
            Some(folder) => folder.join(path),
            None => path.to_owned(),
        }
    }
}

pub(super) fn check(file: &File, given: &Given, source: &Source<'_>) -> Result<Config, ConfigError> {
    let profile = given.profile.as_deref().map(str::parse::<Profile>).transpose();
    let profile = profile.map_err(|error| ConfigError::of(PROFILE, error.to_string()))?;
    let otherwise = rules::otherwise(&file.defaults, profile, source)?;
    let mut routes: Vec<Rule> = Vec::with_capacity(file.route.len());
    let mut layer = oncegate_tower::Routes::none();
    let request = RequestRules::of(&file.request);
    for typed in &file.route {
        let rule = rules::route(typed, &otherwise, source)?;
        let span = typed.get_ref().pattern.as_ref().map_or(typed.span(), Spanned::span);
        request::check_pattern(&rule.pattern, request).map_err(|words| source.error(&span, words))?;
        // Twice the same, or two that could both match: said at the second.
        layer = layer
            .route(&rule.pattern, rule.named())
            .map_err(|error| source.error(&span, error.to_string()))?;
        routes.push(rule);
    }
    let derives = |rule: &Rule| rule.policy.forward_key == ForwardKey::Derived;
    let derives = derives(&otherwise) || routes.iter().any(derives);
    let listen = listen(file, given, source)?;
    let mut config = Config {
        limits: limits::limits(&file.limits, &listen, source)?,
        listen,
        admin: admin::admin(file, given, source)?,
        upstream: upstream(file, given, source)?,
        store: store(file, given, source)?,
        scope: scope(file, source)?,
        request,
        workers: workers(file, source)?,
        drain: file.shutdown.drain.map_or(Duration::from_secs(30), |span| span.0),
        routes,
        otherwise,
        webhooks: reconcile::webhooks(&file.webhook, derives, source)?,
        effects: effect::effects(&file.effect, source)?,
        warnings: Vec::new(),
    };
    let has_webhooks = !config.webhooks.is_empty();
    for rule in config.routes.iter_mut().chain([&mut config.otherwise]) {
        rule.policy.expects_evidence = has_webhooks || rule.probe.is_some();
    }
    config.scope.identifying = config.preauthorize_headers().cloned().collect();
    config.warnings = super::warnings::warnings(&config, file, given, source);
    Ok(config)
}

fn listen(file: &File, given: &Given, source: &Source<'_>) -> Result<Listen, ConfigError> {
    let typed = &file.listen;
    let address =
        address((LISTEN, given.listen.as_deref()), typed.address.as_ref(), "127.0.0.1:8080", source)?;
    let tls = tls_files(typed.tls_certificate.as_ref(), typed.tls_key.as_ref(), source)?;
    let header_bytes_max = match &typed.header_bytes_max {
        None => 64 << 10,
        Some(size) => match usize::try_from(size.get_ref().0) {
            // hyper's own lower bound.
            Ok(bytes) if (8192..=16 << 20).contains(&bytes) => bytes,
            _ => return Err(source.error(&size.span(), "expected 8 KiB to 16 MiB")),
        },
    };
    Ok(Listen {
        address,
        tls,
        header_bytes_max,
        header_timeout: typed
            .header_timeout
            .as_ref()
            .map_or(Duration::from_secs(30), |span| span.get_ref().0),
        body_timeout: limits::span(typed.body_timeout.as_ref(), limits::BODY_TIMEOUT, source)?,
        body_deadline: limits::span(typed.body_deadline.as_ref(), limits::BODY_DEADLINE, source)?,
        body_rate_min: typed.body_rate_min.as_ref().map_or(limits::BODY_RATE_MIN, |rate| rate.get_ref().0),
        idle_timeout: typed.idle_timeout.as_ref().map_or(Duration::from_secs(75), |span| span.get_ref().0),
        tunnel_idle_timeout: reconcile::span_of(
            typed.tunnel_idle_timeout.as_ref(),
            Duration::from_mins(10),
            source,
        )?,
        connections_max: positive(typed.connections_max.as_ref(), 10_000, source)?,
    })
}

/// A certificate and its key: both, or none.
pub(super) fn tls_files(
    certificate: Option<&Spanned<PathBuf>>,
    key: Option<&Spanned<PathBuf>>,
    source: &Source<'_>,
) -> Result<Option<TlsFiles>, ConfigError> {
    match (certificate, key) {
        (Some(certificate), Some(key)) => Ok(Some(TlsFiles {
            certificate: source.file(certificate.get_ref()),
            key: source.file(key.get_ref()),
        })),
        (None, None) => Ok(None),
        (Some(one), None) | (None, Some(one)) => {
            Err(source.error(&one.span(), "`tls_certificate` and `tls_key` go together"))
        }
    }
}

fn upstream(file: &File, given: &Given, source: &Source<'_>) -> Result<Upstream, ConfigError> {
    let typed = &file.upstream;
    let wrong = |message: String| match (&given.upstream, &typed.url) {
        (None, Some(url)) => source.error(&url.span(), message),
        _ => ConfigError::of(UPSTREAM, message),
    };
    let Some(url) = given.upstream.as_deref().or(typed.url.as_ref().map(|url| url.get_ref().as_str())) else {
        return Err(ConfigError::of(
            "upstream",
            "there is nothing to put the gateway in front of; say --upstream http://127.0.0.1:3000, or url = \"…\" under [upstream]",
        ));
    };
    let expected = "expected the like of http://127.0.0.1:3000 or https://api.internal/v1";
    // A password does not belong there, but may be there.
    let safe = without_secrets(url);
    let uri: Uri =
        url.parse().map_err(|error| wrong(format!("{safe:?} is not a URL ({error}); {expected}")))?;
    let is_tls = match uri.scheme_str() {
        Some("http") => false,
        Some("https") => true,
        _ => return Err(wrong(format!("{safe:?} is neither http:// nor https://; {expected}"))),
    };
    let Some(authority) = uri.authority().filter(|authority| !authority.host().is_empty()) else {
        return Err(wrong(format!("{safe:?} has no host; {expected}")));
    };
    if authority.as_str().contains('@') {
        return Err(wrong("a user in the upstream's URL is not sent anywhere; drop it".to_owned()));
    }
    if uri.query().is_some() {
        return Err(wrong(
            "a query in the upstream's URL would be put into every request; drop it".to_owned(),
        ));
    }
    let span_of = |span: &Option<Spanned<Span>>, default: Duration| match span {
        Some(span) if span.get_ref().0.is_zero() => {
            Err(source.error(&span.span(), "must be greater than zero"))
        }
        Some(span) => Ok(span.get_ref().0),
        None => Ok(default),
    };
    Ok(Upstream {
        is_tls,
        authority: authority.clone(),
        base_path: uri.path().trim_end_matches('/').to_owned(),
        connect_timeout: span_of(&typed.connect_timeout, Duration::from_secs(5))?,
        timeout: span_of(&typed.timeout, Duration::from_mins(1))?,
        http: typed.http.map_or(Http::Auto, |word| word.0),
        host: typed.host.map_or(HostHeader::Upstream, |word| word.0),
        idle_max: typed.idle_max.map_or(256, |max| max.0),
        idle_timeout: typed.idle_timeout.map_or(Duration::from_secs(4), |span| span.0),
        trust: Trust::only(trust::authorities(typed.tls_ca.as_ref(), source)?),
    })
}

fn store(file: &File, given: &Given, source: &Source<'_>) -> Result<Store, ConfigError> {
    let typed = &file.store;
    let url = store_url(typed, given, source)?;
    let shared_cache = typed.shared_cache.as_ref().map(|shared| {
        let named = |words: String| source.error(&shared.span(), words);
        let url = secret_file::in_file(shared.get_ref(), source).map_err(named)?;
        if ["redis://", "rediss://"].iter().any(|scheme| url.expose().starts_with(scheme)) {
            return Ok(url);
        }
        Err(source.error(&shared.span(), "is not the URL of a Redis; expected redis://HOST/"))
    });
    let request_time_header = match &typed.request_time_header {
        None => None,
        Some(name) => Some(name.get_ref().parse().map_err(|_| {
            source.error(&name.span(), "is not the name of a header; expected one such as \"x-request-time\"")
        })?),
    };
    Ok(Store {
        url,
        request_time_header,
        cache_bytes: typed.cache_bytes.unwrap_or(Size(64 << 20)).0,
        shared_cache: shared_cache.transpose()?,
    })
}

/// The store's URL, wherever it stands.
fn store_url(typed: &file::Store, given: &Given, source: &Source<'_>) -> Result<Secret, ConfigError> {
    let (url, span) = match (&given.store, &typed.url, &typed.url_file) {
        (Some(given), ..) => (secret_file::store_url(given.expose(), source.environment), None),
        (None, Some(_), Some(file)) => {
            return Err(
                source.error(&file.span(), "`url` and `url_file` are two answers to one question; keep one")
            );
        }
        (None, Some(url), None) => (secret_file::in_file(url.get_ref(), source), Some(url.span())),
        (None, None, Some(path)) => (secret_file::read(&source.file(path.get_ref())), Some(path.span())),
        (None, None, None) => (Ok(Secret::new("sqlite://oncegate.db")), None),
    };
    let wrong = |message: String| match &span {
        Some(span) => source.error(span, message),
        None => ConfigError::of(STORE, message),
    };
    let url = url.map_err(wrong)?;
    // Only what kind of store it is: whether it is there is seen when it is opened.
    let is_known = match url.expose().split_once(':') {
        Some(("memory", rest)) => matches!(rest, "" | "//"),
        Some(("sqlite", rest)) => {
            rest.strip_prefix("//").is_some_and(|path| !path.is_empty() && !path.contains(['?', '#']))
        }
        Some(("postgres" | "postgresql" | "redis" | "rediss", rest)) => rest.starts_with("//"),
        _ => false,
    };
    if is_known {
        return Ok(url);
    }
    let message = "is not the URL of a store; expected memory:, sqlite://FILE, postgres://… or redis://…";
    Err(wrong(message.to_owned()))
}

/// Headers that are nobody's name: raw credentials would be kept and shown, and the others say something else.
const NOT_IDENTITIES: [&str; 8] = [
    "authorization",
    "proxy-authorization",
    "cookie",
    "idempotency-key",
    "host",
    "connection",
    "content-type",
    "content-length",
];

fn scope(file: &File, source: &Source<'_>) -> Result<ScopeRule, ConfigError> {
    let typed = &file.scope;
    let from = match typed.from.as_ref().map(|from| from.get_ref().0) {
        None | Some(ScopeFrom::Authorization) => {
            if let Some(span) = typed.header.as_ref().map(Spanned::span) {
                return Err(source.error(&span, "has an effect only with scope.from = \"header\""));
            }
            From::Authorization
        }
        Some(ScopeFrom::Header) => {
            let span = typed.from.as_ref().map_or(0..0, Spanned::span);
            let Some(header) = &typed.header else {
                return Err(source.error(&span, "which header? Say header = \"x-tenant\" beside it"));
            };
            let name = header.get_ref().to_ascii_lowercase().parse();
            let name = name.map_err(|_| source.error(&header.span(), "is not the name of a header"))?;
            let name: HeaderName = name;
            if NOT_IDENTITIES.contains(&name.as_str()) || rules::is_gateways(&name) {
                let words = format!(
                    "{name} cannot be the tenant's name; expected a header that a proxy in front sets, such as \"x-tenant\""
                );
                return Err(source.error(&header.span(), words));
            }
            if typed.trusted_peers.as_ref().is_none_or(|peers| peers.get_ref().is_empty()) {
                return Err(source.error(
                    &span,
                    "a header that anybody may set is no identity: say from whom it is believed, trusted_peers = [\"10.0.0.0/8\"]",
                ));
            }
            From::Header(name)
        }
    };
    let shares_anonymous = typed.anonymous.as_ref().is_some_and(|word| word.get_ref().0 == Anonymous::Share);
    let mut named = also(typed.also.as_ref(), &[], &from, source)?;
    let also_public = also(typed.also_public.as_ref(), &named, &from, source)?;
    if let Some(names) = typed.also_public.as_ref().filter(|_| also_public.contains(&AUTHORIZATION)) {
        let words =
            "\"authorization\" is a secret, which would be shown in lists and metrics; name it in scope.also";
        return Err(source.error(&names.span(), words));
    }
    named.extend_from_slice(&also_public);
    let peers = typed.trusted_peers.iter().flat_map(Spanned::get_ref);
    let trusted_peers = peers.map(|peer| peer.0).collect();
    // The routes say which, once they are known.
    let identifying = Vec::new();
    Ok(ScopeRule { from, trusted_peers, also: named, also_public, identifying, shares_anonymous })
}

/// Headers of one of the two lists of what is part of the tenant, too. Of credentials only
/// `authorization`, and never by its value.
fn also(
    typed: Option<&Spanned<Vec<String>>>,
    other: &[HeaderName],
    from: &From,
    source: &Source<'_>,
) -> Result<Vec<HeaderName>, ConfigError> {
    let mut also: Vec<HeaderName> = Vec::new();
    let Some(names) = typed else { return Ok(also) };
    for text in names.get_ref() {
        let wrong = |words: &str| source.error(&names.span(), format!("{text:?} {words}"));
        let name: HeaderName = text.parse().map_err(|_| wrong("is not the name of a header"))?;
        let is_main = match from {
            From::Authorization => name == AUTHORIZATION,
            From::Header(main) => name == *main,
        };
        if is_main {
            return Err(wrong("is where the tenant comes from already; leave it out"));
        }
        let is_no_identity = NOT_IDENTITIES.contains(&name.as_str()) || rules::is_gateways(&name);
        if name != AUTHORIZATION && is_no_identity {
            return Err(wrong("cannot be part of a tenant; expected a header such as \"stripe-account\""));
        }
        if other.contains(&name) {
            return Err(wrong("is in both scope.also and scope.also_public; keep one"));
        }
        if !also.contains(&name) {
            also.push(name);
        }
    }
    Ok(also)
}

fn workers(file: &File, source: &Source<'_>) -> Result<Workers, ConfigError> {
    let typed = &file.workers;
    let default = WorkerOptions::default();
    if let Some(node) = typed.node.as_ref().filter(|node| node.get_ref().trim().is_empty()) {
        return Err(
            source.error(&node.span(), "expected a name; leave it out for host and process".to_owned())
        );
    }
    Ok(Workers {
        node: typed.node.as_ref().map(|node| node.get_ref().clone()),
        options: WorkerOptions {
            sweep_every: pause(typed.sweep_every.as_ref(), default.sweep_every, source)?,
            reap_every: pause(typed.reap_every.as_ref(), default.reap_every, source)?,
            reconcile_every: pause(typed.reconcile_every.as_ref(), default.reconcile_every, source)?,
            probes_at_once: positive(typed.probes_max.as_ref(), default.probes_at_once, source)?,
            complete_every: pause(typed.deferred_every.as_ref(), default.complete_every, source)?,
            completions_at_once: positive(typed.deferred_max.as_ref(), DEFERRED_MAX, source)?,
            apart_for: typed.early_events_for.map_or(default.apart_for, |span| span.0),
            audit_retention: pause(typed.audit_retention.as_ref(), default.audit_retention, source)?,
            ..default
        },
        audit_executions: typed.audit_executions.unwrap_or(false),
        removed_keys_for: match &typed.removed_keys_for {
            None => Options::default().removed_keys_for,
            Some(span) if span.get_ref().0 <= REMOVED_KEYS_MAX => span.get_ref().0,
            Some(span) => {
                let words = "expected 31d or less, because a look-up asks for each day by itself";
                return Err(source.error(&span.span(), words.to_owned()));
            }
        },
    })
}

/// A pause of nothing would be a loop that never rests.
fn pause(
    given: Option<&Spanned<Span>>,
    default: Duration,
    source: &Source<'_>,
) -> Result<Duration, ConfigError> {
    match given {
        None => Ok(default),
        Some(span) if span.get_ref().0 >= Duration::from_millis(10) => Ok(span.get_ref().0),
        Some(span) => Err(source.error(&span.span(), "expected 10ms or more".to_owned())),
    }
}

pub(super) fn positive(
    given: Option<&Spanned<Count>>,
    default: usize,
    source: &Source<'_>,
) -> Result<usize, ConfigError> {
    // What a semaphore can count to.
    const MOST: usize = 1 << 24;
    match given {
        None => Ok(default),
        Some(number) if (1..=MOST).contains(&number.get_ref().0) => Ok(number.get_ref().0),
        Some(number) => Err(source.error(&number.span(), format!("expected a number from 1 to {MOST}"))),
    }
}

pub(super) fn address(
    (flag, given): (&str, Option<&str>),
    typed: Option<&Spanned<String>>,
    default: &str,
    source: &Source<'_>,
) -> Result<SocketAddr, ConfigError> {
    let text = given.or(typed.map(|typed| typed.get_ref().as_str())).unwrap_or(default);
    // A name is looked up; most are addresses.
    let found = text.parse().ok().or_else(|| text.to_socket_addrs().ok()?.next());
    found.ok_or_else(|| {
        let message = format!(
            "{text:?} is not an address to listen on; expected the like of 127.0.0.1:8080 or [::]:8080"
        );
        match (given, typed) {
            (None, Some(typed)) => source.error(&typed.span(), message),
            _ => ConfigError::of(flag, message),
        }
    })
}
