//! Fine points that the table has no column for: clocks that disagree, retention, misuse that is only counted.

use std::time::Duration;

use oncegate_core::decide::{Arrival, Ask, Decision, Event, Misuse, Next, Notice};
use oncegate_core::fingerprint::Fingerprint;
use oncegate_core::problem::{self, Tried};
use oncegate_core::record::{CrashPolicy, Record, RetentionFrom, State, StateKind, Terms};
use oncegate_core::response::Answer;
use oncegate_core::time::{Now, Timestamp};

use super::samples::*;
use super::table::words;

fn unsure(now: Now, error: Duration) -> Now {
    Now { error, ..now }
}

/// A node whose clock may be off by five minutes accepted work and recorded doubts that were due
/// by its own time. To a node that knew the time better they lay in the future: nothing ran them,
/// and nothing reported them.
#[test]
fn what_is_due_at_once_is_due_by_every_clock() {
    let (late, early) = (unsure(at(1_000), 300 * S), at(700));
    let accepted = row_after(None, &Event::Arrive(deferred(1)), late);
    assert!(matches!(apply(Some(&accepted), &take(2), early).1.decision, Decision::Execute(_)));

    let stored = Arrival { terms: terms(CrashPolicy::Restart), request: deferred(1).request, ..arrival(1) };
    let (row, _) = granted(None, stored, at(0));
    let queued = row_after(Some(&row), &Event::Sweep, late);
    assert!(matches!(apply(Some(&queued), &take(2), early).1.decision, Decision::Execute(_)));

    let (row, lease) = granted(None, arrival(1), at(0));
    let doubted = row_after(Some(&row), &doubt(lease.holder), late);
    let later = Ask::Claim { version: doubted.version, until: at(9_000).at };
    let claimed = row_after(Some(&doubted), &Event::Ask(later), early);
    let asked_soon = row_after(Some(&claimed), &Event::Ask(Ask::Soon), late);
    let asked_again = Event::Ask(Ask::Again { version: claimed.version });
    let asked_again = row_after(Some(&claimed), &asked_again, late);
    for row in [doubted, asked_soon, asked_again] {
        let claim = Ask::Claim { version: row.version, until: at(9_000).at };
        assert_eq!(apply(Some(&row), &Event::Ask(claim), early).1.decision, Decision::Done, "{row:?}");
        // But the horizon counts from the latest moment that it can have been.
        assert!(matches!(&row.state, State::Unknown(doubt) if doubt.since == at(1_300).at));
    }

    // A pause is one by the clock of the node that pauses: it would ask, or send, again at once.
    let released = row_after(None, &Event::Arrive(deferred(1)), at(0));
    let (running, step) = apply(Some(&released), &take(1), at(0));
    let released = row_after(running.as_ref(), &release(lease_of(&step).holder), late);
    assert_eq!(released.state, State::Pending { run_after: late.at.plus(5 * S) });
}

/// Holders stop at end − ε, others lapse at end + ε: in between nobody may act.
#[test]
fn clock_error_costs_waiting_never_a_second_grant() {
    let (row, _) = granted(None, arrival(1), at(0));
    let mine = Event::Arrive(arrival(1));
    let other = Event::Arrive(arrival(2));
    let check = |second, expected_mine: &str, expected_other: &str| {
        let now = unsure(at(second), 5 * S);
        assert_eq!(words(&apply(Some(&row), &mine, now).1), expected_mine, "mine at {second}");
        assert_eq!(words(&apply(Some(&row), &other, now).1), expected_other, "other at {second}");
    };
    check(54, "Execute", "Busy");
    check(55, "Busy", "Busy");
    check(64, "Busy", "Busy");
    check(65, "Unsettled → unknown", "Unsettled → unknown");
}

/// The lease counts from the `now` that was sampled before the write, and never outlives the attempt.
#[test]
fn a_lease_counts_from_before_the_write() {
    let (row, lease) = granted(None, arrival(1), at(7));
    assert_eq!(lease.until, at(67).at);
    assert_eq!(lease.attempt_deadline, at(907).at);
    assert_eq!((row.created_at, row.last_run_at, row.attempts), (at(7).at, Some(at(7).at), 1));
    let hasty = Arrival { attempt_deadline: 10 * S, ..arrival(1) };
    assert_eq!(granted(None, hasty, at(7)).1.until, at(17).at);
}

/// Under `lenient` another body replays the first answer, and is counted.
#[test]
fn misuse_can_be_only_counted() {
    let counted = |n| Arrival { misuse: Misuse::Count, ..other_request(arrival(n)) };
    let (row, lease) = granted(None, arrival(1), at(0));
    let done = row_after(Some(&row), &complete(lease.holder, 201), at(1));
    let (_, step) = apply(Some(&done), &Event::Arrive(counted(2)), at(2));
    assert_eq!((step.decision, step.notices), (Decision::Replay(answer(201)), vec![Notice::Misuse]));
    let (_, step) = apply(Some(&done), &Event::Arrive(arrival(2)), at(2));
    assert_eq!(step.notices, []);
    // Of a request that is not checked only the operation is compared.
    let unchecked = Arrival { fingerprint: Fingerprint::NONE, ..arrival(3) };
    assert!(matches!(apply(Some(&done), &Event::Arrive(unchecked), at(2)).1.decision, Decision::Replay(_)));
}

/// Retention runs from settlement, or from creation where the route says so; the last moment is exclusive.
#[test]
fn retention_runs_from_settlement_or_creation() {
    for (from, end) in [(RetentionFrom::Settlement, 50 + 86_400), (RetentionFrom::Creation, 86_400)] {
        let terms = Terms { retention_from: from, ..terms(CrashPolicy::Reconcile) };
        let (row, lease) = granted(None, Arrival { terms, ..arrival(1) }, at(0));
        let done = row_after(Some(&row), &complete(lease.holder, 201), at(50));
        assert_eq!(done.expires_at, Some(at(end).at));
        let arrive = Event::Arrive(arrival(2));
        assert_eq!(words(&apply(Some(&done), &arrive, at(end - 1)).1), "Replay");
        assert_eq!(words(&apply(Some(&done), &arrive, at(end)).1), "Execute → in_progress");
        // Another request under a key past retention is a new key too, not misuse.
        let other = Event::Arrive(other_request(arrival(2)));
        assert_eq!(words(&apply(Some(&done), &other, at(end)).1), "Execute → in_progress");
    }
}

/// ¹ A release past retention counts as absent: a new life, also for another request, also under 410.
#[test]
fn a_release_past_retention_is_a_new_life() {
    let first = Arrival { terms: gone_terms(oncegate_core::record::GoneStatus::Gone), ..arrival(1) };
    let (row, lease) = granted(None, first, at(0));
    let released = row_after(Some(&row), &release(lease.holder), at(0));
    let (again, _) = granted(Some(&released), arrival(2), at(86_399));
    assert_eq!((again.life, again.attempts), (token(1), 2), "the same life");
    for next in [arrival(2), other_request(arrival(2))] {
        let (fresh, _) = granted(Some(&released), next, at(86_400));
        assert_eq!((fresh.life, fresh.attempts), (token(2), 1), "a new life");
    }
}

/// `unknown` and `in_progress` have no retention: nothing but a settlement ends them.
#[test]
fn doubt_never_expires() {
    let (row, lease) = granted(None, arrival(1), at(0));
    let unknown = row_after(Some(&row), &doubt(lease.holder), at(1));
    let years_later = at(10 * 365 * 86_400);
    for event in [reap(), Event::Sweep] {
        assert_eq!(apply(Some(&unknown), &event, years_later).1.next, Next::Keep);
    }
    assert_eq!(words(&apply(Some(&unknown), &Event::Arrive(arrival(2)), years_later).1), "Unsettled");
    assert_eq!(apply(Some(&row), &reap(), years_later).1.next, Next::Keep);
    // And the late holder may still settle its own doubt, at any time.
    assert_eq!(
        words(&apply(Some(&unknown), &complete(lease.holder, 201), years_later).1),
        "Done → completed"
    );
}

/// `pending` past its limit completes with a stored 408 whose retention starts then, whoever notices first.
#[test]
fn waiting_work_past_its_limit_is_408_from_then_on() {
    let waiting = row_after(None, &Event::Arrive(deferred(1)), at(0));
    let limit = at(86_400);
    for event in [reap(), take(2), Event::Arrive(deferred(2))] {
        let row = row_after(Some(&waiting), &event, limit);
        let State::Completed(answer) = &row.state else { panic!("{event:?}: {row:?}") };
        assert_eq!(answer.status(), 408);
        assert_eq!(row.expires_at, Some(at(2 * 86_400).at));
    }
    assert_eq!(
        apply(Some(&waiting), &take(2), limit).1.decision,
        Decision::Nothing,
        "it must not run any more"
    );
    assert_eq!(words(&apply(Some(&waiting), &Event::Arrive(deferred(2)), limit).1), "Replay → completed");
}

/// `restart` without a stored request waits for its client, and is `unknown` past retention.
#[test]
fn a_restart_nobody_comes_back_for_is_unknown_past_retention() {
    let first = Arrival { terms: terms(CrashPolicy::Restart), ..arrival(1) };
    let (row, _) = granted(None, first, at(0));
    assert_eq!(apply(Some(&row), &Event::Sweep, at(60 + 86_399)).1.next, Next::Keep);
    let swept = row_after(Some(&row), &Event::Sweep, at(60 + 86_400));
    assert_eq!(swept.state.kind(), StateKind::Unknown);
}

/// A resumed attempt gets the last recovery point, and the output that was kept with it.
#[test]
fn resume_continues_after_the_last_point() {
    let request = deferred(1).request;
    let first = Arrival { terms: terms(CrashPolicy::Resume), request, ..arrival(1) };
    let (row, lease) = granted(None, first, at(0));
    let row = row_after(Some(&row), &Event::Advance { holder: lease.holder, point: point() }, at(1));
    for event in [Event::Arrive(arrival(2)), take(2)] {
        let (_, step) = apply(Some(&row), &event, at(61));
        let resumed = lease_of(&step);
        assert_eq!((resumed.recovery, resumed.attempt), (Some(point()), 2));
        assert_eq!(resumed.holder.life, token(1));
    }
}

/// Questions without an answer back off, and park at the limit; a parked record is no longer due.
#[test]
fn questions_without_an_answer_park() {
    let (row, lease) = granted(None, arrival(1), at(0));
    let mut row = row_after(Some(&row), &doubt(lease.holder), at(1));
    assert_eq!(row.due_at(), Some(at(1).at), "asked at once");
    for tries in 1..=20_u32 {
        let next_question = at(u64::from(tries) * 100);
        let (next, step) = apply(Some(&row), &not_known(&row, retry(next_question)), at(2));
        row = next.unwrap();
        assert_eq!(step.notices.contains(&Notice::Parked), tries == 20);
        assert_eq!(row.due_at(), (tries < 20).then_some(next_question.at));
    }
    assert_eq!(
        apply(Some(&row), &Event::Arrive(arrival(2)), at(3)).1.decision,
        Decision::Unsettled { since: at(1).at, parked: true }
    );
    // Parked is not settled: proof still counts.
    assert_eq!(words(&apply(Some(&row), &happened(row.life, 201), at(4)).1), "Done → completed");
}

/// An answer over the storage limit is settled as not kept, and replays as such.
#[test]
fn an_answer_not_kept_completes_all_the_same() {
    let (row, lease) = granted(None, arrival(1), at(0));
    let answer = std::sync::Arc::new(Answer::NotKept { status: 200, location: None });
    let complete = Event::Complete { holder: lease.holder, answer: answer.clone(), reference: None };
    let done = row_after(Some(&row), &complete, at(1));
    assert_eq!(apply(Some(&done), &Event::Arrive(arrival(2)), at(2)).1.decision, Decision::Replay(answer));
}

/// The provider's name for an effect is found on the record, whoever brought it; a holder that has none takes nothing away.
#[test]
fn the_provider_s_name_for_an_effect_comes_with_its_answer() {
    let (row, lease) = granted(None, arrival(1), at(0));
    let (holder, answer) = (lease.holder, answer(201));
    let named = |name: Option<&str>| Event::Complete {
        holder,
        answer: answer.clone(),
        reference: name.map(Box::from),
    };
    let reference = |row: &Record| row.provider_reference.as_deref().map(str::to_owned);
    let done = row_after(Some(&row), &named(Some("ch_1")), at(1));
    assert_eq!(reference(&done).as_deref(), Some("ch_1"));
    let known = Record { provider_reference: Some("ch_0".into()), ..row.clone() };
    assert_eq!(reference(&row_after(Some(&known), &named(None), at(1))).as_deref(), Some("ch_0"));
    assert_eq!(reference(&row_after(Some(&known), &named(Some("ch_1")), at(1))).as_deref(), Some("ch_1"));
    // Of an older grant: kept with its evidence, while the newer one runs.
    let (newer, _) = granted(Some(&row_after(Some(&row), &release(holder), at(1))), arrival(2), at(2));
    let (kept, step) = apply(Some(&newer), &named(Some("ch_1")), at(3));
    assert!(matches!(step.decision, Decision::Fenced(_)), "{step:?}");
    assert_eq!(reference(&kept.unwrap()).as_deref(), Some("ch_1"));
}

/// The reaper leaves a row alone for its grace, and for the clock's error.
#[test]
fn the_reaper_waits_for_grace_and_clock_error() {
    let (row, lease) = granted(None, arrival(1), at(0));
    let done = row_after(Some(&row), &complete(lease.holder, 201), at(0));
    let reap = Event::Reap { grace: 10 * S };
    assert_eq!(apply(Some(&done), &reap, unsure(at(86_414), 5 * S)).1.next, Next::Keep);
    assert!(matches!(apply(Some(&done), &reap, unsure(at(86_415), 5 * S)).1.next, Next::Remove { .. }));
}

/// A job carries the lease on. It may take a month: nobody else runs meanwhile, nothing is swept or reaped, and the job's holder
/// settles it with the token that it was given.
#[test]
fn an_entrusted_lease_does_not_end_and_its_holder_settles_it_whenever() {
    let (row, lease) = granted(None, arrival(1), at(0));
    let row = row_after(Some(&row), &Event::Entrust { holder: lease.holder }, at(1));
    assert_eq!(row.due_at(), None, "no worker has to look at it");
    let month = at(30 * 86_400);
    let (_, step) = apply(Some(&row), &Event::Arrive(arrival(2)), month);
    assert_eq!(step.decision, Decision::Busy { until: Timestamp::NEVER });
    for event in [Event::Sweep, reap(), take(3)] {
        assert_eq!(apply(Some(&row), &event, month).1.next, Next::Keep, "{event:?}");
    }
    let (settled, step) = apply(Some(&row), &complete(lease.holder, 201), month);
    assert_eq!(step.decision, Decision::Done);
    assert_eq!(settled.map(|row| row.state.kind()), Some(StateKind::Completed));
    // Given up: from then on it is a doubt like any other, and whoever delivers it late still settles it.
    let doubted = row_after(Some(&row), &doubt(lease.holder), month);
    assert_eq!(doubted.state.kind(), StateKind::Unknown);
    assert!(doubted.grant.is_some_and(|grant| grant.lease_until <= month.at), "the horizon counts from here");
    assert_eq!(apply(Some(&doubted), &complete(lease.holder, 201), month).1.decision, Decision::Done);
}

/// Taken back by its owner: only what surely did nothing, and the answer stays the same however often it is said.
#[test]
fn what_cannot_be_run_here_is_due_later_and_given_up_no_later() {
    let waiting = row_after(None, &Event::Arrive(deferred(1)), at(0));
    let postpone = |row: &Record, until| Event::Postpone { version: row.version, until: at(until).at };
    let aside = row_after(Some(&waiting), &postpone(&waiting, 40), at(10));
    assert_eq!((aside.due_at(), aside.attempts, aside.expires_at), (Some(at(40).at), 0, waiting.expires_at));
    assert_eq!(words(&apply(Some(&aside), &take(2), at(39)).1), "–");
    assert_eq!(words(&apply(Some(&aside), &take(2), at(40)).1), "Execute → in_progress");
    // By one who was shown it before: somebody else has it aside already, or it was begun and released since.
    assert_eq!(words(&apply(Some(&aside), &postpone(&waiting, 80), at(40)).1), "–");
    // Nor before its turn has come.
    assert_eq!(words(&apply(Some(&aside), &postpone(&aside, 80), at(39)).1), "–");
}

#[test]
fn only_what_surely_did_nothing_is_cancelled() {
    let waiting = row_after(None, &Event::Arrive(deferred(1)), at(0));
    let (cancelled, step) = apply(Some(&waiting), &Event::Cancel, at(5));
    let cancelled = cancelled.unwrap();
    assert_eq!(words(&step), "Done → completed");
    assert!(matches!(&cancelled.state, State::Completed(answer) if answer.status() == 410), "{cancelled:?}");
    assert_eq!((cancelled.settled_at, &cancelled.request), (Some(at(5).at), &None));
    assert_eq!(words(&apply(Some(&cancelled), &Event::Cancel, at(6)).1), "Done");
    assert_eq!(words(&apply(Some(&cancelled), &Event::Arrive(deferred(2)), at(6)).1), "Replay");
    // Released: established that it did nothing.
    let (taken, lease) = {
        let (row, step) = apply(Some(&waiting), &take(2), at(1));
        (row.unwrap(), lease_of(&step))
    };
    let released = row_after(Some(&taken), &release(lease.holder), at(2));
    assert_eq!(words(&apply(Some(&released), &Event::Cancel, at(3)).1), "Done → completed");
    // But it was sent, and its answer does not say otherwise.
    let answered = |row: &Record, event: &Event, now| match row_after(Some(row), event, now).state {
        State::Completed(answer) => (*answer).clone(),
        other => panic!("{other:?}"),
    };
    let late = at(400 * 86_400);
    for (row, tried) in [(&waiting, Tried::Never), (&released, Tried::Released)] {
        assert_eq!(answered(row, &Event::Cancel, at(3)), problem::cancelled(tried));
        assert_eq!(answered(row, &reap(), late), problem::not_started(tried));
        let over = row_after(Some(row), &Event::Cancel, at(3));
        assert_eq!(words(&apply(Some(&over), &Event::Cancel, at(4)).1), "Done", "twice is once");
    }
    // Queued again after a lapsed lease: nobody knows.
    let restart = Arrival { terms: terms(CrashPolicy::Restart), request: deferred(1).request, ..deferred(1) };
    let waiting = row_after(None, &Event::Arrive(restart), at(0));
    let taken = row_after(Some(&waiting), &take(2), at(1));
    let lapsed = row_after(Some(&taken), &Event::Sweep, at(200));
    assert_eq!((lapsed.state.kind(), lapsed.unaccounted), (StateKind::Pending, true));
    assert_eq!(words(&apply(Some(&lapsed), &Event::Cancel, at(201)).1), "Refused");
}
