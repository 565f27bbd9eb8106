//! The row changes while somebody is asked about it: what became of it meanwhile stands.

use std::sync::Arc;
use std::time::Duration;

use oncegate_core::audit::Act;
use oncegate_core::decide::{Decision, Notice};
use oncegate_core::record::StateKind;
use oncegate_engine::{Engine, Found, Heard, NoProbe, Pass, Route, Says, Settled, Worker};
use oncegate_store::faulty::Fault;

use crate::crew::{
    Reply, Script, acts, doubted, found, node, nodes, not_known, pass, reconcile, story, with_status,
};
use crate::messages::message;
use crate::world::{
    HOUR, Shaky, answer, complete, did_not_happen, done, held, id, replayed, route, row, soon, state,
};

const HORIZON: Duration = Duration::from_mins(30);

fn with_horizon() -> Route {
    route(|policy| policy.horizon = Some(HORIZON))
}

/// Asks, and has `meanwhile` happen between question and answer.
async fn asked_while<T>(
    engine: &Engine<Shaky>,
    finds: Found,
    meanwhile: impl Future<Output = T>,
) -> (Pass, T) {
    let probe = Script::new([Reply::Waits(finds)]);
    let mut asking = Box::pin(reconcile(engine, &probe));
    tokio::select! {
        asked = &mut asking => panic!("{asked:?}"),
        () = probe.until_asked(1) => (),
    }
    let became = meanwhile.await;
    probe.let_go();
    (soon(asking).await, became)
}

/// Swept, asked about past the horizon; and the late holder completes under the probe's hands. "Not found" comes too late, and is told.
#[tokio::test]
async fn a_late_holder_wins_over_a_slow_not_found() {
    let (engine, _, hand) = node().await;
    let route = with_horizon();
    let mut late = held(&engine, &route, "k").await;
    late.begin().unwrap();
    hand.turn(route.policy().lease);
    pass(&engine, Worker::Sweeper).await;
    hand.turn(2 * HORIZON);
    let (asked, _) = asked_while(&engine, Found::DidNotHappen, done(late, complete("paid"))).await;
    assert_eq!(asked.changed, 0);
    assert_eq!(*replayed(&engine, &route, "k").await, answer("paid"));
    let last = story(&engine, id(&route, "k")).await.pop().unwrap();
    assert_eq!((last.act, &last.notices[..]), (Act::DidNotHappen, &[Notice::Contradiction][..]));
}

/// The same, and the probe has found it too, as another answer: the holder's bytes stand, and what contradicts them is told.
#[tokio::test]
async fn a_late_holder_wins_over_what_a_slow_probe_found() {
    for (status, told) in [(200, None), (402, Some((Act::Happened, vec![Notice::Contradiction])))] {
        let (engine, _, hand) = node().await;
        let route = with_horizon();
        let mut late = held(&engine, &route, "k").await;
        late.begin().unwrap();
        hand.turn(route.policy().lease);
        pass(&engine, Worker::Sweeper).await;
        asked_while(&engine, found(status), done(late, complete("paid"))).await;
        assert_eq!(*replayed(&engine, &route, "k").await, answer("paid"));
        let story = story(&engine, id(&route, "k")).await;
        let acts: Vec<_> = story.iter().map(|entry| entry.act).collect();
        assert_eq!(acts[..2], [Act::Lapsed, Act::Completed]);
        let after: Vec<_> = story[2..].iter().map(|entry| (entry.act, entry.notices.clone())).collect();
        assert_eq!(after, Vec::from_iter(told), "{status}");
    }
}

/// Attack 12: the probe settles first, and the late holder answers from the row.
#[tokio::test]
async fn a_late_holder_answers_from_what_the_probe_has_settled() {
    let (engine, _, hand) = node().await;
    let route = with_horizon();
    let mut late = held(&engine, &route, "k").await;
    late.begin().unwrap();
    hand.turn(route.policy().lease);
    pass(&engine, Worker::Sweeper).await;
    reconcile(&engine, &Script::finding([found(200)])).await;
    let settled = late.settle(complete("its own bytes")).await;
    let Settled::Fenced(Some(shown)) = settled else { panic!("{settled:?}") };
    assert_eq!(shown.state, row(&engine, id(&route, "k")).await.state);
    assert_eq!(replayed(&engine, &route, "k").await.status(), 200);
}

/// Attack 4: a slow "not found" about attempt 1 hits attempt 2, which is in doubt too. It is dropped, and told.
#[tokio::test]
async fn a_slow_not_found_about_an_older_attempt_is_dropped() {
    let (a, b, _, hand) = nodes().await;
    let route = with_horizon();
    let id = doubted(&a, &route, "k").await;
    hand.turn(2 * HORIZON);
    let meanwhile = async {
        // Another node, after the claim's end: it did not happen; and the retry falls into doubt.
        hand.turn(HOUR);
        reconcile(&b, &Script::finding([Found::DidNotHappen])).await;
        assert_eq!(state(&b, id).await, StateKind::FailedRetryable);
        doubted(&b, &route, "k").await;
        row(&b, id).await
    };
    let (asked, second) = asked_while(&a, Found::DidNotHappen, meanwhile).await;
    assert_eq!(asked.changed, 0);
    assert_eq!(row(&a, id).await, second, "untouched");
    let last = story(&a, id).await.pop().unwrap();
    assert_eq!((last.act, &last.notices[..]), (Act::DidNotHappen, &[Notice::NegativeDropped][..]));
}

/// Attack 4, with a refusal: the probe has found that attempt 1 was declined, and is slow to say so. Meanwhile an operator frees the key, and attempt 2
/// charges and falls into doubt. The refusal completed it: its client was told 402, and charged.
#[tokio::test]
async fn a_slow_refusal_of_an_older_attempt_is_dropped() {
    for status in [402, 201] {
        let (engine, _, _) = node().await;
        let route = with_horizon();
        let id = doubted(&engine, &route, "k").await;
        let meanwhile = async {
            assert_eq!(did_not_happen(&engine, id).await, Decision::Done);
            assert_eq!(state(&engine, id).await, StateKind::FailedRetryable);
            doubted(&engine, &route, "k").await;
            row(&engine, id).await
        };
        let (asked, second) = asked_while(&engine, found(status), meanwhile).await;
        let last = story(&engine, id).await.pop().unwrap();
        if status == 402 {
            assert_eq!(asked.changed, 0);
            assert_eq!(row(&engine, id).await, second, "untouched");
            assert_eq!((last.act, &last.notices[..]), (Act::Happened, &[Notice::NegativeDropped][..]));
            // Asked about as it is now, it is settled.
            reconcile(&engine, &Script::finding([found(201)])).await;
        }
        assert_eq!(replayed(&engine, &route, "k").await.status(), 201, "a success speaks for the life");
    }
}

/// A question that nobody answers until its claim is over: another node has asked meanwhile. What comes of the first one counts nothing, and
/// does not make the other's "not found" void.
#[tokio::test]
async fn a_slow_question_without_an_answer_changes_nothing() {
    let (a, b, _, hand) = nodes().await;
    let route = with_horizon();
    let id = doubted(&a, &route, "k").await;
    hand.turn(2 * HORIZON);
    let second = Script::new([Reply::Waits(Found::DidNotHappen)]);
    let mut other = Box::pin(reconcile(&b, &second));
    let meanwhile = async {
        hand.turn(HOUR);
        tokio::select! {
            asked = &mut other => panic!("{asked:?}"),
            () = second.until_asked(1) => (),
        }
        row(&b, id).await
    };
    let (asked, claimed) = asked_while(&a, not_known(), meanwhile).await;
    assert_eq!((asked.changed, row(&a, id).await), (0, claimed));
    second.let_go();
    soon(other).await;
    assert_eq!(state(&b, id).await, StateKind::FailedRetryable);
}

/// The webhook is first: *happened* absorbs, and the probe's "not found" contradicts it.
#[tokio::test]
async fn a_webhook_that_says_it_happened_wins_over_a_slow_not_found() {
    let (engine, _, hand) = node().await;
    let route = with_horizon();
    let id = doubted(&engine, &route, "k").await;
    hand.turn(2 * HORIZON);
    let message = message(id, Says::Happened(with_status(201)));
    let (_, heard) = asked_while(&engine, Found::DidNotHappen, engine.hear(&message, HOUR, &NoProbe)).await;
    assert_eq!(heard.unwrap(), Heard::Settled);
    assert_eq!(replayed(&engine, &route, "k").await.status(), 201);
    assert_eq!(acts(&engine, id).await, [Act::Doubted, Act::Happened, Act::DidNotHappen]);
}

/// Both verdicts are on their way to the store when the other is decided: whichever lands first, one of them wins, it is the same
/// for everybody, and both are told.
#[tokio::test]
async fn of_a_webhook_and_a_probe_that_contradict_each_other_one_wins_and_both_are_told() {
    for is_probe_first in [true, false] {
        let (a, b, store, hand) = nodes().await;
        let route = with_horizon();
        let id = doubted(&a, &route, "k").await;
        hand.turn(2 * HORIZON);
        let probe = Arc::new(Script::new([Reply::Waits(Found::DidNotHappen)]));
        let asking = tokio::spawn({
            let (a, probe) = (a.clone(), Arc::clone(&probe));
            async move { reconcile(&a, &*probe).await }
        });
        soon(probe.until_asked(1)).await;
        let hearing = {
            let b = b.clone();
            async move { b.hear(&message(id, Says::Happened(with_status(201))), HOUR, &NoProbe).await.unwrap() }
        };
        // The first one to be queued hangs before its write; the second is decided over the same row, and writes at once.
        store.queue(Fault::Delayed);
        if is_probe_first {
            probe.let_go();
            soon(store.until_delayed(1)).await;
            assert_eq!(soon(hearing).await, Heard::Settled);
            store.let_go();
            soon(asking).await.unwrap();
        } else {
            let hearing = tokio::spawn(hearing);
            soon(store.until_delayed(1)).await;
            probe.let_go();
            soon(asking).await.unwrap();
            assert_eq!(state(&a, id).await, StateKind::FailedRetryable);
            store.let_go();
            assert_eq!(soon(hearing).await.unwrap(), Heard::Settled);
        }
        assert_eq!(replayed(&a, &route, "k").await.status(), 201, "happened absorbs in either order");
        let told = story(&a, id).await.into_iter();
        let told: Vec<_> = told.map(|entry| (entry.act, entry.notices)).collect();
        let doubted = (Act::Doubted, vec![]);
        let expected = if is_probe_first {
            vec![doubted, (Act::Happened, vec![]), (Act::DidNotHappen, vec![Notice::Contradiction])]
        } else {
            vec![doubted, (Act::DidNotHappen, vec![]), (Act::Happened, vec![Notice::WronglyReleased])]
        };
        assert_eq!(told, expected);
    }
}

/// A final refusal by webhook, while the probe finds the effect: money that moved weighs more, in either order.
#[tokio::test]
async fn a_webhook_that_says_it_failed_for_good_does_not_win_over_what_a_probe_found() {
    for is_probe_first in [true, false] {
        let (engine, _, _) = node().await;
        let route = with_horizon();
        let id = doubted(&engine, &route, "k").await;
        let fence = row(&engine, id).await.fence;
        let message = message(id, Says::FailedForGood(fence));
        if is_probe_first {
            reconcile(&engine, &Script::finding([found(201)])).await;
            assert_eq!(engine.hear(&message, HOUR, &NoProbe).await.unwrap(), Heard::Nothing);
        } else {
            let (_, heard) = asked_while(&engine, found(201), engine.hear(&message, HOUR, &NoProbe)).await;
            assert_eq!(heard.unwrap(), Heard::Settled);
        }
        assert_eq!(replayed(&engine, &route, "k").await.status(), 201);
        assert_eq!(story(&engine, id).await.len(), 3, "the doubt and both accounts");
    }
}
