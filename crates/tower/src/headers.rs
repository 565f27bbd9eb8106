//! Which headers are of one connection, which of an answer are kept, and which are not the handler's to send.

use http::header::{self, HeaderMap, HeaderName};
use oncegate_core::classify::Outcome;

/// By this an upstream or handler overrides the classification of its answer; clients never see it.
pub const OUTCOME: HeaderName = HeaderName::from_static("idempotency-outcome");
/// When a kept answer ends.
pub(crate) const EXPIRES: HeaderName = HeaderName::from_static("idempotency-expires");

/// Which preferences were honoured (RFC 7240).
pub(crate) const PREFERENCE_APPLIED: HeaderName = HeaderName::from_static("preference-applied");

/// Of one connection, not of the message.
pub static HOP_BY_HOP: [HeaderName; 9] = [
    header::CONNECTION,
    HeaderName::from_static("keep-alive"),
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    HeaderName::from_static("proxy-connection"),
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];

/// Takes out of a handler's answer what is the layer's to say, and gives the handler's own account. A handler that passes on
/// what another service answered may carry that one's marks.
pub(crate) fn take_account(headers: &mut HeaderMap, replayed_header: &str) -> Option<Outcome> {
    headers.remove(EXPIRES);
    headers.remove(replayed_header);
    let mut accounts = headers.get_all(OUTCOME).iter().filter_map(|value| Outcome::read(value.as_bytes()));
    let first = accounts.next();
    // Who says two things does not know.
    let agreed = if accounts.all(|other| Some(other) == first) { first } else { Some(Outcome::Unknown) };
    headers.remove(OUTCOME);
    agreed
}

/// What `Connection` names: of this connection too.
pub fn connection_options(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    let values = headers.get_all(header::CONNECTION).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).map(str::trim)
}

/// The end-to-end headers, copied: a header value may share a connection's buffer, and would keep all of it alive.
pub(crate) fn kept(headers: &HeaderMap, keeps_cookies: bool) -> Vec<(String, Vec<u8>)> {
    let named_in_connection = |name: &HeaderName| {
        connection_options(headers).any(|option| option.eq_ignore_ascii_case(name.as_str()))
    };
    let is_kept = |name: &HeaderName| {
        !HOP_BY_HOP.contains(name)
            && *name != header::DATE
            && (keeps_cookies || *name != header::SET_COOKIE)
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
        let names = |keeps_cookies| -> Vec<String> {
            kept(&headers, keeps_cookies).into_iter().map(|(name, _)| name).collect()
        };
        assert_eq!(names(false), ["content-type", "link", "link"]);
        assert_eq!(names(true), ["content-type", "link", "link", "set-cookie"]);
        let all = kept(&headers, false);
        assert_eq!(all[2].1, b"\xff\xfe");
    }

    #[test]
    fn a_handler_that_says_two_things_does_not_know() {
        let account = |values: &[&'static str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(OUTCOME, HeaderValue::from_static(value));
            }
            let account = take_account(&mut headers, "idempotency-replayed");
            assert!(headers.is_empty());
            account
        };
        assert_eq!(account(&[]), None);
        assert_eq!(account(&["nonsense"]), None);
        assert_eq!(account(&["not-executed"]), Some(Outcome::NotExecuted));
        assert_eq!(account(&["not-executed", "not-executed"]), Some(Outcome::NotExecuted));
        assert_eq!(account(&["not-executed", "completed"]), Some(Outcome::Unknown));
    }
}
