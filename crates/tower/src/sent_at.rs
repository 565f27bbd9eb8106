//! When the client first sent an operation, if it says so: only a quarantine asks for it (`docs/restore.md`).

use std::time::{SystemTime, UNIX_EPOCH};

use http::header::{HeaderMap, HeaderName};
use oncegate_core::time::Timestamp;

/// The moment in this field: an HTTP date, RFC 3339 in UTC, or seconds since 1970. What cannot be read says nothing, and then the key counts as
/// one that may have been lost.
pub(crate) fn sent_at(headers: &HeaderMap, field: Option<&HeaderName>) -> Option<Timestamp> {
    let mut values = headers.get_all(field?).iter();
    match (values.next(), values.next()) {
        (Some(value), None) => read(value.to_str().ok()?.trim()),
        _ => None,
    }
}

fn read(text: &str) -> Option<Timestamp> {
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Some(Timestamp::from_micros(text.parse::<i64>().ok()?.checked_mul(1_000_000)?));
    }
    let time: SystemTime = match httpdate::parse_http_date(text) {
        Ok(time) => time,
        Err(_) => humantime::parse_rfc3339(text).ok()?,
    };
    let since_epoch = time.duration_since(UNIX_EPOCH).ok()?;
    Some(Timestamp::from_micros(i64::try_from(since_epoch.as_micros()).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_is_read_in_each_of_its_forms() {
        let moment = Some(Timestamp::from_micros(1_794_825_197_000_000));
        for (text, expected) in [
            ("Mon, 16 Nov 2026 10:33:17 GMT", moment),
            ("2026-11-16T10:33:17Z", moment),
            ("1794825197", moment),
            ("yesterday", None),
            ("", None),
            ("99999999999999999999", None),
        ] {
            assert_eq!(read(text), expected, "{text}");
        }
    }

    #[test]
    fn two_fields_or_none_say_nothing() {
        let field = HeaderName::from_static("x-request-time");
        let mut headers = HeaderMap::new();
        assert_eq!(sent_at(&headers, Some(&field)), None);
        headers.append(&field, http::HeaderValue::from_static("1794825197"));
        assert!(sent_at(&headers, Some(&field)).is_some());
        assert_eq!(sent_at(&headers, None), None);
        headers.append(&field, http::HeaderValue::from_static("1794825198"));
        assert_eq!(sent_at(&headers, Some(&field)), None);
    }
}
