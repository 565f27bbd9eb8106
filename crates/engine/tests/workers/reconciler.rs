//! An outcome that nobody knows is asked about until it is known, or put before an operator.

use std::time::Duration;

use oncegate_core::audit::Act;
use oncegate_core::decide::Notice;
use oncegate_core::policy::{AfterDoubt, WhileInProgress};
use oncegate_core::record::StateKind;
use oncegate_engine::{Arrived, Found, NoProbe, Patience, Route, Worker, WorkerOptions};

use crate::crew::{
    CLAIM, Reply, Script, TIMEOUT, acts, doubt_of, doubted, found, node, nodes, not_known, reconcile, story,
};
use crate::world::{
    HOUR, complete, done, held, id, ietf, lenient_but, must_wait, replay, replayed, request, route, row,
    soon, state,
};

const HORIZON: Duration = Duration::from_mins(30);
const SECOND: Duration = Duration::from_secs(1);

fn with_horizon() -> Route {
    route(|policy| policy.horizon = Some(HORIZON))
}

#[tokio::test]
async fn what_happened_is_stored_and_replayed() {
    let (engine, _, _) = node().await;
    let route = ietf();
    let id = doubted(&engine, &route, "k").await;
    let probe = Script::finding([found(201)]);
    assert_eq!(reconcile(&engine, &probe).await.changed, 1);
    assert_eq!(replayed(&engine, &route, "k").await.status(), 201);
    assert_eq!(row(&engine, id).await.provider_reference.as_deref(), Some("ch_1"));
    let story = story(&engine, id).await;
    let told: Vec<_> = story.iter().map(|entry| (entry.act, entry.source.as_deref())).collect();
    assert_eq!(told, [(Act::Doubted, None), (Act::Happened, Some("probe"))]);
    assert_eq!(reconcile(&engine, &probe).await.seen, 0, "it is over");
}

/// The probe is shown the row as it is claimed: its life, its attempt.
#[tokio::test]
async fn the_probe_is_shown_the_life_and_the_attempt() {
    let (engine, _, _) = node().await;
    let id = doubted(&engine, &ietf(), "k").await;
    let before = row(&engine, id).await;
    let probe = Script::finding([found(201)]);
    reconcile(&engine, &probe).await;
    let shown = &probe.rows()[0];
    assert_eq!((shown.id, shown.life, shown.fence), (before.id, before.life, before.fence));
    assert!(shown.version > before.version, "claimed");
}

/// A payment object that exists but was declined is *happened*: its failure is stored and replayed, and nothing runs again.
#[tokio::test]
async fn what_was_declined_happened() {
    let (engine, _, _) = node().await;
    let route = with_horizon();
    doubted(&engine, &route, "k").await;
    reconcile(&engine, &Script::finding([found(402)])).await;
    assert_eq!(replayed(&engine, &route, "k").await.status(), 402);
}

/// A duplicate that waits for the verdict gets it as soon as it is there, and not when it would have looked by itself.
#[tokio::test]
async fn duplicates_that_wait_are_woken() {
    let (engine, store, _) = node().await;
    let route = lenient_but(|policy| {
        policy.after_doubt = AfterDoubt::WaitThenReject;
        policy.in_progress = WhileInProgress::Wait;
        policy.wait_limit = HOUR;
    });
    let options = oncegate_engine::Options { wait_poll: HOUR, ..crate::crew::named("patient") };
    let patient = crate::world::start(store, options).await;
    doubted(&engine, &route, "k").await;
    let mut waiting = Box::pin(patient.arrive_or_wait(&route, request(&route, "k")));
    // Until its look has come back.
    for _ in 0..2 {
        must_wait(&mut waiting).await;
        drop(patient.arrive(&route, request(&route, "k")).await.unwrap());
    }
    must_wait(&mut waiting).await;
    reconcile(&patient, &Script::finding([found(201)])).await;
    assert_eq!(replay(soon(waiting).await.unwrap()).status(), 201);
}

/// Attack 1: "not found" is not believed as long as the request may still arrive. It is asked again and again, and not given up, because
/// what is late may be found; and when that is over, it is believed.
#[tokio::test]
async fn not_found_is_believed_after_the_horizon_only() {
    let (engine, _, hand) = node().await;
    let route = with_horizon();
    let id = doubted(&engine, &route, "k").await;
    let ended = hand.now();
    let lease_end = engine.read(id).await.unwrap().unwrap().grant.unwrap().lease_until;
    let proves = lease_end.plus(HORIZON).plus(SECOND);
    let mut questions = 0;
    while hand.now() < proves {
        questions += 1;
        reconcile(&engine, &Script::finding([Found::DidNotHappen])).await;
        assert_eq!(state(&engine, id).await, StateKind::Unknown, "question {questions}");
        let last = story(&engine, id).await.pop().unwrap();
        assert_eq!((last.act, &last.notices[..]), (Act::DidNotHappen, &[Notice::NegativeDropped][..]));
        let doubt = doubt_of(&engine, id).await;
        assert!(
            !doubt.parked && doubt.reconcile_after <= proves,
            "the question that proves it is asked in time"
        );
        hand.turn(doubt.reconcile_after.since(hand.now()).max(Duration::from_millis(1)));
    }
    assert!(questions > 1 && hand.now() >= ended);
    reconcile(&engine, &Script::finding([Found::DidNotHappen])).await;
    assert_eq!(state(&engine, id).await, StateKind::FailedRetryable);
    done(held(&engine, &route, "k").await, complete("paid")).await;
}

/// What was not found before the horizon is explained by it, and counted towards parking all the same: then the next question that nobody
/// answered parked the record, long before the horizon. Somebody who is down so many times in a row still parks it.
#[tokio::test]
async fn nothing_is_parked_for_questions_that_the_horizon_explains() {
    let (engine, _, hand) = node().await;
    let id = doubted(&engine, &with_horizon(), "k").await;
    let ask = async |finds: Found| {
        reconcile(&engine, &Script::finding([finds]).parking_after(3)).await;
        let doubt = doubt_of(&engine, id).await;
        hand.turn(doubt.reconcile_after.since(hand.now()).max(Duration::from_millis(1)));
        (doubt.tries, doubt.parked)
    };
    for _ in 0..4 {
        assert_eq!(ask(Found::DidNotHappen).await, (0, false));
    }
    assert_eq!(ask(not_known()).await, (1, false));
    assert_eq!(ask(not_known()).await, (2, false));
    assert_eq!(ask(Found::DidNotHappen).await, (0, false), "somebody has answered");
    for (tries, is_parked) in [(1, false), (2, false), (3, true)] {
        assert_eq!(ask(not_known()).await, (tries, is_parked), "down, and before the horizon");
    }
    assert!(hand.now() < row(&engine, id).await.grant.unwrap().lease_until.plus(HORIZON));
}

/// A question that was asked before the horizon and answered after it proves nothing: the request may have arrived in between.
#[tokio::test]
async fn what_counts_is_when_it_was_asked() {
    let (engine, _, hand) = node().await;
    let id = doubted(&engine, &with_horizon(), "k").await;
    let probe = Script::new([Reply::Waits(Found::DidNotHappen)]);
    let mut asking = Box::pin(reconcile(&engine, &probe));
    tokio::select! {
        asked = &mut asking => panic!("{asked:?}"),
        () = probe.until_asked(1) => (),
    }
    hand.turn(2 * HORIZON);
    probe.let_go();
    soon(asking).await;
    assert_eq!(state(&engine, id).await, StateKind::Unknown);
    // The next one is due at once, and proves it.
    hand.turn(HORIZON);
    reconcile(&engine, &Script::finding([Found::DidNotHappen])).await;
    assert_eq!(state(&engine, id).await, StateKind::FailedRetryable);
}

/// The horizon is counted from the lease's end also where nobody has said that the attempt is over.
#[tokio::test]
async fn the_horizon_of_a_lapsed_lease_is_counted_from_its_end() {
    let (engine, _, hand) = node().await;
    let route = with_horizon();
    let mut holder = held(&engine, &route, "k").await;
    holder.begin().unwrap();
    hand.turn(route.policy().lease);
    assert_eq!(crate::crew::pass(&engine, Worker::Sweeper).await.changed, 1);
    hand.turn(HORIZON);
    hand.turn_back(SECOND);
    reconcile(&engine, &Script::finding([Found::DidNotHappen])).await;
    assert_eq!(state(&engine, id(&route, "k")).await, StateKind::Unknown);
    hand.turn(5 * SECOND);
    reconcile(&engine, &Script::finding([Found::DidNotHappen])).await;
    assert_eq!(state(&engine, id(&route, "k")).await, StateKind::FailedRetryable);
    drop(holder);
    engine.quiet().await;
}

/// Where no horizon is declared, "not found" never means that it did not happen.
#[tokio::test]
async fn without_a_horizon_not_found_is_never_believed_and_parks() {
    let (engine, _, hand) = node().await;
    let route = ietf();
    assert_eq!(route.policy().horizon, None);
    let id = doubted(&engine, &route, "k").await;
    let probe = Script::finding(vec![Found::DidNotHappen; 5]).parking_after(3);
    for _ in 0..5 {
        hand.turn(1_000 * HOUR);
        reconcile(&engine, &probe).await;
    }
    assert!(doubt_of(&engine, id).await.parked);
    assert_eq!(probe.questions(), 3, "of a parked record nobody is asked");
    let arrived = engine.arrive(&route, request(&route, "k")).await.unwrap();
    assert!(matches!(arrived, Arrived::Unsettled { parked: true, .. }), "{arrived:?}");
}

/// Each pause is anywhere between nothing and twice the one before, up to the longest; after so many questions it is parked.
#[tokio::test]
async fn pauses_grow_with_jitter_until_it_is_parked() {
    const KEYS: usize = 40;
    let (engine, _, hand) = node().await;
    let route = ietf();
    let mut ids = Vec::new();
    for n in 0..KEYS {
        ids.push(doubted(&engine, &route, &format!("k-{n}")).await);
    }
    let patience =
        Patience { timeout: TIMEOUT, backoff: 10 * SECOND, backoff_max: 60 * SECOND, park_after: 5 };
    let probe = Script::finding(vec![not_known(); 5 * KEYS]).with(patience);
    let options = WorkerOptions { probes_at_once: KEYS, ..WorkerOptions::default() };
    for (tries, longest) in [(1, 10), (2, 20), (3, 40), (4, 60)] {
        let longest = longest * SECOND;
        assert_eq!(engine.work(Worker::Reconciler, &options, &probe).await.unwrap().changed, KEYS);
        let mut pauses = Vec::new();
        for id in &ids {
            let doubt = doubt_of(&engine, *id).await;
            assert_eq!((doubt.tries, doubt.parked), (tries, false));
            pauses.push(doubt.reconcile_after.since(hand.now()));
        }
        pauses.sort();
        assert!(pauses.last() <= Some(&longest), "{pauses:?}");
        // One in a billion that forty of them fall into one half.
        assert!(pauses[0] < longest / 2 && pauses[KEYS - 1] > longest / 2, "{pauses:?}");
        hand.turn(longest);
    }
    engine.work(Worker::Reconciler, &options, &probe).await.unwrap();
    for id in ids {
        assert!(doubt_of(&engine, id).await.parked);
        let last = story(&engine, id).await.pop().unwrap();
        assert_eq!((last.act, &last.notices[..]), (Act::NotKnown, &[Notice::Parked][..]));
        assert_eq!(last.reason.unwrap().detail(), "the provider is down");
    }
}

#[tokio::test]
async fn where_nobody_can_be_asked_it_is_parked_at_once() {
    let (engine, _, _) = node().await;
    let id = doubted(&engine, &ietf(), "k").await;
    assert_eq!(reconcile(&engine, &NoProbe).await.changed, 1);
    assert!(doubt_of(&engine, id).await.parked);
    let last = story(&engine, id).await.pop().unwrap();
    assert_eq!(last.reason.unwrap().code(), "nobody_to_ask");
}

/// It counts as not known, and is told as such.
#[tokio::test]
async fn a_probe_that_hangs_is_cut_off() {
    let (engine, _, hand) = node().await;
    let id = doubted(&engine, &ietf(), "k").await;
    let patience = Patience { timeout: Duration::from_millis(10), ..Patience::default() };
    let probe = Script::new([Reply::Hangs, Reply::Finds(found(201))]).with(patience);
    soon(reconcile(&engine, &probe)).await;
    assert_eq!(doubt_of(&engine, id).await.tries, 1);
    assert_eq!(story(&engine, id).await.pop().unwrap().reason.unwrap().detail(), "no answer in time");
    hand.turn(HOUR);
    soon(reconcile(&engine, &probe)).await;
    assert_eq!(state(&engine, id).await, StateKind::Completed);
}

/// A probe that panics about one record has found nothing out about it; the others are asked about all the same, and it is parked in the
/// end. Before, one such record took all questions along that were under way with it, again and again, and was never seen by anybody.
#[tokio::test]
async fn a_probe_that_panics_hinders_nobody_else() {
    let (engine, _, hand) = node().await;
    let route = ietf();
    let poisoned = doubted(&engine, &route, "poisoned").await;
    hand.turn(SECOND);
    let other = doubted(&engine, &route, "other").await;
    let probe = Script::new([Reply::Panics, Reply::Finds(found(201)), Reply::Panics]).parking_after(2);
    reconcile(&engine, &probe).await;
    assert_eq!(state(&engine, other).await, StateKind::Completed);
    assert_eq!(doubt_of(&engine, poisoned).await.tries, 1);
    hand.turn(HOUR);
    reconcile(&engine, &probe).await;
    assert!(doubt_of(&engine, poisoned).await.parked);
}

/// The node dies after it has asked, before it has told. Until its claim ends nobody asks; then another node does, and settles it.
#[tokio::test]
async fn a_node_that_dies_between_question_and_verdict_delays_it_until_its_claim_ends() {
    let (a, b, _, hand) = nodes().await;
    let route = with_horizon();
    let id = doubted(&a, &route, "k").await;
    let dying = Script::new([Reply::Waits(found(201))]);
    let mut asking = Box::pin(reconcile(&a, &dying));
    tokio::select! {
        asked = &mut asking => panic!("{asked:?}"),
        () = dying.until_asked(1) => (),
    }
    drop(asking);
    let probe = Script::finding([found(201)]);
    assert_eq!(reconcile(&b, &probe).await.seen, 0, "claimed");
    hand.turn(CLAIM);
    assert_eq!(reconcile(&b, &probe).await.changed, 1);
    assert_eq!(replayed(&b, &route, "k").await.status(), 201);
    assert_eq!(acts(&b, id).await, [Act::Doubted, Act::Happened]);
}

/// Both find it due; one claims and asks.
#[tokio::test]
async fn two_reconcilers_ask_one_question() {
    let (a, b, _, _) = nodes().await;
    for n in 0..20 {
        doubted(&a, &ietf(), &format!("k-{n}")).await;
    }
    let probe = Script::finding(vec![found(201); 40]);
    let (first, second) = tokio::join!(reconcile(&a, &probe), reconcile(&b, &probe));
    assert_eq!(first.changed + second.changed, 20);
    assert_eq!(probe.questions(), 20);
}

/// A doubt that a request leaves is asked about at once, and not at the next interval; so is a lapsed lease that a request finds.
#[tokio::test]
async fn a_doubt_that_a_request_leaves_wakes_the_reconciler() {
    let (engine, _, hand) = node().await;
    let route = ietf();
    let probe = std::sync::Arc::new(Script::finding([found(201), found(201)]));
    let every =
        WorkerOptions { reconcile_every: 10 * HOUR, sweep_every: 10 * HOUR, ..WorkerOptions::default() };
    let mut workers = engine.start_workers(&every, &(std::sync::Arc::clone(&probe) as _));
    soon(workers.until_passes(Worker::Reconciler, 1)).await;
    soon(workers.until_passes(Worker::Sweeper, 1)).await;
    doubted(&engine, &route, "doubted").await;
    soon(probe.until_asked(1)).await;
    let holder = held(&engine, &route, "lapsed").await;
    hand.turn(2 * route.policy().lease);
    let arrived = engine.arrive(&route, request(&route, "lapsed")).await.unwrap();
    assert!(matches!(arrived, Arrived::Unsettled { .. }), "{arrived:?}");
    soon(probe.until_asked(2)).await;
    drop(holder);
}
