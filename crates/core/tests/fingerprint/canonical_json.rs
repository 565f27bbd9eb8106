//! Canonical JSON, and that it is RFC 8785 where RFC 8785 loses nothing.

use proptest::prelude::*;

use super::{canonical_json, check_canonical};

#[test]
fn numbers_keep_their_value() {
    let table = [
        ("0", "0"),
        ("-0", "0"),
        ("0.000", "0"),
        ("-0e99999999999999999999999999999999999999999", "0"),
        ("1250", "1250"),
        ("-12.50", "-12.5"),
        ("100.0", "100"),
        ("1e2", "100"),
        ("0.5e1", "5"),
        ("9007199254740993", "9007199254740993"),
        ("-9007199254740993.0", "-9007199254740993"),
        ("0.10000000000000001", "0.10000000000000001"),
        ("333333333.33333329", "333333333.33333329"),
        // Where ECMAScript changes from digits to an exponent, on both sides.
        ("100000000000000000000", "100000000000000000000"),
        ("123456789012345678901", "123456789012345678901"),
        ("1234567890123456789012", "1.234567890123456789012e+21"),
        ("1000000000000000000000", "1e+21"),
        ("1234567890123456789012.5", "1.2345678901234567890125e+21"),
        ("0.000001", "0.000001"),
        ("0.0000001", "1e-7"),
        ("0.00000123", "0.00000123"),
        ("0.000000123", "1.23e-7"),
        ("123e-20", "1.23e-18"),
        ("1e400", "1e+400"),
        ("12E+399", "1.2e+400"),
        ("-1e-400", "-1e-400"),
        // The largest exponents, however they are spelled.
        ("1e9223372036854775807", "1e+9223372036854775807"),
        ("0.1e9223372036854775808", "1e+9223372036854775807"),
        ("1e-9223372036854775808", "1e-9223372036854775808"),
        ("10e-9223372036854775809", "1e-9223372036854775808"),
        ("1e0000000000000000000000000000000000000000000000000001", "10"),
    ];
    for (literal, expected) in table {
        check_canonical(literal, expected);
    }
}

#[test]
fn strings_and_names_are_written_in_one_way() {
    let table = [
        (r#""\u0000\u001F\u007f\b\t\n\f\r\"\\\/""#, "\"\\u0000\\u001f\u{7f}\\b\\t\\n\\f\\r\\\"\\\\/\""),
        (r#""\u20AC\ud83d\ude00""#, "\"€😀\""),
        // By UTF-16 code units: the emoji (D83D…) comes before the half-width stop (FF61), though its code point is higher.
        (r#"{"｡":1,"😀":2,"é":3,"a":4,"aa":5,"":6}"#, r#"{"":6,"a":4,"aa":5,"é":3,"😀":2,"｡":1}"#),
        (
            r#" { "b" : [ { } , [ ] , null , true , false ] , "a" : "[{" } "#,
            r#"{"a":"[{","b":[{},[],null,true,false]}"#,
        ),
        // The text of a string cannot pass for structure.
        (r#"["[","{",1]"#, r#"["[","{",1]"#),
        ("\u{feff}[1]", "[1]"),
    ];
    for (body, expected) in table {
        check_canonical(body, expected);
    }
}

/// The examples of RFC 8785, sections 3.2.2 and 3.2.3, but for its one number that a double would change.
#[test]
fn the_examples_of_rfc_8785() {
    check_canonical(
        r#"{
          "numbers": [333333333.3333333, 1E30, 4.50, 2e-3, 0.000000000000000000000000001],
          "string": "\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/",
          "literals": [null, true, false]
        }"#,
        r#"{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],"string":"€$\u000f\nA'B\"\\\\\"/"}"#,
    );
    check_canonical(
        r#"{"\u20ac":"Euro Sign","\r":"Carriage Return","\ufb33":"Hebrew Letter Dalet With Dagesh","1":"One",
            "\ud83d\ude00":"Emoji: Grinning Face","\u0080":"Control","\u00f6":"Latin Small Letter O With Diaeresis"}"#,
        "{\"\\r\":\"Carriage Return\",\"1\":\"One\",\"\u{80}\":\"Control\",\"ö\":\"Latin Small Letter O With Diaeresis\",\"€\":\"Euro Sign\",\"😀\":\"Emoji: Grinning Face\",\"\u{fb33}\":\"Hebrew Letter Dalet With Dagesh\"}",
    );
}

/// A document of numbers that doubles hold, as another crate reads it.
fn exact_document() -> impl Strategy<Value = serde_json::Value> {
    let number = prop_oneof![
        any::<f64>().prop_filter("JSON has no others", |double| double.is_finite()),
        any::<f32>().prop_filter("JSON has no others", |float| float.is_finite()).prop_map(f64::from),
        any::<i32>().prop_map(f64::from),
        (-100_000i32..100_000).prop_map(|cents| f64::from(cents) / 100.0),
    ];
    let text = prop_oneof![any::<String>(), "[a-c\\\\\"\u{0}-\u{20}\u{e000}-\u{ffff}\u{10000}]{0,4}"];
    let leaf = prop_oneof![
        Just(serde_json::Value::Null),
        any::<bool>().prop_map(Into::into),
        number.prop_map(Into::into),
        text.clone().prop_map(Into::into),
    ];
    leaf.prop_recursive(4, 40, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Into::into),
            prop::collection::hash_map(text.clone(), inner, 0..6)
                .prop_map(|members| serde_json::Value::Object(members.into_iter().collect())),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(5_000))]

    /// `serde_json_canonicalizer` is right about doubles; so are we.
    #[test]
    fn exact_documents_are_written_as_rfc_8785_says(document in exact_document()) {
        let expected = serde_json_canonicalizer::to_string(&document).unwrap();
        for body in [serde_json::to_string(&document).unwrap(), serde_json::to_string_pretty(&document).unwrap()] {
            prop_assert_eq!(canonical_json(body.as_bytes()).unwrap(), expected.clone());
        }
    }

    /// Any double comes out as ECMAScript prints it, zeros or not.
    #[test]
    fn doubles_are_written_as_ecmascript_does(bits in any::<u64>()) {
        let double = f64::from_bits(bits);
        prop_assume!(double.is_finite());
        let expected = ryu_js::Buffer::new().format_finite(double).to_owned();
        let (mantissa, exponent) = expected.split_once('e').unwrap_or((&expected, "0"));
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let exponent = exponent.parse::<i64>().unwrap();
        for literal in [expected.clone(), format!("{whole}.{fraction}0E{exponent:+05}")] {
            prop_assert_eq!(canonical_json(literal.as_bytes()).unwrap(), expected.clone());
        }
    }

    /// Hostile bytes: an answer or an error, and what is an answer is its own canonical form.
    #[test]
    fn canonical_text_is_its_own_canonical_text(body in "[\\[\\]{}\",:0-9a-c.eE+\\\\u \\-]{0,24}") {
        if let Ok(text) = canonical_json(body.as_bytes()) {
            prop_assert_eq!(canonical_json(text.as_bytes()).unwrap(), text);
        }
    }

    /// Whatever serde_json refuses, we refuse. It knows no duplicates and no numbers beyond doubles, so not the reverse.
    #[test]
    fn what_another_parser_refuses_is_refused(body in "[\\[\\]{}\",:0-9tn.eE+\\\\u \\-]{0,12}|(\\[|,|\\]|\\{|\\}|\"a\"|:|1|0|-|e|\\.|true|null| ){0,9}") {
        let refusal = serde_json::from_str::<serde_json::Value>(&body).err();
        if let Some(refusal) = refusal.filter(|error| !error.to_string().contains("out of range")) {
            prop_assert!(body.is_empty() || canonical_json(body.as_bytes()).is_err(), "{refusal}");
        }
    }
}
