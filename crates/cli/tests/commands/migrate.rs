//! `oncegate migrate`

use std::fs;

use insta::assert_snapshot;
use oncegate_test_servers::Postgres;

use crate::desk::Desk;

const FRESH: &str = "migrate --store sqlite://oncegate.db";

#[test]
fn a_new_file_and_the_same_again() {
    let desk = Desk::empty();
    let first = desk.run(FRESH);
    assert_snapshot!("done", first);
    assert!(desk.path().join("oncegate.db").exists());
    assert_eq!(desk.run(FRESH), first);
    assert!(desk.ask("stats").starts_with("exit code: 0\n"));
    // By its variable.
    let output = desk.command("migrate").env("ONCEGATE_STORE", "sqlite://another.db").output().unwrap();
    assert_eq!(crate::desk::seen(&output), first);
    assert!(desk.path().join("another.db").exists());
}

/// It is left as it is, byte for byte.
#[test]
fn a_file_of_something_else() {
    let desk = Desk::empty();
    let path = desk.path().join("oncegate.db");
    let sql = rusqlite::Connection::open(&path).unwrap();
    sql.execute_batch("CREATE TABLE customers (name TEXT)").unwrap();
    drop(sql);
    let before = fs::read(&path).unwrap();
    assert_snapshot!("something_else", desk.run(FRESH));
    assert_snapshot!("something_else_asked", desk.ask("stats"));
    assert_eq!(fs::read(&path).unwrap(), before);
    fs::write(&path, "Dear diary,\n".repeat(1_000)).unwrap();
    assert_snapshot!("no_database", desk.run(FRESH));
}

#[test]
fn a_file_of_a_newer_release() {
    let desk = Desk::with(Vec::new());
    let sql = rusqlite::Connection::open(desk.path().join("oncegate.db")).unwrap();
    sql.pragma_update(None, "user_version", 99).unwrap();
    drop(sql);
    assert_snapshot!("newer", desk.run(FRESH));
    assert_snapshot!("newer_asked", desk.ask("keys list"));
}

/// Tests may run as root, whom no permission stops: so places where nobody can make a file.
#[test]
fn a_place_where_no_file_can_be() {
    let desk = Desk::empty();
    fs::create_dir(desk.path().join("folder")).unwrap();
    assert_snapshot!("folder", desk.run("migrate --store sqlite://folder"));
    assert_snapshot!("no_folder", desk.run("migrate --store sqlite://nowhere/oncegate.db"));
    assert_snapshot!("proc", desk.run("migrate --store sqlite:///proc/oncegate.db"));
}

#[test]
fn bad_input() {
    let desk = Desk::empty();
    assert_snapshot!("nothing", desk.run("migrate"));
    assert_snapshot!("memory", desk.run("migrate --store memory:"));
    assert_snapshot!("not_a_store", desk.run("migrate --store oracle://u:hunter2@h/"));
    assert_snapshot!("no_path", desk.run("migrate --store sqlite://"));
    assert_snapshot!("down", desk.run("migrate --store postgres://u:hunter2@127.0.0.1:1/db"));
    assert_snapshot!("redis_down", desk.run("migrate --store redis://:hunter2@127.0.0.1:1/"));
    assert_eq!(fs::read_dir(desk.path()).unwrap().count(), 0, "something was created");
}

/// A role that may connect, and nothing else.
#[test]
fn no_permission() {
    let server = Postgres::start(&[]);
    let _done = server.sql("CREATE ROLE weak LOGIN");
    let desk = Desk::empty();
    let weak = format!("--store postgres://weak:hunter2@127.0.0.1:{}/postgres", server.port());
    assert_snapshot!("not_permitted", desk.run(&format!("migrate {weak}")));
    assert_snapshot!("not_migrated", desk.run(&format!("stats {weak}")));
    let strong = format!("--store {}", server.url());
    assert_snapshot!("postgres_done", desk.run(&format!("migrate {strong}")));
    assert!(desk.run(&format!("stats {strong}")).starts_with("exit code: 0\n"));
    assert_snapshot!("not_permitted_to_look", desk.run(&format!("stats {weak}")));
}
