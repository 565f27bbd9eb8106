//! The provider: charges, and keeps a ledger that is the judge. It does not dedupe: a second charge for one operation would be
//! one more, and the show would say so.

use std::sync::{Mutex, MutexGuard, PoisonError};

use oncegate_core::identity::Token;
use tokio::sync::Semaphore;

pub(super) struct Provider {
    /// Each charge, with the life of the key that it was sent for.
    ledger: Mutex<Vec<Token>>,
    /// Lets one charge go that waits.
    pub(super) gate: Semaphore,
    /// A charge has come to where it waits, or hangs.
    pub(super) arrived: Semaphore,
}

impl Provider {
    pub(super) fn new() -> Self {
        Self { ledger: Mutex::default(), gate: Semaphore::new(0), arrived: Semaphore::new(0) }
    }

    /// The number of the charge.
    pub(super) fn charge(&self, life: Token) -> usize {
        let mut ledger = self.ledger();
        ledger.push(life);
        ledger.len()
    }

    /// The charge that was sent for this life of a key.
    pub(super) fn find(&self, life: Token) -> Option<usize> {
        self.ledger().iter().position(|charged| *charged == life).map(|place| place + 1)
    }

    pub(super) fn charges(&self) -> usize {
        self.ledger().len()
    }

    fn ledger(&self) -> MutexGuard<'_, Vec<Token>> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
