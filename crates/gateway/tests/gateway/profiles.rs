//! Every row of "Answers the boundary makes itself", for every profile that runs inline.

mod admit;
mod busy;
mod key_invalid;
mod key_reused;
mod off;
mod refused;
mod retention;
mod unknown;

use crate::client::Call;

/// What a profile says, where profiles differ.
#[derive(Debug)]
pub(crate) struct Expected {
    pub(crate) name: &'static str,
    /// A key as this profile takes it, and as it is recorded.
    pub(crate) key: (&'static str, &'static str),
    pub(crate) key_required: bool,
    /// What an empty header comes to: the code of a refusal, or nothing.
    pub(crate) key_empty: Option<&'static str>,
    /// Keys that are refused.
    pub(crate) keys_invalid: &'static [&'static [u8]],
    /// The status of `key_reused`, or nothing: it is replayed.
    pub(crate) key_reused: Option<u16>,
    /// A duplicate waits for the first, and for an outcome to be found out.
    pub(crate) waits: bool,
    pub(crate) replayed: &'static str,
    /// What a key past retention is answered, or nothing: it runs again.
    pub(crate) expired: Option<u16>,
    /// A 500: kept, released, or doubted.
    pub(crate) server_error: &'static str,
}

impl Expected {
    /// A payment under this profile's key.
    pub(crate) fn call(&self) -> Call {
        Call::pay(self.key.0)
    }

    /// `[defaults]` of this profile, with these changes.
    pub(crate) fn toml(&self, rules: &str) -> String {
        crate::gateway::defaults(self.name, rules)
    }
}

const LATIN_1: &[u8] = b"\"caf\xe9-of-sixteen-or-more\"";
const TOO_LONG: &[u8] = &[b'k'; 256];
/// 256 characters between quotes.
const TOO_LONG_QUOTED: &[u8] = &{
    let mut key = [b'k'; 258];
    key[0] = b'"';
    key[257] = b'"';
    key
};

pub(crate) const IETF: Expected = Expected {
    name: "ietf",
    key: ("8e03978e-40d5-43dd-bc93-6894a57f9324", "8e03978e-40d5-43dd-bc93-6894a57f9324"),
    key_required: true,
    key_empty: Some("key_missing"),
    keys_invalid: &[
        b"\"unterminated-key-of-some-length",
        b"\"one-of-two-keys\", \"two-of-two-keys\"",
        b"a key with spaces in it",
        b"one-of-two-keys,two-of-two-keys",
        b"\"\"",
        LATIN_1,
        TOO_LONG,
        TOO_LONG_QUOTED,
    ],
    key_reused: Some(422),
    waits: false,
    replayed: "idempotency-replayed",
    expired: None,
    server_error: "failed_retryable",
};

pub(crate) const IETF_STRICT: Expected = Expected {
    name: "ietf-strict",
    key: ("\"8e03978e-40d5-43dd-bc93-6894a57f9324\"", "8e03978e-40d5-43dd-bc93-6894a57f9324"),
    keys_invalid: &[
        b"8e03978e-40d5-43dd-bc93-6894a57f9324",
        b"1234567890",
        b"\"unterminated",
        b"\"one\", \"two\"",
        b"\"\"",
        LATIN_1,
        TOO_LONG_QUOTED,
    ],
    ..IETF
};

pub(crate) const STRIPE: Expected = Expected {
    name: "stripe",
    key_required: false,
    key_empty: Some("key_invalid"),
    keys_invalid: &[LATIN_1, TOO_LONG],
    key_reused: Some(400),
    replayed: "idempotent-replayed",
    server_error: "completed",
    ..IETF
};

pub(crate) const PAYMENTS: Expected = Expected {
    name: "payments",
    keys_invalid: &[
        b"fifteen-chars-k",
        b"\"fifteen-chars-k\"",
        b"\"unterminated-key-of-some-length",
        b"a key with spaces in it",
        LATIN_1,
        TOO_LONG,
    ],
    expired: Some(410),
    server_error: "unknown",
    ..IETF
};

pub(crate) const LENIENT: Expected = Expected {
    name: "lenient",
    key_required: false,
    key_empty: None,
    keys_invalid: &[LATIN_1, TOO_LONG],
    key_reused: None,
    waits: true,
    ..IETF
};

/// One test a profile.
macro_rules! by_profile {
    ($($name:ident: $check:path;)*) => {$(
        mod $name {
            use crate::profiles::{IETF, IETF_STRICT, LENIENT, PAYMENTS, STRIPE};

            #[tokio::test]
            async fn ietf() {
                $check(&IETF).await;
            }

            #[tokio::test]
            async fn ietf_strict() {
                $check(&IETF_STRICT).await;
            }

            #[tokio::test]
            async fn stripe() {
                $check(&STRIPE).await;
            }

            #[tokio::test]
            async fn payments() {
                $check(&PAYMENTS).await;
            }

            #[tokio::test]
            async fn lenient() {
                $check(&LENIENT).await;
            }
        }
    )*};
}
pub(crate) use by_profile;
