//! What could be read in two ways is not forwarded at all: a hop behind might read it in the other.
//!
//! hyper is lenient in the places named here (measured; each has a test over a raw socket). Two key lines, and bytes in a key that are
//! not ASCII, are refused by the layer, as a wrong key.

use http::{HeaderMap, Method, Request, Version, header};
use oncegate_core::problem::{Code, Problem};

pub(super) fn check<B>(request: &Request<B>) -> Result<(), Problem> {
    match wrong_with(request) {
        None => Ok(()),
        Some(what) => {
            let words = format!("{what}. Nothing was forwarded, and nothing was executed.");
            Err(Problem::new(Code::RequestMalformed, words))
        }
    }
}

fn wrong_with<B>(request: &Request<B>) -> Option<&'static str> {
    let headers = request.headers();
    if request.method() == Method::CONNECT {
        return Some("CONNECT is for forward proxies, and this gateway has one upstream");
    }
    wrong_host(request).or_else(|| wrong_framing(headers)).or_else(|| wrong_connection(headers))
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

fn wrong_connection(headers: &HeaderMap) -> Option<&'static str> {
    let named = headers.get_all(header::CONNECTION).iter();
    let names_key = named
        .flat_map(|value| value.as_bytes().split(|byte| *byte == b','))
        .any(|option| option.trim_ascii().eq_ignore_ascii_case(b"idempotency-key"));
    names_key.then_some("Connection names the Idempotency-Key, so that the next hop would drop it")
}
