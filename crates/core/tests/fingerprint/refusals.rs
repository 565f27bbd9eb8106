//! Bodies that have no one meaning, and bodies made to do harm.

use oncegate_core::fingerprint::FingerprintError;

use super::{canonical_json, check_canonical};

fn check_refused(body: &[u8], expected: &str) {
    let refusal = canonical_json(body).map_err(|error| error.to_string());
    assert_eq!(refusal, Err(expected.to_owned()), "{}", body.escape_ascii());
}

#[test]
fn a_refusal_says_what_and_where() {
    let not_json = "the body is declared as JSON but is not JSON at ";
    let table: [(&[u8], &str); 9] = [
        (b"{\"a\" 1}", "line 1, column 6: a member is a name in quotes, a colon and a value"),
        (b"{1: 1}", "line 1, column 2: a member is a name in quotes, a colon and a value"),
        (b"[1,\n  x]", "line 2, column 3: Unexpected char: 'x'"),
        (b"{\"a\":1,}", "line 1, column 8: Trailing commas are not allowed"),
        ("{\"é\":\"\x01\"}".as_bytes(), "line 1, column 7: '\\u{1}' is not allowed in JSON strings"),
        (
            b"[\"abc",
            "line 1, column 2: this string or number does not end, or holds half of a surrogate pair",
        ),
        (
            b"[\"\\ud800\"]",
            "line 1, column 2: this string or number does not end, or holds half of a surrogate pair",
        ),
        (b"[\"\xff\"]", "line 1, column 3: Invalid UTF-8: invalid utf-8 sequence of 1 bytes from index 0"),
        (b" ", "line 1, column 2: Unexpected end of file, a value was expected"),
    ];
    for (body, expected) in table {
        check_refused(body, &format!("{not_json}{expected}"));
    }
    check_refused(
        b"{\"a\":1,\n \"b\":{},  \"a\":2}",
        "an object has two members named \"a\", the second at line 2, column 11",
    );
    check_refused(
        br#"[{"a":1, "\u0061":1}]"#,
        "an object has two members named \"a\", the second at line 1, column 10",
    );
    check_refused(
        br#"{"\n":1,"\u000a":1}"#,
        "an object has two members named \"\\n\", the second at line 1, column 9",
    );
    check_refused(
        b"{\"a\":[1,1e9223372036854775808]}",
        "the number at line 1, column 9 has an exponent beyond 64 bits",
    );
    let long = "x".repeat(100);
    check_refused(
        format!("{{\"{long}\":1,\"{long}\":1}}").as_bytes(),
        &format!("an object has two members named \"{}\"…, the second at line 1, column 107", &long[..80]),
    );
}

/// What RFC 8259 refuses as a token, wherever a value or a name may stand.
#[test]
fn bad_tokens_are_refused() {
    let numbers =
        "01 -01 00 +1 .5 -.5 1. 1.e5 - --1 1e 1e+ 1e- 1E+-1 1.5.5 1e5e5 0x10 1_000 NaN Infinity -Infinity";
    let words = "nan inf True nul nulll truefalse undefined a 'a' /**/1 \u{a0}1";
    let strings = r#"" "\" "\x" "\a" "\u12" "\u12G4" "\u+123" "\u{61}""#;
    let surrogates = r#""\ud800" "\udc00" "\ud800\u0061more" "\ud800more..." "\udc00\ud800" "\ud800\ud800""#;
    let spaced = [numbers, words, strings, surrogates].join(" ");
    let control: [&[u8]; 4] = [b"\"\n\"", b"\"\t\"", b"\"\0\"", b"\"\x1f\""];
    let not_utf8: [&[u8]; 4] = [b"\"\xff\"", b"\"\xc0\xaf\"", b"\"\xed\xa0\x80\"", b"\"\xc3\\n\xa9\""];
    let places = [
        ("", ""),
        ("", " "),
        ("[", "]"),
        ("[0,", "]"),
        ("[", ",0]"),
        ("{\"a\":", "}"),
        ("{\"a\":", ",\"b\":0}"),
        ("{", ":0}"),
    ];

    let tokens = spaced.split(' ').map(str::as_bytes).chain(control).chain(not_utf8);
    for token in tokens {
        for (before, after) in places {
            let body = [before.as_bytes(), token, after.as_bytes()].concat();
            assert!(canonical_json(&body).is_err(), "{}", body.escape_ascii());
        }
    }
}

/// What RFC 8259 refuses as a structure. After some of these the parser would go on.
#[test]
fn bad_structure_is_refused() {
    let documents = r#"[ ] { } [} {] [1} {"a":1] [,] [,1] [1,] [1,,2] {,} {"a"} {"a":} {"a":1,} {"a"::1} {1:1} {a:1} {}{} []x"#;
    let spaced = [
        " ",
        "[1 2]",
        r#"{"a" 1}"#,
        r#"{"a":1 "b":2}"#,
        "1 2",
        "[1,]  ",
        "\u{feff}",
        "\u{feff}\u{feff}1",
        "1\u{feff}",
    ];
    for body in documents.split(' ').chain(spaced) {
        assert!(canonical_json(body.as_bytes()).is_err(), "{body}");
    }
}

#[test]
fn deep_nesting_neither_overflows_nor_hangs() {
    let nested = |open: &str, inner: &str, close: &str, levels: usize| {
        [&open.repeat(levels), inner, &close.repeat(levels)].concat()
    };
    for levels in [20_000, 60_000, 65_536] {
        let arrays = nested("[", "", "]", levels);
        check_canonical(&arrays, &arrays);
        let objects = nested(r#"{"a":"#, "1", "}", levels);
        check_canonical(&objects, &objects);
        let mixed = nested(r#"[0,{"b":1,"a":"#, "[]", "}]", levels / 2 - 1);
        let sorted =
            [&r#"[0,{"a":"#.repeat(levels / 2 - 1), "[]", &r#","b":1}]"#.repeat(levels / 2 - 1)].concat();
        check_canonical(&mixed, &sorted);
        for unclosed in ["[", r#"{"a":"#, r#"[{"a":"#, "[0,", r#"{"a":0,"b":"#] {
            assert!(canonical_json(unclosed.repeat(levels / 2).as_bytes()).is_err());
        }
    }
    for (open, close, column) in [("[", "]", 65_537), (r#"{"a":"#, "}", 65_536 * 5 + 1)] {
        let expected = format!("the body is nested deeper than 65536 levels at line 1, column {column}");
        check_refused(nested(open, "1", close, 65_537).as_bytes(), &expected);
        check_refused(open.repeat(1_000_000).as_bytes(), &expected);
    }
}

/// Many of each: what is quadratic would not end.
#[test]
fn wide_documents_do_not_hang() {
    let members: Vec<_> = (0..200_000).rev().map(|n| format!(r#""{n:06}":{n}"#)).collect();
    let mut sorted = members.clone();
    sorted.reverse();
    check_canonical(&format!("{{{}}}", members.join(",")), &format!("{{{}}}", sorted.join(",")));

    let digits = "1234567890".repeat(100_000);
    check_canonical(&digits, &format!("{}.{}e+999999", &digits[..1], digits[1..].trim_end_matches('0')));
    let escapes = r"\u0041\n".repeat(100_000);
    check_canonical(&format!("\"{escapes}\""), &format!("\"{}\"", r"A\n".repeat(100_000)));
    // One duplicate among many is found; each is named by one character more than the one before.
    let mut names: Vec<_> = (0..1_000).map(|n| format!(r#""{}":0"#, "a".repeat(n))).collect();
    names.push(r#""aaa":0"#.to_owned());
    assert!(matches!(
        canonical_json(format!("{{{}}}", names.join(",")).as_bytes()),
        Err(FingerprintError::DuplicateName { name, .. }) if name == "aaa"
    ));
}
