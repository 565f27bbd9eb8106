//! `oncegate store check`

use crate::desk::Desk;
use crate::records;
use insta::assert_snapshot;

const CHECK: &str = "store check --store sqlite://oncegate.db";

#[test]
fn a_sound_store() {
    let desk = Desk::with(records::all());
    assert_snapshot!("sound", desk.run(CHECK));
    assert_snapshot!("sound_json", desk.run(&format!("{CHECK} --json")));
}

#[test]
fn a_store_with_contradictions() {
    let desk = Desk::with(records::all());
    let sql = rusqlite::Connection::open(desk.path().join("oncegate.db")).unwrap();
    sql.execute_batch(
        "UPDATE record SET body = x'09' WHERE seq = 1; UPDATE record SET due_at = 7 WHERE seq = 2",
    )
    .unwrap();
    drop(sql);
    assert_snapshot!("problems", desk.run(CHECK));
    assert_snapshot!("problems_json", desk.run(&format!("{CHECK} --json")));
}

#[test]
fn bad_input() {
    let desk = Desk::empty();
    assert_snapshot!("nothing", desk.run("store check"));
    assert_snapshot!("no_file", desk.run(CHECK));
    assert_snapshot!("down", desk.run("store check --store postgres://u:hunter2@127.0.0.1:1/db"));
}
