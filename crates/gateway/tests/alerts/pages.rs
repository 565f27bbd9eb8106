//! Rules, dashboard, pages and code agree about the names. Nothing is started here but `promtool`.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use oncegate_core::decide::Notice;
use oncegate_test_servers::prometheus::{check_rules, test_rules};
use regex_lite::Regex;
use serde_json::Value;

use crate::hurried::{alerts, file, root, shipped};

fn page(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap()
}

fn found(pattern: &str, text: &str) -> BTreeSet<String> {
    Regex::new(pattern).unwrap().captures_iter(text).map(|found| found[1].to_owned()).collect()
}

/// The series that expressions in a text ask for.
pub(crate) fn metrics_in(text: &str) -> BTreeSet<String> {
    found(r"\b((?:api_idempotency|oncegate)_[a-z_]+)\b", text)
}

/// The names in the code, wherever they are counted.
fn counted() -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for source in sources(&root().join("crates")) {
        let text = fs::read_to_string(source).unwrap();
        let name = r#"(?:const [A-Z_]+: &str = |(?:counter|gauge|histogram)!\(\s*)"((?:api\.idempotency|oncegate)\.[a-z_.]+)""#;
        names.extend(found(name, &text).into_iter().filter(|name| name != "oncegate.session"));
    }
    names
}

/// The product's sources.
fn sources(crates: &Path) -> Vec<std::path::PathBuf> {
    let entries = |path: &Path| fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut folders: Vec<_> = entries(crates).map(|path| path.join("src")).collect();
    let mut sources = Vec::new();
    while let Some(folder) = folders.pop() {
        for path in entries(&folder).collect::<Vec<_>>() {
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                sources.push(path);
            }
        }
    }
    sources
}

/// As they are scraped: dots are underscores, and a histogram is three series.
fn exposed() -> BTreeSet<String> {
    let names = counted().into_iter().map(|name| name.replace('.', "_"));
    let parts =
        |name: String| [name.clone() + "_bucket", name.clone() + "_sum", name.clone() + "_count", name];
    names.flat_map(parts).collect()
}

#[test]
fn the_page_of_metrics_has_every_name_that_is_counted_and_no_other() {
    let counted = counted();
    assert!(counted.contains(oncegate_engine::names::ALARM), "{counted:#?}");
    assert!(counted.contains("oncegate.gateway.upstream.connect.count"), "{counted:#?}");
    let told = found(r"\| `((?:api\.idempotency|oncegate)\.[a-z_.]+)`", &page("docs/metrics.md"));
    assert_eq!(told, counted);
}

#[test]
fn rules_and_dashboard_ask_only_for_what_is_counted() {
    let exposed = exposed();
    for text in [shipped(), expressions().join("\n")] {
        let asked_for = metrics_in(&text);
        assert!(!asked_for.is_empty());
        let strange: Vec<_> = asked_for.difference(&exposed).collect();
        assert!(strange.is_empty(), "nobody counts {strange:?}");
    }
}

/// Counted, and on purpose in no rule and on no panel.
const SHOWN_NOWHERE: [(&str, &str); 1] = [(
    "oncegate.outbox.parked.count",
    "the gauge oncegate.outbox.dead_letters says how many still wait, and has an alert",
)];

#[test]
fn what_is_counted_is_on_a_panel_or_in_a_rule() {
    let shown = metrics_in(&[shipped(), expressions().join("\n")].concat());
    let is_shown = |name: &str| {
        let name = name.replace('.', "_");
        ["", "_bucket", "_sum", "_count"].iter().any(|part| shown.contains(&(name.clone() + part)))
    };
    let hidden: BTreeSet<_> = counted().into_iter().filter(|name| !is_shown(name)).collect();
    let meant = SHOWN_NOWHERE.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(hidden, meant, "neither on a panel nor in a rule, or listed and shown all the same");
    assert!(SHOWN_NOWHERE.iter().all(|(_, why)| !why.is_empty()));
}

#[test]
fn promtool_accepts_the_rules() {
    check_rules(&file()).unwrap();
}

/// What rules do at their true durations, on series that are written down.
#[test]
fn rules_hold_at_their_edges() {
    test_rules(&root().join("crates/gateway/tests/alerts/edges.yml")).unwrap();
}

#[test]
fn every_alert_is_on_its_page_and_has_a_test_that_makes_it_fire() {
    let told = page("docs/alerts.md");
    let tests = ["by_gateway.rs", "by_outbox.rs", "by_requests.rs", "by_workers.rs"]
        .map(|name| page(&format!("crates/gateway/tests/alerts/{name}")))
        .concat();
    let alerts = alerts();
    assert!(alerts.len() >= 14, "{alerts:?}");
    for alert in alerts {
        assert!(told.contains(&format!("\n## {alert}\n")), "docs/alerts.md has no section {alert}");
        assert!(tests.contains(&format!("until_firing(\"{alert}\"")), "no test makes {alert} fire");
    }
}

/// As Prometheus has read them: how bad it is, what happened, what to do next, and where more is written.
/// Rule and page said of every alarm that the record stays as it was, which is not so of what was wrongly judged to have had no effect.
#[test]
fn the_page_says_of_every_alarm_what_becomes_of_the_record() {
    let page = page("docs/alerts.md");
    for notice in Notice::ALL.into_iter().filter(|notice| notice.is_alarm()) {
        assert!(page.contains(&format!("`{}`", notice.name())), "{}", notice.name());
    }
    assert!(!shipped().contains("The record stays as it was"));
}

pub(crate) fn each_says_what_to_do(rules: &[Value]) {
    assert_eq!(rules.len(), alerts().len());
    for rule in rules {
        let name = rule["name"].as_str().unwrap();
        let says = |what: &str| rule["annotations"][what].as_str().unwrap_or_default().to_owned();
        assert!(["critical", "warning"].contains(&rule["labels"]["severity"].as_str().unwrap()), "{rule}");
        assert!(!says("summary").is_empty() && says("description").contains("Next: "), "{rule}");
        assert_eq!(says("runbook"), format!("docs/alerts.md#{}", name.to_lowercase()));
    }
}

/// What the dashboard's panels ask for.
fn expressions() -> Vec<String> {
    let dashboard: Value = serde_json::from_str(&page("deploy/grafana/oncegate.json")).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let targets = panels.iter().flat_map(|panel| panel["targets"].as_array().cloned().unwrap_or_default());
    targets.map(|target| target["expr"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn promtool_accepts_what_the_dashboard_asks_for() {
    let expressions = expressions();
    assert!(expressions.len() >= 10, "{expressions:#?}");
    let rules = expressions.iter().enumerate().map(|(n, expression)| {
        // As Grafana would put them in.
        let expression = expression.replace("$__rate_interval", "1m").replace("$job", "oncegate");
        assert!(!expression.contains('$'), "{expression}");
        format!("  - record: panel_{n}\n    expr: {}\n", Value::from(expression))
    });
    let text = format!("groups:\n- name: dashboard\n  rules:\n{}", rules.collect::<String>());
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("dashboard.rules.yml");
    fs::write(&file, text).unwrap();
    check_rules(&file).unwrap();
}

#[test]
fn the_dashboard_is_whole() {
    let dashboard: Value = serde_json::from_str(&page("deploy/grafana/oncegate.json")).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let mut ids = BTreeSet::new();
    for panel in panels {
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "two panels have the same id: {panel}");
        assert!(panel["title"].as_str().is_some_and(|title| !title.is_empty()), "{panel}");
        if panel["type"] != "row" {
            assert_eq!(panel["datasource"]["uid"], "${datasource}", "{panel}");
            assert!(panel["description"].as_str().is_some_and(|words| !words.is_empty()), "{panel}");
        }
    }
}
