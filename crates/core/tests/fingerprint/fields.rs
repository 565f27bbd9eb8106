//! Of a JSON body only a part counts.

use oncegate_core::fingerprint::{Pointer, PointerError};

use super::Expected::{Other, Same};
use super::{FORM, JSON, TEXT, canonical_text, check_bodies, exclude, include, post};

#[test]
fn excluded_parts_do_not_count() {
    let mode = exclude(&["/at", "/items/1/seen", "/a~1b", "/m~0n", "/list/0"]);
    check_bodies(
        &mode,
        JSON,
        &[
            (r#"{"x":1,"at":1}"#, r#"{"x":1,"at":{"deep":[2]}}"#, Same),
            (r#"{"x":1,"at":1}"#, r#"{"x":1}"#, Same),
            (r#"{"x":1,"at":1}"#, r#"{"x":2,"at":1}"#, Other),
            (r#"{"x":{"at":1}}"#, r#"{"x":{"at":2}}"#, Other),
            (r#"{"a/b":1}"#, r#"{"a/b":2}"#, Same),
            (r#"{"a~1b":1}"#, r#"{"a~1b":2}"#, Other),
            (r#"{"m~n":1}"#, r#"{"m~n":2}"#, Same),
            (r#"{"items":[{"seen":1},{"seen":1}]}"#, r#"{"items":[{"seen":1},{"seen":2}]}"#, Same),
            (r#"{"items":[{"seen":1},{"seen":1}]}"#, r#"{"items":[{"seen":2},{"seen":1}]}"#, Other),
            (r#"{"items":[0]}"#, r#"{"items":[0,{"seen":1}]}"#, Other),
            (r#"{"list":[1,2]}"#, r#"{"list":[9,2]}"#, Same),
            (r#"{"list":[1,2]}"#, r#"{"list":[1,9]}"#, Other),
            (r#"{"list":[1,2]}"#, r#"{"list":[2]}"#, Other),
            (r#"{"list":{"0":1}}"#, r#"{"list":[1]}"#, Other),
        ],
    );
    check_bodies(&exclude(&[""]), JSON, &[("1", "[2]", Same)]);
    check_bodies(&exclude(&["/a/b", "/a"]), JSON, &[(r#"{"a":{"b":1}}"#, "{}", Same)]);
    // The first, the middle and the last part leave no comma behind.
    for (pointers, expected) in [
        (["/l/0", "/a"], r#"{"b":2,"c":3,"l":[1,2]}"#),
        (["/l/1", "/b"], r#"{"a":1,"c":3,"l":[0,2]}"#),
        (["/l/2", "/c"], r#"{"a":1,"b":2,"l":[0,1]}"#),
    ] {
        let body = r#"{"a":1,"b":2,"c":3,"l":[0,1,2]}"#;
        assert_eq!(canonical_text(&exclude(&pointers), &post(JSON, body)).unwrap(), expected);
    }
}

#[test]
fn only_included_parts_count() {
    let mode = include(&["/amount", "/items/0", "/a~1b", "/items/1/id"]);
    check_bodies(
        &mode,
        JSON,
        &[
            (r#"{"amount":1,"x":1}"#, r#"{"x":[2],"amount":1.0}"#, Same),
            (r#"{"amount":1}"#, r#"{"amount":2}"#, Other),
            (r#"{"amount":null}"#, "{}", Other),
            (r#"{"a/b":1}"#, r#"{"a/b":2}"#, Other),
            // The first item cannot pass for another.
            (r#"{"items":[{"id":1}]}"#, r#"{"items":[0,{"id":1}]}"#, Other),
            (r#"{"items":[1,{"id":1,"x":1}]}"#, r#"{"items":[1,{"id":1,"x":2}]}"#, Same),
            // An index is not a name with zeros before it, and `-` is no item.
            (r#"{"items":{"0":1}}"#, r#"{"items":{"00":1}}"#, Other),
        ],
    );
    check_bodies(
        &include(&["/l/01", "/l/-", "/l/9", "/l/x", "/l/"]),
        JSON,
        &[(r#"{"l":[1,2]}"#, "{}", Same)],
    );
    check_bodies(
        &include(&["/l/99999999999999999999999", "/l/18446744073709551615"]),
        JSON,
        &[(r#"{"l":[1]}"#, "{}", Same)],
    );
    check_bodies(&include(&[""]), JSON, &[("1", "2", Other), ("1", "1.0", Same)]);
    assert_eq!(
        canonical_text(&include(&["/b", "", "/a", "/b", "/n"]), &post(JSON, r#"{"b":2,"a":[]}"#)).unwrap(),
        r#"{"":{"a":[],"b":2},"/a":[],"/b":2}"#
    );
}

#[test]
fn fields_leave_bodies_that_are_not_json_whole() {
    check_bodies(&exclude(&["/a"]), FORM, &[("a=1", "a=2", Other), ("a=%31", "a=1", Same)]);
    check_bodies(&include(&["/a"]), TEXT, &[("a", "b", Other)]);
}

#[test]
fn pointers_are_checked() {
    let table = [
        ("", Ok(())),
        ("/", Ok(())),
        ("/a//b", Ok(())),
        ("/~0~1", Ok(())),
        ("a", Err(PointerError::NoLeadingSlash)),
        ("#/a", Err(PointerError::NoLeadingSlash)),
        ("/~", Err(PointerError::BadEscape)),
        ("/a~2", Err(PointerError::BadEscape)),
        ("/~/0", Err(PointerError::BadEscape)),
    ];
    for (text, expected) in table {
        assert_eq!(
            text.parse::<Pointer>().map(|pointer| assert_eq!(pointer.to_string(), text)),
            expected,
            "{text}"
        );
    }
    // `~01` is `~1`, not `/`: the escapes are undone once.
    check_bodies(&exclude(&["/~01"]), JSON, &[(r#"{"~1":1}"#, "{}", Same), (r#"{"/":1}"#, "{}", Other)]);
}
