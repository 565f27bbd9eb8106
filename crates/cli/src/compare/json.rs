//! Looking into JSON without losing digits: a number is the literal that was written.

use std::borrow::Cow;
use std::fmt;

use serde::Deserializer;
use serde::de::{DeserializeSeed, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

/// A JSON Pointer (RFC 6901), or the name of a member.
#[derive(Clone, Debug)]
pub(crate) struct Path(Vec<String>);

impl Path {
    /// What begins with a slash is a pointer; anything else names a member.
    pub(crate) fn parse(text: &str) -> Self {
        let Some(pointer) = text.strip_prefix('/') else { return Self(vec![text.to_owned()]) };
        Self(pointer.split('/').map(|token| token.replace("~1", "/").replace("~0", "~")).collect())
    }
}

/// What stands somewhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// There is no such place.
    Nothing,
    Null,
    /// A text's letters; a number's or a truth value's literal.
    Scalar(String),
    /// An object or an array.
    Compound,
}

/// What stands at `path` in `document`.
pub(crate) fn find(document: &str, path: &Path) -> Result<Found, serde_json::Error> {
    let mut here: &RawValue = serde_json::from_str(document)?;
    for token in &path.0 {
        let mut reading = serde_json::Deserializer::from_str(here.get());
        match Step(token).deserialize(&mut reading)? {
            Some(part) => here = part,
            None => return Ok(Found::Nothing),
        }
    }
    let text = here.get();
    Ok(match text.as_bytes().first() {
        Some(b'"') => Found::Scalar(serde_json::from_str::<Cow<'_, str>>(text)?.into_owned()),
        Some(b'{' | b'[') => Found::Compound,
        _ if text == "null" => Found::Null,
        _ => Found::Scalar(text.to_owned()),
    })
}

/// One member or element of whatever is read.
struct Step<'a>(&'a str);

impl<'de> DeserializeSeed<'de> for Step<'_> {
    type Value = Option<&'de RawValue>;

    fn deserialize<D: Deserializer<'de>>(self, reading: D) -> Result<Self::Value, D::Error> {
        reading.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Step<'_> {
    type Value = Option<&'de RawValue>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Self::Value, A::Error> {
        let mut found = None;
        while let Some(name) = members.next_key::<Name<'de>>()? {
            if name.0 != self.0 {
                members.next_value::<IgnoredAny>()?;
                continue;
            }
            // Readers disagree on which of the two counts.
            if found.replace(members.next_value()?).is_some() {
                return Err(A::Error::custom(format!("{:?} is there twice", self.0)));
            }
        }
        Ok(found)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Self::Value, A::Error> {
        // `01` is no index.
        let index = self.0.parse::<usize>().ok().filter(|index| index.to_string() == self.0);
        let (mut found, mut number) = (None, 0);
        loop {
            if index == Some(number) {
                found = elements.next_element()?;
                if found.is_none() {
                    return Ok(None);
                }
            } else if elements.next_element::<IgnoredAny>()?.is_none() {
                return Ok(found);
            }
            number += 1;
        }
    }

    // Nothing is inside of these.
    fn visit_bool<E>(self, _: bool) -> Result<Self::Value, E> {
        Ok(None)
    }
    fn visit_i64<E>(self, _: i64) -> Result<Self::Value, E> {
        Ok(None)
    }
    fn visit_u64<E>(self, _: u64) -> Result<Self::Value, E> {
        Ok(None)
    }
    fn visit_f64<E>(self, _: f64) -> Result<Self::Value, E> {
        Ok(None)
    }
    fn visit_str<E>(self, _: &str) -> Result<Self::Value, E> {
        Ok(None)
    }
    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(None)
    }
}

/// A member's name, borrowed where it has no escapes.
struct Name<'de>(Cow<'de, str>);

impl<'de> serde::Deserialize<'de> for Name<'de> {
    fn deserialize<D: Deserializer<'de>>(reading: D) -> Result<Self, D::Error> {
        struct Reading;
        impl<'de> Visitor<'de> for Reading {
            type Value = Name<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a name")
            }
            fn visit_borrowed_str<E>(self, name: &'de str) -> Result<Self::Value, E> {
                Ok(Name(Cow::Borrowed(name)))
            }
            fn visit_str<E>(self, name: &str) -> Result<Self::Value, E> {
                Ok(Name(Cow::Owned(name.to_owned())))
            }
        }
        reading.deserialize_str(Reading)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_where() {
        let document = r#"{"a": {"b/c": [1, 2.50, {"~d": "\u0078\"y"}]}, "n": null, "": 9007199254740993, "t": true, "a/b": 7}"#;
        let scalar = |text: &str| Found::Scalar(text.to_owned());
        for (path, found) in [
            ("/a/b~1c/1", scalar("2.50")),
            ("/a/b~1c/2/~0d", scalar("x\"y")),
            ("/a/b~1c/01", Found::Nothing),
            ("/a/b~1c/3", Found::Nothing),
            ("/a/b~1c/-", Found::Nothing),
            ("/a/b~1c", Found::Compound),
            ("/", scalar("9007199254740993")),
            ("n", Found::Null),
            ("/n/x", Found::Nothing),
            ("/t/x", Found::Nothing),
            ("t", scalar("true")),
            ("a~1b", Found::Nothing),
            ("z", Found::Nothing),
        ] {
            assert_eq!(find(document, &Path::parse(path)).unwrap(), found, "{path}");
        }
    }

    #[test]
    fn what_can_be_read_in_two_ways_is_refused() {
        for document in [r#"{"a":1,"a":2}"#, r#"{"a":1"#, r#"{"a":1} 2"#, "", "nonsense", r#"{"a":{"x":]}}"#]
        {
            assert!(find(document, &Path::parse("a")).is_err(), "{document}");
        }
    }

    /// What is not asked for is skipped, not descended into: depth costs no stack.
    #[test]
    fn depth_is_no_danger() {
        let deep = format!("{}1{}", "[".repeat(100_000), "]".repeat(100_000));
        assert_eq!(find(&deep, &Path::parse("/0")).unwrap(), Found::Compound);
        assert!(find(&deep[..150_000], &Path::parse("/0")).is_err());
    }
}
