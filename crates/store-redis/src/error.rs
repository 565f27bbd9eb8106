//! Redis's errors, as a store says them.
//!
//! **Invariant:** [`Effect::None`] only where the server's own word proves that nothing ran: it refused the command as a whole, or
//! our script said that it had changed nothing. A lost connection proves nothing.

use oncegate_store::{Effect, Kind, StoreError};
use redis::{ErrorKind, RedisError};

use crate::address::Address;

/// Whether a call can change anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Nature {
    Reads,
    Writes,
}

impl Nature {
    /// What is known of its effect when nothing is known of its end.
    pub(crate) const fn effect(self) -> Effect {
        match self {
            Self::Reads => Effect::None,
            Self::Writes => Effect::Unknown,
        }
    }
}

/// Nothing but the handshake was sent.
pub(crate) fn of_connecting(error: &RedisError, operation: &'static str, address: &Address) -> StoreError {
    let (kind, _) = classify(error);
    let kind = match (kind, error.kind()) {
        (_, ErrorKind::AuthenticationFailed | ErrorKind::InvalidClientConfig) => Kind::Misconfigured,
        (kind, _) => kind,
    };
    StoreError::new(kind, Effect::None, operation).because(format!("cannot connect to {address:?}: {error}"))
}

pub(crate) fn of_call(error: RedisError, operation: &'static str, nature: Nature) -> StoreError {
    let (kind, proven) = classify(&error);
    StoreError::new(kind, proven.unwrap_or(nature.effect()), operation).because(error)
}

/// The kind, and the effect if the error proves it.
fn classify(error: &RedisError) -> (Kind, Option<Effect>) {
    match error.code() {
        // Our script's own words: what stopped it follows.
        Some("UNWRITTEN") => (inner_kind(error.detail().unwrap_or_default()), Some(Effect::None)),
        Some("PARTIAL") => (inner_kind(error.detail().unwrap_or_default()), Some(Effect::Unknown)),
        Some("NOPERM") if names_a_key(error.detail().unwrap_or_default()) => {
            (Kind::Rejected, Some(Effect::None))
        }
        Some(code) => match refusal(code) {
            Some(kind) => (kind, Some(Effect::None)),
            None => (Kind::Other, None),
        },
        None if error.is_io_error() => (Kind::Unavailable, None),
        None => (Kind::Other, None),
    }
}

/// An access rule of the server forbids one of the keys, and not the command. The server checks all
/// keys of a script before it runs: the other writes of the batch may be applied without that key.
fn names_a_key(detail: &str) -> bool {
    detail.contains("access") && detail.contains("key")
}

/// The kind of a server's refusal to run a command at all.
fn refusal(code: &str) -> Option<Kind> {
    Some(match code {
        "OOM" => Kind::Full,
        "LOADING" | "MASTERDOWN" | "CLUSTERDOWN" | "TRYAGAIN" | "MISCONF" | "NOREPLICAS" | "NOSCRIPT" => {
            Kind::Unavailable
        }
        "BUSY" => Kind::Contended,
        "READONLY" | "NOAUTH" | "WRONGPASS" | "NOPERM" | "MOVED" | "ASK" | "CROSSSLOT" | "DENIED" => {
            Kind::Misconfigured
        }
        _ => return None,
    })
}

/// Older servers put their code behind other words.
fn inner_kind(detail: &str) -> Kind {
    let mut words = detail.split([' ', ':']).map(|word| word.trim_start_matches('-'));
    words
        .find_map(|word| if word == "ONCEGATE" { Some(Kind::Misconfigured) } else { refusal(word) })
        .unwrap_or(Kind::Other)
}

#[cfg(test)]
mod tests {
    use redis::{ServerError, Value, parse_redis_value};

    use super::*;

    fn told(line: &str) -> StoreError {
        let Ok(Value::ServerError(error)) = parse_redis_value(format!("-{line}\r\n").as_bytes()) else {
            panic!("{line} is an error");
        };
        let error: ServerError = error;
        of_call(error.into(), "apply", Nature::Writes)
    }

    #[test]
    fn what_a_refusal_proves() {
        let table = [
            ("OOM command not allowed when used memory > 'maxmemory'.", Kind::Full, Effect::None),
            ("READONLY You can't write against a read only replica.", Kind::Misconfigured, Effect::None),
            ("LOADING Redis is loading the dataset in memory", Kind::Unavailable, Effect::None),
            ("MISCONF Redis is configured to save RDB snapshots", Kind::Unavailable, Effect::None),
            ("BUSY Redis is busy running a script.", Kind::Contended, Effect::None),
            (
                "NOPERM this user has no permissions to access one of the keys used as arguments",
                Kind::Rejected,
                Effect::None,
            ),
            ("NOPERM No permissions to access a key", Kind::Rejected, Effect::None),
            (
                "NOPERM this user has no permissions to run the 'evalsha' command",
                Kind::Misconfigured,
                Effect::None,
            ),
            ("NOREPLICAS Not enough good replicas to write.", Kind::Unavailable, Effect::None),
            ("UNWRITTEN OOM command not allowed when used memory", Kind::Full, Effect::None),
            ("UNWRITTEN READONLY You can't write against a replica", Kind::Misconfigured, Effect::None),
            ("UNWRITTEN @user_script: 12: -MISCONF Redis is", Kind::Unavailable, Effect::None),
            ("UNWRITTEN ONCEGATE {a}:seq is not a number", Kind::Misconfigured, Effect::None),
            ("PARTIAL OOM command not allowed", Kind::Full, Effect::Unknown),
            ("PARTIAL WRONGTYPE Operation against a key", Kind::Other, Effect::Unknown),
            ("ERR Error running script", Kind::Other, Effect::Unknown),
            ("SOMETHING new", Kind::Other, Effect::Unknown),
        ];
        for (line, kind, effect) in table {
            let error = told(line);
            assert_eq!((error.kind(), error.effect()), (kind, effect), "{line}");
        }
    }

    #[test]
    fn a_lost_connection_proves_nothing_of_a_write() {
        let lost = || RedisError::from(std::io::Error::from(std::io::ErrorKind::BrokenPipe));
        let write = of_call(lost(), "apply", Nature::Writes);
        assert_eq!((write.kind(), write.effect()), (Kind::Unavailable, Effect::Unknown));
        assert_eq!(of_call(lost(), "read", Nature::Reads).effect(), Effect::None);
    }
}
