//! `oncegate keys list`

use insta::assert_snapshot;

use crate::desk::Desk;
use crate::records;

#[test]
fn an_empty_store() {
    let desk = Desk::with(Vec::new());
    assert_snapshot!("empty", desk.ask("keys list"));
    assert_snapshot!("empty_json", desk.ask("keys list --json"));
}

#[test]
fn every_state() {
    let desk = Desk::with(records::all());
    assert_snapshot!("all", desk.ask("keys list"));
}

/// What is not written down yet, and true all the same.
#[test]
fn states_that_only_time_has_changed() {
    let desk = Desk::with(vec![records::lapsed("order-1"), records::forgotten("order-2")]);
    assert_snapshot!("by_time", desk.ask("keys list"));
}

#[test]
fn filters() {
    let desk = Desk::with(records::all());
    let keys = |line: &str| {
        let seen = desk.ask(&format!("keys list {line}"));
        assert!(seen.starts_with("exit code: 0\n"), "{seen}");
        let rows = seen.lines().filter(|row| row.starts_with("op_"));
        rows.map(|row| row.split_whitespace().nth(2).unwrap().trim_matches(',').to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(keys("--state pending"), ["order-0007-payment"]);
    assert_eq!(keys("--state in_progress"), ["order-0006-payment"]);
    assert_eq!(keys("--state failed_retryable"), ["order-0003-payment"]);
    assert_eq!(keys("--state expired"), ["order-0000-payment"]);
    assert_eq!(keys("--state unknown"), ["parked", "order-0004-payment"]);
    assert_eq!(keys("--state completed").len(), 5);
    assert_eq!(keys("--parked"), ["parked"]);
    assert_eq!(keys("--scope other"), ["order-0001-payment"]);
    assert_eq!(keys("--key order-0001-payment").len(), 2);
    assert_eq!(keys("--key order-0001-payment --scope acme").len(), 1);
    assert_eq!(keys("--operation 'POST /payments'").len(), 11);
    assert_eq!(keys("--operation 'POST /refunds'"), [""; 0]);
    assert_eq!(keys("--key order-9999-payment"), [""; 0]);
    assert_snapshot!("one_json", desk.ask("keys list --key order-0004-payment --json"));
    assert_snapshot!("no_fit", desk.ask("keys list --state pending --scope other"));
}

/// Page by page, each record once; the end of a page says where to go on.
#[test]
fn pages() {
    let desk = Desk::with(records::all());
    let first = desk.ask("keys list --limit 4");
    assert_snapshot!("first_page", first);
    let rows = |seen: &str| {
        seen.lines().filter(|line| line.starts_with("op_")).map(str::to_owned).collect::<Vec<_>>()
    };
    let mut all = rows(&first);
    let mut page = first;
    let mut pages = 1;
    while let Some((_, after)) = page.split_once("there are more: --after ") {
        let after = after.trim().to_owned();
        page = desk.ask(&format!("keys list --limit 4 --after {after}"));
        all.extend(rows(&page));
        pages += 1;
    }
    assert_eq!(pages, 3);
    let ids = |rows: &[String]| rows.iter().map(|row| row[..29].to_owned()).collect::<Vec<_>>();
    assert_eq!(ids(&all), ids(&rows(&desk.ask("keys list"))));
    assert_eq!(all.len(), 11);
}

#[test]
fn bad_input() {
    let desk = Desk::with(Vec::new());
    assert_snapshot!("limit_zero", desk.ask("keys list --limit 0"));
    assert_snapshot!("limit_large", desk.ask("keys list --limit 501"));
    assert_snapshot!("limit_word", desk.ask("keys list --limit many"));
    assert_snapshot!("no_state", desk.ask("keys list --state lost"));
    assert_snapshot!("no_cursor", desk.ask("keys list --after yesterday"));
    assert_snapshot!("no_flag", desk.ask("keys list --everything"));
}

/// `oncegate keys list | head -1`
#[test]
fn a_reader_that_leaves_is_no_error() {
    let desk = Desk::with(records::all());
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut command = desk.command("keys list --store sqlite://oncegate.db");
    let output = command.stdout(writer).stderr(std::process::Stdio::piped()).spawn().unwrap();
    assert_snapshot!("reader_gone", crate::desk::seen(&output.wait_with_output().unwrap()));
}
