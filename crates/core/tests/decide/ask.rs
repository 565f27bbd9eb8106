//! Who asks about a doubt, and when: claims of reconcilers, wakes, and operators who have it asked again.

use std::time::Duration;

use oncegate_core::decide::{Ask, Decision, Event, Next, Notice, Refusal, Retry};
use oncegate_core::identity::Version;
use oncegate_core::record::{Doubt, Record, State};
use oncegate_core::time::{Now, Timestamp};

use super::samples::*;

fn claim(version: Version, until: Timestamp) -> Event {
    Event::Ask(Ask::Claim { version, until })
}

fn again(version: Version) -> Event {
    Event::Ask(Ask::Again { version })
}

const SOON: Event = Event::Ask(Ask::Soon);

fn doubt_of(row: &Record) -> Doubt {
    match &row.state {
        State::Unknown(doubt) => *doubt,
        other => panic!("not unknown but {other:?}"),
    }
}

/// In doubt since second 10; asked once, to be asked next at `second`.
fn asked_once(second: u64) -> Record {
    let unknown = sample(Phase::Unknown, &arrival(1)).row.unwrap();
    row_after(Some(&unknown), &not_known(&unknown, retry(at(second))), at(15))
}

fn parked() -> Record {
    let unknown = sample(Phase::Unknown, &arrival(1)).row.unwrap();
    row_after(Some(&unknown), &not_known(&unknown, Retry { at: at(15).at, park_after: 1 }), at(15))
}

fn must_keep(row: &Record, event: &Event, now: Now, decision: &Decision) {
    let (_, step) = apply(Some(row), event, now);
    assert_eq!((&step.next, &step.decision), (&Next::Keep, decision), "{event:?} over {row:?}");
}

/// A claim moves the question, and nothing else: not the tries, not what is known, not the attempt.
#[test]
fn a_claim_moves_only_the_question() {
    let row = asked_once(20);
    let next = row_after(Some(&row), &claim(row.version, at(60).at), at(20));
    let doubt = Doubt { reconcile_after: at(60).at, ..doubt_of(&row) };
    assert!(next.version > row.version);
    assert_eq!(next, Record { state: State::Unknown(doubt), version: next.version, ..row });
}

/// Two reconcilers found the row due: the second claims over a version that is no longer there.
#[test]
fn of_two_claims_over_one_version_one_holds() {
    let row = asked_once(20);
    let next = row_after(Some(&row), &claim(row.version, at(60).at), at(20));
    must_keep(&next, &claim(row.version, at(61).at), at(20), &Decision::Nothing);
    // Nor over the new one, while it is claimed; but from the claim's end on.
    must_keep(&next, &claim(next.version, at(90).at), at(59), &Decision::Nothing);
    let taken_over = row_after(Some(&next), &claim(next.version, at(90).at), at(60));
    assert_eq!(doubt_of(&taken_over).reconcile_after, at(90).at);
}

/// Something was learnt between the scan and the claim, and the row is due all the same: whoever has not seen it must look again.
#[test]
fn a_claim_over_an_outdated_row_is_nothing() {
    let row = asked_once(20);
    let next = row_after(Some(&row), &again(row.version), at(30));
    must_keep(&next, &claim(row.version, at(60).at), at(40), &Decision::Nothing);
    assert_eq!(apply(Some(&next), &claim(next.version, at(60).at), at(40)).1.decision, Decision::Done);
}

#[test]
fn a_claim_comes_not_before_its_moment() {
    let row = asked_once(100);
    must_keep(&row, &claim(row.version, at(200).at), at(99), &Decision::Nothing);
    let (_, step) = apply(Some(&row), &claim(row.version, at(200).at), at(100));
    assert_eq!(step.decision, Decision::Done);
}

#[test]
fn a_parked_record_is_never_claimed_nor_woken() {
    let row = parked();
    assert!(doubt_of(&row).parked);
    must_keep(&row, &claim(row.version, at(99_999).at), at(50_000), &Decision::Nothing);
    must_keep(&row, &SOON, at(50_000), &Decision::Nothing);
}

/// A verdict names the row as it was before the question, which is the claimed one: a claim must not spoil its own verdict.
#[test]
fn a_verdict_over_the_claimed_row_is_believed() {
    let row = asked_once(20);
    let claimed = row_after(Some(&row), &claim(row.version, at(500).at), at(400));
    let (next, step) = apply(Some(&claimed), &not_found(&claimed, at(401)), at(402));
    assert_eq!((next.unwrap().state, step.decision), (State::FailedRetryable, Decision::Done));
    let (_, step) = apply(Some(&claimed), &not_found(&row, at(401)), at(402));
    assert_eq!((step.next, &step.notices[..]), (Next::Keep, &[Notice::NegativeDropped][..]));
}

#[test]
fn ask_again_unparks_and_counts_from_the_beginning() {
    let row = parked();
    let next = row_after(Some(&row), &again(row.version), at(50));
    let doubt = doubt_of(&next);
    assert_eq!((doubt.tries, doubt.parked, doubt.reconcile_after), (0, false, at(50).at));
    assert_eq!(doubt.since, doubt_of(&row).since, "it is not a new doubt");
    // Also of one that is not parked, and claimed.
    let claimed = row_after(Some(&asked_once(20)), &claim(asked_once(20).version, at(60).at), at(20));
    assert_eq!(doubt_of(&row_after(Some(&claimed), &again(claimed.version), at(30))).tries, 0);
}

#[test]
fn ask_again_is_refused_over_another_version() {
    for phase in Phase::ALL {
        let Some(row) = sample(phase, &arrival(1)).row else { continue };
        let other = Version::from_raw(row.version.as_raw() - 1);
        must_keep(&row, &again(other), at(50), &Decision::Refused(Refusal::Changed));
    }
    let row = parked();
    let next = row_after(Some(&row), &again(row.version), at(50));
    must_keep(&next, &again(row.version), at(50), &Decision::Refused(Refusal::Changed));
}

/// A wake brings the question forward; it is no question, and one that is due anyway stays as it is.
#[test]
fn ask_soon_brings_the_question_forward_and_is_no_question() {
    let row = asked_once(100);
    let next = row_after(Some(&row), &SOON, at(50));
    assert_eq!(doubt_of(&next), Doubt { reconcile_after: at(50).at, ..doubt_of(&row) });
    must_keep(&next, &SOON, at(50), &Decision::Nothing);
    must_keep(&next, &SOON, at(51), &Decision::Nothing);
}

/// Questions and wakes over and over: only what was learnt settles.
#[test]
fn no_ask_ever_settles() {
    for phase in Phase::ALL {
        let Some(row) = sample(phase, &arrival(1)).row else { continue };
        let now = at(200_000_000);
        let until = now.at.plus(Duration::from_secs(1));
        for event in [SOON, claim(row.version, until), again(row.version)] {
            let (next, _) = apply(Some(&row), &event, now);
            assert_eq!(next.unwrap().state.kind(), row.state.kind(), "{event:?} at {phase:?}");
        }
    }
}
