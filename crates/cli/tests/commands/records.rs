//! Records in every state, of a day in March 2026: what is shown of them is the same on every day.

use std::sync::Arc;

use oncegate_core::record::{Doubt, Execution, Grant, Reason, Record, State};
use oncegate_core::response::{Answer, Response};
use oncegate_core::scope::{Operation, Scope};

pub(crate) use crate::running::MORNING;
use crate::running::{FAR_AHEAD, after, begun};

/// One of each, and two of one key.
pub(crate) fn all() -> Vec<Record> {
    vec![
        tombstone("order-0000-payment"),
        paid("acme", "order-0001-payment"),
        paid("other", "order-0001-payment"),
        declined("order-0002-payment"),
        released("order-0003-payment"),
        doubted("order-0004-payment"),
        parked("order-0005-payment"),
        running("order-0006-payment"),
        waiting("order-0007-payment"),
        not_kept("export-2026-02-of-everything-there-is-in-all-accounts"),
        of_a_route("order-0008-payment"),
    ]
}

pub(crate) fn paid(tenant: &str, key: &str) -> Record {
    let body = format!(r#"{{"id":"pay_17","of":"{tenant}","status":"succeeded"}}"#);
    completed(begun(Scope::tenant(tenant).unwrap(), key), 201, body.into_bytes())
}

pub(crate) fn declined(key: &str) -> Record {
    completed(acme(key), 402, br#"{"status":"declined"}"#.to_vec())
}

/// An answer that is not text.
pub(crate) fn binary(key: &str) -> Record {
    completed(acme(key), 200, vec![0, 0xFF, 0x1B])
}

/// An answer that would clear the operator's screen.
pub(crate) fn hostile(key: &str) -> Record {
    completed(acme(key), 200, b"before\x1b[2Jafter".to_vec())
}

pub(crate) fn released(key: &str) -> Record {
    let mut record = settled(acme(key));
    record.last_error = Some(Reason::new("upstream_unreachable", "the upstream refused the connection"));
    Record { state: State::FailedRetryable, ..record }
}

pub(crate) fn doubted(key: &str) -> Record {
    let doubt = Doubt { since: after(3), reconcile_after: FAR_AHEAD, tries: 0, parked: false };
    let last_error = Some(Reason::new("upstream_answer", "the upstream answered 504"));
    Record { state: State::Unknown(doubt), last_error, ..acme(key) }
}

pub(crate) fn parked(key: &str) -> Record {
    let doubt = Doubt { since: after(3), reconcile_after: FAR_AHEAD, tries: 20, parked: true };
    let last_error = Some(Reason::new("upstream_timeout", "no answer within 60s"));
    let provider_reference = Some("ch_17".into());
    Record { state: State::Unknown(doubt), last_error, provider_reference, ..acme(key) }
}

pub(crate) fn running(key: &str) -> Record {
    acme(key)
}

/// Its holder is gone.
pub(crate) fn lapsed(key: &str) -> Record {
    let record = acme(key);
    let grant =
        record.grant.map(|grant| Grant { lease_until: after(60), attempt_deadline: after(900), ..grant });
    Record { grant, ..record }
}

pub(crate) fn waiting(key: &str) -> Record {
    Record {
        state: State::Pending { run_after: FAR_AHEAD },
        execution: Execution::Deferred,
        grant: None,
        attempts: 0,
        last_run_at: None,
        expires_at: Some(FAR_AHEAD),
        ..acme(key)
    }
}

pub(crate) fn not_kept(key: &str) -> Record {
    let answer = Answer::NotKept { status: 200, location: Some(b"/exports/17".to_vec()) };
    Record { state: State::Completed(Arc::new(answer)), ..settled(acme(key)) }
}

pub(crate) fn tombstone(key: &str) -> Record {
    Record { state: State::Expired, ..settled(acme(key)) }
}

/// Settled, and past its retention, with nobody having removed it yet.
pub(crate) fn forgotten(key: &str) -> Record {
    Record { expires_at: Some(after(60)), ..declined(key) }
}

/// Its scope is a tenant and a route.
pub(crate) fn of_a_route(key: &str) -> Record {
    let operation = Operation::new("POST /payments").unwrap();
    let record = begun(Scope::tenant_and_operation("acme", &operation).unwrap(), key);
    completed(record, 201, b"{}".to_vec())
}

fn completed(record: Record, status: u16, body: Vec<u8>) -> Record {
    let headers = vec![
        ("content-type".to_owned(), b"application/json".to_vec()),
        ("location".to_owned(), b"/payments/pay_17".to_vec()),
    ];
    let answer = Answer::Kept(Response { status, headers, body });
    Record { state: State::Completed(Arc::new(answer)), ..settled(record) }
}

fn settled(record: Record) -> Record {
    Record { settled_at: Some(after(2)), expires_at: Some(FAR_AHEAD), ..record }
}

fn acme(key: &str) -> Record {
    begun(Scope::tenant("acme").unwrap(), key)
}
