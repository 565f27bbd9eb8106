//! The shipped examples of a nightly run: what they call is a command that there is, and it does
//! what they say.

use std::fs;
use std::path::Path;

use crate::ledger::{self, paid};

fn deployed(file: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    fs::read_to_string(root.join("deploy").join(file)).unwrap()
}

/// The one value that a line of this unit sets.
fn value<'t>(unit: &'t str, name: &str) -> &'t str {
    let mut values = unit.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix('='));
    let value = values.next().unwrap();
    assert_eq!(values.next(), None, "{name} is set twice");
    value
}

/// The items of the list under `args:` of the container that runs `oncegate`.
fn arguments(job: &str) -> Vec<&str> {
    let (_, container) = job.split_once("- name: compare\n").unwrap();
    let (_, list) = container.split_once("args:\n").unwrap();
    list.lines().map_while(|line| line.trim().strip_prefix("- ")).collect()
}

/// Both run `compare` on an export of the last day, against the store that is here instead of
/// their gateway.
#[test]
fn the_examples_run_and_record_it() {
    let unit = deployed("systemd/oncegate-compare.service");
    let by_timer = value(&unit, "ExecStart").strip_prefix("/usr/local/bin/oncegate ").unwrap().to_owned();
    let job = deployed("kubernetes/compare-cronjob.yaml");
    let by_job = arguments(&job).join(" ").replace("/data/", "");
    for line in [by_timer, by_job] {
        assert!(line.starts_with("compare --name provider "), "{line}");
        // A charge that no record knows of.
        let desk = ledger::desk(vec![paid("a", 100)], "charges.csv", "idempotency_key\nforeign\n");
        let seen = desk.ask(&line);
        assert!(seen.starts_with("exit code: 5\n"), "{seen}");
        let told = desk.ask("audit list --act compared");
        assert!(told.contains("name=provider charges=1 records=0 differences=1 unreadable=0"), "{told}");
    }
}

/// The token and all records crossed the network in clear text.
#[test]
fn no_example_sends_a_token_in_clear_text() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy");
    let mut folders = vec![folder];
    let mut with_token = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let text = fs::read_to_string(&path).unwrap();
            if !text.contains("ONCEGATE_ADMIN_TOKEN") {
                continue;
            }
            let urls = text.split(|char: char| !char.is_ascii_graphic() || "\"'=".contains(char));
            let is_exposed = |url: &&str| url.starts_with("http://") && !url.starts_with("http://127.0.0.1:");
            let exposed: Vec<_> = urls.filter(is_exposed).collect();
            assert!(exposed.is_empty(), "{}: {exposed:?}", path.display());
            with_token.push(path.file_name().unwrap().to_owned());
        }
    }
    with_token.sort();
    assert_eq!(with_token, ["compare-cronjob.yaml", "oncegate-compare.service"]);
    let job = deployed("kubernetes/compare-cronjob.yaml");
    let (_, trusted) = job.split_once("- name: ONCEGATE_ADMIN_CA\n").unwrap();
    let file = trusted.lines().next().unwrap().trim().strip_prefix("value: ").unwrap();
    let (folder, _) = file.rsplit_once('/').unwrap();
    assert!(job.contains(&format!("mountPath: {folder}\n")), "{file} is not mounted");
}

/// Differences are an alert, and not a failed unit or a job that is tried again.
#[test]
fn differences_are_no_failure_of_the_run() {
    assert_eq!(value(&deployed("systemd/oncegate-compare.service"), "SuccessExitStatus"), "5");
    assert!(deployed("kubernetes/compare-cronjob.yaml").contains("values: [2, 5]"));
    assert!(value(&deployed("systemd/oncegate-compare.timer"), "OnCalendar").starts_with("*-*-* "));
}
