//! What a client would like (RFC 7240): to be answered at once and told later, and how long it would wait first.

use std::time::Duration;

use http::header::{HeaderMap, HeaderName};

const PREFER: HeaderName = HeaderName::from_static("prefer");

/// The preferences that are understood here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Prefer {
    /// `respond-async`: 202 is welcome.
    pub(crate) respond_async: bool,
    /// `wait=N`: but not before so long.
    pub(crate) wait: Option<Duration>,
}

impl Prefer {
    /// What is not understood is ignored, as the standard says; of a preference that is given twice the first counts.
    pub(crate) fn of(headers: &HeaderMap) -> Self {
        let mut prefer = Self::default();
        let mut has_wait = false;
        let fields = headers.get_all(PREFER).iter().filter_map(|value| value.to_str().ok());
        for preference in fields.flat_map(|field| field.split(',')) {
            // Parameters say nothing about these two.
            let word = preference.split(';').next().unwrap_or_default();
            let (name, value) = word.split_once('=').unwrap_or((word, ""));
            let (name, value) = (name.trim(), value.trim().trim_matches('"'));
            if name.eq_ignore_ascii_case("respond-async") {
                prefer.respond_async = true;
            } else if name.eq_ignore_ascii_case("wait") && !has_wait {
                has_wait = true;
                prefer.wait = value.parse().ok().map(Duration::from_secs);
            }
        }
        prefer
    }

    /// How long to hold an answer, where `limit` is the longest.
    pub(crate) fn hold(self, limit: Duration) -> Duration {
        self.wait.unwrap_or_default().min(limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    #[test]
    fn preferences_as_the_standard_writes_them() {
        let read = |fields: &[&'static str]| {
            let mut headers = HeaderMap::new();
            for field in fields {
                headers.append(PREFER, HeaderValue::from_static(field));
            }
            let Prefer { respond_async, wait } = Prefer::of(&headers);
            (respond_async, wait.map(|wait| wait.as_secs()))
        };
        for (fields, expected) in [
            (&[][..], (false, None)),
            (&["respond-async"], (true, None)),
            (&["Respond-Async, wait=10"], (true, Some(10))),
            (&["wait = \"5\" ; foo=bar", "return=minimal, respond-async; x"], (true, Some(5))),
            (&["wait=3, wait=9"], (false, Some(3))),
            (&["wait=soon, wait=9"], (false, None)),
            (&["respond-asynchronously, waiting=3"], (false, None)),
            (&["wait=-1"], (false, None)),
        ] {
            assert_eq!(read(fields), expected, "{fields:?}");
        }
    }

    #[test]
    fn nobody_holds_longer_than_the_limit() {
        let limit = Duration::from_secs(10);
        let hold = |wait: Option<u64>| {
            Prefer { wait: wait.map(Duration::from_secs), ..Prefer::default() }.hold(limit).as_secs()
        };
        assert_eq!([hold(None), hold(Some(3)), hold(Some(86_400))], [0, 3, 10]);
    }
}
