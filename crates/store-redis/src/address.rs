//! Where the server is: `redis://[user:password@]host[:port][/database][?prefix=…]`.
//!
//! **Invariant:** what is not understood is refused, and a password is never shown.
//! Not here: TLS. `rediss://` is refused in words, never spoken in the clear.

use std::fmt;

use oncegate_store::{Effect, Kind, Result, StoreError};
use redis::{ConnectionAddr, IntoConnectionInfo, RedisConnectionInfo};

/// A server, and the prefix of the keys that are ours there.
#[derive(Clone)]
pub(crate) struct Address {
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) handshake: RedisConnectionInfo,
    pub(crate) prefix: Option<String>,
}

impl Address {
    pub(crate) fn parse(url: &str) -> Result<Self> {
        let (server, options) = url.split_once('?').unwrap_or((url, ""));
        let mut prefix = None;
        for option in options.split('&').filter(|option| !option.is_empty()) {
            match option.split_once('=') {
                Some(("prefix", value)) if is_prefix(value) => prefix = Some(value.to_owned()),
                Some(("prefix", _)) => return Err(refused(BAD_PREFIX)),
                _ => return Err(refused("the URL has an option that is not `prefix`")),
            }
        }
        if server.starts_with("rediss:") {
            return Err(refused("TLS to Redis is not supported yet, and `rediss://` asks for it"));
        }
        // The library's error repeats nothing of the URL, and so no password.
        let info = server.into_connection_info().map_err(|error| misconfigured().because(error))?;
        match info.addr() {
            ConnectionAddr::Tcp(host, port) => {
                Ok(Self { host: host.clone(), port: *port, handshake: info.redis_settings().clone(), prefix })
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

pub(crate) fn refused(why: &'static str) -> StoreError {
    misconfigured().because(why)
}

const fn misconfigured() -> StoreError {
    StoreError::new(Kind::Misconfigured, Effect::None, "open")
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "redis://{}:{}", self.host, self.port)
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
            "rediss://:secret@localhost",
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
}
