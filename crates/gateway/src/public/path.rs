//! One path, many spellings: a route must not be missed because of how its path is spelled.
//!
//! Upstreams read `/payments/`, `//payments`, `/%70ayments` and `/x/../payments` in different ways, and many of them as `/payments`. So
//! routes are matched, and requests compared, by one spelling; what is forwarded is the client's own.

/// The spelling by which routes are found; `None`: it is the client's own.
pub(super) fn normal(path: &str) -> Option<String> {
    if is_normal(path) {
        return None;
    }
    let decoded = decode_unreserved(path);
    let mut kept: Vec<&str> = Vec::new();
    for segment in decoded.split('/') {
        match segment {
            "" | "." => {}
            ".." => {
                kept.pop();
            }
            segment => kept.push(segment),
        }
    }
    let normal = format!("/{}", kept.join("/"));
    (normal != path && path.starts_with('/')).then_some(normal)
}

/// Whether it surely is its own normal spelling, as nearly all are: then nothing is copied.
fn is_normal(path: &str) -> bool {
    let is_kept = |segment: &str| !matches!(segment, "" | "." | "..");
    let segments = path.strip_prefix('/');
    segments.is_some_and(|rest| !rest.contains('%') && (rest.is_empty() || rest.split('/').all(is_kept)))
}

/// `%70` is `p`, whoever reads it; what separates (`%2F`) is not touched.
fn decode_unreserved(path: &str) -> String {
    let mut decoded = String::with_capacity(path.len());
    let mut rest = path;
    while let Some(at) = rest.find('%') {
        decoded.push_str(&rest[..at]);
        let code = rest.get(at + 1..at + 3).and_then(|digits| u8::from_str_radix(digits, 16).ok());
        match code {
            Some(byte) if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) => {
                decoded.push(char::from(byte));
                rest = &rest[at + 3..];
            }
            _ => {
                decoded.push('%');
                rest = &rest[at + 1..];
            }
        }
    }
    decoded.push_str(rest);
    decoded
}

#[cfg(test)]
mod tests {
    use super::normal;

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
        ] {
            assert_eq!(normal(path).as_deref(), Some("/payments"), "{path}");
        }
        for path in [
            "/",
            "/payments",
            "/payments/7/refunds",
            "/a%2Fb",
            "/a%zz",
            "/a%",
            "*",
            "/payments;x=1",
            "/ü%C3%BC",
        ] {
            assert_eq!(normal(path), None, "{path}");
        }
        assert_eq!(normal("//").as_deref(), Some("/"));
        assert_eq!(normal("/a/%2e%2e/b").as_deref(), Some("/b"));
    }
}
