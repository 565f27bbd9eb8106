//! `oncegate fingerprint`, as a user runs it: stdin in; stdout, stderr and exit code out.

#![expect(clippy::unwrap_used, reason = "helpers of tests: what cannot be run should stop the test")]

use std::io::{self, Write};
use std::process::{Command, Output, Stdio};

/// Runs the binary with a body on stdin.
fn run(arguments: &[&str], body: &[u8]) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_oncegate"))
        .arg("fingerprint")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A command that refuses its flags does not read.
    let written = child.stdin.take().unwrap().write_all(body);
    assert!(written.map_or_else(|error| error.kind() == io::ErrorKind::BrokenPipe, |()| true));
    child.wait_with_output().unwrap()
}

fn check(arguments: &[&str], body: &[u8], stdout: &[u8]) {
    let output = run(arguments, body);
    assert_eq!(output.stderr.escape_ascii().to_string(), "", "{arguments:?}");
    assert_eq!(output.stdout.escape_ascii().to_string(), stdout.escape_ascii().to_string(), "{arguments:?}");
    assert_eq!(output.status.code(), Some(0), "{arguments:?}");
}

fn check_refused(arguments: &[&str], body: &[u8], stderr: &str) {
    let output = run(arguments, body);
    assert_eq!(String::from_utf8_lossy(&output.stderr), stderr, "{arguments:?}");
    assert_eq!(output.stdout, b"", "{arguments:?}");
    assert_eq!(output.status.code(), Some(2), "{arguments:?}");
}

#[test]
fn prints_the_canonical_form_and_the_fingerprint() {
    let body = br#" {"b": 1e2, "a": [true]} "#;
    check(
        &[],
        body,
        b"canonical    {\"a\":[true],\"b\":100}\n\
        fingerprint  v1:79407224afabea526f36883e0d42105271100efa1da2c1c9848131dbbb56d510\n",
    );
    check(
        &["--method", "PUT", "--path", "/x", "--query", "q=1", "--mode", "json"],
        body,
        b"canonical    {\"a\":[true],\"b\":100}\n\
        fingerprint  v1:668c9456a1547dfdb43b8c619cb816dcfcf85a4be7863d351fd63b92a25c72ff\n",
    );
    check(
        &["--exclude", "/a", "--exclude", "/c"],
        body,
        b"canonical    {\"b\":100}\n\
        fingerprint  v1:7305b5ae79c06cd1957edef33262b803ee589b88bbd1c3eac238b111ca459eed\n",
    );
    check(
        &["--include", "/b", "/a"],
        body,
        b"canonical    {\"/a\":[true],\"/b\":100}\n\
        fingerprint  v1:3aae7c117364909b124a87beed008392c8868c69d21666fed62882f3d7058e70\n",
    );
    check(
        &["--mode", "raw"],
        b"{ }\n",
        b"canonical    { }\\n\n\
        fingerprint  v1:755aaed466976c90dc3f3054b7a92a6edadf7e5fba274174715ce56c5f1a4b1a\n",
    );
    check(
        &["--content-type", "application/x-www-form-urlencoded"],
        b"a=x%20y&b=%31",
        b"canonical    a=x+y&b=1\n\
        fingerprint  v1:d3febffea5d3ff3bfdf52d2e9d7c7029a052f33212ca2d3cc0d7127effd99369\n",
    );
    check(
        &[],
        b"",
        b"canonical    \n\
        fingerprint  v1:1b7327af244a7bfe282d56376849537c391dd950785bacd21da7d240221d49ca\n",
    );
}

#[test]
fn prints_json() {
    check(
        &["--json"],
        b"{\"b\":1e2,\"a\":[true]}",
        b"{\"canonical\":\"{\\\"a\\\":[true],\\\"b\\\":100}\",\"family\":\"json\",\
        \"fingerprint\":\"v1:79407224afabea526f36883e0d42105271100efa1da2c1c9848131dbbb56d510\"}\n",
    );
    check(
        &["--json", "--content-type", "application/octet-stream"],
        b"\x00\xff\"",
        b"{\"canonical\":null,\"family\":\"raw application/octet-stream\",\
        \"fingerprint\":\"v1:078a2c09b35c599b0094f225dc67bd1d9fb2671145d3b9b53e71ef0fda9ee4af\"}\n",
    );
}

#[test]
fn prints_the_canonical_form_byte_for_byte() {
    check(&["--canonical"], b"[1.0, \"\\u000a\"]", b"[1,\"\\n\"]");
    check(&["--canonical", "--mode", "raw"], b"\x00\xff\n", b"\x00\xff\n");
    check(&["--canonical"], b"", b"");
}

#[test]
fn refuses_a_bad_body_and_says_what_to_do() {
    check_refused(
        &[],
        b"{\"a\": 1,\n \"b\": nope}",
        "error: the body is declared as JSON but is not JSON at line 2, column 7: null expected\n\
         help: correct the body, or say what it is with --content-type\n",
    );
    check_refused(
        &["--json"],
        br#"{"a": 1, "\u0061": 2}"#,
        "error: an object has two members named \"a\", the second at line 1, column 10\n\
         help: remove one of the two: readers disagree on which of them counts\n",
    );
    check_refused(
        &["--canonical"],
        "[".repeat(70_000).as_bytes(),
        "error: the body is nested deeper than 65536 levels at line 1, column 65537\n\
         help: send a flatter body, or take its bytes with --mode raw\n",
    );
    check_refused(
        &[],
        b"1e99999999999999999999",
        "error: the number at line 1, column 1 has an exponent beyond 64 bits\n\
         help: send the number as a string, or take the bytes with --mode raw\n",
    );
}

#[test]
fn refuses_bad_flags() {
    check_refused(
        &["--mode", "raw", "--include", "/a"],
        b"",
        "error: --mode raw takes the body whole, so it has no fields\nhelp: leave out --mode raw, or the pointers\n",
    );
    let cases: [(&[&str], &str); 4] = [
        (
            &["--include", "a"],
            "error: invalid value 'a' for '--include <POINTER>...': a JSON Pointer begins with \"/\", as in \"/amount\"\n",
        ),
        (
            &["--exclude", "/~x"],
            "error: invalid value '/~x' for '--exclude <POINTER>...': in a JSON Pointer \"~\" is written \"~0\" and \"/\" inside a name \"~1\"\n",
        ),
        (
            &["--include", "/a", "--exclude", "/b"],
            "error: the argument '--include <POINTER>...' cannot be used with '--exclude <POINTER>...'\n",
        ),
        (&["--canonical", "--json"], "error: the argument '--canonical' cannot be used with '--json'\n"),
    ];
    for (arguments, first_line) in cases {
        let output = run(arguments, b"");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(stderr.starts_with(first_line), "{stderr}");
        assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(2), &b""[..]));
    }
}

/// The reader is gone before anything is written: no panic, no talk.
#[test]
fn a_reader_that_leaves_is_no_error() {
    let (reader, writer) = io::pipe().unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_oncegate"))
        .arg("fingerprint")
        .stdin(Stdio::piped())
        .stdout(writer)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(reader);
    child.stdin.take().unwrap().write_all(b"[1]").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    assert_eq!(output.status.code(), Some(0));
}

/// What `docs/fingerprint.md` shows is what the command prints.
#[test]
fn the_page_tells_the_truth() {
    let page = include_str!("../../../docs/fingerprint.md");
    let lines: Vec<_> = page.lines().collect();
    let mut examples = 0;
    for [command, canonical, fingerprint] in lines.array_windows() {
        let Some((body, arguments)) =
            command.strip_prefix("$ echo '").and_then(|rest| rest.split_once("' | oncegate fingerprint "))
        else {
            continue;
        };
        let arguments: Vec<_> = arguments.split(' ').collect();
        let stdout = format!("{canonical}\n{fingerprint}\n");
        check(&arguments, format!("{body}\n").as_bytes(), stdout.as_bytes());
        examples += 1;
    }
    assert_eq!(examples, 2);
}
