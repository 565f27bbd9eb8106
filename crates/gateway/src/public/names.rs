//! Header names that have a second reading behind the gateway.

use http::{HeaderMap, HeaderName};

/// Headers that decide what a request is, who sent it or how it is framed. Servers that turn
/// headers into variables (CGI, WSGI, PHP) read `Content_Type` as `Content-Type`, and some of them
/// `Content.Type` too.
const THAT_MATTER: [&str; 10] = [
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
];

/// Headers by which proxies say which address a client has, besides `Forwarded` and
/// `X-Forwarded-*`.
const OF_ADDRESSES: [&str; 29] = [
    "ali-cdn-real-ip",
    "cf-connecting-ip",
    "cf-connecting-ipv6",
    "cf-pseudo-ipv4",
    "client-ip",
    "cloudfront-viewer-address",
    "do-connecting-ip",
    "fastly-client-ip",
    "fly-client-ip",
    "forwarded-for",
    "incap-client-ip",
    "proxy-client-ip",
    "remote-addr",
    "true-client-ip",
    "wl-proxy-client-ip",
    "x-azure-clientip",
    "x-azure-socketip",
    "x-client-ip",
    "x-cluster-client-ip",
    "x-envoy-external-address",
    "x-forwarded",
    "x-nf-client-connection-ip",
    "x-original-forwarded-for",
    "x-originating-ip",
    "x-real-ip",
    "x-remote-addr",
    "x-remote-ip",
    "x-sucuri-clientip",
    "x-vercel-forwarded-for",
];

/// Headers by which some frameworks let a client replace the method,
const THAT_REPLACE_METHODS: [&str; 6] = [
    "x-http-method",
    "x-http-method-override",
    "x-http-verb",
    "x-method",
    "x-method-override",
    "x-original-method",
];
/// and those by which they let it replace the target. `X-Forwarded-Method`, `-Uri` and `-Path` are
/// not here: like all of `X-Forwarded-*`, they are removed unless a trusted proxy has set them.
const THAT_REPLACE_TARGETS: [&str; 7] = [
    "x-original-path",
    "x-original-uri",
    "x-original-url",
    "x-override-url",
    "x-rewrite-path",
    "x-rewrite-uri",
    "x-rewrite-url",
];

/// Whether a name collides with a header that matters, or with another one of the request, once
/// `_`, `.` and the like are read as `-`. `named` are those that the configuration names.
pub(super) fn has_collision(headers: &HeaderMap, named: &[HeaderName]) -> bool {
    let of_clients = headers.keys().filter(|name| is_odd(name)).any(|name| {
        let replacing = THAT_REPLACE_METHODS.into_iter().chain(THAT_REPLACE_TARGETS);
        let mut lists = THAT_MATTER.into_iter().chain(OF_ADDRESSES).chain(replacing);
        let is_beside = || headers.keys().any(|other| reads_as(name.as_str(), other.as_str()));
        lists.any(|other| reads_as(name.as_str(), other))
            || is_forwarded(name.as_str())
            || named.iter().any(|other| reads_as(name.as_str(), other.as_str()))
            || is_beside()
    });
    let of_file = || {
        let mut named = named.iter().filter(|name| is_odd(name));
        named.any(|other| headers.keys().any(|name| reads_as(name.as_str(), other.as_str())))
    };
    of_clients || of_file()
}

/// Whether a name has a character that is no letter, digit or `-`. A plain loop, because it looks
/// at
/// every name of every request.
fn is_odd(name: &HeaderName) -> bool {
    for byte in name.as_str().as_bytes() {
        if !matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-') {
            return true;
        }
    }
    false
}

/// The header that would replace the method of a request, or the target of one that is not safe.
/// Its value does not count: upstreams read it in too many ways.
pub(super) fn override_header(headers: &HeaderMap, is_safe: bool) -> Option<&HeaderName> {
    headers.keys().find(|name| {
        let name = name.as_str();
        name.starts_with("x-")
            && (THAT_REPLACE_METHODS.contains(&name) || (!is_safe && THAT_REPLACE_TARGETS.contains(&name)))
    })
}

/// Whether only a proxy in front can say it of a client: from any other peer it is forged.
pub(crate) fn is_of_proxies(name: &str) -> bool {
    name == "forwarded" || name.starts_with("x-forwarded-") || OF_ADDRESSES.contains(&name)
}

/// Proxies say many things about their clients in such headers.
fn is_forwarded(name: &str) -> bool {
    name.get(..12).is_some_and(|start| reads_as(start, "x-forwarded-") || start == "x-forwarded-")
}

/// Whether two different names are the same once whatever is no letter or digit is read as `-`.
fn reads_as(name: &str, other: &str) -> bool {
    let dash = |byte: u8| if byte.is_ascii_alphanumeric() { byte } else { b'-' };
    name != other && name.len() == other.len() && name.bytes().map(dash).eq(other.bytes().map(dash))
}
