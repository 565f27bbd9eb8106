//! Where an export comes from, and where a report goes to.

use std::fs;
use std::io::Write as _;
use std::process::Stdio;

use insta::assert_snapshot;

use crate::desk::seen;
use crate::ledger::{self, DAY, compare, paid};

const EXPORT: &str = "idempotency_key\na\nforeign\n";

#[test]
fn an_export_on_stdin() {
    let desk = ledger::desk(vec![paid("a", 1)], "export.csv", EXPORT);
    let line = format!("compare --provider-export - --format csv {DAY} --store sqlite://oncegate.db");
    let mut child = desk
        .command(&line)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(EXPORT.as_bytes()).unwrap();
    assert_eq!(seen(&child.wait_with_output().unwrap()), compare(&desk, ""));
}

/// It is there when it is whole, and in place of the last one.
#[test]
fn a_report_in_a_file() {
    let desk = ledger::desk(vec![paid("a", 1)], "export.csv", EXPORT);
    let report = desk.path().join("report.txt");
    fs::write(&report, "of yesterday").unwrap();
    let said = compare(&desk, "--output report.txt");
    let shown = compare(&desk, "");
    let written = fs::read_to_string(&report).unwrap();
    assert_eq!(shown, said.replace("----- stdout\n", &format!("----- stdout\n{written}")));
    // A comparison that fails leaves the last one as it is.
    fs::write(desk.path().join("export.csv"), "key\n").unwrap();
    assert!(compare(&desk, "--output report.txt").starts_with("exit code: 2"));
    assert_eq!(fs::read_to_string(&report).unwrap(), written);
    let left: Vec<_> = fs::read_dir(desk.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(left.iter().all(|name| !name.to_string_lossy().starts_with(".tmp")), "{left:?}");
}

#[test]
fn a_report_that_cannot_be_written() {
    let desk = ledger::desk(vec![paid("a", 1)], "export.csv", EXPORT);
    assert_snapshot!("no_folder", compare(&desk, "--output no/such/folder/report.txt"));
    fs::create_dir(desk.path().join("folder")).unwrap();
    let seen = compare(&desk, "--output folder");
    assert!(seen.starts_with("exit code: 1\n"), "{seen}");
}

/// `oncegate compare … | head -1`: the exit code is still that of what was found.
#[test]
fn a_reader_that_leaves_is_no_error() {
    let desk = ledger::desk(vec![paid("a", 1)], "export.csv", EXPORT);
    for form in ["table", "json", "csv"] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let line = format!(
            "compare --provider-export export.csv {DAY} --report {form} --store sqlite://oncegate.db"
        );
        let child = desk.command(&line).stdout(writer).stderr(Stdio::piped()).spawn().unwrap();
        assert_snapshot!("reader_gone", seen(&child.wait_with_output().unwrap()));
    }
}
