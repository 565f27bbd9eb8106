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

/// So many names of differing members are given, at most.
const NAMES_MAX: usize = 8;
/// And so much of each: a name comes from the client.
const NAME_CHARS_MAX: usize = 64;

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
        let mut members = Self::NONE;
        for (count, (_, member)) in split(text).enumerate() {
            let Some(place) = members.digests.get_mut(count) else { return Self::NONE };
            *place = digest(member, salt);
            members.count += 1;
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

    /// The names of those members of `text` that are not among these, as far as they are kept.
    pub(super) fn missing(&self, text: &[u8], salt: &[u8; 32]) -> Vec<String> {
        if self.is_empty() {
            return Vec::new();
        }
        let known = &self.digests[..usize::from(self.count)];
        let others = split(text).filter(|(_, member)| !known.contains(&digest(member, salt)));
        let name = |(name, _): (&[u8], _)| {
            let name: String = serde_json::from_slice(name).unwrap_or_default();
            name.chars().filter(|letter| !letter.is_control()).take(NAME_CHARS_MAX).collect()
        };
        others.take(NAMES_MAX).map(name).collect()
    }
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

/// The members of a canonical object: the name in quotes, and name and value together. Nothing of
/// a text that is no object, or a long one.
fn split(text: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    let inner = text.strip_prefix(b"{").and_then(|text| text.strip_suffix(b"}"));
    let mut rest = inner.filter(|inner| inner.len() <= TEXT_BYTES_MAX).unwrap_or_default();
    std::iter::from_fn(move || {
        let (end, name_end) = ends(rest)?;
        let member = &rest[..end];
        rest = rest.get(end + 1..).unwrap_or_default();
        Some((&member[..name_end], member))
    })
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

    fn differing(kept: &str, asked: &str) -> Vec<String> {
        Members::of(kept.as_bytes(), &SALT).missing(asked.as_bytes(), &SALT)
    }

    #[test]
    fn members_that_differ_are_named() {
        let kept = r#"{"a":{"x":[1,",}"]},"b":"q\"uo,te","c":1}"#;
        assert_eq!(differing(kept, kept), [""; 0]);
        assert_eq!(differing(kept, r#"{"a":{"x":[1,",}"]},"b":"other","c":2}"#), ["b", "c"]);
        assert_eq!(differing(kept, r#"{"a":{"x":[2,",}"]},"b":"q\"uo,te","c":1,"d":null}"#), ["a", "d"]);
        assert_eq!(differing(kept, r#"{"a\u0000\n":1}"#), ["a"], "without control characters");
        // What was there and is not any more has no name here.
        assert_eq!(differing(kept, r#"{"c":1}"#), [""; 0]);
    }

    #[test]
    fn nothing_is_kept_of_other_texts() {
        let many: Vec<_> = (0..=MEMBERS_MAX).map(|n| format!("\"{n}\":1")).collect();
        let many = format!("{{{}}}", many.join(","));
        let long = format!("{{\"a\":\"{}\"}}", "x".repeat(TEXT_BYTES_MAX));
        for text in ["", "{}", "[1,2]", "\"a\"", "a=1&b=2", "{", "}", "{a}", &many, &long] {
            assert_eq!(Members::of(text.as_bytes(), &SALT), Members::NONE, "{text:.20}");
            assert_eq!(differing(text, r#"{"a":1}"#), [""; 0], "{text:.20}");
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
    fn few_names_and_short_ones() {
        let name = "n".repeat(200);
        let asked: Vec<_> = (0..12).map(|n| format!("\"{n}{name}\":1")).collect();
        let names = differing(r#"{"a":1}"#, &format!("{{{}}}", asked.join(",")));
        assert_eq!(names.len(), NAMES_MAX);
        assert!(names.iter().all(|name| name.len() == NAME_CHARS_MAX));
    }
}
