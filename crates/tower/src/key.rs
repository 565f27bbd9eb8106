//! Step 2: the key.

use http::{HeaderMap, HeaderValue};
use oncegate_core::key::{Key, KeyError};
use oncegate_core::policy::{KeyPolicy, KeySyntax};
use oncegate_core::problem::{Code, Problem};

/// The request header.
pub(crate) const IDEMPOTENCY_KEY: &str = "idempotency-key";

/// Reads it; `Ok(None)`: the policy lets the request pass without one.
pub(crate) fn read(headers: &HeaderMap, policy: &KeyPolicy) -> Result<Option<Key>, Problem> {
    let mut lines = headers.get_all(IDEMPOTENCY_KEY).iter();
    let first = lines.next();
    let key = match (first, lines.next()) {
        (None, _) => Key::read(&[], policy),
        (Some(line), None) => Key::read(&[line.as_bytes()], policy),
        (Some(line), Some(second)) => Key::read(&[line.as_bytes(), second.as_bytes()], policy),
    };
    key.map_err(|error| match error {
        KeyError::Missing => Problem::new(
            Code::KeyMissing,
            "This request changes something, so it needs an Idempotency-Key: a fresh value, such as a UUID, for each \
             operation, and the same value for each retry of it. Nothing was executed.",
        ),
        error => Problem::new(Code::KeyInvalid, format!("{error}. Nothing was executed.")),
    })
}

/// Gives the key its one spelling in the header: `"k9"`, `k9` and `"k9";a=1` are one record here,
/// and must be one key to the handler or the upstream too. Returns the line as the client wrote
/// it.
pub(crate) fn respell(headers: &mut HeaderMap, key: &Key, syntax: KeySyntax) -> Option<HeaderValue> {
    let spelling = key.canonical_spelling(syntax);
    match headers.get(IDEMPOTENCY_KEY) {
        Some(line) if line.as_bytes() == spelling.as_bytes() => Some(line.clone()),
        line => match HeaderValue::from_str(&spelling) {
            Ok(value) => headers.insert(IDEMPOTENCY_KEY, value),
            Err(_) => line.cloned(),
        },
    }
}
