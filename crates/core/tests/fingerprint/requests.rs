//! Which requests are the same: tables.

use std::collections::HashSet;

use oncegate_core::fingerprint::{self, Comparison, Content, Family, Fingerprint, Mode};

use super::Expected::{self, Other, Same};
use super::{ContentType, FORM, JSON, TEXT, canonical_text, check, check_bodies, exclude, include, post};

#[test]
fn json_is_compared_by_what_it_says() {
    check_bodies(
        &Mode::Json,
        JSON,
        &[
            (r#"{"a":1,"b":2}"#, r#"{"b":2,"a":1}"#, Same),
            (r#"{"a":1,"b":[1,2]}"#, " {\r\n\t\"a\" : 1 , \"b\" : [ 1 , 2 ] } ", Same),
            ("[1,2]", "[2,1]", Other),
            ("1", "1.0", Same),
            ("1", "1e0", Same),
            ("1", "10e-1", Same),
            ("1", "0.1e1", Same),
            ("1", "1E+0", Same),
            ("-0", "0", Same),
            ("-0.0e5", "0", Same),
            ("1", "-1", Other),
            ("9007199254740993", "9007199254740992", Other),
            ("9007199254740993", "9007199254740993.000", Same),
            ("1e400", "1e401", Other),
            ("1e400", "10e399", Same),
            ("1e-400", "0", Other),
            ("0.1", "0.10000000000000001", Other),
            ("100000000000000000000000", "1e23", Same),
            ("1", r#""1""#, Other),
            ("null", r#""null""#, Other),
            ("null", "{}", Other),
            ("[]", "{}", Other),
            ("[]", "[[]]", Other),
            (r#"{"a":null}"#, "{}", Other),
            (r#"{"a":{"b":1}}"#, r#"{"a":{},"b":1}"#, Other),
            (r#""é""#, r#""\u00e9""#, Same),
            (r#""😀""#, r#""\ud83d\uDE00""#, Same),
            (r#""/""#, r#""\/""#, Same),
            // One letter, two spellings in Unicode: RFC 8785 does not normalise, and neither do servers.
            ("\"\u{e9}\"", "\"e\u{301}\"", Other),
            (r#"{"a":1}"#, "\u{feff}{\"a\":1}", Same),
        ],
    );
}

#[test]
fn forms_are_compared_by_their_decoded_pairs() {
    check_bodies(
        &Mode::Json,
        FORM,
        &[
            ("a=1&b=2", "b=2&a=1", Other),
            ("a=1&b=2", "a=1&b=2", Same),
            ("a=%31", "a=1", Same),
            ("%61=1", "a=1", Same),
            ("a=x+y", "a=x%20y", Same),
            ("a=x+y", "a=x%2By", Other),
            ("a=%c3%a9", "a=%C3%A9", Same),
            ("a=é", "a=%C3%A9", Same),
            // Bytes that are no UTF-8 stay two contents.
            ("a=%FE", "a=%FF", Other),
            ("a=%FF", "a=%EF%BF%BD", Other),
            // What is escaped does not separate.
            ("a=1%26b=2", "a=1&b=2", Other),
            ("a%3D1=2", "a=1=2", Other),
            ("a=1=2", "a=1%3D2", Same),
            ("&&a=1&", "a=1", Same),
            ("a", "a=", Other),
            ("a&b", "a=&b", Other),
            ("=a", "a", Other),
            ("ab=c", "a=bc", Other),
            // A `%` that escapes nothing stands for itself.
            ("a=100%", "a=100%25", Same),
            ("a=%zz", "a=%25zz", Same),
            ("a=%4", "a=%254", Same),
        ],
    );
}

/// The decoder is ours, because the crate's loses bytes. Where nothing is lost, it must agree.
#[test]
fn forms_are_decoded_as_the_url_standard_says() {
    for body in ["a=1&b=+%2b%20", "%%41=%4&x=%G1%1G%+1", "a=b=c&&=&é=%C3%A9", "%2541=%252B"] {
        let canonical = canonical_text(&Mode::Json, &post(FORM, body)).unwrap();
        let pairs = |text: &str| form_urlencoded::parse(text.as_bytes()).into_owned().collect::<Vec<_>>();
        assert_eq!(pairs(&canonical), pairs(body), "{canonical}");
    }
}

#[test]
fn other_bodies_are_compared_by_their_bytes() {
    check_bodies(
        &Mode::Json,
        TEXT,
        &[("a", "a", Same), ("a", "a ", Other), (r#"{"a":1}"#, r#"{"a": 1}"#, Other)],
    );
    check_bodies(&Mode::Json, None, &[("a", "a", Same), ("a", "b", Other)]);
    let binary = [0, 255, 254];
    check(&Mode::Json, post(TEXT, &binary), post(TEXT, &binary), Same);
}

#[test]
fn raw_takes_the_bytes_of_everything() {
    let table = [(r#"{"a":1}"#, r#"{"a": 1}"#, Other), (r#"{"a":1}"#, r#"{"a":1}"#, Same), ("{", "{", Same)];
    check_bodies(&Mode::Raw, JSON, &table);
    check_bodies(&Mode::Raw, FORM, &[("a=%31", "a=1", Other)]);
}

#[test]
fn the_content_type_counts_by_its_family() {
    let body = r#"{"a":1}"#;
    let table: [(ContentType, ContentType, Expected); 13] = [
        (JSON, Some(b"application/json; charset=utf-8"), Same),
        (JSON, Some(b"Application/JSON;charset=\"x;y\""), Same),
        (JSON, Some(b" application/json ; "), Same),
        (JSON, Some(b"application/vnd.example+json"), Same),
        (JSON, Some(b"application/Problem+JSON"), Same),
        (JSON, TEXT, Other),
        (JSON, FORM, Other),
        (JSON, None, Other),
        // Not a media type, and not the name of a family either.
        (JSON, Some(b"json"), Other),
        (TEXT, Some(b"TEXT/Plain; charset=utf-8"), Same),
        (TEXT, Some(b"text/html"), Other),
        (None, Some(b""), Same),
        (Some(b"text/\xfe"), Some(b"text/\xff"), Other),
    ];
    for (a, b, expected) in table {
        check(&Mode::Json, post(a, body), post(b, body), expected);
    }
}

#[test]
fn a_body_that_is_not_there_has_no_type() {
    for mode in [Mode::Json, Mode::Raw, include(&["/a"]), exclude(&["/a"])] {
        check(&mode, post(JSON, ""), post(None, ""), Same);
        check(&mode, post(JSON, ""), post(FORM, ""), Same);
        assert_eq!(fingerprint::canonical(&mode, &post(JSON, "")).unwrap().family, Family::Empty);
    }
    check(&Mode::Json, post(TEXT, ""), post(TEXT, " "), Other);
    check(&Mode::Json, post(FORM, ""), post(FORM, "&"), Other);
}

#[test]
fn no_byte_moves_between_the_fields_of_the_frame() {
    let at = |method, path, query, body| Content { method, path, query, content_type: TEXT, body };
    let base = at("POST", "/ab", Some("c=d"), b"efg");
    let moved = [
        at("POST/", "ab", Some("c=d"), b"efg"),
        at("POST", "/a", Some("bc=d"), b"efg"),
        at("POST", "/abc", Some("=d"), b"efg"),
        at("POST", "/ab", Some("c="), b"defg"),
        at("POST", "/ab", Some("c=de"), b"fg"),
        at("POST", "/ab?c=d", None, b"efg"),
        at("POST", "/ab", None, b"c=defg"),
        at("POST", "/ab", Some("c=defg"), b""),
        at("post", "/ab", Some("c=d"), b"efg"),
        at("POST", "/ab/", Some("c=d"), b"efg"),
    ];
    check(&Mode::Json, base, base, Same);
    for other in moved {
        check(&Mode::Json, base, other, Other);
    }
    check(&Mode::Json, at("POST", "/", None, b"x"), at("POST", "/", Some(""), b"x"), Other);
    check(&Mode::Json, at("POST", "/", None, b""), at("POST", "/", Some(""), b""), Other);
}

/// A route whose policy changes must not find its records under another meaning.
#[test]
fn no_two_modes_share_the_fingerprint_of_a_json_body() {
    let modes = [Mode::Json, Mode::Raw, include(&[]), exclude(&[]), include(&[""]), include(&["/x"])];
    for body in ["{}", r#"{"":{}}"#] {
        let of = |mode| fingerprint::of(mode, &post(JSON, body)).unwrap();
        let found: HashSet<_> = modes[..4].iter().map(of).collect();
        assert_eq!(found.len(), 4);
        assert!(!modes[4..].iter().any(|mode| of(mode) == of(&Mode::Json) || of(mode) == of(&Mode::Raw)));
    }
}

#[test]
fn nothing_is_read_where_nothing_is_checked() {
    let fingerprint = fingerprint::of(&Mode::None, &post(JSON, "not json")).unwrap();
    assert_eq!(fingerprint, fingerprint::of(&Mode::None, &post(JSON, "{}")).unwrap());
    assert_eq!(fingerprint.version(), 0);
    assert_ne!(fingerprint, Fingerprint::NONE);
    assert_eq!(
        fingerprint::canonical(&Mode::None, &post(JSON, "not json")).unwrap().family,
        Family::Unchecked
    );
}

#[test]
fn unknown_is_other_and_unchecked_is_left_to_the_operation() {
    let one = Fingerprint::from_parts(1, [7; 32]);
    let table = [
        (one, one, Comparison::Same),
        (one, Fingerprint::from_parts(1, [8; 32]), Comparison::Other),
        (one, Fingerprint::from_parts(2, [7; 32]), Comparison::Other),
        (one, Fingerprint::NONE, Comparison::Unchecked),
        (Fingerprint::NONE, Fingerprint::NONE, Comparison::Unchecked),
        (one, Fingerprint::from_parts(0, [7; 32]), Comparison::Unchecked),
        (Fingerprint::NONE, Fingerprint::from_parts(0, [7; 32]), Comparison::Unchecked),
        (Fingerprint::from_parts(0, [7; 32]), Fingerprint::from_parts(0, [7; 32]), Comparison::Same),
        (Fingerprint::from_parts(0, [7; 32]), Fingerprint::from_parts(0, [8; 32]), Comparison::Other),
    ];
    for (a, b, expected) in table {
        assert_eq!(a.compare(b), expected, "{a} {b}");
        assert_eq!(b.compare(a), expected, "{b} {a}");
    }
    assert_eq!(one.to_string(), format!("v1:{}", "07".repeat(32)));
    assert_eq!((one.version(), one.digest()), (1, [7; 32]));
}

/// Headers of a route count with their names, and each line of them by itself.
#[test]
fn headers_that_count() {
    let content = Content { method: "POST", path: "/", query: None, content_type: None, body: b"" };
    let plain = fingerprint::of(&Mode::Json, &content).unwrap();
    let with = |headers: &[(&str, Vec<&[u8]>)]| plain.with_headers(headers);
    assert_eq!(with(&[]), plain);
    let all = [
        with(&[("a", vec![])]),
        with(&[("a", vec![b""])]),
        with(&[("a", vec![b"1"])]),
        with(&[("a", vec![b"1", b"1"])]),
        with(&[("a", vec![b"11"])]),
        with(&[("b", vec![b"1"])]),
        with(&[("a", vec![b"1"]), ("b", vec![])]),
    ];
    for (at, one) in all.iter().enumerate() {
        assert_eq!(one.version(), plain.version());
        assert!(*one != plain && !all[..at].contains(one), "{at}");
    }
}
