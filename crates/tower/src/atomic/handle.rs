//! The handler's end of an atomic transaction.

use std::error::Error;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use http::Extensions;
use oncegate_core::identity::RecordId;
use oncegate_core::record::Holder;
use oncegate_core::time::Timestamp;
use oncegate_engine::InTransaction;
use oncegate_store::jobs::{Enqueue, Job, JobId};
use oncegate_store::join::{Transaction, Transactions};
use tokio::sync::{Mutex, OwnedMappedMutexGuard, OwnedMutexGuard};

/// The transaction of an atomic handler: an extractor. It stands for the connection of the service's own database library:
///
/// ```text
/// async fn transfer(mut tx: Atomic<PgTransactions>, Json(transfer): Json<Transfer>) -> Result<…> {
///     sqlx::query("UPDATE account SET …").bind(transfer.amount).execute(&mut *tx).await?;
///     …
/// }
/// ```
///
/// It is neither committed nor rolled back here: the layer does that, by the handler's answer.
pub struct Atomic<T: Transactions> {
    lent: OwnedMappedMutexGuard<Option<Lent<T::Transaction>>, Lent<T::Transaction>>,
}

/// What a handler is lent.
pub(super) struct Lent<T> {
    pub(super) transaction: T,
    pub(super) jobs: Vec<Job>,
    record: RecordId,
    holder: Holder,
    at: Timestamp,
}

impl<T: Transactions> Atomic<T> {
    /// Takes it out of a request's extensions: for services without extractors.
    pub fn take(extensions: &Extensions) -> Result<Self, NotAtomic> {
        let slot: &Slot<T::Transaction> = extensions.get().ok_or(NotAtomic::NoLayer)?;
        let lent = Arc::clone(&slot.0).try_lock_owned().map_err(|_| NotAtomic::Taken)?;
        let lent = OwnedMutexGuard::try_map(lent, Option::as_mut).map_err(|_| NotAtomic::Taken)?;
        Ok(Self { lent })
    }

    /// The record's id, for a column of the service's own: the same for every request with this key. Its row is written last, with
    /// the answer: a foreign key to it must be deferred.
    #[must_use]
    pub fn record(&self) -> RecordId {
        self.lent.record
    }

    /// What this life of the key is called, for the name of a row that the request makes: 26 letters and digits, the same however often
    /// the request is run, and another once the key has run out and is used anew.
    #[must_use]
    pub fn life_name(&self) -> String {
        self.lent.holder.life.life_name()
    }

    /// Promises a call: `payload`, as JSON, goes to the effect of this name, at least once and always under the same downstream key, by
    /// whoever works off the outbox. It is promised when this transaction is committed, and not before.
    ///
    /// ```text
    /// tx.enqueue("receipt", &json!({ "to": payment.email }))?;
    /// tx.enqueue("ledger", &entry)?.in_line(&account);
    /// tx.enqueue("charge", &charge)?.answers();
    /// ```
    pub fn enqueue(
        &mut self,
        effect: &str,
        payload: &impl serde::Serialize,
    ) -> Result<Promise<'_>, serde_json::Error> {
        let payload = serde_json::to_vec(payload)?;
        let lent = &mut *self.lent;
        let place = u32::try_from(lent.jobs.len()).unwrap_or(u32::MAX);
        let id = JobId::of(lent.holder.life, place);
        let job = Job::promised(id, effect, payload, (lent.record, lent.holder.life), lent.at);
        Ok(Promise { holder: lent.holder, job: push(&mut lent.jobs, job) })
    }
}

/// Where it is from then on.
fn push(jobs: &mut Vec<Job>, job: Job) -> &mut Job {
    let place = jobs.len();
    jobs.push(job);
    &mut jobs[place]
}

/// A promised call, to say more about.
#[derive(Debug)]
pub struct Promise<'p> {
    job: &'p mut Job,
    holder: Holder,
}

impl Promise<'_> {
    /// Calls of one line are made one after the other, in the order of the commits that promised them.
    pub fn in_line(&mut self, line: &str) -> &mut Self {
        self.job.line = Some(line.into());
        self
    }

    /// The effect's answer is the request's: the key stays open until the call was made. The client waits for it, as long as its
    /// policy's patience lasts; then it is given the handler's own answer, of which nothing is kept (a 202 suits). Of one request only
    /// one call can answer: the last of which this is said.
    pub fn answers(&mut self) -> &mut Self {
        self.job.answers = Some(self.holder);
        self
    }

    /// The job's name.
    #[must_use]
    pub const fn id(&self) -> JobId {
        self.job.id
    }
}

impl<T: Transactions> Deref for Atomic<T> {
    type Target = <T::Transaction as Transaction>::Inner;

    fn deref(&self) -> &Self::Target {
        &self.lent.transaction
    }
}

impl<T: Transactions> DerefMut for Atomic<T> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.lent.transaction
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
pub(super) struct Slot<T>(Arc<Mutex<Option<Lent<T>>>>);

impl<T> Clone for Slot<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T: Transaction> Slot<T> {
    pub(super) fn lending<S: Enqueue, P: Transactions<Transaction = T>>(
        held: &mut InTransaction<S, P>,
    ) -> Self {
        let (record, holder, at) = (held.id(), *held.holder(), held.began_at());
        let lent = held.lend().map(|transaction| Lent { transaction, jobs: Vec::new(), record, holder, at });
        Self(Arc::new(Mutex::new(lent)))
    }

    /// When nobody has it any more.
    pub(super) async fn given_back(&self) -> Option<Lent<T>> {
        self.0.lock().await.take()
    }

    /// `None`: somebody still has it.
    pub(super) fn take_back(&self) -> Option<Lent<T>> {
        self.0.try_lock().ok()?.take()
    }
}
