//! The servers that `cargo xtask test` starts for all tests answer where it says.

use std::process::Command;

use oncegate_test_servers::{programs, shared};

#[test]
fn the_shared_postgres_answers() {
    let psql = programs::postgres("psql").unwrap();
    let told = Command::new(psql).args(["-XAt", "-c", "select 1", &shared::postgres_url()]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&told.stdout).trim(), "1", "{told:?}");
}

#[test]
fn the_shared_redis_answers() {
    let cli = programs::find("redis-cli").unwrap();
    let told = Command::new(cli).args(["-u", &shared::redis_url(), "PING"]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&told.stdout).trim(), "PONG", "{told:?}");
}
