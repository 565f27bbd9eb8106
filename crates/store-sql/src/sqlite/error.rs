//! SQLite's errors, as a store says them.

use oncegate_core::codec::Malformed;
use oncegate_store::{Effect, Kind, StoreError};
use rusqlite::ErrorCode;

/// What a statement can fail with, before it is known what that means for a batch.
pub(super) type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Says what `failure` during `operation` means.
pub(super) fn store_error(failure: Failure, operation: &'static str, effect: Effect) -> StoreError {
    let kind = match failure.downcast_ref::<rusqlite::Error>() {
        Some(error) => kind(error),
        None if failure.is::<Malformed>() => Kind::Unreadable,
        None => Kind::Other,
    };
    StoreError::new(kind, effect, operation).because(failure)
}

fn kind(error: &rusqlite::Error) -> Kind {
    match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => Kind::Contended,
        Some(ErrorCode::DiskFull) => Kind::Full,
        // `None`: a column that does not hold what its type says.
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) | None => Kind::Unreadable,
        Some(ErrorCode::CannotOpen | ErrorCode::SystemIoFailure) => Kind::Unavailable,
        Some(ErrorCode::ReadOnly | ErrorCode::PermissionDenied) => Kind::Misconfigured,
        Some(_) => Kind::Other,
    }
}
