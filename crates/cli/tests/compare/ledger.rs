//! Records of a morning in March 2026, and a provider's export beside them.

use std::fs;
use std::sync::Arc;

use oncegate_core::identity::RecordId;
use oncegate_core::record::{Doubt, Grant, Record, State};
use oncegate_core::response::{Answer, Response};
use oncegate_core::scope::{Address, Operation, Scope};
use oncegate_core::time::Timestamp;

use crate::desk::Desk;

use crate::running::{FAR_AHEAD, begun};
pub(crate) use crate::running::{MORNING, after};
/// The day that is compared.
pub(crate) const DAY: &str = "--since 2026-03-02T00:00:00Z --until 2026-03-03T00:00:00Z";

/// Paid, of this many cents.
pub(crate) fn paid(key: &str, cents: u32) -> Record {
    answered(key, 201, &format!(r#"{{"id":"pay_1","amount":{cents},"currency":"EUR"}}"#))
}

/// Over, with this answer.
pub(crate) fn answered(key: &str, status: u16, body: &str) -> Record {
    let answer = Answer::Kept(Response { status, headers: Vec::new(), body: body.as_bytes().to_vec() });
    over(key, answer)
}

/// Over, with an answer that was too large to keep.
pub(crate) fn not_kept(key: &str) -> Record {
    over(key, Answer::NotKept { status: 201, location: None })
}

fn over(key: &str, answer: Answer) -> Record {
    let state = State::Completed(Arc::new(answer));
    Record { state, settled_at: Some(after(2)), expires_at: Some(FAR_AHEAD), ..running(key) }
}

pub(crate) fn released(key: &str) -> Record {
    let (settled_at, expires_at) = (Some(after(2)), Some(FAR_AHEAD));
    Record { state: State::FailedRetryable, settled_at, expires_at, ..running(key) }
}

pub(crate) fn tombstone(key: &str) -> Record {
    Record { state: State::Expired, ..released(key) }
}

pub(crate) fn doubted(key: &str) -> Record {
    let doubt = Doubt { since: after(3), reconcile_after: FAR_AHEAD, tries: 0, parked: false };
    Record { state: State::Unknown(doubt), ..running(key) }
}

pub(crate) fn parked(key: &str) -> Record {
    let doubt = Doubt { since: after(3), reconcile_after: FAR_AHEAD, tries: 20, parked: true };
    Record { state: State::Unknown(doubt), ..running(key) }
}

/// Its holder is gone.
pub(crate) fn lapsed(key: &str) -> Record {
    let record = running(key);
    let grant = record.grant.map(|grant| Grant { lease_until: after(60), ..grant });
    Record { grant, ..record }
}

pub(crate) fn running(key: &str) -> Record {
    begun(Scope::tenant("acme").unwrap(), key)
}

/// Another tenant's.
pub(crate) fn of(tenant: &str, record: Record) -> Record {
    let address = Address { scope: Scope::tenant(tenant).unwrap(), key: record.address.key.clone() };
    Record { id: RecordId::of(&address), address, ..record }
}

/// Of another route, which has its own keys.
pub(crate) fn of_route(operation: &str, record: Record) -> Record {
    let operation = Operation::new(operation).unwrap();
    let scope = Scope::tenant_and_operation("acme", &operation).unwrap();
    let address = Address { scope, key: record.address.key.clone() };
    Record { id: RecordId::of(&address), address, operation, ..record }
}

pub(crate) fn created(at: Timestamp, record: Record) -> Record {
    Record { created_at: at, ..record }
}

/// A desk with these records in its store, and this export.
pub(crate) fn desk(records: Vec<Record>, file: &str, export: &str) -> Desk {
    let desk = Desk::with(records);
    fs::write(desk.path().join(file), export).unwrap();
    desk
}

/// What is seen of comparing that day with `export.csv`.
#[track_caller]
pub(crate) fn compare(desk: &Desk, flags: &str) -> String {
    desk.ask(&format!("compare --provider-export export.csv {DAY} {flags}"))
}

/// Kinds and keys of the differences, and the exit code.
#[track_caller]
pub(crate) fn found(desk: &Desk, flags: &str) -> (i32, Vec<String>) {
    let line =
        format!("compare --provider-export export.csv --report csv --store sqlite://oncegate.db {flags}");
    let line = if flags.contains("--since") { line } else { format!("{line} {DAY}") };
    let output = desk.command(&line).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(text.starts_with("kind,key,"), "{said}");
    let rows = text.lines().skip(1).map(|row| row.splitn(3, ',').take(2).collect::<Vec<_>>().join(" "));
    (output.status.code().unwrap(), rows.collect())
}
