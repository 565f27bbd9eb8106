//! Rows and events to decide about. Rows are made by `decide` itself, never by hand: what the tests look at can occur.

use std::sync::Arc;
use std::time::Duration;

use oncegate_core::classify::CALLER_REFUSED;
use oncegate_core::decide::{
    Admission, Arrival, Decision, Event, Finding, Grounds, Lease, Misuse, Next, Reserve, Retry, Step, Take,
    Verdict, decide,
};
use oncegate_core::fingerprint::Fingerprint;
use oncegate_core::identity::{Token, Version};
use oncegate_core::key::Key;
use oncegate_core::policy::{Credentials, ForwardKey};
use oncegate_core::record::{
    AfterRetention, CrashPolicy, Execution, GoneStatus, Holder, Reason, Record, RecoveryPoint, RetentionFrom,
    StoredRequest, Terms,
};
use oncegate_core::response::{Answer, Response};
use oncegate_core::scope::{Address, Operation, Scope};
use oncegate_core::time::{Now, Timestamp};

pub(crate) const S: Duration = Duration::from_secs(1);
pub(crate) const LEASE: Duration = Duration::from_mins(1);
pub(crate) const DEADLINE: Duration = Duration::from_mins(15);
pub(crate) const RETENTION: Duration = Duration::from_hours(24);
pub(crate) const TOMBSTONE: Duration = Duration::from_hours(720);
pub(crate) const HORIZON: Duration = Duration::from_mins(2);

/// Seconds after the beginning of the story.
pub(crate) fn at(seconds: u64) -> Now {
    Now::exact(Timestamp::from_micros(1_700_000_000_000_000).plus(Duration::from_secs(seconds)))
}

pub(crate) fn token(n: u8) -> Token {
    Token::from_bytes([n; 16])
}

pub(crate) fn terms(crash: CrashPolicy) -> Terms {
    Terms {
        crash,
        retention: RETENTION,
        retention_from: RetentionFrom::Settlement,
        after_retention: AfterRetention::Fresh,
        horizon: Some(HORIZON),
        forward_key: Some(ForwardKey::AsIs),
    }
}

pub(crate) fn gone_terms(status: GoneStatus) -> Terms {
    let after_retention = AfterRetention::Gone { status, tombstone: TOMBSTONE };
    Terms { after_retention, ..terms(CrashPolicy::Reconcile) }
}

/// An arrival with token `n`.
pub(crate) fn arrival(n: u8) -> Arrival {
    Arrival {
        address: Address {
            scope: Scope::tenant("tenant").unwrap(),
            key: Key::from_text("key-0001").unwrap(),
        },
        operation: Operation::new("POST /payments").unwrap(),
        fingerprint: Fingerprint::from_parts(1, [1; 32]),
        former_fingerprint: None,
        token: token(n),
        terms: terms(CrashPolicy::Reconcile),
        execution: Execution::Inline,
        lease: LEASE,
        attempt_deadline: DEADLINE,
        misuse: Misuse::Refuse,
        request: None,
        sent_at: None,
        admission: Admission::Open,
    }
}

pub(crate) fn deferred(n: u8) -> Arrival {
    let request = StoredRequest {
        method: "POST".into(),
        target: "/payments".into(),
        headers: vec![],
        body: b"{}".to_vec(),
        credentials: Some(Credentials::Kept),
    };
    Arrival { execution: Execution::Deferred, request: Some(request), ..arrival(n) }
}

pub(crate) fn other_request(arrival: Arrival) -> Arrival {
    Arrival { fingerprint: Fingerprint::from_parts(1, [2; 32]), ..arrival }
}

pub(crate) fn answer(status: u16) -> Arc<Answer> {
    Arc::new(Answer::Kept(Response { status, headers: vec![], body: status.to_string().into_bytes() }))
}

pub(crate) fn reason() -> Reason {
    Reason::new("test", "because")
}

pub(crate) fn point() -> RecoveryPoint {
    RecoveryPoint { name: "charged".into(), output: b"ch_1".to_vec() }
}

pub(crate) fn take(n: u8) -> Event {
    take_under(n, Credentials::Kept)
}

/// A take by a worker whose route says this of its callers' credentials.
pub(crate) fn take_under(n: u8, credentials: Credentials) -> Event {
    Event::Take(Take { token: token(n), lease: LEASE, attempt_deadline: DEADLINE, credentials })
}

/// Deferred work that an earlier release stored, without its caller's credentials.
pub(crate) fn without_caller(arrival: Arrival) -> Arrival {
    let request = deferred(1).request.map(|request| StoredRequest { credentials: None, ..request });
    Arrival { request, ..arrival }
}

/// The upstream answered 401.
pub(crate) fn refuse_caller(holder: Holder) -> Event {
    let reason = Reason::new(CALLER_REFUSED, "401 refused before acting");
    Event::Release { holder, reason, backoff: 5 * S }
}

pub(crate) fn complete(holder: Holder, status: u16) -> Event {
    Event::Complete { holder, answer: answer(status), reference: None }
}

pub(crate) fn release(holder: Holder) -> Event {
    Event::Release { holder, reason: reason(), backoff: 5 * S }
}

pub(crate) fn doubt(holder: Holder) -> Event {
    Event::Doubt { holder, reason: reason() }
}

pub(crate) fn renew(holder: Holder) -> Event {
    Event::Renew { holder, lease: LEASE }
}

pub(crate) fn forget(version: Version) -> Event {
    Event::Forget { version, reason: reason(), cache_age_max: 60 * S }
}

pub(crate) fn reap() -> Event {
    Event::Reap { grace: Duration::ZERO }
}

pub(crate) fn retry(at: Now) -> Retry {
    Retry { at: at.at, park_after: 20 }
}

pub(crate) fn verdict(life: Token, finding: Finding) -> Event {
    Event::Verdict(Verdict { life, source: "probe".into(), reference: None, finding })
}

pub(crate) fn happened(life: Token, status: u16) -> Event {
    verdict(life, Finding::Happened(answer(status)))
}

/// A probe that read `row`, asked, and found this.
pub(crate) fn found(row: &Record, status: u16) -> Event {
    let attempt = row.grant.map(|grant| grant.token);
    verdict(row.life, Finding::Found { answer: answer(status), attempt })
}

/// An event says that some attempt of the life happened.
pub(crate) fn announced(life: Token, status: u16) -> Event {
    verdict(life, Finding::Announced(answer(status)))
}

/// A probe that read `row`, asked at `asked` and found nothing.
pub(crate) fn not_found(row: &Record, asked: Now) -> Event {
    not_found_since_step(row, asked, Timestamp::FIRST)
}

/// The same, by a node that noticed a forward step of the clock at `steady_since`.
pub(crate) fn not_found_since_step(row: &Record, asked: Now, steady_since: Timestamp) -> Event {
    let token = row.grant.map_or(row.life, |grant| grant.token);
    let grounds = Grounds::Probe { token, version: row.version, asked, steady_since };
    did_not_happen(row.life, grounds, asked)
}

pub(crate) fn did_not_happen(life: Token, grounds: Grounds, now: Now) -> Event {
    let otherwise = Retry { at: now.at.plus(5 * S), park_after: 20 };
    verdict(life, Finding::DidNotHappen { grounds, backoff: 5 * S, otherwise })
}

/// A probe that read `row`, asked, and was told nothing.
pub(crate) fn not_known(row: &Record, retry: Retry) -> Event {
    verdict(row.life, Finding::NotKnown { version: row.version, retry })
}

pub(crate) fn clean_up(arrival: Arrival, over: Option<Version>) -> Event {
    Event::CleanUp { reserve: Reserve::Arrival(Box::new(arrival)), over }
}

/// Decides and returns the next row: the old one if it is kept, none if it is removed.
pub(crate) fn apply(row: Option<&Record>, event: &Event, now: Now) -> (Option<Record>, Step) {
    let step = decide(row, event, now);
    let next = match &step.next {
        Next::Keep => row.cloned(),
        Next::Put(next) => Some((**next).clone()),
        Next::Remove { .. } => None,
    };
    (next, step)
}

/// Decides and returns the next row, which must exist.
pub(crate) fn row_after(row: Option<&Record>, event: &Event, now: Now) -> Record {
    apply(row, event, now).0.unwrap()
}

/// Arrives and must be granted a lease.
pub(crate) fn granted(row: Option<&Record>, arrival: Arrival, now: Now) -> (Record, Lease) {
    let (next, step) = apply(row, &Event::Arrive(arrival), now);
    (next.unwrap(), lease_of(&step))
}

pub(crate) fn lease_of(step: &Step) -> Lease {
    match &step.decision {
        Decision::Execute(lease) => lease.clone(),
        other => panic!("expected a grant, got {other:?}"),
    }
}

/// The columns of DESIGN.md's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Absent,
    Pending,
    InProgress,
    Lapsed,
    Completed,
    FailedRetryable,
    Unknown,
    Expired,
}

impl Phase {
    pub(crate) const ALL: [Self; 8] = [
        Self::Absent,
        Self::Pending,
        Self::InProgress,
        Self::Lapsed,
        Self::Completed,
        Self::FailedRetryable,
        Self::Unknown,
        Self::Expired,
    ];
}

/// A row in a phase, the moment at which it is in it, and its holder.
pub(crate) struct Sample {
    pub(crate) row: Option<Record>,
    pub(crate) now: Now,
    pub(crate) holder: Holder,
}

impl Sample {
    /// The row's version, where there is one.
    pub(crate) fn version(&self) -> Version {
        self.row.as_ref().map_or(Version::from_raw(0), |row| row.version)
    }
}

/// A row in `phase`, reserved by token 1 at second 0 and completed, where it is, with 201.
pub(crate) fn sample(phase: Phase, first: &Arrival) -> Sample {
    let first = Arrival { token: token(1), ..first.clone() };
    let pending = || {
        let request = first.request.clone().or(deferred(1).request);
        row_after(None, &Event::Arrive(Arrival { request, ..deferred(1) }), at(0))
    };
    let inline = Arrival { execution: Execution::Inline, ..first.clone() };
    let (running, lease) = match first.execution {
        Execution::Inline => granted(None, inline, at(0)),
        // Deferred work runs once a worker has taken it.
        Execution::Deferred => {
            let waiting = row_after(None, &Event::Arrive(first.clone()), at(0));
            let (row, step) = apply(Some(&waiting), &take(1), at(0));
            (row.unwrap(), lease_of(&step))
        }
    };
    let holder = lease.holder;
    let after = |event: &Event| row_after(Some(&running), event, at(10));
    let tombstone = || {
        let completed = after(&complete(holder, 201));
        let terms = gone_terms(GoneStatus::Gone);
        row_after(Some(&Record { terms, ..completed }), &reap(), at(10 + 86_400))
    };
    let (row, now) = match phase {
        Phase::Absent => (None, at(20)),
        Phase::Pending => (Some(pending()), at(20)),
        Phase::InProgress => (Some(running.clone()), at(20)),
        Phase::Lapsed => (Some(running.clone()), at(61)),
        Phase::Completed => (Some(after(&complete(holder, 201))), at(20)),
        // A doubt by the same holder, then its release, leaves inline work retryable and puts deferred work back.
        Phase::FailedRetryable => (Some(after(&release(holder))), at(20)),
        Phase::Unknown => (Some(after(&doubt(holder))), at(20)),
        Phase::Expired => (Some(tombstone()), at(10 + 86_400 + 10)),
    };
    Sample { row, now, holder }
}
