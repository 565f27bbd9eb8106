//! Keys, as clients really send them.

use oncegate_core::key::{Key, KeyError};
use oncegate_core::policy::{KeyForm, KeyPattern, KeyPolicy, KeySyntax, Profile};

/// What a header line is read as under a profile: the key, `-` for none, or the error's kind.
fn read(profile: Profile, lines: &[&[u8]]) -> String {
    outcome(Key::read(lines, &profile.policy().key))
}

fn outcome(result: Result<Option<Key>, KeyError>) -> String {
    match result {
        Ok(Some(key)) => key.as_str().to_owned(),
        Ok(None) => "-".to_owned(),
        Err(KeyError::Missing) => "missing".to_owned(),
        Err(error) => {
            let debug = format!("{error:?}");
            format!("!{}", debug.split(['(', ' ', '{']).next().unwrap_or_default())
        }
    }
}

/// One line, read by: ietf (either), ietf-strict (structured), stripe (opaque), lenient (opaque).
#[test]
fn one_line_by_syntax() {
    let table: &[(&[u8], [&str; 4])] = &[
        (b"\"abc\"", ["abc", "abc", "\"abc\"", "\"abc\""]),
        (b"abc", ["abc", "!NotStructured", "abc", "abc"]),
        (b"  abc\t", ["abc", "!NotStructured", "abc", "abc"]),
        (b"\"a b\"", ["a b", "a b", "\"a b\"", "\"a b\""]),
        (b"a b", ["!Ambiguous", "!NotStructured", "a b", "a b"]),
        (b"\"a\\\"b\"", ["a\"b", "a\"b", "\"a\\\"b\"", "\"a\\\"b\""]),
        // Parameters are ignored: `"a";p=1` is the key `a`.
        (b"\"a\";p=1", ["a", "a", "\"a\";p=1", "\"a\";p=1"]),
        // What could be a list, an unterminated string or an item with parameters is refused under `either`.
        (b"\"a\", \"b\"", ["!NotStructured", "!NotStructured", "\"a\", \"b\"", "\"a\", \"b\""]),
        (b"a,b", ["!Ambiguous", "!NotStructured", "a,b", "a,b"]),
        (b"a;p=1", ["!Ambiguous", "!NotStructured", "a;p=1", "a;p=1"]),
        (b"\"abc", ["!NotStructured", "!NotStructured", "\"abc", "\"abc"]),
        (b"ab\"c", ["!Ambiguous", "!NotStructured", "ab\"c", "ab\"c"]),
        (b"\"\"", ["!TooShort", "!TooShort", "\"\"", "\"\""]),
        // Another structured type is not a string.
        (b":YWJj:", [":YWJj:", "!NotStructured", ":YWJj:", ":YWJj:"]),
        (b"?1", ["?1", "!NotStructured", "?1", "?1"]),
        (b"42", ["42", "!NotStructured", "42", "42"]),
        (
            b"clkyoesmbgybucifusbbtdsbohtyuuwz",
            [
                "clkyoesmbgybucifusbbtdsbohtyuuwz",
                "!NotStructured",
                "clkyoesmbgybucifusbbtdsbohtyuuwz",
                "clkyoesmbgybucifusbbtdsbohtyuuwz",
            ],
        ),
        // Latin-1, UTF-8 and control bytes.
        (b"caf\xe9", ["!Character", "!NotStructured", "!Character", "!Character"]),
        (b"\"caf\xc3\xa9\"", ["!NotStructured", "!NotStructured", "!Character", "!Character"]),
        (b"a\x00b", ["!Character", "!NotStructured", "!Character", "!Character"]),
        (b"a\x7fb", ["!Character", "!NotStructured", "!Character", "!Character"]),
        // Empty: required profiles miss a key, `stripe` refuses, `lenient` shrugs.
        (b"", ["missing", "missing", "!Empty", "-"]),
        (b"  ", ["missing", "missing", "!Empty", "-"]),
    ];
    let profiles = [Profile::Ietf, Profile::IetfStrict, Profile::Stripe, Profile::Lenient];
    for (line, expected) in table {
        for (profile, expected) in profiles.into_iter().zip(expected) {
            assert_eq!(read(profile, &[line]), *expected, "{profile}: {}", String::from_utf8_lossy(line));
        }
    }
}

#[test]
fn no_line_and_two_lines() {
    for profile in [Profile::Ietf, Profile::IetfStrict, Profile::Payments, Profile::Accepted] {
        assert_eq!(read(profile, &[]), "missing", "{profile}");
    }
    for profile in [Profile::Stripe, Profile::Lenient] {
        assert_eq!(read(profile, &[]), "-", "{profile}");
    }
    for profile in Profile::ALL {
        assert_eq!(read(profile, &[b"a", b"a"]), "!SeveralLines", "{profile}: equal lines are two lines too");
    }
}

#[test]
fn quoted_and_bare_forms_are_one_key() {
    let uuid = "8e03978e-40d5-43dd-bc93-6894a57f9324";
    assert_eq!(
        read(Profile::Ietf, &[uuid.as_bytes()]),
        read(Profile::Ietf, &[format!("\"{uuid}\"").as_bytes()])
    );
}

#[test]
fn lengths_are_of_the_key_not_of_its_spelling() {
    let long = |n: usize| "k".repeat(n);
    let quoted = |n: usize| format!("\"{}\"", long(n));
    assert_eq!(read(Profile::Ietf, &[quoted(255).as_bytes()]), long(255));
    assert_eq!(read(Profile::Ietf, &[quoted(256).as_bytes()]), "!TooLong");
    assert_eq!(read(Profile::Payments, &[quoted(16).as_bytes()]), long(16));
    assert_eq!(read(Profile::Payments, &[quoted(15).as_bytes()]), "!TooShort");
    assert_eq!(read(Profile::Payments, &[long(15).as_bytes()]), "!TooShort");
}

/// What a store could not read back is no key, whatever a policy says.
#[test]
fn nothing_is_no_key() {
    let policy = KeyPolicy { chars_min: 0, ..Profile::Ietf.policy().key };
    assert_eq!(outcome(Key::read(&[b"\"\""], &policy)), "!TooShort");
    assert_eq!(Key::from_text(""), Err(KeyError::Empty));
}

#[test]
fn forms() {
    let policy = |form| KeyPolicy { form, ..Profile::Ietf.policy().key };
    let uuid = policy(KeyForm::Uuid);
    for (line, expected) in [
        ("8e03978e-40d5-43dd-bc93-6894a57f9324", "8e03978e-40d5-43dd-bc93-6894a57f9324"),
        ("8E03978E-40D5-43DD-BC93-6894A57F9324", "8E03978E-40D5-43DD-BC93-6894A57F9324"),
        ("8e03978e40d543ddbc936894a57f9324", "!NotOfForm"),
        ("8e03978e-40d5-43dd-bc93-6894a57f932g", "!NotOfForm"),
        ("8e03978e-40d5-43dd-bc93-6894a57f93244", "!NotOfForm"),
    ] {
        assert_eq!(outcome(Key::read(&[line.as_bytes()], &uuid)), expected);
    }
    // The pattern covers the whole key, also where it has alternatives.
    let Ok(pattern) = KeyPattern::new("ord-[0-9]+|inv-[0-9]+") else { unreachable!("a valid pattern") };
    let pattern = policy(KeyForm::Pattern(pattern));
    for (line, expected) in
        [("ord-1", "ord-1"), ("inv-22", "inv-22"), ("xord-1", "!NotOfForm"), ("inv-1x", "!NotOfForm")]
    {
        assert_eq!(outcome(Key::read(&[line.as_bytes()], &pattern)), expected);
    }
    assert!(KeyPattern::new("(").is_err());
}

/// Keys may be guessable: logs get a prefix.
#[test]
fn debug_shows_a_prefix_only() {
    let Ok(key) = Key::from_text("0123456789abcdef") else { unreachable!("a valid key") };
    assert_eq!(format!("{key:?}"), "01234567…");
    assert_eq!(KeySyntax::Either, Profile::Payments.policy().key.syntax);
}

/// All spellings of a key are forwarded as one, and two keys never as the same.
#[test]
fn one_spelling_is_forwarded() {
    let rows = [
        (KeySyntax::Either, "k9", "k9"),
        (KeySyntax::Either, "\"k9\";a=1", "k9"),
        (KeySyntax::Either, "\"k 9\"", "\"k 9\""),
        (KeySyntax::Either, r#""a\"b\\c""#, r#""a\"b\\c""#),
        (KeySyntax::Structured, "\"k9\"; a", "\"k9\""),
        (KeySyntax::Opaque, "\"k9\"", "\"k9\""),
    ];
    for (syntax, sent, forwarded) in rows {
        let policy = KeyPolicy { syntax, ..Profile::Ietf.policy().key };
        let Ok(Some(key)) = Key::read(&[sent.as_bytes()], &policy) else { unreachable!("{sent} is a key") };
        assert_eq!(key.canonical_spelling(syntax), forwarded, "{syntax:?} {sent}");
        let again = Key::read(&[forwarded.as_bytes()], &policy);
        assert_eq!(again, Ok(Some(key)), "{syntax:?} {sent}");
    }
}
