//! Which headers of an answer are kept.

use http::header::{self, HeaderMap, HeaderName};

/// By this an upstream or handler overrides the classification of its answer; clients never see it.
pub(crate) const OUTCOME: HeaderName = HeaderName::from_static("idempotency-outcome");
/// When a kept answer ends.
pub(crate) const EXPIRES: HeaderName = HeaderName::from_static("idempotency-expires");

/// Of one connection, not of the answer.
const HOP_BY_HOP: [&str; 9] = [
    "connection",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// The end-to-end headers, copied: a header value may share a connection's buffer, and would keep all of it alive.
pub(crate) fn kept(
    headers: &HeaderMap,
    keeps_cookies: bool,
    replayed_header: &str,
) -> Vec<(String, Vec<u8>)> {
    let named_in_connection = |name: &HeaderName| {
        let values = headers.get_all(header::CONNECTION).iter().filter_map(|value| value.to_str().ok());
        values
            .flat_map(|value| value.split(','))
            .any(|option| option.trim().eq_ignore_ascii_case(name.as_str()))
    };
    let is_kept = |name: &HeaderName| {
        !HOP_BY_HOP.contains(&name.as_str())
            && *name != header::DATE
            && (keeps_cookies || *name != header::SET_COOKIE)
            && *name != OUTCOME
            && *name != EXPIRES
            && name.as_str() != replayed_header
            && !(headers.contains_key(header::CONNECTION) && named_in_connection(name))
    };
    let kept = headers.iter().filter(|(name, _)| is_kept(name));
    kept.map(|(name, value)| (name.as_str().to_owned(), value.as_bytes().to_vec())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    #[test]
    fn end_to_end_headers_stay_repeated_and_nothing_of_the_connection_is_kept() {
        let mut headers = HeaderMap::new();
        let mut add = |name: &'static str, value: &'static [u8]| {
            headers.append(name, HeaderValue::from_bytes(value).unwrap());
        };
        add("content-type", b"text/plain");
        add("link", b"</a>; rel=next, </b>");
        add("link", b"\xff\xfe");
        add("set-cookie", b"a=b");
        add("date", b"Mon, 16 Nov 2026 00:00:00 GMT");
        add("connection", b"close, X-Hop");
        add("x-hop", b"1");
        add("transfer-encoding", b"chunked");
        add("idempotency-outcome", b"completed");
        let names = |keeps_cookies| -> Vec<String> {
            kept(&headers, keeps_cookies, "idempotency-replayed").into_iter().map(|(name, _)| name).collect()
        };
        assert_eq!(names(false), ["content-type", "link", "link"]);
        assert_eq!(names(true), ["content-type", "link", "link", "set-cookie"]);
        let all = kept(&headers, false, "idempotency-replayed");
        assert_eq!(all[2].1, b"\xff\xfe");
    }
}
