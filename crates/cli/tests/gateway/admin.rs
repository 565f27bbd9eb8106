//! What an operator sees.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use oncegate_test_servers::wait_until;
use serde_json::Value;

use crate::process::Gateway;

impl Gateway {
    /// Status and body of a page of the admin listener.
    pub(crate) fn look(&self, path: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(self.admin).expect("the admin listener is there");
        let request = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("cut short: {answer:?}"));
        let status = head.strip_prefix("HTTP/1.1 ").unwrap()[..3].parse().unwrap();
        assert!(!head.contains("transfer-encoding"), "{head}");
        (status, body.to_owned())
    }

    fn page(&self, path: &str) -> Value {
        let (status, body) = self.look(path);
        assert_eq!(status, 200, "{path}: {body}");
        serde_json::from_str(&body).unwrap()
    }

    /// The record of a key, if there is one.
    pub(crate) fn record(&self, key: &str) -> Option<Value> {
        let page = self.page(&format!("/api/v1/records?key={key}"));
        let records = page["records"].as_array().unwrap();
        assert!(records.len() < 2, "{page}");
        records.first().cloned()
    }

    /// Its state as it is now: `lapsed` is one that nobody has written down yet.
    pub(crate) fn state(&self, key: &str) -> String {
        self.record(key)
            .map_or_else(|| "absent".to_owned(), |record| record["state"].as_str().unwrap().to_owned())
    }

    /// Waits until the record is in this state.
    pub(crate) fn wait_for_state(&self, key: &str, state: &str) {
        wait_until(&format!("{key} is {state}"), || self.state(key) == state);
    }

    /// How many records are in a state, as it is written down.
    pub(crate) fn count(&self, state: &str) -> u64 {
        self.page("/api/v1/counts")[state].as_u64().unwrap()
    }

    /// Whether traffic may be sent, and the page that says it.
    pub(crate) fn readiness(&self) -> (u16, Value) {
        let (status, body) = self.look("/readyz");
        (status, serde_json::from_str(&body).unwrap())
    }

    /// The sum of a metric over its labels.
    pub(crate) fn metric(&self, name: &str) -> f64 {
        let (status, text) = self.look("/metrics");
        assert_eq!(status, 200);
        let lines = text
            .lines()
            .filter(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' '])));
        lines.map(|line| line.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap()).sum()
    }
}
