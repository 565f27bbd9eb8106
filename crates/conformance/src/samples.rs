//! Records to write. Most are made by `decide`; the ones that fill every field are made by hand.

use std::sync::Arc;
use std::time::Duration;

use oncegate_core::audit::{Act, Entry, Subject};
use oncegate_core::decide::{Admission, Arrival, Event, Misuse, Next, Notice, decide};
use oncegate_core::fingerprint::{Fingerprint, Members};
use oncegate_core::identity::{Fence, RecordId, Token, Version};
use oncegate_core::key::Key;
use oncegate_core::policy::{Credentials, ForwardKey};
use oncegate_core::record::{
    AfterRetention, CrashPolicy, Doubt, Evidence, Execution, GoneStatus, Grant, Reason, Record,
    RecoveryPoint, RetentionFrom, State, StateKind, StoredRequest, Terms,
};
use oncegate_core::response::{Answer, Response};
use oncegate_core::scope::{Address, Operation, Scope};
use oncegate_core::time::{Now, Timestamp};

/// A moment long past: what ends there is over by every clock.
pub const LONG_AGO: Timestamp = Timestamp::from_micros(1_600_000_000_000_000);
/// A moment far ahead: what ends there lives by every clock.
pub const FAR_AHEAD: Timestamp = Timestamp::from_micros(4_000_000_000_000_000);

/// The address of `key` in the scope of `tenant`.
#[must_use]
pub fn address(tenant: &str, key: &str) -> Address {
    Address {
        scope: Scope::tenant(tenant).expect("a valid tenant"),
        key: Key::from_text(key).expect("a valid key"),
    }
}

/// A token told apart by `n`.
#[must_use]
pub fn token(n: u64) -> Token {
    let mut bytes = [0xA5; 16];
    bytes[..8].copy_from_slice(&n.to_le_bytes());
    Token::from_bytes(bytes)
}

/// An arrival of `key`, with token `n`.
#[must_use]
pub fn arrival(key: &str, n: u64) -> Arrival {
    Arrival {
        address: address("tenant", key),
        operation: Operation::new("POST /payments").expect("a valid pattern"),
        fingerprint: Fingerprint::from_parts(1, [7; 32]),
        former_fingerprint: None,
        token: token(n),
        terms: Terms {
            crash: CrashPolicy::Reconcile,
            retention: Duration::from_hours(24),
            retention_from: RetentionFrom::Settlement,
            after_retention: AfterRetention::Fresh,
            horizon: None,
            forward_key: Some(ForwardKey::AsIs),
        },
        execution: Execution::Inline,
        lease: Duration::from_mins(1),
        attempt_deadline: Duration::from_mins(15),
        misuse: Misuse::Refuse,
        request: None,
        sent_at: None,
        admission: Admission::Open,
    }
}

/// A reserved row of `key`, with token `n`, made at `now`.
#[must_use]
pub fn reserved(key: &str, n: u64, now: Timestamp) -> Record {
    reserved_at(address("tenant", key), n, now)
}

/// A reserved row at `address`.
#[must_use]
pub fn reserved_at(address: Address, n: u64, now: Timestamp) -> Record {
    let arrival = Arrival { address, ..arrival("any", n) };
    match decide(None, &Event::Arrive(arrival), Now::exact(now)).next {
        Next::Put(record) => Arc::unwrap_or_clone(record),
        other => panic!("a new key is reserved, not {other:?}"),
    }
}

/// The same row, one version on, in another state that ends or is due at `moment`.
#[must_use]
pub fn moved_to(record: &Record, state: StateKind, moment: Timestamp) -> Record {
    let mut next = record.clone();
    next.version = Version::from_raw(record.version.as_raw() + 1);
    next.expires_at = None;
    next.settled_at = None;
    next.execution = Execution::Inline;
    next.state = match state {
        StateKind::Pending => {
            next.execution = Execution::Deferred;
            next.expires_at = Some(FAR_AHEAD);
            State::Pending { run_after: moment }
        }
        StateKind::InProgress => {
            next.grant = next.grant.map(|grant| Grant { lease_until: moment, ..grant });
            State::InProgress
        }
        StateKind::Unknown => {
            State::Unknown(Doubt { since: LONG_AGO, reconcile_after: moment, tries: 1, parked: false })
        }
        StateKind::Completed => State::Completed(answer(201, b"{}")),
        StateKind::FailedRetryable => State::FailedRetryable,
        StateKind::Expired => State::Expired,
    };
    if matches!(state, StateKind::Completed | StateKind::FailedRetryable | StateKind::Expired) {
        next.expires_at = Some(moment);
        next.settled_at = Some(LONG_AGO);
    }
    next
}

/// A parked `unknown`.
#[must_use]
pub fn parked(record: &Record) -> Record {
    let mut next = moved_to(record, StateKind::Unknown, LONG_AGO);
    if let State::Unknown(doubt) = &mut next.state {
        doubt.parked = true;
    }
    next
}

/// A request that was kept.
#[must_use]
pub fn stored_request() -> StoredRequest {
    StoredRequest {
        method: "POST".into(),
        target: "/a?b=%20".into(),
        headers: vec![("x".to_owned(), vec![0xFF])],
        body: vec![0, 1, 2],
        credentials: Some(Credentials::Kept),
    }
}

/// An answer with this status and body.
#[must_use]
pub fn answer(status: u16, body: &[u8]) -> Arc<Answer> {
    let headers = vec![
        ("content-type".to_owned(), b"application/json".to_vec()),
        ("x-twice".to_owned(), b"1".to_vec()),
        ("x-twice".to_owned(), vec![0xFF, 0x00, 0x80]),
    ];
    Arc::new(Answer::Kept(Response { status, headers, body: body.to_vec() }))
}

/// Records that together fill every field with every shape of value.
#[must_use]
pub fn every_shape() -> Vec<Record> {
    let operation = Operation::new("POST /ünïcode/{id}").expect("a valid pattern");
    let wide = Address {
        scope: Scope::tenant_and_operation("tenant 'quoted\" ; -- \u{1F600}", &operation)
            .expect("a valid scope"),
        key: Key::from_text("key 'with' \"quotes\" %_ \\ and spaces").expect("a valid key"),
    };
    let plain = reserved("plain", 1, LONG_AGO);
    let mut full = reserved_at(wide, 2, FAR_AHEAD);
    full.life = token(99);
    full.operation = operation;
    let members = Members::from_bytes(&[1, 2, 3, 4]).expect("two digests");
    full.fingerprint = Fingerprint::from_parts(3, [0xEE; 32]).with_members(members);
    full.terms = Terms {
        crash: CrashPolicy::Resume,
        retention: Duration::from_micros(1),
        retention_from: RetentionFrom::Creation,
        after_retention: AfterRetention::Gone {
            status: GoneStatus::NotFound,
            tombstone: Duration::from_secs(5),
        },
        horizon: Some(Duration::from_micros(123_456_789)),
        forward_key: Some(ForwardKey::Derived),
    };
    full.fence = Fence::from_raw(i64::MAX);
    full.attempts = u32::MAX;
    full.last_error = Some(Reason::new("code", "detail: with colon, 'quotes' and \u{1F600}"));
    full.evidence =
        Some(Evidence { at: LONG_AGO, source: "webhook \u{1F600}".into(), answer: answer(402, b"\x00\xff") });
    full.provider_reference = Some("ch_'1\"".into());
    full.recovery = Some(RecoveryPoint { name: "charged".into(), output: vec![0, 255, 39] });
    full.request = Some(stored_request());
    full.unaccounted = true;

    let mut rows = vec![plain.clone(), full];
    let states = [
        StateKind::Pending,
        StateKind::InProgress,
        StateKind::Completed,
        StateKind::FailedRetryable,
        StateKind::Unknown,
        StateKind::Expired,
    ];
    for (n, state) in states.into_iter().enumerate() {
        let base = reserved(&format!("state-{n}"), 10 + n as u64, LONG_AGO);
        let mut row = moved_to(&base, state, FAR_AHEAD);
        row.terms.crash = [CrashPolicy::Reconcile, CrashPolicy::Resume, CrashPolicy::Restart][n % 3];
        let tombstone = Duration::from_secs(n as u64);
        row.terms.after_retention = [
            AfterRetention::Fresh,
            AfterRetention::Gone { status: GoneStatus::Gone, tombstone },
            AfterRetention::Gone { status: GoneStatus::NotFound, tombstone },
        ][n % 3];
        row.terms.forward_key =
            [None, Some(ForwardKey::AsIs), Some(ForwardKey::Derived), Some(ForwardKey::None)][n % 4];
        rows.push(row);
    }
    rows.push(parked(&reserved("parked", 20, LONG_AGO)));
    let (long, mebibyte) = (vec![b'x'; 5_000], vec![0xA5; 1 << 20]);
    let bodies: [&[u8]; 4] = [b"", b"\xff\xfe\x00", &long, &mebibyte];
    for (n, body) in bodies.into_iter().enumerate() {
        let mut row =
            moved_to(&reserved(&format!("body-{n}"), 30, LONG_AGO), StateKind::Completed, FAR_AHEAD);
        row.state = State::Completed(answer(if body.is_empty() { 204 } else { 200 }, body));
        rows.push(row);
    }
    let mut not_kept = moved_to(&reserved("not-kept", 40, LONG_AGO), StateKind::Completed, FAR_AHEAD);
    not_kept.state =
        State::Completed(Arc::new(Answer::NotKept { status: 200, location: Some(b"/x".to_vec()) }));
    rows.push(not_kept);
    let mut waiting = moved_to(&reserved("never-taken", 41, LONG_AGO), StateKind::Pending, LONG_AGO);
    waiting.grant = None;
    waiting.attempts = 0;
    waiting.last_run_at = None;
    rows.push(waiting);
    rows
}

/// What is told of `row`, with something in every field.
#[must_use]
pub fn entry(row: &Record, at: Timestamp, act: Act) -> Entry {
    Entry {
        id: row.id,
        at,
        node: "node-1".into(),
        act,
        subject: Some(Subject::of(row)),
        life: row.life,
        from: Some(StateKind::InProgress),
        to: Some(row.state.kind()),
        version: row.version,
        fence: row.fence,
        attempt: 3,
        source: Some("webhook stripe \u{1F4B6}".into()),
        reason: Some(Reason::new("timeout", "no answer: in 60 s\nand more")),
        notices: vec![Notice::Zombie, Notice::Parked],
    }
}

/// The id of `key` in the usual scope.
#[must_use]
pub fn id(key: &str) -> RecordId {
    RecordId::of(&address("tenant", key))
}
