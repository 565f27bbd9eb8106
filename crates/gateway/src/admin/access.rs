//! Who may see and change records: a caller that shows the token; where there is none, a caller on
//! this machine.
//!
//! Without a token the address is this machine's own, and a web page can make the browser of a user
//! on this machine send requests to it. A page that lets its own name resolve to 127.0.0.1 can even
//! read the answers, but its requests carry that name in `Host`.

use std::net::{Ipv4Addr, Ipv6Addr};

use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, Uri, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use sha2::{Digest, Sha256};

use super::Admin;
use super::api::problem;
use crate::config::Secret;

/// Lets requests pass that may see and change records.
pub(super) async fn check(State(admin): State<Admin>, request: Request, next: Next) -> Response {
    match refusal(&admin, request.uri(), request.headers()) {
        Some(refused) => refused,
        None => next.run(request).await,
    }
}

/// Why a request may not see records.
pub(super) fn refusal(admin: &Admin, uri: &Uri, headers: &HeaderMap) -> Option<Response> {
    if let Some(token) = &admin.0.token {
        return (!shows(token, headers)).then(without_token);
    }
    if !is_for_loopback(uri, headers) {
        let words = "Without an admin token only requests to this machine's own names are answered: 127.0.0.1, [::1] or localhost in \
                     `Host`, with any port. Use one of these, or set `admin.token_file` or ONCEGATE_ADMIN_TOKEN.";
        return Some(problem(StatusCode::MISDIRECTED_REQUEST, "Host is not a loopback name", words));
    }
    if headers.get_all(header::ORIGIN).iter().any(|origin| !is_loopback_origin(origin.as_bytes())) {
        let words = "Without an admin token only this machine may see or change records, and this came from a web page of another \
                     origin. Nothing was changed. Set `admin.token_file` or ONCEGATE_ADMIN_TOKEN.";
        return Some(problem(StatusCode::FORBIDDEN, "Not from this machine", words));
    }
    None
}

fn shows(token: &Secret, headers: &HeaderMap) -> bool {
    let shown = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let shown = shown.and_then(|value| {
        let (scheme, token) = value.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
    });
    // Digests are compared, so that the time it takes tells nothing about the token.
    shown.is_some_and(|shown| Sha256::digest(shown) == Sha256::digest(token.expose()))
}

fn without_token() -> Response {
    let words = "This needs the admin token: send `Authorization: Bearer TOKEN`, with the token of `admin.token_file` or \
                 ONCEGATE_ADMIN_TOKEN.";
    let refused = problem(StatusCode::UNAUTHORIZED, "Admin token required", words);
    ([(header::WWW_AUTHENTICATE, "Bearer")], refused).into_response()
}

/// Whether every name under which the request asks for this listener is a loopback name, and there
/// is one.
fn is_for_loopback(uri: &Uri, headers: &HeaderMap) -> bool {
    let in_target = uri.authority().map(|authority| is_loopback(authority.as_str()));
    let hosts = headers.get_all(header::HOST).iter();
    let mut all = hosts.map(|host| host.to_str().is_ok_and(is_loopback)).chain(in_target).peekable();
    all.peek().is_some() && all.all(|is_loopback| is_loopback)
}

/// A host with or without a port, such as `127.0.0.1:9090`, `[::1]` or `localhost`.
fn is_loopback(authority: &str) -> bool {
    let (is_host, port) = if let Some(rest) = authority.strip_prefix('[') {
        let Some((host, port)) = rest.split_once(']') else { return false };
        (host.parse().is_ok_and(|ip: Ipv6Addr| ip.is_loopback()), port)
    } else {
        let (host, port) = authority.split_at(authority.find(':').unwrap_or(authority.len()));
        let is_ip = host.parse().is_ok_and(|ip: Ipv4Addr| ip.is_loopback());
        (is_ip || host.eq_ignore_ascii_case("localhost"), port)
    };
    let is_port = |port: &str| port.strip_prefix(':').is_some_and(|port| port.parse::<u16>().is_ok());
    is_host && (port.is_empty() || is_port(port))
}

/// A page of this machine.
fn is_loopback_origin(origin: &[u8]) -> bool {
    let Ok(origin) = std::str::from_utf8(origin) else { return false };
    let host = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
    host.is_some_and(is_loopback)
}
