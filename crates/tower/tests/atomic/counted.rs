//! Transactions that are counted.

use std::ops::{Deref, DerefMut};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;

use futures_util::poll;
use oncegate_core::identity::RecordId;
use oncegate_store::Result;
use oncegate_store::join::{
    Asking, Call, Closed, Connection, First, Join, Last, Opened, Opening, Transaction, Transactions, Turn,
    Value, Waited,
};

/// How many could not be begun because the key was in use, how many were committed, how many have waited for their turn, and how many of these were taken along by another's commit.
#[derive(Default)]
pub(crate) struct Count {
    occupied: AtomicUsize,
    committed: AtomicUsize,
    waited: AtomicUsize,
    along: AtomicUsize,
}

impl Count {
    pub(crate) fn occupied(&self) -> usize {
        self.occupied.load(Ordering::SeqCst)
    }

    pub(crate) fn committed(&self) -> usize {
        self.committed.load(Ordering::SeqCst)
    }

    pub(crate) fn waited(&self) -> usize {
        self.waited.load(Ordering::SeqCst)
    }

    pub(crate) fn along(&self) -> usize {
        self.along.load(Ordering::SeqCst)
    }
}

pub(crate) struct Counted<T> {
    pub(crate) inner: T,
    pub(crate) count: Arc<Count>,
}

impl<T: Transactions> Transactions for Counted<T> {
    type Transaction = CountedTransaction<T::Transaction>;

    async fn begin(&self) -> Result<Self::Transaction> {
        Ok(CountedTransaction { inner: self.inner.begin().await?, count: Arc::clone(&self.count) })
    }

    async fn begin_with(&self, opening: Opening) -> Result<Opened<Self::Transaction>> {
        Ok(self.opened(self.inner.begin_with(opening).await?))
    }

    const LOOKS_FIRST: bool = T::LOOKS_FIRST;

    async fn wait<J: Join>(&self, store: &J, id: RecordId) -> Waited<Self::Transaction> {
        let mut waiting = pin!(self.inner.wait(store, id));
        let waited = match poll!(&mut waiting) {
            Poll::Ready(waited) => waited,
            Poll::Pending => {
                self.count.waited.fetch_add(1, Ordering::SeqCst);
                waiting.await
            }
        };
        match waited {
            Waited::Turn(turn) => Waited::Turn(turn),
            Waited::Along(opened) => {
                self.count.along.fetch_add(1, Ordering::SeqCst);
                Waited::Along(opened.map(|opened| self.opened(opened)))
            }
        }
    }

    async fn begin_first(&self, first: First, turn: Turn) -> Result<Opened<Self::Transaction>> {
        Ok(self.opened(self.inner.begin_first(first, turn).await?))
    }
}

impl<T: Transactions> Counted<T> {
    fn opened(&self, opened: Opened<T::Transaction>) -> Opened<CountedTransaction<T::Transaction>> {
        match opened {
            Opened::Begun(inner) => {
                Opened::Begun(CountedTransaction { inner, count: Arc::clone(&self.count) })
            }
            Opened::Occupied => {
                self.count.occupied.fetch_add(1, Ordering::SeqCst);
                Opened::Occupied
            }
            Opened::Unable => Opened::Unable,
        }
    }
}

pub(crate) struct CountedTransaction<T> {
    inner: T,
    count: Arc<Count>,
}

impl<T: Transaction> Transaction for CountedTransaction<T> {
    type Inner = T::Inner;

    async fn commit(self) -> Result<()> {
        self.inner.commit().await?;
        self.count.committed.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    async fn commit_with(self, closing: Call) -> Result<Closed<Self>> {
        self.inner.commit_with(closing).await.map(|closed| counted(closed, self.count))
    }

    async fn commit_after(self, last: Last) -> Result<Closed<Self>> {
        self.inner.commit_after(last).await.map(|closed| counted(closed, self.count))
    }

    async fn roll_back(self) {
        self.inner.roll_back().await;
    }

    fn is_lost(&self) -> bool {
        self.inner.is_lost()
    }

    async fn regain(&mut self) -> Result<()> {
        self.inner.regain().await
    }
}

fn counted<T>(closed: Closed<T>, count: Arc<Count>) -> Closed<CountedTransaction<T>> {
    match closed {
        Closed::Committed => {
            count.committed.fetch_add(1, Ordering::SeqCst);
            Closed::Committed
        }
        Closed::Unable(inner) => Closed::Unable(CountedTransaction { inner, count }),
        Closed::Outside(inner) => Closed::Outside(CountedTransaction { inner, count }),
    }
}

impl<T: Connection> Connection for CountedTransaction<T> {
    fn ask<'a>(&'a mut self, sql: &'a str, values: &'a [Value<'a>]) -> Asking<'a> {
        self.inner.ask(sql, values)
    }
}

impl<T: Transaction> Deref for CountedTransaction<T> {
    type Target = T::Inner;

    fn deref(&self) -> &T::Inner {
        &self.inner
    }
}

impl<T: Transaction> DerefMut for CountedTransaction<T> {
    fn deref_mut(&mut self) -> &mut T::Inner {
        &mut self.inner
    }
}
