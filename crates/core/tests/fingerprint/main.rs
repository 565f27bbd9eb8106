//! Which two requests are the same, and which bodies cannot be told.

#![expect(clippy::unwrap_used, reason = "helpers of tests: a broken table should stop the test")]

mod canonical_json;
mod fields;
mod golden;
mod property;
mod refusals;
mod requests;

use oncegate_core::fingerprint::{self, Content, Fields, FingerprintError, Mode, Pointer};

type ContentType = Option<&'static [u8]>;

const JSON: ContentType = Some(b"application/json");
const FORM: ContentType = Some(b"application/x-www-form-urlencoded");
const TEXT: ContentType = Some(b"text/plain");

#[derive(Clone, Copy, Debug, PartialEq)]
enum Expected {
    Same,
    Other,
}
use Expected::{Other, Same};

fn post<'a>(content_type: Option<&'a [u8]>, body: &'a (impl AsRef<[u8]> + ?Sized)) -> Content<'a> {
    Content { method: "POST", path: "/payments", query: None, content_type, body: body.as_ref() }
}

/// Checks whether two requests share a fingerprint under a policy.
fn check(mode: &Mode, a: Content<'_>, b: Content<'_>, expected: Expected) {
    let same = fingerprint::of(mode, &a).unwrap() == fingerprint::of(mode, &b).unwrap();
    let found = if same { Same } else { Other };
    assert_eq!(found, expected, "{mode:?}\n  {a:?}\n  {b:?}");
}

fn check_bodies(mode: &Mode, content_type: Option<&[u8]>, table: &[(&str, &str, Expected)]) {
    for (a, b, expected) in table {
        check(mode, post(content_type, a), post(content_type, b), *expected);
    }
}

fn include(texts: &[&str]) -> Mode {
    Mode::Fields(Fields::Include(pointers(texts)))
}

fn exclude(texts: &[&str]) -> Mode {
    Mode::Fields(Fields::Exclude(pointers(texts)))
}

fn pointers(texts: &[&str]) -> Vec<Pointer> {
    texts.iter().map(|text| Pointer::parse(text).unwrap()).collect()
}

fn canonical_text(mode: &Mode, content: &Content<'_>) -> Result<String, FingerprintError> {
    let canonical = fingerprint::canonical(mode, content)?;
    Ok(String::from_utf8(canonical.bytes.into_owned()).unwrap())
}

fn canonical_json(body: &[u8]) -> Result<String, FingerprintError> {
    canonical_text(&Mode::Json, &post(JSON, body))
}

fn check_canonical(body: &str, expected: &str) {
    assert_eq!(canonical_json(body.as_bytes()).unwrap(), expected, "{body}");
}
