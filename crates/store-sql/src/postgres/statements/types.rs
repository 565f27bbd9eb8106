//! The types of a statement's parameters, read from its text: each is cast where it first occurs, `$1::bigint[]`.
//!
//! Whoever binds must name them (a pooler's sessions prepare nothing, so the server is not asked), and a list beside the text would
//! have to be kept in step with it by hand.

use std::collections::BTreeMap;

use tokio_postgres::types::Type;

/// One for each parameter. What is not cast, or to a type that is not known here, is left to the server to guess; the tests let no
/// statement pass that has such a parameter.
pub(super) fn of(text: &str) -> Vec<Type> {
    let mut first = BTreeMap::new();
    for (number, cast) in placeholders(text) {
        first.entry(number).or_insert(cast);
    }
    let count = first.last_key_value().map_or(0, |(number, _)| *number);
    let of_number = |number| first.get(&number).copied().flatten().and_then(named).unwrap_or(Type::UNKNOWN);
    (1..=count).map(of_number).collect()
}

/// Each place of a parameter: its number, and what it is cast to there.
pub(in crate::postgres) fn placeholders(text: &str) -> impl Iterator<Item = (usize, Option<&str>)> {
    text.split('$').skip(1).filter_map(|after| {
        let (number, rest) = split_where(after, |c| !c.is_ascii_digit());
        let cast = rest.strip_prefix("::").map(|cast| split_where(cast, |c| !is_of_type(c)).0);
        Some((number.parse().ok()?, cast))
    })
}

const fn is_of_type(c: char) -> bool {
    c.is_ascii_lowercase() || c == '[' || c == ']'
}

fn split_where(text: &str, ends: impl Fn(char) -> bool) -> (&str, &str) {
    text.split_at(text.find(ends).unwrap_or(text.len()))
}

/// The types that the statements use.
fn named(cast: &str) -> Option<Type> {
    Some(match cast {
        "boolean" => Type::BOOL,
        "smallint" => Type::INT2,
        "integer" => Type::INT4,
        "bigint" => Type::INT8,
        "text" => Type::TEXT,
        "bytea" => Type::BYTEA,
        "boolean[]" => Type::BOOL_ARRAY,
        "smallint[]" => Type::INT2_ARRAY,
        "integer[]" => Type::INT4_ARRAY,
        "bigint[]" => Type::INT8_ARRAY,
        "text[]" => Type::TEXT_ARRAY,
        "bytea[]" => Type::BYTEA_ARRAY,
        _ => return None,
    })
}
