//! The next rows, in detail: which fields change when a record moves from one state to another.
//!
//! Nothing here decides; [`super`] does. What every move has in common is that the version grows.

use std::sync::Arc;
use std::time::Duration;

use super::event::Arrival;
use super::step::{Decision, Notice, Step};
use crate::classify::{CALLER_REFUSED, CALLER_REFUSED_KEPT, UPSTREAMS_WORD};
use crate::identity::{Fence, RecordId, Token, Version};
use crate::problem::{self, Tried};
use crate::record::{
    AfterRetention, Doubt, Evidence, Execution, GoneStatus, Grant, Reason, Record, RetentionFrom, State,
};
use crate::response::Answer;
use crate::time::{Now, Timestamp};

/// What a "no effect" accounts for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Account {
    /// The attempt that ends now.
    ThisAttempt,
    /// All attempts of the life: a probe past the horizon.
    Life,
    /// All attempts and their phases: a person who has looked.
    Everything,
}

/// The same row, one version on.
pub(super) fn touched(record: &Record, now: Now) -> Record {
    let mut next = record.clone();
    next.version = Version::next(Some(record.version), now.at);
    next
}

/// The same row, one version and one fence on.
pub(super) fn fenced_anew(record: Record, now: Now) -> Record {
    Record {
        version: Version::next(Some(record.version), now.at),
        fence: Fence::next(Some(record.fence), now.at),
        ..record
    }
}

/// A row at the beginning of a life; it has neither grant nor place in a queue yet.
pub(super) fn begun(previous: Option<&Record>, arrival: &Arrival, now: Now) -> Record {
    Record {
        id: RecordId::of(&arrival.address),
        address: arrival.address.clone(),
        life: arrival.token,
        operation: arrival.operation.clone(),
        fingerprint: arrival.fingerprint,
        terms: arrival.terms,
        execution: arrival.execution,
        state: State::InProgress,
        version: Version::next(previous.map(|p| p.version), now.at),
        fence: Fence::next(previous.map(|p| p.fence), now.at),
        grant: None,
        attempts: 0,
        unaccounted: false,
        last_error: None,
        evidence: None,
        provider_reference: None,
        recovery: None,
        request: arrival.request.clone(),
        created_at: now.at,
        last_run_at: None,
        settled_at: None,
        expires_at: None,
    }
}

/// A row that takes the place of a doubted insert, so that it cannot land: the key is free for the client's retry.
pub(super) fn refused_reserve(arrival: &Arrival, reason: Reason, now: Now) -> Record {
    let grant = Grant { token: arrival.token, lease_until: now.at, attempt_deadline: now.at };
    // Nobody was told that it would be run: it waits for its client, and keeps no request.
    let row = Record {
        grant: Some(grant),
        last_error: Some(reason),
        execution: Execution::Inline,
        request: None,
        ..begun(None, arrival, now)
    };
    settled(&row, State::FailedRetryable, now)
}

/// The code of the reason that a quarantined record carries; its words are the windows' ids.
pub const QUARANTINED: &str = "quarantined";

/// A life that may not begin or go on, because a part of the store's history was lost: it waits for an operator.
///
/// One that never began has no grant, so no probe can say that it did not happen: that would be said of this
/// life, and not of the one that was lost. A life that is on record keeps its grant: what it did in the lost time
/// is found by its name.
pub(super) fn quarantined(begun: Record, windows: &str, now: Now) -> Record {
    // The latest moment that this can be: if an operator has it asked about, the horizon counts
    // from it.
    let doubt =
        Doubt { since: now.at.plus(now.error), reconcile_after: now.earliest(), tries: 0, parked: true };
    Record {
        state: State::Unknown(doubt),
        last_error: Some(Reason::new(QUARANTINED, windows)),
        unaccounted: true,
        expires_at: unsettled_end(&begun),
        ..begun
    }
}

/// Puts a grant into a row whose version and fence are already new. The lease counts from `now`, which the caller sampled
/// before it submitted the write.
pub(super) fn granted(
    mut next: Record,
    token: Token,
    lease: Duration,
    attempt_deadline: Duration,
    now: Now,
) -> Record {
    let attempt_deadline = now.at.plus(attempt_deadline);
    let lease_until = now.at.plus(lease).min(attempt_deadline);
    next.state = State::InProgress;
    next.grant = Some(Grant { token, lease_until, attempt_deadline });
    next.attempts = next.attempts.saturating_add(1);
    next.last_run_at = Some(now.at);
    next.settled_at = None;
    next.expires_at = unsettled_end(&next);
    next
}

/// In the queue from `run_after` on, given up at `until`.
pub(super) fn queued(record: &Record, run_after: Timestamp, until: Timestamp, now: Now) -> Record {
    let mut next = touched(record, now);
    next.execution = Execution::Deferred;
    next.state = State::Pending { run_after };
    next.settled_at = None;
    next.expires_at = Some(until);
    next
}

/// What was to run at once is deferred from now on, if it was not, with the request that comes: nobody else would run it again.
pub(super) fn deferred_by(record: Record, arrival: &Arrival, now: Now) -> Record {
    if record.execution == Execution::Deferred {
        return record;
    }
    Record {
        execution: Execution::Deferred,
        expires_at: Some(now.at.plus(record.terms.retention)),
        request: record.request.clone().or_else(|| arrival.request.clone()),
        ..record
    }
}

/// When deferred work is given up. It was told to whoever was answered 202, so it stays, however often it is queued again.
pub(super) fn waiting_end(record: &Record) -> Timestamp {
    unsettled_end(record).unwrap_or(record.created_at.plus(record.terms.retention))
}

/// What `expires_at` is while nothing is settled.
fn unsettled_end(record: &Record) -> Option<Timestamp> {
    match record.execution {
        Execution::Inline => None,
        Execution::Deferred => record.expires_at,
    }
}

/// Deferred work whose time ran out before anybody could run it to its end. Its stored 408 says that no attempt is known to have had an
/// effect, so it is only given where each is accounted for; what may have acted is in doubt instead.
pub(super) fn give_up_waiting(record: &Record, now: Now) -> Record {
    if may_have_acted(record) {
        return enter_unknown(
            record,
            Reason::new("waited_too_long", "queued again after a lapsed lease"),
            now,
        );
    }
    completed(record, Arc::new(problem::not_started(tried(record))), now)
}

/// Whether anybody has begun it. Those that are neither in doubt nor over were released.
pub(super) const fn tried(record: &Record) -> Tried {
    if record.attempts == 0 { Tried::Never } else { Tried::Released }
}

/// Some attempt of this life may have acted, or has: one that lapsed unaccounted for, or the phases up to a recovery point.
pub(super) const fn may_have_acted(record: &Record) -> bool {
    record.unaccounted || record.recovery.is_some()
}

pub(super) fn completed(record: &Record, answer: Arc<Answer>, now: Now) -> Record {
    let mut next = settled(record, State::Completed(answer), now);
    next.unaccounted = false;
    next.evidence = None;
    next.request = None;
    next.recovery = None;
    next
}

fn settled(record: &Record, state: State, now: Now) -> Record {
    let mut next = touched(record, now);
    next.state = state;
    next.settled_at = Some(now.at);
    next.expires_at = Some(retention_end(record, now));
    next
}

/// No effect by this attempt, or by the whole life. If an effect of this life is proved all the same, that settles it.
pub(super) fn back_out(
    record: &Record,
    reason: &Reason,
    backoff: Duration,
    account: Account,
    now: Now,
) -> Record {
    if let Some(evidence) = &record.evidence {
        return completed(record, Arc::clone(&evidence.answer), now);
    }
    let is_accounted_for = match account {
        Account::ThisAttempt => !may_have_acted(record),
        // What was reached is known to have acted, whatever else a probe does not find.
        Account::Life => record.recovery.is_none(),
        Account::Everything => true,
    };
    let mut next = match record.execution {
        Execution::Deferred if is_refused_again(record, reason) => {
            let words = "the attempt before was refused, too, so it is not tried again";
            return parked(record, Reason::new(CALLER_REFUSED, format!("{}; {words}", reason.detail())), now);
        }
        // Nobody else will run it again.
        Execution::Deferred => queued(record, now.at.plus(backoff), waiting_end(record), now),
        Execution::Inline if is_accounted_for && never_passed_caller(record, reason) => {
            refused_caller(record, now)
        }
        Execution::Inline if is_accounted_for => settled(record, State::FailedRetryable, now),
        // This attempt did nothing, but another may have: the lease ends, and the crash policy goes on from there. A settled
        // row could be reaped or forgotten, and a new life would not know what this one may have done.
        Execution::Inline => lapsed_now(record, now),
    };
    next.unaccounted = record.unaccounted && !is_accounted_for;
    if account == Account::Everything {
        next.recovery = None;
    }
    next.last_error = Some(match record.execution {
        // Another attempt ended otherwise: the record must not be taken for a short-lived one
        // later.
        Execution::Inline if !never_passed_caller(record, reason) && is_refusal(reason) => {
            Reason::new(UPSTREAMS_WORD, reason.detail())
        }
        Execution::Deferred if is_refusal(reason) => Reason::new(CALLER_REFUSED, reason.detail()),
        Execution::Inline | Execution::Deferred => reason.clone(),
    });
    next
}

/// How long a record is kept of which nothing is known but that the upstream refused its caller.
const REFUSED_CALLER_KEPT: Duration = Duration::from_secs(10);

fn is_refusal(reason: &Reason) -> bool {
    [CALLER_REFUSED, CALLER_REFUSED_KEPT].contains(&reason.code())
}

/// Whether the upstream refused the caller of every attempt of this life, and nothing else is known
/// of it. Then a new life under the same key has nothing to know of this one.
fn never_passed_caller(record: &Record, reason: &Reason) -> bool {
    reason.code() == CALLER_REFUSED
        && record.last_error.as_ref().is_none_or(is_refusal)
        && record.provider_reference.is_none()
}

/// The upstream refused the caller of this attempt, as it did that of the one before: with the same
/// credentials it will do so every time.
fn is_refused_again(record: &Record, reason: &Reason) -> bool {
    is_refusal(reason) && record.last_error.as_ref().is_some_and(is_refusal)
}

/// A record that anybody can cause to be written by inventing credentials: it ends within seconds.
///
/// The next life takes its version and fence from the clock, which must have passed this one's.
fn refused_caller(record: &Record, now: Now) -> Record {
    let mut next = settled(record, State::FailedRetryable, now);
    let numbers = next.version.as_raw().max(next.fence.as_raw());
    let until = now.at.max(Timestamp::from_micros(numbers)).plus(REFUSED_CALLER_KEPT);
    next.expires_at = next.expires_at.map(|end| end.min(until));
    next
}

/// Put before an operator: no worker runs it, and no machine asks about it.
pub(super) fn parked(record: &Record, reason: Reason, now: Now) -> Record {
    let mut next = enter_unknown(record, reason, now);
    if let State::Unknown(doubt) = &mut next.state {
        doubt.parked = true;
    }
    next
}

/// In progress with a lease that is over by every clock.
fn lapsed_now(record: &Record, now: Now) -> Record {
    let mut next = touched(record, now);
    next.state = State::InProgress;
    next.unaccounted = true;
    if let Some(grant) = &mut next.grant {
        grant.lease_until = grant.lease_until.min(now.earliest());
        // Nor can a renewal that is under way bring it back.
        grant.attempt_deadline = grant.lease_until;
    }
    next
}

/// `unknown`, and then the evidence: what is already proved need not be asked.
pub(super) fn enter_unknown(record: &Record, reason: Reason, now: Now) -> Record {
    // A success speaks for the life, a refusal only for the attempt that was refused.
    if let Some(evidence) = &record.evidence
        && (evidence.answer.is_success() || record.attempts <= 1)
    {
        return completed(record, Arc::clone(&evidence.answer), now);
    }
    let mut next = touched(record, now);
    next.evidence = None;
    // The latest moment that this can be: the horizon is counted from it, by other nodes' clocks.
    let since = now.at.plus(now.error);
    next.state = State::Unknown(Doubt { since, reconcile_after: now.earliest(), tries: 0, parked: false });
    next.last_error = Some(reason);
    next.settled_at = None;
    next.expires_at = unsettled_end(record);
    next
}

/// Keeps a *happened* for later. The first account stands, unless a success follows a failure: money that moved weighs
/// more.
pub(super) fn with_evidence(
    record: &Record,
    source: &str,
    reference: Option<&str>,
    answer: &Arc<Answer>,
    now: Now,
) -> Step {
    let keeps_first =
        record.evidence.as_ref().is_some_and(|kept| kept.answer.is_success() || !answer.is_success());
    if keeps_first {
        return Step::keep(Decision::Done);
    }
    let mut next = touched(record, now);
    next.evidence = Some(Evidence { at: now.at, source: source.into(), answer: Arc::clone(answer) });
    next.provider_reference = reference.map(Box::from).or(next.provider_reference);
    Step::put(next, Decision::Done).noting(Notice::EvidenceKept)
}

/// A tombstone keeps identity, fence and version, and nothing of the contents.
pub(super) fn buried(record: &Record, until: Timestamp, now: Now) -> Record {
    let mut next = touched(record, now);
    next.state = State::Expired;
    next.evidence = None;
    next.request = None;
    next.recovery = None;
    next.expires_at = Some(until);
    next
}

/// From creation only where the first attempt itself is settled in that time: a doubt that ends later, or a proof that comes later,
/// must not be over before its client can ask for it.
fn retention_end(record: &Record, now: Now) -> Timestamp {
    let from_settlement = now.at.plus(record.terms.retention);
    let from_creation = record.created_at.plus(record.terms.retention);
    match (record.terms.retention_from, &record.state) {
        (RetentionFrom::Creation, State::InProgress) if from_creation > now.at && record.attempts <= 1 => {
            from_creation
        }
        (RetentionFrom::Creation | RetentionFrom::Settlement, _) => from_settlement,
    }
}

pub(super) fn tombstone_end(record: &Record) -> Option<Timestamp> {
    match (&record.state, record.terms.after_retention) {
        (State::Completed(_), AfterRetention::Gone { tombstone, .. }) => {
            record.expires_at.map(|end| end.plus(tombstone))
        }
        _ => record.expires_at,
    }
}

/// A forgotten key of a `fresh` route is gone too, until every cache has dropped it.
pub(super) const fn gone_status(record: &Record) -> GoneStatus {
    match record.terms.after_retention {
        AfterRetention::Fresh => GoneStatus::Gone,
        AfterRetention::Gone { status, .. } => status,
    }
}

/// A row in progress always carries a grant; one that does not has no lease to wait for.
pub(super) fn lease_end(record: &Record) -> Timestamp {
    record.grant.map_or(record.created_at, |grant| grant.lease_until)
}

pub(super) fn lapsed() -> Reason {
    Reason::new("lapsed", "the holder's lease ended before it settled; it may have acted")
}
