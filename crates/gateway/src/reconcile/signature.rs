//! Whether an event is from who it says: Standard Webhooks, and Stripe's scheme.
//!
//! **Invariant:** signatures are compared in constant time, over the body's own bytes, and a secret is never empty. Whether the moment
//! fits is asked last, so that "stale" is said only of what was truly signed.

use std::fmt;
use std::time::Duration;

use base64::Engine as _;
use base64::alphabet::STANDARD as LETTERS;
use base64::engine::DecodePaddingMode;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig};
use hmac::{Hmac, KeyInit as _, Mac as _};
use http::HeaderMap;
use oncegate_core::time::Timestamp;
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

/// How events are signed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// <https://www.standardwebhooks.com>, symmetric.
    Standard,
    /// The header `Stripe-Signature`.
    Stripe,
}

/// What the gateway and a provider share.
#[derive(Clone, PartialEq, Eq)]
pub struct SigningSecret(Vec<u8>);

impl SigningSecret {
    /// Reads one as its provider shows it; the words say what is wrong with it, and nothing of it.
    pub fn parse(scheme: Scheme, text: &str) -> Result<Self, &'static str> {
        let bytes = match scheme {
            Scheme::Standard => {
                let encoded = text
                    .strip_prefix("whsec_")
                    .ok_or("is not a secret of Standard Webhooks: they begin with whsec_")?;
                BASE64
                    .decode(encoded)
                    .map_err(|_| "is not a secret of Standard Webhooks: whsec_ is followed by base64")?
            }
            // The whole text, whatever it looks like.
            Scheme::Stripe => text.as_bytes().to_vec(),
        };
        if bytes.len() < SECRET_BYTES_MIN {
            return Err("is empty, or so short that it can be guessed: a secret has at least 16 bytes");
        }
        Ok(Self(bytes))
    }

    fn signed(&self, before: &[&[u8]], body: &[u8], signature: &[u8]) -> bool {
        let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(&self.0) else { return false };
        for piece in before {
            mac.update(piece);
        }
        mac.update(body);
        mac.verify_slice(signature).is_ok()
    }
}

impl fmt::Debug for SigningSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SigningSecret(…)")
    }
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
        |signature: &Vec<u8>| secrets.iter().any(|secret| secret.signed(&before, body, signature));
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
    signatures: Vec<Vec<u8>>,
}

impl<'a> Signed<'a> {
    fn new(id: Option<&'a str>, timestamp: &'a str, signatures: Vec<Vec<u8>>) -> Result<Self, Unverified> {
        let is_number = timestamp.bytes().all(|byte| byte.is_ascii_digit());
        let at = timestamp.parse().ok().filter(|_| is_number).ok_or(Unverified::Malformed)?;
        if !(1..=SIGNATURES_MAX).contains(&signatures.len()) {
            return Err(Unverified::Malformed);
        }
        Ok(Self { id, timestamp, at, signatures })
    }
}

/// `webhook-id`, `webhook-timestamp`, and `webhook-signature: v1,… v1,…`
fn standard(headers: &HeaderMap) -> Result<Signed<'_>, Unverified> {
    let signatures = only(headers, "webhook-signature")?.ok_or(Unverified::Unsigned)?;
    let id = only(headers, "webhook-id")?.ok_or(Unverified::Unsigned)?;
    let timestamp = only(headers, "webhook-timestamp")?.ok_or(Unverified::Unsigned)?;
    // Other versions are other schemes: asymmetric ones, and those to come.
    let ours = signatures.split(' ').filter_map(|signature| signature.strip_prefix("v1,"));
    let signatures = ours.filter_map(|signature| BASE64.decode(signature).ok()).collect();
    Signed::new(Some(id), timestamp, signatures)
}

/// `Stripe-Signature: t=…,v1=…,v1=…`
fn stripe(headers: &HeaderMap) -> Result<Signed<'_>, Unverified> {
    let header = only(headers, "stripe-signature")?.ok_or(Unverified::Unsigned)?;
    let (mut timestamp, mut signatures) = (None, Vec::new());
    for pair in header.split(',') {
        match pair.trim().split_once('=') {
            Some(("t", at)) if timestamp.is_none() => timestamp = Some(at),
            Some(("t", _)) | None => return Err(Unverified::Malformed),
            Some(("v1", signature)) => signatures.extend(hex(signature)),
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
        assert_eq!(check(&SIGNATURE.replace("v1,", "v1a,")), Err(Unverified::Malformed));
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
            (Scheme::Stripe, ""),
            (Scheme::Stripe, "whsec_"),
        ] {
            assert!(SigningSecret::parse(scheme, wrong).is_err(), "{wrong}");
        }
        let secret = SigningSecret::parse(Scheme::Stripe, STRIPE_SECRET).unwrap();
        assert_eq!(format!("{secret:?}"), "SigningSecret(…)");
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
