//! Traces that broke the first draft of this very code, found by a hostile reader. They belong to ATTACKS.md's family: each
//! ends in a second effect, a lie to a client, or a key that nobody can free.

use std::sync::Arc;

use oncegate_core::decide::{Arrival, Decision, Event, Grounds, Misuse, Notice, Refusal, Reserve, Step};
use oncegate_core::identity::{Fence, Version};
use oncegate_core::record::{CrashPolicy, GoneStatus, Record, RetentionFrom, State, StateKind, Terms};
use oncegate_core::time::Now;

use super::samples::*;

fn gone(crash: CrashPolicy) -> Terms {
    Terms { crash, ..gone_terms(GoneStatus::Gone) }
}

fn executes(step: &Step) -> bool {
    matches!(step.decision, Decision::Execute(_))
}

/// Retention from creation, and a doubt that is settled after it: the client was told "send the same again later", and its
/// retry executed again one second after the first effect was proved.
#[test]
fn what_is_settled_late_is_kept_from_then_on() {
    let terms = Terms {
        retention_from: RetentionFrom::Creation,
        retention: 3_600 * S,
        ..terms(CrashPolicy::Reconcile)
    };
    let (row, lease) = granted(None, Arrival { terms, ..arrival(1) }, at(0));
    let unknown = row_after(Some(&row), &doubt(lease.holder), at(30));
    let done = row_after(Some(&unknown), &happened(row.life, 201), at(7_201));
    let (_, step) = apply(Some(&done), &Event::Arrive(arrival(2)), at(7_202));
    assert_eq!(step.decision, Decision::Replay(answer(201)));

    // An attempt that outlasts the retention is no different.
    let done = row_after(Some(&row), &complete(lease.holder, 201), at(3_700));
    assert_eq!(done.expires_at, Some(at(7_300).at));
    // In time, retention runs from creation.
    assert_eq!(row_after(Some(&row), &complete(lease.holder, 201), at(50)).expires_at, Some(at(3_600).at));
}

/// The charge is a recovery point; the second phase is refused its connection and released. As `failed_retryable` the row
/// could be reaped or forgotten, and a new life would charge again.
#[test]
fn a_release_after_a_recovery_point_is_not_no_effect() {
    for execution in [arrival(1).execution, deferred(1).execution] {
        let first = Arrival {
            terms: gone(CrashPolicy::Resume),
            request: deferred(1).request,
            execution,
            ..arrival(1)
        };
        let running = sample(Phase::InProgress, &first);
        let advance = Event::Advance { holder: running.holder, point: point() };
        let row = row_after(running.row.as_ref(), &advance, at(20));
        let row = row_after(Some(&row), &release(running.holder), at(21));
        stays_in_its_life(&row);
        let (_, step) = apply(Some(&row), &take(9), at(30));
        assert_eq!(lease_of(&step).recovery, Some(point()), "it goes on after the charge");
    }
}

/// Neither time nor an operator's `forget` makes such a row executable in a new life.
fn stays_in_its_life(row: &Record) {
    assert!(!matches!(row.state, State::FailedRetryable | State::Completed(_)), "{row:?}");
    let late = at(400 * 86_400);
    for event in [reap(), forget(row.version)] {
        let (after, _) = apply(Some(row), &event, late);
        assert!(
            !matches!(after.as_ref().map(|row| row.state.kind()), None | Some(StateKind::Expired)),
            "{event:?}"
        );
    }
    let (after, _) = apply(Some(row), &Event::Arrive(arrival(99)), late);
    assert_eq!(after.unwrap().life, row.life);
}

/// Attempt 1 lapsed and may have acted. Attempt 2, under `restart`, is released: that accounts for attempt 2 alone. The
/// stored 408, "nothing was executed, use a new key", would be a lie; so would a new life.
#[test]
fn a_release_does_not_account_for_an_earlier_attempt() {
    let first = Arrival { terms: terms(CrashPolicy::Restart), ..deferred(1) };
    let row = row_after(None, &Event::Arrive(first), at(0));
    let row = row_after(Some(&row), &take(2), at(1));
    let row = row_after(Some(&row), &Event::Sweep, at(100));
    let (row, step) = apply(Some(&row), &take(3), at(101));
    let row = row_after(row.as_ref(), &release(lease_of(&step).holder), at(102));
    assert_eq!(row.state.kind(), StateKind::Pending);
    assert_eq!(row_after(Some(&row), &reap(), at(86_401)).state.kind(), StateKind::Unknown);

    // Inline: the lease ends, the crash policy goes on, and the holder is shown that its release settled nothing.
    for crash in [CrashPolicy::Restart, CrashPolicy::Resume] {
        let first = |n| Arrival { terms: gone(crash), ..arrival(n) };
        let (row, _died) = granted(None, first(1), at(0));
        let (row, second) = granted(Some(&row), first(2), at(61));
        let (row, step) = apply(Some(&row), &release(second.holder), at(62));
        assert!(matches!(step.decision, Decision::Fenced(Some(_))), "{step:?}");
        let row = row.unwrap();
        stays_in_its_life(&row);
        assert!(
            executes(&apply(Some(&row), &Event::Arrive(first(3)), at(63)).1),
            "and may run again at once"
        );

        // A verdict about one attempt settles no more than that; a probe past the horizon speaks of the whole life.
        let (row, fourth) = granted(Some(&row), first(4), at(63));
        let unknown = row_after(Some(&row), &doubt(fourth.holder), at(64));
        let last = did_not_happen(row.life, Grounds::Final { fence: fourth.holder.fence }, at(65));
        assert_eq!(row_after(Some(&unknown), &last, at(65)).state.kind(), StateKind::Unknown);
        let released = row_after(Some(&unknown), &not_found(&unknown, at(500)), at(500));
        assert_eq!((released.state, released.unaccounted), (State::FailedRetryable, false));
    }
}

/// A doubted re-grant that landed is cleaned up: nothing ran under its token, but attempt 1 may have acted.
#[test]
fn clean_up_does_not_account_for_an_earlier_attempt() {
    for crash in [CrashPolicy::Restart, CrashPolicy::Resume] {
        let first = |n| Arrival { terms: gone(crash), ..arrival(n) };
        let (row, _died) = granted(None, first(1), at(0));
        let over = row.version;
        let (row, _) = granted(Some(&row), first(2), at(61));
        let row = row_after(Some(&row), &clean_up(first(2), Some(over)), at(62));
        stays_in_its_life(&row);
        assert!(executes(&apply(Some(&row), &Event::Arrive(first(3)), at(63)).1), "the key is free again");
    }
}

/// A clock that is ahead by less than its stated error began a new life inside the promised retention.
#[test]
fn clock_error_never_begins_a_new_life_early() {
    let (row, lease) = granted(None, arrival(1), at(0));
    let done = row_after(Some(&row), &complete(lease.holder, 201), at(0));
    let released = row_after(Some(&row), &release(lease.holder), at(0));
    let forgotten = row_after(Some(&done), &forget(done.version), at(86_340));
    for (row, name) in [(&done, "completed"), (&released, "released"), (&forgotten, "forgotten")] {
        let end = row.expires_at.unwrap();
        let arrive = |seconds_after: u32, error| {
            let now = Now { at: end.plus(seconds_after * S), error };
            let (after, step) = apply(Some(row), &Event::Arrive(arrival(2)), now);
            (executes(&step) && after.unwrap().life == token(2)).then_some(())
        };
        assert_eq!(arrive(4, 5 * S), None, "{name}: it may be one second early");
        assert_eq!(arrive(5, 5 * S), Some(()), "{name}: past by every clock");
    }
}

/// Told refused, but charged: attempt 1 was wrongly released, its late 201 is evidence, attempt 2 is answered 402.
#[test]
fn a_refusal_does_not_outweigh_a_proved_effect() {
    let (row, first) = granted(None, arrival(1), at(0));
    let unknown = row_after(Some(&row), &doubt(first.holder), at(1));
    let released = row_after(Some(&unknown), &not_found(&unknown, at(500)), at(500));
    let (row, second) = granted(Some(&released), arrival(2), at(501));
    let kept = row_after(Some(&row), &complete(first.holder, 201), at(502));
    let (done, step) = apply(Some(&kept), &complete(second.holder, 402), at(503));
    let done = done.unwrap();
    assert_eq!(done.state, State::Completed(answer(201)));
    assert_eq!(step.decision, Decision::Fenced(Some(Arc::new(done))), "its client is answered from the row");
    assert!(step.notices.contains(&Notice::Contradiction));
    // The other way round the holder's own bytes stand, and two charges are an alarm.
    let (done, step) = apply(Some(&kept), &complete(second.holder, 200), at(503));
    assert_eq!(done.unwrap().state, State::Completed(answer(200)));
    assert_eq!(step.decision, Decision::Done);
    let refused = row_after(Some(&row), &complete(first.holder, 402), at(502));
    let (_, step) = apply(Some(&refused), &complete(second.holder, 201), at(503));
    assert_eq!((step.decision, step.notices), (Decision::Done, vec![Notice::Contradiction]));
}

/// A worker's take whose acknowledgement is lost was neither granted again nor cleaned up: the key stuck, though nothing
/// ran.
#[test]
fn a_workers_doubted_take_is_granted_again_or_cleaned_up() {
    let waiting = row_after(None, &Event::Arrive(deferred(1)), at(0));
    let taken = row_after(Some(&waiting), &take(2), at(1));
    assert!(executes(&apply(Some(&taken), &take(2), at(2)).1), "my own token in the row: granted");
    assert!(!executes(&apply(Some(&taken), &take(2), at(61)).1), "but not after the lease");
    assert!(!executes(&apply(Some(&taken), &take(3), at(2)).1));

    let clean = |row: &Record, over: Option<Version>, now| {
        row_after(Some(row), &Event::CleanUp { reserve: Reserve::Take(token(2)), over }, now)
    };
    assert_eq!(clean(&taken, None, at(3)).state.kind(), StateKind::Pending, "landed: back to the queue");
    let swept = row_after(Some(&taken), &Event::Sweep, at(62));
    assert_eq!(clean(&swept, None, at(63)).state.kind(), StateKind::Pending, "landed and swept");
    let raised = clean(&waiting, Some(waiting.version), at(3));
    assert!(raised.version > waiting.version, "not landed: it cannot any more");
    let absent = Event::CleanUp { reserve: Reserve::Take(token(2)), over: None };
    assert_eq!(apply(None, &absent, at(3)).1.decision, Decision::Nothing);
}

/// *Happened*, then the sweep: under `restart` the work was queued and run although its effect was proved.
#[test]
fn happened_absorbs_before_and_after_the_sweep() {
    let first = Arrival { terms: terms(CrashPolicy::Restart), ..deferred(1) };
    let row = row_after(None, &Event::Arrive(first), at(0));
    let row = row_after(Some(&row), &take(2), at(1));
    let proved = row_after(Some(&row), &happened(row.life, 201), at(99));
    for event in [Event::Sweep, Event::Arrive(deferred(3)), Event::Arrive(arrival(3))] {
        assert_eq!(
            row_after(Some(&proved), &event, at(100)).state,
            State::Completed(answer(201)),
            "{event:?}"
        );
    }
    let queued = row_after(Some(&row), &Event::Sweep, at(100));
    assert_eq!(
        row_after(Some(&queued), &happened(row.life, 201), at(101)).state,
        State::Completed(answer(201))
    );
}

/// Released, or doubted, over evidence: the row is completed, and the holder must not answer "502, proved not executed".
#[test]
fn who_settles_over_evidence_is_shown_the_row() {
    let (row, lease) = granted(None, arrival(1), at(0));
    let proved = row_after(Some(&row), &happened(row.life, 201), at(5));
    for event in [release(lease.holder), doubt(lease.holder)] {
        let (after, step) = apply(Some(&proved), &event, at(6));
        assert_eq!(step.decision, Decision::Fenced(after.map(Arc::new)), "{event:?}");
    }
}

/// Answered 202, and already over its limit: the queue's time ran from the life's beginning, not from the acceptance.
#[test]
fn accepted_work_has_its_whole_time() {
    let cleaned = row_after(None, &clean_up(deferred(1), None), at(0));
    let (row, lease) = granted(None, arrival(1), at(0));
    let released = row_after(Some(&row), &release(lease.holder), at(800));
    for (row, now) in [(cleaned, 86_399), (released, 87_000)] {
        let (row, step) = apply(Some(&row), &Event::Arrive(deferred(2)), at(now));
        assert_eq!(step.decision, Decision::Accepted);
        assert!(executes(&apply(row.as_ref(), &take(3), at(now + 86_399)).1));
        assert!(!executes(&apply(row.as_ref(), &take(3), at(now + 86_400)).1));
    }
    // Queued again after a release, its time does not begin anew.
    let waiting = row_after(None, &Event::Arrive(deferred(1)), at(0));
    let (row, step) = apply(Some(&waiting), &take(2), at(1_000));
    let again = row_after(row.as_ref(), &release(lease_of(&step).holder), at(1_001));
    assert_eq!(again.expires_at, waiting.expires_at);
}

/// Attack 18 by another door: work accepted with 202 lapses, an inline retry (a rolling deploy) runs it and is released.
#[test]
fn accepted_work_is_not_dropped_by_an_inline_retry() {
    let first = Arrival { terms: terms(CrashPolicy::Restart), ..deferred(1) };
    let row = row_after(None, &Event::Arrive(first), at(0));
    let row = row_after(Some(&row), &take(2), at(1));
    let (row, step) = apply(Some(&row), &Event::Arrive(arrival(3)), at(62));
    let row = row_after(row.as_ref(), &release(lease_of(&step).holder), at(63));
    assert_eq!(row.state.kind(), StateKind::Pending);
}

/// An inline run dies, and its lease lapses. Before the sweep its client repeats it with `respond-async`, is answered 202 `unknown`, and told where to
/// ask; the probe finds nothing, past the horizon. It became `failed_retryable`, without its request: the 202 was nobody's to keep.
#[test]
fn a_doubt_that_a_deferred_arrival_finds_is_queued_when_it_did_not_happen() {
    for crash in [CrashPolicy::Reconcile, CrashPolicy::Restart] {
        let (mut row, _) = granted(None, Arrival { terms: terms(crash), ..arrival(1) }, at(0));
        if crash == CrashPolicy::Restart {
            // Of two attempts one was refused: that is no proof of the other, so it is in doubt as well.
            row.attempts = 2;
            row = row_after(Some(&row), &announced(row.life, 402), at(1));
        }
        let (doubted, step) = apply(Some(&row), &Event::Arrive(deferred(2)), at(100));
        let doubted = doubted.unwrap();
        assert!(matches!(step.decision, Decision::Unsettled { .. }), "{crash:?}: {step:?}");
        assert_eq!((doubted.state.kind(), &doubted.request), (StateKind::Unknown, &deferred(2).request));
        let row = row_after(Some(&doubted), &not_found(&doubted, at(10_000)), at(10_001));
        assert_eq!(row.state.kind(), StateKind::Pending, "{crash:?}");
        assert!(executes(&apply(Some(&row), &take(3), at(10_100)).1));
        // Its whole time, from when it was accepted.
        assert_eq!(row.expires_at, Some(at(100).at.plus(row.terms.retention)));
    }
    // One who waits for it was promised nothing.
    let (row, _) = granted(None, arrival(1), at(0));
    let doubted = row_after(Some(&row), &Event::Arrive(arrival(2)), at(100));
    let row = row_after(Some(&doubted), &not_found(&doubted, at(10_000)), at(10_001));
    assert_eq!((row.state.kind(), row.request), (StateKind::FailedRetryable, None));
}

/// Under `lenient` another body counts as the same request: it must not take the place of the one that was accepted.
#[test]
fn an_accepted_request_is_not_replaced() {
    let first = Arrival { terms: terms(CrashPolicy::Restart), ..deferred(1) };
    let row = row_after(None, &Event::Arrive(first), at(0));
    let taken = row_after(Some(&row), &take(2), at(1));
    let mut other = Arrival { misuse: Misuse::Count, ..other_request(deferred(3)) };
    other.request.as_mut().unwrap().body = b"other".to_vec();
    let again = row_after(Some(&taken), &Event::Arrive(other.clone()), at(62));
    assert_eq!(again.request, row.request);
    // Where none was kept, the one that comes is.
    let (inline, lease) = granted(None, arrival(1), at(0));
    let released = row_after(Some(&inline), &release(lease.holder), at(1));
    assert_eq!(row_after(Some(&released), &Event::Arrive(other.clone()), at(2)).request, other.request);
}

/// Twenty redelivered "failed" webhooks about another attempt parked a record that was never asked about, and made a good
/// probe's answer void by raising the version.
#[test]
fn stale_negatives_neither_park_nor_void_a_probe() {
    let (row, lease) = granted(None, arrival(1), at(0));
    let unknown = row_after(Some(&row), &doubt(lease.holder), at(1));
    let stale = did_not_happen(row.life, Grounds::Final { fence: Fence::from_raw(1) }, at(400));
    let probe = not_found(&unknown, at(500));
    let mut after = unknown.clone();
    for _ in 0..20 {
        after = row_after(Some(&after), &stale, at(400));
    }
    assert_eq!(after, unknown, "it is due anyway");
    assert_eq!(row_after(Some(&after), &probe, at(501)).state, State::FailedRetryable);

    // Where the next question is far off, a negative event brings it forward, and is no question itself.
    let later = row_after(Some(&unknown), &not_known(&unknown, retry(at(5_000))), at(2));
    let woken = row_after(Some(&later), &stale, at(400));
    let State::Unknown(doubt) = &woken.state else { panic!("{woken:?}") };
    assert_eq!((doubt.reconcile_after, doubt.tries), (at(400).at, 1));
    // A probe about an older version is no question either; an operator's is refused.
    assert_eq!(apply(Some(&woken), &probe, at(501)).0.as_ref(), Some(&woken));
    let operator = did_not_happen(row.life, Grounds::Operator { version: unknown.version }, at(502));
    assert_eq!(apply(Some(&woken), &operator, at(502)).1.decision, Decision::Refused(Refusal::Changed));
}

/// A wrong "did not happen", then `forget`; the holder's own 201 came back without a sound, and the next life charges again.
#[test]
fn an_effect_proved_at_a_tombstone_is_an_alarm() {
    let (row, lease) = granted(None, arrival(1), at(0));
    let unknown = row_after(Some(&row), &doubt(lease.holder), at(1));
    let released = row_after(Some(&unknown), &not_found(&unknown, at(500)), at(500));
    let forgotten = row_after(Some(&released), &forget(released.version), at(501));
    let (_, step) = apply(Some(&forgotten), &complete(lease.holder, 201), at(502));
    assert!(step.notices.iter().any(|notice| notice.is_alarm()), "{step:?}");
}

/// Two attempts of one life that both completed are an alarm, whoever comes second.
#[test]
fn a_second_effect_is_an_alarm() {
    let (row, first) = granted(None, arrival(1), at(0));
    let unknown = row_after(Some(&row), &doubt(first.holder), at(1));
    let released = row_after(Some(&unknown), &not_found(&unknown, at(500)), at(500));
    let (row, second) = granted(Some(&released), arrival(2), at(501));
    let done = row_after(Some(&row), &complete(second.holder, 201), at(502));
    let (_, step) = apply(Some(&done), &complete(first.holder, 201), at(503));
    assert_eq!(step.notices, [Notice::SecondEffect]);
}

/// A row from a store whose clock was ahead: fences and versions grow from it all the same, in the same life and the next.
#[test]
fn fences_and_versions_grow_past_a_clock_that_was_ahead() {
    let (row, lease) = granted(None, arrival(1), at(1_000_000));
    let done = row_after(Some(&row), &complete(lease.holder, 201), at(0));
    assert!(done.version > row.version);
    let spent = Record { expires_at: Some(at(1).at), ..done.clone() };
    let (next, _) = granted(Some(&spent), arrival(2), at(2));
    assert!(next.version > done.version && next.fence > done.fence, "a new life, by a clock that is behind");
}

/// Clock error in the horizon, in a holder's own doubt, and in renewals: each may only cost waiting.
#[test]
fn clock_error_only_costs_waiting() {
    let (row, lease) = granted(None, arrival(1), at(0));
    let unsure = |second| Now { error: 5 * S, ..at(second) };
    let unknown = row_after(Some(&row), &doubt(lease.holder), unsure(30));
    // The holder may have sent until 35 by the store's clock; a horizon of 120 s; the question may be 5 s early.
    assert_eq!(
        row_after(Some(&unknown), &not_found(&unknown, unsure(159)), at(500)).state.kind(),
        StateKind::Unknown
    );
    let late = not_found(&unknown, unsure(160));
    assert_eq!(row_after(Some(&unknown), &late, at(500)).state, State::FailedRetryable);
    // A renewal never shortens a lease.
    let short = Event::Renew { holder: lease.holder, lease: S };
    assert_eq!(apply(Some(&row), &short, at(10)).1.decision, Decision::Renewed { until: at(60).at });
}

/// A parked record stays parked: only a person, or proof, takes it out.
#[test]
fn parked_stays_parked() {
    let (row, lease) = granted(None, arrival(1), at(0));
    let mut row = row_after(Some(&row), &doubt(lease.holder), at(1));
    for _ in 0..20 {
        row = row_after(Some(&row), &not_known(&row, retry(at(2))), at(2));
    }
    let patient = oncegate_core::decide::Retry { at: at(3).at, park_after: 1_000 };
    let row = row_after(Some(&row), &not_known(&row, patient), at(3));
    assert!(matches!(&row.state, State::Unknown(doubt) if doubt.parked));
}

/// Two addresses with one id are a matter of 2⁻¹²⁸, but nobody may be answered from another's record.
#[test]
fn nobody_is_answered_from_another_address() {
    let (row, lease) = granted(None, arrival(1), at(0));
    let done = row_after(Some(&row), &complete(lease.holder, 201), at(1));
    let mut foreign = done.clone();
    foreign.address.scope = oncegate_core::scope::Scope::tenant("another tenant").unwrap();
    assert_eq!(apply(Some(&foreign), &Event::Arrive(arrival(2)), at(2)).1.decision, Decision::Mismatch);
}

/// What customers sent must not outlive its use: neither a completed record nor a tombstone keeps the request.
#[test]
fn requests_do_not_outlive_their_use() {
    let (row, lease) = granted(None, Arrival { request: deferred(1).request, ..arrival(1) }, at(0));
    assert!(row.request.is_some());
    assert_eq!(row_after(Some(&row), &complete(lease.holder, 201), at(1)).request, None);
    let released = row_after(Some(&row), &release(lease.holder), at(1));
    assert!(released.request.is_some(), "it may be run again");
    assert_eq!(row_after(Some(&released), &forget(released.version), at(2)).request, None);
}
