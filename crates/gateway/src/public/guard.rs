//! What could be read in two ways is not forwarded at all: a hop behind might read it in the other.
//!
//! hyper is lenient in the places named here (measured; each has a test over a raw socket). Two key lines, and bytes in a key that are
//! not ASCII, are refused by the layer, as a wrong key.

use http::{HeaderMap, HeaderName, Method, Request, Version, header};
use oncegate_core::problem::{Code, Problem};
use oncegate_tower::Routes;

use super::{names, path};
use crate::config::{Ambiguous, RequestRules};

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
        && is_protected(path)
    {
        return Err(malformed(&format!(
            "The header {name} asks for another method or target than the one that would be recorded. \
             Operators: `request.method_override = \"pass\"` forwards it"
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
    let (method, path) = (request.method(), request.uri().path());
    if method.as_str().bytes().any(|byte| byte.is_ascii_lowercase()) {
        return Some("The method contains lower-case letters; methods are written in capitals");
    }
    let is_target = path.starts_with('/') || (path == "*" && method == Method::OPTIONS);
    (!is_target).then_some("The request target is not a path that begins with `/`, nor `*` of OPTIONS")
}

fn wrong_names(headers: &HeaderMap, named: &[HeaderName]) -> Option<&'static str> {
    if headers.get_all(header::CONTENT_TYPE).iter().nth(1).is_some() {
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
