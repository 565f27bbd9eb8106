//! Every cell of DESIGN.md's table of states and events.
//!
//! A cell reads `Decision` or `Decision → next state`. Rows are events, columns the phases in the design's order.

use std::sync::Arc;

use oncegate_core::decide::{
    Admission, Arrival, Ask, Decision, Event, Finding, Grounds, Next, QUARANTINED, Step,
};
use oncegate_core::record::{CrashPolicy, Execution, GoneStatus, Record, State, Terms};

use super::samples::*;

/// One row of the table: a name, the first arrival that made the rows, the event, the expected cells.
pub(crate) struct Row {
    pub(crate) name: &'static str,
    pub(crate) first: fn() -> Arrival,
    pub(crate) event: fn(&Sample) -> Event,
    cells: [&'static str; 8],
}

/// Absent, pending, in_progress, lapsed, completed, failed_retryable, unknown, expired.
pub(crate) const ROWS: &[Row] = &[
    Row {
        name: "arrive, same fingerprint (`reconcile`)",
        first: inline,
        event: |_| Event::Arrive(arrival(2)),
        cells: [
            "Execute → in_progress",
            "Accepted",
            "Busy",
            "Unsettled → unknown",
            "Replay",
            "Execute → in_progress",
            "Unsettled",
            "Gone",
        ],
    },
    Row {
        name: "arrive, same fingerprint (`resume`)",
        first: resume,
        event: |_| Event::Arrive(arrival(2)),
        cells: [
            "Execute → in_progress",
            "Accepted",
            "Busy",
            "Execute → in_progress",
            "Replay",
            "Execute → in_progress",
            "Unsettled",
            "Gone",
        ],
    },
    Row {
        name: "arrive, same fingerprint (`restart`)",
        first: restart,
        event: |_| Event::Arrive(arrival(2)),
        cells: [
            "Execute → in_progress",
            "Accepted",
            "Busy",
            "Execute → in_progress",
            "Replay",
            "Execute → in_progress",
            "Unsettled",
            "Gone",
        ],
    },
    Row {
        name: "arrive, deferred execution (`reconcile`)",
        first: inline,
        event: |_| Event::Arrive(deferred(2)),
        cells: [
            "Accepted → pending",
            "Accepted",
            "Accepted → in_progress",
            "Unsettled → unknown",
            "Replay",
            "Accepted → pending",
            "Unsettled → unknown",
            "Gone",
        ],
    },
    Row {
        name: "arrive, deferred execution (`resume`)",
        first: resume,
        event: |_| Event::Arrive(deferred(2)),
        cells: [
            "Accepted → pending",
            "Accepted",
            "Accepted → in_progress",
            "Accepted → in_progress",
            "Replay",
            "Accepted → pending",
            "Unsettled → unknown",
            "Gone",
        ],
    },
    Row {
        name: "arrive, deferred execution (`restart`)",
        first: restart,
        event: |_| Event::Arrive(deferred(2)),
        cells: [
            "Accepted → pending",
            "Accepted",
            "Accepted → in_progress",
            "Accepted → pending",
            "Replay",
            "Accepted → pending",
            "Unsettled → unknown",
            "Gone",
        ],
    },
    Row {
        name: "arrive, quarantined",
        first: inline,
        event: |_| {
            let admission = Admission::Quarantined { windows: "q1".into() };
            Event::Arrive(Arrival { admission, ..arrival(2) })
        },
        cells: [
            "Unsettled → unknown",
            "Accepted",
            "Busy",
            "Unsettled → unknown",
            "Replay",
            "Execute → in_progress",
            "Unsettled",
            "Gone",
        ],
    },
    Row {
        name: "arrive, other fingerprint",
        first: inline,
        event: |_| Event::Arrive(other_request(arrival(2))),
        cells: [
            "Execute → in_progress",
            "Mismatch",
            "Mismatch",
            "Mismatch",
            "Mismatch",
            "Mismatch",
            "Mismatch",
            "Gone",
        ],
    },
    Row {
        name: "take, by a worker (`reconcile`, `restart`)",
        first: restart,
        event: |_| take(2),
        cells: ["–", "Execute → in_progress", "–", "–", "–", "–", "–", "–"],
    },
    Row {
        name: "take, by a worker (`resume`)",
        first: resume,
        event: |_| take(2),
        cells: ["–", "Execute → in_progress", "–", "Execute → in_progress", "–", "–", "–", "–"],
    },
    Row {
        name: "take, by a worker, of a request that was stored without its caller's credentials",
        first: || without_caller(arrival(1)),
        event: |_| take(2),
        cells: ["–", "– → unknown", "–", "–", "–", "–", "–", "–"],
    },
    Row {
        name: "postpone, by a worker that cannot run it",
        first: inline,
        event: |s| Event::Postpone { version: s.version(), until: s.now.at.plus(S) },
        cells: ["–", "Done → pending", "–", "–", "–", "–", "–", "–"],
    },
    Row {
        name: "advance to a recovery point (mine)",
        first: inline,
        event: |s| Event::Advance { holder: s.holder, point: point() },
        cells: [
            "Fenced",
            "Fenced",
            "Done → in_progress",
            "Done → in_progress",
            "Fenced",
            "Fenced",
            "Fenced",
            "Fenced",
        ],
    },
    Row {
        name: "complete (mine), the answer that is kept",
        first: inline,
        event: |s| complete(s.holder, 201),
        cells: [
            "Fenced",
            "Fenced",
            "Done → completed",
            "Done → completed",
            "Done",
            "Done → completed",
            "Done → completed",
            "Fenced",
        ],
    },
    Row {
        name: "complete (mine), another answer",
        first: inline,
        event: |s| complete(s.holder, 200),
        cells: [
            "Fenced",
            "Fenced",
            "Done → completed",
            "Done → completed",
            "Fenced",
            "Done → completed",
            "Done → completed",
            "Fenced",
        ],
    },
    Row {
        name: "release (mine)",
        first: inline,
        event: |s| release(s.holder),
        cells: [
            "Fenced",
            "Fenced",
            "Done → failed_retryable",
            "Done → failed_retryable",
            "Fenced",
            "Done",
            "Done → failed_retryable",
            "Fenced",
        ],
    },
    Row {
        // Its `failed_retryable` is `pending`: released deferred work goes back to the queue.
        name: "release (mine), deferred work",
        first: || deferred(1),
        event: |s| release(s.holder),
        cells: [
            "Fenced",
            "Fenced",
            "Done → pending",
            "Done → pending",
            "Fenced",
            "Fenced",
            "Done → pending",
            "Fenced",
        ],
    },
    Row {
        name: "release (mine), the upstream refuses the caller",
        first: inline,
        event: |s| refuse_caller(s.holder),
        cells: [
            "Fenced",
            "Fenced",
            "Done → failed_retryable",
            "Done → failed_retryable",
            "Fenced",
            "Done",
            "Done → failed_retryable",
            "Fenced",
        ],
    },
    Row {
        name: "doubt (mine)",
        first: inline,
        event: |s| doubt(s.holder),
        cells: ["Fenced", "Fenced", "Done → unknown", "Done → unknown", "Fenced", "Fenced", "Done", "Fenced"],
    },
    Row {
        name: "renew (mine)",
        first: inline,
        event: |s| renew(s.holder),
        cells: [
            "Fenced",
            "Fenced",
            "Renewed → in_progress",
            "Fenced",
            "Fenced",
            "Fenced",
            "Fenced",
            "Fenced",
        ],
    },
    Row {
        name: "entrust to the outbox (mine)",
        first: inline,
        event: |s| Event::Entrust { holder: s.holder },
        cells: [
            "Fenced",
            "Fenced",
            "Done → in_progress",
            "Done → in_progress",
            "Fenced",
            "Fenced",
            "Fenced",
            "Fenced",
        ],
    },
    Row {
        name: "clean up (my token, an insert in doubt)",
        first: inline,
        event: |_| clean_up(arrival(1), None),
        cells: [
            "Done → failed_retryable",
            "–",
            "Done → failed_retryable",
            "Done → failed_retryable",
            "–",
            "–",
            "Done → failed_retryable",
            "–",
        ],
    },
    Row {
        name: "clean up (my token, a swap over this version in doubt)",
        first: inline,
        event: |s| clean_up(arrival(2), s.row.as_ref().map(|row| row.version)),
        cells: [
            "Done → failed_retryable",
            "Done → pending",
            "Done → in_progress",
            "Done → in_progress",
            "Done → completed",
            "Done → failed_retryable",
            "Done → unknown",
            "Done → expired",
        ],
    },
    Row {
        name: "sweep (`reconcile`)",
        first: inline,
        event: |_| Event::Sweep,
        cells: ["–", "–", "–", "Done → unknown", "–", "–", "–", "–"],
    },
    Row {
        name: "sweep (`resume`)",
        first: resume,
        event: |_| Event::Sweep,
        cells: ["–", "–", "–", "–", "–", "–", "–", "–"],
    },
    Row {
        name: "sweep (`restart`, request stored)",
        first: restart_stored,
        event: |_| Event::Sweep,
        cells: ["–", "–", "–", "Done → pending", "–", "–", "–", "–"],
    },
    Row {
        name: "sweep (`restart`, request not stored)",
        first: restart,
        event: |_| Event::Sweep,
        cells: ["–", "–", "–", "–", "–", "–", "–", "–"],
    },
    Row {
        name: "ask: a claim",
        first: inline,
        event: |s| Event::Ask(Ask::Claim { version: s.version(), until: at(9_999).at }),
        cells: ["–", "–", "–", "–", "–", "–", "Done → unknown", "–"],
    },
    Row {
        name: "ask soon",
        first: inline,
        event: |_| Event::Ask(Ask::Soon),
        cells: ["KeepApart", "–", "–", "–", "–", "–", "–", "–"],
    },
    Row {
        name: "ask again (operator)",
        first: inline,
        event: |s| Event::Ask(Ask::Again { version: s.version() }),
        cells: ["–", "Refused", "Refused", "Refused", "Refused", "Refused", "Done → unknown", "Refused"],
    },
    Row {
        name: "verdict: it happened (`reconcile`)",
        first: inline,
        event: |_| happened(token(1), 201),
        cells: [
            "KeepApart",
            "–",
            "Done → in_progress, evidence",
            "Done → completed",
            "–",
            "Done → completed",
            "Done → completed",
            "–",
        ],
    },
    Row {
        name: "verdict: it happened (`resume`, `restart`)",
        first: restart,
        event: |_| happened(token(1), 201),
        cells: [
            "KeepApart",
            "–",
            "Done → in_progress, evidence",
            "Done → in_progress, evidence",
            "–",
            "Done → completed",
            "Done → completed",
            "–",
        ],
    },
    Row {
        name: "verdict: it did not happen (names the attempt, past the horizon)",
        first: inline,
        event: |s| match &s.row {
            Some(row) => not_found(row, at(86_400)),
            None => did_not_happen(token(1), Grounds::Final { fence: s.holder.fence }, s.now),
        },
        cells: ["KeepApart", "–", "–", "–", "–", "–", "Done → failed_retryable", "–"],
    },
    Row {
        name: "verdict: it did not happen (before the horizon, or of another attempt)",
        first: inline,
        event: |s| match &s.row {
            Some(row) => not_found(row, at(21)),
            None => did_not_happen(token(1), Grounds::Final { fence: s.holder.fence }, s.now),
        },
        cells: ["KeepApart", "–", "–", "–", "–", "–", "Done → unknown", "–"],
    },
    Row {
        name: "verdict: not known",
        first: inline,
        event: |s| {
            let finding = Finding::NotKnown { version: s.version(), retry: retry(s.now) };
            verdict(token(1), finding)
        },
        cells: ["–", "–", "–", "–", "–", "–", "Done → unknown", "–"],
    },
    Row {
        name: "forget, by an operator",
        first: inline,
        event: |s| {
            forget(s.row.as_ref().map_or(oncegate_core::identity::Version::from_raw(0), |row| row.version))
        },
        cells: ["–", "Refused", "Refused", "Refused", "Done → expired", "Done → expired", "Refused", "–"],
    },
    Row {
        name: "cancel, by its owner",
        first: inline,
        event: |_| Event::Cancel,
        cells: ["–", "Done → completed", "Refused", "Refused", "Refused", "Refused", "Refused", "–"],
    },
    Row {
        name: "hold back, after a part of the store was lost (`reconcile`)",
        first: inline,
        event: |_| Event::HoldBack { windows: "q1".into() },
        cells: ["–", "Done → unknown", "–", "–", "–", "Done → unknown", "–", "–"],
    },
    Row {
        name: "hold back, after a part of the store was lost (`resume`)",
        first: resume,
        event: |_| Event::HoldBack { windows: "q1".into() },
        cells: [
            "–",
            "Done → unknown",
            "Done → unknown",
            "Done → unknown",
            "–",
            "Done → unknown",
            "Done → unknown",
            "–",
        ],
    },
    Row {
        name: "hold back, after a part of the store was lost (`restart`)",
        first: restart,
        event: |_| Event::HoldBack { windows: "q1".into() },
        cells: ["–", "Done → unknown", "Done → unknown", "Done → unknown", "–", "Done → unknown", "–", "–"],
    },
    Row {
        name: "reap, before retention ends",
        first: inline,
        event: |_| reap(),
        cells: ["–", "–", "–", "–", "–", "–", "–", "–"],
    },
];

fn inline() -> Arrival {
    arrival(1)
}

fn resume() -> Arrival {
    Arrival { terms: terms(CrashPolicy::Resume), request: deferred(1).request, ..arrival(1) }
}

fn restart() -> Arrival {
    Arrival { terms: terms(CrashPolicy::Restart), ..arrival(1) }
}

fn restart_stored() -> Arrival {
    Arrival { request: deferred(1).request, ..restart() }
}

/// What one event does to one phase, in words.
pub(crate) fn cell(row: &Row, phase: Phase) -> String {
    let sample = sample(phase, &(row.first)());
    let event = (row.event)(&sample);
    let (_, step) = apply(sample.row.as_ref(), &event, sample.now);
    words(&step)
}

pub(crate) fn words(step: &Step) -> String {
    let decision = match &step.decision {
        Decision::Nothing => "–",
        Decision::Execute(_) => "Execute",
        Decision::Accepted => "Accepted",
        Decision::Replay(_) => "Replay",
        Decision::Busy { .. } => "Busy",
        Decision::Unsettled { .. } => "Unsettled",
        Decision::Mismatch => "Mismatch",
        Decision::Gone { .. } => "Gone",
        Decision::Done => "Done",
        Decision::Renewed { .. } => "Renewed",
        Decision::Fenced(_) => "Fenced",
        Decision::Refused(_) => "Refused",
        Decision::KeepApart => "KeepApart",
    };
    match &step.next {
        Next::Keep => decision.to_owned(),
        Next::Put(next) if next.evidence.is_some() => format!("{decision} → {}, evidence", next.state.kind()),
        Next::Put(next) => format!("{decision} → {}", next.state.kind()),
        Next::Remove { .. } => format!("{decision} → removed"),
    }
}

#[test]
fn every_cell_of_the_table() {
    for row in ROWS {
        for (phase, expected) in Phase::ALL.into_iter().zip(row.cells) {
            assert_eq!(cell(row, phase), expected, "{} at {phase:?}", row.name);
        }
    }
}

/// The last row of the table: reap, past retention, by what follows retention.
pub(crate) fn reap_cells(terms: Terms) -> [String; 8] {
    Phase::ALL.map(|phase| {
        let sample = past_retention(phase, terms);
        words(&apply(sample.row.as_ref(), &reap(), sample.now).1)
    })
}

/// A row in `phase`, long after its end.
pub(crate) fn past_retention(phase: Phase, terms: Terms) -> Sample {
    let sample = sample(phase, &Arrival { terms, ..arrival(1) });
    // The tombstone and the waiting row of the samples have terms of their own.
    Sample { row: sample.row.map(|row| Record { terms, ..row }), now: at(100 * 86_400), ..sample }
}

#[test]
fn reap_past_retention() {
    let kept = ["–", "Done → completed", "–", "–"];
    let fresh = ["Done → removed", "Done → removed", "–", "Done → removed"];
    let gone = ["Done → expired", "Done → removed", "–", "Done → removed"];
    assert_eq!(reap_cells(terms(CrashPolicy::Reconcile))[..], [kept, fresh].concat());
    for status in [GoneStatus::Gone, GoneStatus::NotFound] {
        assert_eq!(reap_cells(gone_terms(status))[..], [kept, gone].concat());
    }
}

/// "Mine" is token *and* fence: with either wrong, nobody may settle, renew or advance.
#[test]
fn not_mine_is_fenced_everywhere_and_returns_the_row() {
    for phase in Phase::ALL {
        let sample = sample(phase, &arrival(1));
        for (wrong_token, wrong_fence) in [(true, false), (false, true)] {
            let mut holder = sample.holder;
            // Of another life too, or it would be an older holder that proves an effect.
            if wrong_token {
                holder.token = token(9);
                holder.life = token(9);
            }
            if wrong_fence {
                holder.fence = oncegate_core::identity::Fence::from_raw(holder.fence.as_raw() + 1);
                holder.life = token(9);
            }
            let events = [
                Event::Advance { holder, point: point() },
                complete(holder, 201),
                release(holder),
                doubt(holder),
                renew(holder),
                Event::Entrust { holder },
            ];
            for event in events {
                let (_, step) = apply(sample.row.as_ref(), &event, sample.now);
                assert_eq!(step.next, Next::Keep, "{phase:?} {event:?}");
                let Decision::Fenced(row) = step.decision else {
                    panic!("{phase:?} {event:?}: {:?}", step.decision)
                };
                assert_eq!(row.map(Arc::unwrap_or_clone), sample.row, "fenced returns the row");
            }
        }
    }
}

/// Whatever happens, a row that is written has a higher version, and a grant a higher fence.
#[test]
fn every_write_raises_the_version_and_every_grant_the_fence() {
    for row in ROWS {
        for phase in Phase::ALL {
            let sample = sample(phase, &(row.first)());
            let (_, step) = apply(sample.row.as_ref(), &(row.event)(&sample), sample.now);
            let (Some(before), Next::Put(after)) = (&sample.row, &step.next) else {
                continue;
            };
            assert!(after.version > before.version, "{} at {phase:?}", row.name);
            if matches!(step.decision, Decision::Execute(_)) {
                assert!(after.fence > before.fence, "{} at {phase:?}", row.name);
                assert!(is_coherent(after), "{} at {phase:?}", row.name);
            }
        }
    }
}

/// What must be true of every row that `decide` writes.
pub(crate) fn is_coherent(row: &Record) -> bool {
    let ends = row.expires_at.is_some();
    let ends_if_deferred = ends == (row.execution == Execution::Deferred);
    match &row.state {
        State::Pending { .. } => ends && row.execution == Execution::Deferred,
        State::InProgress => {
            ends_if_deferred && row.grant.is_some() && row.attempts > 0 && row.settled_at.is_none()
        }
        State::Completed(_) => {
            let keeps_only_the_answer =
                row.evidence.is_none() && row.request.is_none() && row.recovery.is_none();
            ends && row.settled_at.is_some() && keeps_only_the_answer && !row.unaccounted
        }
        State::FailedRetryable => ends && row.settled_at.is_some() && !row.unaccounted,
        State::Unknown(_) => {
            // What is held back may wait for its first attempt.
            let held_back = row.last_error.as_ref().is_some_and(|reason| reason.code() == QUARANTINED);
            let was_granted = row.grant.is_some() || (held_back && row.attempts == 0);
            ends_if_deferred && was_granted && row.settled_at.is_none() && row.evidence.is_none()
        }
        State::Expired => ends && row.request.is_none() && row.evidence.is_none() && row.recovery.is_none(),
    }
}
