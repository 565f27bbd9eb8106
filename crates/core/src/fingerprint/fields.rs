//! Which parts of a JSON body count: the policy `fingerprint: fields`.

use std::error::Error;
use std::fmt;
use std::str::FromStr;

/// The parts of a JSON body that count.
///
/// A part that is not there is left out, which is another thing than a part that is `null`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fields {
    /// Only these.
    Include(Vec<Pointer>),
    /// All but these (a client's timestamp, say). Whether they are there does not count either.
    Exclude(Vec<Pointer>),
}

/// A JSON Pointer (RFC 6901): `/items/0/amount`. The empty pointer is the whole document.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Pointer {
    text: String,
    tokens: Vec<String>,
}

impl Pointer {
    /// Reads a pointer.
    pub fn parse(text: &str) -> Result<Self, PointerError> {
        let tokens = match text.strip_prefix('/') {
            Some(rest) => rest.split('/').map(unescape).collect::<Result<_, _>>()?,
            None if text.is_empty() => Vec::new(),
            None => return Err(PointerError::NoLeadingSlash),
        };
        Ok(Self { text: text.to_owned(), tokens })
    }

    /// The pointer as written. There is one spelling for each pointer.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The member names and array indices on the way to the part, unescaped.
    pub(super) fn tokens(&self) -> impl Iterator<Item = &str> {
        self.tokens.iter().map(String::as_str)
    }
}

impl FromStr for Pointer {
    type Err = PointerError;

    fn from_str(text: &str) -> Result<Self, PointerError> {
        Self::parse(text)
    }
}

impl fmt::Display for Pointer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Why a text is no JSON Pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PointerError {
    /// It is not empty and does not begin with `/`.
    NoLeadingSlash,
    /// A `~` that is neither `~0` nor `~1`.
    BadEscape,
}

impl fmt::Display for PointerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoLeadingSlash => "a JSON Pointer begins with \"/\", as in \"/amount\"",
            Self::BadEscape => "in a JSON Pointer \"~\" is written \"~0\" and \"/\" inside a name \"~1\"",
        })
    }
}

impl Error for PointerError {}

/// Undoes `~0` and `~1`.
fn unescape(token: &str) -> Result<String, PointerError> {
    let mut plain = String::with_capacity(token.len());
    let mut chars = token.chars();
    while let Some(char) = chars.next() {
        plain.push(match char {
            '~' => match chars.next() {
                Some('0') => '~',
                Some('1') => '/',
                _ => return Err(PointerError::BadEscape),
            },
            other => other,
        });
    }
    Ok(plain)
}
