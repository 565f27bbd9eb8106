//! A run is recorded: in the audit trail of the store, and as metrics of a gateway that shares it.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use insta::assert_snapshot;
use serde_json::Value;

use crate::desk::Desk;
use crate::gateway::Gateway;
use crate::ledger::{self, DAY, paid};

/// No process listens there.
const NOWHERE: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 1);

fn desk() -> Desk {
    ledger::desk(vec![paid("a", 100)], "export.csv", "idempotency_key\na\nforeign\n")
}

fn compare(desk: &Desk, flags: &str) -> String {
    desk.ask(&format!("compare --provider-export export.csv {DAY} {flags}"))
}

/// What is told of each run, and by whom.
fn told(desk: &Desk) -> Vec<(String, String)> {
    let seen = desk.ask("audit export --act compared");
    let lines = seen.lines().filter(|line| line.starts_with('{'));
    let entries = lines.map(|line| serde_json::from_str::<Value>(line).unwrap());
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    entries.map(|entry| (text(&entry["reason"]["code"]), text(&entry["reason"]["detail"]))).collect()
}

#[test]
fn each_run_is_told_unless_it_shall_not_be() {
    let desk = desk();
    assert!(compare(&desk, "").starts_with("exit code: 5\n"));
    assert!(compare(&desk, "--no-record").starts_with("exit code: 5\n"));
    std::fs::write(desk.path().join("export.csv"), "idempotency_key\na\n").unwrap();
    assert!(compare(&desk, "--name acme-pay").starts_with("exit code: 0\n"));
    let expected = [
        ("different", "name=default charges=2 records=1 differences=1 unreadable=0"),
        ("agreed", "name=acme-pay charges=1 records=1 differences=0 unreadable=0"),
    ];
    assert_eq!(told(&desk), expected.map(|(code, detail)| (code.to_owned(), detail.to_owned())));
}

#[test]
fn a_name_is_a_label() {
    let desk = desk();
    assert_snapshot!("name_bad", compare(&desk, "--name 'acme pay'"));
    assert_eq!(told(&desk), []);
}

/// What a gateway's metric shows, once it shows it.
fn until_metric(gateway: &Gateway, series: &str) -> String {
    let begun = Instant::now();
    loop {
        let mut stream = TcpStream::connect(gateway.admin).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.0\r\nhost: 127.0.0.1\r\n\r\n").unwrap();
        let mut page = String::new();
        stream.read_to_string(&mut page).unwrap();
        let mut values = page.lines().filter_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        if let Some(value) = values.next() {
            return value.to_owned();
        }
        assert!(begun.elapsed() < Duration::from_mins(1), "{series} is not shown:\n{page}");
    }
}

/// Told to one gateway, it is in the store, and every gateway on the store shows it.
#[test]
fn a_gateway_records_it_and_shows_it() {
    let desk = desk();
    let mut gateway = Gateway::start(desk.path(), NOWHERE, None);
    let line = format!("compare --provider-export export.csv {DAY} --name acme-pay");
    let seen = desk.run(&format!("{line} --admin http://{}", gateway.admin));
    assert!(seen.starts_with("exit code: 5\n"), "{seen}");
    assert_eq!(told(&desk).len(), 1);
    gateway.is_killed();
    let other = Gateway::start(desk.path(), NOWHERE, None);
    let differences = until_metric(&other, r#"oncegate_compare_differences{comparison="acme-pay"}"#);
    assert_eq!(differences, "1");
    let at = until_metric(&other, r#"oncegate_compare_last_run_timestamp_seconds{comparison="acme-pay"}"#);
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs_f64();
    let age = now - at.parse::<f64>().unwrap();
    assert!((-1.0..600.0).contains(&age), "{age}");
}

/// The report is complete, and a nightly run learns that it was not recorded.
#[test]
fn a_run_that_cannot_be_recorded_fails() {
    let desk = desk();
    let file = desk.path().join("oncegate.db");
    let connection = rusqlite::Connection::open(&file).unwrap();
    connection.execute_batch(
        "CREATE TRIGGER no_more BEFORE INSERT ON entry BEGIN SELECT RAISE(ABORT, 'the disk is read-only'); END;",
    ).unwrap();
    drop(connection);
    let seen = compare(&desk, "");
    assert!(seen.starts_with("exit code: 1\n"), "{seen}");
    assert!(seen.contains("charged_not_completed"), "{seen}");
    assert!(seen.contains("error: the report is complete, but the run could not be recorded"), "{seen}");
}
