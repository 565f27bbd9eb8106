//! What a handler may know of the attempt that it runs in.

use std::error::Error;
use std::fmt;
use std::time::Duration;

use oncegate_core::classify::Failure;
use oncegate_core::identity::{Fence, RecordId, Token};
use oncegate_core::key::Key;
use oncegate_core::policy::ForwardKey;
use oncegate_engine::SendPermit;

/// The attempt that a protected request runs in; found in the request's extensions.
#[derive(Clone, Debug)]
pub struct Attempt {
    /// The client's key.
    pub key: Key,
    /// The record's public name.
    pub record: RecordId,
    /// Names the life of the key: derive downstream keys from it, so that an effect of an earlier life cannot be taken for one of a
    /// later.
    pub life: Token,
    /// Grows with every attempt, also across lives.
    pub fence: Fence,
    /// Which attempt of this life it is, from 1.
    pub number: u32,
    /// Which key an upstream is to be sent.
    pub forward_key: ForwardKey,
    /// How long the attempt may last at most, from its beginning.
    pub deadline: Duration,
    /// The largest answer that is kept; what is beyond it is the client's to take.
    pub answer_bytes_max: u64,
    /// Check it just before anything is sent to others.
    pub permit: SendPermit,
}

/// An error by which an inner service says how it failed; what proves that nothing was sent frees the key. Any other error
/// is doubt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failed(pub Failure);

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Error for Failed {}
