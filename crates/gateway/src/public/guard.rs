//! What could be read in two ways is not forwarded at all: a hop behind might read it in the other.
//!
//! hyper is lenient in the places named here (measured; each has a test over a raw socket). Two key lines, and bytes in a key that are
//! not ASCII, are refused by the layer, as a wrong key.

use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Version, header};
use oncegate_core::problem::{Code, Problem};

use super::{names, path};
use crate::config::{Ambiguous, RequestRules, ScopeRule};

/// Checks what holds for every request, before its path is normalized. `named` are the headers
/// that the configuration names.
pub(super) fn check<B>(
    request: &Request<B>,
    named: &[HeaderName],
    base_path_bytes: usize,
) -> Result<(), Problem> {
    let asked = request.uri().path_and_query().map_or(0, |asked| asked.as_str().len());
    if asked + base_path_bytes > ADDRESS_BYTES_MAX {
        let words =
            "The address is too long to be passed on. Nothing was forwarded, and nothing was executed.";
        return Err(Problem::new(Code::RequestMalformed, words).with_status(414));
    }
    match wrong_with(request, named) {
        None => Ok(()),
        Some(what) => Err(malformed(what)),
    }
}

/// Checks that a request does not name its caller twice, with or without a key: the upstream might
/// believe either.
pub(super) fn check_identity<B>(request: &Request<B>, scope: &ScopeRule) -> Result<(), Problem> {
    let headers = request.headers();
    let is_repeated = |name: &HeaderName| headers.get_all(name).iter().nth(1).is_some();
    let name = match scope.header() {
        _ if !has_repeated(headers) => return Ok(()),
        _ if is_repeated(&header::AUTHORIZATION) => "Authorization",
        Some(name) if is_repeated(name) => name.as_str(),
        _ => return Ok(()),
    };
    let words = format!(
        "There are two headers {name}, which name the caller. Nothing was forwarded, and nothing was \
         executed. Send exactly one."
    );
    Err(Problem::new(Code::ScopeMissing, words))
}

/// Whether any header has several lines: few requests have one.
fn has_repeated(headers: &HeaderMap) -> bool {
    headers.len() > headers.keys_len()
}

/// Checks what a path says after it is normalized, and what else could replace method and target.
///
/// Whatever could be read as a request that a route protects is refused wherever it is sent: the
/// upstream, and not the gateway, decides which route it finds. Methods are safe in every reading,
/// unless a header replaces them.
pub(super) fn check_readings<B>(request: &Request<B>, rules: RequestRules) -> Result<(), Problem> {
    let path = request.uri().path();
    let is_safe = request.method().is_safe() || request.method() == "QUERY";
    if path::hides_dot_segments(path) {
        return Err(malformed(
            "The path hides `.` or `..` behind an encoded character or a parameter, and could leave the \
             path that the upstream serves",
        ));
    }
    if rules.encoded_separators == Ambiguous::Reject && !is_safe && path::is_ambiguous(path) {
        return Err(malformed(
            "The path contains an encoded separator, a backslash or a control character, which servers \
             read in different ways. Operators: `request.encoded_separators = \"pass\"` forwards them",
        ));
    }
    if rules.method_override == Ambiguous::Reject
        && let Some(name) = names::override_header(request.headers(), is_safe)
    {
        return Err(malformed(&format!(
            "The header {name} asks for another method or target than the request's own. Operators: \
             `request.method_override = \"pass\"` forwards it"
        )));
    }
    Ok(())
}

fn malformed(what: &str) -> Problem {
    let words = format!("{what}. Nothing was forwarded, and nothing was executed.");
    Problem::new(Code::RequestMalformed, words)
}

/// What can be an address at all, of 65,534 bytes.
const ADDRESS_BYTES_MAX: usize = 65_000;

fn wrong_with<B>(request: &Request<B>, named: &[HeaderName]) -> Option<&'static str> {
    let headers = request.headers();
    if request.method() == Method::CONNECT {
        return Some("CONNECT is for forward proxies, and this gateway has one upstream");
    }
    wrong_line(request)
        .or_else(|| wrong_host(request))
        .or_else(|| wrong_framing(headers))
        .or_else(|| wrong_connection(headers, named))
        .or_else(|| wrong_names(headers, named))
}

/// `POST x` is a target without a path, which would match no route and be forwarded as `/`.
fn wrong_line<B>(request: &Request<B>) -> Option<&'static str> {
    let method = request.method();
    if method.as_str().bytes().any(|byte| byte.is_ascii_lowercase()) {
        return Some("The method contains lower-case letters; methods are written in capitals");
    }
    if path::has_broken_escape(request.uri().path()) {
        return Some("The path has a `%` that is not followed by two hexadecimal digits");
    }
    let target = request.uri().path_and_query();
    let is_star = method == Method::OPTIONS && target.is_some_and(|target| target == "*");
    // HTTP/1.1 may name a host and no path (`http://a?b`), which means `/`.
    let may_lack_path = request.version() != Version::HTTP_2 && request.uri().authority().is_some();
    let is_path = target.is_some_and(|target| has_path(target) || (may_lack_path && target.path() == "/"));
    (!is_path && !is_star)
        .then_some("The request target is not a path that begins with `/`, nor `*` of OPTIONS")
}

/// Whether a target says its path. `path()` is `/` also of `?a=b`, and of a fragment alone.
fn has_path(target: &PathAndQuery) -> bool {
    let is_root = || *target == PathAndQuery::from_static("/");
    target.as_str().starts_with('/') && (target.as_str() != "/" || is_root())
}

fn wrong_names(headers: &HeaderMap, named: &[HeaderName]) -> Option<&'static str> {
    if has_repeated(headers) && headers.get_all(header::CONTENT_TYPE).iter().nth(1).is_some() {
        return Some("There are two Content-Type headers");
    }
    names::has_collision(headers, named).then_some(
        "A header name with an underscore, or with another character that is no letter, digit or `-`, \
         reads as one that matters once that is taken for `-`; write it with `-`",
    )
}

fn wrong_host<B>(request: &Request<B>) -> Option<&'static str> {
    let mut hosts = request.headers().get_all(header::HOST).iter();
    let (first, second) = (hosts.next(), hosts.next());
    if second.is_some() {
        return Some("There are two Host headers");
    }
    let is_none = |host: &[u8]| !is_host(host);
    let authority = request.uri().authority();
    if first.is_some_and(|host| is_none(host.as_bytes()))
        || authority.is_some_and(|host| is_none(host.as_str().as_bytes()))
    {
        return Some("The host is not a name or an address with an optional port");
    }
    match (first, request.uri().authority()) {
        (None, None) if request.version() == Version::HTTP_10 => None,
        (None, None) => Some("There is no Host header"),
        // HTTP/1.1 in absolute form: the address counts, and the header must be ignored. HTTP/2: they must agree.
        (Some(host), Some(authority)) if request.version() == Version::HTTP_2 => {
            let agrees = host.as_bytes().eq_ignore_ascii_case(authority.as_str().as_bytes());
            (!agrees).then_some("The Host header and :authority differ")
        }
        _ => None,
    }
}

/// A name or an address, and perhaps a port: no user, no path, no second host.
fn is_host(host: &[u8]) -> bool {
    let mut is_name = true;
    for byte in host {
        match byte {
            b'a'..=b'z' | b'0'..=b'9' | b'.' | b'-' | b'A'..=b'Z' | b'_' | b'~' | b'%' => {}
            b':' | b'[' | b']' => is_name = false,
            _ => return false,
        }
    }
    is_name || is_address(host)
}

/// The same of one with a port, or with an address of IPv6, which has colons of its own.
fn is_address(host: &[u8]) -> bool {
    let port = match (host, host.iter().position(|byte| *byte == b']')) {
        ([b'[', ..], Some(end)) => &host[end + 1..],
        ([b'[', ..], None) | (_, Some(_)) => return false,
        (name, None) => &name[name.iter().position(|byte| *byte == b':').unwrap_or(name.len())..],
    };
    port.is_empty() || (port[0] == b':' && port[1..].iter().all(u8::is_ascii_digit))
}

fn wrong_framing(headers: &HeaderMap) -> Option<&'static str> {
    let mut codings = headers.get_all(header::TRANSFER_ENCODING).iter();
    let is_plain = match (codings.next(), codings.next()) {
        (None, _) => true,
        (Some(coding), None) => coding.as_bytes().trim_ascii().eq_ignore_ascii_case(b"chunked"),
        (Some(_), Some(_)) => false,
    };
    if !is_plain {
        return Some("The Transfer-Encoding is not exactly `chunked`");
    }
    // Some servers read `010` as eight.
    let has_zeros = |length: &HeaderValue| length.len() > 1 && length.as_bytes().starts_with(b"0");
    let mut lengths = headers.get_all(header::CONTENT_LENGTH).iter();
    lengths.any(has_zeros).then_some("The Content-Length has leading zeros")
}

/// What was compared, or told the caller, must reach the upstream: `Connection` would have it dropped on the way.
fn wrong_connection(headers: &HeaderMap, named: &[HeaderName]) -> Option<&'static str> {
    const NEEDED: [&str; 6] =
        ["idempotency-key", "authorization", "content-type", "content-length", "cookie", "host"];
    let is_needed = |option: &[u8]| {
        let is_option = |name: &str| option.eq_ignore_ascii_case(name.as_bytes());
        NEEDED.into_iter().any(is_option) || named.iter().any(|name| is_option(name.as_str()))
    };
    let lines = headers.get_all(header::CONNECTION).iter();
    let mut options = lines.flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
    options.any(|option| is_needed(option.trim_ascii())).then_some(
        "Connection names a header that the service behind needs, so that the next hop would drop it",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_with_a_path() {
        for (target, expected) in [
            ("/", true),
            ("/a", true),
            ("/?a", true),
            ("/#a", true),
            ("?a", false),
            ("#a", false),
            ("*", false),
        ] {
            assert_eq!(target.parse().is_ok_and(|target| has_path(&target)), expected, "{target}");
        }
        assert!(!"http://a?b".parse::<http::Uri>().unwrap().path_and_query().is_some_and(has_path));
    }

    #[test]
    fn hosts() {
        for host in ["a", "a.test", "a:80", "a:", "", "127.0.0.1:8080", "[::1]", "[fe80::1%25eth0]:80", "x_y"]
        {
            assert!(is_host(host.as_bytes()), "{host}");
        }
        for host in [
            "u@a", "a/b", "a b", "a,b", "a:x", "a:80:80", "a\"", "[::1", "::1]", "[::1]x", "a[::1]", "\u{e4}",
        ] {
            assert!(!is_host(host.as_bytes()), "{host}");
        }
    }
}
