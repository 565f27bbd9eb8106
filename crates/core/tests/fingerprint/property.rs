//! Equal business content ⇔ equal fingerprint, over generated documents.
//!
//! A [`Value`] is what a document says. A [`Spelling`] is a source of choices by which it is written: the order of
//! members, the space between tokens, which characters are escaped, where a number's point stands. So one value has
//! many texts, and the fingerprint must see the value alone.

use std::collections::BTreeMap;

use oncegate_core::fingerprint::{self, Fingerprint, Mode};
use proptest::prelude::*;

use super::{JSON, post};

/// What a JSON document says. `==` is sameness of content.
#[derive(Clone, Debug, PartialEq)]
enum Value {
    Null,
    Boolean(bool),
    Number(Decimal),
    String(String),
    Array(Vec<Value>),
    Object(BTreeMap<String, Value>),
}

/// An exact number: digits × 10^exponent. No zero at the end of the digits, so one value has one form.
#[derive(Clone, Debug, PartialEq)]
struct Decimal {
    digits: i128,
    exponent: i32,
}

impl Decimal {
    fn new(mut digits: i128, mut exponent: i32) -> Self {
        while digits != 0 && digits % 10 == 0 {
            digits /= 10;
            exponent += 1;
        }
        Self { digits, exponent: if digits == 0 { 0 } else { exponent } }
    }
}

/// Choices of how to write what does not count. Runs around when it ends.
struct Spelling<'a>(std::iter::Cycle<std::slice::Iter<'a, u8>>);

impl<'a> Spelling<'a> {
    fn new(choices: &'a [u8]) -> Self {
        Self(choices.iter().cycle())
    }

    fn choose(&mut self, options: usize) -> usize {
        usize::from(*self.0.next().unwrap()) % options
    }

    fn space(&mut self) -> &'static str {
        ["", "", "", " ", "\n", "\t", "\r\n  "][self.choose(7)]
    }

    fn text(&mut self, value: &Value) -> String {
        let bare = match value {
            Value::Null => "null".to_owned(),
            Value::Boolean(boolean) => boolean.to_string(),
            Value::Number(number) => self.number(number),
            Value::String(text) => self.string(text),
            Value::Array(items) => {
                let items: Vec<_> = items.iter().map(|item| self.text(item)).collect();
                format!("[{}{}]", self.space(), items.join(","))
            }
            Value::Object(members) => {
                let mut texts: Vec<String> = Vec::new();
                for (name, value) in members {
                    let member =
                        format!("{}{}{}:{}", self.space(), self.string(name), self.space(), self.text(value));
                    texts.insert(self.choose(texts.len() + 1), member);
                }
                format!("{{{}{}}}", self.space(), texts.join(","))
            }
        };
        format!("{}{bare}{}", self.space(), self.space())
    }

    fn string(&mut self, text: &str) -> String {
        let mut out = String::from("\"");
        for char in text.chars() {
            let must_escape = char < ' ' || char == '"' || char == '\\';
            match (self.choose(4), char) {
                (0, '\n') => out.push_str("\\n"),
                (0, '"' | '\\' | '/') => out.extend(['\\', char]),
                (1..=3, _) if !must_escape => out.push(char),
                (choice, _) => {
                    for unit in char.encode_utf16(&mut [0; 2]) {
                        let hex = format!("{unit:04x}");
                        out.push_str("\\u");
                        out.push_str(&if choice == 1 { hex.to_uppercase() } else { hex });
                    }
                }
            }
        }
        out + "\""
    }

    /// Moves the point by some digits, and says so in the exponent; or writes the number out.
    fn number(&mut self, number: &Decimal) -> String {
        let Decimal { digits, exponent } = number;
        let sign = if *digits < 0 { "-" } else { ["", "-"][self.choose(2) * usize::from(*digits == 0)] };
        let zeros = self.choose(4);
        let text = format!("{}{}", digits.unsigned_abs(), "0".repeat(if *digits == 0 { 0 } else { zeros }));
        let exponent = if *digits == 0 {
            i32::try_from(zeros).unwrap() * 70
        } else {
            exponent - i32::try_from(zeros).unwrap()
        };
        let e = ["e", "E"][self.choose(2)];
        match self.choose(4) {
            // All digits, if that is not absurd.
            0 if (0..60).contains(&exponent) && text != "0" => {
                format!("{sign}{text}{}", "0".repeat(usize::try_from(exponent).unwrap()))
            }
            1 if (-60..0).contains(&exponent) => {
                let fraction = usize::try_from(-exponent).unwrap();
                let padded = format!("{}{text}", "0".repeat((fraction + 1).saturating_sub(text.len())));
                let (whole, fraction) = padded.split_at(padded.len() - fraction);
                format!("{sign}{whole}.{fraction}")
            }
            // A point after the first digit, or before it.
            2 if text.len() > 1 => {
                format!(
                    "{sign}{}.{}{e}{:+03}",
                    &text[..1],
                    &text[1..],
                    exponent + i32::try_from(text.len() - 1).unwrap()
                )
            }
            3 => format!("{sign}0.00{text}{e}{}", exponent + 2 + i32::try_from(text.len()).unwrap()),
            _ if exponent == 0 => format!("{sign}{text}"),
            _ => format!("{sign}{text}{e}{exponent}"),
        }
    }
}

fn number() -> impl Strategy<Value = Decimal> {
    prop_oneof![
        // Amounts; neighbours around the last whole number that a double holds; beyond doubles; anything.
        (-20_000i128..20_000, -3..3),
        ((1i128 << 53) - 2..(1i128 << 53) + 3, -2..3),
        (0i128..3, prop_oneof![300..420, -420..-300]),
        (any::<i128>().prop_map(|digits| digits >> 4), -40..40),
    ]
    .prop_map(|(digits, exponent)| Decimal::new(digits, exponent))
}

fn value() -> impl Strategy<Value = Value> {
    // Few names and small leaves, so that two values are often nearly the same.
    let text = prop_oneof![4 => "[ab]{0,2}", 1 => "[a\"\\\\/\u{0}-\u{20}é｡😀]{0,3}"];
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::Boolean),
        number().prop_map(Value::Number),
        (0i128..3, -1..2).prop_map(|(digits, exponent)| Value::Number(Decimal::new(digits, exponent))),
        text.clone().prop_map(Value::String),
        (0..3u8).prop_map(|number| Value::String(number.to_string())),
    ];
    leaf.prop_recursive(4, 24, 4, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::Array),
            prop::collection::btree_map(text.clone(), inner, 0..4).prop_map(Value::Object),
        ]
    })
}

fn spelling() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(any::<u8>(), 1..60)
}

/// Changes one place of a value, found by the choices: a neighbour a careless reader could take for it.
fn mutate(value: &mut Value, choices: &mut Spelling<'_>) {
    match value {
        Value::Array(items) if !items.is_empty() => {
            let at = choices.choose(items.len());
            match choices.choose(4) {
                0 => drop(items.remove(at)),
                1 => items.swap(0, at),
                2 => items.insert(at, Value::Null),
                _ => mutate(&mut items[at], choices),
            }
        }
        Value::Object(members) if !members.is_empty() => {
            let name = members.keys().nth(choices.choose(members.len())).unwrap().clone();
            match choices.choose(4) {
                0 => drop(members.remove(&name)),
                1 => {
                    let value = members.remove(&name).unwrap();
                    members.insert(name + "a", value);
                }
                2 => drop(members.insert(name, Value::Null)),
                _ => mutate(members.get_mut(&name).unwrap(), choices),
            }
        }
        Value::Number(number) => {
            let Decimal { digits, exponent } = *number;
            *value = match choices.choose(4) {
                0 => Value::Number(Decimal::new(digits + 1, exponent)),
                1 => Value::Number(Decimal::new(-digits, exponent)),
                2 => Value::Number(Decimal::new(digits, exponent + 1)),
                _ => Value::String(if exponent == 0 {
                    digits.to_string()
                } else {
                    format!("{digits}e{exponent}")
                }),
            };
        }
        Value::String(text) => text.push(['a', '\u{0}', '😀'][choices.choose(3)]),
        Value::Boolean(boolean) => *boolean = !*boolean,
        Value::Null | Value::Array(_) | Value::Object(_) => {
            let others =
                [Value::Boolean(false), Value::Array(vec![Value::Null]), Value::Object(BTreeMap::new())];
            *value = others[choices.choose(3)].clone();
        }
    }
}

fn fingerprint_of(text: &str) -> Fingerprint {
    fingerprint::of(&Mode::Json, &post(JSON, text)).unwrap()
}

fn check(a: &Value, b: &Value, spelling_a: &[u8], spelling_b: &[u8]) -> Result<(), TestCaseError> {
    let (a_text, b_text) = (Spelling::new(spelling_a).text(a), Spelling::new(spelling_b).text(b));
    prop_assert_eq!(a == b, fingerprint_of(&a_text) == fingerprint_of(&b_text), "{}\n{}", a_text, b_text);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4_000))]

    #[test]
    fn two_spellings_of_one_value_are_the_same(value in value(), one in spelling(), two in spelling()) {
        check(&value, &value, &one, &two)?;
    }

    #[test]
    fn a_small_change_is_another_value(value in value(), choices in spelling(), one in spelling(), two in spelling()) {
        let mut changed = value.clone();
        mutate(&mut changed, &mut Spelling::new(&choices));
        check(&value, &changed, &one, &two)?;
    }

    #[test]
    fn two_values_are_the_same_exactly_if_they_are_equal(a in value(), b in value(), one in spelling(), two in spelling()) {
        check(&a, &b, &one, &two)?;
    }

    #[test]
    fn two_numbers_are_the_same_exactly_if_they_are_equal(a in number(), b in number(), one in spelling(), two in spelling()) {
        check(&Value::Number(a), &Value::Number(b), &one, &two)?;
    }
}
