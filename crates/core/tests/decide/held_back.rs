//! Records that a quarantine holds back: what their holders, webhooks and operators can still say.

use oncegate_core::decide::{Arrival, Ask, Decision, Event, Grounds, Lease, Next, Notice, QUARANTINED};
use oncegate_core::record::{CrashPolicy, Record, State, StateKind};
use oncegate_core::time::Now;

use super::samples::*;

fn first(crash: CrashPolicy) -> Arrival {
    Arrival { terms: terms(crash), request: deferred(1).request, ..arrival(1) }
}

fn hold_back() -> Event {
    Event::HoldBack { windows: "q1".into() }
}

/// In progress, past a recovery point, and restored from a backup in which its lease still runs.
fn restored(crash: CrashPolicy) -> (Record, Lease) {
    let (row, lease) = granted(None, first(crash), at(0));
    let point = Event::Advance { holder: lease.holder, point: point() };
    (row_after(Some(&row), &point, at(1)), lease)
}

fn held_back(crash: CrashPolicy) -> (Record, Lease) {
    let (row, lease) = restored(crash);
    (row_after(Some(&row), &hold_back(), at(2)), lease)
}

fn is_held_back(row: &Record) -> bool {
    let is_parked = matches!(&row.state, State::Unknown(doubt) if doubt.parked);
    is_parked && row.last_error.as_ref().is_some_and(|reason| reason.code() == QUARANTINED)
}

/// Its holder died with the restore, so nothing is gained by waiting for the lease's end; and a
/// lapsed one would be run again, from a journal that does not know of the lost time.
#[test]
fn attack_29_work_in_progress_that_may_run_again_is_parked_before_and_after_its_lease() {
    for crash in [CrashPolicy::Resume, CrashPolicy::Restart] {
        let (row, _) = restored(crash);
        for now in [at(2), at(61), Now { error: 30 * S, ..at(61) }] {
            let (held, step) = apply(Some(&row), &hold_back(), now);
            let held = held.unwrap();
            assert!(is_held_back(&held), "{crash:?}: {held:?}");
            assert_eq!(step.notices, [Notice::Parked]);
            assert_eq!((held.grant, &held.recovery), (row.grant, &row.recovery));
            for event in [Event::Arrive(Arrival { token: token(2), ..first(crash) }), take(2), Event::Sweep] {
                let (after, step) = apply(Some(&held), &event, at(500));
                assert_eq!(after.as_ref(), Some(&held), "{crash:?}: {event:?}");
                assert!(!matches!(step.decision, Decision::Execute(_)));
            }
        }
    }
}

/// Under `reconcile` nothing runs again unasked, and the question is about the whole life.
#[test]
fn under_reconcile_work_in_progress_is_left_to_the_sweeper_and_the_probe() {
    let (row, _) = restored(CrashPolicy::Reconcile);
    assert_eq!(apply(Some(&row), &hold_back(), at(2)).1.next, Next::Keep);
}

/// Its job is in the backup too, and settles it. If it were parked and then released, its handler
/// would promise a second job.
#[test]
fn a_lease_that_was_entrusted_to_a_job_is_left_to_it() {
    let (row, lease) = restored(CrashPolicy::Restart);
    let row = row_after(Some(&row), &Event::Entrust { holder: lease.holder }, at(2));
    assert_eq!(apply(Some(&row), &hold_back(), at(3)).1.next, Next::Keep);
}

/// A doubt under `resume` that a probe settles as "did not happen" goes on from the journal.
#[test]
fn attack_29_a_doubt_under_resume_is_parked_and_no_probe_frees_it() {
    let (row, lease) = restored(CrashPolicy::Resume);
    let doubted = row_after(Some(&row), &doubt(lease.holder), at(2));
    let asked = not_found(&doubted, at(500));
    let held = row_after(Some(&doubted), &hold_back(), at(3));
    assert!(is_held_back(&held), "{held:?}");
    assert_eq!(row_after(Some(&held), &asked, at(500)), held, "a probe that asked before");
    // Parked for another reason: only its operator frees it.
    let parked = row_after(Some(&doubted), &not_known(&doubted, park_now()), at(3));
    assert_eq!(apply(Some(&parked), &hold_back(), at(4)).1.next, Next::Keep);
}

/// `oncegate dead retry --all` has it asked about again. A probe that finds an effect settles it;
/// one that finds none does not send it on from a recovery point that is older than what was done.
#[test]
fn attack_29_nor_does_a_probe_free_it_that_an_operator_has_asked() {
    let (held, _) = held_back(CrashPolicy::Resume);
    let again = Event::Ask(Ask::Again { version: held.version });
    let asked = row_after(Some(&held), &again, at(3));
    let (row, step) = apply(Some(&asked), &not_found(&asked, at(500)), at(500));
    assert!(is_held_back(&row.unwrap()), "{step:?}");
    assert_eq!(step.notices, [Notice::Parked, Notice::NegativeDropped]);
    let settled = row_after(Some(&asked), &found(&asked, 201), at(500));
    assert_eq!(settled.state.kind(), StateKind::Completed);
    // What has no recovery points is asked about as a whole.
    let (held, _) = held_back(CrashPolicy::Restart);
    let again = Event::Ask(Ask::Again { version: held.version });
    let held = row_after(Some(&Record { recovery: None, ..held }), &again, at(3));
    let freed = row_after(Some(&held), &not_found(&held, at(500)), at(500));
    assert_eq!(freed.state.kind(), StateKind::FailedRetryable);
}

fn park_now() -> oncegate_core::decide::Retry {
    oncegate_core::decide::Retry { at: at(9).at, park_after: 1 }
}

/// What is proved needs no operator. A refusal proves nothing of the attempts in the lost time.
#[test]
fn a_kept_success_settles_what_would_be_held_back_and_a_kept_refusal_does_not() {
    let (row, _) = restored(CrashPolicy::Restart);
    for (status, state) in [(201, StateKind::Completed), (402, StateKind::Unknown)] {
        let told = row_after(Some(&row), &happened(row.life, status), at(2));
        let next = row_after(Some(&told), &hold_back(), at(3));
        assert_eq!(next.state.kind(), state, "{status}");
        assert_eq!(next.evidence, None);
    }
}

/// The process survived the restore, and its attempt ends. It knows what it did, and nothing of
/// another attempt that the lost time may have had.
#[test]
fn attack_29_a_live_holder_settles_a_success_and_frees_nothing() {
    for crash in [CrashPolicy::Resume, CrashPolicy::Restart] {
        let (held, lease) = held_back(crash);
        let done = row_after(Some(&held), &complete(lease.holder, 201), at(5));
        assert_eq!(done.state.kind(), StateKind::Completed, "{crash:?}");

        let clean_up = clean_up(first(crash), None);
        for event in [release(lease.holder), complete(lease.holder, 402), doubt(lease.holder), clean_up] {
            let (row, step) = apply(Some(&held), &event, at(5));
            assert_eq!(row.as_ref(), Some(&held), "{crash:?}: {event:?}");
            assert!(!matches!(&step.decision, Decision::Execute(_)));
        }
        let point = Event::Advance { holder: lease.holder, point: point() };
        for event in [release(lease.holder), complete(lease.holder, 402), point, renew(lease.holder)] {
            let (_, step) = apply(Some(&held), &event, at(5));
            assert!(matches!(step.decision, Decision::Fenced(Some(_))), "{crash:?}: {event:?}");
        }
    }
}

/// The same by events of the provider.
#[test]
fn an_announced_success_settles_what_is_held_back_and_an_announced_refusal_does_not() {
    let (held, _) = held_back(CrashPolicy::Restart);
    assert_eq!(row_after(Some(&held), &announced(held.life, 402), at(5)), held);
    let done = row_after(Some(&held), &announced(held.life, 201), at(5));
    assert_eq!(done.state.kind(), StateKind::Completed);
}

/// An operator says that nothing happened in the lost time. What the journal says was done before
/// that, and its rows came back with it: the first phase must not run a second time.
#[test]
fn attack_29_a_release_keeps_the_recovery_point_and_the_work_goes_on_behind_it() {
    let (held, _) = held_back(CrashPolicy::Resume);
    let says = did_not_happen(held.life, Grounds::Operator { version: held.version }, at(100));
    let freed = row_after(Some(&held), &says, at(100));
    assert_eq!((freed.state.kind(), &freed.recovery), (StateKind::InProgress, &held.recovery));
    let (_, step) = apply(Some(&freed), &take(2), at(101));
    assert_eq!(lease_of(&step).recovery, held.recovery);

    // Without one nothing was done, and the key is free.
    let (row, _) = granted(None, first(CrashPolicy::Resume), at(0));
    let held = row_after(Some(&row), &hold_back(), at(2));
    let says = did_not_happen(held.life, Grounds::Operator { version: held.version }, at(100));
    assert_eq!(row_after(Some(&held), &says, at(100)).state.kind(), StateKind::FailedRetryable);
}
