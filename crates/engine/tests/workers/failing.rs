//! The store fails at each step of the reconciler: nothing is settled wrongly, and it is settled after the store's return.

use std::time::Duration;

use oncegate_core::record::StateKind;
use oncegate_engine::{Found, Route, Worker, WorkerOptions};
use oncegate_store::faulty::Fault;

use crate::crew::{CLAIM, Script, doubted, found, node, reconcile};
use crate::world::{replayed, route, row, state};

const FAULTS: [Fault; 7] = [
    Fault::BeforeWrite,
    Fault::ConnectionLost,
    Fault::AcknowledgementLost,
    Fault::LandsLate,
    Fault::Panics,
    Fault::CrashBefore,
    Fault::CrashAfter,
];

fn with_horizon() -> Route {
    route(|policy| policy.horizon = Some(Duration::from_mins(30)))
}

/// Which write of a pass fails.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Step {
    Claim,
    Verdict,
}

/// When a late write lands.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Lands {
    BeforeTheNextPass,
    After,
}

#[tokio::test]
async fn a_verdict_is_recorded_rightly_whatever_fails_on_the_way() {
    for fault in FAULTS {
        for step in [Step::Claim, Step::Verdict] {
            for lands in [Lands::BeforeTheNextPass, Lands::After] {
                for finds in [found(201), Found::DidNotHappen] {
                    check(fault, step, lands, finds).await;
                }
            }
        }
    }
}

async fn check(fault: Fault, step: Step, lands: Lands, finds: Found) {
    let case = format!("{fault:?} of the {step:?}, landing {lands:?}, found {finds:?}");
    let (engine, store, hand) = node().await;
    let route = with_horizon();
    let id = doubted(&engine, &route, "k").await;
    hand.turn(Duration::from_hours(1));
    let probe = Script::finding(vec![finds.clone(); 2]);
    if step == Step::Verdict {
        store.queue(Fault::None);
    }
    store.queue(fault);
    let failed = engine.work(Worker::Reconciler, &WorkerOptions::default(), &probe).await;
    assert!(failed.is_err(), "{case}");
    let asked = usize::from(step == Step::Verdict);
    assert_eq!(probe.questions(), asked, "{case}: nobody is asked without a claim");
    store.revive();
    if lands == Lands::BeforeTheNextPass {
        store.land().await.unwrap();
    }
    hand.turn(CLAIM);
    reconcile(&engine, &probe).await;
    let settled = row(&engine, id).await;
    store.land().await.unwrap();
    assert_eq!(row(&engine, id).await, settled, "{case}: a late write must not land on it");
    match finds {
        Found::Happened { .. } => {
            assert_eq!(replayed(&engine, &route, "k").await.status(), 201, "{case}");
        }
        _ => assert_eq!(settled.state.kind(), StateKind::FailedRetryable, "{case}"),
    }
}

/// Neither a scan nor what is told of an unchanged row can be had: the pass fails, and the next one goes on.
#[tokio::test]
async fn a_scan_that_fails_changes_nothing() {
    let (engine, store, _) = node().await;
    let id = doubted(&engine, &with_horizon(), "k").await;
    let before = row(&engine, id).await;
    store.fail_reads(1);
    let probe = Script::finding([found(201)]);
    assert!(engine.work(Worker::Reconciler, &WorkerOptions::default(), &probe).await.is_err());
    assert_eq!((probe.questions(), row(&engine, id).await), (0, before));
    reconcile(&engine, &probe).await;
    assert_eq!(state(&engine, id).await, StateKind::Completed);
}

/// One of many fails: the others are settled all the same.
#[tokio::test]
async fn an_error_about_one_record_hinders_no_other() {
    let (engine, store, hand) = node().await;
    let route = with_horizon();
    let mut ids = Vec::new();
    for n in 0..8 {
        ids.push(doubted(&engine, &route, &format!("k-{n}")).await);
    }
    let probe = Script::finding(vec![found(201); 16]);
    // One commit of the claims, or of the verdicts, whatever is in it.
    for fault in [Fault::None, Fault::None, Fault::BeforeWrite] {
        store.queue(fault);
    }
    let _ = engine.work(Worker::Reconciler, &WorkerOptions::default(), &probe).await;
    hand.turn(CLAIM);
    reconcile(&engine, &probe).await;
    for id in ids {
        assert_eq!(state(&engine, id).await, StateKind::Completed);
    }
}
