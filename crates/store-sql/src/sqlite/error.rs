//! SQLite's errors, as a store says them.

use std::fmt;
use std::path::PathBuf;

use oncegate_core::codec::Malformed;
use oncegate_core::key::KeyError;
use oncegate_core::scope::ScopeError;
use oncegate_store::{Effect, Kind, StoreError};
use rusqlite::ErrorCode;

/// What a statement can fail with, before it is known what that means for a batch.
pub(super) type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Stored bytes that cannot be what they should be.
pub(super) fn unreadable(what: &'static str) -> Failure {
    Box::new(Malformed { what })
}

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

/// The file was set back to an earlier state while this process had it open.
#[derive(Clone, Copy, Debug)]
pub(super) struct Restored;

impl fmt::Display for Restored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(oncegate_store::history::RESTORED)
    }
}

impl std::error::Error for Restored {}

/// Whether `COMMIT` failed by a deferred foreign key: SQLite checks them before it writes anything, so
/// nothing is committed.
pub(super) fn is_deferred_violation(failure: &Failure) -> bool {
    let error = failure.downcast_ref::<rusqlite::Error>().and_then(rusqlite::Error::sqlite_error);
    error.is_some_and(|error| error.extended_code == rusqlite::ffi::SQLITE_CONSTRAINT_FOREIGNKEY)
}

/// Says what `failure` during `operation` means.
pub(super) fn store_error(failure: Failure, operation: &'static str, effect: Effect) -> StoreError {
    let kind = if let Some(error) = failure.downcast_ref::<rusqlite::Error>() {
        kind(error)
    } else if let Some(cannot_open) = failure.downcast_ref::<CannotOpen>() {
        kind(&cannot_open.error)
    } else if failure.is::<Restored>() {
        Kind::Restored
    } else if failure.is::<Malformed>() || failure.is::<KeyError>() || failure.is::<ScopeError>() {
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
