//! A record in progress: what all others are made of.

use std::time::Duration;

use oncegate_core::fingerprint::Fingerprint;
use oncegate_core::identity::{Fence, RecordId, Token, Version};
use oncegate_core::key::Key;
use oncegate_core::policy::ForwardKey;
use oncegate_core::record::{
    AfterRetention, CrashPolicy, Execution, Grant, Record, RetentionFrom, State, Terms,
};
use oncegate_core::scope::{Address, Operation, Scope};
use oncegate_core::time::Timestamp;

/// 2026-03-02T09:00:00Z
pub(crate) const MORNING: Timestamp = Timestamp::from_micros(1_772_442_000_000_000);
/// 2126-03-02T09:00:00Z
pub(crate) const FAR_AHEAD: Timestamp = Timestamp::from_micros(4_928_115_600_000_000);

/// So many seconds into that morning.
pub(crate) fn after(seconds: u64) -> Timestamp {
    MORNING.plus(Duration::from_secs(seconds))
}

/// Begun in the morning, and still running.
pub(crate) fn begun(scope: Scope, key: &str) -> Record {
    let address = Address { scope, key: Key::from_text(key).unwrap() };
    let token = Token::from_bytes([7; 16]);
    Record {
        id: RecordId::of(&address),
        address,
        life: token,
        operation: Operation::new("POST /payments").unwrap(),
        fingerprint: Fingerprint::from_parts(1, [7; 32]),
        terms: Terms {
            crash: CrashPolicy::Reconcile,
            retention: Duration::from_hours(48),
            retention_from: RetentionFrom::Settlement,
            after_retention: AfterRetention::Fresh,
            horizon: None,
            forward_key: Some(ForwardKey::AsIs),
        },
        execution: Execution::Inline,
        state: State::InProgress,
        version: Version::from_raw(MORNING.as_micros()),
        fence: Fence::from_raw(MORNING.as_micros()),
        grant: Some(Grant { token, lease_until: FAR_AHEAD, attempt_deadline: FAR_AHEAD }),
        attempts: 1,
        unaccounted: false,
        last_error: None,
        evidence: None,
        provider_reference: None,
        recovery: None,
        request: None,
        created_at: MORNING,
        last_run_at: Some(MORNING),
        settled_at: None,
        expires_at: None,
    }
}
