//! The answer that an operator gives for what happened: as typed, and checked.
//!
//! What could not have been kept of an upstream's answer is refused rather than dropped: whoever typed it should know.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::header::{CONTENT_LENGTH, DATE, HeaderName, HeaderValue, SET_COOKIE};
use oncegate_core::response::{Answer, Response};
use oncegate_tower::headers::{HOP_BY_HOP, OUTCOME};
use serde::Deserialize;

use super::wish::Bad;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TypedAnswer {
    status: u16,
    #[serde(default)]
    headers: Vec<(String, String)>,
    body: Option<String>,
    body_base64: Option<String>,
}

/// Reads an answer from JSON: `status`, `headers` as pairs, and `body` or `body_base64`.
pub fn answer(json: &[u8]) -> Result<Arc<Answer>, Bad> {
    let typed = serde_json::from_slice(json).map_err(|error| {
        Bad(format!(
            "{error}; expected a JSON object of status, headers (pairs of name and value), and body or body_base64."
        ))
    })?;
    read(typed)
}

pub(super) fn read(typed: TypedAnswer) -> Result<Arc<Answer>, Bad> {
    let status = typed.status;
    if !(200..=599).contains(&status) {
        return Err(Bad(format!("{status} is not the status of an answer: those are 200 to 599.")));
    }
    let headers = typed.headers.into_iter().map(|(name, value)| header(&name, &value));
    let headers = headers.collect::<Result<_, _>>()?;
    let body = body(typed.body, typed.body_base64)?;
    if matches!(status, 204 | 304) && !body.is_empty() {
        return Err(Bad(format!("An answer with status {status} has no body.")));
    }
    Ok(Arc::new(Answer::Kept(Response { status, headers, body })))
}

fn header(name: &str, value: &str) -> Result<(String, Vec<u8>), Bad> {
    let parsed = HeaderName::from_bytes(name.as_bytes())
        .map_err(|_| Bad(format!("{name:?} is not the name of a header.")))?;
    let is_not_kept = HOP_BY_HOP.contains(&parsed)
        || [CONTENT_LENGTH, DATE, SET_COOKIE, OUTCOME].contains(&parsed)
        || matches!(parsed.as_str(), "idempotency-replayed" | "idempotent-replayed" | "idempotency-expires");
    if is_not_kept {
        return Err(Bad(format!("{parsed} is not kept in stored answers: leave it out.")));
    }
    let value = HeaderValue::from_str(value)
        .map_err(|_| Bad(format!("The value of {parsed} has characters that no header may have.")))?;
    Ok((parsed.as_str().to_owned(), value.as_bytes().to_vec()))
}

fn body(text: Option<String>, encoded: Option<String>) -> Result<Vec<u8>, Bad> {
    match (text, encoded) {
        (Some(_), Some(_)) => Err(Bad("body and body_base64 are two bodies: keep one.".to_owned())),
        (Some(text), None) => Ok(text.into_bytes()),
        (None, Some(encoded)) => {
            let wrong = |error: base64::DecodeError| {
                let words = error.to_string();
                Bad(format!("body_base64 is not base64: {}.", words.trim_end_matches('.')))
            };
            STANDARD.decode(encoded).map_err(wrong)
        }
        (None, None) => Ok(Vec::new()),
    }
}
