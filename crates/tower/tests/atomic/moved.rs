//! The SQLite file is moved away or replaced under a running service.

use std::path::{Path, PathBuf};

use oncegate_core::policy::Profile;
use oncegate_store_sql::SqliteStore;
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{Connection as _, SqliteConnection};

use crate::base::{Base, OnSqlite, OnSqliteDedicated};
use crate::client::Call;
use crate::node::gated;

fn move_away(path: &Path) {
    std::fs::rename(path, path.with_extension("moved")).unwrap();
}

/// Another store is put in its place, as by a restored backup.
fn replace(path: &Path) {
    let other = path.with_extension("other");
    drop(SqliteStore::open(&other).unwrap());
    std::fs::rename(other, path).unwrap();
}

/// SQLite goes on writing into a file that was moved or replaced. Usual requests noticed that and were
/// refused, but atomic handlers committed into it by their own connections: another process, on the file
/// that is there now, would execute the same keys again (attack 27).
async fn fails_closed<B: Base>(base: B, path: PathBuf, change: fn(&Path)) {
    let (gate, node) = gated(&base, Profile::Ietf).await;
    let call = |key| Call::post("/charges").key(key);
    let addr = node.addr;
    gate.open();
    call("before").send(addr).await.expect_first(200, "run 1");
    gate.entered().await;
    let client = tokio::spawn(async move { call("meanwhile").send(addr).await });
    gate.entered().await;
    // Opened before, so that it sees the file that was there.
    let options = SqliteConnectOptions::new().filename(&path);
    let mut witness = SqliteConnection::connect_with(&options).await.unwrap();
    assert_eq!(charges(&mut witness).await, ["before"]);
    change(&path);
    gate.open();
    let problem = client.await.unwrap().expect_problem(503, "store_unavailable");
    assert!(problem["detail"].as_str().unwrap().contains("Nothing was executed"), "{problem}");
    gate.open();
    call("after").send(addr).await.expect_problem(503, "store_unavailable");
    assert_eq!(charges(&mut witness).await, ["before"]);
}

async fn charges(on: &mut SqliteConnection) -> Vec<String> {
    sqlx::query_scalar("SELECT key FROM charge ORDER BY key").fetch_all(on).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn attack_27_an_atomic_handler_does_not_commit_into_a_file_that_was_moved() {
    let base = OnSqlite::start().await;
    fails_closed(base.clone(), base.path(), move_away).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn attack_27_an_atomic_handler_does_not_commit_into_a_file_that_was_replaced() {
    let base = OnSqlite::start().await;
    fails_closed(base.clone(), base.path(), replace).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn attack_27_a_dedicated_pool_does_not_commit_into_a_file_that_was_moved() {
    let base = OnSqliteDedicated::start().await;
    fails_closed(base.clone(), base.path(), move_away).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn attack_27_a_dedicated_pool_does_not_commit_into_a_file_that_was_replaced() {
    let base = OnSqliteDedicated::start().await;
    fails_closed(base.clone(), base.path(), replace).await;
}
