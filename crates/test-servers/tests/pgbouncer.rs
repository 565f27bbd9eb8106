//! PgBouncer answers, and pools by transaction.
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use std::process::Command;

use oncegate_test_servers::{PgBouncer, Postgres, programs};

fn psql(url: &str, text: &str) -> String {
    let psql = programs::postgres("psql").unwrap();
    let told = Command::new(psql).args(["-XAt", "-c", text, url]).output().unwrap();
    assert!(told.status.success(), "{told:?}");
    String::from_utf8_lossy(&told.stdout).trim().to_owned()
}

#[test]
fn a_query_goes_through_to_the_server() {
    let server = Postgres::start(&[]);
    let _nothing = server.sql("create table here (it text); insert into here values ('is')");
    let bouncer = PgBouncer::start(&server.url(), &[("default_pool_size", "1")]);
    assert_eq!(psql(&bouncer.url(), "select it from here"), "is");
    let console = bouncer
        .url()
        .replace(&format!("{}/postgres", bouncer.port()), &format!("{}/pgbouncer", bouncer.port()));
    let settings = psql(&console, "show config");
    assert!(settings.contains("pool_mode|transaction"), "{settings}");
    assert!(settings.contains("default_pool_size|1|"), "{settings}");
}
