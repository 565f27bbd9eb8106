//! The record that a question is about, and the names by which others may know it.
//!
//! **Invariant:** a derived key names one record and one life of it, and neither the client's key nor a lease token can be read from it.

use std::borrow::Cow;

use oncegate_core::identity::{Fence, RecordId, Token};
use oncegate_core::policy::{ForwardKey, Policy};
use oncegate_core::record::Record;
use oncegate_core::scope::{Address, Operation};
use oncegate_core::time::Timestamp;
use sha2::{Digest as _, Sha256};

use super::template::Variable;

/// What is asked about, as it was read before asking.
#[derive(Clone, Debug)]
pub struct About {
    /// The record.
    pub id: RecordId,
    /// Scope and key.
    pub address: Address,
    /// Which life of the key.
    pub life: Token,
    /// The route's pattern.
    pub operation: Operation,
    /// The last attempt.
    pub fence: Fence,
    /// The provider's name for the effect, if it was learnt.
    pub reference: Option<Box<str>>,
    /// When the life began.
    pub created_at: Timestamp,
    /// Which key the upstream was sent.
    pub forward_key: ForwardKey,
    /// The largest answer that is kept.
    pub answer_bytes_max: u64,
}

impl About {
    /// A record under the policy of its route.
    #[must_use]
    pub fn of(record: &Record, policy: &Policy) -> Self {
        Self {
            id: record.id,
            address: record.address.clone(),
            life: record.life,
            operation: record.operation.clone(),
            fence: record.fence,
            reference: record.provider_reference.clone(),
            created_at: record.created_at,
            forward_key: policy.forward_key,
            answer_bytes_max: policy.answer_bytes_max,
        }
    }

    /// What stands for a variable; `None` where there is nothing, such as a reference that nobody has learnt.
    pub(super) fn value(&self, variable: Variable) -> Option<Cow<'_, str>> {
        Some(match variable {
            Variable::Key => self.address.key.as_str().into(),
            Variable::ForwardedKey => forwarded_key(self.forward_key, &self.address, self.life)?.into(),
            Variable::Id => self.id.to_string().into(),
            Variable::Scope => self.address.scope.as_str().into(),
            Variable::Tenant => self.address.scope.tenant_str().into(),
            Variable::Operation => self.operation.as_str().into(),
            Variable::Life => life_name(self.life).into(),
            Variable::Fence => self.fence.as_raw().to_string().into(),
            Variable::Reference => self.reference.as_deref()?.into(),
        })
    }
}

/// The key that the upstream was sent, without quotes; `None` where it was sent none.
#[must_use]
pub fn forwarded_key(forward: ForwardKey, address: &Address, life: Token) -> Option<String> {
    match forward {
        ForwardKey::AsIs => Some(address.key.as_str().to_owned()),
        ForwardKey::Derived => Some(derived_key(RecordId::of(address), life)),
        ForwardKey::None => None,
    }
}

/// How a life is called towards others: 26 letters and digits. The life itself is a lease token, which nobody else is to have.
#[must_use]
pub fn life_name(life: Token) -> String {
    let mut digest = Sha256::new();
    digest.update(b"oncegate life 1");
    digest.update(life.as_bytes());
    digest.finalize().iter().take(LETTERS).map(|byte| char::from(ALPHABET[usize::from(byte & 31)])).collect()
}

/// The alphabet of record ids.
const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
/// Of a record's id without its prefix, and of a life's name.
const LETTERS: usize = 26;
/// So many letters of a life's name tell the lives of one record apart.
const LIFE_LETTERS: usize = 10;
const ID_PREFIX: &str = "op_";

/// The record's id and the beginning of the life's name: 36 letters and digits, which every provider that dedupes takes.
pub(crate) fn derived_key(record: RecordId, life: Token) -> String {
    let id = record.to_string();
    format!("{}{}", id.trim_start_matches(ID_PREFIX), &life_name(life)[..LIFE_LETTERS])
}

/// Finds a derived key, whole or at the end of a text that others have put before it: whose it is, and the beginning of its life's name.
pub(super) fn read_derived(text: &str) -> Option<(RecordId, &str)> {
    let text = text.strip_prefix('"').and_then(|text| text.strip_suffix('"')).unwrap_or(text);
    let (before, key) = text.split_at_checked(text.len().checked_sub(LETTERS + LIFE_LETTERS)?)?;
    if before.ends_with(char::is_alphanumeric) {
        return None;
    }
    let (id, life) = key.split_at_checked(LETTERS)?;
    Some((format!("{ID_PREFIX}{id}").parse().ok()?, is_life_prefix(life).then_some(life)?))
}

fn is_life_prefix(text: &str) -> bool {
    text.len() == LIFE_LETTERS && text.bytes().all(|byte| ALPHABET.contains(&byte))
}

/// Whether a text names this life: its whole name, or as much of it as a derived key has.
pub(super) fn names_life(text: &str, life: Token) -> bool {
    let name = life_name(life);
    text == name || (is_life_prefix(text) && name.starts_with(text))
}

#[cfg(test)]
mod tests {
    use oncegate_core::key::Key;
    use oncegate_core::scope::Scope;

    use super::*;

    #[test]
    fn a_derived_key_is_read_back_and_names_its_life_alone() {
        let address =
            Address { scope: Scope::tenant("acme").unwrap(), key: Key::from_text("order-1").unwrap() };
        let (one, two) = (Token::from_bytes([1; 16]), Token::from_bytes([2; 16]));
        let key = forwarded_key(ForwardKey::Derived, &address, one).unwrap();
        assert_eq!(key.len(), 36);
        assert_ne!(key, forwarded_key(ForwardKey::Derived, &address, two).unwrap());
        for spelled in [key.clone(), format!("\"{key}\""), format!("alice/{key}"), format!("é-{key}")] {
            let (id, life) = read_derived(&spelled).unwrap();
            assert_eq!(id, RecordId::of(&address));
            assert!(names_life(life, one) && !names_life(life, two));
        }
        assert!(names_life(&life_name(one), one) && !names_life(&life_name(one)[..9], one));
        assert_eq!(forwarded_key(ForwardKey::AsIs, &address, one).unwrap(), "order-1");
        assert_eq!(forwarded_key(ForwardKey::None, &address, one), None);
        for wrong in [
            "",
            "order-1",
            &key[1..],
            &key.to_uppercase(),
            &format!("{key}0"),
            &format!("{key}/x"),
            &format!("a{key}"),
            &format!("é{key}"),
            "ééééééééééééééééééé",
        ] {
            assert_eq!(read_derived(wrong), None, "{wrong}");
        }
    }

    /// Upstreams keep these keys, and probes ask by them: a release that derives others would find nothing, and call it "did not happen".
    /// Expected by python3: hashlib.sha256(b"oncegate life 1" + bytes([1]) * 16), five bits of each byte.
    #[test]
    fn names_are_pinned() {
        assert_eq!(life_name(Token::from_bytes([1; 16])), "h4j1ngcvnehcvxqcqy5pd14d6z");
        let key = derived_key(RecordId::from_bytes([255; 16]), Token::from_bytes([1; 16]));
        assert_eq!(key, "7zzzzzzzzzzzzzzzzzzzzzzzzzh4j1ngcvne");
    }
}
