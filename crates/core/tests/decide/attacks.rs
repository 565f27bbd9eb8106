//! The attacks of ATTACKS.md that `decide` alone can answer. Each test tells the trace that once broke a draft.

use oncegate_core::decide::{Arrival, Decision, Event, Finding, Grounds, Next, Notice, Verdict};
use oncegate_core::fingerprint::Fingerprint;
use oncegate_core::identity::Fence;
use oncegate_core::record::{CrashPolicy, GoneStatus, Holder, State, StateKind};
use oncegate_core::scope::Operation;
use oncegate_core::time::Now;

use super::samples::*;
use super::table::words;

/// Send, time out; the probe says "not found"; the request reaches the provider late; a retry executes. So "not found"
/// counts only if it was asked after the lease's end plus the horizon.
#[test]
fn attack_01_not_found_before_the_horizon_is_not_known() {
    let (row, lease) = granted(None, arrival(1), at(0));
    let row = row_after(Some(&row), &doubt(lease.holder), at(30));
    // The holder doubted at second 30 and sends nothing more: the horizon of 120 s runs from there.
    let check = |asked, expected: &str| {
        let (_, step) = apply(Some(&row), &not_found(&row, asked), at(1_000));
        assert_eq!(words(&step), expected);
    };
    check(at(31), "Done → unknown");
    check(at(149), "Done → unknown");
    check(at(150), "Done → failed_retryable");

    // A lapsed holder may send until its lease ends, so there the horizon runs from the sweep,
    // which comes after that end.
    let (row, _) = granted(None, arrival(1), at(0));
    let row = row_after(Some(&row), &Event::Sweep, at(61));
    let (_, step) = apply(Some(&row), &not_found(&row, at(180)), at(1_000));
    assert_eq!(words(&step), "Done → unknown");
    let (_, step) = apply(Some(&row), &not_found(&row, at(181)), at(1_000));
    assert_eq!(words(&step), "Done → failed_retryable");

    // Without a declared horizon "not found" never means "did not happen": it is asked until it parks.
    let mut row = row;
    row.terms.horizon = None;
    for tries in 1..=20 {
        let (next, step) = apply(Some(&row), &not_found(&row, at(100_000)), at(100_000));
        row = next.unwrap();
        let State::Unknown(doubt) = &row.state else { panic!("{step:?}") };
        assert_eq!((doubt.tries, doubt.parked), (tries, tries == 20));
    }
}

/// A wrong "did not happen"; then the holder's own completion, or a "happened" webhook, bounced off
/// `failed_retryable`, and the retry charged again. *Happened* settles it too, unless a newer grant exists: then it is
/// evidence, and an alarm.
#[test]
fn attack_03_happened_settles_what_was_wrongly_released() {
    let (row, first) = granted(None, arrival(1), at(0));
    let unknown = row_after(Some(&row), &doubt(first.holder), at(1));
    let released = row_after(Some(&unknown), &not_found(&unknown, at(500)), at(500));
    assert_eq!(released.state.kind(), StateKind::FailedRetryable);

    for proof in [complete(first.holder, 201), happened(first.holder.life, 201)] {
        let (row, step) = apply(Some(&released), &proof, at(501));
        assert_eq!(row.unwrap().state, State::Completed(answer(201)));
        assert_eq!(step.notices, [Notice::WronglyReleased]);
    }

    // A newer grant is running: the proof is kept, an alarm is raised, the older holder is shown the row.
    let (running, second) = granted(Some(&released), arrival(2), at(502));
    let (kept, step) = apply(Some(&running), &complete(first.holder, 201), at(503));
    let kept = kept.unwrap();
    assert!(matches!(step.decision, Decision::Fenced(Some(_))));
    assert!(step.notices.iter().any(|notice| notice.is_alarm()));
    assert_eq!(kept.state, State::InProgress);

    // Applied if the newer attempt ends in doubt — or if it is released, for then the next arrival would charge again.
    for end in [doubt(second.holder), release(second.holder)] {
        assert_eq!(row_after(Some(&kept), &end, at(504)).state, State::Completed(answer(201)));
    }
    assert_eq!(row_after(Some(&kept), &Event::Sweep, at(600)).state, State::Completed(answer(201)));
    let (_, step) = apply(Some(&kept), &Event::Arrive(arrival(3)), at(600));
    assert_eq!(step.decision, Decision::Replay(answer(201)));
}

/// The same of deferred work, which goes back to `pending` instead: without the rule a worker would take it and charge
/// again.
#[test]
fn attack_03_deferred_work_queued_again_after_its_effect_is_settled_by_the_proof() {
    let waiting = row_after(None, &Event::Arrive(deferred(1)), at(0));
    let (row, step) = apply(Some(&waiting), &take(2), at(1));
    let holder = lease_of(&step).holder;
    let unknown = row_after(row.as_ref(), &doubt(holder), at(2));
    let queued = row_after(Some(&unknown), &not_found(&unknown, at(500)), at(500));
    assert_eq!(queued.state.kind(), StateKind::Pending);
    for proof in [complete(holder, 201), happened(holder.life, 201)] {
        assert_eq!(row_after(Some(&queued), &proof, at(501)).state, State::Completed(answer(201)));
    }
}

/// A slow probe, or a redelivered "failed" webhook, about attempt 1 hits attempt 2's `unknown`. A negative verdict names
/// the attempt it read before asking, or it is dropped.
#[test]
fn attack_04_a_negative_verdict_about_another_attempt_is_dropped() {
    let (row, first) = granted(None, arrival(1), at(0));
    let unknown_1 = row_after(Some(&row), &doubt(first.holder), at(1));
    let slow_probe = not_found(&unknown_1, at(500));
    let redelivered =
        did_not_happen(first.holder.life, Grounds::Final { fence: first.holder.fence }, at(500));

    let released = row_after(Some(&unknown_1), &not_found(&unknown_1, at(400)), at(400));
    let (row, second) = granted(Some(&released), arrival(2), at(401));
    let unknown_2 = row_after(Some(&row), &doubt(second.holder), at(402));
    for stale in [slow_probe, redelivered] {
        let (row, step) = apply(Some(&unknown_2), &stale, at(1_000));
        assert_eq!(row.unwrap().state.kind(), StateKind::Unknown);
        assert!(step.notices.contains(&Notice::NegativeDropped));
    }

    // Even about the same attempt: if the row changed after it was read, the answer is about an older question.
    let probe = not_found(&unknown_2, at(2_000));
    let asked_again = row_after(Some(&unknown_2), &not_known(&unknown_2, retry(at(1_500))), at(1_500));
    assert_eq!(row_after(Some(&asked_again), &probe, at(2_001)).state.kind(), StateKind::Unknown);
    // The same attempt, declared final by the provider, is believed.
    let own = did_not_happen(second.holder.life, Grounds::Final { fence: second.holder.fence }, at(500));
    assert_eq!(row_after(Some(&unknown_2), &own, at(500)).state.kind(), StateKind::FailedRetryable);
}

/// "Failed", then "succeeded" for one payment, and the other way round: *happened* absorbs in either order.
#[test]
fn attack_05_happened_absorbs_in_either_order() {
    let (row, lease) = granted(None, arrival(1), at(0));
    let unknown = row_after(Some(&row), &doubt(lease.holder), at(1));
    let failed = |now| did_not_happen(lease.holder.life, Grounds::Final { fence: lease.holder.fence }, now);

    let row = row_after(Some(&unknown), &failed(at(2)), at(2));
    assert_eq!(row_after(Some(&row), &happened(row.life, 201), at(3)).state, State::Completed(answer(201)));

    let row = row_after(Some(&unknown), &happened(unknown.life, 201), at(2));
    let (after, step) = apply(Some(&row), &failed(at(3)), at(3));
    assert_eq!(after.unwrap(), row, "a completed record stays as it is");
    assert_eq!(step.notices, [Notice::Contradiction]);

    // Kept as evidence, a success outweighs an earlier failure, and is not outweighed by a later one.
    let (running, lease) = granted(None, arrival(1), at(0));
    for statuses in [[402, 201], [201, 402]] {
        let mut row = running.clone();
        for status in statuses {
            row = row_after(Some(&row), &happened(row.life, status), at(1));
        }
        let settled = row_after(Some(&row), &doubt(lease.holder), at(2));
        assert_eq!(settled.state, State::Completed(answer(201)), "{statuses:?}");
    }
}

/// A webhook arrives while in progress, is acknowledged and dropped; the node dies; there is no probe. It is kept as
/// evidence and applied on entering `unknown`, however that comes about.
#[test]
fn attack_06_an_early_webhook_is_kept_and_applied() {
    let (row, lease) = granted(None, arrival(1), at(0));
    let kept = row_after(Some(&row), &happened(row.life, 201), at(5));
    assert_eq!(kept.state, State::InProgress, "the holder is still at work");
    for (event, now) in
        [(Event::Sweep, at(61)), (doubt(lease.holder), at(10)), (Event::Arrive(arrival(2)), at(61))]
    {
        assert_eq!(row_after(Some(&kept), &event, now).state, State::Completed(answer(201)), "{event:?}");
    }
    // The holder that comes back with the original bytes is the better witness.
    assert_eq!(
        row_after(Some(&kept), &complete(lease.holder, 200), at(10)).state,
        State::Completed(answer(200))
    );
    // For a key never seen, the caller keeps it apart.
    assert_eq!(apply(None, &happened(token(1), 201), at(0)).1.decision, Decision::KeepApart);
}

/// Life 1's effect, found by a probe, completes life 2. A verdict names its life.
#[test]
fn attack_07_an_effect_of_an_earlier_life_settles_nothing() {
    let (row, first) = granted(None, arrival(1), at(0));
    let done = row_after(Some(&row), &complete(first.holder, 201), at(1));
    let (row, second) = granted(Some(&done), arrival(2), at(1 + 86_400));
    assert_ne!(first.holder.life, second.holder.life);
    let unknown = row_after(Some(&row), &doubt(second.holder), at(2 + 86_400));
    for verdict in [happened(first.holder.life, 201), complete(first.holder, 201)] {
        let (after, _) = apply(Some(&unknown), &verdict, at(3 + 86_400));
        assert_eq!(after.unwrap(), unknown);
    }
}

/// Two contenders propose the same fence; the loser, in doubt, cleans up "its" fence and releases the winner. And: after
/// a hard delete an old holder completes the new life. Identity is token and fence together.
#[test]
fn attack_08_identity_is_token_and_fence() {
    let (winner, lease) = granted(None, arrival(1), at(0));
    let (loser, losing) = granted(None, arrival(2), at(0));
    assert_eq!(winner.fence, loser.fence, "both proposed the same fence");

    let (after, step) = apply(Some(&winner), &clean_up(arrival(2), None), at(1));
    assert_eq!((after.unwrap(), step.next), (winner.clone(), Next::Keep));
    for event in
        [complete(losing.holder, 201), release(losing.holder), doubt(losing.holder), renew(losing.holder)]
    {
        let (after, step) = apply(Some(&winner), &event, at(1));
        assert_eq!(after.unwrap(), winner);
        assert!(matches!(step.decision, Decision::Fenced(_)));
    }
    // The right token with another fence, and the right fence with another token, are nobody.
    let forged = Holder { fence: Fence::from_raw(lease.holder.fence.as_raw() + 1), ..lease.holder };
    assert!(matches!(apply(Some(&winner), &release(forged), at(1)).1.decision, Decision::Fenced(_)));
    let forged = Holder { token: token(7), ..lease.holder };
    assert!(matches!(apply(Some(&winner), &release(forged), at(1)).1.decision, Decision::Fenced(_)));

    // After a hard delete: the row is gone, a new life begins, the old holder is nobody.
    let (new_life, _) = granted(None, arrival(3), at(100_000));
    let (after, step) = apply(Some(&new_life), &complete(lease.holder, 201), at(100_001));
    assert_eq!(after.unwrap(), new_life);
    assert!(matches!(step.decision, Decision::Fenced(_)));
}

/// A swap in flight from life 1 lands on life 2 with the same version number. Versions never restart: not in place, not
/// after a hard delete.
#[test]
fn attack_09_versions_never_restart() {
    let mut versions = Vec::new();
    let mut fences = Vec::new();
    let mut day = 0;
    for life in 0..3 {
        let (row, lease) = granted(None, arrival(1), at(day));
        versions.push(row.version);
        fences.push(row.fence);
        let row = row_after(Some(&row), &renew(lease.holder), at(day));
        versions.push(row.version);
        let row = row_after(Some(&row), &complete(lease.holder, 201), at(day));
        versions.push(row.version);
        // In place, past retention; then, after that life, a hard delete and a new insert.
        day += 86_400;
        let (row, lease) = granted(Some(&row), arrival(2), at(day));
        versions.push(row.version);
        fences.push(row.fence);
        let row = row_after(Some(&row), &release(lease.holder), at(day));
        versions.push(row.version);
        day += 86_400;
        assert_eq!(apply(Some(&row), &reap(), at(day)).0, None, "life {life}");
    }
    assert!(versions.is_sorted_by(|a, b| a < b), "{versions:?}");
    assert!(fences.is_sorted_by(|a, b| a < b), "{fences:?}");
}

/// Acknowledgement lost, re-read finds the row, executes: then a queued clean-up must not release it. `decide` grants my
/// own token again, and cleans up only what is still mine; that each token takes one way only is the engine's part.
#[test]
fn attack_10_my_own_reserve_is_granted_not_busy() {
    let (row, lease) = granted(None, arrival(1), at(0));
    let (_, step) = apply(Some(&row), &Event::Arrive(arrival(1)), at(1));
    assert_eq!(step.decision, Decision::Execute(lease.clone()));
    assert_eq!(step.next, Next::Keep);
    // An acknowledgement that arrives after the lease's end grants nothing.
    let (_, step) = apply(Some(&row), &Event::Arrive(arrival(1)), at(60));
    assert!(!matches!(step.decision, Decision::Execute(_)), "{step:?}");
    // Once settled, the clean-up of the same token changes nothing.
    let done = row_after(Some(&row), &complete(lease.holder, 201), at(2));
    let (after, _) = apply(Some(&done), &clean_up(arrival(1), None), at(3));
    assert_eq!(after.unwrap(), done);
}

/// A doubted reserve lands after clean-up read "no row". Clean-up is a conflicting write: it takes the row's place, or
/// raises the version that the doubted swap would need.
#[test]
fn attack_11_clean_up_is_a_conflicting_write() {
    let (_, step) = apply(None, &clean_up(arrival(1), None), at(0));
    let Next::Put(row) = step.next else { panic!("an insert that the doubted one clashes with") };
    assert_eq!(row.state, State::FailedRetryable);
    // The key is free for the client's retry.
    assert!(matches!(apply(Some(&row), &Event::Arrive(arrival(2)), at(1)).1.decision, Decision::Execute(_)));

    // A doubted swap over a released row: raising its version is what keeps the swap from landing later.
    let (_, step) = apply(Some(&row), &clean_up(arrival(3), Some(row.version)), at(1));
    let Next::Put(raised) = step.next else { panic!("a write that the doubted swap clashes with") };
    assert!(raised.version > row.version);
    assert_eq!(raised.state, row.state);

    // It landed, lapsed and was swept before the clean-up came: nothing ran under my token, so the key is freed.
    let (row, _) = granted(Some(&raised), arrival(4), at(2));
    let swept = row_after(Some(&row), &Event::Sweep, at(70));
    let (freed, _) = apply(Some(&swept), &clean_up(arrival(4), Some(raised.version)), at(71));
    assert_eq!(freed.unwrap().state, State::FailedRetryable);
}

/// A webhook completes with a rebuilt answer and it is replayed; then the late holder sends its own bytes. Fenced returns
/// the row, and the client is answered from it.
#[test]
fn attack_12_a_late_holder_is_shown_what_was_recorded() {
    let (row, lease) = granted(None, arrival(1), at(0));
    let unknown = row_after(Some(&row), &Event::Sweep, at(61));
    let rebuilt = row_after(Some(&unknown), &happened(unknown.life, 200), at(62));
    let (after, step) = apply(Some(&rebuilt), &complete(lease.holder, 201), at(63));
    assert_eq!(after.unwrap(), rebuilt);
    let Decision::Fenced(Some(shown)) = step.decision else { panic!("{step:?}") };
    assert_eq!(shown.state, State::Completed(answer(200)));
    // Its own, very same answer, acknowledged twice, is fine.
    let own = row_after(Some(&row), &complete(lease.holder, 201), at(10));
    assert_eq!(apply(Some(&own), &complete(lease.holder, 201), at(11)).1.decision, Decision::Done);
}

/// Under 410 a hard delete, or another fingerprint, made the key executable. Tombstones have their own lifetime, and every
/// fingerprint is Gone.
#[test]
fn attack_14_a_tombstone_shuts_the_key_whatever_is_asked() {
    for status in [GoneStatus::Gone, GoneStatus::NotFound] {
        let first = Arrival { terms: gone_terms(status), ..arrival(1) };
        let (row, lease) = granted(None, first, at(0));
        let done = row_after(Some(&row), &complete(lease.holder, 201), at(0));
        let day = 86_400;
        let buried = row_after(Some(&done), &reap(), at(day + 5_000));
        assert_eq!(buried.state, State::Expired);
        // Reaped or not yet reaped makes no difference: expiry is decided when a request arrives.
        for row in [&done, &buried] {
            for (n, probe) in [arrival(2), other_request(arrival(2)), deferred(2)].into_iter().enumerate() {
                for now in [at(day), at(day + 1), at(31 * day - 1)] {
                    let (after, step) = apply(Some(row), &Event::Arrive(probe.clone()), now);
                    assert_eq!(after.as_ref(), Some(row));
                    let Decision::Gone { status: shown, .. } = step.decision else { panic!("{n}: {step:?}") };
                    assert_eq!(shown, status);
                }
            }
            // The tombstone's own life over, the key is new; that is audited.
            let (_, step) = apply(Some(row), &Event::Arrive(arrival(2)), at(31 * day));
            assert!(matches!(step.decision, Decision::Execute(_)));
            assert_eq!(step.notices.contains(&Notice::OutOfTombstone), row.state == State::Expired);
        }
        assert_eq!(apply(Some(&buried), &reap(), at(31 * day - 1)).1.next, Next::Keep);
        assert!(matches!(apply(Some(&buried), &reap(), at(31 * day)).1.next, Next::Remove { .. }));
    }
}

/// `forget` of a row in progress; a forgotten answer replays from another node's cache. Settled records only, and a
/// tombstone until the longest cache age has passed.
#[test]
fn attack_16_forget_takes_settled_records_and_leaves_a_tombstone() {
    let (row, lease) = granted(None, arrival(1), at(0));
    for unsettled in [row.clone(), row_after(Some(&row), &doubt(lease.holder), at(1))] {
        let (after, step) = apply(Some(&unsettled), &forget(unsettled.version), at(2));
        assert_eq!(after.unwrap(), unsettled);
        assert!(matches!(step.decision, Decision::Refused(_)));
    }
    let done = row_after(Some(&row), &complete(lease.holder, 201), at(1));
    assert!(
        matches!(apply(Some(&done), &forget(row.version), at(2)).1.decision, Decision::Refused(_)),
        "it changed"
    );

    let forgotten = row_after(Some(&done), &forget(done.version), at(10));
    assert_eq!((forgotten.state.clone(), forgotten.fence), (State::Expired, done.fence));
    assert!(forgotten.version > done.version);
    // Any cache may replay it for 60 s: until then nothing runs.
    let (_, step) = apply(Some(&forgotten), &Event::Arrive(arrival(2)), at(69));
    assert!(matches!(step.decision, Decision::Gone { .. }));
    let (row, lease) = granted(Some(&forgotten), arrival(2), at(70));
    assert!(row.fence > done.fence && lease.holder.life == token(2));
}

/// Deferred work released: nobody ran it again. It goes back to `pending`, with backoff.
#[test]
fn attack_18_released_deferred_work_is_queued_again() {
    let waiting = row_after(None, &Event::Arrive(deferred(1)), at(0));
    let (row, step) = apply(Some(&waiting), &take(2), at(1));
    let holder = lease_of(&step).holder;
    let row = row.unwrap();
    let unknown = row_after(Some(&row), &doubt(holder), at(2));
    let ways = [
        row_after(Some(&row), &release(holder), at(10)),
        row_after(Some(&unknown), &release(holder), at(10)),
        row_after(Some(&unknown), &not_found(&unknown, at(1_000)), at(10)),
    ];
    for queued in ways {
        assert_eq!(queued.state, State::Pending { run_after: at(15).at });
        assert_eq!(apply(Some(&queued), &take(3), at(14)).1.decision, Decision::Nothing, "backoff");
        let (_, step) = apply(Some(&queued), &take(3), at(15));
        assert_eq!(lease_of(&step).attempt, 2);
    }
}

/// A hung upstream, renewed for ever. The attempt's deadline is in the row, and no renewal reaches past it.
#[test]
fn attack_19_no_renewal_reaches_past_the_deadline() {
    let (mut row, lease) = granted(None, arrival(1), at(0));
    for second in (30..900).step_by(30) {
        let (next, step) = apply(Some(&row), &renew(lease.holder), at(second));
        let Decision::Renewed { until } = step.decision else { panic!("{step:?}") };
        assert_eq!(until, at((second + 60).min(900)).at);
        row = next.unwrap();
    }
    assert!(matches!(apply(Some(&row), &renew(lease.holder), at(900)).1.decision, Decision::Fenced(_)));
    assert_eq!(row_after(Some(&row), &Event::Sweep, at(900)).state.kind(), StateKind::Unknown);
}

/// Not an attack of the list, but of the same kind: under `restart` a lapsed attempt is queued again although it may have
/// acted. When its time runs out the stored 408 would say "nothing was executed", which nobody knows.
#[test]
fn a_queued_restart_that_runs_out_of_time_is_unknown_not_408() {
    let first = Arrival { terms: terms(CrashPolicy::Restart), ..deferred(1) };
    let waiting = row_after(None, &Event::Arrive(first), at(0));
    let (row, _) = apply(Some(&waiting), &take(2), at(1));
    let queued = row_after(row.as_ref(), &Event::Sweep, at(100));
    assert_eq!(queued.state.kind(), StateKind::Pending);
    let late = at(86_400);
    for event in [reap(), take(3), Event::Arrive(deferred(4))] {
        assert_eq!(row_after(Some(&queued), &event, late).state.kind(), StateKind::Unknown, "{event:?}");
    }
    // Swept only after the limit, it goes to `unknown` at once.
    assert_eq!(row_after(row.as_ref(), &Event::Sweep, late).state.kind(), StateKind::Unknown);
}

/// An operator's verdict is about the version that the operator saw.
#[test]
fn an_operators_verdict_is_about_the_version_they_saw() {
    let (row, lease) = granted(None, arrival(1), at(0));
    let unknown = row_after(Some(&row), &doubt(lease.holder), at(1));
    let settle = |version| did_not_happen(unknown.life, Grounds::Operator { version }, at(5));
    assert_eq!(row_after(Some(&unknown), &settle(row.version), at(5)).state.kind(), StateKind::Unknown);
    assert_eq!(
        row_after(Some(&unknown), &settle(unknown.version), at(5)).state.kind(),
        StateKind::FailedRetryable
    );
    // And keeps the provider's name for the effect.
    let verdict = Verdict {
        life: unknown.life,
        source: "operator".into(),
        reference: Some("ch_1".into()),
        finding: Finding::Happened(answer(201)),
    };
    let done = row_after(Some(&unknown), &Event::Verdict(verdict), at(6));
    assert_eq!(done.provider_reference.as_deref(), Some("ch_1"));
}

/// The store's clock steps forward by an hour. The lease looks lapsed at once, the sweeper writes
/// `unknown`, and the probe's first "not found" is asked long after lease end + horizon. The
/// original request is still on its way, and the retry executes too. So the horizon also counts
/// from the moment the record became `unknown`.
#[test]
fn attack_20_the_horizon_counts_from_when_the_record_became_unknown() {
    let (row, _) = granted(None, arrival(1), at(0));
    let row = row_after(Some(&row), &Event::Sweep, at(3_600));
    let check = |asked, expected: &str| {
        let (_, step) = apply(Some(&row), &not_found(&row, asked), at(10_000));
        assert_eq!(words(&step), expected);
    };
    check(at(3_601), "Done → unknown");
    check(at(3_719), "Done → unknown");
    check(at(3_720), "Done → failed_retryable");
}

/// A node whose clock may be 5 s slow wrote `unknown` with its own time. Counted from there, the
/// horizon ended 5 s too early. So the record carries the latest moment at which it can have
/// become `unknown`.
#[test]
fn attack_20_the_moment_of_doubt_includes_the_error_of_the_clock_that_wrote_it() {
    let (row, _) = granted(None, arrival(1), at(0));
    let swept = Now { error: 5 * S, ..at(3_600) };
    let row = row_after(Some(&row), &Event::Sweep, swept);
    let State::Unknown(doubt) = &row.state else { panic!("{row:?}") };
    assert_eq!(doubt.since, at(3_605).at);
    let (_, step) = apply(Some(&row), &not_found(&row, at(3_724)), at(10_000));
    assert_eq!(words(&step), "Done → unknown");
    let (_, step) = apply(Some(&row), &not_found(&row, at(3_725)), at(10_000));
    assert_eq!(words(&step), "Done → failed_retryable");
}

/// The record is `unknown` already when the clock steps forward by an hour. Then `since` + horizon
/// lies in the past although seconds have passed. A node that noticed the step counts the horizon
/// from it.
#[test]
fn attack_20_a_step_after_the_record_became_unknown_restarts_the_horizon() {
    let (row, lease) = granted(None, arrival(1), at(0));
    let row = row_after(Some(&row), &doubt(lease.holder), at(10));
    let check = |asked, expected: &str| {
        let event = not_found_since_step(&row, asked, at(3_610).at);
        let (_, step) = apply(Some(&row), &event, at(10_000));
        assert_eq!(words(&step), expected);
    };
    check(at(3_611), "Done → unknown");
    check(at(3_729), "Done → unknown");
    check(at(3_730), "Done → failed_retryable");
}

/// Attack 23: a key is used on a route without fingerprints, and then on another route. The
/// unchecked fingerprint matched every request, so the second operation was answered with the
/// first one's response and never executed.
#[test]
fn attack_23_an_unchecked_fingerprint_matches_only_the_same_operation() {
    let unchecked = |n: u8| Fingerprint::from_parts(0, [n; 32]);
    let checked = Fingerprint::from_parts(1, [1; 32]);
    let other = Operation::new("POST /uploads").unwrap();
    // The record's fingerprint, the request's, whether it is of the same operation, and whether
    // it is the same request.
    let table = [
        (unchecked(1), unchecked(1), true, true),
        (unchecked(1), unchecked(2), true, false),
        // The same request under a pattern that was renamed.
        (unchecked(1), unchecked(1), false, true),
        // The policy was changed from or to `none`.
        (unchecked(1), checked, true, true),
        (unchecked(1), checked, false, false),
        (checked, unchecked(1), true, true),
        (checked, unchecked(1), false, false),
        // A record of an earlier release, which named no operation.
        (Fingerprint::NONE, unchecked(1), true, true),
        (Fingerprint::NONE, unchecked(1), false, false),
        (Fingerprint::NONE, checked, false, false),
    ];
    for (of_record, of_request, is_same_operation, is_same) in table {
        let (row, lease) = granted(None, Arrival { fingerprint: of_record, ..arrival(1) }, at(0));
        let done = row_after(Some(&row), &complete(lease.holder, 201), at(1));
        let second = Arrival { fingerprint: of_request, ..arrival(2) };
        let operation = if is_same_operation { second.operation.clone() } else { other.clone() };
        let (_, step) = apply(Some(&done), &Event::Arrive(Arrival { operation, ..second }), at(2));
        let expected = if is_same { Decision::Replay(answer(201)) } else { Decision::Mismatch };
        assert_eq!(step.decision, expected, "{of_record} {of_request} {is_same_operation}");
    }
}
