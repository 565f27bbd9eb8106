//! Traces from a second hostile reading, about what the first one's fixes brought.

use std::time::Duration;

use oncegate_core::decide::{Arrival, Ask, Decision, Event, Grounds, Notice, Retry};
use oncegate_core::record::{CrashPolicy, Holder, Record, RetentionFrom, State, StateKind, Terms};
use oncegate_core::time::Now;

use super::samples::*;

/// Attempt 1 wrongly judged to have done nothing; attempt 2 running.
fn second_attempt() -> (Record, Holder, Holder) {
    let (row, one) = granted(None, arrival(1), at(0));
    let row = row_after(Some(&row), &doubt(one.holder), at(10));
    let row = row_after(Some(&row), &not_found(&row, at(200)), at(200));
    assert_eq!(row.state.kind(), StateKind::FailedRetryable);
    let (row, two) = granted(Some(&row), arrival(2), at(201));
    (row, one.holder, two.holder)
}

/// Attempt 1 was wrongly released and then refused; attempt 2 charged and timed out. A success speaks for the life, a
/// refusal only for the attempt that was refused.
#[test]
fn a_refusal_of_attempt_1_does_not_settle_the_doubt_of_attempt_2() {
    let (row, one, two) = second_attempt();
    let row = row_after(Some(&row), &complete(one, 402), at(205));
    let (row, step) = apply(Some(&row), &doubt(two), at(210)); // attempt 2 charged, timed out
    let row = row.unwrap();
    assert_eq!(row.state.kind(), StateKind::Unknown, "{:?} {:?}", row.state, step.notices);
}

/// The same, and attempt 2's holder dies.
#[test]
fn nor_when_attempt_2_is_swept() {
    let (row, one, _two) = second_attempt();
    let row = row_after(Some(&row), &complete(one, 402), at(205));
    let row = row_after(Some(&row), &Event::Sweep, at(400));
    assert_eq!(row.state.kind(), StateKind::Unknown, "{:?}", row.state);
}

/// The same in the other order.
#[test]
fn nor_when_it_comes_after_the_doubt() {
    let (row, one, two) = second_attempt();
    let row = row_after(Some(&row), &doubt(two), at(210));
    let row = row_after(Some(&row), &complete(one, 402), at(211));
    assert_eq!(row.state.kind(), StateKind::Unknown, "{:?}", row.state);
}

/// The same by a webhook, which came when attempt 2 had ended in doubt: the client was told 402, and charged. It only makes the probe ask now;
/// what the probe finds then is of the life as it is.
#[test]
fn nor_when_an_event_tells_of_it() {
    let (row, _one, two) = second_attempt();
    let row = row_after(Some(&row), &doubt(two), at(210));
    let later = Event::Ask(Ask::Claim { version: row.version, until: at(900).at });
    let row = row_after(Some(&row), &later, at(210));
    let (told, step) = apply(Some(&row), &announced(row.life, 402), at(211));
    let told = told.unwrap();
    let State::Unknown(doubt) = &told.state else { panic!("{:?}", told.state) };
    assert_eq!((doubt.reconcile_after, doubt.tries), (at(211).at, 0));
    assert_eq!(step.notices, [Notice::NegativeDropped]);
    for (event, status) in [(happened(told.life, 402), 402), (announced(told.life, 201), 201)] {
        let row = row_after(Some(&told), &event, at(212));
        assert_eq!(row.state, State::Completed(answer(status)));
    }
}

/// The same by a probe that was slow: it read the row before attempt 2, and had found attempt 1's refusal; meanwhile an operator freed the key, and
/// attempt 2 charged. Whatever became of attempt 2, it is not settled by that; a success speaks for the life all the same, and so does a
/// refusal that is found by asking now.
#[test]
fn nor_when_a_probe_that_asked_before_it_tells_of_it() {
    let (row, one) = granted(None, arrival(1), at(0));
    let unknown_1 = row_after(Some(&row), &doubt(one.holder), at(10));
    let slow = |status| found(&unknown_1, status);
    let freed = row_after(Some(&unknown_1), &not_found(&unknown_1, at(200)), at(200));
    let (running, two) = granted(Some(&freed), arrival(2), at(201));
    let unknown_2 = row_after(Some(&running), &doubt(two.holder), at(210));

    let (kept, step) = apply(Some(&unknown_2), &slow(402), at(211));
    assert_eq!(kept.as_ref(), Some(&unknown_2), "untouched: a probe under way keeps naming it");
    assert_eq!((step.decision, &step.notices[..]), (Decision::Nothing, &[Notice::NegativeDropped][..]));
    for now in [at(205), at(400)] {
        let kept = row_after(Some(&running), &slow(402), now);
        assert_eq!(kept.state, State::InProgress, "evidence, also where the lease has lapsed");
        assert_eq!(row_after(Some(&kept), &Event::Sweep, at(401)).state.kind(), StateKind::Unknown);
    }
    for event in [slow(201), found(&unknown_2, 201), found(&unknown_2, 402)] {
        assert_eq!(apply(Some(&unknown_2), &event, at(212)).1.decision, Decision::Done, "{event:?}");
    }
    // Where nothing was attempted since, it is of the attempt that was asked about.
    for row in [&unknown_1, &freed] {
        assert_eq!(row_after(Some(row), &slow(402), at(212)).state, State::Completed(answer(402)));
    }
}

/// A question that nobody could answer, about a row that has changed since: it counted as a try, and made what another node was about to
/// prove void.
#[test]
fn a_stale_not_known_counts_nothing_and_voids_nothing() {
    let (row, one) = granted(None, arrival(1), at(0));
    let unknown = row_after(Some(&row), &doubt(one.holder), at(10));
    let slow = not_known(&unknown, Retry { at: at(900).at, park_after: 1 });
    let claim = Event::Ask(Ask::Claim { version: unknown.version, until: at(600).at });
    let claimed = row_after(Some(&unknown), &claim, at(500));
    let (kept, step) = apply(Some(&claimed), &slow, at(501));
    assert_eq!((kept.as_ref(), step.decision), (Some(&claimed), Decision::Nothing));
    let other = not_found(&claimed, at(500));
    assert_eq!(row_after(kept.as_ref(), &other, at(502)).state, State::FailedRetryable);
}

/// Nor when attempt 2 has lapsed, and nobody has swept it yet.
#[test]
fn nor_when_an_event_finds_attempt_2_lapsed() {
    let (row, _one, _two) = second_attempt();
    let row = row_after(Some(&row), &announced(row.life, 402), at(400));
    let row = row_after(Some(&row), &Event::Sweep, at(401));
    assert_eq!(row.state.kind(), StateKind::Unknown, "{:?}", row.state);
}

/// Of the only attempt there is, it can only be about that one.
#[test]
fn an_event_s_refusal_of_the_only_attempt_settles_it() {
    let (row, one) = granted(None, arrival(1), at(0));
    let row = row_after(Some(&row), &doubt(one.holder), at(10));
    let row = row_after(Some(&row), &announced(row.life, 402), at(11));
    assert_eq!(row.state, State::Completed(answer(402)));
}

/// And then the provider's account of attempt 2 is what is replayed.
#[test]
fn so_the_truth_can_still_be_recorded() {
    let (row, one, two) = second_attempt();
    let row = row_after(Some(&row), &doubt(two), at(210));
    let row = row_after(Some(&row), &complete(one, 402), at(211));
    let row = row_after(Some(&row), &happened(row.life, 201), at(212)); // truth: attempt 2 charged
    let (_, step) = apply(Some(&row), &Event::Arrive(arrival(3)), at(300));
    assert_eq!(step.decision, Decision::Replay(answer(201)));
}

/// The charge is a recovery point, phase 2 is in doubt, the probe finds nothing: the charge has happened all the same.
#[test]
fn a_probe_that_finds_nothing_does_not_undo_a_recovery_point() {
    let first = |n| Arrival { terms: terms(CrashPolicy::Resume), request: deferred(1).request, ..arrival(n) };
    let (row, lease) = granted(None, first(1), at(0));
    let row = row_after(Some(&row), &Event::Advance { holder: lease.holder, point: point() }, at(5));
    let row = row_after(Some(&row), &doubt(lease.holder), at(10));
    let row = row_after(Some(&row), &not_found(&row, at(500)), at(500));
    let (next, step) = apply(Some(&row), &Event::Arrive(first(2)), at(500 + 86_401));
    assert_eq!(
        next.unwrap().life,
        row.life,
        "state was {:?} recovery {:?}; {:?}",
        row.state,
        row.recovery,
        step.decision
    );
}

/// Due for nobody, such a row would stay for ever.
#[test]
fn a_resume_that_only_its_client_can_go_on_with_is_due_some_day() {
    let first = Arrival { terms: terms(CrashPolicy::Resume), ..arrival(1) };
    let (row, _l) = granted(None, first, at(0));
    assert!(row.due_at().is_some(), "due for nobody");
}

/// Neither worker nor operator could move it.
#[test]
fn and_then_it_is_unknown() {
    let first = Arrival { terms: terms(CrashPolicy::Resume), ..arrival(1) };
    let (row, _l) = granted(None, first, at(0));
    let late = at(400 * 86_400);
    assert_eq!(row_after(Some(&row), &Event::Sweep, late).state.kind(), StateKind::Unknown);
}

/// Released out of `unknown`, it must not leave every list.
#[test]
fn also_when_it_was_unknown_before() {
    let first = |n| Arrival { terms: terms(CrashPolicy::Resume), ..arrival(n) };
    let (row, _died) = granted(None, first(1), at(0));
    let (row, two) = granted(Some(&row), first(2), at(61));
    let row = row_after(Some(&row), &doubt(two.holder), at(62));
    let row = row_after(Some(&row), &release(two.holder), at(70));
    assert!(row.due_at().is_some(), "{:?}", row.state);
}

/// Released at second 1, run again just before the retention ends: its answer was over two seconds later.
#[test]
fn retention_from_creation_counts_for_the_first_attempt_only() {
    let t = Terms { retention_from: RetentionFrom::Creation, ..terms(CrashPolicy::Reconcile) };
    let first = |n| Arrival { terms: t, ..arrival(n) };
    let (row, one) = granted(None, first(1), at(0));
    let row = row_after(Some(&row), &release(one.holder), at(1));
    let (row, two) = granted(Some(&row), first(2), at(86_390));
    let row = row_after(Some(&row), &complete(two.holder, 201), at(86_399));
    let (_, step) = apply(Some(&row), &Event::Arrive(first(3)), at(86_401));
    assert_eq!(step.decision, Decision::Replay(answer(201)), "second effect 2 s after the first");
}

/// A rolling deploy from inline to deferred: the inline attempt is released, and nobody would run it.
#[test]
fn who_is_answered_202_over_an_inline_attempt_is_served() {
    let (row, one) = granted(None, arrival(1), at(0));
    let (row, step) = apply(Some(&row), &Event::Arrive(deferred(2)), at(1));
    assert_eq!(step.decision, Decision::Accepted);
    let row = row_after(row.as_ref(), &release(one.holder), at(2));
    assert_eq!(row.state.kind(), StateKind::Pending, "answered 202, nobody runs it");
}

/// Its client got 503; an inline retry that is released must not be run by a worker.
#[test]
fn a_refused_deferred_reserve_promises_nothing() {
    let row = row_after(None, &clean_up(deferred(1), None), at(1));
    let (row, l) = granted(Some(&row), arrival(2), at(2));
    let row = row_after(Some(&row), &release(l.holder), at(3));
    assert_eq!(row.state.kind(), StateKind::FailedRetryable, "nobody was told 202; told 502 not executed");
}

/// It speaks of one attempt, and a recovery point says that the life has acted.
#[test]
fn a_final_webhook_does_not_take_a_parked_record_out_of_unknown() {
    let (row, l) = granted(None, arrival(1), at(0));
    let row = row_after(Some(&row), &Event::Advance { holder: l.holder, point: point() }, at(5));
    let row = row_after(Some(&row), &doubt(l.holder), at(10));
    let row = row_after(Some(&row), &not_known(&row, Retry { at: at(20).at, park_after: 1 }), at(11));
    let row = row_after(
        Some(&row),
        &did_not_happen(row.life, Grounds::Final { fence: l.holder.fence }, at(12)),
        at(12),
    );
    assert_eq!(
        row.state.kind(),
        StateKind::Unknown,
        "a parked record left unknown on a webhook: {:?}",
        row.state
    );
}

/// There is nothing to wait for.
#[test]
fn a_proved_restart_is_due_when_its_lease_ends() {
    let first = Arrival { terms: terms(CrashPolicy::Restart), ..arrival(1) };
    let (row, l) = granted(None, first, at(0));
    let row = row_after(Some(&row), &happened(row.life, 201), at(5));
    assert_eq!(row.due_at(), Some(l.until));
}

/// Taken by a worker, released at once: it was granted again and again, without backoff and without end.
#[test]
fn a_resumed_row_waits_between_attempts_and_ends() {
    let first = Arrival { terms: terms(CrashPolicy::Resume), request: deferred(1).request, ..arrival(1) };
    let (mut row, _died) = granted(None, first, at(0));
    let mut now = at(100 * 86_400);
    for n in 2..100 {
        let (next, step) = apply(Some(&row), &take(n), now);
        if !matches!(step.decision, Decision::Execute(_)) {
            return;
        }
        row = row_after(next.as_ref(), &release(lease_of(&step).holder), now); // backoff 5 s asked for
        now = Now::exact(now.at.plus(Duration::from_millis(1)));
    }
    panic!("98 attempts in 98 ms, state {:?}, attempts {}", row.state, row.attempts);
}

/// A webhook names the life only.
#[test]
fn nor_by_a_webhook_about_attempt_1() {
    let (row, _one, two) = second_attempt();
    let row = row_after(Some(&row), &happened(row.life, 402), at(205));
    let row = row_after(Some(&row), &doubt(two), at(210));
    assert_eq!(row.state.kind(), StateKind::Unknown, "{:?}", row.state);
}

/// With clocks apart it held the key for a minute with nobody at work.
#[test]
fn a_renewal_under_way_does_not_bring_a_released_lease_back() {
    let first = |n| Arrival { terms: terms(CrashPolicy::Restart), ..arrival(n) };
    let (row, _died) = granted(None, first(1), at(0));
    let (row, two) = granted(Some(&row), first(2), at(61));
    let row = row_after(Some(&row), &release(two.holder), at(70));
    let row = row_after(Some(&row), &renew(two.holder), Now { at: at(70).at, error: S });
    let (_, step) = apply(Some(&row), &Event::Arrive(first(3)), at(80));
    assert!(matches!(step.decision, Decision::Execute(_)), "{:?}", step.decision);
}

/// The same at `unknown`, where `accepted` answers 202 too.
#[test]
fn also_where_the_outcome_is_unknown() {
    let (row, one) = granted(None, arrival(1), at(0));
    let row = row_after(Some(&row), &doubt(one.holder), at(1));
    let (row, step) = apply(Some(&row), &Event::Arrive(deferred(2)), at(2)); // `accepted`: after doubt 202
    let row = row.unwrap();
    let row = row_after(Some(&row), &not_found(&row, at(500)), at(500));
    assert_eq!(row.state.kind(), StateKind::Pending, "{:?}", step.decision);
}

/// Told by a person that nothing of the life happened, the next attempt must not skip the charge.
#[test]
fn an_operators_no_clears_the_recovery_point() {
    let first = |n| Arrival { terms: terms(CrashPolicy::Resume), ..arrival(n) };
    let (row, lease) = granted(None, first(1), at(0));
    let row = row_after(Some(&row), &Event::Advance { holder: lease.holder, point: point() }, at(5));
    let row = row_after(Some(&row), &doubt(lease.holder), at(10));
    let row = row_after(
        Some(&row),
        &did_not_happen(row.life, Grounds::Operator { version: row.version }, at(11)),
        at(11),
    );
    let (_, lease) = granted(Some(&row), first(2), at(12));
    assert_eq!(lease.recovery, None, "told that nothing of the life happened, yet the charge is skipped");
}
