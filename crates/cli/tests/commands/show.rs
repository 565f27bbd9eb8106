//! `oncegate keys show`

use insta::assert_snapshot;
use oncegate_core::record::Record;

use crate::desk::Desk;
use crate::records;

/// Each of these is what somebody reads at three in the morning.
#[test]
fn stories() {
    for (name, record) in [
        ("paid", records::paid("acme", "order-1")),
        ("declined", records::declined("order-1")),
        ("released", records::released("order-1")),
        ("doubted", records::doubted("order-1")),
        ("parked", records::parked("order-1")),
        ("running", records::running("order-1")),
        ("lapsed", records::lapsed("order-1")),
        ("waiting", records::waiting("order-1")),
        ("not_kept", records::not_kept("order-1")),
        ("tombstone", records::tombstone("order-1")),
        ("forgotten", records::forgotten("order-1")),
        ("of_a_route", records::of_a_route("order-1")),
    ] {
        let id = record.id;
        let desk = Desk::with(vec![record]);
        let by_id = desk.ask(&format!("keys show {id}"));
        assert_snapshot!(name, by_id);
        assert_eq!(desk.ask("keys show order-1"), by_id);
    }
}

#[test]
fn for_programs() {
    let desk = Desk::with(vec![records::paid("acme", "order-1")]);
    assert_snapshot!("json", desk.ask("keys show order-1 --json"));
    assert_snapshot!("json_body", desk.ask("keys show order-1 --json --body"));
}

/// A body is customers' data: shown if asked for, and never in a way that a terminal obeys.
#[test]
fn bodies() {
    let desk = Desk::with(vec![
        records::paid("acme", "order-1"),
        records::binary("order-2"),
        records::hostile("order-3"),
        records::doubted("order-4"),
    ]);
    assert!(!desk.ask("keys show order-1").contains("succeeded"));
    assert_snapshot!("body", desk.ask("keys show order-1 --body"));
    assert_snapshot!("body_binary", desk.ask("keys show order-2 --body"));
    assert_snapshot!("body_hostile", desk.ask("keys show order-3 --body"));
    assert_eq!(desk.ask("keys show order-4 --body"), desk.ask("keys show order-4"));
}

#[test]
fn one_key_in_two_scopes() {
    let desk = Desk::with(records::all());
    assert_snapshot!("two_scopes", desk.ask("keys show order-0001-payment"));
    let shown = |line: &str| desk.ask(&format!("keys show {line}"));
    let of = |record: &Record| shown(&record.id.to_string());
    assert_eq!(shown("order-0001-payment --scope acme"), of(&records::paid("acme", "order-0001-payment")));
    assert_eq!(shown("order-0001-payment --scope other"), of(&records::paid("other", "order-0001-payment")));
    assert_eq!(
        shown("order-0008-payment --scope acme --operation 'POST /payments'"),
        of(&records::of_a_route("order-0008-payment"))
    );
}

#[test]
fn what_is_not_there() {
    let desk = Desk::with(records::all());
    assert_snapshot!("no_id", desk.ask("keys show op_00000000000000000000000000"));
    assert_snapshot!("no_key", desk.ask("keys show order-9999-payment"));
    assert_snapshot!("no_key_in_scope", desk.ask("keys show order-0002-payment --scope other"));
    assert_snapshot!("almost_an_id", desk.ask("keys show op_17"));
}

#[test]
fn bad_input() {
    let desk = Desk::with(Vec::new());
    assert_snapshot!("nothing", desk.ask("keys show"));
    assert_snapshot!("not_a_key", desk.ask("keys show 'tab\there'"));
    assert_snapshot!("empty_key", desk.ask("keys show ''"));
    assert_snapshot!("operation_without_scope", desk.ask("keys show order-1 --operation 'POST /payments'"));
    assert_snapshot!("empty_scope", desk.ask("keys show order-1 --scope ''"));
}
