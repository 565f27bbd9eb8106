//! Where keys survive a restart.

mod file;

use std::error::Error;
use std::future::Future;

pub use file::{FileKeep, FileKeepError};

use crate::judge::Trace;
use crate::key::Key;
use crate::operation::NotBegun;

/// Keeps keys by the caller's names for its operations: in files ([`FileKeep`]), or in the caller's own database.
///
/// # Contract
/// - What was returned is durable: a process that dies right after it finds the same.
///   (`a_process_that_is_killed_goes_on_with_its_key_when_it_is_started_again`)
/// - Of all who save a key under one name, one wins, and all are given the winner's: two processes that begin the same operation at once
///   send the same key. (`of_many_who_begin_the_same_operation_at_once_all_get_one_key`)
/// - What cannot be read is an error, never `None`: `None` lets a new key be made.
///   (`a_key_file_that_cannot_be_read_stops_the_operation_before_anything_is_sent`)
/// - Only the key that is named is forgotten. Another under that name is of an operation that was begun since.
///   (`a_late_done_does_not_forget_the_key_of_the_next_operation_under_its_name`)
pub trait Keep: Send + Sync + 'static {
    /// Why a key could not be kept or read.
    type Error: Error + Send + Sync + 'static;

    /// The key under this name, if there is one.
    fn load(&self, name: &str) -> impl Future<Output = Result<Option<Key>, Self::Error>> + Send;

    /// Keeps the key unless there is one already; returns the one that is kept.
    fn save(&self, name: &str, key: &Key) -> impl Future<Output = Result<Key, Self::Error>> + Send;

    /// Removes this key from under this name, if it is there.
    fn forget(&self, name: &str, key: &Key) -> impl Future<Output = Result<(), Self::Error>> + Send;
}

/// No place to keep keys: operations have no names, and their callers write keys down themselves.
#[derive(Clone, Copy, Debug, Default)]
pub struct Nowhere;

/// A [`Keep`], or [`Nowhere`].
pub trait AnyKeep: Send + Sync + 'static {
    #[doc(hidden)]
    fn key_of(&self, name: &str) -> impl Future<Output = Result<Begun, NotBegun>> + Send;
}

/// A key, and whether an earlier process may have sent it.
#[derive(Debug)]
pub struct Begun {
    pub(crate) key: Key,
    pub(crate) trace: Trace,
}

impl Begun {
    /// With a key of its own: nobody can have sent it.
    pub(crate) fn fresh() -> Result<Self, NotBegun> {
        Ok(Self { key: Key::random().map_err(NotBegun::NoRandomness)?, trace: Trace::Nothing })
    }
}

impl AnyKeep for Nowhere {
    /// Only operations with a [`Keep`] have names.
    async fn key_of(&self, _: &str) -> Result<Begun, NotBegun> {
        Begun::fresh()
    }
}

impl<K: Keep> AnyKeep for K {
    async fn key_of(&self, name: &str) -> Result<Begun, NotBegun> {
        let failed = |error| NotBegun::Keep(Box::new(error));
        if let Some(key) = self.load(name).await.map_err(failed)? {
            return Ok(Begun { key, trace: Trace::Doubt });
        }
        let fresh = Begun::fresh()?;
        let key = self.save(name, &fresh.key).await.map_err(failed)?;
        // Whose key it is, that one may have sent it.
        let trace = if key == fresh.key { Trace::Nothing } else { Trace::Doubt };
        Ok(Begun { key, trace })
    }
}
