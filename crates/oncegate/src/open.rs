//! Stores by their URL.

use std::error::Error;
use std::fmt;

use oncegate_store::StoreError;
use oncegate_store::memory::MemoryStore;

use crate::any::AnyStore;

/// Opens a store, created and migrated:
///
/// - `memory:`;
/// - `sqlite://FILE` (`sqlite://oncegate.db` beside the process, `sqlite:///var/lib/oncegate.db` anywhere);
/// - `postgres://USER:PASSWORD@HOST,HOST/DATABASE?schema=NAME`, see `docs/postgres.md`;
/// - `redis://HOST/?prefix=NAME`, or `rediss://HOST/?tls_ca=FILE` for TLS; for low stakes, see
///   `docs/decisions/0008-redis.md`.
///
/// What about it would lose acknowledged keys is logged, and is in [`AnyStore::warnings`].
pub async fn open(url: &str) -> Result<AnyStore, OpenError> {
    open_as(url, Opening::Migrates).await
}

/// Opens a store that is there and up to date, and neither creates nor migrates anything: for people who look.
pub async fn open_existing(url: &str) -> Result<AnyStore, OpenError> {
    open_as(url, Opening::Existing).await
}

/// What can be said against a store before it is opened, with the remedy: a file of SQLite that
/// other users can read. Nothing is created.
#[must_use]
pub fn warnings_of(url: &str) -> Vec<String> {
    match url.strip_prefix("sqlite://") {
        #[cfg(feature = "sqlite")]
        Some(path) => oncegate_store_sql::SqliteOptions::new(path).warnings(),
        _ => Vec::new(),
    }
}

/// Whether calls to a store leave this machine without TLS that proves who the server is: what is
/// on the way can be read,
/// and responses can be forged. A URL that is no store's exposes nothing; [`open`] refuses it.
#[must_use]
pub fn is_exposed(url: &str) -> bool {
    match url.split_once(':').map_or(url, |(scheme, _)| scheme) {
        #[cfg(feature = "postgres")]
        "postgres" | "postgresql" => {
            oncegate_store_sql::PostgresOptions::new(url).is_ok_and(|options| options.is_exposed())
        }
        #[cfg(feature = "redis")]
        "redis" | "rediss" => oncegate_store_redis::is_exposed(url),
        _ => false,
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Opening {
    Migrates,
    Existing,
}

async fn open_as(url: &str, opening: Opening) -> Result<AnyStore, OpenError> {
    let (scheme, rest) = url.split_once(':').unwrap_or((url, ""));
    match scheme {
        "memory" if matches!(rest, "" | "//") && url.contains(':') => {
            Ok(AnyStore::Memory(MemoryStore::new()))
        }
        "sqlite" => sqlite(url, opening).await,
        "postgres" | "postgresql" => postgres(url, opening).await,
        "redis" | "rediss" => redis(url).await,
        _ => Err(OpenError::NotAStore { url: without_password(url) }),
    }
}

#[cfg(feature = "sqlite")]
#[expect(clippy::unused_async, reason = "one of several stores, and others await")]
async fn sqlite(url: &str, opening: Opening) -> Result<AnyStore, OpenError> {
    let path = url.strip_prefix("sqlite://").unwrap_or_default();
    if path.is_empty() || path.contains(['?', '#']) {
        return Err(OpenError::NotAStore { url: url.to_owned() });
    }
    let mut options = oncegate_store_sql::SqliteOptions::new(path);
    if opening == Opening::Existing {
        options = options.existing();
    }
    let store = options.open().map_err(OpenError::Store)?;
    Ok(AnyStore::Sqlite(Box::new(store)))
}

#[cfg(not(feature = "sqlite"))]
async fn sqlite(_: &str, _: Opening) -> Result<AnyStore, OpenError> {
    Err(OpenError::NotBuiltIn { feature: "sqlite" })
}

#[cfg(feature = "postgres")]
async fn postgres(url: &str, opening: Opening) -> Result<AnyStore, OpenError> {
    let mut options = oncegate_store_sql::PostgresOptions::new(url).map_err(OpenError::Store)?;
    if opening == Opening::Existing {
        options = options.existing();
    }
    let store = options.open().await.map_err(OpenError::Store)?;
    Ok(AnyStore::Postgres(Box::new(store)))
}

#[cfg(not(feature = "postgres"))]
async fn postgres(_: &str, _: Opening) -> Result<AnyStore, OpenError> {
    Err(OpenError::NotBuiltIn { feature: "postgres" })
}

#[cfg(feature = "redis")]
async fn redis(url: &str) -> Result<AnyStore, OpenError> {
    let store = oncegate_store_redis::RedisOptions::new(url).open().await.map_err(OpenError::Store)?;
    Ok(AnyStore::Redis(Box::new(store)))
}

#[cfg(not(feature = "redis"))]
async fn redis(_: &str) -> Result<AnyStore, OpenError> {
    Err(OpenError::NotBuiltIn { feature: "redis" })
}

/// A URL that is not understood is shown to whoever typed it, but not what may be a secret in it.
fn without_password(url: &str) -> String {
    let (before, after) = url.split_once("://").unwrap_or(("", url));
    match after.rsplit_once('@') {
        Some((_, host)) if before.is_empty() => format!("…@{host}"),
        Some((_, host)) => format!("{before}://…@{host}"),
        None => url.to_owned(),
    }
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
                write!(
                    f,
                    "{url:?} is not the URL of a store; use `memory:`, `sqlite://FILE`, `postgres://…` or `redis://…`"
                )
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
