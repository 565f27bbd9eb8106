//! The SQLite store passes the suite.

#![expect(clippy::expect_used, reason = "tests")]

use oncegate_conformance::Harness;
use oncegate_store_sql::SqliteStore;
use tempfile::TempDir;

struct Sqlite(TempDir);

impl Harness for Sqlite {
    type Store = SqliteStore;

    fn start() -> Self {
        Self(tempfile::tempdir().expect("a temporary folder"))
    }

    async fn open(&self) -> SqliteStore {
        SqliteStore::open(self.0.path().join("records.db")).expect("the store opens")
    }
}

oncegate_conformance::suite!(sqlite, Sqlite);
oncegate_conformance::outbox_suite!(outbox, Sqlite);
