//! Whether an event is from who it says: Standard Webhooks, and Stripe's scheme.
//!
//! **Invariant:** signatures cover the body's own bytes, HMACs are compared in constant time, a
//! secret is never empty, and a key
//! verifies signatures of its own kind only. Whether the moment fits is asked last, so that
//! "stale" is said only of what was truly
//! signed.

use std::fmt;
use std::time::Duration;

use base64::Engine as _;
use base64::alphabet::STANDARD as LETTERS;
use base64::engine::DecodePaddingMode;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig};
use hmac::{Hmac, KeyInit as _, Mac as _};
use http::HeaderMap;
use oncegate_core::time::Timestamp;
use ring::signature::{ED25519, UnparsedPublicKey};
use sha2::Sha256;

/// With or without `=` at its end.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &LETTERS,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);
/// More signatures than any rotation needs; each costs a digest of the body.
const SIGNATURES_MAX: usize = 8;
/// A secret that can be guessed is none.
const SECRET_BYTES_MIN: usize = 16;
/// A public key of Ed25519.
const PUBLIC_KEY_BYTES: usize = 32;

/// How events are signed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// <https://www.standardwebhooks.com>: HMAC-SHA256 with a shared secret (`v1`), or Ed25519 with the
    /// provider's public key (`v1a`).
    Standard,
    /// The header `Stripe-Signature`.
    Stripe,
}

/// What a provider's signatures are verified with.
#[derive(Clone, PartialEq, Eq)]
pub struct SigningSecret(Key);

#[derive(Clone, PartialEq, Eq)]
enum Key {
    /// The gateway and the provider share it: HMAC-SHA256.
    Shared(Vec<u8>),
    /// The provider keeps the private half: Ed25519.
    Public([u8; PUBLIC_KEY_BYTES]),
}

impl SigningSecret {
    /// Reads one as its provider shows it; the words say what is wrong with it, and nothing of it.
    pub fn parse(scheme: Scheme, text: &str) -> Result<Self, &'static str> {
        let bytes = match scheme {
            Scheme::Standard => match (text.strip_prefix("whsec_"), text.strip_prefix("whpk_")) {
                (Some(encoded), _) => BASE64
                    .decode(encoded)
                    .map_err(|_| "is not a secret of Standard Webhooks: whsec_ is followed by base64")?,
                (None, Some(encoded)) => return Self::public(encoded),
                (None, None) if text.starts_with("whsk_") => {
                    return Err(
                        "is a private key of Standard Webhooks, which only the provider may have: the \
                                gateway needs the public key, which begins with whpk_",
                    );
                }
                (None, None) => {
                    return Err(
                        "is not a secret of Standard Webhooks: shared secrets begin with whsec_, and \
                                public keys with whpk_",
                    );
                }
            },
            // The whole text, whatever it looks like.
            Scheme::Stripe => text.as_bytes().to_vec(),
        };
        if bytes.len() < SECRET_BYTES_MIN {
            return Err("is empty, or so short that it can be guessed: a secret has at least 16 bytes");
        }
        Ok(Self(Key::Shared(bytes)))
    }

    fn public(encoded: &str) -> Result<Self, &'static str> {
        let bytes =
            BASE64.decode(encoded).ok().and_then(|bytes| <[u8; PUBLIC_KEY_BYTES]>::try_from(bytes).ok());
        let key = bytes
            .ok_or("is not a public key of Standard Webhooks: whpk_ is followed by 32 bytes in base64")?;
        Ok(Self(Key::Public(key)))
    }

    fn signed(&self, before: &[&[u8]], body: &[u8], signature: &Signature) -> bool {
        match (&self.0, signature) {
            (Key::Shared(secret), Signature::Hmac(signature)) => {
                let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(secret) else { return false };
                for piece in before {
                    mac.update(piece);
                }
                mac.update(body);
                mac.verify_slice(signature).is_ok()
            }
            (Key::Public(key), Signature::Ed25519(signature)) => {
                let message = [before.concat().as_slice(), body].concat();
                UnparsedPublicKey::new(&ED25519, key).verify(&message, signature).is_ok()
            }
            // A public key is no secret: anyone could make an HMAC with it.
            (Key::Shared(_), Signature::Ed25519(_)) | (Key::Public(_), Signature::Hmac(_)) => false,
        }
    }
}

impl fmt::Debug for SigningSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SigningSecret(…)")
    }
}

/// A signature, by its kind.
enum Signature {
    /// `v1`.
    Hmac(Vec<u8>),
    /// `v1a`.
    Ed25519(Vec<u8>),
}

/// Why an event is not believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unverified {
    /// There is no signature.
    Unsigned,
    /// There is something in its place that cannot be read in one way.
    Malformed,
    /// Truly signed, but too long ago, or in the future: a replay, or a wrong clock.
    Stale,
    /// Signed by somebody else, or changed on the way.
    Wrong,
}

impl Unverified {
    /// One word, for counters.
    #[must_use]
    pub const fn code(self) -> &'static str {
        match self {
            Self::Unsigned => "unsigned",
            Self::Malformed => "malformed",
            Self::Stale => "stale",
            Self::Wrong => "wrong",
        }
    }
}

impl fmt::Display for Unverified {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unsigned => "the event is not signed",
            Self::Malformed => "the event's signature cannot be read",
            Self::Stale => "the event was signed too long ago, or in the future",
            Self::Wrong => "the event is not signed with a secret that this webhook has",
        })
    }
}

impl std::error::Error for Unverified {}

/// Whether one of the secrets signed this, within `tolerance` of `now`.
pub fn verify(
    scheme: Scheme,
    secrets: &[SigningSecret],
    tolerance: Duration,
    headers: &HeaderMap,
    body: &[u8],
    now: Timestamp,
) -> Result<(), Unverified> {
    let signed = match scheme {
        Scheme::Standard => standard(headers)?,
        Scheme::Stripe => stripe(headers)?,
    };
    let before: Vec<&[u8]> = match signed.id {
        Some(id) => vec![id.as_bytes(), b".", signed.timestamp.as_bytes(), b"."],
        None => vec![signed.timestamp.as_bytes(), b"."],
    };
    let is_signed =
        |signature: &Signature| secrets.iter().any(|secret| secret.signed(&before, body, signature));
    if !signed.signatures.iter().any(is_signed) {
        return Err(Unverified::Wrong);
    }
    let at = signed.at.checked_mul(1_000_000).ok_or(Unverified::Stale)?;
    let at = Timestamp::from_micros(at);
    if now.since(at).max(at.since(now)) > tolerance { Err(Unverified::Stale) } else { Ok(()) }
}

/// What the headers say.
struct Signed<'a> {
    id: Option<&'a str>,
    timestamp: &'a str,
    at: i64,
    signatures: Vec<Signature>,
}

impl<'a> Signed<'a> {
    fn new(id: Option<&'a str>, timestamp: &'a str, signatures: Vec<Signature>) -> Result<Self, Unverified> {
        let is_number = timestamp.bytes().all(|byte| byte.is_ascii_digit());
        let at = timestamp.parse().ok().filter(|_| is_number).ok_or(Unverified::Malformed)?;
        if !(1..=SIGNATURES_MAX).contains(&signatures.len()) {
            return Err(Unverified::Malformed);
        }
        Ok(Self { id, timestamp, at, signatures })
    }
}

/// `webhook-id`, `webhook-timestamp`, and `webhook-signature: v1,… v1a,…`
fn standard(headers: &HeaderMap) -> Result<Signed<'_>, Unverified> {
    let signatures = only(headers, "webhook-signature")?.ok_or(Unverified::Unsigned)?;
    let id = only(headers, "webhook-id")?.ok_or(Unverified::Unsigned)?;
    let timestamp = only(headers, "webhook-timestamp")?.ok_or(Unverified::Unsigned)?;
    // Other versions are other schemes, which are to come.
    let ours = signatures.split(' ').filter_map(|signature| match signature.split_once(',')? {
        ("v1", encoded) => BASE64.decode(encoded).ok().map(Signature::Hmac),
        ("v1a", encoded) => BASE64.decode(encoded).ok().map(Signature::Ed25519),
        _ => None,
    });
    Signed::new(Some(id), timestamp, ours.collect())
}

/// `Stripe-Signature: t=…,v1=…,v1=…`
fn stripe(headers: &HeaderMap) -> Result<Signed<'_>, Unverified> {
    let header = only(headers, "stripe-signature")?.ok_or(Unverified::Unsigned)?;
    let (mut timestamp, mut signatures) = (None, Vec::new());
    for pair in header.split(',') {
        match pair.trim().split_once('=') {
            Some(("t", at)) if timestamp.is_none() => timestamp = Some(at),
            Some(("t", _)) | None => return Err(Unverified::Malformed),
            Some(("v1", signature)) => signatures.extend(hex(signature).map(Signature::Hmac)),
            Some(_) => {}
        }
    }
    Signed::new(None, timestamp.ok_or(Unverified::Malformed)?, signatures)
}

/// A header that stands once: of two, which one was checked?
fn only<'a>(headers: &'a HeaderMap, name: &str) -> Result<Option<&'a str>, Unverified> {
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (None, _) => Ok(None),
        (Some(value), None) => value.to_str().map(Some).map_err(|_| Unverified::Malformed),
        (Some(_), Some(_)) => Err(Unverified::Malformed),
    }
}

fn hex(text: &str) -> Option<Vec<u8>> {
    let digit = |letter: u8| char::from(letter).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let pairs = text.as_bytes().chunks(2);
    pairs.map(|pair| Some(digit(*pair.first()?)? << 4 | digit(*pair.get(1)?)?)).collect()
}

#[cfg(test)]
mod tests {
    use http::{HeaderName, HeaderValue};
    use proptest::prelude::*;

    use super::*;

    const FIVE_MINUTES: Duration = Duration::from_mins(5);
    /// The example of the scheme's own documentation; python3 agrees:
    /// `base64.b64encode(hmac.new(base64.b64decode(SECRET[6:]), b'msg_p5….1614265330.{"test": 2432232314}', 'sha256').digest())`
    const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    const SIGNATURE: &str = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=";
    const BODY: &[u8] = br#"{"test": 2432232314}"#;
    const AT: i64 = 1_614_265_330;
    /// `hmac.new(b"whsec_0123456789abcdef", b'1700000000.{"id":"evt_1","type":"charge.succeeded"}', 'sha256').hexdigest()`
    const STRIPE_SECRET: &str = "whsec_0123456789abcdef";
    const STRIPE_SIGNATURE: &str = "847fa8b9a32e9be88b5ab28e8016bb65fe54b5125b38f09c6cc0e8d097279195";
    /// The same of `b"whsec_fedcba9876543210"`.
    const STRIPE_NEXT: (&str, &str) =
        ("whsec_fedcba9876543210", "786cfa9901309eca8a32e70232f1515f7ef189b39af2249ae5b5367a167e82f9");
    const STRIPE_BODY: &[u8] = br#"{"id":"evt_1","type":"charge.succeeded"}"#;
    const STRIPE_AT: i64 = 1_700_000_000;

    fn headers(lines: &[(&'static str, &str)]) -> HeaderMap {
        let line = |(name, value): &(&'static str, &str)| {
            (HeaderName::from_static(name), HeaderValue::from_bytes(value.as_bytes()).unwrap())
        };
        let mut headers = HeaderMap::new();
        for (name, value) in lines.iter().map(line) {
            headers.append(name, value);
        }
        headers
    }

    fn seconds(seconds: i64) -> Timestamp {
        Timestamp::from_micros(seconds * 1_000_000)
    }

    fn standard(
        lines: &[(&'static str, &str)],
        secrets: &[&str],
        body: &[u8],
        now: Timestamp,
    ) -> Result<(), Unverified> {
        let secrets: Vec<_> =
            secrets.iter().map(|text| SigningSecret::parse(Scheme::Standard, text).unwrap()).collect();
        verify(Scheme::Standard, &secrets, FIVE_MINUTES, &headers(lines), body, now)
    }

    fn stripe(lines: &[&str], secrets: &[&str], now: Timestamp) -> Result<(), Unverified> {
        let secrets: Vec<_> =
            secrets.iter().map(|text| SigningSecret::parse(Scheme::Stripe, text).unwrap()).collect();
        let lines: Vec<_> = lines.iter().map(|line| ("stripe-signature", *line)).collect();
        verify(Scheme::Stripe, &secrets, FIVE_MINUTES, &headers(&lines), STRIPE_BODY, now)
    }

    fn event(signature: &str) -> [(&'static str, &str); 3] {
        [
            ("webhook-id", "msg_p5jXN8AQM9LWM0D4loKWxJek"),
            ("webhook-timestamp", "1614265330"),
            ("webhook-signature", signature),
        ]
    }

    #[test]
    fn the_published_example_is_believed_and_nothing_else() {
        let check = |signature: &str| standard(&event(signature), &[SECRET], BODY, seconds(AT));
        assert_eq!(check(SIGNATURE), Ok(()));
        assert_eq!(check(&format!("v1,AAAA v2,x v1a,{} {SIGNATURE}", &SIGNATURE[3..])), Ok(()));
        assert_eq!(check(SIGNATURE.trim_end_matches('=')), Ok(()));
        assert_eq!(check(&SIGNATURE.replace('g', "h")), Err(Unverified::Wrong));
        // A signature is whole, or none.
        assert_eq!(check("v1,g0hM9SsE"), Err(Unverified::Wrong));
        assert_eq!(check("v1,"), Err(Unverified::Wrong));
        assert_eq!(check(&SIGNATURE.replace("v1,", "v1a,")), Err(Unverified::Wrong));
        assert_eq!(check(&SIGNATURE[3..]), Err(Unverified::Malformed));
        assert_eq!(check("v1,***"), Err(Unverified::Malformed));
        assert_eq!(check(""), Err(Unverified::Malformed));
        assert_eq!(check(&format!("{SIGNATURE} ").repeat(SIGNATURES_MAX + 1)), Err(Unverified::Malformed));
        let changed = br#"{"test": 2432232315}"#;
        assert_eq!(standard(&event(SIGNATURE), &[SECRET], changed, seconds(AT)), Err(Unverified::Wrong));
        // Bytes that are no text, by python3: hmac.new(bytes(range(32)), b"evt_1.1700000000.\xff\x00", "sha256")
        let lines = [
            ("webhook-id", "evt_1"),
            ("webhook-timestamp", "1700000000"),
            ("webhook-signature", "v1,mkXRJhMJ3zaziGkGC1qhDa/ogj3eUa9kYr6utacrfJc="),
        ];
        let secret = "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
        assert_eq!(standard(&lines, &[secret], b"\xff\x00", seconds(1_700_000_000)), Ok(()));
    }

    /// By another implementation, python3's `cryptography`: with
    /// `key = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))`,
    /// `b64encode(key.sign(b'msg_p5….1614265330.{"test": 2432232314}'))`.
    const PUBLIC_KEY: &str = "whpk_A6EHv/POEL4dcN0Y50vAmWfk1jCbpQ1fHdyGZBJVMbg=";
    const ASYMMETRIC: &str =
        "v1a,yoUrgEkc12aGqm0n4Sydmdz55xJfTz4AsAgieHFjmkR7LJtqVCZOQYzvvHjI5kAey+r4iaBGxTFRrl2iBQxtDQ==";

    #[test]
    fn an_event_signed_with_a_private_key_is_believed_and_nothing_else() {
        let check = |signature: &str, key: &str| standard(&event(signature), &[key], BODY, seconds(AT));
        assert_eq!(check(ASYMMETRIC, PUBLIC_KEY), Ok(()));
        assert_eq!(check(ASYMMETRIC.trim_end_matches('='), PUBLIC_KEY.trim_end_matches('=')), Ok(()));
        // While a provider goes over from one kind to the other, it sends both.
        for key in [PUBLIC_KEY, SECRET] {
            assert_eq!(check(&format!("{SIGNATURE} {ASYMMETRIC}"), key), Ok(()));
        }
        assert_eq!(standard(&event(ASYMMETRIC), &[SECRET, PUBLIC_KEY], BODY, seconds(AT)), Ok(()));
        assert_eq!(standard(&event(ASYMMETRIC), &[PUBLIC_KEY], b"{}", seconds(AT)), Err(Unverified::Wrong));
        let late = seconds(AT + 301);
        assert_eq!(standard(&event(ASYMMETRIC), &[PUBLIC_KEY], BODY, late), Err(Unverified::Stale));
        for (line, value) in [(0, "msg_other"), (1, "1614265331")] {
            let mut lines = event(ASYMMETRIC);
            lines[line].1 = value;
            assert_eq!(standard(&lines, &[PUBLIC_KEY], BODY, seconds(AT)), Err(Unverified::Wrong), "{value}");
        }
        for signature in
            ["v1a,", "v1a,AAAA", &ASYMMETRIC.replace("v1a,", "v1,"), &ASYMMETRIC.replacen('Q', "R", 1)]
        {
            assert_eq!(check(signature, PUBLIC_KEY), Err(Unverified::Wrong), "{signature}");
        }
        // A secret and a key of another kind than the signature say nothing about it.
        assert_eq!(check(ASYMMETRIC, SECRET), Err(Unverified::Wrong));
        assert_eq!(check(SIGNATURE, PUBLIC_KEY), Err(Unverified::Wrong));
    }

    /// Everybody knows a public key: an HMAC made with its bytes proves nothing.
    #[test]
    fn a_public_key_is_no_secret() {
        let bytes = BASE64.decode(&PUBLIC_KEY["whpk_".len()..]).unwrap();
        let mut mac = Hmac::<Sha256>::new_from_slice(&bytes).unwrap();
        mac.update(b"msg_p5jXN8AQM9LWM0D4loKWxJek.1614265330.");
        mac.update(BODY);
        let forged = format!("v1,{}", BASE64.encode(mac.finalize().into_bytes()));
        let forged_as_both = format!("{forged} {}", forged.replace("v1,", "v1a,"));
        assert_eq!(
            standard(&event(&forged_as_both), &[PUBLIC_KEY], BODY, seconds(AT)),
            Err(Unverified::Wrong)
        );
    }

    /// RFC 8032, 7.1: tests 1, 2, 3 and SHA(abc), and the same with one bit changed.
    #[test]
    fn the_vectors_of_rfc_8032() {
        const VECTORS: [(&str, &str, &str); 4] = [
            (
                "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
                "",
                "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b",
            ),
            (
                "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
                "72",
                "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00",
            ),
            (
                "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025",
                "af82",
                "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac18ff9b538d16f290ae67f760984dc6594a7c15e9716ed28dc027beceea1ec40a",
            ),
            (
                "ec172b93ad5e563bf4932c70e1245034c35467ef2efd4d64ebf819683467e2bf",
                "ddaf35a193617abacc417349ae20413112e6fa4e89a97ea20a9eeee64b55d39a2192992a274fc1a836ba3c23a3feebbd454d4423643ce80e2a9ac94fa54ca49f",
                "dc2a4459e7369633a52b1bf277839a00201009a3efbf3ecb69bea2186c26b58909351fc9ac90b3ecfdfbc7c66431e0303dca179c138ac17ad9bef1177331a704",
            ),
        ];
        for (key, message, signature) in VECTORS {
            let key = SigningSecret(Key::Public(hex(key).unwrap().try_into().unwrap()));
            let (message, signature) = (hex(message).unwrap(), hex(signature).unwrap());
            assert!(key.signed(&[], &message, &Signature::Ed25519(signature.clone())));
            let (first, rest) = message.split_at(message.len() / 2);
            assert!(key.signed(&[first], rest, &Signature::Ed25519(signature.clone())), "in pieces");
            for place in 0..signature.len() {
                let mut changed = signature.clone();
                changed[place] ^= 1;
                assert!(!key.signed(&[], &message, &Signature::Ed25519(changed)), "{place}");
            }
        }
    }

    #[test]
    fn an_event_is_fresh_in_both_directions_or_stale() {
        for (off, expected) in [(0, Ok(())), (300, Ok(())), (301, Err(Unverified::Stale))] {
            for now in [AT - off, AT + off] {
                assert_eq!(standard(&event(SIGNATURE), &[SECRET], BODY, seconds(now)), expected, "{off}");
            }
        }
        let late = Timestamp::from_micros(seconds(AT + 300).as_micros() + 1);
        assert_eq!(standard(&event(SIGNATURE), &[SECRET], BODY, late), Err(Unverified::Stale));
        // Who cannot sign does not learn whether the time would have been right.
        let other = "whsec_AAAAAAAAAAAAAAAAAAAAAAAA";
        assert_eq!(standard(&event(SIGNATURE), &[other], BODY, seconds(0)), Err(Unverified::Wrong));
    }

    #[test]
    fn secrets_rotate() {
        let other = "whsec_AAAAAAAAAAAAAAAAAAAAAAAA";
        assert_eq!(standard(&event(SIGNATURE), &[other, SECRET], BODY, seconds(AT)), Ok(()));
        assert_eq!(standard(&event(SIGNATURE), &[other], BODY, seconds(AT)), Err(Unverified::Wrong));
        assert_eq!(standard(&event(SIGNATURE), &[], BODY, seconds(AT)), Err(Unverified::Wrong));
        let both = format!("t=1700000000,v1={},v1={STRIPE_SIGNATURE}", STRIPE_NEXT.1);
        for secret in [STRIPE_SECRET, STRIPE_NEXT.0] {
            assert_eq!(stripe(&[&both], &[secret], seconds(STRIPE_AT)), Ok(()));
        }
    }

    #[test]
    fn what_is_missing_is_unsigned_and_what_stands_twice_is_malformed() {
        for missing in 0..3 {
            let mut lines = event(SIGNATURE).to_vec();
            lines.remove(missing);
            assert_eq!(standard(&lines, &[SECRET], BODY, seconds(AT)), Err(Unverified::Unsigned));
            let mut lines = event(SIGNATURE).to_vec();
            lines.push(lines[missing]);
            assert_eq!(standard(&lines, &[SECRET], BODY, seconds(AT)), Err(Unverified::Malformed));
        }
        for timestamp in ["", "+1614265330", "1614265330.0", "soon", "99999999999999999999"] {
            let mut lines = event(SIGNATURE);
            lines[1].1 = timestamp;
            assert_eq!(
                standard(&lines, &[SECRET], BODY, seconds(AT)),
                Err(Unverified::Malformed),
                "{timestamp}"
            );
        }
        let mut lines = event(SIGNATURE);
        lines[0].1 = "m\u{e9}";
        assert_eq!(standard(&lines, &[SECRET], BODY, seconds(AT)), Err(Unverified::Malformed));
    }

    #[test]
    fn stripes_scheme() {
        let check = |line: &str| stripe(&[line], &[STRIPE_SECRET], seconds(STRIPE_AT));
        assert_eq!(check(&format!("t=1700000000,v1={STRIPE_SIGNATURE}")), Ok(()));
        assert_eq!(check(&format!("t=1700000000, v1={},v0=ff", STRIPE_SIGNATURE.to_uppercase())), Ok(()));
        assert_eq!(check(&format!("t=1700000001,v1={STRIPE_SIGNATURE}")), Err(Unverified::Wrong));
        assert_eq!(check(&format!("t=1700000000,v1={}", &STRIPE_SIGNATURE[2..])), Err(Unverified::Wrong));
        assert_eq!(check("t=1700000000,v1="), Err(Unverified::Wrong));
        for malformed in [
            String::new(),
            "nonsense".to_owned(),
            "t=1700000000".to_owned(),
            format!("v1={STRIPE_SIGNATURE}"),
            format!("t=1700000000,v0={STRIPE_SIGNATURE}"),
            format!("t=1,t=1700000000,v1={STRIPE_SIGNATURE}"),
            format!("t=1700000000,v1={}", &STRIPE_SIGNATURE[1..]),
            format!("t=1700000000,v1=zz{}", &STRIPE_SIGNATURE[2..]),
        ] {
            assert_eq!(check(&malformed), Err(Unverified::Malformed), "{malformed}");
        }
        let right = format!("t=1700000000,v1={STRIPE_SIGNATURE}");
        assert_eq!(stripe(&[], &[STRIPE_SECRET], seconds(STRIPE_AT)), Err(Unverified::Unsigned));
        assert_eq!(
            stripe(&[&right, &right], &[STRIPE_SECRET], seconds(STRIPE_AT)),
            Err(Unverified::Malformed)
        );
        assert_eq!(stripe(&[&right], &[STRIPE_SECRET], seconds(STRIPE_AT + 301)), Err(Unverified::Stale));
    }

    #[test]
    fn an_empty_secret_is_none() {
        for (scheme, wrong) in [
            (Scheme::Standard, ""),
            (Scheme::Standard, "whsec_"),
            (Scheme::Standard, "whsec_AAAA"),
            (Scheme::Standard, "whsec_***"),
            (Scheme::Standard, "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"),
            (Scheme::Standard, "whpk_"),
            (Scheme::Standard, "whpk_A6EHv/POEL4dcN0Y50vAmWfk1jCbpQ1fHdyGZBJVMQ=="),
            (Scheme::Standard, "whpk_***"),
            (Scheme::Standard, "whsk_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="),
            (Scheme::Stripe, ""),
            (Scheme::Stripe, "whsec_"),
        ] {
            assert!(SigningSecret::parse(scheme, wrong).is_err(), "{wrong}");
        }
        let secret = SigningSecret::parse(Scheme::Stripe, STRIPE_SECRET).unwrap();
        assert_eq!(format!("{secret:?}"), "SigningSecret(…)");
        let private =
            SigningSecret::parse(Scheme::Standard, "whsk_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=");
        assert!(private.unwrap_err().contains("only the provider may have"));
    }

    proptest! {
        #[test]
        fn no_header_panics_and_none_is_believed(
            signature in "[ -~]{0,60}", timestamp in "[0-9+.-]{0,20}", body in proptest::collection::vec(any::<u8>(), 0..60)
        ) {
            let mut lines = event(&signature);
            lines[1].1 = &timestamp;
            prop_assert!(standard(&lines, &[SECRET], &body, seconds(AT)).is_err());
            prop_assert!(stripe(&[&signature], &[STRIPE_SECRET], seconds(STRIPE_AT)).is_err());
            let pairs = format!("t={timestamp},v1={signature}");
            prop_assert!(stripe(&[&pairs], &[STRIPE_SECRET], seconds(STRIPE_AT)).is_err());
        }
    }
}
