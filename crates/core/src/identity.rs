//! Who may write: tokens, fences, versions and the record's public id.
//!
//! **Invariant:** a write is admitted by equality of the lease token (128 random bits, made by the holder before the
//! write) together with the fence; never by order. Fences and versions grow across lives without a counter, because
//! each starts no lower than the store's time in microseconds.

use std::fmt;
use std::str::FromStr;

use sha2::{Digest, Sha256};

use crate::scope::Address;
use crate::time::Timestamp;

/// 128 random bits that name one grant of a lease. Made by the holder, so that it can recognise its own write after a
/// lost acknowledgement.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token([u8; 16]);

impl Token {
    /// Stands where no token was drawn yet. Nothing is granted under it.
    pub const NOT_DRAWN: Self = Self([0; 16]);

    /// Wraps random bits; the caller brings the randomness.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// The bits.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

/// A life's name.
const LIFE_NAME_LETTERS: usize = 26;
/// So many letters of a life's name tell the lives of one record apart.
const LIFE_MARK_LETTERS: usize = 10;

impl Token {
    /// What the life that this token began is called towards others: 26 letters and digits. The token itself is a lease's, which
    /// nobody else is to have.
    #[must_use]
    pub fn life_name(&self) -> String {
        self.lettered(b"oncegate life 1", "")
    }

    /// The key that a phase's foreign call carries in the life that this token began: 26 letters and digits, the same in every attempt.
    #[must_use]
    pub fn phase_key(&self, phase: &str) -> String {
        self.lettered(b"oncegate phase 1", phase)
    }

    fn lettered(&self, what: &[u8], name: &str) -> String {
        let mut digest = Sha256::new();
        digest.update(what);
        digest.update(self.0);
        digest.update(name);
        let letters = digest.finalize();
        letters
            .iter()
            .take(LIFE_NAME_LETTERS)
            .map(|byte| char::from(ALPHABET[usize::from(byte & 31)]))
            .collect()
    }

    /// The beginning of that name, which a derived key carries.
    #[must_use]
    pub fn life_mark(&self) -> String {
        let mut name = self.life_name();
        name.truncate(LIFE_MARK_LETTERS);
        name
    }

    /// Whether a text names this life: its whole name, or its mark.
    #[must_use]
    pub fn is_called(&self, text: &str) -> bool {
        let name = self.life_name();
        text == name || (text.len() == LIFE_MARK_LETTERS && name.starts_with(text))
    }
}

impl fmt::Debug for Token {
    /// Half of the token: enough to tell two apart in a log, too little to act as its holder.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token({}…)", Hex(&self.0[..8]))
    }
}

/// A number that grows with every grant of a lease, across lives too. For upstreams, logs and people.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fence(i64);

impl Fence {
    /// Wraps a stored value.
    #[must_use]
    pub const fn from_raw(raw: i64) -> Self {
        Self(raw)
    }

    /// The stored value.
    #[must_use]
    pub const fn as_raw(self) -> i64 {
        self.0
    }

    /// The fence of the next grant: `max(previous + 1, store time in µs)`.
    #[must_use]
    pub fn next(previous: Option<Self>, now: Timestamp) -> Self {
        Self(grow(previous.map(|f| f.0), now))
    }
}

/// Counts the writes of a row and never restarts, so that a swap in flight from an earlier life cannot fit a later one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(i64);

impl Version {
    /// Wraps a stored value.
    #[must_use]
    pub const fn from_raw(raw: i64) -> Self {
        Self(raw)
    }

    /// The stored value.
    #[must_use]
    pub const fn as_raw(self) -> i64 {
        self.0
    }

    /// The version of the next write: `max(previous + 1, store time in µs)`.
    #[must_use]
    pub fn next(previous: Option<Self>, now: Timestamp) -> Self {
        Self(grow(previous.map(|v| v.0), now))
    }
}

fn grow(previous: Option<i64>, now: Timestamp) -> i64 {
    previous.map_or(now.as_micros(), |p| p.saturating_add(1).max(now.as_micros()))
}

/// The public, opaque name of a record: `op_` and 26 letters and digits.
///
/// It is a hash of scope and key, so one compact unique index serves both lookups (by key and by id) in every store, and
/// no second identity can drift from the first. It is not a secret: whoever may see a record is decided by its scope.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RecordId([u8; 16]);

/// Crockford's alphabet in lower case: no `i`, `l`, `o`, `u`, so an id survives being read aloud.
const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
const ID_PREFIX: &str = "op_";
const ID_LETTERS: usize = 26;

impl RecordId {
    /// The id of the record at `address`.
    #[must_use]
    pub fn of(address: &Address) -> Self {
        // A frame as `codec` makes it, digested as it goes.
        let mut digest = Sha256::new();
        for part in ["oncegate record id 1", address.scope.as_str(), address.key.as_str()] {
            digest.update(u32::try_from(part.len()).unwrap_or(u32::MAX).to_le_bytes());
            digest.update(part);
        }
        let digest = digest.finalize();
        let mut id = [0; 16];
        id.copy_from_slice(&digest[..16]);
        Self(id)
    }

    /// The key that an upstream is given in place of the client's, where a route derives it: the record's id and the mark of the
    /// life, 36 letters and digits, which every provider that dedupes takes. Neither the client's key nor a lease token can be read
    /// from it, and whoever echoes it names record and life.
    #[must_use]
    pub fn derived_key(&self, life: Token) -> String {
        let id = self.to_string();
        format!("{}{}", id.trim_start_matches(ID_PREFIX), life.life_mark())
    }

    /// Finds a derived key, whole or at the end of a text that others have put before it: whose it is, and the mark of its life.
    #[must_use]
    pub fn of_derived_key(text: &str) -> Option<(Self, &str)> {
        let text = text.strip_prefix('"').and_then(|text| text.strip_suffix('"')).unwrap_or(text);
        let (before, key) = text.split_at_checked(text.len().checked_sub(ID_LETTERS + LIFE_MARK_LETTERS)?)?;
        if before.ends_with(char::is_alphanumeric) {
            return None;
        }
        let (id, mark) = key.split_at_checked(ID_LETTERS)?;
        let is_mark = mark.len() == LIFE_MARK_LETTERS && mark.bytes().all(|byte| ALPHABET.contains(&byte));
        Some((format!("{ID_PREFIX}{id}").parse().ok()?, is_mark.then_some(mark)?))
    }

    /// Wraps stored bytes.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// The bytes, as stores index them.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

impl fmt::Display for RecordId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{ID_PREFIX}{}", spell(self.0))
    }
}

impl fmt::Debug for RecordId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Not a record id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotARecordId;

impl fmt::Display for NotARecordId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a record id is `{ID_PREFIX}` followed by {ID_LETTERS} letters and digits")
    }
}

impl std::error::Error for NotARecordId {}

impl FromStr for RecordId {
    type Err = NotARecordId;

    fn from_str(text: &str) -> Result<Self, NotARecordId> {
        text.strip_prefix(ID_PREFIX).and_then(read_letters).map(Self).ok_or(NotARecordId)
    }
}

/// 128 bits as 26 letters and digits, as every public name is written.
#[must_use]
pub fn spell(bits: [u8; 16]) -> String {
    let value = u128::from_be_bytes(bits);
    let letter = |place| ALPHABET[usize::try_from((value >> (place * 5)) & 31).unwrap_or(0)];
    (0..ID_LETTERS).rev().map(|place| char::from(letter(place))).collect()
}

/// Reads back what [`spell`] wrote, and nothing else.
#[must_use]
pub fn read_letters(letters: &str) -> Option<[u8; 16]> {
    if letters.len() != ID_LETTERS {
        return None;
    }
    let mut value: u128 = 0;
    for (place, letter) in letters.bytes().enumerate() {
        let digit = ALPHABET.iter().position(|a| *a == letter)?;
        // 26 letters hold 130 bits: the first may only carry three.
        if place == 0 && digit > 7 {
            return None;
        }
        value = (value << 5) | digit as u128;
    }
    Some(value.to_be_bytes())
}

/// Bytes as lower-case hex.
struct Hex<'a>(&'a [u8]);

impl fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_survive_the_round_trip_and_refuse_anything_else() {
        for bytes in [[0; 16], [255; 16], *b"0123456789abcdef"] {
            let id = RecordId::from_bytes(bytes);
            assert_eq!(id.to_string().parse(), Ok(id));
        }
        let good = RecordId::from_bytes([255; 16]).to_string();
        for bad in [
            "",
            "op_",
            "op_x",
            &good[3..],
            &good.to_uppercase(),
            &format!("{good}0"),
            "op_zzzzzzzzzzzzzzzzzzzzzzzzzz",
        ] {
            assert_eq!(bad.parse::<RecordId>(), Err(NotARecordId), "{bad}");
        }
    }

    /// Providers remember these for weeks: a release that derived others would charge again, and find nothing where it asks.
    /// Expected by python3: hashlib.sha256(b"oncegate life 1" + bytes([1]) * 16), five bits of each byte.
    #[test]
    fn derived_keys_are_pinned_read_back_and_name_the_life_alone() {
        let (one, two) = (Token::from_bytes([1; 16]), Token::from_bytes([2; 16]));
        assert_eq!(one.life_name(), "h4j1ngcvnehcvxqcqy5pd14d6z");
        let id = RecordId::from_bytes([255; 16]);
        let key = id.derived_key(one);
        assert_eq!(key, "7zzzzzzzzzzzzzzzzzzzzzzzzzh4j1ngcvne");
        assert_ne!(key, id.derived_key(two));
        for spelled in [key.clone(), format!("\"{key}\""), format!("alice/{key}")] {
            let (read, mark) = RecordId::of_derived_key(&spelled).unwrap();
            assert_eq!(read, id);
            assert!(one.is_called(mark) && !two.is_called(mark));
        }
        assert!(one.is_called(&one.life_name()) && !one.is_called(&one.life_name()[..9]));
        for wrong in [
            "",
            "order-1",
            &key[1..],
            &key.to_uppercase(),
            &format!("{key}0"),
            &format!("{key}/x"),
            "ééééééééééééééééééé",
        ] {
            assert_eq!(RecordId::of_derived_key(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn fences_and_versions_grow_with_time_and_without_it() {
        let now = Timestamp::from_micros(1_000);
        assert_eq!(Fence::next(None, now), Fence::from_raw(1_000));
        assert_eq!(Fence::next(Some(Fence::from_raw(10)), now), Fence::from_raw(1_000));
        assert_eq!(Fence::next(Some(Fence::from_raw(5_000)), now), Fence::from_raw(5_001));
        assert_eq!(Version::next(Some(Version::from_raw(5_000)), now), Version::from_raw(5_001));
    }
}
