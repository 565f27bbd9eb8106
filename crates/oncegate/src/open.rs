//! Stores by their URL.

use std::error::Error;
use std::fmt;

use oncegate_store::StoreError;
use oncegate_store::memory::MemoryStore;

use crate::any::AnyStore;

/// Opens a store: `memory:`, or `sqlite://FILE` (`sqlite://oncegate.db` beside the process, `sqlite:///var/lib/oncegate.db`
/// anywhere), created and migrated.
///
/// Blocks for as long as that takes: do it before serving.
pub fn open(url: &str) -> Result<AnyStore, OpenError> {
    if matches!(url, "memory:" | "memory://") {
        return Ok(AnyStore::Memory(MemoryStore::new()));
    }
    if let Some(path) = url.strip_prefix("sqlite://") {
        return sqlite(url, path);
    }
    Err(OpenError::NotAStore { url: url.to_owned() })
}

#[cfg(feature = "sqlite")]
fn sqlite(url: &str, path: &str) -> Result<AnyStore, OpenError> {
    if path.is_empty() || path.contains(['?', '#']) {
        return Err(OpenError::NotAStore { url: url.to_owned() });
    }
    let store = oncegate_store_sql::SqliteStore::open(path).map_err(OpenError::Store)?;
    Ok(AnyStore::Sqlite(Box::new(store)))
}

#[cfg(not(feature = "sqlite"))]
fn sqlite(_: &str, _: &str) -> Result<AnyStore, OpenError> {
    Err(OpenError::NotBuiltIn { feature: "sqlite" })
}

/// Why a store was not opened.
#[derive(Debug)]
pub enum OpenError {
    /// Not the URL of a store.
    NotAStore {
        /// As it was given.
        url: String,
    },
    /// This build does not have that store.
    NotBuiltIn {
        /// The feature that brings it.
        feature: &'static str,
    },
    /// The store itself says why.
    Store(StoreError),
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotAStore { url } => {
                write!(f, "{url:?} is not the URL of a store; use `memory:` or `sqlite://FILE`")
            }
            Self::NotBuiltIn { feature } => {
                write!(f, "this build has no {feature} store; build it with the feature {feature:?}")
            }
            Self::Store(error) => write!(f, "the store could not be opened: {error}"),
        }
    }
}

impl Error for OpenError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Store(error) => Some(error),
            Self::NotAStore { .. } | Self::NotBuiltIn { .. } => None,
        }
    }
}
