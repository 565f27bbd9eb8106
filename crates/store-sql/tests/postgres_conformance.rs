//! The PostgreSQL store passes the suite.

#![expect(clippy::expect_used, reason = "tests")]

use std::time::{SystemTime, UNIX_EPOCH};

use oncegate_conformance::Harness;
use oncegate_store_sql::PostgresStore;
use oncegate_store_sql::postgres::PostgresOptions;
use oncegate_test_servers::shared;

/// A schema of its own in the shared server.
struct Postgres {
    schema: String,
}

impl Harness for Postgres {
    type Store = PostgresStore;

    fn start() -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
        Self { schema: format!("t{}_{}", std::process::id(), now.as_nanos()) }
    }

    async fn open(&self) -> PostgresStore {
        let options = PostgresOptions::new(&shared::postgres_url()).expect("a valid URL");
        options.schema(&self.schema).expect("a valid name").open().await.expect("the store opens")
    }
}

/// Removes the schema: the server may be somebody's own.
impl Drop for Postgres {
    fn drop(&mut self) {
        let drop_schema = format!("DROP SCHEMA IF EXISTS {} CASCADE", self.schema);
        let dropped = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime starts").block_on(async {
                let url = shared::postgres_url();
                let (client, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await?;
                tokio::spawn(connection);
                client.batch_execute(&drop_schema).await
            })
        });
        // A test that failed has said why already.
        if !std::thread::panicking() {
            dropped.join().expect("no panic").expect("the schema goes");
        }
    }
}

oncegate_conformance::suite!(postgres, Postgres);
oncegate_conformance::outbox_suite!(outbox, Postgres);
