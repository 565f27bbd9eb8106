//! `oncegate stats`

use insta::assert_snapshot;

use crate::desk::Desk;
use crate::records;

#[test]
fn counts() {
    assert_snapshot!("empty", Desk::with(Vec::new()).ask("stats"));
    let desk = Desk::with(records::all());
    assert_snapshot!("all", desk.ask("stats"));
    assert_snapshot!("json", desk.ask("stats --json"));
}
