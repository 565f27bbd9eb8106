//! Atomic handlers over real PostgreSQL and real SQLite: the business row, the key and the answer are one transaction.
//!
//! Nothing here waits for time to pass. Handlers stop at a gate, connections are cut at a byte, and the test lets them go on.

#![expect(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

/// One test, on each database by a pool of each kind.
macro_rules! on_both {
    ($($(#[$attribute:meta])* async fn $name:ident<$base:ident: Base>() $body:block)*) => {
        $($(#[$attribute])* async fn $name<$base: crate::base::Base>() $body)*

        mod on_postgres {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                super::$name::<crate::base::OnPostgres>().await;
            })*
        }

        mod on_postgres_dedicated {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                super::$name::<crate::base::OnDedicated>().await;
            })*
        }

        mod on_sqlite {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                super::$name::<crate::base::OnSqlite>().await;
            })*
        }

        mod on_sqlite_dedicated {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                super::$name::<crate::base::OnSqliteDedicated>().await;
            })*
        }
    };
}

/// One test, by a pool of each kind, on PostgreSQL.
macro_rules! on_both_pools {
    ($($(#[$attribute:meta])* async fn $name:ident<$base:ident: Remote>() $body:block)*) => {
        $($(#[$attribute])* async fn $name<$base: crate::base::Remote>() $body)*

        mod by_a_shared_pool {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                super::$name::<crate::base::OnPostgres>().await;
            })*
        }

        mod by_a_dedicated_pool {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                super::$name::<crate::base::OnDedicated>().await;
            })*
        }
    };
}

mod along;
mod along_sqlite;
#[expect(dead_code, reason = "another test needs more of it")]
mod base;
mod by_name;
#[path = "../layer/client.rs"]
#[expect(dead_code, reason = "another test needs more of it")]
mod client;
mod close;
mod counted;
mod cut;
mod dedicated;
mod earlier;
mod endings;
mod enqueued;
mod last;
mod library;
mod moved;
mod node;
mod ordinary;
mod phases;
#[path = "../../../store-sql/tests/postgres/place.rs"]
#[expect(dead_code, reason = "another test needs more of it")]
mod place;
mod pooler;
mod promises;
mod quarantine;
mod reap;
#[path = "../layer/reply.rs"]
mod reply;
mod row;
#[path = "../layer/stage.rs"]
#[expect(dead_code, reason = "another test needs more of it")]
mod stage;
mod standby;
mod together;
mod tokio_postgres_client;
mod turns;
mod twins;
