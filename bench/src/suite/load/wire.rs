//! Requests as bytes, and how much of an answer is there.

use super::{Kind, Load};
use crate::Outcome;

/// A request whose key can be changed in place.
pub(super) struct Template {
    bytes: Vec<u8>,
    key_at: Option<usize>,
}

/// A key of the length of a UUID, whose last 16 digits are its number's.
const KEY: &str = "00000000-0000-4000-8000000000000000";
const DIGITS: usize = 16;

impl Template {
    pub(super) fn new(load: &Load) -> Self {
        let path = match (load.path, load.answer_bytes) {
            (Some(path), _) => path.to_owned(),
            (None, 200) => "/payments".to_owned(),
            (None, other) => format!("/payments/{other}"),
        };
        let common = "Host: bench.example\r\nAuthorization: Bearer bench\r\n";
        if load.kind == Kind::Get {
            return Self { bytes: format!("GET {path} HTTP/1.1\r\n{common}\r\n").into_bytes(), key_at: None };
        }
        let body = body(load.request_bytes);
        let head = format!("POST {path} HTTP/1.1\r\n{common}Idempotency-Key: \"");
        let key_at = head.len() + KEY.len() - DIGITS;
        let rest =
            format!("\"\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        Self { bytes: [head.as_str(), KEY, &rest].concat().into_bytes(), key_at: Some(key_at) }
    }

    pub(super) fn with_key(&mut self, number: u64) -> &[u8] {
        if let Some(at) = self.key_at {
            for (place, digit) in self.bytes[at..at + DIGITS].iter_mut().enumerate() {
                let value = (number >> (4 * (DIGITS - 1 - place))) & 0xF;
                *digit = b"0123456789abcdef"[usize::try_from(value).unwrap_or(0)];
            }
        }
        &self.bytes
    }
}

/// A payment, as JSON, of exactly so many bytes.
fn body(bytes: usize) -> String {
    let start =
        r#"{"amount":100,"currency":"EUR","to":"Ada Lovelace","reference":"invoice 2026-0042","lines":[""#;
    let end = r#""]}"#;
    // Lines of 40, as a list of articles would be: canonical JSON has something to do.
    let mut body = start.to_owned();
    while body.len() + end.len() < bytes {
        let left = bytes - body.len() - end.len();
        if left >= 43 + 40 {
            body.push_str(&"x".repeat(40));
            body.push_str(r#"",""#);
        } else {
            body.push_str(&"x".repeat(left));
        }
    }
    body + end
}

/// A whole answer.
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) head_bytes: usize,
    pub(super) is_replayed: bool,
}

/// `None`: there is more to come.
pub(super) fn answer(text: &[u8]) -> Outcome<Option<Answer>> {
    let Some(head) = text.windows(4).position(|window| window == b"\r\n\r\n") else { return Ok(None) };
    let head_bytes = head + 4;
    let head = String::from_utf8_lossy(&text[..head]).to_ascii_lowercase();
    let status =
        head.get(9..12).and_then(|status| status.parse().ok()).ok_or("an answer without a status")?;
    let value = |name: &str| head.split("\r\n").find_map(|line| line.strip_prefix(name)).map(str::trim);
    let is_whole = match value("content-length:") {
        Some(length) => text.len() >= head_bytes + length.parse::<usize>()?,
        None if value("transfer-encoding:") == Some("chunked") => text.ends_with(b"\r\n0\r\n\r\n"),
        None => return Err(format!("an answer without an end: {head}").into()),
    };
    let is_replayed = value("idempotency-replayed:") == Some("true");
    Ok(is_whole.then_some(Answer { status, head_bytes, is_replayed }))
}

#[cfg(test)]
mod tests {
    use super::{answer, body};

    #[test]
    fn bodies_have_the_size_that_was_asked_for() {
        for bytes in [200, 4096, 65_536] {
            assert_eq!(body(bytes).len(), bytes);
            assert!(serde_json::from_str::<serde_json::Value>(&body(bytes)).is_ok());
        }
    }

    #[test]
    fn an_answer_is_whole_with_its_last_byte() {
        let text = b"HTTP/1.1 201 Created\r\nContent-Length: 2\r\nIdempotency-Replayed: true\r\n\r\nok";
        assert!(answer(&text[..text.len() - 1]).unwrap().is_none());
        let whole = answer(text).unwrap().unwrap();
        assert_eq!((whole.status, whole.head_bytes, whole.is_replayed), (201, text.len() - 2, true));
        let chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n";
        assert!(answer(&chunked[..chunked.len() - 2]).unwrap().is_none());
        assert!(answer(chunked).unwrap().is_some());
    }
}
