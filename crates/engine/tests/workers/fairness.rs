//! A provider that hangs holds up the questions to it, and no others.

use std::sync::Arc;
use std::time::Duration;

use oncegate_core::policy::Profile;
use oncegate_core::record::{Record, StateKind};
use oncegate_core::scope::Operation;
use oncegate_engine::{Asking, Found, Patience, Probe, Route, Worker, WorkerOptions};
use tokio::sync::watch;

use crate::crew::{TIMEOUT, doubted, found, node, reconcile};
use crate::world::{HOUR, soon, state};

const SECOND: Duration = Duration::from_secs(1);
const HANGS: &str = "POST /slow";
const ANSWERS: &str = "POST /quick";
/// More than one pass took of all routes together.
const MANY: usize = 100;

/// For each route.
const PLACES: usize = 8;

fn route(pattern: &str) -> Route {
    Route::of_profile(Profile::Ietf, Operation::new(pattern).unwrap())
}

/// Whom it asks about [`HANGS`] never answers, or not before it is let go; the others do at once.
struct TwoProviders {
    is_let_go: watch::Sender<bool>,
    asked: watch::Sender<[usize; 2]>,
}

impl TwoProviders {
    fn new() -> Self {
        Self { is_let_go: watch::Sender::new(false), asked: watch::Sender::default() }
    }

    /// How often the one that hangs was asked, and the other.
    fn questions(&self) -> [usize; 2] {
        *self.asked.borrow()
    }

    /// Until the one that hangs was asked so often, and the other.
    async fn until_asked(&self, times: [usize; 2]) {
        let is_asked = |asked: &[usize; 2]| asked[0] >= times[0] && asked[1] >= times[1];
        let _ = self.asked.subscribe().wait_for(is_asked).await;
    }
}

impl Probe for TwoProviders {
    fn ask<'a>(&'a self, record: &'a Record) -> Asking<'a> {
        let hangs = record.operation.as_str() == HANGS;
        self.asked.send_modify(|asked| asked[usize::from(!hangs)] += 1);
        Box::pin(async move {
            if hangs {
                let _ = self.is_let_go.subscribe().wait_for(|is_let_go| *is_let_go).await;
                return Found::NotKnown("it was let go".into());
            }
            found(201)
        })
    }

    fn patience(&self, _record: &Record) -> Patience {
        Patience { timeout: TIMEOUT, ..Patience::default() }
    }
}

/// At most 32 rows a pass, eight places for all routes, and each pass ended with its slowest question: while one provider hung, nobody else was asked.
#[tokio::test]
async fn a_provider_that_hangs_holds_up_no_other() {
    let (engine, _, hand) = node().await;
    let (slow, quick) = (route(HANGS), route(ANSWERS));
    for n in 0..MANY {
        doubted(&engine, &slow, &format!("slow-{n}")).await;
    }
    hand.turn(SECOND);
    let mut ids = Vec::new();
    for n in 0..MANY {
        ids.push(doubted(&engine, &quick, &format!("quick-{n}")).await);
    }
    let options = WorkerOptions { reconcile_every: Duration::from_millis(1), ..WorkerOptions::default() };
    let probe = Arc::new(TwoProviders::new());
    let _workers = engine.start_workers(&options, &(Arc::clone(&probe) as _));
    soon(probe.until_asked([PLACES, MANY])).await;
    // Those that come while it hangs are asked about as well.
    let late = doubted(&engine, &quick, "late").await;
    soon(probe.until_asked([PLACES, MANY + 1])).await;
    assert_eq!(probe.questions(), [PLACES, MANY + 1], "it has its places, and no more");
    for id in ids.into_iter().chain([late]) {
        soon(async {
            while state(&engine, id).await != StateKind::Completed {
                tokio::task::yield_now().await;
            }
        })
        .await;
    }
    // And when it answers again, all the others have their turn.
    probe.is_let_go.send_replace(true);
    soon(probe.until_asked([MANY, 0])).await;
}

/// One route's provider hung, and 5,000 of its outcomes were due before all others. A pass looked at 480 rows, so a record of
/// another route was asked about after eleven passes, and after a hundred where there were ten times as many. A route whose line is
/// full is passed over now: one pass is enough, however long the backlog is.
#[tokio::test]
async fn a_long_backlog_of_one_route_holds_up_no_other() {
    for backlog in [500, 5_000] {
        let (engine, _, hand) = node().await;
        for n in 0..backlog {
            doubted(&engine, &route(HANGS), &format!("slow-{n}")).await;
        }
        hand.turn(SECOND);
        let id = doubted(&engine, &route(ANSWERS), "quick").await;
        let probe = TwoProviders::new();
        let mut pass = Box::pin(reconcile(&engine, &probe));
        tokio::select! {
            pass = &mut pass => panic!("{pass:?}"),
            () = soon(probe.until_asked([PLACES, 1])) => (),
        }
        probe.is_let_go.send_replace(true);
        soon(pass).await;
        assert_eq!(state(&engine, id).await, StateKind::Completed, "behind {backlog}");
    }
}

/// Redis reads the rows that it leaves out, and stopped after 65,536 of them. Where one hanging route
/// had more, each pass read the same rows again, and no other route was asked about. A pass goes on
/// where the scan before it stopped.
#[tokio::test]
async fn a_backlog_that_one_scan_does_not_get_behind_holds_up_no_other() {
    let (engine, store, hand) = node().await;
    store.skip_at_most(100);
    for _ in 0..50 {
        for n in 0..20 {
            doubted(&engine, &route(HANGS), &format!("slow-{}-{n}", hand.now().as_micros())).await;
        }
        hand.turn(SECOND);
    }
    let options = WorkerOptions { reconcile_every: Duration::from_millis(1), ..WorkerOptions::default() };
    let probe = Arc::new(TwoProviders::new());
    let workers = engine.start_workers(&options, &(Arc::clone(&probe) as _));
    soon(probe.until_asked([PLACES, 0])).await;
    doubted(&engine, &route(ANSWERS), "quick").await;
    soon(probe.until_asked([PLACES, 1])).await;
    drop(workers);
}

/// The same of the loop, whose lines stay full from one pass to the next: it passes again only when it is told of a new doubt.
#[tokio::test]
async fn a_long_backlog_of_one_route_holds_up_no_other_in_the_loop() {
    let (engine, _, hand) = node().await;
    for n in 0..5_000 {
        doubted(&engine, &route(HANGS), &format!("slow-{n}")).await;
    }
    hand.turn(SECOND);
    let options = WorkerOptions { reconcile_every: HOUR, ..WorkerOptions::default() };
    let probe = Arc::new(TwoProviders::new());
    let mut workers = engine.start_workers(&options, &(Arc::clone(&probe) as _));
    workers.until_passes(Worker::Reconciler, 2).await;
    soon(probe.until_asked([PLACES, 0])).await;
    doubted(&engine, &route(ANSWERS), "quick").await;
    soon(probe.until_asked([PLACES, 1])).await;
}

/// The same in a pass that somebody else's scheduler runs: it ends with its last question, but each operation has its part of it.
#[tokio::test]
async fn a_single_pass_asks_for_every_operation() {
    let (engine, _, hand) = node().await;
    for n in 0..MANY {
        doubted(&engine, &route(HANGS), &format!("slow-{n}")).await;
    }
    hand.turn(SECOND);
    let id = doubted(&engine, &route(ANSWERS), "quick").await;
    let probe = TwoProviders::new();
    let mut pass = Box::pin(reconcile(&engine, &probe));
    tokio::select! {
        pass = &mut pass => panic!("{pass:?}"),
        () = soon(probe.until_asked([PLACES, 1])) => (),
    }
    assert_eq!(probe.questions(), [PLACES, 1]);
    probe.is_let_go.send_replace(true);
    assert_eq!(soon(pass).await.changed, 4 * PLACES + 1);
    assert_eq!(state(&engine, id).await, StateKind::Completed);
}
