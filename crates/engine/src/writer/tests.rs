//! The writer's threads over a store that takes several batches at once and is held up by a gate. Counted, never timed.

use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use oncegate_core::decide::Arrival;
use oncegate_core::fingerprint::Fingerprint;
use oncegate_core::key::Key;
use oncegate_core::policy::Profile;
use oncegate_core::scope::Operation;
use oncegate_store::faulty::{Fault, Faulty};
use oncegate_store::memory::MemoryStore;

use crate::arrive::Arrived;
use crate::engine::Engine;
use crate::options::{BackgroundWorkers, Options};
use crate::route::Route;

type Shaky = Faulty<MemoryStore>;

/// Reached only by a test that fails.
const SOON: Duration = Duration::from_mins(1);

async fn start(at_once: usize) -> (Shaky, Engine<Shaky>) {
    let store = Faulty::new(MemoryStore::new()).taking_at_once(at_once);
    let options = Options { store_timeout: 2 * SOON, workers: BackgroundWorkers::None, ..Options::default() };
    let engine = Engine::start(store.clone(), options).await.unwrap();
    (store, engine)
}

fn route() -> Route {
    Route::of_profile(Profile::Ietf, Operation::new("POST /payments").unwrap())
}

fn request(route: &Route, key: &str) -> Arrival {
    let fingerprint = Fingerprint::from_parts(1, [7; 32]);
    route.arrival(route.scope("acme").unwrap(), Key::from_text(key).unwrap(), fingerprint, None)
}

/// Polls once, and must not be ready: from here on it waits for something.
async fn must_wait<F: Future + Unpin>(future: &mut F) {
    let polled =
        std::future::poll_fn(|context| Poll::Ready(Pin::new(&mut *future).poll(context).is_pending()));
    assert!(polled.await, "it does not wait");
}

/// A key is retried two thousand times while its reserve hangs in the store, and other keys come and go meanwhile. Each of these woke the
/// thread that gathers, and each time it took all two thousand out of the queue and put them back, under the lock that every
/// request needs: millions of looks, where one a write is enough. The duplicates must not wake it at all.
#[tokio::test]
async fn a_crowd_behind_a_key_on_its_way_is_looked_at_once() {
    const CROWD: u64 = 2_000;
    let (store, engine) = start(2).await;
    let route = route();
    store.queue(Fault::Delayed);
    let mut first = Box::pin(engine.arrive(&route, request(&route, "hot")));
    must_wait(&mut first).await;
    store.until_delayed(1).await;
    let (mut crowd, mut others) = (Vec::new(), Vec::new());
    for n in 0..CROWD {
        let mut one = Box::pin(engine.arrive(&route, request(&route, "hot")));
        must_wait(&mut one).await;
        crowd.push(one);
        // The gathering thread has come by when this is granted.
        let other = engine.arrive(&route, request(&route, &format!("other-{n}")));
        let other = tokio::time::timeout(SOON, other).await.unwrap().unwrap();
        assert!(matches!(other, Arrived::Execute(_)), "{other:?}");
        // Not dropped: that would be a settlement, and a write more.
        others.push(other);
    }
    let counted = engine.0.writer.counted();
    assert_eq!(counted.looks, 1 + CROWD, "one for each that was written, none for the crowd");
    for _ in 0..CROWD {
        let mut one = Box::pin(engine.arrive(&route, request(&route, "hot")));
        must_wait(&mut one).await;
        crowd.push(one);
    }
    let gatherings = engine.0.writer.counted().gatherings;
    assert_eq!(gatherings, counted.gatherings, "a duplicate of what is on its way has nothing to wake for");
    store.let_go();
    let first = tokio::time::timeout(SOON, first).await.unwrap().unwrap();
    assert!(matches!(first, Arrived::Execute(_)), "{first:?}");
    for one in crowd {
        let arrived = tokio::time::timeout(SOON, one).await.expect("nobody is left behind").unwrap();
        assert!(matches!(arrived, Arrived::Busy { .. }), "{arrived:?}");
    }
    assert_eq!(engine.0.writer.counted().looks, 1 + 3 * CROWD, "one for each");
}

/// Four batches at once over three keys: every request finds its key taken sooner or later, and is told all the same. One that freed
/// a key without waking whoever gathers would leave those behind it there for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_is_left_behind_in_a_storm_over_few_keys() {
    let (_store, engine) = start(4).await;
    let clients: Vec<_> = (0..48)
        .map(|client| {
            let (engine, route) = (engine.clone(), route());
            tokio::spawn(async move {
                for n in 0..100 {
                    let key = format!("k-{}", (client + n) % 3);
                    // A lease that is granted is given back when it is dropped.
                    drop(engine.arrive(&route, request(&route, &key)).await.unwrap());
                }
            })
        })
        .collect();
    for client in clients {
        tokio::time::timeout(SOON, client).await.expect("nobody is left behind").unwrap();
    }
    tokio::time::timeout(SOON, engine.quiet()).await.expect("and nothing");
}
