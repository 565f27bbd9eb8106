//! Acts of people: about the version that they looked at, in the states that allow them, and always in the story.

use std::sync::Arc;

use oncegate_core::audit::Act as Told;
use oncegate_core::decide::{Arrival, Decision, Refusal};
use oncegate_core::identity::{RecordId, Version};
use oncegate_core::policy::Credentials;
use oncegate_core::record::{Execution, Reason, StateKind, StoredRequest};
use oncegate_engine::{Act, Arrived, Engine, NoProbe, Operator, Worker, WorkerOptions};
use oncegate_store::faulty::Fault;

use crate::crew::{Script, doubt_of, doubted, found, node, nodes, reconcile, story, with_status};
use crate::world::{
    HOUR, Shaky, complete, completed, done, held, id, ietf, release, replayed, request, route, row, soon,
    state,
};

fn ada() -> Operator {
    Operator { name: "ada".into(), reason: "seen in the ledger".into() }
}

const ACTS: [fn() -> Act; 4] =
    [|| Act::Happened(with_status(201)), || Act::DidNotHappen, || Act::AskAgain, || Act::Forget];

async fn operate(engine: &Engine<Shaky>, id: RecordId, version: Version, act: Act) -> Decision {
    engine.operate(id, version, act, &ada()).await.unwrap()
}

/// Where a record stands when the operator looks at it.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Stands {
    Absent,
    Pending,
    InProgress,
    Completed,
    Released,
    Unknown,
    Parked,
    Buried,
}

const ALL: [Stands; 8] = [
    Stands::Absent,
    Stands::Pending,
    Stands::InProgress,
    Stands::Completed,
    Stands::Released,
    Stands::Unknown,
    Stands::Parked,
    Stands::Buried,
];

/// Brings a record there.
async fn bring(engine: &Engine<Shaky>, stands: Stands) -> RecordId {
    let route = ietf();
    match stands {
        Stands::Absent => {}
        Stands::Pending => {
            let deferred = route_deferred();
            let request = StoredRequest {
                method: "POST".into(),
                target: "/payments".into(),
                headers: vec![],
                body: b"{}".to_vec(),
                credentials: Some(Credentials::Kept),
            };
            let arrival = Arrival { request: Some(request), ..crate::world::request(&deferred, "k") };
            assert!(matches!(engine.arrive(&deferred, arrival).await.unwrap(), Arrived::Accepted { .. }));
        }
        // It runs on, on a node that nobody hears of.
        Stands::InProgress => std::mem::forget(held(engine, &route, "k").await),
        Stands::Completed => completed(engine, &route, "k", "paid").await,
        Stands::Released => drop(done(held(engine, &route, "k").await, release()).await),
        Stands::Unknown => drop(doubted(engine, &route, "k").await),
        Stands::Parked => {
            doubted(engine, &route, "k").await;
            reconcile(engine, &NoProbe).await;
        }
        Stands::Buried => {
            completed(engine, &route, "k", "paid").await;
            let version = row(engine, id(&route, "k")).await.version;
            let _ = operate(engine, id(&route, "k"), version, Act::Forget).await;
        }
    }
    id(&route, "k")
}

fn route_deferred() -> oncegate_engine::Route {
    route(|policy| policy.execution = Execution::Deferred)
}

/// What each act does in each state, whether it is told, and where the record stands then.
#[tokio::test]
async fn each_act_in_each_state() {
    let refused = |refusal| Decision::Refused(refusal);
    let (not_settled, not_unknown) = (refused(Refusal::NotSettled), refused(Refusal::NotUnknown));
    for stands in ALL {
        let expected: [(Decision, Option<StateKind>, bool); 4] = match stands {
            Stands::Absent => [(); 4].map(|()| (Decision::Nothing, None, false)),
            Stands::Pending => {
                let stays = Some(StateKind::Pending);
                [
                    (Decision::Nothing, stays, false),
                    (Decision::Nothing, stays, false),
                    (not_unknown.clone(), stays, false),
                    (not_settled.clone(), stays, false),
                ]
            }
            Stands::InProgress => {
                let stays = Some(StateKind::InProgress);
                [
                    // As evidence.
                    (Decision::Done, stays, true),
                    (Decision::Nothing, stays, false),
                    (not_unknown.clone(), stays, false),
                    (not_settled.clone(), stays, false),
                ]
            }
            Stands::Completed => {
                let stays = Some(StateKind::Completed);
                [
                    (Decision::Nothing, stays, true),
                    (Decision::Nothing, stays, true),
                    (not_unknown.clone(), stays, false),
                    (Decision::Done, Some(StateKind::Expired), true),
                ]
            }
            Stands::Released => {
                let stays = Some(StateKind::FailedRetryable);
                [
                    (Decision::Done, Some(StateKind::Completed), true),
                    (Decision::Nothing, stays, false),
                    (not_unknown.clone(), stays, false),
                    (Decision::Done, Some(StateKind::Expired), true),
                ]
            }
            Stands::Unknown | Stands::Parked => {
                let stays = Some(StateKind::Unknown);
                [
                    (Decision::Done, Some(StateKind::Completed), true),
                    (Decision::Done, Some(StateKind::FailedRetryable), true),
                    (Decision::Done, stays, true),
                    (not_settled.clone(), stays, false),
                ]
            }
            Stands::Buried => {
                let stays = Some(StateKind::Expired);
                [
                    (Decision::Nothing, stays, true),
                    (Decision::Nothing, stays, false),
                    (not_unknown.clone(), stays, false),
                    (Decision::Nothing, stays, false),
                ]
            }
        };
        for (act, (decision, becomes, is_told)) in ACTS.iter().zip(expected) {
            let (engine, _, hand) = node().await;
            let id = bring(&engine, stands).await;
            hand.turn(std::time::Duration::from_secs(1));
            let before = story(&engine, id).await.len();
            let version = engine.read(id).await.unwrap().map_or(Version::from_raw(0), |row| row.version);
            let act = act();
            let case = format!("{act:?} of {stands:?}");
            assert_eq!(operate(&engine, id, version, act).await, decision, "{case}");
            let after = engine.read(id).await.unwrap().map(|row| row.state.kind());
            assert_eq!(after, becomes, "{case}");
            let told = story(&engine, id).await.split_off(before);
            assert_eq!(told.len(), usize::from(is_told), "{case}: {told:?}");
            for entry in told {
                assert_eq!(entry.source.as_deref(), Some("operator ada"), "{case}");
                assert_eq!(entry.reason, Some(Reason::new("operator", "seen in the ledger")), "{case}");
            }
        }
    }
}

/// Whoever decided by what is no longer so is told that it has changed, whatever the act and the state.
#[tokio::test]
async fn an_act_over_another_version_changes_nothing() {
    for stands in ALL.into_iter().filter(|stands| *stands != Stands::Absent) {
        for act in ACTS {
            let (engine, _, _) = node().await;
            let id = bring(&engine, stands).await;
            let (before, told) = (row(&engine, id).await, story(&engine, id).await);
            for off in [-1, 1] {
                let version = Version::from_raw(before.version.as_raw() + off);
                let decision = operate(&engine, id, version, act()).await;
                assert_eq!(decision, Decision::Refused(Refusal::Changed), "{:?} of {stands:?}", act());
            }
            assert_eq!(row(&engine, id).await, before);
            assert_eq!(story(&engine, id).await, told);
        }
    }
}

/// The record changes after the operator's act was decided, and before it is written.
#[tokio::test]
async fn an_act_that_is_overtaken_changes_nothing() {
    for act in [ACTS[0], ACTS[1], ACTS[2]] {
        let (a, b, store, _) = nodes().await;
        let route = ietf();
        let id = doubted(&a, &route, "k").await;
        let version = row(&a, id).await.version;
        store.queue(Fault::Delayed);
        let acting = tokio::spawn({
            let a = a.clone();
            async move { operate(&a, id, version, act()).await }
        });
        soon(store.until_delayed(1)).await;
        reconcile(&b, &Script::finding([found(402)])).await;
        let settled = row(&b, id).await;
        store.let_go();
        assert_eq!(soon(acting).await.unwrap(), Decision::Refused(Refusal::Changed));
        assert_eq!(row(&a, id).await, settled);
        let told: Vec<_> = story(&a, id).await.iter().map(|entry| entry.act).collect();
        assert_eq!(told, [Told::Doubted, Told::Happened], "and nothing of the operator's");
    }
    // The same of an answer that is to be forgotten.
    let (a, b, store, _) = nodes().await;
    let route = ietf();
    completed(&a, &route, "k", "paid").await;
    let id = id(&route, "k");
    let version = row(&a, id).await.version;
    store.queue(Fault::Delayed);
    let acting = tokio::spawn({
        let a = a.clone();
        async move { operate(&a, id, version, Act::Forget).await }
    });
    soon(store.until_delayed(1)).await;
    assert_eq!(operate(&b, id, version, Act::Forget).await, Decision::Done);
    store.let_go();
    assert_eq!(soon(acting).await.unwrap(), Decision::Refused(Refusal::Changed));
    assert_eq!(story(&a, id).await.len(), 1);
}

/// What happened is replayed from then on, and what did not runs again.
#[tokio::test]
async fn a_ruling_is_what_clients_are_told() {
    let (engine, _, _) = node().await;
    let route = ietf();
    for (key, act) in [("happened", ACTS[0]), ("did-not", ACTS[1])] {
        let id = doubted(&engine, &route, key).await;
        let version = row(&engine, id).await.version;
        assert_eq!(operate(&engine, id, version, act()).await, Decision::Done);
    }
    assert_eq!(replayed(&engine, &route, "happened").await.status(), 201);
    done(held(&engine, &route, "did-not").await, complete("paid")).await;
}

/// A forgotten answer is not replayed, also not by the node that had it in its cache.
#[tokio::test]
async fn a_forgotten_answer_leaves_the_cache() {
    let (engine, _, _) = node().await;
    let route = ietf();
    completed(&engine, &route, "k", "paid").await;
    replayed(&engine, &route, "k").await;
    let version = row(&engine, id(&route, "k")).await.version;
    let _ = operate(&engine, id(&route, "k"), version, Act::Forget).await;
    let arrived = engine.arrive(&route, request(&route, "k")).await.unwrap();
    assert!(matches!(arrived, Arrived::Gone { .. }), "{arrived:?}");
}

/// A dead letter is retried: the reconciler that pauses for hours asks at once.
#[tokio::test]
async fn asking_again_wakes_the_reconciler() {
    let (engine, _, _) = node().await;
    let id = bring(&engine, Stands::Parked).await;
    assert!(doubt_of(&engine, id).await.parked);
    let probe = Arc::new(Script::finding([found(201)]));
    let options = WorkerOptions { reconcile_every: HOUR, ..WorkerOptions::default() };
    let mut workers = engine.start_workers(&options, &(Arc::clone(&probe) as _));
    soon(workers.until_passes(Worker::Reconciler, 1)).await;
    // A wake that was left from before may end the first pause.
    assert_eq!(probe.questions(), 0, "parked");
    let version = row(&engine, id).await.version;
    assert_eq!(operate(&engine, id, version, Act::AskAgain).await, Decision::Done);
    soon(probe.until_asked(1)).await;
    soon(async {
        while state(&engine, id).await != StateKind::Completed {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let told: Vec<_> = story(&engine, id).await.iter().map(|entry| entry.act).collect();
    assert_eq!(told, [Told::Doubted, Told::NotKnown, Told::AskedAgain, Told::Happened]);
}

/// The store loses the acknowledgement: the operator is told that it is not known, looks again, and sees what became of it.
#[tokio::test]
async fn an_act_in_doubt_is_an_error_and_is_told_once() {
    let (engine, store, _) = node().await;
    let id = doubted(&engine, &ietf(), "k").await;
    let version = row(&engine, id).await.version;
    store.queue(Fault::AcknowledgementLost);
    let acted = engine.operate(id, version, Act::Happened(with_status(201)), &ada()).await;
    assert!(acted.is_err(), "{acted:?}");
    assert_eq!(state(&engine, id).await, StateKind::Completed);
    assert_eq!(story(&engine, id).await.len(), 2);
    let again = operate(&engine, id, version, Act::Happened(with_status(201))).await;
    assert_eq!(again, Decision::Refused(Refusal::Changed));
}
