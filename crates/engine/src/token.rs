//! Lease tokens.
//!
//! **Invariant:** a token is drawn when its reserve is made, and never kept for a later one. Two
//! clones of one machine or process, made from a snapshot, would hold the same tokens otherwise,
//! and each would take the other's lease for its own.

use oncegate_core::identity::Token;
use oncegate_store::Store;

use crate::arrive::Unavailable;
use crate::engine::Engine;

impl<S: Store> Engine<S> {
    /// A token for one reserve.
    pub(crate) fn new_token(&self) -> Result<Token, Unavailable> {
        let mut bytes = [0; 16];
        self.0.options.randomness.fill(&mut bytes).map_err(|_| Unavailable::NoRandomness)?;
        Ok(Token::from_bytes(bytes))
    }
}
