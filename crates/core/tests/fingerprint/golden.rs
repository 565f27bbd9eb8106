//! Fingerprints of version 1, pinned for ever.
//!
//! Records keep these digests. If one of them changes, every retry that is under way during the upgrade is refused as
//! another request: make a new `FORM_VERSION` instead. The digests were computed apart from this code, by hashing the
//! documented frame.

use oncegate_core::fingerprint::{self, Content, FORM_VERSION, Mode};

use super::{exclude, include};

fn check(mode: &Mode, content: &Content<'_>, expected: &str) {
    assert_eq!(fingerprint::of(mode, content).unwrap().to_string(), expected, "{mode:?} {content:?}");
}

#[test]
fn version_1_never_changes() {
    assert_eq!(FORM_VERSION, 1);
    let base = Content {
        method: "POST",
        path: "/payments",
        query: None,
        content_type: Some(b"application/json"),
        body: br#"{"amount": 1e2, "lines": [{"id": 1}], "at": 5}"#,
    };
    check(
        &Mode::Json,
        &Content {
            body: r#"{"to":"Zo\u00eb \n😀","rate":0.0000001,"amount":9007199254740993.0}"#.as_bytes(),
            ..base
        },
        "v1:f4e3a8dec0f6f04fc821a4dc511ab96669a2ffe446245439d55155a7b4f4726a",
    );
    check(
        &Mode::Json,
        &Content { query: Some(""), body: b"", ..base },
        "v1:9b2a228ddcf2c5fdd67c3e125f8767b0f4e4542cb900929db0b24f220e3b7f7c",
    );
    check(
        &Mode::Json,
        &Content {
            method: "PATCH",
            path: "/a",
            query: Some("x=1"),
            content_type: Some(b"application/x-www-form-urlencoded"),
            body: b"%61=x%20y&&b=%ff&c",
        },
        "v1:41975cd6475267e06601231043bb31b65ba25a2639ffbd11c8fce46063b65caa",
    );
    check(
        &Mode::Json,
        &Content { content_type: Some(b"Text/Plain; charset=utf-8"), body: b"hello", ..base },
        "v1:2e074df81638141f5bb2c12a6e1efb350ecd6c0fae0b420171c8b80eab1ff9f8",
    );
    check(
        &Mode::Json,
        &Content { content_type: None, body: b"\x00\xff", ..base },
        "v1:f0f750066cdbeedc3030add3a7f59bcb274cb0366511d461c6df44aec100f40a",
    );
    check(
        &Mode::Raw,
        &Content { body: b"{ }", ..base },
        "v1:d11a6e2b0e144424b590f6e5beae5fb8152a520e660bef7dfd1e6e2d99c21efb",
    );
    check(
        &include(&["/lines/0", "/amount"]),
        &base,
        "v1:9e57890e9e76d364961c9c348e72749f43b97a917a5a277dc0a7986d52273b26",
    );
    check(&exclude(&["/at"]), &base, "v1:01ca0944528b425d4a788c3fc637efd91dfe7cc23029082ef5fd587bd1d3ce6f");
    check(&Mode::None, &base, "v0:6f1de7d8030a1e0f9e21042628665db1f8b175313aacceaf791b72b84d46aa46");
}
