//! Transactions that are counted.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use oncegate_store::Result;
use oncegate_store::join::{Asking, Connection, Lock, Transaction, Transactions, Value};

/// How many were begun, and how many committed.
#[derive(Default)]
pub(crate) struct Count {
    begun: AtomicUsize,
    committed: AtomicUsize,
}

impl Count {
    pub(crate) fn begun(&self) -> usize {
        self.begun.load(Ordering::SeqCst)
    }

    pub(crate) fn committed(&self) -> usize {
        self.committed.load(Ordering::SeqCst)
    }
}

pub(crate) struct Counted<T> {
    pub(crate) inner: T,
    pub(crate) count: Arc<Count>,
}

impl<T: Transactions> Transactions for Counted<T> {
    type Transaction = CountedTransaction<T::Transaction>;

    async fn begin(&self) -> Result<Self::Transaction> {
        self.count.begun.fetch_add(1, Ordering::SeqCst);
        Ok(CountedTransaction { inner: self.inner.begin().await?, count: Arc::clone(&self.count) })
    }

    async fn begin_locked(&self, lock: Lock) -> Result<Option<Self::Transaction>> {
        self.count.begun.fetch_add(1, Ordering::SeqCst);
        let begun = self.inner.begin_locked(lock).await?;
        Ok(begun.map(|inner| CountedTransaction { inner, count: Arc::clone(&self.count) }))
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

    async fn roll_back(self) {
        self.inner.roll_back().await;
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
