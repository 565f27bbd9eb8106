//! How values are written in the file: words, spans of time, sizes. Each error says what was expected.

use std::fmt;
use std::marker::PhantomData;
use std::time::Duration;

use oncegate_core::duration::DURATION_MAX;
use serde::de::{Deserialize, Deserializer, Error, Unexpected, Visitor};

/// A choice among a few words (or numbers, such as a status).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Word<T>(pub(crate) T);

/// What may be written, and what it means.
pub(crate) trait Words: Copy + PartialEq + 'static {
    /// All of them.
    const TABLE: &'static [(&'static str, Self)];

    /// As it is written.
    fn word(self) -> &'static str {
        Self::TABLE.iter().find(|(_, value)| *value == self).map_or("?", |(word, _)| word)
    }
}

impl<'de, T: Words> Deserialize<'de> for Word<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(WordVisitor(PhantomData))
    }
}

struct WordVisitor<T>(PhantomData<T>);

impl<T: Words> Visitor<'_> for WordVisitor<T> {
    type Value = Word<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words: Vec<String> = T::TABLE.iter().map(|(word, _)| format!("\"{word}\"")).collect();
        match words.len() {
            1 => f.write_str(&words[0]),
            _ => write!(f, "one of {}", words.join(", ")),
        }
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Word<T>, E> {
        let found = T::TABLE.iter().find(|(word, _)| *word == text);
        found.map(|(_, value)| Word(*value)).ok_or_else(|| E::invalid_value(Unexpected::Str(text), &self))
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Word<T>, E> {
        let text = number.to_string();
        let found = T::TABLE.iter().find(|(word, _)| *word == text);
        found
            .map(|(_, value)| Word(*value))
            .ok_or_else(|| E::invalid_value(Unexpected::Signed(number), &self))
    }
}

/// A span of time, such as `"90s"`, `"5m"`, `"1h 30m"`, `"2d"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span(pub(crate) Duration);

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(SpanVisitor)
    }
}

struct SpanVisitor;

impl Visitor<'_> for SpanVisitor {
    type Value = Span;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a span of time with its unit, such as \"90s\", \"5m\", \"1h 30m\" or \"2d\"")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Span, E> {
        let span =
            humantime::parse_duration(text).map_err(|_| E::invalid_value(Unexpected::Str(text), &self))?;
        if span > DURATION_MAX {
            return Err(E::custom(format!("{text} is too long; must be at most 100 years")));
        }
        Ok(Span(span))
    }
}

/// A number of bytes, such as `"64 KiB"`, `"1 MiB"`, `4096`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Size(pub(crate) u64);

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(SizeVisitor)
    }
}

struct SizeVisitor;

impl Visitor<'_> for SizeVisitor {
    type Value = Size;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number of bytes, such as 4096, \"64 KiB\" or \"1 MiB\"")
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Size, E> {
        u64::try_from(number).map(Size).map_err(|_| E::invalid_value(Unexpected::Signed(number), &self))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Size, E> {
        let (number, unit) = text.split_at(text.bytes().take_while(u8::is_ascii_digit).count());
        let unit = match unit.trim() {
            "" | "B" => Some(1),
            "KiB" => Some(1 << 10),
            "MiB" => Some(1 << 20),
            "GiB" => Some(1 << 30),
            _ => None,
        };
        let bytes = unit.and_then(|unit| number.parse::<u64>().ok()?.checked_mul(unit));
        bytes.map(Size).ok_or_else(|| E::invalid_value(Unexpected::Str(text), &self))
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (unit, name) in [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")] {
            if self.0 >= unit && self.0.is_multiple_of(unit) {
                return write!(f, "{} {name}", self.0 / unit);
            }
        }
        write!(f, "{} B", self.0)
    }
}

/// How many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Count(pub(crate) usize);

impl<'de> Deserialize<'de> for Count {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(CountVisitor)
    }
}

struct CountVisitor;

impl Visitor<'_> for CountVisitor {
    type Value = Count;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a whole number from 0")
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Count, E> {
        usize::try_from(number).map(Count).map_err(|_| E::invalid_value(Unexpected::Signed(number), &self))
    }
}

/// Something that is not to be seen in logs.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Box<str>);

impl Secret {
    /// Wraps it.
    pub fn new(text: impl Into<Box<str>>) -> Self {
        Self(text.into())
    }

    /// The secret itself.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl<'de> Deserialize<'de> for Secret {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(SecretVisitor)
    }
}

/// What is not a text may be a secret all the same: it is not repeated in the error.
struct SecretVisitor;

impl Visitor<'_> for SecretVisitor {
    type Value = Secret;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text in quotes")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Secret, E> {
        Ok(Secret::new(text))
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<Secret, E> {
        Err(E::invalid_type(Unexpected::Other("something else"), &self))
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<Secret, E> {
        Err(E::invalid_type(Unexpected::Other("a number"), &self))
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<Secret, E> {
        Err(E::invalid_type(Unexpected::Other("a number"), &self))
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}
