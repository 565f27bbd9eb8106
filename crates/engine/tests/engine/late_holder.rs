//! A holder comes back after its lease has lapsed.

use oncegate_core::record::{State, StateKind};
use oncegate_engine::{Engine, Held, Options, Route, Settled};

use crate::world::{
    HOUR, Hand, Shaky, answer, complete, did_not_happen, done, held, id, ietf, replayed, row, shaky_on,
    start, state, sweep,
};

/// An attempt that has begun, and whose record was swept to `unknown` because its lease lapsed.
async fn swept() -> (Engine<Shaky>, Route, Held<Shaky>) {
    let hand = Hand::new();
    let engine = start(shaky_on(&hand), Options::default()).await;
    let route = ietf();
    let mut holder = held(&engine, &route, "k").await;
    holder.begin().unwrap();
    hand.turn(HOUR);
    let _ = sweep(&engine, id(&route, "k")).await;
    assert_eq!(state(&engine, id(&route, "k")).await, StateKind::Unknown);
    (engine, route, holder)
}

/// The holder was only slow. It knows what happened, so its account ends the doubt.
#[tokio::test]
async fn a_late_holder_settles_its_own_doubt() {
    let (engine, route, holder) = swept().await;
    done(holder, complete("late but true")).await;
    assert_eq!(*replayed(&engine, &route, "k").await, answer("late but true"));
}

/// Meanwhile an operator judged that it had not happened, and a retry runs. The late holder changes nothing of that, and
/// answers from the row.
#[tokio::test]
async fn a_late_holder_overwrites_nobody_who_runs() {
    let (engine, route, late) = swept().await;
    let _ = did_not_happen(&engine, id(&route, "k")).await;
    let runner = held(&engine, &route, "k").await;
    let before = row(&engine, id(&route, "k")).await;
    let Settled::Fenced(Some(seen)) = late.settle(complete("late")).await else { panic!("it was accepted") };
    assert_eq!(seen.state, State::InProgress);
    assert!(seen.is_held_by(&runner.lease().holder));
    let after = row(&engine, id(&route, "k")).await;
    assert_eq!((after.state, after.grant, after.fence), (before.state, before.grant, before.fence));
    done(runner, complete("the retry's")).await;
    assert_eq!(*replayed(&engine, &route, "k").await, answer("the retry's"));
}

/// The retry has even completed: the late holder is shown its answer.
#[tokio::test]
async fn a_late_holder_is_shown_the_answer_of_whoever_was_faster() {
    let (engine, route, late) = swept().await;
    let _ = did_not_happen(&engine, id(&route, "k")).await;
    done(held(&engine, &route, "k").await, complete("the retry's")).await;
    let Settled::Fenced(Some(seen)) = late.settle(complete("late")).await else { panic!("it was accepted") };
    let State::Completed(kept) = &seen.state else { panic!("{seen:?}") };
    assert_eq!(**kept, answer("the retry's"));
    assert_eq!(*replayed(&engine, &route, "k").await, answer("the retry's"));
}

/// A late holder that knows that nothing was executed frees the key.
#[tokio::test]
async fn a_late_holder_may_still_release() {
    let (engine, route, holder) = swept().await;
    done(holder, crate::world::release()).await;
    assert_eq!(held(&engine, &route, "k").await.lease().attempt, 2);
}
