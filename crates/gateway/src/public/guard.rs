//! What could be read in two ways is not forwarded at all: a hop behind might read it in the other.
//!
//! hyper is lenient in the places named here (measured; each has a test over a raw socket). Two key lines, and bytes in a key that are
//! not ASCII, are refused by the layer, as a wrong key.

use http::{HeaderMap, Method, Request, Version, header};
use oncegate_core::problem::{Code, Problem};

use crate::config::ScopeRule;

pub(super) fn check<B>(
    request: &Request<B>,
    scope: &ScopeRule,
    base_path_bytes: usize,
) -> Result<(), Problem> {
    let asked = request.uri().path_and_query().map_or(0, |asked| asked.as_str().len());
    if asked + base_path_bytes > ADDRESS_BYTES_MAX {
        let words =
            "The address is too long to be passed on. Nothing was forwarded, and nothing was executed.";
        return Err(Problem::new(Code::RequestMalformed, words).with_status(414));
    }
    match wrong_with(request, scope) {
        None => Ok(()),
        Some(what) => {
            let words = format!("{what}. Nothing was forwarded, and nothing was executed.");
            Err(Problem::new(Code::RequestMalformed, words))
        }
    }
}

/// What can be an address at all, of 65,534 bytes.
const ADDRESS_BYTES_MAX: usize = 65_000;

fn wrong_with<B>(request: &Request<B>, scope: &ScopeRule) -> Option<&'static str> {
    let headers = request.headers();
    if request.method() == Method::CONNECT {
        return Some("CONNECT is for forward proxies, and this gateway has one upstream");
    }
    wrong_host(request).or_else(|| wrong_framing(headers)).or_else(|| wrong_connection(headers, scope))
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
fn wrong_connection(headers: &HeaderMap, scope: &ScopeRule) -> Option<&'static str> {
    const NEEDED: [&str; 6] =
        ["idempotency-key", "authorization", "content-type", "content-length", "cookie", "host"];
    let is_needed = |option: &[u8]| {
        let names = |name: &str| option.eq_ignore_ascii_case(name.as_bytes());
        NEEDED.into_iter().any(names) || scope.header().is_some_and(|name| names(name.as_str()))
    };
    let named = headers.get_all(header::CONNECTION).iter();
    let mut options = named.flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
    options.any(|option| is_needed(option.trim_ascii())).then_some(
        "Connection names a header that the service behind needs, so that the next hop would drop it",
    )
}
