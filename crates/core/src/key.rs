//! The client's key: read from the header by the policy's syntax.
//!
//! **Invariant:** what does not parse is refused, never ignored. RFC 9651 would let a server drop a field that it cannot
//! parse; then the request would run unprotected, and the client would believe otherwise.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use sfv::{BareItem, Item, Parser};

use crate::policy::{EmptyKey, KeyForm, KeyPolicy, KeySyntax};
use crate::time::Timestamp;

/// An opaque value, unique within a scope. Printable ASCII.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(Arc<str>);

impl Key {
    /// Reads the values of all `Idempotency-Key` lines of one request.
    ///
    /// `Ok(None)` means that the policy lets the request pass without a key.
    pub fn read(lines: &[&[u8]], policy: &KeyPolicy) -> Result<Option<Self>, KeyError> {
        let line = match lines {
            [] => return absent(policy),
            [line] => line.trim_ascii(),
            _ => return Err(KeyError::SeveralLines),
        };
        if line.is_empty() {
            return match policy.empty {
                EmptyKey::Absent => absent(policy),
                EmptyKey::Refused => Err(if policy.required { KeyError::Missing } else { KeyError::Empty }),
            };
        }
        let value = match policy.syntax {
            KeySyntax::Structured => structured(line)?,
            KeySyntax::Opaque => opaque(line)?,
            KeySyntax::Either if line.starts_with(b"\"") => structured(line)?,
            KeySyntax::Either => bare(line)?,
        };
        check(&value, policy)?;
        Ok(Some(Self(value.into())))
    }

    /// The key that the same line is to a route that reads quotes otherwise: literally, or as a
    /// structured string. `None`: it has no quotes, and one reading.
    #[must_use]
    pub fn other_reading(line: &[u8], syntax: KeySyntax) -> Option<Self> {
        let line = line.trim_ascii();
        if !line.starts_with(b"\"") {
            return None;
        }
        let value = if syntax.is_literal() { structured(line) } else { opaque(line) };
        value.ok().filter(|value| !value.is_empty()).map(|value| Self(value.into()))
    }

    /// The key of a job, within the length that the policy allows for keys of requests. The
    /// shortest length and the form are for keys that clients make up; a job's key is a name that
    /// its program chose, such as `invoice-17`.
    pub fn of_job(text: &str, policy: &KeyPolicy) -> Result<Self, KeyError> {
        let key = Self::from_text(text)?;
        let (chars, max) = (key.0.len(), policy.chars_max);
        if chars > max { Err(KeyError::TooLong { chars, max }) } else { Ok(key) }
    }

    /// A key that comes from code or from a stored row, of any length.
    pub fn from_text(text: &str) -> Result<Self, KeyError> {
        Ok(Self(opaque(text.as_bytes())?.into()))
    }

    /// The value.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The one spelling of this key in a header, under the syntax that it was read by: what
    /// every spelling of the key is forwarded as. Bare where the syntax allows that, otherwise
    /// in quotes and without parameters.
    #[must_use]
    pub fn canonical_spelling(&self, syntax: KeySyntax) -> Cow<'_, str> {
        let is_bare = match syntax {
            KeySyntax::Opaque => true,
            KeySyntax::Structured => false,
            KeySyntax::Either => bare(self.0.as_bytes()).is_ok(),
        };
        if is_bare {
            return Cow::Borrowed(&self.0);
        }
        let mut quoted = String::with_capacity(self.0.len() + 2);
        quoted.push('"');
        for char in self.0.chars() {
            if matches!(char, '"' | '\\') {
                quoted.push('\\');
            }
            quoted.push(char);
        }
        quoted.push('"');
        Cow::Owned(quoted)
    }

    /// The moment in a UUID of version 7, to the millisecond: when the client made the key. No other key says one.
    #[must_use]
    pub fn time(&self) -> Option<Timestamp> {
        let text = self.0.as_bytes();
        let is_hyphen = |place: usize| matches!(place, 8 | 13 | 18 | 23);
        let fits = |(place, byte): (usize, &u8)| {
            if is_hyphen(place) { *byte == b'-' } else { byte.is_ascii_hexdigit() }
        };
        let is_v7 = text.len() == 36
            && text.iter().enumerate().all(fits)
            && text[14] == b'7'
            && matches!(text[19], b'8' | b'9' | b'a' | b'b' | b'A' | b'B');
        if !is_v7 {
            return None;
        }
        let digits = [&self.0[..8], &self.0[9..13]].concat();
        let millis = i64::from_str_radix(&digits, 16).ok()?;
        Some(Timestamp::from_micros(millis.saturating_mul(1_000)))
    }

    /// The first few characters, for logs, and never more than half: keys may be guessable secrets of the client.
    #[must_use]
    pub fn prefix(&self) -> &str {
        &self.0[..(self.0.len() / 2).min(8)]
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}…", self.prefix())
    }
}

fn absent(policy: &KeyPolicy) -> Result<Option<Key>, KeyError> {
    if policy.required { Err(KeyError::Missing) } else { Ok(None) }
}

/// A Structured Field String; its parameters are ignored (`"a";p=1` is the key `a`).
fn structured(line: &[u8]) -> Result<String, KeyError> {
    let item: Item = Parser::new(line).parse().map_err(|error| KeyError::NotStructured(error.to_string()))?;
    match item.bare_item {
        BareItem::String(text) => Ok(text.as_str().to_owned()),
        _ => Err(KeyError::NotStructured("it is not a quoted string".to_owned())),
    }
}

/// Any printable ASCII, taken literally, quotes included.
fn opaque(line: &[u8]) -> Result<String, KeyError> {
    if line.is_empty() {
        return Err(KeyError::Empty);
    }
    match line.iter().find(|byte| !matches!(byte, 0x20..=0x7e)) {
        Some(byte) => Err(KeyError::Character(*byte)),
        None => Ok(line.iter().copied().map(char::from).collect()),
    }
}

/// The unquoted form under `either`: what could also be a list, an escaped string or an item with parameters is refused,
/// so that a value has one reading.
fn bare(line: &[u8]) -> Result<String, KeyError> {
    match line.iter().find(|byte| matches!(byte, b',' | b';' | b'"' | b'\\' | b' ')) {
        Some(byte) => Err(KeyError::Ambiguous(char::from(*byte))),
        None => opaque(line),
    }
}

fn check(value: &str, policy: &KeyPolicy) -> Result<(), KeyError> {
    let chars = value.len();
    // No policy can make nothing a key.
    let min = policy.chars_min.max(1);
    if chars < min {
        return Err(KeyError::TooShort { chars, min });
    }
    if chars > policy.chars_max {
        return Err(KeyError::TooLong { chars, max: policy.chars_max });
    }
    match &policy.form {
        KeyForm::Any => Ok(()),
        KeyForm::Uuid if is_uuid(value) => Ok(()),
        KeyForm::Uuid => Err(KeyError::NotOfForm("a UUID".to_owned())),
        KeyForm::Pattern(pattern) if pattern.matches(value) => Ok(()),
        KeyForm::Pattern(pattern) => Err(KeyError::NotOfForm(format!("the pattern {}", pattern.as_str()))),
    }
}

/// 8-4-4-4-12 hexadecimal digits.
fn is_uuid(value: &str) -> bool {
    value.len() == 36
        && value.bytes().enumerate().all(|(place, byte)| match place {
            8 | 13 | 18 | 23 => byte == b'-',
            _ => byte.is_ascii_hexdigit(),
        })
}

/// Why a request's key cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyError {
    /// The policy requires a key and there is none.
    Missing,
    /// The field is there and says nothing.
    Empty,
    /// More than one field line: which one did the client mean?
    SeveralLines,
    /// Not a Structured Field String, though the policy or a leading quote says that it should be.
    NotStructured(String),
    /// Under `either`, an unquoted value with a character that would give it a second reading.
    Ambiguous(char),
    /// A byte that is not printable ASCII.
    Character(u8),
    /// Under the policy's minimum.
    TooShort {
        /// How long it is.
        chars: usize,
        /// How long it must be.
        min: usize,
    },
    /// Over the policy's maximum.
    TooLong {
        /// How long it is.
        chars: usize,
        /// How long it may be.
        max: usize,
    },
    /// Not of the form that the policy asks for.
    NotOfForm(String),
}

impl fmt::Display for KeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing => {
                f.write_str("this operation requires an Idempotency-Key, and the request has none")
            }
            Self::Empty => f.write_str("the Idempotency-Key is empty"),
            Self::SeveralLines => f.write_str("the request has more than one Idempotency-Key line"),
            Self::NotStructured(why) => {
                write!(
                    f,
                    "the Idempotency-Key is not a structured string, like \"8e03978e\" in quotes: {why}"
                )
            }
            Self::Ambiguous(found) => {
                write!(f, "the Idempotency-Key contains {found:?}: put the whole value in double quotes")
            }
            Self::Character(byte) => {
                write!(
                    f,
                    "the Idempotency-Key contains the byte 0x{byte:02x}; only printable ASCII is allowed"
                )
            }
            Self::TooShort { chars, min } => {
                write!(f, "the Idempotency-Key has {chars} characters, and at least {min} are required")
            }
            Self::TooLong { chars, max } => {
                write!(f, "the Idempotency-Key has {chars} characters, and at most {max} are allowed")
            }
            Self::NotOfForm(form) => write!(f, "the Idempotency-Key is not {form}"),
        }
    }
}

impl std::error::Error for KeyError {}
