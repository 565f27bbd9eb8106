//! What the contract's table has no row for: keys and where they are kept, waiting, giving up, what cannot be sent.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod pace;
#[expect(dead_code, reason = "the contract's test needs more of it")]
mod scripted;

mod giving_up;
mod keeping;
mod sending;
#[cfg(feature = "rustls")]
mod tls;

use std::time::Duration;

use oncegate_client::{Builder, Client, Limits};
use pace::Hurried;
use serde_json::{Value, json};

/// The answer of an execution just now.
fn answer() -> Value {
    json!({ "status": 201, "kept": true, "json": { "id": 1 } })
}

/// The answer of the record.
fn replay() -> Value {
    json!({ "status": 201, "replayed": true })
}

/// So many attempts, and waits that nobody notices.
fn attempts(attempts_max: u32) -> Limits {
    Limits { attempts_max, ..scripted::limits(&scripted::contract(), &Value::Null) }
}

/// A client that does not wait between tries.
fn hurried() -> Builder {
    Client::builder().pace(Hurried::default()).limits(attempts(8))
}

/// Reached only if something is broken.
const FOREVER: Duration = Duration::from_mins(1);
