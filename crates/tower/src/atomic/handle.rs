//! The handler's end of an atomic transaction.

use std::error::Error;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use http::Extensions;
use oncegate_engine::InTransaction;
use oncegate_store::join::{Join, Transaction, Transactions};
use tokio::sync::{Mutex, OwnedMappedMutexGuard, OwnedMutexGuard};

/// The transaction of an atomic handler: an extractor. It stands for the connection of the service's own database library:
///
/// ```ignore
/// async fn transfer(mut tx: Atomic<PgTransactions>, Json(transfer): Json<Transfer>) -> Result<…> {
///     sqlx::query("UPDATE account SET …").bind(transfer.amount).execute(&mut *tx).await?;
///     …
/// }
/// ```
///
/// It is neither committed nor rolled back here: the layer does that, by the handler's answer.
pub struct Atomic<T: Transactions> {
    lent: OwnedMappedMutexGuard<Option<T::Transaction>, T::Transaction>,
}

impl<T: Transactions> Atomic<T> {
    /// Takes it out of a request's extensions: for services without extractors.
    pub fn take(extensions: &Extensions) -> Result<Self, NotAtomic> {
        let slot: &Slot<T::Transaction> = extensions.get().ok_or(NotAtomic::NoLayer)?;
        let lent = Arc::clone(&slot.0).try_lock_owned().map_err(|_| NotAtomic::Taken)?;
        let lent = OwnedMutexGuard::try_map(lent, Option::as_mut).map_err(|_| NotAtomic::Taken)?;
        Ok(Self { lent })
    }
}

impl<T: Transactions> Deref for Atomic<T> {
    type Target = <T::Transaction as Transaction>::Inner;

    fn deref(&self) -> &Self::Target {
        &self.lent
    }
}

impl<T: Transactions> DerefMut for Atomic<T> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.lent
    }
}

#[cfg(feature = "axum")]
impl<T: Transactions, C: Sync> axum::extract::FromRequestParts<C> for Atomic<T> {
    type Rejection = NotAtomic;

    async fn from_request_parts(parts: &mut http::request::Parts, _: &C) -> Result<Self, NotAtomic> {
        Self::take(&parts.extensions)
    }
}

/// There is no transaction to take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotAtomic {
    /// The request did not come through the layer, or its route is not protected, or it has no key.
    NoLayer,
    /// It was taken already.
    Taken,
}

impl fmt::Display for NotAtomic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoLayer => {
                "this request has no transaction: its route is not among those of the atomic layer, or it came without a key, which \
                 the route's policy allows"
            }
            Self::Taken => "this request's transaction was taken already: a handler takes it once",
        })
    }
}

impl Error for NotAtomic {}

#[cfg(feature = "axum")]
impl axum::response::IntoResponse for NotAtomic {
    fn into_response(self) -> axum::response::Response {
        tracing::error!("{self}");
        (http::StatusCode::INTERNAL_SERVER_ERROR, self.to_string()).into_response()
    }
}

/// Where the transaction is while the handler has not taken it, and when it has given it back.
pub(super) struct Slot<T>(Arc<Mutex<Option<T>>>);

impl<T> Clone for Slot<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T: Transaction> Slot<T> {
    pub(super) fn lending<S: Join, P: Transactions<Transaction = T>>(held: &mut InTransaction<S, P>) -> Self {
        Self(Arc::new(Mutex::new(held.lend())))
    }

    /// `None`: somebody still has it.
    pub(super) fn take_back(&self) -> Option<T> {
        self.0.try_lock().ok()?.take()
    }
}
