//! Whatever can be wrong with a command line or an export: what is said, and that it is exit code 2.

use std::fs;

use insta::assert_snapshot;

use crate::desk::{Desk, seen};
use crate::ledger::{self, DAY, paid};

fn with(file: &str, export: impl AsRef<[u8]>) -> Desk {
    let desk = ledger::desk(vec![paid("a", 1)], "other", "");
    fs::write(desk.path().join(file), export).unwrap();
    desk
}

#[test]
fn no_such_export() {
    let desk = with("export.dat", "");
    let run = |line: &str| desk.ask(&format!("compare {line}"));
    assert_snapshot!("no_file", run(&format!("--provider-export export.csv {DAY}")));
    assert_snapshot!("no_format", run(&format!("--provider-export export.dat {DAY}")));
    assert_snapshot!("stdin_no_format", run(&format!("--provider-export - {DAY}")));
    assert_snapshot!("folder", run(&format!("--provider-export . --format csv {DAY}")));
    assert_snapshot!("bad_format", run(&format!("--provider-export export.dat --format xml {DAY}")));
}

#[test]
fn flags_that_do_not_go_together() {
    let desk = with("export.csv", "idempotency_key\n");
    let run = |line: &str| desk.ask(&format!("compare --provider-export export.csv {line}"));
    assert_snapshot!("no_since", run(""));
    assert_snapshot!("bad_since", run("--since yesterday"));
    assert_snapshot!("bad_until", run("--since 1h --until 1763294400"));
    assert_snapshot!("backwards", run("--since 2026-03-03T00:00:00Z --until 2026-03-02T00:00:00Z"));
    assert_snapshot!("bad_slack", run(&format!("{DAY} --slack little")));
    assert_snapshot!("amount_alone", run(&format!("{DAY} --amount-column amount")));
    assert_snapshot!("pointer_alone", run(&format!("{DAY} --amount-pointer /amount")));
    assert_snapshot!("bad_pointer", run(&format!("{DAY} --amount-column a --amount-pointer amount")));
    assert_snapshot!("currency_alone", run(&format!("{DAY} --currency-column c --currency-pointer /c")));
    assert_snapshot!("status_alone", run(&format!("{DAY} --status-column status")));
    assert_snapshot!("charged_alone", run(&format!("{DAY} --status-charged succeeded")));
    assert_snapshot!("id_and_key", run(&format!("{DAY} --id-column a --key-column b")));
    assert_snapshot!("id_and_scope", run(&format!("{DAY} --id-column a --scope-column b")));
    assert_snapshot!("derived_and_scope", run(&format!("{DAY} --derived-keys --scope-column b")));
    assert_snapshot!("bad_shift", run(&format!("{DAY} --amount-shift 40")));
    assert_snapshot!("bad_report", run(&format!("{DAY} --report pdf")));
}

/// It is not read any further, and nothing is reported: every charge would look foreign.
#[test]
fn columns_that_are_not_there() {
    let compare = |desk: &Desk, file: &str, flags: &str| {
        desk.ask(&format!("compare --provider-export {file} {DAY} {flags}"))
    };
    let desk = with("export.csv", "id,key,key\n1,a,b\n");
    assert_snapshot!("no_column", compare(&desk, "export.csv", ""));
    assert_snapshot!("two_columns", compare(&desk, "export.csv", "--key-column key"));
    assert_snapshot!("empty_csv", compare(&with("export.csv", "\n\r\n"), "export.csv", ""));
    assert_snapshot!("open_head", compare(&with("export.csv", "\"idempotency_key\na\n"), "export.csv", ""));
    let lines = "{\"key\": \"a\"}\n{\"key\": \"b\"}\n";
    assert_snapshot!("no_member", compare(&with("export.jsonl", lines), "export.jsonl", ""));
    assert_snapshot!("no_pointer", compare(&with("e.ndjson", lines), "e.ndjson", "--key-column /meta/key"));
}

/// Each is named with its line; the others are compared, and the exit code is that of bad input, also if all of these agree.
#[test]
fn rows_of_csv_that_cannot_be_read() {
    let mut export = b"\xef\xbb\xbfidempotency_key,amount,time,\"op\nid\"\r\n".to_vec();
    export.extend_from_slice(b"a,1,2026-03-02T09:00:00Z,x\r\n");
    export.extend_from_slice(b"few,1\r\n\r\nmany,1,2026-03-02T09:00:00Z,x,y\r\n");
    export.extend_from_slice(b"latin\xe9,1,2026-03-02T09:00:00Z,x\n");
    export.extend_from_slice(b"comma,\"1,250\",2026-03-02T09:00:00Z,x\n");
    export.extend_from_slice(b"no-amount,,2026-03-02T09:00:00Z,x\n");
    export.extend_from_slice(b"no-time,1,,x\n");
    export.extend_from_slice(b"bad-time,1,noon,x\n");
    export.extend_from_slice(b"milliseconds,1,1772442000000,x\n");
    export
        .extend_from_slice(b"two,1,2026-03-02T09:00:00Z,\"in two\nlines\"\nafter,x,2026-03-02T09:00:00Z,x\n");
    export.extend_from_slice(b"\"open,1,2026-03-02T09:00:00Z,x\nlost,1,2026-03-02T09:00:00Z,x\n");
    let desk = with("export.csv", &export);
    let flags = "--amount-column amount --amount-pointer /amount --time-column time";
    let run = |report: &str| {
        desk.ask(&format!("compare --provider-export export.csv {DAY} {flags} --report {report}"))
    };
    assert_snapshot!("bad_rows", run("table"));
    assert_snapshot!("bad_rows_json", run("json"));
}

#[test]
fn rows_of_json_that_cannot_be_read() {
    let mut export = b"\xef\xbb\xbf{\"idempotency_key\": \"a\"}\n\n".to_vec();
    export.extend_from_slice(b"{\"idempotency_key\": \"b\"\n");
    export.extend_from_slice(b"{\"idempotency_key\": \"b\"} 2\n");
    export.extend_from_slice(b"[1]\nnull\n");
    export.extend_from_slice(b"{\"idempotency_key\": \"b\xff\"}\n");
    export.extend_from_slice(b"{\"idempotency_key\": {\"a\": 1}}\n");
    export.extend_from_slice(b"{\"idempotency_key\": \"b\", \"idempotency_key\": \"c\"}\n");
    export.extend_from_slice(
        format!("{{\"x\": {}1{}, \"idempotency_key\": \"b\"}}\n", "[".repeat(200), "]".repeat(200))
            .as_bytes(),
    );
    // Without a key: not bad, but foreign.
    export.extend_from_slice(b"{\"idempotency_key\": null}\n{}");
    let desk = with("export.jsonl", &export);
    assert_snapshot!("bad_lines", desk.ask(&format!("compare --provider-export export.jsonl {DAY}")));
}

/// A row without an end is not read into memory; what comes after it is read, where one can tell where that is.
#[test]
fn rows_that_are_too_long() {
    let long = "x".repeat(2 << 20);
    let desk = with("export.csv", format!("idempotency_key\n{long}\na\n"));
    assert_snapshot!("long_row", desk.ask(&format!("compare --provider-export export.csv {DAY}")));
    let desk = with("export.csv", format!("idempotency_key\na\n\"open\n{}", "b\n".repeat(1 << 20)));
    assert_snapshot!("long_open", desk.ask(&format!("compare --provider-export export.csv {DAY}")));
    let desk = with("export.csv", format!("{long}\n"));
    assert_snapshot!("long_head", desk.ask(&format!("compare --provider-export export.csv {DAY}")));
    let line = |key: &str| format!("{{\"idempotency_key\": \"{key}\"}}\n");
    let desk = with("export.jsonl", [line("a"), line(&long), line("b")].concat());
    assert_snapshot!("long_line", desk.ask(&format!("compare --provider-export export.jsonl {DAY}")));
    let desk = with("export.jsonl", [&line("a"), &long[..]].concat());
    assert_snapshot!("long_last", desk.ask(&format!("compare --provider-export export.jsonl {DAY}")));
}

/// Ten are named, all are counted.
#[test]
fn a_whole_file_of_nonsense() {
    let desk = with("export.jsonl", "nonsense\n".repeat(1000));
    assert_snapshot!("nonsense", desk.ask(&format!("compare --provider-export export.jsonl {DAY}")));
}

#[test]
fn ids_that_are_none() {
    let desk = with("export.csv", "id\nop_1\n");
    assert_snapshot!(
        "bad_id",
        desk.ask(&format!("compare --provider-export export.csv {DAY} --id-column id"))
    );
    let desk = with("export.csv", "idempotency_key,tenant\na,\n");
    assert_snapshot!(
        "no_scope",
        desk.ask(&format!("compare --provider-export export.csv {DAY} --scope-column tenant"))
    );
}

/// No room on the disk is no difference.
#[test]
fn no_place_for_what_is_sorted() {
    let desk = with("export.csv", "idempotency_key\na\n");
    let mut command =
        desk.command(&format!("compare --provider-export export.csv {DAY} --store sqlite://oncegate.db"));
    let output = command.env("TMPDIR", "/no/such/folder").output().unwrap();
    assert_snapshot!("no_room", seen(&output));
}
