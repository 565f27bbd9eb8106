//! `oncegate audit`: the trail of all records, from a store and from a gateway.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use insta::assert_snapshot;
use oncegate_core::audit::{Act, Comparison, Entry, Subject};
use oncegate_core::record::StateKind;
use serde_json::Value;

use crate::desk::{Desk, seen};
use crate::gateway::Gateway;
use crate::records::{self, MORNING};
use crate::stories::{Told, a_bad_morning, telling};

const NOWHERE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 1);
const COMPLETED: Option<StateKind> = Some(StateKind::Completed);
const UNKNOWN: Option<StateKind> = Some(StateKind::Unknown);
const RUNNING: Option<StateKind> = Some(StateKind::InProgress);
/// The day of all that is told here.
const DAY: &str = "--since 2026-03-02T00:00:00Z --until 2026-03-03T00:00:00Z";

fn subject(scope: &str, operation: &str) -> Subject {
    Subject { scope: scope.into(), operation: operation.into() }
}

/// Three records of two tenants, all of them gone; one entry of an earlier release; one
/// comparison.
fn trail() -> Vec<Entry> {
    let id = |tenant: &str, key: &str| records::paid(tenant, key).id;
    let morning = a_bad_morning(id("acme", "order-1")).entries;
    let other = Told::of(id("other", "order-2"))
        .then(Act::RanAfterExpiry, None, RUNNING)
        .because("removed", "the record of an earlier life was removed 3 days before")
        .with(|entry| entry.subject = Some(subject("other\u{1f}POST /refunds", "POST /refunds")));
    let old = Told::of(id("acme", "order-3"))
        .then(Act::Doubted, RUNNING, UNKNOWN)
        .then(Act::Happened, UNKNOWN, COMPLETED)
        .by("probe");
    let old = old.entries.into_iter().map(|entry| Entry { subject: None, ..entry });
    let run =
        Comparison { name: "acme-pay".into(), charges: 120, records: 118, differences: 3, unreadable: 0 };
    let run = run.entry(MORNING.plus(Duration::from_hours(1)), "node-1");
    let mut all = [morning, other.entries, old.collect(), vec![run]].concat();
    all.sort_by_key(|entry| entry.at);
    all
}

fn desk() -> Desk {
    telling(Desk::with(Vec::new()), &trail())
}

#[test]
fn a_table_and_lines_of_json() {
    let desk = desk();
    assert_snapshot!("audit_list", desk.ask(&format!("audit list {DAY}")));
    assert_snapshot!("audit_export", desk.ask(&format!("audit export {DAY}")));
    assert_snapshot!("audit_list_json", desk.ask(&format!("audit list {DAY} --limit 1 --json")));
    assert_snapshot!("audit_none", desk.ask("audit list"));
    assert_snapshot!("audit_export_none", desk.ask("audit export --until 2020-01-01T00:00:00Z"));
}

fn exported(seen: &str) -> Vec<Value> {
    let stdout = seen.split("----- stdout\n").nth(1).unwrap().split("----- stderr").next().unwrap();
    stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn export(desk: &Desk, flags: &str) -> Vec<(String, String)> {
    let seen = desk.ask(&format!("audit export {flags}"));
    assert!(seen.starts_with("exit code: 0\n"), "{seen}");
    let text = |entry: &Value, name: &str| entry[name].as_str().unwrap_or("–").to_owned();
    exported(&seen).iter().map(|entry| (text(entry, "act"), text(entry, "scope"))).collect()
}

/// By time, scope, tenant, operation and act; an entry says these itself, because its record is
/// gone.
#[test]
fn filters() {
    let desk = desk();
    assert_eq!(export(&desk, "").len(), 11);
    let acme = export(&desk, "--scope acme");
    assert_eq!(acme.len(), 7, "{acme:?}");
    let refund = [("ran_after_expiry".to_owned(), "other (POST /refunds)".to_owned())];
    assert_eq!(export(&desk, "--scope other"), refund);
    assert_eq!(export(&desk, "--scope 'other (POST /refunds)'"), refund);
    assert_eq!(export(&desk, "--operation 'POST /refunds'"), refund);
    assert_eq!(export(&desk, "--act ran_after_expiry"), refund);
    assert_eq!(export(&desk, "--operation 'POST /refunds' --scope acme"), []);
    let compared = export(&desk, "--since 2026-03-02T10:00:00Z");
    assert_eq!(compared, [("compared".to_owned(), "–".to_owned())]);
    assert_snapshot!("audit_old_release", desk.ask(&format!("audit list {DAY} --scope nobody")));
}

/// Of an entry of an earlier release the record says scope and operation, while it is there.
#[test]
fn an_entry_of_an_earlier_release_is_found_by_its_record() {
    let desk = telling(Desk::with(vec![records::paid("acme", "order-3")]), &trail());
    assert_eq!(export(&desk, "--scope acme").len(), 9);
    assert!(!desk.ask("audit export --scope acme").contains("left out"));
}

/// Entries of one moment, many of them, are each on one page; and a gateway shows the same pages.
#[test]
fn pages_of_one_moment() {
    let id = records::paid("acme", "order-1").id;
    let entries: Vec<_> = (0..1_234_u32)
        .map(|n| {
            let mut told = Told::of(id).then(Act::NotKnown, UNKNOWN, UNKNOWN).entries;
            let entry = told.remove(0);
            Entry { attempt: n, ..entry }
        })
        .collect();
    let desk = telling(Desk::with(Vec::new()), &entries);
    let all = desk.ask("audit export");
    let attempts: Vec<_> = exported(&all).iter().map(|entry| entry["attempt"].as_u64().unwrap()).collect();
    assert_eq!(attempts, (0..1_234).collect::<Vec<_>>());
    let (mut after, mut paged) = (String::new(), Vec::new());
    loop {
        let page = desk.ask(&format!("audit list {DAY} --limit 500 --json{after}"));
        let json = page.split("----- stdout\n").nth(1).unwrap().split("----- stderr").next().unwrap();
        let page: Value = serde_json::from_str(json).unwrap();
        let entries = page["entries"].as_array().unwrap();
        paged.extend(entries.iter().map(|entry| entry["attempt"].as_u64().unwrap()));
        match page["next"].as_str() {
            Some(next) => after = format!(" --after {next}"),
            None => break,
        }
    }
    assert_eq!(paged, attempts);
    let gateway = Gateway::start(desk.path(), NOWHERE, None);
    assert_eq!(desk.run(&format!("audit export --admin http://{}", gateway.admin)), all);
}

#[test]
fn a_gateway_says_the_same() {
    let desk = desk();
    let gateway = Gateway::start(desk.path(), NOWHERE, None);
    for line in [
        format!("audit list {DAY}"),
        format!("audit list {DAY} --limit 3"),
        format!("audit list {DAY} --scope 'other (POST /refunds)' --json"),
        format!("audit list {DAY} --operation 'POST /payments' --act happened"),
        "audit export --scope acme".to_owned(),
    ] {
        assert_eq!(desk.run(&format!("{line} --admin http://{}", gateway.admin)), desk.ask(&line), "{line}");
    }
}

#[test]
fn a_file_appears_once_it_is_whole() {
    let desk = desk();
    let seen = desk.ask("audit export --output trail.jsonl");
    assert_snapshot!("audit_export_file", seen);
    let file = std::fs::read_to_string(desk.path().join("trail.jsonl")).unwrap();
    let stdout = desk.ask("audit export");
    assert!(stdout.contains(&file) && file.lines().count() == 11, "{file}");
}

#[test]
fn bad_input() {
    let desk = desk();
    assert_snapshot!("audit_bad_time", desk.ask("audit list --since yesterday"));
    assert_snapshot!("audit_no_time", desk.ask("audit list --since 1h --until 2h"));
    assert_snapshot!("audit_no_act", desk.ask("audit export --act exploded"));
    assert_snapshot!("audit_no_cursor", desk.ask("audit list --after 17"));
    assert_snapshot!("audit_no_folder", desk.ask("audit export --output nowhere/trail.jsonl"));
}

/// What others wrote is one line in the table, and a string in JSON; a reader that has enough may
/// leave.
#[test]
fn hostile_words_stay_in_their_place() {
    let id = records::paid("acme", "order-1").id;
    let hostile = "x\n09:15:11  \x1b[2J\r";
    let told = Told::of(id).then(Act::Doubted, RUNNING, UNKNOWN).because("upstream_answer", hostile);
    let told = told.with(|entry| entry.subject = Some(subject("acme", hostile)));
    let desk = telling(Desk::with(Vec::new()), &told.entries);
    assert_snapshot!("audit_hostile", desk.ask(&format!("audit list {DAY}")));
    let json = exported(&desk.ask("audit export"));
    assert_eq!(json[0]["operation"], hostile);
    let mut command = desk.command("audit export --store sqlite://oncegate.db");
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    command.stdout(writer);
    assert!(seen(&command.output().unwrap()).starts_with("exit code: 0\n"));
}
