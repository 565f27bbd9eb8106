//! Messages about records that are not there yet: a webhook that came before its request.
//!
//! A store keeps the bytes and understands nothing of them. They are few, and each has an end.

use oncegate_core::time::Timestamp;

/// One message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Apart {
    /// Names it: the same message, delivered again, has the same name.
    pub name: Box<str>,
    /// When it came, by the store's clock.
    pub at: Timestamp,
    /// When it is no longer of use.
    pub until: Timestamp,
    /// What it says.
    pub bytes: Vec<u8>,
}
