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

/// Whether a `%` is not followed by two hexadecimal digits. Servers read such a path in different
/// ways, and what follows the `%` could become an escape once its neighbours are decoded.
pub(super) fn has_broken_escape(path: &str) -> bool {
    path.contains('%') && decoded(path).any(|read| read == (b'%', false))
}

/// Whether a normal path has bytes that servers read in different ways: encoded separators,
/// backslashes and control characters.
pub(super) fn is_ambiguous(normal: &str) -> bool {
    if !normal.contains('%') && !normal.contains('\\') {
        return false;
    }
    decoded(normal)
        .any(|(byte, is_escaped)| byte == b'\\' || byte.is_ascii_control() || (byte == b'/' && is_escaped))
}

/// How a server reads an ambiguous path that decodes separators and stops at a NUL. For counting
/// only: others read it in other ways.
pub(super) fn likely_reading(normal: &str, rules: RequestRules) -> String {
    let reading = normal.split("%00").next().unwrap_or_default();
    let reading = reading.replace("%2F", "/").replace("%5C", "/").replace('\\', "/");
    self::normal(&reading, rules).unwrap_or(reading)
}

/// Whether a server would find `.` or `..` in a path that has none left, and could so leave the
/// upstream's base path: one that decodes everything, takes `\` for `/`, drops what follows a `;`,
/// a NUL, a `?` or a `#`, and ignores control characters and spaces.
pub(super) fn hides_dot_segments(normal: &str) -> bool {
    if !normal.contains('%') && !normal.contains('\\') && !normal.contains(';') {
        return false;
    }
    let bytes: Vec<u8> = decoded(normal).map(|(byte, _)| byte).collect();
    let mut segments = bytes.split(|byte| matches!(byte, b'/' | b'\\'));
    segments.any(|segment| {
        let mut parts = segment.split(|byte| matches!(byte, b';' | b'?' | b'#' | 0));
        let name = parts.next().unwrap_or_default();
        let name: Vec<u8> = name.iter().copied().filter(|byte| *byte > b' ' && *byte != 0x7f).collect();
        matches!(&name[..], b"." | b"..")
    })
}

/// Whether it surely is its own normal spelling, as nearly all are: then nothing is copied.
fn is_normal(path: &str, rules: RequestRules) -> bool {
    let Some(rest) = path.strip_prefix('/') else { return false };
    let is_plain = |byte: u8| {
        byte.is_ascii_graphic()
            && byte != b'%'
            && !(rules.path_case == PathCase::Fold && byte.is_ascii_uppercase())
            && !(rules.path_params == PathParams::Strip && byte == b';')
    };
    let is_kept = |segment: &str| !matches!(segment, "" | "." | "..");
    let segments = rest.strip_suffix('/').unwrap_or(rest);
    rest.bytes().all(is_plain) && (rest.is_empty() || segments.split('/').all(is_kept))
}

/// `%70` is `p` to every server; what separates (`%2F`) stays as it is. Other escapes get capital
/// digits, and bytes beyond ASCII and control characters become escapes. So does a `%` that is no
/// escape: it must not become one with what follows it.
fn decode_unreserved(path: &str, case: PathCase) -> String {
    let mut spelled = String::with_capacity(path.len());
    for (byte, is_escaped) in decoded(path) {
        let is_unreserved = byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
        if is_unreserved || (byte.is_ascii_graphic() && byte != b'%' && !is_escaped) {
            let byte = if case == PathCase::Fold { byte.to_ascii_lowercase() } else { byte };
            spelled.push(char::from(byte));
        } else {
            // Writing to a text cannot fail.
            let _ = write!(spelled, "%{byte:02X}");
        }
    }
    spelled
}

/// The bytes of a path, decoded once, each with whether it was an escape.
fn decoded(path: &str) -> impl Iterator<Item = (u8, bool)> {
    let mut rest = path.as_bytes();
    std::iter::from_fn(move || {
        let (byte, after) = rest.split_first()?;
        let escaped = if *byte == b'%' { escaped_byte(after) } else { None };
        rest = if escaped.is_some() { &after[2..] } else { after };
        Some((escaped.unwrap_or(*byte), escaped.is_some()))
    })
}

/// The byte that two hexadecimal digits stand for.
fn escaped_byte(digits: &[u8]) -> Option<u8> {
    let digit = |at: usize| char::from(*digits.get(at)?).to_digit(16);
    u8::try_from(digit(0)? << 4 | digit(1)?).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

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
            ("/%%370", "/%2570"),
            ("/a%", "/a%25"),
            ("/a\u{7f}", "/a%7F"),
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
        for path in ["/a%2Fb", "/a%5Cb", "/a\\b", "/a%00", "/a%0A", "/%1Fa", "/a%7F"] {
            assert!(is_ambiguous(path), "{path}");
        }
        for path in ["/", "/a%20b", "/caf%C3%A9", "/a%25", "/a%5B", "/a%252F"] {
            assert!(!is_ambiguous(path), "{path}");
        }
        for path in ["/%", "/a%4", "/a%zz", "/%%370", "/%7%30", "/%u2215", "/%-1", "/%+1"] {
            assert!(has_broken_escape(path), "{path}");
        }
        for path in ["/", "/a%20b", "/%25", "/%2500", "/%aF"] {
            assert!(!has_broken_escape(path), "{path}");
        }
    }

    #[test]
    fn hidden_dot_segments() {
        for path in [
            "/..%2Fx",
            "/a\\..\\b",
            "/.;/a",
            "/..%3Bx/a",
            "/..%00/a",
            "/.%00./a",
            "/a/..%00",
            "/..%09",
            "/.%09./a",
            "/%0D%0A../a",
            "/..%20/a",
            "/..%7F/a",
            "/..%3Fx",
            "/..%23x",
            "/a%5C..%00%5Cb",
        ] {
            assert!(hides_dot_segments(path), "{path}");
        }
        for path in ["/", "/a..b/c...;d", "/...%20/a", "/%2520..", "/..%C3%A4", "/a%2F.b", "/;/%20/a"] {
            assert!(!hides_dot_segments(path), "{path}");
        }
    }

    /// Bytes that mean something in a path, and digits that could complete an escape.
    const PIECES: &str = "[%0-37aAfF/.;\u{7f}\\\\?\u{e9}]{0,12}";

    proptest! {
        /// `/%%370` was forwarded as `/%70`, which is another path to every server.
        #[test]
        fn a_normal_path_is_its_own_normal_spelling(
            path in prop_oneof![PIECES, "\\PC*"],
            folds in any::<bool>(),
            strips in any::<bool>(),
        ) {
            let rules = RequestRules {
                path_case: if folds { PathCase::Fold } else { PathCase::Exact },
                path_params: if strips { PathParams::Strip } else { PathParams::Keep },
                ..EXACT
            };
            let path = format!("/{path}");
            let once = normal(&path, rules).unwrap_or(path);
            prop_assert_eq!(normal(&once, rules), None, "{}", once);
            prop_assert!(!has_broken_escape(&once), "{}", once);
            prop_assert!(once.bytes().all(|byte| byte.is_ascii_graphic()), "{}", once);
            let segments = || once.split('/').skip(1);
            prop_assert!(!segments().any(|segment| matches!(segment, "." | "..")), "{}", once);
        }
    }
}
