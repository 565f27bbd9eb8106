//! Decides what may happen next, given what the store knows. This file is the whole truth.
//!
//! Pure: no clock, no I/O, no randomness. The caller passes the row it read, an event and [`Now`]; it gets the next row
//! and a decision, writes the row on the condition that its version has not changed, and decides again if it has.
//!
//! **Invariants**
//! - Each fence of a key is granted once, also across lives.
//! - *Happened* is absorbing: whoever proves it, whenever. Under `reconcile` an effect of this life is never followed by
//!   another grant; under `resume` and `restart` only while a lease is held or lapsed, for there the upstream dedupes.
//! - *Did not happen* needs proof that it can no longer happen, and speaks of all attempts of the life: a later attempt's
//!   release does not account for an earlier one.
//! - Nothing leaves `unknown` by time alone, and `in_progress` and `unknown` are never reaped.
//! - Only a holder whose token *and* fence are in the row settles an attempt; everybody else is shown the row.
//!
//! Not here: what the next row looks like in detail (`rows`), waiting and sending (`tower`), writing (stores), status
//! codes ([`crate::problem`]).

use std::sync::Arc;
use std::time::Duration;

use crate::fingerprint::{Comparison, Fingerprint};
use crate::identity::{Token, Version};
use crate::policy::Credentials;
use crate::problem;
use crate::record::{
    AfterRetention, CrashPolicy, Doubt, Execution, Holder, Reason, Record, RecoveryPoint, State,
};
use crate::response::Answer;
use crate::time::{Now, Timestamp};

mod event;
mod rows;
mod step;

use rows::{
    Account, back_out, begun, buried, completed, deferred_by, enter_unknown, give_up_waiting, gone_status,
    granted, lapsed, lease_end, parked, quarantined, queued, refused_reserve, tombstone_end, touched,
    with_evidence,
};

pub use event::{Admission, Arrival, Ask, Event, Finding, Grounds, Misuse, Reserve, Retry, Take, Verdict};
pub use rows::QUARANTINED;
pub use step::{Decision, Lease, Next, Notice, Refusal, Step};

/// Decides what `event` does to `record` (`None`: no row) at `now`.
pub fn decide(record: Option<&Record>, event: &Event, now: Now) -> Step {
    match (event, record) {
        (Event::Arrive(arrival), _) => arrive(record, arrival, now),
        (Event::CleanUp { reserve, over }, _) => clean_up(record, reserve, *over, now),
        (Event::Verdict(verdict), _) => hear(record, verdict, now),

        (
            Event::Advance { .. }
            | Event::Complete { .. }
            | Event::Release { .. }
            | Event::Doubt { .. }
            | Event::Renew { .. }
            | Event::Entrust { .. },
            None,
        ) => Step::keep(Decision::Fenced(None)),
        (
            Event::Take(_)
            | Event::Postpone { .. }
            | Event::Sweep
            | Event::Ask(Ask::Claim { .. } | Ask::Again { .. })
            | Event::Forget { .. }
            | Event::Cancel
            | Event::HoldBack { .. }
            | Event::Reap { .. },
            None,
        ) => Step::keep(Decision::Nothing),
        // It may be of a record that is still to appear.
        (Event::Ask(Ask::Soon), None) => Step::keep(Decision::KeepApart),

        (Event::Take(take), Some(record)) => self::take(record, take, now),
        (Event::Postpone { version, until }, Some(record)) => postpone(record, *version, *until, now),
        (Event::Advance { holder, point }, Some(record)) => advance(record, holder, point, now),
        (Event::Complete { holder, answer, reference }, Some(record)) => {
            complete(record, holder, &Given { answer, reference: reference.as_deref() }, now)
        }
        (Event::Release { holder, reason, backoff }, Some(record)) => {
            release(record, holder, reason, *backoff, now)
        }
        (Event::Doubt { holder, reason }, Some(record)) => doubt(record, holder, reason, now),
        (Event::Renew { holder, lease }, Some(record)) => renew(record, holder, *lease, now),
        (Event::Entrust { holder }, Some(record)) => entrust(record, holder, now),
        (Event::Sweep, Some(record)) => sweep(record, now),
        (Event::Ask(ask), Some(record)) => self::ask(record, *ask, now),
        (Event::Forget { version, reason, cache_age_max }, Some(record)) => {
            forget(record, *version, reason, *cache_age_max, now)
        }
        (Event::Cancel, Some(record)) => cancel(record, now),
        (Event::HoldBack { windows }, Some(record)) => hold_back(record, windows, now),
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
    let misused = match arrival.compare(record.fingerprint) {
        Comparison::Same => false,
        Comparison::Other => true,
        // A key of one operation never answers for another, also where no content is checked. A pattern
        // with a parameter names many operations; only a record of an earlier release may go by it.
        Comparison::Unchecked => {
            let is_told_apart = record.fingerprint != Fingerprint::NONE && arrival.operation.is_pattern();
            record.operation != arrival.operation || is_told_apart
        }
    };
    if misused && arrival.misuse == Misuse::Refuse {
        return Step::keep(Decision::Mismatch);
    }
    let step = arrive_same(record, arrival, now);
    if misused { step.noting(Notice::Misuse) } else { step }
}

/// The same request again, or one that the policy treats as such.
fn arrive_same(record: &Record, arrival: &Arrival, now: Now) -> Step {
    match &record.state {
        State::Pending { .. } if record.is_past_retention(now) => as_it_stands(give_up_waiting(record, now)),
        State::Pending { .. } => Step::keep(Decision::Accepted),
        State::InProgress if is_own_grant(record, arrival.token, now) => {
            Step::keep(Decision::Execute(Lease::of(record)))
        }
        State::InProgress if record.is_lapsed(now) => arrive_lapsed(record, arrival, now),
        State::InProgress => match arrival.execution {
            Execution::Deferred => accept_too(record, arrival, Decision::Accepted, now),
            Execution::Inline => Step::keep(Decision::Busy { until: lease_end(record) }),
        },
        State::Completed(answer) => Step::keep(Decision::Replay(Arc::clone(answer))),
        State::FailedRetryable => rerun(record, arrival, now),
        State::Unknown(doubt) => {
            let decision = Decision::Unsettled { since: doubt.since, parked: doubt.parked };
            match arrival.execution {
                Execution::Deferred => accept_too(record, arrival, decision, now),
                Execution::Inline => Step::keep(decision),
            }
        }
        // `gone` has answered; a tombstone stays shut whatever else is true.
        State::Expired => {
            Step::keep(Decision::Gone { status: gone_status(record), until: record.expires_at })
        }
    }
}

/// A client that is answered 202 was promised that somebody will run it: if it was reserved to run at once, it is deferred
/// from now on, so that a release puts it into the queue.
fn accept_too(record: &Record, arrival: &Arrival, decision: Decision, now: Now) -> Step {
    if record.execution == Execution::Deferred {
        return Step::keep(decision);
    }
    Step::put(deferred_by(touched(record, now), arrival, now), decision)
}

fn arrive_lapsed(record: &Record, arrival: &Arrival, now: Now) -> Step {
    let step = match (record.terms.crash, arrival.execution) {
        (CrashPolicy::Reconcile, _) => arrive_doubted(record, arrival, now),
        // Proved meanwhile: there is nothing to run again.
        (CrashPolicy::Restart, _) if record.evidence.is_some() => arrive_doubted(record, arrival, now),
        // The completer's take continues it.
        (CrashPolicy::Resume, Execution::Deferred) if record.request.is_some() => {
            accept_too(record, arrival, Decision::Accepted, now)
        }
        (CrashPolicy::Resume | CrashPolicy::Restart, _) => {
            rerun(&Record { unaccounted: true, ..record.clone() }, arrival, now)
        }
    };
    step.noting(Notice::Zombie)
}

/// Found lapsed by an arrival, and in doubt from now on. If that arrival is accepted, so is the doubt, in the same write: whoever finds it `unknown`
/// is promised the same.
fn arrive_doubted(record: &Record, arrival: &Arrival, now: Now) -> Step {
    let next = enter_unknown(record, lapsed(), now);
    let is_promised = arrival.execution == Execution::Deferred && matches!(next.state, State::Unknown(_));
    as_it_stands(if is_promised { deferred_by(next, arrival, now) } else { next })
}

/// The same life, once more: a new grant, or the queue. What was accepted for later stays so, with the request that was
/// accepted: an inline retry may run it, but if that is released a worker still must. Its time runs anew.
fn rerun(record: &Record, arrival: &Arrival, now: Now) -> Step {
    let until = now.at.plus(record.terms.retention);
    let request = record.request.clone().or_else(|| arrival.request.clone());
    let next = Record { request, expires_at: Some(until), ..record.clone() };
    match arrival.execution {
        Execution::Inline => execute(next, arrival.token, arrival.lease, arrival.attempt_deadline, now),
        Execution::Deferred => Step::put(queued(&next, now.earliest(), until, now), Decision::Accepted),
    }
}

/// A new life: over no row, or over one that counts as none. Fence and version go on growing.
fn begin(previous: Option<&Record>, arrival: &Arrival, now: Now) -> Step {
    let next = begun(previous, arrival, now);
    if let Admission::Quarantined { windows } = &arrival.admission {
        return as_it_stands(quarantined(next, windows, now)).noting(Notice::Parked);
    }
    let step = match arrival.execution {
        Execution::Inline => {
            Step::execute(granted(next, arrival.token, arrival.lease, arrival.attempt_deadline, now))
        }
        Execution::Deferred => {
            let until = now.at.plus(next.terms.retention);
            Step::put(queued(&next, now.earliest(), until, now), Decision::Accepted)
        }
    };
    match previous.map(|p| &p.state) {
        Some(State::Expired) => step.noting(Notice::OutOfTombstone),
        _ => step,
    }
}

/// A new grant over an existing row of the same life.
fn execute(record: Record, token: Token, lease: Duration, attempt_deadline: Duration, now: Now) -> Step {
    Step::execute(granted(rows::fenced_anew(record, now), token, lease, attempt_deadline, now))
}

/// Writes the row and answers from it.
fn as_it_stands(next: Record) -> Step {
    let decision = match &next.state {
        State::Completed(answer) => Decision::Replay(Arc::clone(answer)),
        State::Unknown(doubt) => Decision::Unsettled { since: doubt.since, parked: doubt.parked },
        _ => Decision::Done,
    };
    Step::put(next, decision)
}

/// My own reserve, whose acknowledgement was lost: granted, not busy. But not after the lease's end by any clock: an
/// acknowledgement that comes too late grants nothing.
fn is_own_grant(record: &Record, token: Token, now: Now) -> bool {
    token != Token::NOT_DRAWN
        && record.grant.is_some_and(|grant| grant.token == token && !now.may_be_past(grant.lease_until))
}

/// Past retention by every clock, and what follows it is a new key.
fn counts_as_absent(record: &Record, now: Now) -> bool {
    let end = match (&record.state, record.terms.after_retention) {
        (State::Expired | State::FailedRetryable, _) | (State::Completed(_), AfterRetention::Fresh) => {
            record.expires_at
        }
        (State::Completed(_), AfterRetention::Gone { .. }) => tombstone_end(record),
        (State::Pending { .. } | State::InProgress | State::Unknown(_), _) => None,
    };
    end.is_some_and(|end| now.is_surely_past(end))
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
    let run = |record: Record| execute(record, take.token, take.lease, take.attempt_deadline, now);
    match &record.state {
        State::Pending { .. } if record.is_past_retention(now) => {
            Step::put(give_up_waiting(record, now), Decision::Nothing)
        }
        State::Pending { run_after } if now.at >= *run_after && lacks_caller(record, take) => {
            let words = "an earlier release stored it without its caller's credentials; its route may run \
                         it without them if it says credentials = \"dropped\"";
            let next = parked(record, Reason::new("no_credentials", words), now);
            Step::put(next, Decision::Nothing).noting(Notice::Parked)
        }
        State::Pending { run_after } if now.at >= *run_after => run(record.clone()),
        State::InProgress if is_own_grant(record, take.token, now) => {
            Step::keep(Decision::Execute(Lease::of(record)))
        }
        // Without its request nobody but the client can go on.
        State::InProgress if record.is_lapsed(now) && record.is_resumable() => {
            // From here on a worker runs it, with backoff and an end.
            let expires_at = Some(rows::waiting_end(record).max(now.at.plus(take.lease)));
            let next =
                Record { unaccounted: true, execution: Execution::Deferred, expires_at, ..record.clone() };
            run(next).noting(Notice::Zombie)
        }
        _ => Step::keep(Decision::Nothing),
    }
}

/// Whether a worker would run it without the caller's credentials, and nothing allows that: neither
/// the route when it was accepted, nor the route now. An operation in phases never has any.
fn lacks_caller(record: &Record, take: &Take) -> bool {
    let is_unstated = record.request.as_ref().is_some_and(|request| request.credentials.is_none());
    is_unstated && take.credentials == Credentials::Kept && record.terms.crash != CrashPolicy::Resume
}

/// It steps aside, and waits on: whoever can run it finds it due again, and its time in the queue does not grow.
fn postpone(record: &Record, version: Version, until: Timestamp, now: Now) -> Step {
    match record.state {
        State::Pending { run_after } if record.version == version && now.at >= run_after => {
            let mut next = touched(record, now);
            next.state = State::Pending { run_after: until };
            Step::put(next, Decision::Done)
        }
        _ => Step::keep(Decision::Nothing),
    }
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

/// What an effect gave: its answer, and the provider's name for it, if it was learnt.
#[derive(Clone, Copy)]
struct Given<'a> {
    answer: &'a Arc<Answer>,
    reference: Option<&'a str>,
}

impl Given<'_> {
    /// The row that it completes.
    fn completes(self, record: &Record, now: Now) -> Record {
        let mut next = completed(record, Arc::clone(self.answer), now);
        next.provider_reference = self.reference.map(Box::from).or(next.provider_reference);
        next
    }
}

fn complete(record: &Record, holder: &Holder, given: &Given<'_>, now: Now) -> Step {
    let answer = given.answer;
    if record.life != holder.life {
        return Step::fenced(record);
    }
    let mine = record.is_held_by(holder);
    let settle = || Step::put(given.completes(record, now), Decision::Done);
    match &record.state {
        State::InProgress if mine => complete_mine(record, given, now),
        // That this attempt was refused says nothing about one in the time that a restore lost.
        State::Unknown(_) if is_held_back(record) && !answer.is_success() => Step::fenced(record),
        State::Unknown(_) if mine => settle(),
        // Known twice is known once; but what was recorded stands, and the holder is shown it.
        State::Completed(kept) if mine && kept == answer => Step::keep(Decision::Done),
        State::Completed(kept) if !mine && answer.is_success() && kept.is_success() => {
            Step::fenced(record).noting(Notice::SecondEffect)
        }
        State::Completed(kept) if kept.is_success() != answer.is_success() => {
            Step::fenced(record).noting(Notice::Contradiction)
        }
        // A newer grant is running. The older effect is kept, and applied if the newer attempt ends without one.
        State::InProgress => {
            let kept = with_evidence(record, "late holder", given.reference, answer, now);
            Step { next: kept.next, ..Step::fenced(record) }.noting(Notice::EffectUnderOlderGrant)
        }
        // A newer attempt is in doubt. That this one was refused says nothing about it.
        State::Unknown(_) if !answer.is_success() && record.attempts > 1 => {
            Step::fenced(record).noting(Notice::Contradiction)
        }
        // Judged not to have happened, or queued again: yet it happened. Nothing runs, so nothing can run twice.
        State::Unknown(_) | State::FailedRetryable => settle().noting(Notice::WronglyReleased),
        State::Pending { .. } if record.attempts > 0 => settle().noting(Notice::WronglyReleased),
        State::Expired if answer.is_success() => Step::fenced(record).noting(Notice::EffectAtTombstone),
        State::Pending { .. } | State::Completed(_) | State::Expired => Step::fenced(record),
    }
}

/// The holder has the original bytes, so they win over an account by others; unless it was refused where an effect of this
/// life is proved. Then its client must not be told that nothing happened.
fn complete_mine(record: &Record, given: &Given<'_>, now: Now) -> Step {
    let answer = given.answer;
    match &record.evidence {
        Some(evidence) if evidence.answer.is_success() && !answer.is_success() => {
            let next = completed(record, Arc::clone(&evidence.answer), now);
            Step::put(next.clone(), Decision::Fenced(Some(Arc::new(next)))).noting(Notice::Contradiction)
        }
        Some(evidence) if evidence.answer.is_success() != answer.is_success() => {
            Step::put(given.completes(record, now), Decision::Done).noting(Notice::Contradiction)
        }
        _ => Step::put(given.completes(record, now), Decision::Done),
    }
}

fn release(record: &Record, holder: &Holder, reason: &Reason, backoff: Duration, now: Now) -> Step {
    match &record.state {
        _ if !record.is_held_by(holder) || is_held_back(record) => Step::fenced(record),
        State::InProgress | State::Unknown(_) => {
            released(back_out(record, reason, backoff, Account::ThisAttempt, now))
        }
        State::FailedRetryable => Step::keep(Decision::Done),
        State::Pending { .. } | State::Completed(_) | State::Expired => Step::fenced(record),
    }
}

/// A release that did not lead where the holder says: it answers from the row.
fn released(next: Record) -> Step {
    let decision = match &next.state {
        State::FailedRetryable | State::Pending { .. } => Decision::Done,
        _ => Decision::Fenced(Some(Arc::new(next.clone()))),
    };
    let is_parked = matches!(&next.state, State::Unknown(doubt) if doubt.parked);
    let step = Step::put(next, decision);
    if is_parked { step.noting(Notice::Parked) } else { step }
}

fn doubt(record: &Record, holder: &Holder, reason: &Reason, now: Now) -> Step {
    match &record.state {
        _ if !record.is_held_by(holder) => Step::fenced(record),
        State::InProgress => {
            let mut next = enter_unknown(record, reason.clone(), now);
            if let State::Completed(_) = &next.state {
                return Step::put(next.clone(), Decision::Fenced(Some(Arc::new(next))));
            }
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

/// The lease passes to a job that was promised in the same transaction as this row. It has no end: the job cannot be lost while the
/// row is there, so nobody need guess what became of its holder; whoever delivers it settles with the same token.
fn entrust(record: &Record, holder: &Holder, now: Now) -> Step {
    if !record.is_held_by(holder) || record.state != State::InProgress {
        return Step::fenced(record);
    }
    let mut next = touched(record, now);
    if let Some(grant) = &mut next.grant {
        grant.lease_until = Timestamp::NEVER;
        grant.attempt_deadline = Timestamp::NEVER;
    }
    Step::put(next, Decision::Done)
}

/// After a reserve in doubt, once its client was told: make sure that it grants nothing, also if it lands later. What was accepted by it stays:
/// others may have been shown it, and its client was told that it may be executed.
///
/// Always a conflicting write, never only a read: where my write may still land, the row it would land on is inserted
/// or its version raised, so that it cannot.
fn clean_up(record: Option<&Record>, reserve: &Reserve, over: Option<Version>, now: Now) -> Step {
    let reason =
        Reason::new("reserve_in_doubt", "the store did not say whether the reserve was written; nothing ran");
    let Some(record) = record else {
        return match reserve {
            Reserve::Arrival(arrival) => Step::put(refused_reserve(arrival, reason, now), Decision::Done),
            // A take is a swap; with no row there is nothing that it could land on.
            Reserve::Take(_) => Step::keep(Decision::Nothing),
        };
    };
    let mine = record.grant.is_some_and(|grant| grant.token == reserve.token());
    match &record.state {
        // Swept meanwhile or not: nothing ran under my token, and nobody else can know that.
        State::InProgress | State::Unknown(_) if mine && !is_held_back(record) => {
            Step::put(back_out(record, &reason, Duration::ZERO, Account::ThisAttempt, now), Decision::Done)
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
    let nobody_came_back = now.is_surely_past(lease_end(record).plus(record.terms.retention));
    let may_be_queued = record.request.is_some() && !is_given_up(record, now);
    match record.terms.crash {
        // The completer goes on with it, or its client, while there is hope for one.
        CrashPolicy::Resume if record.request.is_some() || !nobody_came_back => Step::keep(Decision::Nothing),
        CrashPolicy::Restart if record.evidence.is_none() && may_be_queued => {
            let unaccounted = Record { unaccounted: true, ..record.clone() };
            Step::put(queued(&unaccounted, now.earliest(), rows::waiting_end(record), now), Decision::Done)
                .noting(Notice::Zombie)
        }
        CrashPolicy::Restart
            if record.request.is_none() && record.evidence.is_none() && !nobody_came_back =>
        {
            Step::keep(Decision::Nothing)
        }
        CrashPolicy::Reconcile | CrashPolicy::Restart | CrashPolicy::Resume => {
            Step::put(enter_unknown(record, lapsed(), now), Decision::Done).noting(Notice::Zombie)
        }
    }
}

/// Its time in the queue would be over before it began.
fn is_given_up(record: &Record, now: Now) -> bool {
    now.at >= rows::waiting_end(record)
}

fn reap(record: &Record, grace: Duration, now: Now) -> Step {
    let Some(end) = record.expires_at else {
        return Step::keep(Decision::Nothing);
    };
    if !now.is_surely_past(end.plus(grace)) {
        return Step::keep(Decision::Nothing);
    }
    match (&record.state, record.terms.after_retention) {
        (State::Pending { .. }, _) => Step::put(give_up_waiting(record, now), Decision::Done),
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

/// What still waits ends with an answer that says so, under the condition that no attempt is left in doubt: a take that comes first wins, and
/// what was queued again after a lapsed lease may have acted.
fn cancel(record: &Record, now: Now) -> Step {
    match &record.state {
        State::Pending { .. } if !rows::may_have_acted(record) => Step::put(
            completed(record, Arc::new(problem::cancelled(rows::tried(record))), now),
            Decision::Done,
        ),
        State::Completed(kept) if problem::is_cancelled(kept) => Step::keep(Decision::Done),
        State::Expired => Step::keep(Decision::Nothing),
        State::Pending { .. }
        | State::InProgress
        | State::Completed(_)
        | State::FailedRetryable
        | State::Unknown(_) => Step::keep(Decision::Refused(Refusal::Begun)),
    }
}

/// The quarantines that hold a record back, by id.
fn windows_of(record: &Record) -> Option<&str> {
    record.last_error.as_ref().filter(|reason| reason.code() == QUARANTINED).map(Reason::detail)
}

/// What waits to run, or may run again, may have run in the time that was lost: an operator says what became of it.
fn hold_back(record: &Record, windows: &str, now: Now) -> Step {
    match &record.state {
        State::Pending { .. } | State::FailedRetryable => held_back(record, windows, now),
        // Its holder died with the restore, so its lease is over whatever the clock says. Where it
        // would run again without a question, it is held back. Under `reconcile` it becomes
        // `unknown`: probes ask about the life, and so about an attempt in the lost time too. A
        // lease without an end is its job's, which is in the backup as well and settles it.
        State::InProgress
            if record.terms.crash != CrashPolicy::Reconcile && lease_end(record) < Timestamp::NEVER =>
        {
            held_back(record, windows, now)
        }
        // A probe that finds nothing lets the work go on from its recovery point, which does not
        // know of the lost time.
        State::Unknown(doubt) if !doubt.parked && record.terms.crash == CrashPolicy::Resume => {
            held_back(record, &with_window(record, windows), now)
        }
        // Held back already: from now on by this window too.
        State::Unknown(_)
            if windows_of(record).is_some_and(|held| !held.split(',').any(|one| one == windows)) =>
        {
            let both = Reason::new(QUARANTINED, with_window(record, windows));
            Step::put(Record { last_error: Some(both), ..touched(record, now) }, Decision::Done)
        }
        // Nothing runs again while these stand.
        State::InProgress | State::Completed(_) | State::Unknown(_) | State::Expired => {
            Step::keep(Decision::Nothing)
        }
    }
}

/// What holds it back already, and this window.
fn with_window(record: &Record, window: &str) -> String {
    windows_of(record).map_or_else(|| window.to_owned(), |held| format!("{held},{window}"))
}

/// Before an operator from now on, if nothing is proved of it.
fn held_back(record: &Record, windows: &str, now: Now) -> Step {
    match &record.evidence {
        // A success speaks for the life, a refusal not for the attempts of the lost time.
        Some(evidence) if evidence.answer.is_success() => {
            Step::put(completed(record, Arc::clone(&evidence.answer), now), Decision::Done)
        }
        _ => {
            let next = Record { settled_at: None, evidence: None, ..touched(record, now) };
            Step::put(quarantined(next, windows, now), Decision::Done).noting(Notice::Parked)
        }
    }
}

/// Whether a refusal of one attempt says nothing about the life: there were others, or may have
/// been in the time that a restore lost.
fn may_have_other_attempts(record: &Record) -> bool {
    record.attempts > 1 || is_held_back(record)
}

/// Before an operator because of a restore.
fn is_held_back(record: &Record) -> bool {
    matches!(record.state, State::Unknown(_)) && windows_of(record).is_some()
}

// ---- Somebody found out ----------------------------------------------------------------------------------------------

fn hear(record: Option<&Record>, verdict: &Verdict, now: Now) -> Step {
    let Some(record) = record else {
        return Step::keep(match verdict.finding {
            // The last word on an attempt names it, so it cannot settle one that begins after it.
            Finding::Happened(_)
            | Finding::Found { .. }
            | Finding::Announced(_)
            | Finding::DidNotHappen { grounds: Grounds::Final { .. }, .. } => Decision::KeepApart,
            Finding::DidNotHappen { grounds: Grounds::Probe { .. } | Grounds::Operator { .. }, .. }
            | Finding::NotKnown { .. } => Decision::Nothing,
        });
    };
    if record.life != verdict.life {
        return Step::keep(Decision::Nothing).noting(Notice::AnotherLife);
    }
    match &verdict.finding {
        Finding::Announced(answer) if !answer.is_success() && may_have_other_attempts(record) => {
            refusal_of_some_attempt(record, verdict, answer, now)
        }
        Finding::Found { answer, attempt } if !answer.is_success() && !is_last(*attempt, record) => {
            refusal_of_older_attempt(record, verdict, answer, now)
        }
        Finding::Happened(answer) | Finding::Found { answer, .. } | Finding::Announced(answer) => {
            happened(record, verdict, answer, now)
        }
        Finding::DidNotHappen { grounds, backoff, otherwise } => {
            did_not_happen(record, verdict, grounds, *backoff, otherwise, now)
        }
        // About an older question: whoever has written since has asked another, or knows more.
        Finding::NotKnown { version, .. } if record.version != *version => Step::keep(Decision::Nothing),
        Finding::NotKnown { retry, .. } => not_known(record, retry, now),
    }
}

/// Whether nobody has begun another attempt since.
fn is_last(attempt: Option<Token>, record: &Record) -> bool {
    record.grant.map(|grant| grant.token) == attempt
}

fn happened(record: &Record, verdict: &Verdict, answer: &Arc<Answer>, now: Now) -> Step {
    let given = Given { answer, reference: verdict.reference.as_deref() };
    let settle = || Step::put(given.completes(record, now), Decision::Done);
    match &record.state {
        State::Unknown(_) => settle(),
        State::InProgress if record.is_lapsed(now) && record.terms.crash == CrashPolicy::Reconcile => {
            settle().noting(Notice::Zombie)
        }
        State::InProgress => {
            with_evidence(record, &verdict.source, verdict.reference.as_deref(), answer, now)
        }
        State::FailedRetryable => settle().noting(Notice::WronglyReleased),
        State::Pending { .. } if record.attempts > 0 => settle().noting(Notice::WronglyReleased),
        State::Completed(kept) if kept.is_success() != answer.is_success() => {
            Step::keep(Decision::Nothing).noting(Notice::Contradiction)
        }
        State::Completed(_) => Step::keep(Decision::Nothing).noting(Notice::Confirmed),
        State::Expired => Step::keep(Decision::Nothing).noting(Notice::AfterTheFact),
        // Never granted in this life, so nothing of this life can have happened.
        State::Pending { .. } => Step::keep(Decision::Nothing),
    }
}

/// Some attempt of several was refused. Where the last one may have acted, that says nothing about it: somebody must look.
fn refusal_of_some_attempt(record: &Record, verdict: &Verdict, answer: &Arc<Answer>, now: Now) -> Step {
    match &record.state {
        State::Unknown(_) => ask_soon(record, now).noting(Notice::NegativeDropped),
        // Also where it has lapsed: kept for what the refused attempt did, and applied only if the last one did nothing.
        State::InProgress => {
            with_evidence(record, &verdict.source, verdict.reference.as_deref(), answer, now)
        }
        State::Pending { .. } | State::Completed(_) | State::FailedRetryable | State::Expired => {
            happened(record, verdict, answer, now)
        }
    }
}

/// A probe asked before the last attempt had begun, and found a refusal. Of the last one nothing was learnt, and it is asked about anyway: the
/// row stays untouched, so that a probe under way keeps naming it.
fn refusal_of_older_attempt(record: &Record, verdict: &Verdict, answer: &Arc<Answer>, now: Now) -> Step {
    match &record.state {
        State::Unknown(_) => Step::keep(Decision::Nothing).noting(Notice::NegativeDropped),
        _ => refusal_of_some_attempt(record, verdict, answer, now),
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
    match (&record.state, grounds) {
        // An operator had it asked about. The recovery point is older than what was done, so that
        // nothing is run from it because a probe finds nothing.
        (State::Unknown(_), Grounds::Probe { .. })
            if names(grounds, record)
                && is_held_back(record)
                && record.terms.crash == CrashPolicy::Resume =>
        {
            not_known(record, &Retry { park_after: 1, ..*otherwise }, now).noting(Notice::NegativeDropped)
        }
        (State::Unknown(_), _) if holds(grounds, record) => {
            let reason = Reason::new("did_not_happen", format!("says {}", verdict.source));
            let account = match grounds {
                Grounds::Probe { .. } => Account::Life,
                // Said of the lost time. What the recovery point tells of was done before it, and
                // came back with the backup, the rows of atomic phases too: to do it again would
                // do it twice.
                Grounds::Operator { .. } if is_held_back(record) => Account::Life,
                Grounds::Operator { .. } => Account::Everything,
                Grounds::Final { .. } => Account::ThisAttempt,
            };
            Step::put(back_out(record, &reason, backoff, account, now), Decision::Done)
        }
        // Asked about this attempt, but too early. The horizon explains it, and somebody did answer: nothing is parked for that.
        (State::Unknown(doubt), Grounds::Probe { .. })
            if names(grounds, record) && record.terms.horizon.is_some() =>
        {
            let mut next = touched(record, now);
            next.state = State::Unknown(Doubt { reconcile_after: otherwise.at, tries: 0, ..*doubt });
            Step::put(next, Decision::Done).noting(Notice::NegativeDropped)
        }
        // Without a horizon it is never late enough: one question more.
        (State::Unknown(_), Grounds::Probe { .. }) if names(grounds, record) => {
            not_known(record, otherwise, now).noting(Notice::NegativeDropped)
        }
        // About an older question: nothing was learnt.
        (State::Unknown(_), Grounds::Probe { .. }) => {
            Step::keep(Decision::Nothing).noting(Notice::NegativeDropped)
        }
        (State::Unknown(_), Grounds::Final { .. }) => ask_soon(record, now).noting(Notice::NegativeDropped),
        // The last word on an attempt that still runs. It is not kept, so it must not be acknowledged either: told again, it will hold.
        (State::InProgress, Grounds::Final { .. }) if names(grounds, record) => {
            Step::keep(Decision::Busy { until: lease_end(record) })
        }
        (_, Grounds::Operator { version }) if record.version != *version => {
            Step::keep(Decision::Refused(Refusal::Changed))
        }
        (State::Completed(kept), _) if kept.is_success() => {
            Step::keep(Decision::Nothing).noting(Notice::Contradiction)
        }
        (State::Completed(_), _) => Step::keep(Decision::Nothing).noting(Notice::Confirmed),
        _ => Step::keep(Decision::Nothing),
    }
}

/// Moves the next question; tries, and what is known, stay.
fn ask(record: &Record, ask: Ask, now: Now) -> Step {
    let asked_at = |doubt: Doubt| {
        let mut next = touched(record, now);
        next.state = State::Unknown(doubt);
        Step::put(next, Decision::Done)
    };
    match (&record.state, ask) {
        (_, Ask::Again { version }) if record.version != version => {
            Step::keep(Decision::Refused(Refusal::Changed))
        }
        (State::Unknown(doubt), Ask::Again { .. }) => {
            asked_at(Doubt { reconcile_after: now.earliest(), tries: 0, parked: false, since: doubt.since })
        }
        (_, Ask::Again { .. }) => Step::keep(Decision::Refused(Refusal::NotUnknown)),
        // Whoever has written since has claimed it, or settled it.
        (State::Unknown(doubt), Ask::Claim { version, until })
            if record.version == version && !doubt.parked && now.at >= doubt.reconcile_after =>
        {
            asked_at(Doubt { reconcile_after: until, ..*doubt })
        }
        (_, Ask::Claim { .. }) => Step::keep(Decision::Nothing),
        (_, Ask::Soon) => ask_soon(record, now),
    }
}

/// A negative event that proves nothing wakes the probe; it is no question, and a row that is due anyway stays untouched, so
/// that a probe under way keeps naming it.
fn ask_soon(record: &Record, now: Now) -> Step {
    match &record.state {
        State::Unknown(doubt) if !doubt.parked && doubt.reconcile_after > now.at => {
            let mut next = touched(record, now);
            next.state = State::Unknown(Doubt { reconcile_after: now.earliest(), ..*doubt });
            Step::put(next, Decision::Done)
        }
        _ => Step::keep(Decision::Nothing),
    }
}

/// Whether a negative verdict is about this very attempt, and came too late for the effect still to come.
fn holds(grounds: &Grounds, record: &Record) -> bool {
    let late_enough = match grounds {
        Grounds::Probe { asked, steady_since, .. } => {
            horizon_end(record, *steady_since).is_some_and(|end| asked.is_surely_past(end))
        }
        Grounds::Final { .. } | Grounds::Operator { .. } => true,
    };
    names(grounds, record) && late_enough
}

/// The moment from which a probe's "not found" proves that the attempt had no effect; `None`:
/// never.
///
/// The horizon counts from the latest of three moments. The lease's end: until then the holder may
/// send. The moment the record became `unknown`: if the clock stepped forward, the lease's end
/// says nothing about how much time has passed. And the moment since which the asking node has seen
/// the clock run without a step forward: a step may have come after the record became `unknown`.
#[must_use]
pub fn horizon_end(record: &Record, steady_since: Timestamp) -> Option<Timestamp> {
    let State::Unknown(doubt) = &record.state else { return None };
    let last_send = lease_end(record).max(doubt.since).max(steady_since);
    record.terms.horizon.map(|horizon| last_send.plus(horizon))
}

fn names(grounds: &Grounds, record: &Record) -> bool {
    match grounds {
        Grounds::Probe { token, version, .. } => {
            record.version == *version && record.grant.is_some_and(|grant| grant.token == *token)
        }
        // Speaks of one attempt only, so it cannot settle a life with others that nobody has accounted for.
        Grounds::Final { fence } => {
            record.fence == *fence && !record.unaccounted && record.recovery.is_none()
        }
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
