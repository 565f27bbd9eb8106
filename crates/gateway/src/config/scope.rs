//! Whose request it is, by the file's rule.

use std::borrow::Cow;
use std::fmt::Write as _;

use http::request::Parts;
use ipnet::IpNet;
use oncegate_tower::scope::{self, Tenant};
use sha2::{Digest as _, Sha256};

use crate::public::{Peer, is_of_proxies};

/// Where the tenant comes from.
///
/// Verified tokens and client certificates will be further variants of [`From`]; what they verify reaches this point in the request's
/// extensions, as the peer's address does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScopeRule {
    /// From what.
    pub from: From,
    /// The proxies in front: what they say of their clients is believed.
    pub trusted_peers: Vec<IpNet>,
    /// Further headers whose values are part of the tenant. They need no trust: they only divide
    /// the keys of a caller that is known already.
    pub also: Vec<http::HeaderName>,
    /// Those of them whose values are no secrets; of the others a digest is part of the tenant.
    pub also_public: Vec<http::HeaderName>,
    /// Headers by which a service that is asked (`preauthorize`) knows the caller. They are no part
    /// of the tenant, but a deferred request keeps them with its other credentials.
    pub identifying: Vec<http::HeaderName>,
    /// Whether all who show nothing share one scope.
    pub shares_anonymous: bool,
}

/// From what the tenant comes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum From {
    /// A digest of the `Authorization` header.
    Authorization,
    /// A header of this name, which only the trusted peers may set.
    Header(http::HeaderName),
}

impl ScopeRule {
    /// The header that is believed, if one is.
    #[must_use]
    pub const fn header(&self) -> Option<&http::HeaderName> {
        match &self.from {
            From::Header(name) => Some(name),
            From::Authorization => None,
        }
    }

    /// Removes what only a trusted proxy may say of a client, with or without a key: the header
    /// that names the tenant, `Forwarded`, `X-Forwarded-*`, and the headers that say its address.
    pub(crate) fn strip_untrusted<B>(&self, request: &mut http::Request<B>) {
        if self.is_trusted(request.extensions()) {
            return;
        }
        if let From::Header(name) = &self.from
            && request.headers_mut().remove(name).is_some()
        {
            request.extensions_mut().insert(Stripped);
        }
        while let Some(name) = request.headers().keys().find(|name| is_of_proxies(name.as_str())).cloned() {
            request.headers_mut().remove(name);
        }
    }

    /// Whether a request comes from a trusted peer.
    fn is_trusted(&self, extensions: &http::Extensions) -> bool {
        // A v4 address that came through a v6 socket is the v4 address.
        let peer = extensions.get::<Peer>().map(|Peer(address)| address.ip().to_canonical());
        peer.is_some_and(|peer| self.trusted_peers.iter().any(|net| net.contains(&peer)))
    }

    /// The tenant together with the further headers: `+name=` and a digest, or `+name:` and the
    /// value if it is public. Characters that separate are escaped, so that two compositions are
    /// never the same text. A tenant is shown in lists, metrics and the audit trail.
    fn compose<'r>(&self, tenant: Cow<'r, str>, request: &Parts) -> Option<Cow<'r, str>> {
        if self.also.is_empty() {
            return Some(tenant);
        }
        let mut text = escape(&tenant);
        for name in &self.also {
            let mut values = request.headers.get_all(name).iter();
            let value = match (values.next(), values.next()) {
                (None, _) => name.to_string(),
                (Some(_), None) if *name == http::header::AUTHORIZATION => {
                    scope::authorization().of(request)?.into_owned()
                }
                (Some(value), None) if self.also_public.contains(name) => {
                    format!("{name}:{}", escape(value.to_str().ok()?.trim()))
                }
                (Some(value), None) => format!("{name}={}", digest(value)),
                (Some(_), Some(_)) => return None,
            };
            text.push('+');
            text.push_str(&value);
        }
        Some(Cow::Owned(text))
    }
}

/// The header that names the tenant was there, and was removed because the peer is not trusted.
#[derive(Clone, Copy, Debug)]
struct Stripped;

/// 128 bits of a digest: the whole name of a tenant has a limit.
fn digest(value: &http::HeaderValue) -> String {
    let digest = Sha256::digest(value.as_bytes().trim_ascii());
    let mut digits = String::with_capacity(32);
    for byte in digest.iter().take(16) {
        let _ = write!(digits, "{byte:02x}");
    }
    digits
}

fn escape(text: &str) -> String {
    text.replace('%', "%25").replace('+', "%2B")
}

/// All who show nothing, where the file says that they share. No other tenant's text can be this: digests and header values have a
/// prefix of their own.
const ANONYMOUS: &str = "anonymous";

/// Who sent a request, before further headers are added.
enum Caller<'r> {
    Known(Cow<'r, str>),
    /// It shows something that is not believed, or cannot be read.
    Unknown,
    /// It shows nothing.
    Anonymous,
}

impl ScopeRule {
    fn caller<'r>(&self, request: &'r Parts) -> Caller<'r> {
        let (tenant, shows_something) = match &self.from {
            From::Authorization => {
                let shown = request.headers.contains_key(http::header::AUTHORIZATION);
                (scope::authorization().of(request), shown)
            }
            From::Header(name) => {
                let stripped = request.extensions.get::<Stripped>().is_some();
                let shown = stripped || request.headers.contains_key(name);
                let is_trusted = self.is_trusted(&request.extensions);
                let tenant = if is_trusted { of_header(name, request) } else { None };
                (tenant, shown)
            }
        };
        match tenant {
            Some(tenant) => Caller::Known(tenant),
            None if shows_something => Caller::Unknown,
            None => Caller::Anonymous,
        }
    }
}

impl Tenant for ScopeRule {
    fn of<'r>(&self, request: &'r Parts) -> Option<Cow<'r, str>> {
        match self.caller(request) {
            Caller::Known(tenant) => self.compose(tenant, request),
            Caller::Anonymous if self.shares_anonymous => self.compose(ANONYMOUS.into(), request),
            Caller::Unknown | Caller::Anonymous => None,
        }
    }

    /// Also where further headers divide the anonymous callers: any client may set those.
    fn is_shared(&self, request: &Parts) -> bool {
        matches!(self.caller(request), Caller::Anonymous)
    }

    fn headers(&self) -> Vec<http::HeaderName> {
        self.header().into_iter().chain(&self.also).chain(&self.identifying).cloned().collect()
    }

    fn advice(&self, refused: &Parts) -> Cow<'static, str> {
        match &self.from {
            From::Authorization => "Send exactly one Authorization header. Operators: `scope.from = \"header\"` takes the tenant \
                                    from a trusted proxy's header instead, and `scope.anonymous = \"share\"` lets all who send \
                                    none share one space of keys"
                .into(),
            From::Header(name) if !self.is_trusted(&refused.extensions) => {
                format!(
                    "The header {name} is believed only from `scope.trusted_peers`, and this request comes from elsewhere. \
                     Operators: add the address of the proxy in front, or use `scope.from = \"authorization\"`"
                )
                .into()
            }
            From::Header(name) => format!(
                "Exactly one header {name} is needed, and the proxy in front sets it. Operators: `scope.anonymous = \"share\"` lets \
                 all requests without one share one space of keys"
            )
            .into(),
        }
    }
}

fn of_header<'r>(name: &http::HeaderName, request: &'r Parts) -> Option<Cow<'r, str>> {
    let mut values = request.headers.get_all(name).iter();
    let (Some(value), None) = (values.next(), values.next()) else { return None };
    let value = value.to_str().ok()?.trim();
    (!value.is_empty()).then(|| format!("{name}:{value}").into())
}
