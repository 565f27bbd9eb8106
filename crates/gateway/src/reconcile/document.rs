//! A body as JSON, walked by pointers and never built: its parts stay the bytes that they are.
//!
//! **Invariant:** what could be read in two ways is not JSON here: a name that stands twice where a pointer goes, half of a surrogate
//! pair, more levels than [`LEVELS_MAX`].

use std::borrow::Cow;
use std::fmt;

use oncegate_core::fingerprint::Pointer;
use serde::de::{DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

/// Deeper than any answer for programs.
const LEVELS_MAX: usize = 64;

/// Why a body cannot be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotJson;

impl fmt::Display for NotJson {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the body is not JSON that can be read in one way only, with at most {LEVELS_MAX} levels of nesting"
        )
    }
}

impl std::error::Error for NotJson {}

/// A body that is JSON.
#[derive(Clone, Copy, Debug)]
pub(super) struct Document<'a>(&'a str);

/// A part of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part<'a>(&'a str);

impl<'a> Document<'a> {
    pub(super) fn read(body: &'a [u8]) -> Result<Self, NotJson> {
        let text = std::str::from_utf8(body).map_err(|_| NotJson)?;
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let root: &RawValue = serde_json::from_str(text).map_err(|_| NotJson)?;
        if levels(root.get()) > LEVELS_MAX { Err(NotJson) } else { Ok(Self(root.get())) }
    }

    /// What a pointer points to, if it is there.
    pub(super) fn part(&self, pointer: &Pointer) -> Result<Option<Part<'a>>, NotJson> {
        let mut at = self.0;
        for token in pointer.as_str().split('/').skip(1) {
            let token = token.replace("~1", "/").replace("~0", "~");
            let next = match at.as_bytes().first() {
                Some(b'{') => walk(at, Member(&token))?,
                Some(b'[') => match index(&token) {
                    Some(index) => walk(at, Item(index))?,
                    None => None,
                },
                _ => None,
            };
            match next {
                Some(next) => at = next,
                None => return Ok(None),
            }
        }
        Ok(Some(Part(at)))
    }
}

impl<'a> Part<'a> {
    /// As it is written.
    pub(super) const fn raw(self) -> &'a str {
        self.0
    }

    pub(super) fn is_null(self) -> bool {
        self.0 == "null"
    }

    /// Of a list, an object or a text: whether there is nothing in it.
    pub(super) fn is_empty(self) -> Option<bool> {
        let inside =
            |open, close| Some(self.0.strip_prefix(open)?.strip_suffix(close)?.trim_ascii().is_empty());
        match self.0.as_bytes().first()? {
            b'{' => inside('{', '}'),
            b'[' => inside('[', ']'),
            b'"' => Some(self.0 == "\"\""),
            _ => None,
        }
    }

    /// A text, decoded.
    pub(super) fn text(self) -> Result<Option<Cow<'a, str>>, NotJson> {
        if !self.0.starts_with('"') {
            return Ok(None);
        }
        match self.0.get(1..self.0.len().saturating_sub(1)) {
            Some(plain) if !plain.contains('\\') => Ok(Some(plain.into())),
            _ => serde_json::from_str::<String>(self.0).map(|text| Some(text.into())).map_err(|_| NotJson),
        }
    }

    /// A text, decoded, or a whole number as it is written: what can name something.
    pub(super) fn name(self) -> Result<Option<Cow<'a, str>>, NotJson> {
        Ok(match self.text()? {
            Some(text) => Some(text),
            None => self.integer().map(|_| self.0.into()),
        })
    }

    /// A whole number, written as one.
    pub(super) fn integer(self) -> Option<i64> {
        self.0.parse().ok()
    }
}

/// How deep a text that is JSON goes.
fn levels(text: &str) -> usize {
    let (mut now, mut most, mut is_in_text, mut is_escaped) = (0_usize, 0, false, false);
    for byte in text.bytes() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = true,
            b'"' => is_in_text = !is_in_text,
            _ if is_in_text => {}
            b'[' | b'{' => {
                now += 1;
                most = most.max(now);
            }
            b']' | b'}' => now = now.saturating_sub(1),
            _ => {}
        }
    }
    most
}

/// RFC 6901: digits without a zero before them.
fn index(token: &str) -> Option<usize> {
    let is_plain = token == "0" || !token.starts_with('0');
    (is_plain && token.bytes().all(|byte| byte.is_ascii_digit())).then(|| token.parse().ok())?
}

fn walk<'a, S: DeserializeSeed<'a, Value = Option<&'a RawValue>>>(
    text: &'a str,
    step: S,
) -> Result<Option<&'a str>, NotJson> {
    let found = step.deserialize(&mut serde_json::Deserializer::from_str(text)).map_err(|_| NotJson)?;
    Ok(found.map(RawValue::get))
}

/// The member of this name, which must be the only one.
struct Member<'n>(&'n str);

impl<'de> DeserializeSeed<'de> for Member<'_> {
    type Value = Option<&'de RawValue>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Member<'_> {
    type Value = Option<&'de RawValue>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut found = None;
        while let Some(name) = map.next_key::<Cow<'de, str>>()? {
            if name != self.0 {
                map.next_value::<IgnoredAny>()?;
            } else if found.replace(map.next_value::<&'de RawValue>()?).is_some() {
                return Err(A::Error::custom("a name stands twice"));
            }
        }
        Ok(found)
    }
}

/// The item at this place.
struct Item(usize);

impl<'de> DeserializeSeed<'de> for Item {
    type Value = Option<&'de RawValue>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Item {
    type Value = Option<&'de RawValue>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
        for _ in 0..self.0 {
            if items.next_element::<IgnoredAny>()?.is_none() {
                return Ok(None);
            }
        }
        let found = items.next_element::<&'de RawValue>()?;
        while items.next_element::<IgnoredAny>()?.is_some() {}
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(body: &str, pointer: &str) -> Result<Option<String>, NotJson> {
        let document = Document::read(body.as_bytes())?;
        Ok(document.part(&pointer.parse().unwrap())?.map(|part| part.raw().to_owned()))
    }

    #[test]
    fn parts_are_the_bytes_that_they_are() {
        let body = r#" { "a/b": [ { "n": 1.10 }, "x" ], "m~n": null, "big": 9007199254740993, "": 5 } "#;
        for (pointer, expected) in [
            ("/a~1b/0/n", Some("1.10")),
            ("/a~1b/1", Some("\"x\"")),
            ("/a~1b/2", None),
            ("/a~1b/00", None),
            ("/a~1b/-", None),
            ("/a~1b/18446744073709551616", None),
            ("/m~0n", Some("null")),
            ("/big", Some("9007199254740993")),
            ("/", Some("5")),
            ("/big/0", None),
            ("/no", None),
        ] {
            assert_eq!(part(body, pointer), Ok(expected.map(str::to_owned)), "{pointer}");
        }
        assert_eq!(part(body, "").unwrap().unwrap(), body.trim());
        assert_eq!(part("\u{feff}[1]", "/0"), Ok(Some("1".to_owned())));
    }

    /// A provider's proxy and its application may each take another of two members.
    #[test]
    fn what_can_be_read_in_two_ways_is_not_json() {
        let twice = r#"{ "status": "failed", "status": "succeeded", "other": 1 }"#;
        assert_eq!(part(twice, "/status"), Err(NotJson));
        assert_eq!(part(r#"{ "\u0061": 1, "a": 2 }"#, "/a"), Err(NotJson));
        let surrogate = Document::read(br#"{ "a": "\ud800" }"#).map(|document| {
            document.part(&"/a".parse().unwrap()).and_then(|part| part.unwrap().text().map(drop))
        });
        assert!(matches!(surrogate, Err(NotJson) | Ok(Err(NotJson))));
        for body in ["", "{", "{} {}", "nul", "\u{0}", "[1,]"] {
            assert_eq!(part(body, ""), Err(NotJson), "{body:?}");
        }
        assert!(Document::read(b"\"\xff\"").is_err());
    }

    #[test]
    fn what_is_too_deep_is_not_json() {
        let nested = |levels: usize| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
        assert!(Document::read(nested(LEVELS_MAX).as_bytes()).is_ok());
        assert!(Document::read(nested(LEVELS_MAX + 1).as_bytes()).is_err());
        assert!(Document::read(nested(500_000).as_bytes()).is_err());
        assert!(Document::read(br#"["[[[[\"[[[["]"#).is_ok());
    }
}
