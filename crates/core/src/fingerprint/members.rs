//! Short digests of a JSON object's top-level members: enough to name, later, those that differ.
//!
//! A record keeps two bytes per member, of small objects only. Two bytes name no value, but they
//! can confirm a guess of one member at odds of 1 in 65,536. The digests are salted with the
//! fingerprint's own, so equal members of two records have different digests.
//! Not here: what is done with the names (`tower`).

use super::Malformed;

/// Objects with more members have no digests.
pub const MEMBERS_MAX: usize = 12;
/// Nor have those whose canonical text is longer: every new key pays for reading it.
const TEXT_BYTES_MAX: usize = 4 * 1024;
const DIGEST_BYTES: usize = 2;

/// At most this many differing members are named.
const NAMES_MAX: usize = 8;
/// Longer names are cut: a name comes from the client.
const NAME_CHARS_MAX: usize = 64;
/// A name with more digits than this may be a card number or an account.
const DIGITS_MAX: usize = 8;
/// How many digits are shown of such a name.
const DIGITS_SHOWN: usize = 4;

/// The digests, in no order that matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Members {
    count: u8,
    digests: [[u8; DIGEST_BYTES]; MEMBERS_MAX],
}

impl Members {
    /// So many bytes of a row they take at most.
    pub const BYTES_MAX: usize = MEMBERS_MAX * DIGEST_BYTES;
    /// Of a body that is no small JSON object, or of a record of an earlier release.
    pub const NONE: Self = Self { count: 0, digests: [[0; DIGEST_BYTES]; MEMBERS_MAX] };

    /// The digests of a canonical JSON text.
    pub(super) fn of(text: &[u8], salt: &[u8; 32]) -> Self {
        let (mut members, mut rest) = (Self::NONE, small_object(text).unwrap_or_default());
        while let Some(Member { whole, after, .. }) = first_member(rest) {
            let Some(place) = members.digests.get_mut(usize::from(members.count)) else { return Self::NONE };
            *place = digest(whole, salt);
            members.count += 1;
            rest = after;
        }
        members
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The bytes that a store keeps.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        self.digests[..usize::from(self.count)].as_flattened()
    }

    /// Reads back what [`Members::as_bytes`] gave.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, Malformed> {
        let malformed = Malformed { what: "digests of members" };
        let (digests, []) = bytes.as_chunks::<DIGEST_BYTES>() else { return Err(malformed) };
        let mut members = Self::NONE;
        members.digests.get_mut(..digests.len()).ok_or(malformed)?.copy_from_slice(digests);
        members.count = u8::try_from(digests.len()).map_err(|_| malformed)?;
        Ok(members)
    }

    /// How the members of `text` differ from these. `None` where that is not known: these are of no
    /// small JSON object, or `text` is none.
    pub(super) fn compare(&self, text: &[u8], salt: &[u8; 32]) -> Option<BodyDifference> {
        let known = &self.digests[..usize::from(self.count)];
        let mut rest = small_object(text).filter(|_| !known.is_empty())?;
        let (mut changed, mut is_found) = (Vec::new(), [false; MEMBERS_MAX]);
        while let Some(Member { name, whole, after }) = first_member(rest) {
            rest = after;
            match known.iter().position(|one| *one == digest(whole, salt)) {
                Some(place) => is_found[place] = true,
                None => changed.push(name),
            }
        }
        let unmatched = is_found[..known.len()].iter().filter(|is_found| !**is_found).count();
        let names = changed.iter().take(NAMES_MAX).map(|name| shown(name)).collect();
        Some(BodyDifference {
            names,
            more: changed.len().saturating_sub(NAMES_MAX),
            // Each changed member accounts for one of the first request at most.
            missing: unmatched.saturating_sub(changed.len()),
        })
    }
}

/// How the top-level members of two JSON objects differ. All is zero if they are the same.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct BodyDifference {
    /// Members with another value, and those that only the second object has.
    pub(super) names: Vec<String>,
    /// How many of them are not named here.
    pub(super) more: usize,
    /// How many members only the first object has, at least.
    pub(super) missing: usize,
}

/// A name from a client's body, as it may be shown: without characters that control a terminal or
/// reorder text, cut where it is long, and cut after a few digits where it has many.
fn shown(name: &[u8]) -> String {
    let name: String = serde_json::from_slice(name).unwrap_or_default();
    let is_number = name.chars().filter(char::is_ascii_digit).count() > DIGITS_MAX;
    let (mut shown, mut chars, mut digits) = (String::new(), 0, 0);
    for char in name.chars().filter(|char| !is_invisible(*char)) {
        if chars == NAME_CHARS_MAX || digits == DIGITS_SHOWN {
            shown.push('…');
            break;
        }
        chars += 1;
        digits += usize::from(is_number && char.is_ascii_digit());
        shown.push(char);
    }
    shown
}

/// Control characters, line and paragraph separators, and characters that format text: marks of
/// direction, joiners, tags.
fn is_invisible(char: char) -> bool {
    char.is_control()
        || matches!(char,
            '\u{ad}' | '\u{600}'..='\u{605}' | '\u{61c}' | '\u{6dd}' | '\u{70f}' | '\u{890}' | '\u{891}'
            | '\u{8e2}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{110bd}' | '\u{110cd}'
            | '\u{13430}'..='\u{1343f}' | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}'
            | '\u{e0000}'..='\u{e007f}')
}

/// FNV-1a over salt and member, folded. Two bytes hide what a stronger hash would: all but 16 bits.
fn digest(member: &[u8], salt: &[u8; 32]) -> [u8; DIGEST_BYTES] {
    let start = 0xcbf2_9ce4_8422_2325_u64;
    let hash = salt[..16]
        .iter()
        .chain(member)
        .fold(start, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3));
    let mixed = (hash ^ (hash >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    let [first, second, ..] = mixed.to_be_bytes();
    [first, second]
}

/// One member of a canonical object.
struct Member<'a> {
    /// The name in quotes.
    name: &'a [u8],
    /// Name and value together.
    whole: &'a [u8],
    /// The members behind it.
    after: &'a [u8],
}

/// The members of a canonical object; `None` of a text that is no object, or a long one.
fn small_object(text: &[u8]) -> Option<&[u8]> {
    let inner = text.strip_prefix(b"{")?.strip_suffix(b"}")?;
    (inner.len() <= TEXT_BYTES_MAX).then_some(inner)
}

/// The first of several members.
fn first_member(members: &[u8]) -> Option<Member<'_>> {
    let (end, name_end) = ends(members)?;
    let whole = &members[..end];
    Some(Member { name: &whole[..name_end], whole, after: members.get(end + 1..).unwrap_or_default() })
}

/// Where the first member ends, and where its name does.
fn ends(text: &[u8]) -> Option<(usize, usize)> {
    let (mut depth, mut in_string, mut is_escaped) = (0_usize, false, false);
    let mut name_end = None;
    for (place, byte) in text.iter().enumerate() {
        match (in_string, byte) {
            (true, _) if is_escaped => is_escaped = false,
            (true, b'\\') => is_escaped = true,
            (true, b'"') => {
                in_string = false;
                name_end.get_or_insert(place + 1);
            }
            (false, b'"') => in_string = true,
            (false, b'{' | b'[') => depth += 1,
            (false, b'}' | b']') => depth = depth.saturating_sub(1),
            (false, b',') if depth == 0 => return Some((place, name_end?)),
            _ => {}
        }
    }
    Some((text.len(), name_end?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SALT: [u8; 32] = [7; 32];

    fn compare(kept: &str, asked: &str) -> Option<BodyDifference> {
        Members::of(kept.as_bytes(), &SALT).compare(asked.as_bytes(), &SALT)
    }

    #[track_caller]
    fn check(kept: &str, asked: &str, names: &[&str], missing: usize) {
        let names = names.iter().map(|name| (*name).to_owned()).collect();
        assert_eq!(compare(kept, asked), Some(BodyDifference { names, more: 0, missing }), "{asked}");
    }

    #[test]
    fn members_that_differ_are_named_and_those_that_are_missing_are_counted() {
        let kept = r#"{"a":{"x":[1,",}"]},"b":"q\"uo,te","c":1}"#;
        check(kept, kept, &[], 0);
        check(kept, r#"{"a":{"x":[1,",}"]},"b":"other","c":2}"#, &["b", "c"], 0);
        check(kept, r#"{"a":{"x":[2,",}"]},"b":"q\"uo,te","c":1,"d":null}"#, &["a", "d"], 0);
        check(kept, r#"{"c":1}"#, &[], 2);
        check(kept, "{}", &[], 3);
        // One of them may be the renamed other, so two are missing for certain.
        check(kept, r#"{"z":1}"#, &["z"], 2);
    }

    #[test]
    fn nothing_is_known_of_other_texts() {
        let many: Vec<_> = (0..=MEMBERS_MAX).map(|n| format!("\"{n}\":1")).collect();
        let many = format!("{{{}}}", many.join(","));
        let long = format!("{{\"a\":\"{}\"}}", "x".repeat(TEXT_BYTES_MAX));
        for text in ["", "{}", "[1,2]", "\"a\"", "a=1&b=2", "{", "}", "{a}", &many, &long] {
            assert_eq!(Members::of(text.as_bytes(), &SALT), Members::NONE, "{text:.20}");
            assert_eq!(compare(text, r#"{"a":1}"#), None, "{text:.20}");
        }
        for text in ["", "[1,2]", "a=1", &long] {
            assert_eq!(compare(r#"{"a":1}"#, text), None, "{text:.20}");
        }
    }

    #[test]
    fn names_are_shown_harmlessly() {
        let long = "n".repeat(65);
        for (name, expected) in [
            (r"a\u0000\n\u007f\u0085\u001b[31m", "a[31m"),
            ("a\u{202e}b\u{2028}c\u{2066}d\u{200b}e\u{feff}f\u{e0041}", "abcdef"),
            ("Größe 税 🙂", "Größe 税 🙂"),
            ("4111111111111111", "4111…"),
            ("card 4111-1111-1111-1111", "card 4111…"),
            ("line12345678", "line12345678"),
            (&long[1..], &long[1..]),
            (&long, &format!("{}…", &long[1..])),
        ] {
            assert_eq!(shown(format!("\"{name}\"").as_bytes()), expected, "{name}");
        }
    }

    #[test]
    fn they_survive_the_store() {
        let members = Members::of(br#"{"a":1,"b":2,"c":3}"#, &SALT);
        assert_eq!(members.as_bytes().len(), 3 * DIGEST_BYTES);
        assert_eq!(Members::from_bytes(members.as_bytes()), Ok(members));
        assert_eq!(Members::from_bytes(&[]), Ok(Members::NONE));
        assert!(Members::from_bytes(&[0; 3]).is_err());
        assert!(Members::from_bytes(&[0; Members::BYTES_MAX + DIGEST_BYTES]).is_err());
        let other_salt = Members::of(br#"{"a":1,"b":2,"c":3}"#, &[8; 32]);
        assert_ne!(other_salt, members);
    }

    #[test]
    fn few_names() {
        let asked: Vec<_> = (0..11).map(|n| format!("\"m{n}\":1")).collect();
        let difference = compare(r#"{"a":1}"#, &format!("{{{}}}", asked.join(","))).unwrap();
        assert_eq!((difference.names.len(), difference.more, difference.missing), (NAMES_MAX, 3, 0));
    }
}
