//! The record that a question is about, and the names by which others may know it.
//!
//! **Invariant:** a derived key names one record and one life of it, and neither the client's key nor a lease token can be read from it.

use std::borrow::Cow;

use oncegate_core::identity::{Fence, RecordId, Token};
use oncegate_core::policy::{ForwardKey, Policy};
use oncegate_core::record::Record;
use oncegate_core::scope::{Address, Operation};
use oncegate_core::time::Timestamp;

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
    /// A record under the present policy of its route, and its own terms.
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
            forward_key: record.terms.forward_key(policy),
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
            Variable::Life => self.life.life_name().into(),
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
        ForwardKey::Derived => Some(RecordId::of(address).derived_key(life)),
        ForwardKey::None => None,
    }
}
