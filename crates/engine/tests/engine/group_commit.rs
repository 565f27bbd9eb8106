//! Group commit, counted and not timed.

use std::sync::Arc;

use oncegate_engine::{Engine, Options};
use oncegate_store_sql::sqlite::SqliteStore;
use tempfile::TempDir;
use tokio::sync::Barrier;

use crate::world::{complete, completed, done, granted, held, ietf, must_wait, request, shaky, soon, start};
use oncegate_engine::Arrived;
use oncegate_store::faulty::Fault;

async fn on_sqlite() -> (TempDir, Engine<SqliteStore>) {
    let folder = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(folder.path().join("oncegate.db")).unwrap();
    (folder, start(store, Options::default()).await)
}

/// `clients` at once, each with `keys` keys of its own, one after the other.
async fn storm(engine: &Engine<SqliteStore>, name: &str, clients: usize, keys: usize) {
    let barrier = Arc::new(Barrier::new(clients));
    let tasks: Vec<_> = (0..clients)
        .map(|client| {
            let (engine, barrier, name) = (engine.clone(), Arc::clone(&barrier), name.to_owned());
            tokio::spawn(async move {
                let route = ietf();
                barrier.wait().await;
                for key in 0..keys {
                    completed(&engine, &route, &format!("{name}-{client}-{key}"), "paid").await;
                }
            })
        })
        .collect();
    for task in tasks {
        soon(task).await.unwrap();
    }
}

/// 256 requests in flight: what waits when a commit ends goes into the next one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn under_load_a_commit_carries_more_than_ten_writes() {
    let (_folder, engine) = on_sqlite().await;
    storm(&engine, "k", 256, 8).await;
    let stats = engine.stats();
    assert_eq!(stats.writes, 256 * 8 * 2, "a reserve and a settlement each");
    assert!(stats.commits * 10 < stats.writes, "{stats:?}");
}

/// One client alone, one request after the other: every write is a commit of its own, at once.
#[tokio::test]
async fn a_lone_client_never_lingers() {
    let (_folder, engine) = on_sqlite().await;
    let route = ietf();
    for n in 0..100 {
        completed(&engine, &route, &format!("k-{n}"), "paid").await;
    }
    let stats = engine.stats();
    assert_eq!((stats.commits, stats.writes, stats.lingers), (200, 200, 0));
}

/// Also not after a storm, when batches were large a moment ago.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lone_client_never_lingers_after_a_storm() {
    let (_folder, engine) = on_sqlite().await;
    storm(&engine, "storm", 64, 4).await;
    let before = engine.stats();
    let route = ietf();
    for n in 0..20 {
        completed(&engine, &route, &format!("calm-{n}"), "paid").await;
    }
    let after = engine.stats();
    assert_eq!(after.lingers, before.lingers);
    assert_eq!(after.commits - before.commits, 40);
}

/// A hundred duplicates arrive while a commit is under way: they all fit into the next one, and into one write.
#[tokio::test]
async fn a_hundred_duplicates_cost_one_write() {
    let store = shaky();
    let engine = start(store.clone(), Options::default()).await;
    let route = ietf();
    store.queue(Fault::Delayed);
    let mut blocker = Box::pin(engine.arrive(&route, request(&route, "blocker")));
    must_wait(&mut blocker).await;
    store.until_delayed(1).await;
    let mut crowd: Vec<_> = (0..100).map(|_| Box::pin(engine.arrive(&route, request(&route, "k")))).collect();
    for one in &mut crowd {
        must_wait(one).await;
    }
    store.let_go();
    let mut executing = Vec::new();
    for one in crowd {
        match soon(one).await.unwrap() {
            Arrived::Execute(held) => executing.push(held),
            arrived => assert!(matches!(arrived, Arrived::Busy { .. }), "{arrived:?}"),
        }
    }
    assert_eq!(executing.len(), 1);
    assert_eq!((engine.stats().commits, engine.stats().writes), (2, 2));
    done(granted(soon(blocker).await.unwrap()), complete("as well")).await;
}

/// Two writes of one key wait at the same time: a completion, then a doubt about the same attempt. They are applied in the order of
/// their submission, so the doubt finds that it is over. The other way round it would have been accepted.
#[tokio::test]
async fn the_writes_of_one_key_keep_their_order() {
    for _ in 0..20 {
        let store = shaky();
        let engine = start(store.clone(), Options::default()).await;
        let route = ietf();
        let holder = held(&engine, &route, "k").await;
        let (id, who) = (holder.id(), holder.lease().holder);
        store.queue(Fault::Delayed);
        let mut blocker = Box::pin(engine.arrive(&route, request(&route, "blocker")));
        must_wait(&mut blocker).await;
        store.until_delayed(1).await;
        let reason = oncegate_core::record::Reason::new("timeout", "no answer");
        let doubt = oncegate_core::decide::Event::Doubt { holder: who, reason };
        let mut completing = Box::pin(holder.settle(complete("paid")));
        let mut doubting = Box::pin(engine.drive(id, &doubt));
        must_wait(&mut completing).await;
        must_wait(&mut doubting).await;
        store.let_go();
        let (completed, doubted) = soon(async { tokio::join!(completing, doubting) }).await;
        assert!(matches!(completed, oncegate_engine::Settled::Done(_)), "{completed:?}");
        let decision = doubted.unwrap().decision;
        assert!(matches!(decision, oncegate_core::decide::Decision::Fenced(_)), "{decision:?}");
        drop(soon(blocker).await);
    }
}
