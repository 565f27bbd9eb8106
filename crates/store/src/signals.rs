//! Signals between the nodes that share a store: hints, and no promise.
//!
//! A signal may be lost, doubled or late; whoever waits must be right by asking the store now and then. So a signal never
//! carries what became of a record, only that it is worth asking.

use std::future::Future;
use std::pin::Pin;

use oncegate_core::identity::RecordId;

use crate::Result;

/// What one node tells the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Signal {
    /// An attempt was settled: whoever waits for its answer may ask.
    Settled(RecordId),
    /// An operator took an answer back: whoever keeps it lets go of it.
    Forgotten(RecordId),
}

/// What a node hears.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Heard {
    /// These.
    Signals(Vec<Signal>),
    /// The connection was lost, and is there again: any signal may have been missed meanwhile.
    Gap,
}

/// A future behind a pointer, so that the channel can be held without knowing its store.
pub type Pending<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A channel to all nodes of a store, this one among them.
pub trait Signals: Send + Sync + 'static {
    /// Tells everybody, once, off the path of any write.
    fn tell<'a>(&'a self, signals: &'a [Signal]) -> Pending<'a, Result<()>>;

    /// Waits for the next that is told. Connects, and connects again, as need be; called by one task at a time.
    fn hear(&self) -> Pending<'_, Heard>;
}
