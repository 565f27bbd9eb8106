//! The file, as it is typed. Nothing is checked here beyond each value by itself.

pub(super) mod reconcile;

use std::net::IpAddr;
use std::path::PathBuf;

use ipnet::IpNet;
use oncegate_core::fingerprint::{Fields, Mode, Pointer};
use oncegate_core::policy::{
    AfterDoubt, Credentials, EmptyKey, ForwardKey, KeySyntax, Mismatch, MismatchStatus, OnServerError,
    OnUnavailable, Profile, ScopeWidth, StoredStatuses, WhileInProgress,
};
use oncegate_core::record::{CrashPolicy, Execution, RetentionFrom};
use serde::Deserialize;
use serde::de::{Deserializer, Error as _};
use toml::Spanned;

use super::word::{Count, Secret, Size, Span, Word, Words};

/// The whole file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct File {
    pub(crate) listen: Listen,
    pub(crate) admin: Admin,
    pub(crate) upstream: Upstream,
    pub(crate) store: Store,
    pub(crate) scope: Scope,
    pub(crate) request: super::request::Typed,
    pub(crate) limits: Limits,
    pub(crate) workers: Workers,
    pub(crate) shutdown: Shutdown,
    pub(crate) defaults: Rules,
    pub(crate) route: Vec<Spanned<Rules>>,
    pub(crate) webhook: Vec<Spanned<reconcile::Webhook>>,
    pub(crate) effect: Vec<Spanned<reconcile::Effect>>,
}

/// `[listen]`
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Listen {
    pub(crate) address: Option<Spanned<String>>,
    pub(crate) tls_certificate: Option<Spanned<PathBuf>>,
    pub(crate) tls_key: Option<Spanned<PathBuf>>,
    pub(crate) header_bytes_max: Option<Spanned<Size>>,
    pub(crate) header_timeout: Option<Spanned<Span>>,
    pub(crate) body_timeout: Option<Spanned<Span>>,
    pub(crate) body_deadline: Option<Spanned<Span>>,
    pub(crate) body_rate_min: Option<Spanned<Size>>,
    pub(crate) idle_timeout: Option<Spanned<Span>>,
    pub(crate) tunnel_idle_timeout: Option<Spanned<Span>>,
    pub(crate) connections_max: Option<Spanned<Count>>,
}

/// `[admin]`
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Admin {
    pub(crate) address: Option<Spanned<String>>,
    pub(crate) token: Option<Spanned<Secret>>,
    pub(crate) token_file: Option<Spanned<PathBuf>>,
    pub(crate) tls_certificate: Option<Spanned<PathBuf>>,
    pub(crate) tls_key: Option<Spanned<PathBuf>>,
    pub(crate) plaintext: Option<Spanned<bool>>,
    pub(crate) connections_max: Option<Spanned<Count>>,
}

/// `[upstream]`
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Upstream {
    pub(crate) url: Option<Spanned<String>>,
    pub(crate) connect_timeout: Option<Spanned<Span>>,
    pub(crate) timeout: Option<Spanned<Span>>,
    pub(crate) http: Option<Word<Http>>,
    pub(crate) host: Option<Word<HostHeader>>,
    pub(crate) idle_max: Option<Count>,
    pub(crate) idle_timeout: Option<Span>,
    pub(crate) tls_ca: Option<Spanned<PathBuf>>,
}

/// Which version of HTTP the upstream is spoken to in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Http {
    /// HTTP/2 if the upstream offers it in the TLS handshake, else HTTP/1.1.
    Auto,
    /// HTTP/1.1.
    One,
    /// HTTP/2; without TLS the upstream must know it beforehand.
    Two,
}

impl Words for Http {
    const TABLE: &'static [(&'static str, Self)] =
        &[("auto", Self::Auto), ("1", Self::One), ("2", Self::Two)];
}

/// Which `Host` the upstream is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostHeader {
    /// Its own, from its URL.
    Upstream,
    /// The client's.
    Client,
}

impl Words for HostHeader {
    const TABLE: &'static [(&'static str, Self)] = &[("upstream", Self::Upstream), ("client", Self::Client)];
}

/// `[store]`
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Store {
    pub(crate) url: Option<Spanned<Secret>>,
    pub(crate) url_file: Option<Spanned<PathBuf>>,
    pub(crate) cache_bytes: Option<Size>,
    pub(crate) shared_cache: Option<Spanned<Secret>>,
    pub(crate) request_time_header: Option<Spanned<String>>,
}

/// `[scope]`
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Scope {
    pub(crate) from: Option<Spanned<Word<ScopeFrom>>>,
    pub(crate) header: Option<Spanned<String>>,
    pub(crate) trusted_peers: Option<Spanned<Vec<Peer>>>,
    pub(crate) also: Option<Spanned<Vec<String>>>,
    pub(crate) also_public: Option<Spanned<Vec<String>>>,
    pub(crate) anonymous: Option<Spanned<Word<Anonymous>>>,
}

/// Where the tenant comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ScopeFrom {
    Authorization,
    Header,
}

impl Words for ScopeFrom {
    const TABLE: &'static [(&'static str, Self)] =
        &[("authorization", Self::Authorization), ("header", Self::Header)];
}

/// What a request with a key but without credentials is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Anonymous {
    Refuse,
    Share,
}

impl Words for Anonymous {
    const TABLE: &'static [(&'static str, Self)] = &[("refuse", Self::Refuse), ("share", Self::Share)];
}

/// An address, or a network of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Peer(pub(crate) IpNet);

impl Peer {
    /// Whether it is wider than any private network: clients are among those that are trusted.
    pub(crate) fn is_wide(self) -> bool {
        match self.0 {
            IpNet::V4(net) => net.prefix_len() < 8,
            IpNet::V6(net) => net.prefix_len() < 7,
        }
    }
}

impl<'de> Deserialize<'de> for Peer {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        // A single address is a network of one.
        let net = text.parse::<IpNet>().ok().or_else(|| Some(text.parse::<IpAddr>().ok()?.into()));
        net.map(Self).ok_or_else(|| {
            D::Error::custom(format!(
                "{text:?} is not an address or a network; expected the like of \"10.0.0.7\" or \"10.0.0.0/8\""
            ))
        })
    }
}

/// `[limits]`
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Limits {
    pub(crate) requests_max: Option<Spanned<Count>>,
    pub(crate) executions_max: Option<Spanned<Count>>,
    pub(crate) queue_max: Option<Spanned<Count>>,
    pub(crate) queue_timeout: Option<Span>,
    pub(crate) per_peer_connections_max: Option<Spanned<Count>>,
    pub(crate) per_peer_requests_max: Option<Spanned<Count>>,
    pub(crate) per_peer_exempt: Option<Spanned<Vec<Peer>>>,
}

/// `[workers]`
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Workers {
    pub(crate) node: Option<Spanned<String>>,
    pub(crate) sweep_every: Option<Spanned<Span>>,
    pub(crate) reap_every: Option<Spanned<Span>>,
    pub(crate) reconcile_every: Option<Spanned<Span>>,
    pub(crate) probes_max: Option<Spanned<Count>>,
    pub(crate) deferred_every: Option<Spanned<Span>>,
    pub(crate) deferred_max: Option<Spanned<Count>>,
    pub(crate) early_events_for: Option<Span>,
    pub(crate) audit_retention: Option<Spanned<Span>>,
    pub(crate) audit_executions: Option<bool>,
    pub(crate) removed_keys_for: Option<Spanned<Span>>,
}

/// `[shutdown]`
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Shutdown {
    pub(crate) drain: Option<Span>,
}

/// `[defaults]`, and each `[[route]]`: a profile, and what is otherwise than it says.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Rules {
    #[serde(rename = "match")]
    pub(crate) pattern: Option<Spanned<String>>,
    pub(crate) name: Option<Spanned<String>>,
    pub(crate) formerly: Option<Spanned<Vec<String>>>,
    pub(crate) profile: Option<Spanned<ProfileName>>,
    pub(crate) methods: Option<Spanned<Vec<String>>>,
    pub(crate) execution: Option<Word<Execution>>,
    pub(crate) respond_async: Option<bool>,
    pub(crate) request_headers: Option<Spanned<Vec<String>>>,
    pub(crate) credentials: Option<Spanned<Word<Credentials>>>,
    pub(crate) key_required: Option<Spanned<bool>>,
    pub(crate) key_empty: Option<Word<EmptyKey>>,
    pub(crate) key_syntax: Option<Word<KeySyntax>>,
    pub(crate) key_chars_min: Option<Spanned<Count>>,
    pub(crate) key_chars_max: Option<Spanned<Count>>,
    pub(crate) key_form: Option<Spanned<String>>,
    pub(crate) forward_key: Option<Spanned<Word<ForwardKey>>>,
    pub(crate) scope: Option<Word<ScopeWidth>>,
    pub(crate) fingerprint: Option<Spanned<Fingerprint>>,
    pub(crate) fingerprint_headers: Option<Spanned<Vec<String>>>,
    pub(crate) mismatch: Option<Spanned<Word<Mismatch>>>,
    pub(crate) in_progress: Option<Spanned<Word<WhileInProgress>>>,
    pub(crate) after_doubt: Option<Spanned<Word<AfterDoubt>>>,
    pub(crate) stored: Option<Word<StoredStatuses>>,
    pub(crate) server_error: Option<Word<OnServerError>>,
    pub(crate) unavailable: Option<Word<OnUnavailable>>,
    pub(crate) crash: Option<Spanned<Word<CrashPolicy>>>,
    pub(crate) lease: Option<Spanned<Span>>,
    pub(crate) attempt_deadline: Option<Spanned<Span>>,
    pub(crate) retention: Option<Spanned<Span>>,
    pub(crate) retention_from: Option<Word<RetentionFrom>>,
    pub(crate) after_retention: Option<Spanned<Word<After>>>,
    pub(crate) tombstone: Option<Spanned<Span>>,
    pub(crate) horizon: Option<Spanned<Span>>,
    pub(crate) wait_limit: Option<Span>,
    pub(crate) patience: Option<Span>,
    pub(crate) body_bytes_max: Option<Size>,
    pub(crate) answer_bytes_max: Option<Size>,
    pub(crate) keep_cookies: Option<bool>,
    pub(crate) retry_in_progress: Option<Span>,
    pub(crate) retry_unknown: Option<Span>,
    pub(crate) client_retry: Option<Span>,
    pub(crate) probe: Option<Spanned<reconcile::Probe>>,
    pub(crate) preauthorize: Option<Spanned<Preauthorize>>,
}

/// Who is asked before a request is recorded or replayed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Preauthorize {
    /// No service, whatever the defaults say.
    Off,
    Ask {
        url: String,
        timeout: Option<Span>,
        headers: Vec<String>,
        tls_ca: Option<PathBuf>,
    },
}

impl<'de> Deserialize<'de> for Preauthorize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Table {
            url: String,
            timeout: Option<Span>,
            #[serde(default)]
            headers: Vec<String>,
            tls_ca: Option<PathBuf>,
        }
        const EXPECTED: &str =
            "expected { url = \"/auth/check\", timeout = \"2s\", headers = [\"x-api-key\"] } or \"off\"";
        match toml::Value::deserialize(deserializer)? {
            toml::Value::String(text) if text == "off" => Ok(Self::Off),
            value @ toml::Value::Table(_) => {
                let Table { url, timeout, headers, tls_ca } =
                    value.try_into().map_err(|error: toml::de::Error| {
                        D::Error::custom(format!("{}; {EXPECTED}", error.message()))
                    })?;
                Ok(Self::Ask { url, timeout, headers, tls_ca })
            }
            _ => Err(D::Error::custom(EXPECTED)),
        }
    }
}

/// A profile, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProfileName(pub(crate) Profile);

impl<'de> Deserialize<'de> for ProfileName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map(Self).map_err(D::Error::custom)
    }
}

/// What a key past retention is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum After {
    Fresh,
    Gone,
    NotFound,
}

impl Words for After {
    const TABLE: &'static [(&'static str, Self)] =
        &[("fresh", Self::Fresh), ("410", Self::Gone), ("404", Self::NotFound)];
}

/// What makes two requests the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fingerprint(pub(crate) Mode);

impl<'de> Deserialize<'de> for Fingerprint {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields, default)]
        #[derive(Default)]
        struct Parts {
            only: Option<Vec<String>>,
            without: Option<Vec<String>>,
        }
        const EXPECTED: &str = "expected \"json\", \"raw\", \"none\", { only = [\"/amount\", …] } or { without = [\"/sent_at\", …] }";
        let pointers = |list: Vec<String>| -> Result<Vec<Pointer>, D::Error> {
            let parsed = list.iter().map(|text| text.parse::<Pointer>());
            parsed.collect::<Result<_, _>>().map_err(|error| D::Error::custom(format!("{error}; {EXPECTED}")))
        };
        match toml::Value::deserialize(deserializer)? {
            toml::Value::String(text) => match text.as_str() {
                "json" => Ok(Self(Mode::Json)),
                "raw" => Ok(Self(Mode::Raw)),
                "none" => Ok(Self(Mode::None)),
                _ => Err(D::Error::custom(format!("{text:?} is no fingerprint; {EXPECTED}"))),
            },
            value @ toml::Value::Table(_) => {
                let parts: Parts = value.try_into().map_err(|error: toml::de::Error| {
                    D::Error::custom(format!("{}; {EXPECTED}", error.message()))
                })?;
                match (parts.only, parts.without) {
                    (Some(only), None) => Ok(Self(Mode::Fields(Fields::Include(pointers(only)?)))),
                    (None, Some(without)) => Ok(Self(Mode::Fields(Fields::Exclude(pointers(without)?)))),
                    _ => Err(D::Error::custom(EXPECTED)),
                }
            }
            _ => Err(D::Error::custom(EXPECTED)),
        }
    }
}

impl Words for Execution {
    const TABLE: &'static [(&'static str, Self)] = &[("inline", Self::Inline), ("deferred", Self::Deferred)];
}

impl Words for Credentials {
    const TABLE: &'static [(&'static str, Self)] = &[("kept", Self::Kept), ("dropped", Self::Dropped)];
}

impl Words for EmptyKey {
    const TABLE: &'static [(&'static str, Self)] = &[("refused", Self::Refused), ("absent", Self::Absent)];
}

impl Words for KeySyntax {
    const TABLE: &'static [(&'static str, Self)] =
        &[("structured", Self::Structured), ("opaque", Self::Opaque), ("either", Self::Either)];
}

impl Words for ForwardKey {
    const TABLE: &'static [(&'static str, Self)] =
        &[("as-is", Self::AsIs), ("derived", Self::Derived), ("none", Self::None)];
}

impl Words for ScopeWidth {
    const TABLE: &'static [(&'static str, Self)] =
        &[("tenant", Self::Tenant), ("tenant+operation", Self::TenantAndOperation)];
}

impl Words for Mismatch {
    const TABLE: &'static [(&'static str, Self)] = &[
        ("422", Self::Refuse(MismatchStatus::Unprocessable)),
        ("400", Self::Refuse(MismatchStatus::BadRequest)),
        ("409", Self::Refuse(MismatchStatus::Conflict)),
        ("replay", Self::Replay),
    ];
}

impl Words for WhileInProgress {
    const TABLE: &'static [(&'static str, Self)] =
        &[("reject", Self::Reject), ("accept", Self::Accept), ("wait", Self::Wait)];
}

impl Words for AfterDoubt {
    const TABLE: &'static [(&'static str, Self)] =
        &[("reject", Self::Reject), ("accept", Self::Accept), ("wait", Self::WaitThenReject)];
}

impl Words for StoredStatuses {
    const TABLE: &'static [(&'static str, Self)] =
        &[("2xx-3xx", Self::Successes), ("2xx-4xx", Self::SuccessesAndClientErrors), ("all", Self::All)];
}

impl Words for OnServerError {
    const TABLE: &'static [(&'static str, Self)] =
        &[("release", Self::Release), ("store", Self::Store), ("doubt", Self::Doubt)];
}

impl Words for OnUnavailable {
    const TABLE: &'static [(&'static str, Self)] = &[("release", Self::Release), ("doubt", Self::Doubt)];
}

impl Words for CrashPolicy {
    const TABLE: &'static [(&'static str, Self)] =
        &[("reconcile", Self::Reconcile), ("resume", Self::Resume), ("restart", Self::Restart)];
}

impl Words for RetentionFrom {
    const TABLE: &'static [(&'static str, Self)] =
        &[("settlement", Self::Settlement), ("creation", Self::Creation)];
}
