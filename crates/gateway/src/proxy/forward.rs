//! Heads on their way: what is of one connection stays there, what a proxy has to say is added.

use std::net::IpAddr;

use http::header::{self, Entry, HeaderMap, HeaderName, HeaderValue};
use http::uri::{Authority, PathAndQuery, Scheme, Uri};
use http::{Method, Request, Response, Version, request};
use http_body::Body as _;
use hyper::body::Incoming;
use oncegate_core::policy::ForwardKey;
use oncegate_tower::headers::{HOP_BY_HOP, OUTCOME, connection_options};
use oncegate_tower::{Attempt, TargetHost};

use super::Outgoing;
use super::upgrade::Tunnel;
use crate::config::{HostHeader, Http, Upstream};
use crate::preauthorize::{ORIGINAL_METHOD, ORIGINAL_ROUTE, ORIGINAL_URI};
use crate::public::{Peer, Secure};

/// The key, towards the upstream.
const KEY: HeaderName = HeaderName::from_static("idempotency-key");
/// Which attempt it is: the fence, which grows with every one. Never a client's.
const ATTEMPT: HeaderName = HeaderName::from_static("idempotency-attempt");
/// What no client says to an upstream, beside what is of a connection.
static NOT_THE_CLIENTS: [HeaderName; 7] = [
    // The gateway has answered it, or will.
    header::EXPECT,
    header::HOST,
    ATTEMPT,
    HeaderName::from_static("http2-settings"),
    ORIGINAL_METHOD,
    ORIGINAL_URI,
    ORIGINAL_ROUTE,
];
const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

/// A client's request, as the upstream gets it.
pub(super) fn request(
    request: Outgoing,
    attempt: Option<&Attempt>,
    tunnel: Option<&Tunnel>,
    upstream: &Upstream,
) -> Outgoing {
    let (mut head, body) = request.into_parts();
    let received = head.version;
    let host = client_host(&head.uri, &head.headers);
    let peer = head.extensions.remove::<Peer>();
    let is_secure = head.extensions.remove::<Secure>().is_some();

    let headers = &mut head.headers;
    let takes_trailers = takes_trailers(headers);
    drop_hop_by_hop(headers, &[], &NOT_THE_CLIENTS);
    // gRPC servers insist on it; frames pass as they come, so it is true of this hop too.
    let may_speak_two = upstream.http == Http::Two || (upstream.http == Http::Auto && upstream.is_tls);
    if takes_trailers && may_speak_two {
        headers.insert(header::TE, HeaderValue::from_static("trailers"));
    }
    if let Some(attempt) = attempt {
        forward_key(headers, attempt);
        headers.insert(ATTEMPT, HeaderValue::from(attempt.fence.as_raw()));
    }
    if let Some(tunnel) = tunnel {
        headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(header::UPGRADE, tunnel.protocol.clone());
    }
    join_cookies(headers);
    add_via(headers, received);
    forwarded(headers, peer, host.as_ref(), is_secure);

    let to = match (upstream.host, host) {
        (HostHeader::Client, Some(host)) => host,
        _ => own_host(upstream),
    };
    headers.insert(header::HOST, to);
    head.uri = Uri::from(address(&head.uri, upstream));
    head.version = Version::HTTP_11;
    Outgoing::from_parts(head, body)
}

/// As HTTP/2 says it: the host is in the address, and nowhere else.
pub(super) fn into_two(request: &mut Outgoing, scheme: &Scheme, upstream: &Authority) {
    let host = request.headers_mut().remove(header::HOST);
    request.headers_mut().remove(header::TRANSFER_ENCODING);
    let authority = host.and_then(|host| Authority::try_from(host.as_bytes()).ok());
    let mut parts = request.uri().clone().into_parts();
    parts.scheme = Some(scheme.clone());
    parts.authority = Some(authority.unwrap_or_else(|| upstream.clone()));
    *request.uri_mut() = Uri::from_parts(parts).unwrap_or_default();
    *request.version_mut() = Version::HTTP_2;
}

/// As HTTP/1.1 says it to a server: the path, and the host beside it. The whole address is for proxies, and many servers route by it
/// wrongly or not at all.
pub(super) fn into_one(request: &mut Outgoing) {
    let parts = std::mem::take(request.uri_mut()).into_parts();
    if let Some(host) = parts.authority.and_then(|host| HeaderValue::from_str(host.as_str()).ok()) {
        request.headers_mut().insert(header::HOST, host);
    }
    *request.uri_mut() = Uri::from(parts.path_and_query.unwrap_or_else(root));
    *request.version_mut() = Version::HTTP_11;
    // hyper would drop the body of a GET or HEAD whose length is not known.
    let is_bodiless = matches!(*request.method(), Method::GET | Method::HEAD);
    let headers = request.headers();
    if is_bodiless && !request.body().is_end_stream() && !headers.contains_key(header::CONTENT_LENGTH) {
        request.headers_mut().insert(header::TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
    }
}

/// The upstream's answer, as it is kept and as the client gets it.
pub(super) fn response(mut response: Response<Incoming>, is_protected: bool) -> Response<Incoming> {
    let version = response.version();
    // The client is spoken to in its own.
    *response.version_mut() = Version::HTTP_11;
    let headers = response.headers_mut();
    // The upstream's account is for this hop, so a `Connection` that names it changes nothing.
    drop_hop_by_hop(headers, &[OUTCOME], &[]);
    if !is_protected {
        // The layer reads it otherwise, and takes it out.
        headers.remove(OUTCOME);
    }
    add_via(headers, version);
    response
}

/// The answer that turns a connection into a tunnel: here the headers of the connection are the message.
pub(super) fn switching(mut response: Response<Incoming>) -> Response<Incoming> {
    let version = response.version();
    add_via(response.headers_mut(), version);
    response
}

/// Where the upstream is asked.
fn address(client: &Uri, upstream: &Upstream) -> PathAndQuery {
    let asked = client.path_and_query();
    if upstream.base_path.is_empty() {
        return asked.cloned().unwrap_or_else(root);
    }
    let asked = asked.map_or("/", PathAndQuery::as_str);
    if asked == "*" {
        return PathAndQuery::from_static("*");
    }
    format!("{}{asked}", upstream.base_path).parse().unwrap_or_else(|_| root())
}

fn root() -> PathAndQuery {
    PathAndQuery::from_static("/")
}

/// Every header that `Connection` names, then the usual ones and `others`.
fn drop_hop_by_hop(headers: &mut HeaderMap, spared: &[HeaderName], others: &[HeaderName]) {
    if headers.contains_key(header::CONNECTION) {
        let named = connection_options(headers).filter_map(|name| name.parse().ok());
        let named: Vec<HeaderName> = named.filter(|name| !spared.contains(name)).collect();
        for name in named {
            headers.remove(name);
        }
    }
    // Those that are there are few, and to look for one that is not costs as much as to find it.
    let is_dropped = |name: &&HeaderName| HOP_BY_HOP.contains(name) || others.contains(name);
    while let Some(name) = headers.keys().find(is_dropped).cloned() {
        headers.remove(name);
    }
}

fn takes_trailers(headers: &HeaderMap) -> bool {
    let codings = headers.get_all(header::TE).iter().filter_map(|value| value.to_str().ok());
    codings.flat_map(|value| value.split(',')).any(|coding| coding.trim().eq_ignore_ascii_case("trailers"))
}

fn forward_key(headers: &mut HeaderMap, attempt: &Attempt) {
    match attempt.forward_key {
        ForwardKey::AsIs => {}
        ForwardKey::None => drop(headers.remove(KEY)),
        ForwardKey::Derived => {
            let key = format!("\"{}\"", attempt.record.derived_key(attempt.life));
            if let Ok(key) = HeaderValue::from_str(&key) {
                headers.insert(KEY, key);
            }
        }
    }
}

/// HTTP/2 may send a cookie in pieces, which HTTP/1 reads as one.
pub(super) fn join_cookies(headers: &mut HeaderMap) {
    let Entry::Occupied(cookies) = headers.entry(header::COOKIE) else { return };
    if cookies.iter().nth(1).is_none() {
        return;
    }
    let pieces: Vec<&[u8]> = cookies.iter().map(HeaderValue::as_bytes).collect();
    if let Ok(joined) = HeaderValue::from_bytes(&pieces.join(&b"; "[..])) {
        headers.insert(header::COOKIE, joined);
    }
}

fn add_via(headers: &mut HeaderMap, version: Version) {
    let via = match version {
        Version::HTTP_09 | Version::HTTP_10 => HeaderValue::from_static("1.0 oncegate"),
        Version::HTTP_2 => HeaderValue::from_static("2 oncegate"),
        Version::HTTP_3 => HeaderValue::from_static("3 oncegate"),
        _ => HeaderValue::from_static("1.1 oncegate"),
    };
    headers.append(header::VIA, via);
}

/// The host that the client asked for.
pub(crate) fn client_host(uri: &Uri, headers: &HeaderMap) -> Option<HeaderValue> {
    match uri.authority() {
        Some(authority) => HeaderValue::from_str(authority.as_str()).ok(),
        None => headers.get(header::HOST).cloned(),
    }
}

/// Says who a client is, by what it came and which host it asked for, as requests to the upstream
/// do.
pub(crate) fn add_client_headers(headers: &mut HeaderMap, request: &request::Parts) {
    for name in [header::FORWARDED, FORWARDED_FOR, FORWARDED_HOST, FORWARDED_PROTO] {
        for value in request.headers.get_all(&name) {
            headers.append(name.clone(), value.clone());
        }
    }
    let peer = request.extensions.get::<Peer>().copied();
    let is_secure = request.extensions.get::<Secure>().is_some();
    let host = client_host(&request.uri, &request.headers);
    forwarded(headers, peer, host.as_ref(), is_secure);
}

fn own_host(upstream: &Upstream) -> HeaderValue {
    HeaderValue::from_str(upstream.authority.as_str()).unwrap_or(HeaderValue::from_static(""))
}

/// The host that the client asks for, in one spelling: in lower case, without the port that the
/// client's scheme has by default. Put into a request's extensions, it is part of the fingerprint.
pub(crate) fn target_host<B>(request: &Request<B>, upstream: &Upstream) -> TargetHost {
    let host = client_host(request.uri(), request.headers()).unwrap_or_else(|| own_host(upstream));
    let host = String::from_utf8_lossy(host.as_bytes()).to_ascii_lowercase();
    let is_secure = request.extensions().get::<Secure>().is_some();
    TargetHost(without_default_port(&host, is_secure).into())
}

fn without_default_port(host: &str, is_secure: bool) -> &str {
    let default = if is_secure { "443" } else { "80" };
    match host.rsplit_once(':') {
        Some((name, port)) if port.is_empty() || port == default => name,
        _ => host,
    }
}

/// Who asked, and how: in the standard's header, and in those that most frameworks read. What a
/// trusted proxy says stays; what any other peer says was removed when the request came.
fn forwarded(headers: &mut HeaderMap, peer: Option<Peer>, host: Option<&HeaderValue>, is_secure: bool) {
    let proto = if is_secure { "https" } else { "http" };
    // Put together by hand: a formatter costs more than all of it.
    let mut element = String::with_capacity(96);
    if let Some(Peer(address)) = peer {
        let ip = address.ip().to_canonical();
        let text = text_of(ip);
        let (before, after) = if ip.is_ipv6() { ("for=\"[", "]\";") } else { ("for=", ";") };
        element.extend([before, &text, after]);
        append_to_list(headers, &FORWARDED_FOR, &text);
    }
    let is_plain = |host: &&HeaderValue| !host.as_bytes().iter().any(|byte| matches!(byte, b'"' | b'\\'));
    if let Some((host, text)) = host.filter(is_plain).and_then(|host| Some((host, host.to_str().ok()?))) {
        element.extend(["host=\"", text, "\";"]);
        headers.entry(FORWARDED_HOST).or_insert_with(|| host.clone());
    }
    element.extend(["proto=", proto]);
    append_to_list(headers, &header::FORWARDED, &element);
    headers.entry(FORWARDED_PROTO).or_insert(HeaderValue::from_static(proto));
}

/// An address in its usual spelling.
fn text_of(ip: IpAddr) -> String {
    let IpAddr::V4(ip) = ip else { return ip.to_string() };
    let mut text = String::with_capacity(15);
    for (place, octet) in ip.octets().into_iter().enumerate() {
        if place > 0 {
            text.push('.');
        }
        for (least, power) in [(100, 100), (10, 10), (0, 1)] {
            if octet >= least {
                text.push(char::from(b'0' + octet / power % 10));
            }
        }
    }
    text
}

/// Lists go on at their end: what came from the client is before ours.
fn append_to_list(headers: &mut HeaderMap, name: &HeaderName, element: &str) {
    if let Ok(value) = HeaderValue::from_str(element) {
        headers.append(name, value);
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

    use super::{text_of, without_default_port};

    #[test]
    fn only_the_default_port_of_the_scheme_goes() {
        for (host, plain, secure) in [
            ("a.test", "a.test", "a.test"),
            ("a.test:", "a.test", "a.test"),
            ("a.test:80", "a.test", "a.test:80"),
            ("a.test:443", "a.test:443", "a.test"),
            ("a.test:8080", "a.test:8080", "a.test:8080"),
            ("[::1]", "[::1]", "[::1]"),
            ("[::80]:80", "[::80]", "[::80]:80"),
        ] {
            assert_eq!(without_default_port(host, false), plain);
            assert_eq!(without_default_port(host, true), secure);
        }
    }

    #[test]
    fn addresses_are_spelt_as_ever() {
        for octet in 0..=u8::MAX {
            let ip = IpAddr::V4(Ipv4Addr::new(octet, 0, u8::MAX - octet, octet / 2));
            assert_eq!(text_of(ip), ip.to_string());
        }
        let ip = IpAddr::V6(Ipv6Addr::LOCALHOST);
        assert_eq!(text_of(ip), "::1");
    }
}
