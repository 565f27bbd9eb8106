//! Decides what may happen next, given what the store knows. This file is the whole truth.
//!
//! Pure: no clock, no I/O, no randomness. The caller passes the row it read, an event and [`Now`]; it gets the next row
//! and a decision, writes the row on the condition that its version has not changed, and decides again if it has.
//!
//! **Invariants**
//! - Each fence of a key is granted once, also across lives.
//! - *Happened* is absorbing: whoever proves it, whenever, an effect of this life is never followed by another grant
//!   under `reconcile`. *Did not happen* needs proof that it can no longer happen.
//! - Nothing leaves `unknown` by time alone, and `in_progress` and `unknown` are never reaped.
//! - Only a holder whose token *and* fence are in the row settles an attempt; everybody else is shown the row.
//!
//! Not here: waiting and sending (`tower`), writing (stores), status codes ([`crate::problem`]).

use std::sync::Arc;
use std::time::Duration;

use crate::fingerprint::Comparison;
use crate::identity::{Fence, RecordId, Token, Version};
use crate::problem;
use crate::record::{
    AfterRetention, CrashPolicy, Doubt, Evidence, Execution, GoneStatus, Grant, Holder, Reason, Record,
    RecoveryPoint, RetentionFrom, State,
};
use crate::response::Answer;
use crate::time::{Now, Timestamp};

mod event;
mod step;

pub use event::{Arrival, Event, Finding, Grounds, Misuse, Retry, Take, Verdict};
pub use step::{Decision, Lease, Next, Notice, Refusal, Step};

/// Decides what `event` does to `record` (`None`: no row) at `now`.
pub fn decide(record: Option<&Record>, event: &Event, now: Now) -> Step {
    match (event, record) {
        (Event::Arrive(arrival), _) => arrive(record, arrival, now),
        (Event::CleanUp { arrival, over }, _) => clean_up(record, arrival, *over, now),
        (Event::Verdict(verdict), _) => hear(record, verdict, now),

        (Event::Advance { .. } | Event::Complete { .. }, None) => Step::keep(Decision::Fenced(None)),
        (Event::Release { .. } | Event::Doubt { .. } | Event::Renew { .. }, None) => {
            Step::keep(Decision::Fenced(None))
        }
        (Event::Take(_) | Event::Sweep | Event::Forget { .. } | Event::Reap { .. }, None) => {
            Step::keep(Decision::Nothing)
        }

        (Event::Take(take), Some(record)) => self::take(record, take, now),
        (Event::Advance { holder, point }, Some(record)) => advance(record, holder, point, now),
        (Event::Complete { holder, answer }, Some(record)) => complete(record, holder, answer, now),
        (Event::Release { holder, reason, backoff }, Some(record)) => {
            release(record, holder, reason, *backoff, now)
        }
        (Event::Doubt { holder, reason }, Some(record)) => doubt(record, holder, reason, now),
        (Event::Renew { holder, lease }, Some(record)) => renew(record, holder, *lease, now),
        (Event::Sweep, Some(record)) => sweep(record, now),
        (Event::Forget { version, reason, cache_age_max }, Some(record)) => {
            forget(record, *version, reason, *cache_age_max, now)
        }
        (Event::Reap { grace }, Some(record)) => reap(record, *grace, now),
    }
}

// ---- A client arrives ------------------------------------------------------------------------------------------------

fn arrive(record: Option<&Record>, arrival: &Arrival, now: Now) -> Step {
    let Some(record) = record else {
        return begin(None, arrival, now);
    };
    if record.address != arrival.address {
        // Two addresses with one id (2⁻¹²⁸): nobody is ever answered from another's record.
        return Step::keep(Decision::Mismatch);
    }
    if counts_as_absent(record, now) {
        return begin(Some(record), arrival, now);
    }
    if let Some(gone) = gone(record, now) {
        return Step::keep(gone);
    }
    let misused = record.fingerprint.compare(arrival.fingerprint) == Comparison::Other;
    if misused && arrival.misuse == Misuse::Refuse {
        return Step::keep(Decision::Mismatch);
    }
    let step = arrive_same(record, arrival, now);
    if misused { step.noting(Notice::Misuse) } else { step }
}

/// The same request again, or one that the policy treats as such.
fn arrive_same(record: &Record, arrival: &Arrival, now: Now) -> Step {
    match &record.state {
        State::Pending { .. } if is_overdue(record, now) => give_up_waiting(record, now),
        State::Pending { .. } => Step::keep(Decision::Accepted),
        State::InProgress if is_own_grant(record, arrival, now) => {
            Step::keep(Decision::Execute(Lease::of(record)))
        }
        State::InProgress if record.is_lapsed(now) => arrive_lapsed(record, arrival, now),
        State::InProgress => Step::keep(match arrival.execution {
            Execution::Deferred => Decision::Accepted,
            Execution::Inline => Decision::Busy { until: lease_end(record) },
        }),
        State::Completed(answer) => Step::keep(Decision::Replay(Arc::clone(answer))),
        State::FailedRetryable => rerun(record, arrival, now),
        State::Unknown(doubt) => Step::keep(Decision::Unsettled { since: doubt.since, parked: doubt.parked }),
        // `gone` has answered; a tombstone stays shut whatever else is true.
        State::Expired => {
            Step::keep(Decision::Gone { status: gone_status(record), until: record.expires_at })
        }
    }
}

fn arrive_lapsed(record: &Record, arrival: &Arrival, now: Now) -> Step {
    let step = match (record.terms.crash, arrival.execution) {
        (CrashPolicy::Reconcile, _) => {
            let next = enter_unknown(record, lapsed(), now);
            let decision = match &next.state {
                State::Completed(answer) => Decision::Replay(Arc::clone(answer)),
                _ => Decision::Unsettled { since: now.at, parked: false },
            };
            Step::put(next, decision)
        }
        // The completer's take continues it.
        (CrashPolicy::Resume, Execution::Deferred) => Step::keep(Decision::Accepted),
        (CrashPolicy::Resume | CrashPolicy::Restart, Execution::Inline)
        | (CrashPolicy::Restart, Execution::Deferred) => rerun(record, arrival, now),
    };
    step.noting(Notice::Zombie)
}

/// The same life, once more: a new grant, or the queue.
fn rerun(record: &Record, arrival: &Arrival, now: Now) -> Step {
    let mut next = record.clone();
    next.execution = arrival.execution;
    next.request = arrival.request.clone().or(next.request);
    match arrival.execution {
        Execution::Inline => execute(next, arrival.token, arrival.lease, arrival.attempt_deadline, now),
        Execution::Deferred => Step::put(wait_for_worker(next, now.at, now), Decision::Accepted),
    }
}

/// A new life: over no row, or over one that counts as none. Fence and version go on growing.
fn begin(previous: Option<&Record>, arrival: &Arrival, now: Now) -> Step {
    let next = Record {
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
        last_error: None,
        evidence: None,
        provider_reference: None,
        recovery: None,
        request: arrival.request.clone(),
        created_at: now.at,
        last_run_at: None,
        settled_at: None,
        expires_at: None,
    };
    let step = match arrival.execution {
        Execution::Inline => {
            Step::execute(granted(next, arrival.token, arrival.lease, arrival.attempt_deadline, now))
        }
        Execution::Deferred => Step::put(waiting(next, now.at), Decision::Accepted),
    };
    match previous.map(|p| &p.state) {
        Some(State::Expired) => step.noting(Notice::OutOfTombstone),
        _ => step,
    }
}

/// My own reserve, whose acknowledgement was lost: granted, not busy. But not after the lease's end by any clock: an
/// acknowledgement that comes too late grants nothing.
fn is_own_grant(record: &Record, arrival: &Arrival, now: Now) -> bool {
    record.grant.is_some_and(|grant| grant.token == arrival.token && !now.may_be_past(grant.lease_until))
}

/// Past retention, and what follows it is a new key.
fn counts_as_absent(record: &Record, now: Now) -> bool {
    match (&record.state, record.terms.after_retention) {
        (State::Expired | State::FailedRetryable, _) | (State::Completed(_), AfterRetention::Fresh) => {
            record.is_past_retention(now)
        }
        (State::Completed(_), AfterRetention::Gone { tombstone, .. }) => {
            record.expires_at.is_some_and(|end| now.at >= end.plus(tombstone))
        }
        (State::Pending { .. } | State::InProgress | State::Unknown(_), _) => false,
    }
}

/// A tombstone, or a row that the reaper has not yet made one.
fn gone(record: &Record, now: Now) -> Option<Decision> {
    let shut = match (&record.state, record.terms.after_retention) {
        (State::Expired, _) => true,
        (State::Completed(_), AfterRetention::Gone { .. }) => record.is_past_retention(now),
        _ => false,
    };
    shut.then(|| Decision::Gone { status: gone_status(record), until: tombstone_end(record) })
}

// ---- A worker takes --------------------------------------------------------------------------------------------------

fn take(record: &Record, take: &Take, now: Now) -> Step {
    match &record.state {
        State::Pending { .. } if is_overdue(record, now) => {
            Step { decision: Decision::Nothing, ..give_up_waiting(record, now) }
        }
        State::Pending { run_after } if now.at >= *run_after => {
            execute(record.clone(), take.token, take.lease, take.attempt_deadline, now)
        }
        State::InProgress if record.is_lapsed(now) && record.terms.crash == CrashPolicy::Resume => {
            execute(record.clone(), take.token, take.lease, take.attempt_deadline, now).noting(Notice::Zombie)
        }
        _ => Step::keep(Decision::Nothing),
    }
}

/// Deferred work whose time ran out before anybody could run it. Its stored 408 says that nothing was executed, so it
/// is only given where that is established: an attempt that lapsed and was queued again is in doubt instead.
fn give_up_waiting(record: &Record, now: Now) -> Step {
    let established = record.attempts == 0 || record.settled_at.is_some();
    if !established {
        let next =
            enter_unknown(record, Reason::new("waited_too_long", "queued again after a lapsed lease"), now);
        let decision = match &next.state {
            State::Completed(answer) => Decision::Replay(Arc::clone(answer)),
            _ => Decision::Unsettled { since: now.at, parked: false },
        };
        return Step::put(next, decision);
    }
    let answer = Arc::new(problem::not_started());
    Step::put(completed(record, Arc::clone(&answer), now), Decision::Replay(answer))
}

fn is_overdue(record: &Record, now: Now) -> bool {
    matches!(record.state, State::Pending { .. }) && record.is_past_retention(now)
}

// ---- A holder speaks -------------------------------------------------------------------------------------------------

fn advance(record: &Record, holder: &Holder, point: &RecoveryPoint, now: Now) -> Step {
    if !record.is_held_by(holder) || record.state != State::InProgress {
        return Step::fenced(record);
    }
    let mut next = touched(record, now);
    next.recovery = Some(point.clone());
    Step::put(next, Decision::Done)
}

fn complete(record: &Record, holder: &Holder, answer: &Arc<Answer>, now: Now) -> Step {
    if record.life != holder.life {
        return Step::fenced(record);
    }
    let mine = record.is_held_by(holder);
    match &record.state {
        // Known twice is known once; but what was recorded stands, and the holder is shown it.
        State::Completed(kept) if mine && kept == answer => Step::keep(Decision::Done),
        State::Completed(kept) => {
            let step = Step::fenced(record);
            if !mine && answer.is_success() && kept.is_success() {
                step.noting(Notice::SecondEffect)
            } else if kept.is_success() != answer.is_success() {
                step.noting(Notice::Contradiction)
            } else {
                step
            }
        }
        State::InProgress if mine => {
            let step = Step::put(completed(record, Arc::clone(answer), now), Decision::Done);
            match &record.evidence {
                Some(evidence) if evidence.answer.is_success() != answer.is_success() => {
                    step.noting(Notice::Contradiction)
                }
                _ => step,
            }
        }
        // A newer grant is running. The older effect is kept, and applied if the newer attempt ends without one.
        State::InProgress => {
            let next = with_evidence(record, "late holder", answer, now);
            Step { next: next.next, notices: vec![Notice::EffectUnderOlderGrant], ..Step::fenced(record) }
        }
        State::Unknown(_) if mine => Step::put(completed(record, Arc::clone(answer), now), Decision::Done),
        // Judged not to have happened, or queued again: yet it happened. Nothing runs, so nothing can run twice.
        State::Unknown(_) | State::FailedRetryable => {
            Step::put(completed(record, Arc::clone(answer), now), Decision::Done)
                .noting(Notice::WronglyReleased)
        }
        State::Pending { .. } if record.attempts > 0 => {
            Step::put(completed(record, Arc::clone(answer), now), Decision::Done)
                .noting(Notice::WronglyReleased)
        }
        State::Pending { .. } | State::Expired => Step::fenced(record),
    }
}

fn release(record: &Record, holder: &Holder, reason: &Reason, backoff: Duration, now: Now) -> Step {
    match &record.state {
        _ if !record.is_held_by(holder) => Step::fenced(record),
        State::InProgress | State::Unknown(_) => {
            Step::put(back_out(record, reason, backoff, now), Decision::Done)
        }
        State::FailedRetryable => Step::keep(Decision::Done),
        State::Pending { .. } | State::Completed(_) | State::Expired => Step::fenced(record),
    }
}

fn doubt(record: &Record, holder: &Holder, reason: &Reason, now: Now) -> Step {
    match &record.state {
        _ if !record.is_held_by(holder) => Step::fenced(record),
        State::InProgress => {
            let mut next = enter_unknown(record, reason.clone(), now);
            // The holder sends nothing more: its lease ends here, and the horizon is counted from now.
            if let Some(grant) = &mut next.grant {
                grant.lease_until = grant.lease_until.min(now.at.plus(now.error));
            }
            Step::put(next, Decision::Done)
        }
        State::Unknown(_) => Step::keep(Decision::Done),
        State::Pending { .. } | State::Completed(_) | State::FailedRetryable | State::Expired => {
            Step::fenced(record)
        }
    }
}

fn renew(record: &Record, holder: &Holder, lease: Duration, now: Now) -> Step {
    if !record.is_held_by(holder) || record.state != State::InProgress || record.is_lapsed(now) {
        return Step::fenced(record);
    }
    let mut next = touched(record, now);
    let Some(grant) = &mut next.grant else {
        return Step::fenced(record);
    };
    grant.lease_until = grant.lease_until.max(now.at.plus(lease)).min(grant.attempt_deadline);
    let until = grant.lease_until;
    Step::put(next, Decision::Renewed { until })
}

/// After a reserve in doubt, once its 503 has left: make sure that it grants nothing, also if it lands later.
///
/// Always a conflicting write, never only a read: where my write may still land, the row it would land on is inserted
/// or its version raised, so that it cannot.
fn clean_up(record: Option<&Record>, arrival: &Arrival, over: Option<Version>, now: Now) -> Step {
    let reason =
        Reason::new("reserve_in_doubt", "the store did not say whether the reserve was written; nothing ran");
    let Some(record) = record else {
        let Next::Put(mut next) = begin(None, arrival, now).next else {
            return Step::keep(Decision::Nothing);
        };
        next.grant = Some(Grant { token: arrival.token, lease_until: now.at, attempt_deadline: now.at });
        next.state = State::FailedRetryable;
        next.attempts = 0;
        next.last_run_at = None;
        next.last_error = Some(reason);
        next.settled_at = Some(now.at);
        next.expires_at = Some(retention_end(&next, now));
        return Step { next: Next::Put(next), decision: Decision::Done, notices: Vec::new() };
    };
    let mine = record.grant.is_some_and(|grant| grant.token == arrival.token);
    match &record.state {
        // Swept meanwhile or not: nothing ran under my token, and nobody else can know that.
        State::InProgress | State::Unknown(_) if mine => {
            Step::put(back_out(record, &reason, Duration::ZERO, now), Decision::Done)
        }
        // My swap was conditioned on this very version and may still land: raise it.
        _ if !mine && over == Some(record.version) => Step::put(touched(record, now), Decision::Done),
        _ => Step::keep(Decision::Nothing),
    }
}

// ---- Time passes -----------------------------------------------------------------------------------------------------

fn sweep(record: &Record, now: Now) -> Step {
    if !record.is_lapsed(now) {
        return Step::keep(Decision::Nothing);
    }
    let past_retention = now.is_surely_past(lease_end(record).plus(record.terms.retention));
    let waits_too_long = now.at >= record.created_at.plus(record.terms.retention);
    match record.terms.crash {
        CrashPolicy::Resume => Step::keep(Decision::Nothing),
        CrashPolicy::Restart if record.request.is_some() && !waits_too_long => {
            Step::put(wait_for_worker(record.clone(), now.at, now), Decision::Done).noting(Notice::Zombie)
        }
        CrashPolicy::Restart if record.request.is_none() && !past_retention => Step::keep(Decision::Nothing),
        CrashPolicy::Reconcile | CrashPolicy::Restart => {
            Step::put(enter_unknown(record, lapsed(), now), Decision::Done).noting(Notice::Zombie)
        }
    }
}

fn reap(record: &Record, grace: Duration, now: Now) -> Step {
    let Some(end) = record.expires_at else {
        return Step::keep(Decision::Nothing);
    };
    if !now.is_surely_past(end.plus(grace)) {
        return Step::keep(Decision::Nothing);
    }
    match (&record.state, record.terms.after_retention) {
        (State::Pending { .. }, _) => Step { decision: Decision::Done, ..give_up_waiting(record, now) },
        (State::Completed(_), AfterRetention::Gone { tombstone, .. }) => {
            Step::put(buried(record, end.plus(tombstone), now), Decision::Done)
        }
        (State::Completed(_), AfterRetention::Fresh) | (State::FailedRetryable | State::Expired, _) => {
            Step::remove(grace)
        }
        (State::InProgress | State::Unknown(_), _) => Step::keep(Decision::Nothing),
    }
}

fn forget(record: &Record, version: Version, reason: &Reason, cache_age_max: Duration, now: Now) -> Step {
    match &record.state {
        _ if record.version != version => Step::keep(Decision::Refused(Refusal::Changed)),
        State::Completed(_) | State::FailedRetryable => {
            let mut next = buried(record, now.at.plus(cache_age_max), now);
            next.last_error = Some(reason.clone());
            Step::put(next, Decision::Done)
        }
        State::Expired => Step::keep(Decision::Nothing),
        State::Pending { .. } | State::InProgress | State::Unknown(_) => {
            Step::keep(Decision::Refused(Refusal::NotSettled))
        }
    }
}

// ---- Somebody found out ----------------------------------------------------------------------------------------------

fn hear(record: Option<&Record>, verdict: &Verdict, now: Now) -> Step {
    let Some(record) = record else {
        return Step::keep(match verdict.finding {
            Finding::Happened(_) => Decision::KeepApart,
            Finding::DidNotHappen { .. } | Finding::NotKnown(_) => Decision::Nothing,
        });
    };
    if record.life != verdict.life {
        return Step::keep(Decision::Nothing).noting(Notice::AnotherLife);
    }
    match &verdict.finding {
        Finding::Happened(answer) => happened(record, verdict, answer, now),
        Finding::DidNotHappen { grounds, backoff, otherwise } => {
            did_not_happen(record, verdict, grounds, *backoff, otherwise, now)
        }
        Finding::NotKnown(retry) => not_known(record, retry, now),
    }
}

fn happened(record: &Record, verdict: &Verdict, answer: &Arc<Answer>, now: Now) -> Step {
    let settle = || {
        let mut next = completed(record, Arc::clone(answer), now);
        next.provider_reference = verdict.reference.clone().or(next.provider_reference);
        Step::put(next, Decision::Done)
    };
    match &record.state {
        State::Unknown(_) => settle(),
        State::InProgress if record.is_lapsed(now) && record.terms.crash == CrashPolicy::Reconcile => {
            settle().noting(Notice::Zombie)
        }
        State::InProgress => {
            let mut step = with_evidence(record, &verdict.source, answer, now);
            if let Next::Put(next) = &mut step.next {
                next.provider_reference = verdict.reference.clone().or(next.provider_reference.take());
            }
            step
        }
        State::FailedRetryable => settle().noting(Notice::WronglyReleased),
        State::Pending { .. } if record.attempts > 0 => settle().noting(Notice::WronglyReleased),
        State::Completed(kept) if kept.is_success() != answer.is_success() => {
            Step::keep(Decision::Nothing).noting(Notice::Contradiction)
        }
        State::Completed(_) | State::Expired => Step::keep(Decision::Nothing).noting(Notice::AfterTheFact),
        // Never granted in this life, so nothing of this life can have happened.
        State::Pending { .. } => Step::keep(Decision::Nothing),
    }
}

fn did_not_happen(
    record: &Record,
    verdict: &Verdict,
    grounds: &Grounds,
    backoff: Duration,
    otherwise: &Retry,
    now: Now,
) -> Step {
    match &record.state {
        State::Unknown(_) if holds(grounds, record) => {
            let reason = Reason::new("did_not_happen", format!("says {}", verdict.source));
            Step::put(back_out(record, &reason, backoff, now), Decision::Done)
        }
        State::Unknown(_) => not_known(record, otherwise, now).noting(Notice::NegativeDropped),
        State::Completed(kept) if kept.is_success() => {
            Step::keep(Decision::Nothing).noting(Notice::Contradiction)
        }
        State::Completed(_) => Step::keep(Decision::Nothing).noting(Notice::AfterTheFact),
        State::Pending { .. } | State::InProgress | State::FailedRetryable | State::Expired => {
            Step::keep(Decision::Nothing)
        }
    }
}

/// Whether a negative verdict is about this very attempt, and came too late for the effect still to come.
fn holds(grounds: &Grounds, record: &Record) -> bool {
    match grounds {
        Grounds::Probe { token, version, asked } => {
            let named = record.version == *version && record.grant.is_some_and(|grant| grant.token == *token);
            let late_enough = |horizon| asked.is_surely_past(lease_end(record).plus(horizon));
            named && record.terms.horizon.is_some_and(late_enough)
        }
        Grounds::Final { fence } => record.fence == *fence,
        Grounds::Operator { version } => record.version == *version,
    }
}

fn not_known(record: &Record, retry: &Retry, now: Now) -> Step {
    let State::Unknown(doubt) = &record.state else {
        return Step::keep(Decision::Nothing);
    };
    let tries = doubt.tries.saturating_add(1);
    let parked = doubt.parked || tries >= retry.park_after;
    let mut next = touched(record, now);
    next.state = State::Unknown(Doubt { reconcile_after: retry.at, tries, parked, ..*doubt });
    let step = Step::put(next, Decision::Done);
    if parked && !doubt.parked { step.noting(Notice::Parked) } else { step }
}

// ---- Rows ------------------------------------------------------------------------------------------------------------

/// The same row, one version on.
fn touched(record: &Record, now: Now) -> Record {
    let mut next = record.clone();
    next.version = Version::next(Some(record.version), now.at);
    next
}

/// A new grant over an existing row of the same life.
fn execute(mut next: Record, token: Token, lease: Duration, attempt_deadline: Duration, now: Now) -> Step {
    next.version = Version::next(Some(next.version), now.at);
    next.fence = Fence::next(Some(next.fence), now.at);
    Step::execute(granted(next, token, lease, attempt_deadline, now))
}

/// Puts a grant into a row whose version and fence are already new. The lease counts from `now`, which the caller
/// sampled before it submitted the write.
fn granted(mut next: Record, token: Token, lease: Duration, attempt_deadline: Duration, now: Now) -> Record {
    let attempt_deadline = now.at.plus(attempt_deadline);
    let lease_until = now.at.plus(lease).min(attempt_deadline);
    next.state = State::InProgress;
    next.grant = Some(Grant { token, lease_until, attempt_deadline });
    next.attempts = next.attempts.saturating_add(1);
    next.last_run_at = Some(now.at);
    next.settled_at = None;
    next.expires_at = None;
    next
}

fn wait_for_worker(mut next: Record, run_after: Timestamp, now: Now) -> Record {
    next.version = Version::next(Some(next.version), now.at);
    waiting(next, run_after)
}

/// In the queue. Its limit runs from the life's beginning, however often it is queued again.
fn waiting(mut next: Record, run_after: Timestamp) -> Record {
    next.expires_at = Some(next.created_at.plus(next.terms.retention));
    next.execution = Execution::Deferred;
    next.state = State::Pending { run_after };
    next
}

fn completed(record: &Record, answer: Arc<Answer>, now: Now) -> Record {
    let mut next = settled(record, State::Completed(answer), now);
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

/// Established: no effect by this attempt. If an effect of this life is proved all the same, that settles it.
fn back_out(record: &Record, reason: &Reason, backoff: Duration, now: Now) -> Record {
    if let Some(evidence) = &record.evidence {
        return completed(record, Arc::clone(&evidence.answer), now);
    }
    let mut next = match record.execution {
        Execution::Inline => settled(record, State::FailedRetryable, now),
        // Nobody else will run it again.
        Execution::Deferred => {
            let next = settled(record, State::FailedRetryable, now);
            waiting(next, now.at.plus(backoff))
        }
    };
    next.last_error = Some(reason.clone());
    next
}

/// `unknown`, and then the evidence: what is already proved need not be asked.
fn enter_unknown(record: &Record, reason: Reason, now: Now) -> Record {
    if let Some(evidence) = &record.evidence {
        return completed(record, Arc::clone(&evidence.answer), now);
    }
    let mut next = touched(record, now);
    next.state = State::Unknown(Doubt { since: now.at, reconcile_after: now.at, tries: 0, parked: false });
    next.last_error = Some(reason);
    next.settled_at = None;
    next.expires_at = None;
    next
}

/// Keeps a *happened* for later. The first account stands, unless a success follows a failure: money that moved weighs
/// more.
fn with_evidence(record: &Record, source: &str, answer: &Arc<Answer>, now: Now) -> Step {
    let keep_first =
        record.evidence.as_ref().is_some_and(|kept| kept.answer.is_success() || !answer.is_success());
    if keep_first {
        return Step::keep(Decision::Done);
    }
    let mut next = touched(record, now);
    next.evidence = Some(Evidence { at: now.at, source: source.into(), answer: Arc::clone(answer) });
    Step::put(next, Decision::Done).noting(Notice::EvidenceKept)
}

/// A tombstone keeps identity, fence and version, and nothing of the contents.
fn buried(record: &Record, until: Timestamp, now: Now) -> Record {
    let mut next = touched(record, now);
    next.state = State::Expired;
    next.evidence = None;
    next.request = None;
    next.recovery = None;
    next.expires_at = Some(until);
    next
}

fn retention_end(record: &Record, now: Now) -> Timestamp {
    match record.terms.retention_from {
        RetentionFrom::Settlement => now.at.plus(record.terms.retention),
        RetentionFrom::Creation => record.created_at.plus(record.terms.retention),
    }
}

fn tombstone_end(record: &Record) -> Option<Timestamp> {
    match (&record.state, record.terms.after_retention) {
        (State::Completed(_), AfterRetention::Gone { tombstone, .. }) => {
            record.expires_at.map(|end| end.plus(tombstone))
        }
        _ => record.expires_at,
    }
}

/// A forgotten key of a `fresh` route is gone too, until every cache has dropped it.
const fn gone_status(record: &Record) -> GoneStatus {
    match record.terms.after_retention {
        AfterRetention::Fresh => GoneStatus::Gone,
        AfterRetention::Gone { status, .. } => status,
    }
}

/// A row in progress always carries a grant; one that does not has no lease to wait for.
fn lease_end(record: &Record) -> Timestamp {
    record.grant.map_or(record.created_at, |grant| grant.lease_until)
}

fn lapsed() -> Reason {
    Reason::new("lapsed", "the holder's lease ended before it settled; it may have acted")
}
