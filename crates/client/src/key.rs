//! An operation's key.

use std::fmt;
use std::str::FromStr;

/// The key of one operation: a random UUID, or one that was given to go on with.
///
/// `Display` gives it whole, to be written down; `Debug` only its beginning.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Key(String);

impl Key {
    /// A random UUID.
    pub(crate) fn random() -> Result<Self, getrandom::Error> {
        let mut bits = [0; 16];
        getrandom::fill(&mut bits)?;
        // Version 4, variant 1: random.
        let number = u128::from_be_bytes(bits) & !(0xf << 76 | 0b11 << 62) | 4 << 76 | 0b10 << 62;
        let digits = format!("{number:032x}");
        let parts = [0..8, 8..12, 12..16, 16..20, 20..32].map(|part| &digits[part]);
        Ok(Self(parts.join("-")))
    }

    /// The value.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Key {
    type Err = NotAKey;

    fn from_str(text: &str) -> Result<Self, NotAKey> {
        let is_plain = text.bytes().all(|byte| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'\\'));
        if is_plain && (1..=255).contains(&text.len()) { Ok(Self(text.to_owned())) } else { Err(NotAKey) }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Never more than half: a key may be a guessable secret.
        write!(f, "{}…", &self.0[..(self.0.len() / 2).min(8)])
    }
}

/// Cannot be sent in quotation marks and without them alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotAKey;

impl fmt::Display for NotAKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key is 1 to 255 characters of visible ASCII without quotation marks and backslashes")
    }
}

impl std::error::Error for NotAKey {}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn keys_are_random_uuids_another_for_each_operation() {
        let keys: HashSet<_> = (0..1000).map(|_| Key::random().unwrap()).collect();
        assert_eq!(keys.len(), 1000);
        for key in keys {
            let text = key.as_str();
            let is_uuid = text.char_indices().all(|(at, c)| match at {
                8 | 13 | 18 | 23 => c == '-',
                14 => c == '4',
                19 => matches!(c, '8' | '9' | 'a' | 'b'),
                _ => matches!(c, '0'..='9' | 'a'..='f'),
            });
            assert!(is_uuid && text.len() == 36, "{text}");
        }
    }

    #[test]
    fn only_what_reads_the_same_in_both_forms_is_a_key() {
        for text in ["a", "order-17", "!#[]~", &"x".repeat(255)] {
            assert_eq!(text.parse::<Key>().unwrap().as_str(), text);
        }
        for text in ["", "a b", "a\"b", "a\\b", "a\nb", "ä", &"x".repeat(256)] {
            assert_eq!(text.parse::<Key>(), Err(NotAKey), "{text:?}");
        }
    }

    #[test]
    fn a_key_is_not_whole_in_what_is_logged_by_accident() {
        let key: Key = "8e03978e-40d5-43dd-bc93-6894a57f9324".parse().unwrap();
        assert_eq!(format!("{key:?}"), "8e03978e…");
        assert_eq!(format!("{:?}", "ab".parse::<Key>().unwrap()), "a…");
    }
}
