//! Records at a former address: where earlier releases stored them.

use std::time::Duration;

use oncegate_core::decide::{Arrival, Event, decide};
use oncegate_core::fingerprint::Fingerprint;
use oncegate_core::identity::RecordId;
use oncegate_core::key::Key;
use oncegate_core::policy::{Profile, WhileInProgress};
use oncegate_core::record::StateKind;
use oncegate_core::scope::{Address, Operation, Scope};
use oncegate_core::time::Now;
use oncegate_engine::{Arrived, Asked, Options, RequestIdentity, Route, Unavailable};
use oncegate_store::drive::read_one;
use oncegate_store::faulty::Fault;
use oncegate_store::{Outcome, Store as _, Write};

use crate::world::{Hand, complete, done, granted, release, row, shaky, shaky_on, start};

const PATTERN: &str = "POST /orders/{id}";
const PATH: &str = "/orders/17";

/// A route of requests whose pattern was part of the scope.
fn today() -> Route {
    let mut policy = Profile::Lenient.policy();
    policy.in_progress = WhileInProgress::Reject;
    let pattern = Operation::new(PATTERN).unwrap();
    let requests = RequestIdentity { former: vec![pattern.clone()], ..RequestIdentity::default() };
    Route::of_requests("lenient", policy, pattern, requests)
}

fn address(scope: &Scope) -> Address {
    Address { scope: scope.clone(), key: Key::from_text("k").unwrap() }
}

fn at(scope: &Scope) -> RecordId {
    RecordId::of(&address(scope))
}

/// The scope before, and today's.
fn scopes(route: &Route) -> [Scope; 2] {
    [route.scope("acme").unwrap(), route.scope_of_request("acme", "POST", PATH).unwrap()]
}

fn arrival(route: &Route, scope: Scope) -> Arrival {
    route.arrival(scope, Key::from_text("k").unwrap(), Fingerprint::from_parts(1, [7; 32]), None)
}

fn asked(route: &Route) -> Asked {
    let [_, own] = scopes(route);
    let former = route.former_addresses(&address(&own), "POST", PATH);
    Asked::new(arrival(route, own)).or_at(former)
}

/// A retry found its record at the former address and was about to go on there, when the record
/// was reaped. Inserted there again, it would have run beside a second retry that had found
/// nothing, and so ran at today's address.
#[tokio::test]
async fn attack_22_nothing_is_inserted_at_a_former_address() {
    let (hand, route) = (Hand::new(), today());
    let store = shaky_on(&hand);
    let engine = start(store.clone(), Options::default()).await;
    let [before, own] = scopes(&route);
    let held = granted(engine.arrive(&route, arrival(&route, before.clone())).await.unwrap());
    let mut retry = asked(&route);
    let busy = engine.go_on(&route, &mut retry).await.unwrap();
    assert!(matches!(busy, Arrived::Busy { .. }), "{busy:?}");
    assert_eq!(retry.id(), at(&before));
    done(held, release()).await;
    hand.turn(Duration::from_hours(48));
    let released = row(&engine, at(&before)).await;
    let step = decide(Some(&released), &Event::Reap { grace: Duration::ZERO }, Now::exact(hand.now()));
    let removal = Write::of_step(Some(&released), &step).unwrap();
    assert_eq!(store.apply(&[removal]).await.unwrap(), [Outcome::Applied]);
    assert!(read_one(&store, at(&before)).await.unwrap().is_none(), "it is reaped");
    let refused = engine.go_on(&route, &mut retry).await;
    assert!(matches!(refused, Err(Unavailable::Store { .. })), "{refused:?}");
    assert!(read_one(&store, at(&before)).await.unwrap().is_none());
    // Its client asks again, and so does every other: at today's address.
    let mut again = asked(&route);
    drop(granted(engine.go_on(&route, &mut again).await.unwrap()));
    assert_eq!(again.id(), at(&own));
}

/// A reserve over a former row whose acknowledgement is lost is cleaned up where it is, and the
/// key stays there.
#[tokio::test]
async fn attack_22_a_reserve_in_doubt_at_a_former_address_is_cleaned_up_there() {
    let (store, route) = (shaky(), today());
    let options = Options { doubt_patience: Duration::ZERO, ..Options::default() };
    let engine = start(store.clone(), options).await;
    let [before, own] = scopes(&route);
    let held = granted(engine.arrive(&route, arrival(&route, before.clone())).await.unwrap());
    done(held, release()).await;
    store.queue(Fault::AcknowledgementLost);
    let mut retry = asked(&route);
    let refused = engine.go_on(&route, &mut retry).await;
    assert!(matches!(refused, Err(Unavailable::Store { .. })), "{refused:?}");
    engine.drain(Duration::from_secs(20)).await;
    assert_eq!(row(&engine, at(&before)).await.state.kind(), StateKind::FailedRetryable);
    assert!(read_one(&store, at(&own)).await.unwrap().is_none());
    let mut again = asked(&route);
    let held = granted(engine.go_on(&route, &mut again).await.unwrap());
    assert_eq!((again.id(), held.id()), (at(&before), at(&before)));
    done(held, complete("paid")).await;
}

/// The defaults of an earlier release kept the keys of all their paths in one scope. A route that is served apart
/// found the record of another path's request there, and answered with its response: a payment got an e-mail's.
#[tokio::test]
async fn attack_22_a_record_of_the_defaults_counts_only_for_the_same_request() {
    let defaults = Operation::new("POST *").unwrap();
    let requests = RequestIdentity { defaults: Some(defaults.clone()), ..RequestIdentity::default() };
    let route =
        Route::of_requests("lenient", today().policy().clone(), Operation::new(PATTERN).unwrap(), requests);
    let engine = start(shaky(), Options::default()).await;
    let before = Scope::tenant_and_operation("acme", &defaults).unwrap();
    let old = granted(engine.arrive(&route, arrival(&route, before.clone())).await.unwrap());
    done(old, complete("sent")).await;

    let own = route.scope_of_request("acme", "POST", PATH).unwrap();
    let former = route.former_addresses(&address(&own), "POST", PATH);
    let other = Arrival { fingerprint: Fingerprint::from_parts(1, [8; 32]), ..arrival(&route, own.clone()) };
    let mut asked = Asked::new(other).or_at(former.clone());
    drop(granted(engine.go_on(&route, &mut asked).await.unwrap()));
    assert_eq!(asked.id(), at(&own), "another request runs");

    let engine = start(shaky(), Options::default()).await;
    let old = granted(engine.arrive(&route, arrival(&route, before.clone())).await.unwrap());
    done(old, complete("sent")).await;
    let mut asked = Asked::new(arrival(&route, own)).or_at(former);
    let replay = engine.go_on(&route, &mut asked).await.unwrap();
    assert!(matches!(replay, Arrived::Replay { .. }), "the same request: {replay:?}");
    assert_eq!(asked.id(), at(&before));
}
