//! What the tests have in common: routes, requests, answers.

use std::sync::Arc;

use oncegate_core::decide::Arrival;
use oncegate_core::fingerprint::{self, Content, Mode};
use oncegate_core::identity::RecordId;
use oncegate_core::key::Key;
use oncegate_core::policy::{Policy, Profile};
use oncegate_core::response::{Answer, Response};
use oncegate_core::scope::{Address, Operation, Scope};
use oncegate_engine::{Arrived, BackgroundWorkers, Engine, Held, Options, Route, Settled, Settlement};
use oncegate_store::Store;
use oncegate_store_sql::PostgresStore;
use tokio_postgres::{Client, NoTls};

/// A route under a profile but for what `change` changes.
pub(crate) fn route(profile: Profile, change: impl FnOnce(&mut Policy)) -> Route {
    let mut policy = profile.policy();
    change(&mut policy);
    Route::new(profile.name(), policy, Operation::new("POST /payments").unwrap())
}

pub(crate) fn scope(route: &Route) -> Scope {
    route.scope("acme").unwrap()
}

pub(crate) fn id(route: &Route, key: &str) -> RecordId {
    RecordId::of(&Address { scope: scope(route), key: Key::from_text(key).unwrap() })
}

/// A request of the tenant `acme`, always with the same body.
pub(crate) fn request(route: &Route, key: &str) -> Arrival {
    let content =
        Content { method: "POST", path: "/payments", query: None, content_type: None, body: b"100 for Ada" };
    let fingerprint = fingerprint::of(&Mode::Raw, &content).unwrap();
    route.arrival(scope(route), Key::from_text(key).unwrap(), fingerprint, None)
}

/// An answer that says who gave it, with all that must come back byte for byte.
pub(crate) fn answer(body: &str) -> Answer {
    let headers = vec![("set-of".to_owned(), b"\xff".to_vec()), ("set-of".to_owned(), b"".to_vec())];
    Answer::Kept(Response { status: 201, headers, body: body.as_bytes().to_vec() })
}

pub(crate) fn complete(body: &str) -> Settlement {
    Settlement::Complete(Arc::new(answer(body)))
}

/// The words of an answer, which must be one of [`answer`]'s, whole.
pub(crate) fn words(given: &Answer) -> String {
    let Answer::Kept(response) = given else { panic!("not kept: {given:?}") };
    let words = String::from_utf8(response.body.clone()).unwrap();
    assert!(*given == answer(&words), "damaged: {given:?}");
    words
}

/// Words that nobody else says.
pub(crate) fn unique(who: &str) -> String {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).unwrap();
    format!("{who}-{:016x}", u64::from_ne_bytes(bytes))
}

pub(crate) async fn node(url: &str, options: Options) -> Engine<PostgresStore> {
    let store = PostgresStore::open(url).await.unwrap();
    let options = Options { workers: BackgroundWorkers::None, ..options };
    Engine::start(store, options).await.unwrap()
}

pub(crate) fn granted<S: Store>(arrived: Arrived<S>) -> Held<S> {
    match arrived {
        Arrived::Execute(held) => *held,
        other => panic!("no lease but {other:?}"),
    }
}

pub(crate) fn replayed<S: Store>(arrived: Arrived<S>) -> String {
    match arrived {
        Arrived::Replay { answer, .. } => words(&answer),
        other => panic!("no replay but {other:?}"),
    }
}

/// Settles with an answer, and must be done.
pub(crate) async fn completed<S: Store>(mut held: Held<S>, body: &str) {
    held.begin().unwrap();
    match held.settle(complete(body)).await {
        Settled::Done(_) => (),
        Settled::Fenced(row) => panic!("fenced by {row:?}"),
    }
}

/// A plain connection, for what the tests themselves write and ask.
pub(crate) async fn connect(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

/// A small generator: the same seed, the same order.
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// SplitMix64.
    pub(crate) const fn throw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(crate) fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.throw() % u64::try_from(end).unwrap()).unwrap()
    }

    pub(crate) fn shuffled(&mut self, end: usize) -> Vec<usize> {
        let mut order: Vec<_> = (0..end).collect();
        for place in (1..end).rev() {
            order.swap(place, self.below(place + 1));
        }
        order
    }
}
