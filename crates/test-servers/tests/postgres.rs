//! A PostgreSQL of one's own: what survives which death.

use oncegate_test_servers::{Postgres, Replication};

const TABLE: &str = "create table kept (name text primary key); insert into kept values ('before')";

fn kept(server: &Postgres) -> String {
    server.sql("select string_agg(name, ' ' order by name) from kept")
}

#[test]
fn data_survive_an_immediate_stop() {
    let mut server = Postgres::start(&[]);
    let url = server.url();
    let _nothing = server.sql(TABLE);
    server.stop_immediate();
    server.start_again();
    assert_eq!((kept(&server).as_str(), server.url()), ("before", url));
}

#[test]
fn data_survive_kill_9_more_than_once() {
    let mut server = Postgres::start(&[]);
    let _nothing = server.sql(TABLE);
    for _ in 0..2 {
        server.kill_9();
        server.start_again();
        assert_eq!(kept(&server), "before");
    }
    // Left dead: its directory goes all the same.
    server.kill_9();
}

#[test]
fn settings_are_taken_and_can_be_altered() {
    let server = Postgres::start(&[("max_connections", "20"), ("synchronous_commit", "off")]);
    assert_eq!(server.sql("show max_connections"), "20");
    assert_eq!(server.sql("show fsync"), "on");
    let _nothing = server.sql("alter system set synchronous_commit = 'local'");
    let _true = server.sql("select pg_reload_conf()");
    oncegate_test_servers::wait_until("the setting is read", || {
        server.sql("show synchronous_commit") == "local"
    });
}

#[test]
#[should_panic(expected = "no_such_setting")]
fn a_server_that_does_not_start_says_why() {
    let _server = Postgres::start(&[("no_such_setting", "1")]);
}

#[test]
fn a_synchronous_standby_has_what_was_committed() {
    let mut primary = Postgres::start(&[]);
    let mut standby = primary.standby(Replication::Synchronous);
    let _nothing = primary.sql(TABLE);
    primary.kill_9();
    standby.promote();
    assert_eq!(kept(&standby), "before");
    // It waits for nobody: the names of its primary's standbys are not its own.
    let _nothing = standby.sql("insert into kept values ('promoted')");
    standby.kill_9();
    standby.start_again();
    assert_eq!(kept(&standby), "before promoted");
}

#[test]
fn standbys_of_both_kinds_side_by_side() {
    let primary = Postgres::start(&[]);
    let _first = primary.standby(Replication::Synchronous);
    let _second = primary.standby(Replication::Synchronous);
    let lagging = primary.standby(Replication::Asynchronous);
    let states = "select string_agg(sync_state, ' ' order by sync_state) from pg_stat_replication";
    assert_eq!(primary.sql(states), "async sync sync");
    let _nothing = primary.sql(TABLE);
    oncegate_test_servers::wait_until("the asynchronous standby has caught up", || {
        lagging.sql("select to_regclass('kept') is not null") == "t"
    });
}

#[test]
fn tls_is_vouched_for_by_its_authority() {
    let (mut server, authority) = Postgres::start_with_tls(&[]);
    server.kill_9();
    server.start_again();
    let psql = oncegate_test_servers::programs::postgres("psql").unwrap();
    for host in ["127.0.0.1", "localhost"] {
        let url = server.url().replace("127.0.0.1", host);
        let url = format!("{url}?sslmode=verify-full&sslrootcert={}", authority.display());
        let query = "select ssl from pg_stat_ssl where pid = pg_backend_pid()";
        let told = std::process::Command::new(&psql).args(["-XAt", "-c", query, &url]).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&told.stdout).trim(), "t", "{told:?}");
    }
}
