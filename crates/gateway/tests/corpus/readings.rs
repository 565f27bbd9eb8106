//! How lenient servers read a request: what they would execute, beside what its bytes say.

use crate::case::{Reading, Setup};
use crate::strict::Request;

/// Whether any server that these readings allow would execute a protected operation.
pub(crate) fn is_protected(request: &Request, setup: &Setup) -> bool {
    let methods = overridden(request, &["method", "verb"]).chain([request.method.clone()]);
    let methods: Vec<String> = methods.map(|method| method.to_ascii_uppercase()).collect();
    let targets = overridden(request, &["uri", "url", "path"]).chain([request.target.clone()]);
    let paths: Vec<String> = targets.flat_map(|target| paths(&target, setup)).collect();
    methods.iter().any(|method| paths.iter().any(|path| setup.matches(method, path)))
}

/// The values of headers such as `x-original-url` and `x-http-method-override`, and each part of
/// one that is a list.
fn overridden<'r>(request: &'r Request, words: &'r [&str]) -> impl Iterator<Item = String> + 'r {
    let found = request.headers.iter().filter(move |(name, _)| {
        let name = name.replace(|letter: char| !letter.is_alphanumeric(), "-");
        name.starts_with("x-") && words.iter().any(|word| name.contains(word))
    });
    found.flat_map(|(_, value)| {
        let value = String::from_utf8_lossy(value).into_owned();
        let parts = value.split([',', ';', '"', ' ']).map(str::to_owned);
        parts.chain([value.clone()]).collect::<Vec<_>>()
    })
}

/// The path of a target by every combination of readings.
fn paths(target: &str, setup: &Setup) -> Vec<String> {
    let path = target.split(['?', '#']).next().unwrap_or_default();
    let path = path.strip_prefix(&setup.base_path).unwrap_or(path);
    let mut paths = vec![path.to_owned()];
    for reading in &setup.readings {
        let more: Vec<String> = paths.iter().map(|path| read_as(*reading, path)).collect();
        paths.extend(more);
    }
    paths.iter().map(|path| normal(path)).collect()
}

fn read_as(reading: Reading, path: &str) -> String {
    match reading {
        Reading::Folded => path.to_lowercase(),
        Reading::Stripped => {
            let segments = path.split('/').map(|segment| segment.split(';').next().unwrap_or_default());
            segments.collect::<Vec<_>>().join("/")
        }
        Reading::Decoded => {
            let mut decoded = Vec::new();
            let mut rest = path.as_bytes();
            while let [byte, after @ ..] = rest {
                let hex =
                    after.get(..2).and_then(|hex| u8::from_str_radix(str::from_utf8(hex).ok()?, 16).ok());
                (rest, ()) = match (byte, hex) {
                    (b'%', Some(byte)) => (&after[2..], decoded.push(byte)),
                    (byte, _) => (after, decoded.push(*byte)),
                };
            }
            // A server in C stops at a NUL; one on Windows reads a backslash as a slash.
            let text = String::from_utf8_lossy(&decoded).replace('\\', "/");
            text.split('\0').next().unwrap_or_default().to_owned()
        }
    }
}

/// Without empty segments, dots, and a slash at the end.
fn normal(path: &str) -> String {
    let mut kept: Vec<&str> = Vec::new();
    for segment in path.split('/') {
        match segment {
            "" | "." => {}
            ".." => drop(kept.pop()),
            segment => kept.push(segment),
        }
    }
    format!("/{}", kept.join("/"))
}

impl Setup {
    fn matches(&self, method: &str, path: &str) -> bool {
        self.protects.iter().any(|pattern| {
            let (of_pattern, pattern) = pattern.split_once(' ').expect("a method and a path");
            let segments = || path.split('/').zip(pattern.split('/'));
            let is_path = path.split('/').count() == pattern.split('/').count()
                && segments().all(|(segment, pattern)| pattern == "{}" || pattern == segment);
            method == of_pattern && (pattern == "*" || is_path)
        })
    }
}

#[test]
fn lenient_readings_find_the_route() {
    let setup = Setup {
        config: String::new(),
        base_path: "/v1".to_owned(),
        protects: vec!["POST /payments".to_owned(), "POST /payments/{}".to_owned()],
        readings: vec![Reading::Decoded, Reading::Folded, Reading::Stripped],
    };
    let is = |method: &str, target: &str, headers: &[(&str, &str)]| {
        let headers = headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).into())).collect();
        let request =
            Request { method: method.to_owned(), target: target.to_owned(), headers, body: Vec::new() };
        is_protected(&request, &setup)
    };
    for path in ["/payments", "/v1/Payments;x=1/", "/x/..%2Fpayments?a", "/payments%00.txt", "/payments/7"] {
        assert!(is("POST", path, &[]), "{path}");
    }
    assert!(is("GET", "/payments", &[("x-http-method-override", "post")]));
    assert!(is("GET", "/payments", &[("x-http-verb", "put, \"POST\"")]));
    assert!(is("POST", "/x", &[("x-original-url", "/payments")]));
    assert!(!is("GET", "/payments", &[]) && !is("POST", "/paymentsx", &[("x-trace", "/payments")]));
}
