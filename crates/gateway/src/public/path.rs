//! One path, many spellings: a route must not be missed because of how its path is spelled.
//!
//! Servers read `//payments`, `/%70ayments` and `/x/../payments` in different ways, and many of
//! them as `/payments`. So a path gets one spelling before anything else looks at it: routes are
//! matched by it, requests are compared by it, and the upstream is sent it. A slash at the end is
//! forwarded, because many servers redirect to it, and ignored otherwise.

use std::fmt::Write as _;

use crate::config::{PathCase, PathParams, RequestRules};

/// The spelling that is forwarded; `None`: it is the client's own.
pub(crate) fn normal(path: &str, rules: RequestRules) -> Option<String> {
    if is_normal(path, rules) {
        return None;
    }
    let decoded = decode_unreserved(path, rules.path_case);
    let mut kept: Vec<&str> = Vec::new();
    let mut ends_with_slash = false;
    for segment in decoded.split('/') {
        let segment = match rules.path_params {
            PathParams::Keep => segment,
            PathParams::Strip => segment.split(';').next().unwrap_or_default(),
        };
        ends_with_slash = matches!(segment, "" | "." | "..");
        match segment {
            "" | "." => {}
            ".." => {
                kept.pop();
            }
            segment => kept.push(segment),
        }
    }
    let end = if ends_with_slash && !kept.is_empty() { "/" } else { "" };
    let normal = format!("/{}{end}", kept.join("/"));
    (normal != path).then_some(normal)
}

/// The part of a normal path that routes and comparisons see: all but a slash at its end.
pub(crate) fn matched(normal: &str) -> &str {
    normal.strip_suffix('/').filter(|rest| !rest.is_empty()).unwrap_or(normal)
}

/// Whether a normal path has bytes that servers read in different ways: encoded separators and
/// control characters, backslashes, escapes that are none.
pub(super) fn is_ambiguous(normal: &str) -> bool {
    let mut bytes = normal.bytes();
    while let Some(byte) = bytes.next() {
        match byte {
            b'\\' => return true,
            b'%' => match (bytes.next(), bytes.next()) {
                // Control characters, `/`, `\` and DEL. Hexadecimal digits are capitals here.
                (Some(b'0' | b'1'), _) | (Some(b'2' | b'7'), Some(b'F')) | (Some(b'5'), Some(b'C')) => {
                    return true;
                }
                (Some(high), Some(low)) if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() => {}
                _ => return true,
            },
            _ => {}
        }
    }
    false
}

/// How a server reads an ambiguous path that decodes separators and stops at a NUL.
pub(super) fn other_reading(normal: &str, rules: RequestRules) -> String {
    let reading = normal.split("%00").next().unwrap_or_default();
    let reading = reading.replace("%2F", "/").replace("%5C", "/").replace('\\', "/");
    self::normal(&reading, rules).unwrap_or(reading)
}

/// Whether a server that decodes separators, or drops the parameters of segments, would find
/// `.` or `..` in a path that has none left: then it could leave the upstream's base path.
pub(super) fn hides_dot_segments(normal: &str) -> bool {
    if !normal.contains("..") && !normal.contains(".;") {
        return false;
    }
    let reading = normal.replace("%2F", "/").replace("%5C", "/").replace('\\', "/");
    let mut segments = reading.split('/').map(|segment| segment.split(';').next().unwrap_or_default());
    segments.any(|segment| matches!(segment, "." | ".."))
}

/// Whether it surely is its own normal spelling, as nearly all are: then nothing is copied.
fn is_normal(path: &str, rules: RequestRules) -> bool {
    let Some(rest) = path.strip_prefix('/') else { return false };
    let is_plain = |byte: u8| {
        byte.is_ascii()
            && byte != b'%'
            && !(rules.path_case == PathCase::Fold && byte.is_ascii_uppercase())
            && !(rules.path_params == PathParams::Strip && byte == b';')
    };
    let is_kept = |segment: &str| !matches!(segment, "" | "." | "..");
    let segments = rest.strip_suffix('/').unwrap_or(rest);
    rest.bytes().all(is_plain) && (rest.is_empty() || segments.split('/').all(is_kept))
}

/// `%70` is `p` to every server; what separates (`%2F`) stays as it is. Other escapes get capital
/// digits, and bytes beyond ASCII become escapes.
fn decode_unreserved(path: &str, case: PathCase) -> String {
    let mut decoded = String::with_capacity(path.len());
    let mut rest = path.as_bytes();
    while let [byte, after @ ..] = rest {
        rest = after;
        let (byte, is_escaped) = match (byte, escaped_byte(after)) {
            (b'%', Some(escaped)) => {
                rest = &after[2..];
                (escaped, true)
            }
            (byte, _) => (*byte, false),
        };
        let is_unreserved = byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
        if byte.is_ascii() && (is_unreserved || !is_escaped) {
            let byte = if case == PathCase::Fold { byte.to_ascii_lowercase() } else { byte };
            decoded.push(char::from(byte));
        } else {
            // Writing to a text cannot fail.
            let _ = write!(decoded, "%{byte:02X}");
        }
    }
    decoded
}

/// The byte that two hexadecimal digits stand for.
fn escaped_byte(digits: &[u8]) -> Option<u8> {
    let digit = |at: usize| char::from(*digits.get(at)?).to_digit(16);
    u8::try_from(digit(0)? << 4 | digit(1)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXACT: RequestRules = RequestRules::DEFAULT;

    #[test]
    fn spellings_of_one_path_are_one() {
        for path in [
            "/payments/",
            "//payments",
            "/%70ayments",
            "/a/../payments",
            "/./payments",
            "/%70%61yments//",
            "/../payments",
            "/payments/.",
            "/payments/a/..",
        ] {
            let forwarded = normal(path, EXACT).unwrap_or_else(|| path.to_owned());
            assert_eq!(matched(&forwarded), "/payments", "{path}");
            assert_eq!(normal(&forwarded, EXACT), None, "{path}");
        }
        for path in [
            "/",
            "/payments",
            "/payments/",
            "/payments/7/refunds",
            "/a%2Fb",
            "/a%20b",
            "/Payments",
            "/caf%C3%A9",
            "/a%",
            "/a;b=1",
            "/...",
        ] {
            assert_eq!(normal(path, EXACT), None, "{path}");
        }
        for (path, forwarded) in [
            ("/a%2fb", "/a%2Fb"),
            ("/caf\u{e9}", "/caf%C3%A9"),
            ("/a/../..", "/"),
            ("//", "/"),
            ("/a/./", "/a/"),
            ("/%2e%2E/x", "/x"),
        ] {
            assert_eq!(normal(path, EXACT).as_deref(), Some(forwarded), "{path}");
        }
    }

    #[test]
    fn case_and_parameters_by_choice() {
        let fold = RequestRules { path_case: PathCase::Fold, ..EXACT };
        assert_eq!(normal("/Pay%4Dents/%c3", fold).as_deref(), Some("/payments/%C3"));
        let strip = RequestRules { path_params: PathParams::Strip, ..EXACT };
        assert_eq!(normal("/a;x/..;y/pay;z", strip).as_deref(), Some("/pay"));
    }

    #[test]
    fn ambiguous_bytes() {
        for path in ["/a%2Fb", "/a%5Cb", "/a\\b", "/a%00", "/a%0A", "/a%7F", "/a%", "/a%4", "/a%zz"] {
            assert!(is_ambiguous(path), "{path}");
        }
        for path in ["/", "/a%20b", "/caf%C3%A9", "/a%25", "/a%5B"] {
            assert!(!is_ambiguous(path), "{path}");
        }
        assert_eq!(other_reading("/x%2F..%5Cpayments%00.txt", EXACT), "/payments");
        assert!(
            hides_dot_segments("/..%2Fx") && hides_dot_segments("/a\\..\\b") && hides_dot_segments("/.;/a")
        );
        assert!(!hides_dot_segments("/a..b/c...;d"));
    }
}
