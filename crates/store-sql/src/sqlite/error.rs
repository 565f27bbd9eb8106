//! SQLite's errors, as a store says them.

use std::fmt;
use std::path::PathBuf;

use oncegate_core::codec::Malformed;
use oncegate_core::key::KeyError;
use oncegate_core::scope::ScopeError;
use oncegate_store::{Effect, Kind, StoreError};
use rusqlite::ErrorCode;

use super::append::Restored;

/// What a statement can fail with, before it is known what that means for a batch.
pub(super) type Failure = Box<dyn std::error::Error + Send + Sync>;

/// A file that cannot be opened, and which one it is.
#[derive(Debug)]
pub(super) struct CannotOpen {
    pub(super) path: PathBuf,
    pub(super) error: rusqlite::Error,
}

impl fmt::Display for CannotOpen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot open {}: {}", self.path.display(), self.error)
    }
}

impl std::error::Error for CannotOpen {}

/// A write that contradicts what the file holds.
#[derive(Debug)]
pub(super) struct Contradiction(pub(super) String);

impl fmt::Display for Contradiction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Contradiction {}

/// A key was found nowhere, but a row of reservations is damaged, and may have named it.
#[derive(Clone, Copy, Debug)]
pub(super) struct PerhapsReserved {
    /// Its place in `record_reserved`.
    pub(super) seq: i64,
}

impl fmt::Display for PerhapsReserved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seq } = self;
        write!(
            f,
            "the key may be among reservations that cannot be read: the row {seq} of record_reserved is damaged"
        )
    }
}

impl std::error::Error for PerhapsReserved {}

/// Whether `COMMIT` failed by a deferred foreign key: SQLite checks them before it writes anything, so
/// nothing is committed.
pub(super) fn is_deferred_violation(failure: &Failure) -> bool {
    let error = failure.downcast_ref::<rusqlite::Error>().and_then(rusqlite::Error::sqlite_error);
    error.is_some_and(|error| error.extended_code == rusqlite::ffi::SQLITE_CONSTRAINT_FOREIGNKEY)
}

/// Whether SQLite rejected what a write holds.
pub(super) fn is_rejection(failure: &Failure) -> bool {
    failure.is::<Contradiction>()
        || failure.downcast_ref::<rusqlite::Error>().is_some_and(|error| kind(error) == Kind::Rejected)
}

/// Says what `failure` during `operation` means.
pub(super) fn store_error(failure: Failure, operation: &'static str, effect: Effect) -> StoreError {
    let kind = if let Some(error) = failure.downcast_ref::<rusqlite::Error>() {
        kind(error)
    } else if let Some(cannot_open) = failure.downcast_ref::<CannotOpen>() {
        kind(&cannot_open.error)
    } else if failure.is::<Restored>() {
        Kind::Restored
    } else if is_rejection(&failure) {
        Kind::Rejected
    } else if failure.is::<Malformed>()
        || failure.is::<PerhapsReserved>()
        || failure.is::<KeyError>()
        || failure.is::<ScopeError>()
    {
        Kind::Unreadable
    } else {
        Kind::Other
    };
    StoreError::new(kind, effect, operation).because(failure)
}

fn kind(error: &rusqlite::Error) -> Kind {
    match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => Kind::Contended,
        Some(ErrorCode::DiskFull) => Kind::Full,
        Some(ErrorCode::ConstraintViolation | ErrorCode::TooBig | ErrorCode::TypeMismatch) => Kind::Rejected,
        // `None`: a column that does not hold what its type says.
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) | None => Kind::Unreadable,
        Some(ErrorCode::CannotOpen | ErrorCode::SystemIoFailure) => Kind::Unavailable,
        Some(ErrorCode::ReadOnly | ErrorCode::PermissionDenied) => Kind::Misconfigured,
        Some(_) => Kind::Other,
    }
}
