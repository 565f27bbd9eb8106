//! A key that a route takes: for an example, and as a pattern for tools.

use oncegate_core::key::Key;
use oncegate_core::policy::{KeyForm, KeySyntax, Policy};

const UUID: &str = "8e03978e-40d5-43dd-bc93-6894a57f9324";

/// An example header line, if one is found that the route's own reader takes.
pub(crate) fn line(policy: &Policy) -> Option<String> {
    value(policy).map(|value| format!("Idempotency-Key: {value}"))
}

/// The same without the header's name.
pub(crate) fn value(policy: &Policy) -> Option<String> {
    let key = &policy.key;
    let hex = UUID.replace('-', "");
    let of_length = |chars: usize| hex.chars().cycle().take(chars).collect::<String>();
    // For patterns of one's own these are guesses: the reader says whether one fits.
    let candidates = [
        UUID.to_owned(),
        hex.clone(),
        of_length(key.chars_min),
        of_length(key.chars_max),
        "order-4711".to_owned(),
        "ORDER-4711".to_owned(),
        "order_4711".to_owned(),
        "4711".to_owned(),
        "0123456789".to_owned(),
    ];
    let mut values = candidates.into_iter().map(|key_| match key.syntax {
        KeySyntax::Opaque => key_,
        KeySyntax::Structured | KeySyntax::Either => format!("\"{key_}\""),
    });
    values.find(|value| matches!(Key::read(&[value.as_bytes()], key), Ok(Some(_))))
}

/// A regular expression over the header's value (ECMA 262, as JSON Schema has it).
pub(crate) fn pattern(policy: &Policy) -> String {
    let key = &policy.key;
    let chars = format!("{{{},{}}}", key.chars_min.max(1), key.chars_max);
    let uuid = "[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}";
    // Of each form: the value in quotes, where `"` and `\` are escaped; bare, where it can be read in one way; as it stands.
    let [quoted, bare, opaque] = match &key.form {
        KeyForm::Any => [
            format!(r#"(?:[ !#-\[\]-~]|\\["\\]){chars}"#),
            format!(r"[!#-+\--:<-\[\]-~]{chars}"),
            format!("[ -~]{chars}"),
        ],
        KeyForm::Uuid => [uuid.to_owned(), uuid.to_owned(), uuid.to_owned()],
        KeyForm::Pattern(pattern) => {
            let whole = format!("(?:{})", pattern.as_str());
            [whole.clone(), whole.clone(), whole]
        }
    };
    match key.syntax {
        KeySyntax::Structured => format!("^\"{quoted}\"$"),
        KeySyntax::Opaque => format!("^{opaque}$"),
        KeySyntax::Either => format!("^(?:\"{quoted}\"|{bare})$"),
    }
}

/// The shortest and the longest value, as they are usually written: without escapes.
pub(crate) fn lengths(policy: &Policy) -> (usize, usize) {
    let (min, max) = (policy.key.chars_min.max(1), policy.key.chars_max);
    match policy.key.syntax {
        KeySyntax::Structured => (min + 2, max + 2),
        KeySyntax::Opaque => (min, max),
        KeySyntax::Either => (min, max + 2),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use oncegate_core::policy::{KeyPattern, Profile};

    fn policies() -> Vec<Policy> {
        let mut policies: Vec<_> = Profile::ALL.into_iter().map(Profile::policy).collect();
        for syntax in [KeySyntax::Structured, KeySyntax::Opaque, KeySyntax::Either] {
            for form in [
                KeyForm::Any,
                KeyForm::Uuid,
                KeyForm::Pattern(KeyPattern::new("[a-z]+-\\d+|[0-9a-f]{8,}").unwrap()),
            ] {
                for (chars_min, chars_max) in [(1, 255), (8, 40), (36, 36), (3, 7)] {
                    let mut policy = Profile::Ietf.policy();
                    policy.key.syntax = syntax;
                    policy.key.form = form.clone();
                    (policy.key.chars_min, policy.key.chars_max) = (chars_min, chars_max);
                    policies.push(policy);
                }
            }
        }
        policies
    }

    /// What the published pattern and lengths take, the reader takes, and the other way round.
    #[test]
    fn the_pattern_is_the_readers() {
        let bare = [
            "a",
            "ab",
            "abcdefgh",
            "order-4711",
            "4711",
            UUID,
            "8E03978E-40d5-43dd-bc93-6894a57f9324",
            "8e03978e",
            "a b",
            "a,b",
            "a;b",
            "a\\b",
            "a'b",
            "[x]",
            "é",
            "ab-1",
            "abc-1234",
            "~!#$%&()*+./:<=>?@^_`{|}",
        ];
        for policy in policies() {
            let pattern = regex_lite::Regex::new(&pattern(&policy)).unwrap();
            let (min, max) = lengths(&policy);
            for key in bare {
                for value in [key.to_owned(), format!("\"{key}\""), format!("\"{key}"), "x".repeat(300)] {
                    let published = pattern.is_match(&value) && (min..=max).contains(&value.chars().count());
                    let read = matches!(Key::read(&[value.as_bytes()], &policy.key), Ok(Some(_)));
                    // A pattern of one's own cannot count the characters of two spellings at once: there it takes a little more.
                    let is_looser = policy.key.syntax == KeySyntax::Either
                        && matches!(policy.key.form, KeyForm::Pattern(_));
                    let agrees = published == read || (is_looser && published);
                    assert!(agrees, "{value:?}: published {published}, read {read}, under {:?}", policy.key);
                }
            }
        }
    }

    #[test]
    fn every_profile_has_an_example() {
        for profile in Profile::ALL {
            assert!(value(&profile.policy()).is_some(), "{profile}");
        }
        let mut policy = Profile::Ietf.policy();
        policy.key.form = KeyForm::Pattern(KeyPattern::new("nobody-guesses-this").unwrap());
        assert_eq!(line(&policy), None);
    }
}
