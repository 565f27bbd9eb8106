//! `oncegate resolve` and `oncegate forget`: what was seen is what is changed, under a name and for a reason.

use std::fs;
use std::net::SocketAddr;
use std::process::Stdio;

use insta::assert_snapshot;
use regex_lite::Regex;

use crate::desk::{Desk, seen};
use crate::gateway::Gateway;
use crate::records;
use crate::terminal::typing;

/// No process listens there.
const NOWHERE: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 1);
/// What all records of these tests have at first.
pub(crate) const VERSION: &str = "1772442000000000";
const ANSWER: &str =
    r#"{"status": 201, "headers": [["content-type", "application/json"]], "body": "{\"id\":\"pay_17\"}"}"#;
const WHY: &str = "--operator ada --reason 'seen in the ledger'";

/// Without what is another with every run: moments, versions and processes of today.
pub(crate) fn steady(seen: &str) -> String {
    let mut text = seen.to_owned();
    for (pattern, name) in [
        (r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", "MOMENT"),
        (r"20\d\d-\d\d-\d\d, UTC", "DAY, UTC"),
        (r"(?m)^\d\d:\d\d:\d\d\.\d{3}", "TIME"),
        (r"\b1[89]\d{14}\b|\b17[89]\d{13}\b", "NEWER"),
        (r"[^\s(]+:\d+ \(command line\)", "NODE (command line)"),
    ] {
        text = Regex::new(pattern).unwrap().replace_all(&text, name).into_owned();
    }
    text
}

fn parked() -> (Desk, String) {
    let record = records::parked("order-1");
    let id = record.id.to_string();
    let desk = Desk::with(vec![record]);
    fs::write(desk.path().join("answer.json"), ANSWER).unwrap();
    (desk, id)
}

fn state(desk: &Desk) -> String {
    let shown = desk.ask("keys show order-1");
    let line = shown.lines().find_map(|line| line.strip_prefix("state")).unwrap();
    line.trim().to_owned()
}

#[test]
fn it_happened() {
    let (desk, id) = parked();
    let line = format!("resolve {id} --happened --response answer.json --version {VERSION} {WHY}");
    assert_snapshot!("happened", steady(&desk.ask(&line)));
    assert_snapshot!("happened_shown", steady(&desk.ask("keys show order-1 --body")));
    // Once more: it has changed, and by whom is in its story.
    assert_snapshot!("happened_again", steady(&desk.ask(&line)));
}

#[test]
fn it_did_not_happen() {
    let (desk, id) = parked();
    let line = format!("resolve {id} --did-not-happen --version {VERSION} {WHY}");
    assert_snapshot!("did_not_happen", steady(&desk.ask(&line)));
    assert_snapshot!("did_not_happen_shown", steady(&desk.ask("keys show order-1")));
}

#[test]
fn an_answer_is_forgotten() {
    let record = records::paid("acme", "order-1");
    let id = record.id.to_string();
    let desk = Desk::with(vec![record]);
    assert_snapshot!("forgotten", steady(&desk.ask(&format!("forget {id} --version {VERSION} {WHY}"))));
    assert_snapshot!("forgotten_shown", steady(&desk.ask("keys show order-1")));
    let again = desk.ask(&format!("forget {id} --yes {WHY}"));
    assert_snapshot!("forgotten_again", steady(&again));
}

/// The same words whether a gateway does it or the command itself does.
#[test]
fn through_a_gateway_it_is_the_same() {
    for (act, record) in [
        ("resolve ID --happened --response answer.json", records::parked("order-1")),
        ("resolve ID --happened --response answer.json", records::paid("acme", "order-1")),
        ("resolve ID --did-not-happen", records::parked("order-1")),
        ("resolve ID --did-not-happen", records::running("order-1")),
        ("forget ID", records::paid("acme", "order-1")),
        ("forget ID", records::parked("order-1")),
        ("dead retry ID", records::parked("order-1")),
        ("dead retry ID", records::released("order-1")),
    ] {
        for version in [VERSION, "17"] {
            let line = format!("{act} --version {version} {WHY}").replace("ID", &record.id.to_string());
            let desks = [(); 2].map(|()| Desk::with(vec![record.clone()]));
            for desk in &desks {
                fs::write(desk.path().join("answer.json"), ANSWER).unwrap();
            }
            let gateway = Gateway::start(desks[1].path(), NOWHERE, None);
            let by_gateway = desks[1].run(&format!("{line} --admin http://{}", gateway.admin));
            let by_store = desks[0].ask(&line);
            // A store that carries no signals has one thing more to say.
            let by_store: Vec<_> = by_store.lines().filter(|line| !line.starts_with("note: ")).collect();
            let by_store = by_store.join("\n") + "\n";
            assert_eq!(steady(&by_gateway), steady(&by_store), "{line}");
        }
    }
}

#[test]
fn a_gateway_wants_its_token() {
    let (desk, id) = parked();
    let gateway = Gateway::start(desk.path(), NOWHERE, Some("hunter2hunter2hunter2"));
    let line = format!("dead retry {id} --version {VERSION} {WHY} --admin http://{}", gateway.admin);
    assert_snapshot!("token_missing", desk.run(&line));
    let mut command = desk.command(&line);
    command.env("ONCEGATE_ADMIN_TOKEN", "hunter2hunter2hunter2");
    assert!(seen(&command.output().unwrap()).starts_with("exit code: 0\n"));
}

/// Whoever cannot be asked, and has not said which version he has seen, has not agreed.
#[test]
fn nobody_is_there_to_be_asked() {
    let (desk, id) = parked();
    let line = format!("resolve {id} --did-not-happen {WHY}");
    assert_snapshot!("not_asked", steady(&desk.ask(&line)));
    assert_eq!(state(&desk), "unknown");
    assert_snapshot!("yes", steady(&desk.ask(&format!("{line} --yes"))));
    assert_eq!(state(&desk), "failed_retryable");
}

#[test]
fn whoever_is_there_is_asked() {
    let (desk, id) = parked();
    let line = format!("resolve {id} --happened --response answer.json {WHY} --store sqlite://oncegate.db");
    for (name, answer) in [("typed_no", "no\n"), ("typed_nothing", "\n"), ("typed_y", "y\n")] {
        let output = typing(&mut desk.command(&line), answer);
        assert_snapshot!(name, steady(&seen(&output)));
        assert_eq!(state(&desk), "unknown");
    }
    let output = typing(&mut desk.command(&line), "yes\n");
    assert_snapshot!("typed_yes", steady(&seen(&output)));
    assert_eq!(state(&desk), "completed");
}

/// Two have looked at the same version, and act at the same moment: one wins, and the other is told.
#[test]
fn of_two_operators_one_wins() {
    for _ in 0..10 {
        let (desk, id) = parked();
        let store = "--store sqlite://oncegate.db";
        let ada = format!("resolve {id} --happened --response answer.json --version {VERSION} {WHY} {store}");
        let bob = format!(
            "resolve {id} --did-not-happen --version {VERSION} --operator bob --reason 'a guess' {store}"
        );
        let both = [ada, bob].map(|line| {
            let mut command = desk.command(&line);
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
        });
        let [ada, bob] = both.map(|child| child.wait_with_output().unwrap());
        let mut codes = [ada.status.code().unwrap(), bob.status.code().unwrap()];
        codes.sort_unstable();
        assert_eq!(codes, [0, 4], "{}{}", seen(&ada), seen(&bob));
        let (won, lost, expected) =
            if ada.status.success() { ("ada", bob, "completed") } else { ("bob", ada, "failed_retryable") };
        let told = seen(&lost);
        assert!(told.contains("the record has changed") && told.contains(expected), "{told}");
        assert_eq!(state(&desk), expected);
        let shown = desk.ask("keys show order-1");
        assert_eq!(shown.matches("; reason: ").count(), 1, "{shown}");
        assert!(shown.contains(&format!("operator {won}: ")), "{shown}");
    }
}

#[test]
fn who_acts_is_whoever_is_logged_in() {
    let (desk, id) = parked();
    let line = format!("dead retry {id} --yes --reason r --store sqlite://oncegate.db");
    assert_snapshot!("nobody", desk.run(&line));
    for (variables, name) in [
        (vec![("USER", "grace")], "grace"),
        (vec![("USER", "root"), ("LOGNAME", "linus")], "linus"),
        (vec![("USER", "barbara"), ("LOGNAME", "")], "barbara"),
    ] {
        let output = desk.command(&line).envs(variables).output().unwrap();
        assert!(output.status.success(), "{}", seen(&output));
        let story = desk.ask("keys show order-1");
        assert!(
            story.contains(&format!("operator {name}: to be asked about again; reason: \"r\"")),
            "{story}"
        );
    }
}

#[test]
fn for_programs() {
    let (desk, id) = parked();
    let output = desk
        .command(&format!("resolve {id} --did-not-happen --yes --json {WHY} --store sqlite://oncegate.db"));
    let output = { output }.output().unwrap();
    let done: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(done["record"]["state"], "failed_retryable");
    assert!(done["done"].is_string() && done["next"].is_string());
}

#[test]
fn answers_that_cannot_be_used_change_nothing() {
    let (desk, id) = parked();
    for (name, text) in [
        ("answer_empty", ""),
        ("answer_no_json", "HTTP/1.1 201 Created\r\n\r\n{}"),
        ("answer_list", "[201]"),
        ("answer_no_status", r#"{"body": ""}"#),
        ("answer_bad_status", r#"{"status": 99}"#),
        ("answer_two_bodies", r#"{"status": 200, "body": "", "body_base64": ""}"#),
        ("answer_bad_base64", r#"{"status": 200, "body_base64": "%"}"#),
        ("answer_bad_header", r#"{"status": 200, "headers": [["a b", "c"]]}"#),
        ("answer_header_injection", r#"{"status": 200, "headers": [["a", "b\r\nc: d"]]}"#),
        ("answer_connection_header", r#"{"status": 200, "headers": [["connection", "close"]]}"#),
        ("answer_unknown_member", r#"{"status": 200, "trailers": []}"#),
    ] {
        fs::write(desk.path().join("bad.json"), text).unwrap();
        let line = format!("resolve {id} --happened --response bad.json --version {VERSION} {WHY}");
        assert_snapshot!(name, desk.ask(&line));
    }
    let line = |file: &str| format!("resolve {id} --happened --response {file} --version {VERSION} {WHY}");
    assert_snapshot!("answer_no_file", desk.ask(&line("nowhere.json")));
    assert_snapshot!("answer_folder", desk.ask(&line(".")));
    fs::write(desk.path().join("large.json"), " ".repeat((16 << 20) + 1)).unwrap();
    assert_snapshot!("answer_large", desk.ask(&line("large.json")));
    assert_eq!(state(&desk), "unknown");
    assert!(!desk.ask("keys show order-1").contains("operator ada"));
}

#[test]
fn an_answer_from_stdin() {
    let (desk, id) = parked();
    let file = fs::File::open(desk.path().join("answer.json")).unwrap();
    let line = format!(
        "resolve {id} --happened --response - --version {VERSION} {WHY} --store sqlite://oncegate.db"
    );
    let output = desk.command(&line).stdin(file).output().unwrap();
    assert!(output.status.success(), "{}", seen(&output));
    assert_eq!(state(&desk), "completed");
}

#[test]
fn bad_input() {
    let (desk, id) = parked();
    for (name, line) in [
        ("no_outcome", format!("resolve {id} {WHY}")),
        ("no_response", format!("resolve {id} --happened {WHY}")),
        ("both_outcomes", format!("resolve {id} --happened --did-not-happen --response answer.json {WHY}")),
        ("response_of_nothing", format!("resolve {id} --did-not-happen --response answer.json {WHY}")),
        ("no_reason", format!("resolve {id} --did-not-happen --yes")),
        ("empty_reason", format!("resolve {id} --did-not-happen --yes --operator ada --reason ' '")),
        ("empty_operator", format!("resolve {id} --did-not-happen --yes --operator '' --reason r")),
        ("two_lines", format!("resolve {id} --did-not-happen --yes --operator 'a\nb' --reason r")),
        ("no_version", format!("resolve {id} --did-not-happen --version newest {WHY}")),
        ("a_key", format!("resolve order-1 --did-not-happen --yes {WHY}")),
        ("no_record", format!("resolve op_00000000000000000000000000 --did-not-happen --yes {WHY}")),
        ("no_record_of_version", format!("forget op_00000000000000000000000000 --version 17 {WHY}")),
        ("forget_unknown", format!("forget {id} --version {VERSION} {WHY}")),
        ("forget_no_reason", format!("forget {id} --yes")),
        ("forget_nothing", "forget".to_owned()),
    ] {
        assert_snapshot!(name, steady(&desk.ask(&line)));
    }
    assert_eq!(state(&desk), "unknown");
}

/// A store that is not there is not made, and one that is not ours is not touched.
#[test]
fn a_store_that_is_down() {
    let desk = Desk::empty();
    let line = format!("forget op_00000000000000000000000000 --version 17 {WHY}");
    for store in
        ["sqlite://oncegate.db", "postgres://u:hunter2@127.0.0.1:1/db", "redis://:hunter2@127.0.0.1:1/"]
    {
        let seen = desk.run(&format!("{line} --store {store}"));
        assert!(seen.starts_with("exit code: 1\n"), "{seen}");
    }
    let seen = desk.run(&format!("{line} --admin http://{NOWHERE}"));
    assert!(seen.starts_with("exit code: 1\n") && seen.contains("is it running?"), "{seen}");
    assert_eq!(fs::read_dir(desk.path()).unwrap().count(), 0);
}
