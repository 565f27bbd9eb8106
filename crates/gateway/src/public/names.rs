//! Header names that have a second reading behind the gateway.

use http::{HeaderMap, HeaderName, HeaderValue};

/// Headers that decide what a request is, who sent it or how it is framed. Servers that turn
/// headers into variables (CGI, WSGI, PHP) read `Content_Type` as `Content-Type`.
const THAT_MATTER: [&str; 12] = [
    "content-encoding",
    "content-length",
    "content-type",
    "idempotency-attempt",
    "idempotency-key",
    "oncegate-original-method",
    "oncegate-original-route",
    "oncegate-original-uri",
    "proxy-authorization",
    "transfer-encoding",
    "true-client-ip",
    "x-real-ip",
];

/// Headers by which some frameworks let a client replace the method or the target.
const THAT_OVERRIDE: [&str; 9] = [
    "x-http-method",
    "x-http-method-override",
    "x-method-override",
    "x-original-method",
    "x-original-uri",
    "x-original-url",
    "x-override-url",
    "x-rewrite-uri",
    "x-rewrite-url",
];

/// Whether a name collides with a header that matters, or with another one of the request, once
/// `_` is read as `-`. `named` are those that the configuration names.
pub(super) fn has_collision(headers: &HeaderMap, named: &[HeaderName]) -> bool {
    let has_underscore = |name: &&HeaderName| name.as_str().contains('_');
    let of_clients = headers.keys().filter(has_underscore).any(|name| {
        let matters =
            THAT_MATTER.into_iter().chain(THAT_OVERRIDE).any(|other| reads_as(name.as_str(), other));
        let is_beside = || headers.keys().any(|other| reads_as(name.as_str(), other.as_str()));
        matters
            || is_forwarded(name.as_str())
            || named.iter().any(|other| reads_as(name.as_str(), other.as_str()))
            || is_beside()
    });
    let of_file = || {
        let mut named = named.iter().filter(has_underscore);
        named.any(|other| headers.keys().any(|name| reads_as(name.as_str(), other.as_str())))
    };
    of_clients || of_file()
}

/// The header that would replace the method or the target, if there is one.
pub(super) fn override_header(headers: &HeaderMap) -> Option<&HeaderName> {
    headers.keys().find(|name| is_override(name))
}

/// Every line of such a header.
pub(super) fn overrides(headers: &HeaderMap) -> impl Iterator<Item = (&HeaderName, &HeaderValue)> {
    headers.iter().filter(|(name, _)| is_override(name))
}

fn is_override(name: &HeaderName) -> bool {
    name.as_str().starts_with("x-") && THAT_OVERRIDE.contains(&name.as_str())
}

/// Proxies say many things about their clients in such headers.
fn is_forwarded(name: &str) -> bool {
    name.get(..12).is_some_and(|start| reads_as(start, "x-forwarded-") || start == "x-forwarded-")
}

/// Whether two different names are the same once `_` is read as `-`.
fn reads_as(name: &str, other: &str) -> bool {
    let dash = |byte: u8| if byte == b'_' { b'-' } else { byte };
    name != other && name.len() == other.len() && name.bytes().map(dash).eq(other.bytes().map(dash))
}
