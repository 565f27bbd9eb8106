//! Callers that the upstream refuses, and requests that would run as no caller.

use oncegate_core::classify::{CALLER_REFUSED, CALLER_REFUSED_KEPT, UPSTREAMS_WORD};
use oncegate_core::decide::{Arrival, Decision, Event, Grounds, Next, Notice};
use oncegate_core::identity::{Fence, Token, Version};
use oncegate_core::policy::Credentials;
use oncegate_core::record::{CrashPolicy, Execution, Holder, Reason, Record, State, StateKind, Terms};
use oncegate_core::time::Now;

use super::samples::*;
use super::table::{is_coherent, words};

/// The record of an inline attempt whose caller is refused, at second 10.
fn refused(first: Arrival) -> Record {
    let (row, lease) = granted(None, first, at(0));
    row_after(Some(&row), &refuse_caller(lease.holder), at(10))
}

/// One more attempt, which ends as `end` says.
fn attempt(row: &Record, token: u8, end: fn(Holder) -> Event, now: Now) -> Record {
    let (row, lease) = granted(Some(row), arrival(token), now);
    row_after(Some(&row), &end(lease.holder), now)
}

fn parts(row: &Record) -> (StateKind, Option<u64>) {
    let lives = |end: oncegate_core::time::Timestamp| end.since(row.settled_at.unwrap()).as_secs();
    (row.state.kind(), row.expires_at.map(lives))
}

const RETRYABLE: StateKind = StateKind::FailedRetryable;
const DAY_S: u64 = RETENTION.as_secs();

/// Anybody can invent credentials, and each left a row for the whole retention.
#[test]
fn a_row_whose_caller_was_refused_lives_for_seconds() {
    let first = refused(arrival(1));
    assert_eq!(parts(&first), (RETRYABLE, Some(10)));
    assert!(is_coherent(&first));
    // A retry executes again, and if it is refused, too, the row lives no longer for it.
    let second = attempt(&first, 2, refuse_caller, at(15));
    assert_eq!((parts(&second), second.attempts), ((RETRYABLE, Some(10)), 2));
    // Past its end it is a new life, whose numbers go on.
    let (third, lease) = granted(Some(&second), arrival(3), at(26));
    assert_eq!((third.life, lease.attempt), (token(3), 1));
    assert!(third.fence > second.fence && third.version > second.version);
    // Under 410 and 404, too: there is nothing that a tombstone could say.
    for terms in [gone_terms(oncegate_core::record::GoneStatus::Gone), terms(CrashPolicy::Restart)] {
        let row = refused(Arrival { terms, ..arrival(1) });
        assert_eq!(parts(&row), (RETRYABLE, Some(10)));
        assert_eq!(words(&apply(Some(&row), &reap(), at(19)).1), "–");
        assert_eq!(words(&apply(Some(&row), &reap(), at(20)).1), "Done → removed");
    }
    // Not longer than the retention.
    let short = Terms { retention: 3 * S, ..terms(CrashPolicy::Reconcile) };
    assert_eq!(parts(&refused(Arrival { terms: short, ..arrival(1) })), (RETRYABLE, Some(3)));
}

/// The upstream charged and then answered 401. The provider's event came after ten seconds, found
/// no
/// record, and the retry of a new life charged under another derived key.
#[test]
fn a_row_of_which_evidence_may_come_keeps_its_retention() {
    let kept = |holder| {
        let reason = Reason::new(CALLER_REFUSED_KEPT, "401 refused before acting");
        Event::Release { holder, reason, backoff: 5 * S }
    };
    let (row, lease) = granted(None, arrival(1), at(0));
    let first = row_after(Some(&row), &kept(lease.holder), at(10));
    assert_eq!(parts(&first), (RETRYABLE, Some(DAY_S)));
    assert_eq!(first.last_error.as_ref().unwrap().code(), UPSTREAMS_WORD);
    // Neither does a route without such evidence shorten it afterwards.
    assert_eq!(parts(&attempt(&first, 2, refuse_caller, at(15))), (RETRYABLE, Some(DAY_S)));
    // Deferred work is parked after the second refusal there, too.
    let waiting = row_after(None, &Event::Arrive(deferred(1)), at(0));
    let (row, holder) = taken(&waiting, 2, at(1));
    let row = row_after(Some(&row), &kept(holder), at(2));
    assert_eq!(row.last_error.as_ref().unwrap().code(), CALLER_REFUSED);
    let (row, holder) = taken(&row, 3, at(10));
    assert!(is_parked(&row_after(Some(&row), &kept(holder), at(11))));
}

/// Where another attempt ended otherwise, on whosever word, the row must outlive what that one may
/// have set in motion: a new life would have another downstream key.
#[test]
fn a_life_with_another_attempt_is_not_shortened() {
    let (row, lease) = granted(None, arrival(1), at(0));
    let released = row_after(Some(&row), &release(lease.holder), at(10));
    let second = attempt(&released, 2, refuse_caller, at(15));
    assert_eq!(parts(&second), (RETRYABLE, Some(DAY_S)));
    // Nor is it by a further refusal.
    let third = attempt(&second, 3, refuse_caller, at(20));
    assert_eq!(parts(&third), (RETRYABLE, Some(DAY_S)));
    // The other way round: the last attempt decides.
    let mixed = attempt(&refused(arrival(1)), 2, release, at(15));
    assert_eq!(parts(&mixed), (RETRYABLE, Some(DAY_S)));
    assert_eq!(parts(&attempt(&mixed, 3, refuse_caller, at(20))), (RETRYABLE, Some(DAY_S)));
    // A doubt, of which an operator says that it did not happen.
    let doubted = row_after(Some(&row), &doubt(lease.holder), at(10));
    let grounds = Grounds::Operator { version: doubted.version };
    let judged = row_after(Some(&doubted), &did_not_happen(doubted.life, grounds, at(20)), at(20));
    assert_eq!(parts(&attempt(&judged, 2, refuse_caller, at(30))), (RETRYABLE, Some(DAY_S)));
    // A provider that named its effect.
    let known = Record { provider_reference: Some("ch_1".into()), ..row };
    let row = row_after(Some(&known), &refuse_caller(lease.holder), at(10));
    assert_eq!(parts(&row), (RETRYABLE, Some(DAY_S)));
}

/// An attempt of the life lapsed, and what it did is not known: that a later one was refused
/// settles
/// nothing.
#[test]
fn an_unaccounted_attempt_is_neither_settled_nor_reaped_by_a_refusal() {
    for crash in [CrashPolicy::Restart, CrashPolicy::Resume] {
        let (row, _) = granted(None, Arrival { terms: terms(crash), ..arrival(1) }, at(0));
        let (row, lease) = granted(Some(&row), arrival(2), at(61));
        assert!(row.unaccounted);
        let row = row_after(Some(&row), &refuse_caller(lease.holder), at(70));
        assert_eq!((row.state.kind(), row.unaccounted, row.expires_at), (StateKind::InProgress, true, None));
        assert_eq!(words(&apply(Some(&row), &reap(), at(10 * DAY_S)).1), "–");
    }
}

/// The clock was set back by an hour while the attempt ran. A row that was gone before the clock
/// had
/// passed its fence again would let the next life have a lower one.
#[test]
fn a_refused_row_outlives_its_numbers() {
    let (row, lease) = granted(None, arrival(1), at(3_600));
    let row = row_after(Some(&row), &refuse_caller(lease.holder), at(0));
    let end = row.expires_at.unwrap();
    assert!(Fence::next(None, end) > row.fence && Version::next(None, end) > row.version);
}

/// What happened after all settles it as ever, while the row is there.
#[test]
fn an_effect_that_is_proved_of_a_refused_row_still_counts() {
    let row = refused(arrival(1));
    let (settled, step) = apply(Some(&row), &happened(row.life, 201), at(12));
    assert_eq!(step.notices, [Notice::WronglyReleased]);
    assert_eq!(parts(&settled.unwrap()), (StateKind::Completed, Some(DAY_S)));
}

/// Deferred work, taken by a worker at this second.
fn taken(row: &Record, token: u8, now: Now) -> (Record, Holder) {
    let (row, step) = apply(Some(row), &take(token), now);
    (row.unwrap(), lease_of(&step).holder)
}

fn is_parked(row: &Record) -> bool {
    matches!(&row.state, State::Unknown(doubt) if doubt.parked)
}

/// With credentials that the upstream refuses it was sent again for a day.
#[test]
fn attack_33_deferred_work_that_is_refused_twice_is_parked() {
    let waiting = row_after(None, &Event::Arrive(deferred(1)), at(0));
    let (row, holder) = taken(&waiting, 2, at(1));
    let row = row_after(Some(&row), &refuse_caller(holder), at(2));
    assert_eq!((row.state.kind(), row.expires_at), (StateKind::Pending, waiting.expires_at));
    let (row, holder) = taken(&row, 3, at(10));
    let (parked, step) = apply(Some(&row), &refuse_caller(holder), at(11));
    let parked = parked.unwrap();
    assert!(is_parked(&parked) && is_coherent(&parked), "{parked:?}");
    assert_eq!(step.notices, [Notice::Parked]);
    assert!(matches!(&step.decision, Decision::Fenced(Some(row)) if **row == parked));
    let why = parked.last_error.as_ref().unwrap().to_string();
    assert_eq!(
        why,
        "caller_refused: 401 refused before acting; the attempt before was refused, too, so it is not tried again"
    );
    assert!(parked.request.is_some() && parked.due_at().is_none());
    // Said twice, because the acknowledgement was lost.
    let again = row_after(Some(&parked), &refuse_caller(holder), at(12));
    assert!(is_parked(&again) && again.last_error == parked.last_error, "{again:?}");
    // An operator who has set things right lets it run again, and it has two tries again.
    let grounds = Grounds::Operator { version: again.version };
    let queued = row_after(Some(&again), &did_not_happen(again.life, grounds, at(20)), at(20));
    assert_eq!(queued.state.kind(), StateKind::Pending);
    let (row, holder) = taken(&queued, 4, at(30));
    assert_eq!(row_after(Some(&row), &refuse_caller(holder), at(31)).state.kind(), StateKind::Pending);
    // Another failure in between: the two are not in a row.
    let (row, holder) = taken(&waiting, 2, at(1));
    let row = row_after(Some(&row), &refuse_caller(holder), at(2));
    let (row, holder) = taken(&row, 3, at(10));
    let row = row_after(Some(&row), &release(holder), at(11));
    let (row, holder) = taken(&row, 4, at(20));
    assert_eq!(row_after(Some(&row), &refuse_caller(holder), at(21)).state.kind(), StateKind::Pending);
}

/// An earlier release stored the request without its caller's credentials, and the upstream would
/// have executed it for anybody.
#[test]
fn attack_33_a_request_without_its_caller_is_parked_and_never_run() {
    let waiting = row_after(None, &Event::Arrive(without_caller(deferred(1))), at(0));
    let (parked, step) = apply(Some(&waiting), &take(2), at(1));
    let parked = parked.unwrap();
    assert_eq!((step.decision, step.notices), (Decision::Nothing, vec![Notice::Parked]));
    assert!(is_parked(&parked) && parked.attempts == 0, "{parked:?}");
    assert_eq!(parked.last_error.as_ref().unwrap().code(), "no_credentials");
    // Not before its time, and not past it.
    let early = Record { state: State::Pending { run_after: at(9).at }, ..waiting.clone() };
    assert_eq!(apply(Some(&early), &take(2), at(1)).1.next, Next::Keep);
    let late = row_after(Some(&waiting), &take(2), at(DAY_S));
    assert_eq!(late.state.kind(), StateKind::Completed, "given up: 408");
    // Where the route says now that it needs no caller; and what was accepted under such a route.
    let run = |row: &Record, credentials| apply(Some(row), &take_under(2, credentials), at(1)).1;
    assert!(matches!(run(&waiting, Credentials::Dropped).decision, Decision::Execute(_)));
    for credentials in [Credentials::Kept, Credentials::Dropped] {
        let mut stated = waiting.clone();
        stated.request.as_mut().unwrap().credentials = Some(credentials);
        assert!(matches!(run(&stated, Credentials::Kept).decision, Decision::Execute(_)));
    }
    // Once the operator lets it: it is parked again, until the route allows it.
    let grounds = Grounds::Operator { version: parked.version };
    let queued = row_after(Some(&parked), &did_not_happen(parked.life, grounds, at(20)), at(20));
    assert!(is_parked(&row_after(Some(&queued), &take(3), at(30))));
    assert!(matches!(run_at(&queued, 30).decision, Decision::Execute(_)));
    // A handler in phases never had any.
    let phased = Arrival { terms: terms(CrashPolicy::Resume), ..without_caller(arrival(1)) };
    let (row, _) = granted(None, phased, at(0));
    let (row, holder) = taken(&row, 2, at(61));
    let row = row_after(Some(&row), &release(holder), at(62));
    assert_eq!((row.state.kind(), row.execution), (StateKind::Pending, Execution::Deferred));
    assert!(matches!(apply(Some(&row), &take(3), at(70)).1.decision, Decision::Execute(_)));
}

fn run_at(row: &Record, second: u64) -> oncegate_core::decide::Step {
    apply(Some(row), &take_under(4, Credentials::Dropped), at(second)).1
}

/// Two webhooks that prove the effect of what is parked settle it, as of any doubt.
#[test]
fn an_effect_that_is_proved_of_parked_work_settles_it() {
    let waiting = row_after(None, &Event::Arrive(deferred(1)), at(0));
    let (row, holder) = taken(&waiting, 2, at(1));
    let row = row_after(Some(&row), &refuse_caller(holder), at(2));
    let (row, holder) = taken(&row, 3, at(10));
    let parked = row_after(Some(&row), &refuse_caller(holder), at(11));
    let life: Token = parked.life;
    assert_eq!(row_after(Some(&parked), &happened(life, 201), at(12)).state.kind(), StateKind::Completed);
}
