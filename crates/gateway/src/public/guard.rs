//! What could be read in two ways is not forwarded at all: a hop behind might read it in the other.
//!
//! hyper is lenient in the places named here (measured; each has a test over a raw socket). Two key lines, and bytes in a key that are
//! not ASCII, are refused by the layer, as a wrong key.

use http::{HeaderMap, HeaderName, Method, Request, Version, header};
use oncegate_core::problem::{Code, Problem};
use oncegate_tower::Routes;

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

/// Checks what holds for paths after they are normalized, and for protected routes only.
pub(super) fn check_routed<B>(
    request: &Request<B>,
    routes: &Routes,
    rules: RequestRules,
) -> Result<(), Problem> {
    let path = request.uri().path();
    if path::hides_dot_segments(path) {
        return Err(malformed(
            "The path hides `.` or `..` behind an encoded separator or a parameter, and could leave the \
             path that the upstream serves",
        ));
    }
    let is_protected = |path: &str| routes.of(request.method(), path::matched(path)).is_some();
    if rules.encoded_separators == Ambiguous::Reject
        && path::is_ambiguous(path)
        && (is_protected(path) || is_protected(&path::other_reading(path, rules)))
    {
        return Err(malformed(
            "The path of a protected route contains an encoded separator, a backslash, a control \
             character or a broken escape, which servers read in different ways. Operators: \
             `request.encoded_separators = \"pass\"` forwards them",
        ));
    }
    if rules.method_override == Ambiguous::Reject
        && let Some(name) = names::override_header(request.headers())
        && (is_protected(path) || becomes_protected(request, routes, rules))
    {
        return Err(malformed(&format!(
            "The header {name} asks for another method or target than the one that would be recorded. \
             Operators: `request.method_override = \"pass\"` forwards it"
        )));
    }
    Ok(())
}

/// Whether a server that honours the headers of a method or target in place of the request's own
/// would execute a protected operation.
fn becomes_protected<B>(request: &Request<B>, routes: &Routes, rules: RequestRules) -> bool {
    let mut methods = vec![request.method().clone()];
    let mut paths = vec![request.uri().path().to_owned()];
    for (name, value) in names::overrides(request.headers()) {
        let value = String::from_utf8_lossy(value.as_bytes());
        if name.as_str().contains("method") {
            methods.extend(Method::from_bytes(value.trim().to_ascii_uppercase().as_bytes()));
        } else {
            let below_host =
                value.split_once("://").map(|(_, rest)| rest.split_once('/').unwrap_or_default().1);
            let target = below_host.unwrap_or(&value);
            let path = format!("/{}", target.trim().split(['?', '#']).next().unwrap_or_default());
            let path = path::normal(&path, rules).unwrap_or(path);
            paths.push(path::other_reading(&path, rules));
        }
    }
    methods.iter().any(|method| paths.iter().any(|path| routes.of(method, path::matched(path)).is_some()))
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
    let (method, path) = (request.method(), request.uri().path());
    if method.as_str().bytes().any(|byte| byte.is_ascii_lowercase()) {
        return Some("The method contains lower-case letters; methods are written in capitals");
    }
    let is_target = path.starts_with('/') || (path == "*" && method == Method::OPTIONS);
    (!is_target).then_some("The request target is not a path that begins with `/`, nor `*` of OPTIONS")
}

fn wrong_names(headers: &HeaderMap, named: &[HeaderName]) -> Option<&'static str> {
    if has_repeated(headers) && headers.get_all(header::CONTENT_TYPE).iter().nth(1).is_some() {
        return Some("There are two Content-Type headers");
    }
    names::has_collision(headers, named).then_some(
        "A header name with an underscore reads as one that matters once `_` is taken for `-`; write it \
         with `-`",
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
    (!is_plain).then_some("The Transfer-Encoding is not exactly `chunked`")
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
    use super::is_host;

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
