//! Where the server is: `redis://[user:password@]host[:port][/database][?prefix=…]`; `rediss://`
//! for TLS, with
//! `tls_ca=FILE` for certificates that are trusted instead of the system's.
//!
//! **Invariant:** what is not understood is refused, and a password is never shown. With
//! `rediss://` nothing is sent before
//! the server has proved by its certificate that it has the URL's host name.

use std::fmt;
use std::net::IpAddr;

use oncegate_store::{Effect, Kind, Result, StoreError};
use redis::{ConnectionAddr, IntoConnectionInfo, RedisConnectionInfo};

use crate::tls::Tls;

/// A server, and the prefix of the keys that are ours there.
#[derive(Clone)]
pub(crate) struct Address {
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) handshake: RedisConnectionInfo,
    pub(crate) prefix: Option<String>,
    pub(crate) tls: Option<Tls>,
}

/// Whether calls leave this machine without TLS. A URL that cannot be read is refused when it is
/// opened, and exposes nothing.
#[must_use]
pub fn is_exposed(url: &str) -> bool {
    let server = url.split('?').next().unwrap_or_default();
    let Ok(info) = server.into_connection_info() else { return false };
    let ConnectionAddr::Tcp(host, _) = info.addr() else { return false };
    let is_loopback = |ip: IpAddr| ip.is_loopback();
    !host.eq_ignore_ascii_case("localhost") && !host.trim_matches(['[', ']']).parse().is_ok_and(is_loopback)
}

impl Address {
    pub(crate) fn parse(url: &str) -> Result<Self> {
        let (server, options) = url.split_once('?').unwrap_or((url, ""));
        let is_tls = server.starts_with("rediss:");
        let (mut prefix, mut ca) = (None, None);
        for option in options.split('&').filter(|option| !option.is_empty()) {
            match option.split_once('=') {
                Some(("prefix", value)) if is_prefix(value) => prefix = Some(value.to_owned()),
                Some(("prefix", _)) => return Err(refused(BAD_PREFIX)),
                Some(("tls_ca", path)) if is_tls && !path.is_empty() => ca = Some(path),
                Some(("tls_ca", _)) => {
                    return Err(refused("`tls_ca` is a file, and has an effect only with `rediss://`"));
                }
                _ => return Err(refused("the URL has an option that is neither `prefix` nor `tls_ca`")),
            }
        }
        if is_tls && server.contains('#') {
            return Err(refused("TLS is always verified: drop what follows the `#`"));
        }
        // The library is not told of TLS: it gets a connection that is encrypted already.
        let server = if is_tls { server.replacen("rediss:", "redis:", 1) } else { server.to_owned() };
        // The library's error repeats nothing of the URL, and so no password.
        let info = server.into_connection_info().map_err(|error| misconfigured().because(error))?;
        match info.addr() {
            ConnectionAddr::Tcp(host, port) => {
                let tls = if is_tls { Some(Tls::new(host, ca)?) } else { None };
                let handshake = info.redis_settings().clone();
                Ok(Self { host: host.clone(), port: *port, handshake, prefix, tls })
            }
            _ => Err(refused("only `redis://host:port` is supported")),
        }
    }
}

/// Letters, digits and `.`, `_`, `-`, `:`; no braces, because they make the hash tag.
pub(crate) fn is_prefix(text: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-:".contains(&byte);
    (1..=100).contains(&text.len()) && text.bytes().all(is_allowed)
}

pub(crate) const BAD_PREFIX: &str =
    "a prefix has 1 to 100 letters, digits, points, colons, hyphens or underscores";

pub(crate) fn refused(why: impl Into<String>) -> StoreError {
    misconfigured().because(why.into())
}

const fn misconfigured() -> StoreError {
    StoreError::new(Kind::Misconfigured, Effect::None, "open")
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.tls.is_some() { "rediss" } else { "redis" };
        write!(f, "{scheme}://{}:{}", self.host, self.port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_url_means() {
        let address = Address::parse("redis://user:secret@cache.example:7000/3?prefix=pay.eu").unwrap();
        assert_eq!((address.host.as_str(), address.port), ("cache.example", 7000));
        assert_eq!(address.prefix.as_deref(), Some("pay.eu"));
        assert_eq!(address.handshake.db(), 3);
        assert_eq!(format!("{address:?}"), "redis://cache.example:7000");
        assert_eq!(Address::parse("redis://localhost").unwrap().port, 6379);
    }

    #[test]
    fn what_is_not_understood_is_refused_without_its_password() {
        for url in [
            "rediss://:secret@localhost/#insecure",
            "rediss://:secret@localhost?tls_ca=/no/such/file",
            "rediss://:secret@localhost?tls_ca=",
            "redis://:secret@localhost?tls_ca=/etc/ssl/ca.pem",
            "redis://:secret@localhost?prefix=",
            "redis://:secret@localhost?prefix={a}",
            "redis://:secret@localhost?prefix=a&fsync=always",
            "redis://:secret@localhost/not-a-number",
            "postgres://:secret@localhost",
            "redis+unix:///tmp/secret",
            "",
        ] {
            let error = Address::parse(url).unwrap_err();
            assert_eq!((error.kind(), error.effect()), (Kind::Misconfigured, Effect::None), "{url}");
            assert!(!error.to_string().contains("secret"), "{url}: {error}");
        }
    }

    #[test]
    fn what_leaves_this_machine_in_clear_text() {
        for url in
            ["redis://10.0.0.7", "redis://:secret@cache.example:6380/2?prefix=a", "redis://[2001:db8::1]/"]
        {
            assert!(is_exposed(url), "{url}");
        }
        for url in [
            "redis://localhost",
            "redis://:secret@127.0.0.1:7000/",
            "redis://[::1]/",
            "rediss://10.0.0.7",
            "nonsense",
        ] {
            assert!(!is_exposed(url), "{url}");
        }
    }
}
