//! The journal of a phased operation: what a handler is told, whatever was done before and wherever it was cut off.

use oncegate_core::identity::Token;
use oncegate_core::record::{Changed, Journal, Phase, PhaseKind, Progress, Visit};
use proptest::collection::vec;
use proptest::prelude::*;

const ATOMIC: PhaseKind = PhaseKind::Atomic;
const FOREIGN: PhaseKind = PhaseKind::Foreign;

fn phase(name: &str, kind: PhaseKind, progress: Progress) -> Phase {
    Phase { name: name.into(), kind, progress }
}

fn finished(name: &str, kind: PhaseKind) -> Phase {
    phase(name, kind, Progress::Finished(name.as_bytes().to_vec()))
}

/// A ride that was created, and whose charge was begun.
fn ride() -> Journal {
    Journal::default().with(finished("ride", ATOMIC)).with(phase("charge", FOREIGN, Progress::Begun))
}

#[test]
fn a_handler_is_told_to_run_to_take_or_to_find_out() {
    let ride = ride();
    assert_eq!(ride.visit(0, "ride", ATOMIC), Ok(Visit::Finished(b"ride")));
    assert_eq!(ride.visit(1, "charge", FOREIGN), Ok(Visit::Begun));
    assert_eq!(ride.visit(2, "receipt", ATOMIC), Ok(Visit::Run));
    assert_eq!(ride.leave(2), Ok(()));
    assert_eq!(&*ride.point().name, "charge");
    let charged = ride.with(finished("charge", FOREIGN));
    assert_eq!(charged.visit(1, "charge", FOREIGN), Ok(Visit::Finished(b"charge")));
    assert_eq!(charged.phases().len(), 2);
    // It is certain that nothing was sent: as if it had never been begun.
    assert_eq!(ride.without("charge").visit(1, "charge", FOREIGN), Ok(Visit::Run));
    assert_eq!(ride.without("ride"), ride, "only the last one can be taken back");
}

/// A handler that goes on after a failure must find it again: without it the next attempt, in the very same handler, would be told that
/// another phase was done in its place.
#[test]
fn a_failure_that_was_gone_on_after_is_an_outcome() {
    let failed = |kind| phase("ride", kind, Progress::Failed("no driver".into()));
    for kind in [ATOMIC, FOREIGN] {
        let listed = Journal::default().with(failed(kind)).with(finished("waiting_list", ATOMIC));
        assert_eq!(listed.visit(0, "ride", kind), Ok(Visit::Failed("no driver")));
        assert_eq!(listed.visit(1, "waiting_list", ATOMIC), Ok(Visit::Finished(b"waiting_list")));
        assert!(listed.visit(0, "waiting_list", ATOMIC).is_err(), "the order is kept");
        let point = listed.point();
        assert_eq!(Journal::of(Some(&point)), Ok(listed));
    }
}

#[test]
fn a_changed_handler_is_found_out() {
    let ride = ride();
    let refusal = |position, name, kind| ride.visit(position, name, kind).map(|_| ()).unwrap_err();
    let another = |asked: Changed| matches!(asked, Changed::Another { .. });
    assert!(another(refusal(0, "trip", ATOMIC)), "renamed");
    assert!(another(refusal(0, "charge", FOREIGN)), "reordered");
    assert!(another(refusal(1, "charge", ATOMIC)), "of another kind");
    assert!(another(refusal(1, "receipt", ATOMIC)), "one is left out");
    assert_eq!(refusal(2, "charge", FOREIGN), Changed::Repeated { name: "charge".into() });
    let left = ride.leave(1).unwrap_err();
    assert_eq!(left, Changed::Left { position: 1, kept: "charge".into() });
    let words = refusal(0, "trip", ATOMIC).to_string();
    assert!(words.contains("\"ride\" (atomic)") && words.contains("\"trip\" (atomic)"), "{words}");
}

#[test]
fn a_downstream_key_is_of_one_life_and_one_phase() {
    let lives = [1, 2].map(|n| Token::from_bytes([n; 16]));
    let keys = lives.map(|life| [life.phase_key("charge"), life.phase_key("refund"), life.life_name()]);
    let mut all: Vec<_> = keys.iter().flatten().collect();
    all.sort();
    all.dedup();
    assert_eq!(all.len(), 6, "{keys:?}");
    assert_eq!(lives[0].phase_key("charge"), keys[0][0]);
}

fn phases() -> impl Strategy<Value = Vec<(PhaseKind, Vec<u8>)>> {
    vec((prop_oneof![Just(ATOMIC), Just(FOREIGN)], vec(any::<u8>(), 0..20)), 0..8)
}

proptest! {
    #[test]
    fn a_journal_survives_its_recovery_point(phases in phases(), failures: u8, is_begun: bool) {
        let mut journal = Journal::default();
        for (n, (kind, output)) in phases.into_iter().enumerate() {
            let progress = if failures >> n & 1 == 1 {
                Progress::Failed(String::from_utf8_lossy(&output).into())
            } else {
                Progress::Finished(output)
            };
            journal = journal.with(phase(&format!("phase {n}"), kind, progress));
        }
        if is_begun {
            journal = journal.with(phase("last", FOREIGN, Progress::Begun));
        }
        let point = journal.point();
        prop_assert_eq!(Journal::of(Some(&point)), Ok(journal));
        let bytes = point.output;
        prop_assert!(Journal::decode(&bytes[..bytes.len() - 1]).is_err());
        prop_assert!(Journal::decode(&[&bytes[..], &[0]].concat()).is_err());
    }

    #[test]
    fn other_bytes_are_refused_and_never_misread(bytes in vec(any::<u8>(), 0..60)) {
        if let Ok(journal) = Journal::decode(&bytes) {
            prop_assert_eq!(journal.encode(), bytes);
        }
    }

    /// However often it is cut off, between any two writes: each phase gives its first output, and only a foreign one is ever found
    /// begun.
    #[test]
    fn what_was_finished_is_never_run_again(phases in phases(), cuts in vec(0_usize..12, 0..12)) {
        let names: Vec<_> = (0..phases.len()).map(|n| format!("phase {n}")).collect();
        let mut kept = Journal::default();
        let mut runs = vec![0_u32; phases.len()];
        for budget in cuts.into_iter().map(Some).chain([None]) {
            let mut writes = 0;
            let mut spent = || { writes += 1; budget.is_some_and(|budget| writes > budget) };
            for (n, (kind, _)) in phases.iter().enumerate() {
                let begun = match kept.visit(n, &names[n], *kind).unwrap() {
                    Visit::Finished(output) => {
                        prop_assert_eq!(output, &[1], "the first run's output");
                        continue;
                    }
                    Visit::Begun => { prop_assert_eq!(*kind, FOREIGN); true }
                    Visit::Failed(words) => return Err(TestCaseError::fail(words.to_owned())),
                    Visit::Run => false,
                };
                if *kind == FOREIGN && !begun {
                    if spent() { break }
                    kept = kept.with(phase(&names[n], *kind, Progress::Begun));
                }
                if spent() { break }
                runs[n] += 1;
                kept = kept.with(phase(&names[n], *kind, Progress::Finished(vec![u8::try_from(runs[n]).unwrap()])));
            }
        }
        prop_assert_eq!(kept.leave(phases.len()), Ok(()));
        prop_assert!(runs.iter().all(|runs| *runs == 1), "{runs:?}");
    }
}
