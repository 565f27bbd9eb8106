//! `[route.probe]` and `[[webhook]]`, as they are typed.

use std::collections::BTreeMap;
use std::fmt;

use oncegate_core::fingerprint::Pointer;
use serde::Deserialize;
use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{Deserializer, Error, MapAccess, SeqAccess, Unexpected, Visitor};
use std::path::PathBuf;

use toml::Spanned;

use super::super::word::{Count, Secret, Size, Span, Word, Words};
use crate::reconcile::{self as checked, Expected, Method, Scheme, Statuses, Test};

/// `[route.probe]`, `[defaults.probe]`
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Probe {
    pub(crate) url: Option<Spanned<String>>,
    pub(crate) method: Option<Spanned<Word<Method>>>,
    /// Secrets, because they may be.
    pub(crate) headers: SecretTable,
    pub(crate) tls_ca: Option<Spanned<PathBuf>>,
    pub(crate) timeout: Option<Spanned<Span>>,
    pub(crate) backoff: Option<Spanned<Span>>,
    pub(crate) backoff_max: Option<Spanned<Span>>,
    pub(crate) park_after: Option<Spanned<Count>>,
    pub(crate) body_bytes_max: Option<Spanned<Size>>,
    pub(crate) happened: Option<Spanned<Vec<Condition>>>,
    pub(crate) did_not_happen: Option<Spanned<Vec<Condition>>>,
    pub(crate) not_yet: Option<Spanned<Vec<Condition>>>,
    pub(crate) created: Option<Spanned<At>>,
    pub(crate) clock_error: Option<Spanned<Span>>,
    pub(crate) keys_are_never_reused: Option<Spanned<bool>>,
    pub(crate) answer: Option<Spanned<Answer>>,
    pub(crate) answers: Option<Spanned<Vec<Spanned<Answer>>>>,
    pub(crate) reference: Option<At>,
}

/// `[[webhook]]`
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Webhook {
    pub(crate) name: Option<Spanned<String>>,
    pub(crate) scheme: Option<Word<Scheme>>,
    pub(crate) secrets: Option<Spanned<SecretList>>,
    pub(crate) tolerance: Option<Spanned<Span>>,
    pub(crate) body_bytes_max: Option<Spanned<Size>>,
    pub(crate) record: Option<Spanned<Record>>,
    pub(crate) life: Option<Spanned<At>>,
    pub(crate) created: Option<Spanned<At>>,
    pub(crate) clock_error: Option<Spanned<Span>>,
    pub(crate) keys_are_never_reused: Option<Spanned<bool>>,
    pub(crate) happened: Option<Spanned<Vec<Condition>>>,
    pub(crate) did_not_happen: Option<Spanned<Vec<Condition>>>,
    pub(crate) did_not_happen_is_final: Option<Spanned<bool>>,
    pub(crate) fence: Option<Spanned<At>>,
    pub(crate) ignored: Option<Spanned<Vec<Condition>>>,
    pub(crate) answer: Option<Spanned<Answer>>,
    pub(crate) answers: Option<Spanned<Vec<Spanned<Answer>>>>,
    pub(crate) reference: Option<At>,
}

/// `[[effect]]`
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Effect {
    pub(crate) name: Option<Spanned<String>>,
    pub(crate) url: Option<Spanned<String>>,
    pub(crate) method: Option<Spanned<Word<Changes>>>,
    /// Secrets, because they may be.
    pub(crate) headers: SecretTable,
    pub(crate) key_header: Option<Spanned<String>>,
    pub(crate) body: Option<Spanned<String>>,
    pub(crate) tls_ca: Option<Spanned<PathBuf>>,
    pub(crate) timeout: Option<Spanned<Span>>,
    pub(crate) backoff: Option<Spanned<Span>>,
    pub(crate) backoff_max: Option<Spanned<Span>>,
    pub(crate) park_after: Option<Spanned<Count>>,
    pub(crate) outage: Option<Spanned<Span>>,
    pub(crate) body_bytes_max: Option<Spanned<Size>>,
    pub(crate) delivered: Option<Spanned<Vec<Condition>>>,
    pub(crate) later: Option<Spanned<Vec<Condition>>>,
    pub(crate) refused: Option<Spanned<Vec<Condition>>>,
    pub(crate) reference: Option<At>,
    pub(crate) answer: Option<Spanned<Answer>>,
    pub(crate) answers: Option<Spanned<Vec<Spanned<Answer>>>>,
}

/// Methods that may change something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Changes {
    Post,
    Put,
    Patch,
    Delete,
}

impl Changes {
    pub(crate) const fn method(self) -> http::Method {
        match self {
            Self::Post => http::Method::POST,
            Self::Put => http::Method::PUT,
            Self::Patch => http::Method::PATCH,
            Self::Delete => http::Method::DELETE,
        }
    }
}

impl Words for Changes {
    const TABLE: &'static [(&'static str, Self)] =
        &[("POST", Self::Post), ("PUT", Self::Put), ("PATCH", Self::Patch), ("DELETE", Self::Delete)];
}

/// `record = { … }`
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Record {
    pub(crate) id: Option<At>,
    pub(crate) key: Option<Spanned<String>>,
    pub(crate) scope: Option<Spanned<String>>,
    pub(crate) operation: Option<Spanned<String>>,
    pub(crate) forwarded_key: Option<Spanned<At>>,
    pub(crate) reference: Option<At>,
}

/// `answer = { … }`
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Answer {
    pub(crate) when: Option<Spanned<Condition>>,
    pub(crate) status: Option<Spanned<Count>>,
    pub(crate) headers: BTreeMap<Spanned<String>, Spanned<String>>,
    pub(crate) body: Option<Spanned<String>>,
    pub(crate) pointer: Option<Spanned<At>>,
}

impl Words for Method {
    const TABLE: &'static [(&'static str, Self)] = &[("GET", Self::Get), ("HEAD", Self::Head)];
}

impl Words for Scheme {
    const TABLE: &'static [(&'static str, Self)] = &[("standard", Self::Standard), ("stripe", Self::Stripe)];
}

/// A table of what may be secrets: whatever stands in its place is not repeated in the error.
#[derive(Debug, Default)]
pub(crate) struct SecretTable(pub(crate) BTreeMap<Spanned<String>, Spanned<Secret>>);

/// The same of a list.
#[derive(Debug, Default)]
pub(crate) struct SecretList(pub(crate) Vec<Spanned<Secret>>);

impl<'de> Deserialize<'de> for SecretTable {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(SecretTableVisitor)
    }
}

impl<'de> Deserialize<'de> for SecretList {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(SecretListVisitor)
    }
}

struct SecretTableVisitor;
struct SecretListVisitor;

impl<'de> Visitor<'de> for SecretTableVisitor {
    type Value = SecretTable;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a table, such as { authorization = \"Bearer {env:PROVIDER_TOKEN}\" }")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<SecretTable, A::Error> {
        Deserialize::deserialize(MapAccessDeserializer::new(map)).map(SecretTable)
    }

    fn visit_str<E: Error>(self, _: &str) -> Result<SecretTable, E> {
        Err(E::invalid_type(Unexpected::Other("a text"), &self))
    }
}

impl<'de> Visitor<'de> for SecretListVisitor {
    type Value = SecretList;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list, such as [\"env:PROVIDER_SECRET\"]")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<SecretList, A::Error> {
        Deserialize::deserialize(SeqAccessDeserializer::new(seq)).map(SecretList)
    }

    fn visit_str<E: Error>(self, _: &str) -> Result<SecretList, E> {
        Err(E::invalid_type(Unexpected::Other("a text"), &self))
    }
}

/// A place in a JSON document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct At(pub(crate) Pointer);

impl<'de> Deserialize<'de> for At {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map(Self).map_err(D::Error::custom)
    }
}

/// What must be so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Condition(pub(crate) checked::Condition);

impl<'de> Deserialize<'de> for Condition {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ConditionVisitor)
    }
}

struct ConditionVisitor;

impl<'de> Visitor<'de> for ConditionVisitor {
    type Value = Condition;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "a condition: a status, such as 404 or \"2xx\", or { status = 200, pointer = \"/data/0/status\", equals = \"succeeded\" }",
        )
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Condition, E> {
        let statuses =
            vec![status(number).ok_or_else(|| E::invalid_value(Unexpected::Signed(number), &self))?];
        Ok(Condition(checked::Condition { statuses, tests: Vec::new() }))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Condition, E> {
        let statuses = vec![class(text).ok_or_else(|| E::invalid_value(Unexpected::Str(text), &self))?];
        Ok(Condition(checked::Condition { statuses, tests: Vec::new() }))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Condition, A::Error> {
        let parts = Parts::deserialize(MapAccessDeserializer::new(map))?;
        let mut tests = parts.tests().map_err(A::Error::custom)?;
        for inner in parts.all.as_deref().unwrap_or_default() {
            if inner.status.is_some() || inner.all.is_some() {
                return Err(A::Error::custom(
                    "in `all` stand tests of the body only, { pointer = …, equals = … }",
                ));
            }
            tests.extend(inner.tests().map_err(A::Error::custom)?);
        }
        let statuses = parts.status.map_or_else(Vec::new, |list| list.0);
        if tests.is_empty() && statuses.is_empty() {
            return Err(A::Error::custom(
                "a condition that tests nothing holds always; expected `status` or `pointer` in it",
            ));
        }
        Ok(Condition(checked::Condition { statuses, tests }))
    }
}

/// A condition's table; one of `all` too.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Parts {
    status: Option<StatusList>,
    pointer: Option<At>,
    equals: Option<Scalar>,
    one_of: Option<Vec<Scalar>>,
    exists: Option<bool>,
    empty: Option<bool>,
    all: Option<Vec<Parts>>,
}

impl Parts {
    fn tests(&self) -> Result<Vec<Test>, &'static str> {
        let values = |list: &[Scalar]| Expected::OneOf(list.iter().map(|value| value.0.clone()).collect());
        let expected: Vec<Expected> = [
            self.equals.as_ref().map(|value| values(std::slice::from_ref(value))),
            self.one_of.as_deref().map(values),
            self.exists.map(Expected::Exists),
            self.empty.map(Expected::Empty),
        ]
        .into_iter()
        .flatten()
        .collect();
        if self.one_of.as_ref().is_some_and(Vec::is_empty) {
            return Err("nothing is one of none; put a value into `one_of`");
        }
        match &self.pointer {
            None if expected.is_empty() => Ok(Vec::new()),
            None => Err("of what? Say pointer = \"/data/0/status\" beside it"),
            Some(_) if expected.is_empty() => {
                Err("`pointer` needs a test beside it: equals, one_of, exists or empty")
            }
            Some(At(pointer)) => {
                let test = |expected| Test { pointer: pointer.clone(), expected };
                Ok(expected.into_iter().map(test).collect())
            }
        }
    }
}

fn status(number: i64) -> Option<Statuses> {
    u16::try_from(number).ok().filter(|status| (100..600).contains(status)).map(Statuses::One)
}

fn class(text: &str) -> Option<Statuses> {
    let digit = text.strip_suffix("xx")?.parse().ok().filter(|digit| (1..6).contains(digit))?;
    (text.len() == 3).then_some(Statuses::Class(digit))
}

/// One, or several.
#[derive(Debug)]
struct StatusList(Vec<Statuses>);

impl<'de> Deserialize<'de> for StatusList {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(StatusVisitor)
    }
}

struct StatusVisitor;

impl<'de> Visitor<'de> for StatusVisitor {
    type Value = StatusList;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a status, such as 404 or \"2xx\", or a list of them")
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<StatusList, E> {
        let found = status(number).ok_or_else(|| E::invalid_value(Unexpected::Signed(number), &self))?;
        Ok(StatusList(vec![found]))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<StatusList, E> {
        let found = class(text).ok_or_else(|| E::invalid_value(Unexpected::Str(text), &self))?;
        Ok(StatusList(vec![found]))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<StatusList, A::Error> {
        let mut all = Vec::new();
        while let Some(StatusList(one)) = seq.next_element()? {
            all.extend(one);
        }
        if all.is_empty() { Err(A::Error::invalid_length(0, &self)) } else { Ok(StatusList(all)) }
    }
}

/// A value to compare with.
#[derive(Clone, Debug)]
struct Scalar(checked::Scalar);

impl<'de> Deserialize<'de> for Scalar {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ScalarVisitor)
    }
}

struct ScalarVisitor;

impl Visitor<'_> for ScalarVisitor {
    type Value = Scalar;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text, a whole number, true or false")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Scalar, E> {
        Ok(Scalar(checked::Scalar::Text(text.to_owned())))
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Scalar, E> {
        Ok(Scalar(checked::Scalar::Integer(number)))
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Scalar, E> {
        Ok(Scalar(checked::Scalar::Bool(value)))
    }
}
