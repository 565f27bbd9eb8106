//! The service's process, and its client.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use bytes::Bytes;
use example_payments::post::{self, NoReply, Reply};
use http::Request;

/// What is done about a charge that nobody heard of again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Recovery {
    Retry,
    Probe,
    Park,
}

impl Recovery {
    const fn name(self) -> &'static str {
        match self {
            Self::Retry => "retry",
            Self::Probe => "probe",
            Self::Park => "park",
        }
    }
}

/// A running service. Dropped, it is killed.
pub(crate) struct Service {
    process: Child,
    pub(crate) address: String,
}

impl Service {
    pub(crate) fn start(database: &str, provider: &str, recovery: Recovery, lease: Duration) -> Self {
        let lease = format!("{}ms", lease.as_millis());
        let mut process = Command::new(env!("CARGO_BIN_EXE_example-ride"))
            .args(["--database", database, "--provider", provider, "--listen", "127.0.0.1:0"])
            .args(["--recovery", recovery.name(), "--lease", &lease])
            .env("RUST_LOG", "error")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("listening on http://").unwrap_or_else(|| panic!("{line:?}"));
        Self { address: address.to_owned(), process }
    }
}

impl Drop for Service {
    /// SIGKILL.
    fn drop(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

/// Asks for the ride of a key.
pub(crate) async fn ask(address: &str, key: &str) -> Result<Reply, NoReply> {
    let request = Request::post("/rides")
        .header("host", address)
        .header("authorization", "Bearer test")
        .header("idempotency-key", key)
        .header("content-type", "application/json")
        .body(Bytes::from(format!("{{\"to\": \"{key}\", \"amount\": 1700}}")))
        .unwrap();
    post::send(address, request, Duration::from_mins(1)).await
}
