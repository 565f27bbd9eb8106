//! A database of either kind, for tests of services that take both.

use crate::Postgres;

/// Where a service keeps its rows.
pub enum Database {
    /// In a file of the test's own.
    Sqlite,
    /// On a server of the test's own.
    Postgres(Box<Postgres>),
}

impl Database {
    /// A file; the test says where.
    #[must_use]
    pub const fn sqlite() -> Self {
        Self::Sqlite
    }

    /// A server, started for this.
    #[must_use]
    pub fn postgres() -> Self {
        Self::Postgres(Box::new(Postgres::start(&[])))
    }
}
