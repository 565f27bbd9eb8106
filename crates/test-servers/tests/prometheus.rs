//! A Prometheus of one's own: what it scrapes, and which rules it takes.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::net::TcpListener;
use std::time::Duration;

use oncegate_test_servers::prometheus::{Prometheus, Watching, check_rules};
use oncegate_test_servers::wait_until;

const RULES: &str = "groups: [{name: g, rules: [{alert: Down, expr: up == 0}]}]";

fn watching(rules: &str) -> Prometheus {
    // Nobody listens there any more.
    let target = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).unwrap();
    let (every, lookback) = (Duration::from_millis(100), Duration::from_secs(2));
    Prometheus::start(Watching { target, rules, every, lookback })
}

#[test]
fn an_alert_fires_once_its_condition_is_scraped() {
    let server = watching(RULES);
    wait_until("the alert fires", || server.get("/api/v1/alerts").contains("\"firing\""));
}

#[test]
#[should_panic(expected = "does not start")]
fn a_server_that_does_not_start_says_why() {
    let _server = watching("groups: [{name: g, rules: [{alert: Down, expr: 'up =='}]}]");
}

#[test]
fn promtool_says_what_is_wrong_with_a_rule() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("some.rules.yml");
    std::fs::write(&file, RULES).unwrap();
    assert_eq!(check_rules(&file), Ok(()));
    std::fs::write(&file, RULES.replace("up == 0", "'up =='")).unwrap();
    assert!(check_rules(&file).unwrap_err().contains("parse"));
}
