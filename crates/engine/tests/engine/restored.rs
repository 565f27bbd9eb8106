//! A backup is restored under a running engine: it must not go by what it remembers.

use std::time::Duration;

use oncegate_engine::{Engine, NoProbe, Options, Unavailable, Worker, WorkerOptions};
use oncegate_store::Store;
use oncegate_store::memory::MemoryStore;
use oncegate_store_sql::SqliteStore;
use rusqlite::Connection;
use rusqlite::backup::Backup;

use crate::world::{completed, held, id, ietf, replayed, request, row, start};

async fn is_refused<S: Store>(engine: &Engine<S>, keys: &[&str]) {
    assert!(engine.is_restored());
    for key in keys {
        let refused = engine.arrive(&ietf(), request(&ietf(), key)).await;
        assert!(matches!(refused, Err(Unavailable::Restored)), "{key}: {refused:?}");
        // Nor does the cache answer by itself, as the layer asks it first.
        assert!(engine.arrive_at_once(&ietf(), request(&ietf(), key)).is_err(), "{key}");
        let words = refused.unwrap_err().to_string();
        assert!(words.contains("oncegate quarantine --since"), "{words}");
    }
}

fn copy_pages(from: &Connection, to: &mut Connection) {
    Backup::new(from, to).unwrap().run_to_completion(100, Duration::ZERO, None).unwrap();
}

/// Attack 29, whatever the store. The engine went on replaying from its cache what the store no longer had, granted keys whose records were
/// lost, and its workers decided over rows of another time.
#[tokio::test]
async fn attack_29_a_restore_is_noticed_by_the_watermark_and_nothing_runs() {
    let store = MemoryStore::new();
    let engine = start(store.clone(), Options::default()).await;
    let backup = store.backup();
    completed(&engine, &ietf(), "paid", "paid").await;
    replayed(&engine, &ietf(), "paid").await;
    engine.check_history().await.unwrap();
    assert!(!engine.is_restored());

    store.restore(&backup);
    engine.check_history().await.unwrap();
    is_refused(&engine, &["paid", "new"]).await;
    assert!(engine.read(id(&ietf(), "new")).await.unwrap().is_none(), "nothing was reserved");

    // A process that starts now goes by what the store has.
    let next = start(store.another_handle(), Options::default()).await;
    assert!(!next.is_restored());
    drop(held(&next, &ietf(), "paid").await);
}

/// The task finds it out by itself.
#[tokio::test(start_paused = true)]
async fn a_restore_is_noticed_within_two_looks() {
    let store = MemoryStore::new();
    let engine = start(store.clone(), Options::default()).await;
    let backup = store.backup();
    let every = Options::default().check_history_every;
    tokio::time::sleep(2 * every).await;
    assert!(!engine.is_restored());
    store.restore(&backup);
    tokio::time::sleep(2 * every).await;
    assert!(engine.is_restored());
}

/// What an attempt that is under way has done is not sent as recorded: its row is gone, and the version refuses it.
#[tokio::test]
async fn an_attempt_that_was_under_way_is_not_settled_over_a_lost_row() {
    let store = MemoryStore::new();
    let engine = start(store.clone(), Options::default()).await;
    let backup = store.backup();
    let held = held(&engine, &ietf(), "k").await;
    store.restore(&backup);
    engine.check_history().await.unwrap();
    let settled = held.settle(crate::world::complete("paid")).await;
    assert!(matches!(settled, oncegate_engine::Settled::Fenced(None)), "{settled:?}");
    assert!(engine.read(id(&ietf(), "k")).await.unwrap().is_none(), "nothing came back");
}

/// Workers rest: a restored row may be of an attempt that has ended since.
#[tokio::test]
async fn workers_rest_once_the_store_was_restored() {
    let store = MemoryStore::new();
    let engine = start(store.clone(), Options::default()).await;
    let doubted = held(&engine, &ietf(), "k").await;
    drop(doubted.settle(crate::world::doubt()).await);
    let backup = store.backup();
    engine.check_history().await.unwrap();
    store.restore(&backup);
    engine.check_history().await.unwrap();
    let before = row(&engine, id(&ietf(), "k")).await;
    let options = WorkerOptions { reconcile_every: Duration::from_millis(1), ..WorkerOptions::default() };
    let probe: std::sync::Arc<dyn oncegate_engine::Probe> = std::sync::Arc::new(NoProbe);
    let mut workers = engine.start_workers(&options, &probe);
    workers.until_passes(Worker::Reconciler, 3).await;
    workers.stop().await;
    assert_eq!(row(&engine, id(&ietf(), "k")).await, before);
}

/// Attack 29 on a file: the very next request is refused, before any look of the task's, because the index in memory is ahead of the file.
#[tokio::test]
async fn attack_29_a_restore_of_a_file_is_noticed_by_the_next_request() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("records.db");
    let options = || Options { check_history_every: Duration::from_hours(1), ..Options::default() };
    let engine = start(SqliteStore::open(&file).unwrap(), options()).await;
    completed(&engine, &ietf(), "before", "paid").await;
    let mut copy = Connection::open_in_memory().unwrap();
    copy_pages(&Connection::open(&file).unwrap(), &mut copy);
    completed(&engine, &ietf(), "lost", "paid").await;
    replayed(&engine, &ietf(), "lost").await;

    copy_pages(&copy, &mut Connection::open(&file).unwrap());
    let refused = engine.arrive(&ietf(), request(&ietf(), "new")).await;
    assert!(matches!(refused, Err(Unavailable::Restored)), "{refused:?}");
    is_refused(&engine, &["lost", "before", "new"]).await;

    let next = start(SqliteStore::open(&file).unwrap(), options()).await;
    replayed(&next, &ietf(), "before").await;
}

/// Attack 29, seen by a process that has served nothing since the backup: all it has written is its
/// watermark. Its memory was at the commit that the backup has, so its next write found nothing
/// wrong, and a key that another process had charged ran again.
#[tokio::test]
async fn attack_29_an_idle_process_notices_a_restore_of_a_file_at_its_next_request() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("records.db");
    let options = || Options { check_history_every: Duration::from_hours(1), ..Options::default() };
    let busy = start(SqliteStore::open(&file).unwrap(), options()).await;
    let idle = start(SqliteStore::open(&file).unwrap(), options()).await;
    completed(&busy, &ietf(), "before", "paid").await;
    let mut copy = Connection::open_in_memory().unwrap();
    copy_pages(&Connection::open(&file).unwrap(), &mut copy);
    idle.check_history().await.unwrap();
    completed(&busy, &ietf(), "lost", "paid").await;

    copy_pages(&copy, &mut Connection::open(&file).unwrap());
    let refused = idle.arrive(&ietf(), request(&ietf(), "lost")).await;
    assert!(matches!(refused, Err(Unavailable::Restored)), "{refused:?}");
    is_refused(&idle, &["lost", "before", "new"]).await;
}

/// Attack 29, where another process brings the file to the very generation that the memory is at: the number is the same, and the rows are others. A key
/// that the other process had run was granted once more.
#[tokio::test]
async fn attack_29_a_restore_of_a_file_that_reaches_the_same_generation_is_noticed() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("records.db");
    let options = || Options { check_history_every: Duration::from_hours(1), ..Options::default() };
    let engine = start(SqliteStore::open(&file).unwrap(), options()).await;
    completed(&engine, &ietf(), "before", "paid").await;
    let mut copy = Connection::open_in_memory().unwrap();
    copy_pages(&Connection::open(&file).unwrap(), &mut copy);
    completed(&engine, &ietf(), "lost", "paid").await;

    copy_pages(&copy, &mut Connection::open(&file).unwrap());
    // Two commits of the one and of the other: its first watermark, and a reservation.
    let other = start(SqliteStore::open(&file).unwrap(), options()).await;
    let _held = held(&other, &ietf(), "after").await;
    let refused = engine.arrive(&ietf(), request(&ietf(), "after")).await;
    assert!(matches!(refused, Err(Unavailable::Restored)), "{refused:?}");
    is_refused(&engine, &["after", "lost"]).await;
}

/// Attack 29, with commits of another process after the restore: the file is further on than the
/// memory, and still has lost what it knew. The memory caught up and went on.
#[tokio::test]
async fn attack_29_a_restore_of_a_file_that_went_on_since_is_noticed_by_the_next_request() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("records.db");
    let options = || Options { check_history_every: Duration::from_hours(1), ..Options::default() };
    let engine = start(SqliteStore::open(&file).unwrap(), options()).await;
    let mut copy = Connection::open_in_memory().unwrap();
    copy_pages(&Connection::open(&file).unwrap(), &mut copy);
    completed(&engine, &ietf(), "lost", "paid").await;
    engine.check_history().await.unwrap();

    copy_pages(&copy, &mut Connection::open(&file).unwrap());
    let other = start(SqliteStore::open(&file).unwrap(), options()).await;
    for n in 0..10 {
        completed(&other, &ietf(), &format!("key-{n}"), "paid").await;
    }
    let refused = engine.arrive(&ietf(), request(&ietf(), "new")).await;
    assert!(matches!(refused, Err(Unavailable::Restored)), "{refused:?}");
    is_refused(&engine, &["lost", "key-1", "new"]).await;
    assert!(!other.is_restored());
}

/// The records and the watermark are those of the backup, and the server is where it was: what a node sees after a point-in-time recovery.
#[tokio::test(flavor = "multi_thread")]
async fn attack_29_a_postgres_that_was_recovered_to_an_earlier_moment_is_noticed_before_it_is_used() {
    let server = oncegate_test_servers::Postgres::start(&[]);
    let sql = |text: &str| drop(server.sql(text));
    sql("CREATE DATABASE live");
    let url = format!("{}/live", server.url().strip_suffix("/postgres").unwrap());
    // No look of the task's: what is shown here is that a new connection is looked over before anything is asked of it.
    let options = || Options { check_history_every: Duration::from_hours(1), ..Options::default() };
    let open = async || start(oncegate_store_sql::PostgresStore::open(&url).await.unwrap(), options()).await;
    completed(&open().await, &ietf(), "before", "paid").await;
    sql("ALTER DATABASE live ALLOW_CONNECTIONS false");
    sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'live'");
    sql("CREATE DATABASE backup TEMPLATE live");
    sql("ALTER DATABASE live ALLOW_CONNECTIONS true");
    let engine = open().await;
    completed(&engine, &ietf(), "lost", "paid").await;
    replayed(&engine, &ietf(), "lost").await;

    sql("DROP DATABASE live WITH (FORCE)");
    sql("ALTER DATABASE backup RENAME TO live");
    let refused = crate::world::soon(async {
        loop {
            match engine.arrive(&ietf(), request(&ietf(), "new")).await {
                // The first may still meet the old connection, and find it closed.
                Err(Unavailable::Store { .. }) => tokio::task::yield_now().await,
                other => return other,
            }
        }
    });
    let refused = refused.await;
    assert!(matches!(refused, Err(Unavailable::Restored)), "{refused:?}");
    is_refused(&engine, &["lost", "before", "new"]).await;

    let next = open().await;
    replayed(&next, &ietf(), "before").await;
    assert_eq!(next.read(id(&ietf(), "new")).await.unwrap(), None, "nothing was granted");
}

/// A Redis that comes back from an older dump, and one whose data are dropped under an open connection.
#[tokio::test(flavor = "multi_thread")]
async fn attack_29_a_redis_that_came_back_from_an_older_dump_is_noticed() {
    let mut server = oncegate_test_servers::Redis::start(&["--save", "3600 1000000"]);
    let options = || Options { check_history_every: Duration::from_hours(1), ..Options::default() };
    let open = async |server: &oncegate_test_servers::Redis| {
        oncegate_store_redis::RedisStore::open(server.url()).await.unwrap()
    };
    let engine = start(open(&server).await, options()).await;
    completed(&engine, &ietf(), "before", "paid").await;
    assert_eq!(server.command(&["SAVE"]), "OK");
    completed(&engine, &ietf(), "lost", "paid").await;
    engine.check_history().await.unwrap();

    server.kill_9();
    server.start_again();
    let refused = crate::world::soon(async {
        loop {
            match engine.arrive(&ietf(), request(&ietf(), "new")).await {
                Err(Unavailable::Store { .. }) => tokio::task::yield_now().await,
                other => return other,
            }
        }
    });
    let refused = refused.await;
    assert!(matches!(refused, Err(Unavailable::Restored)), "{refused:?}");
    is_refused(&engine, &["lost", "before", "new"]).await;

    let next = start(open(&server).await, options()).await;
    replayed(&next, &ietf(), "before").await;
    assert_eq!(server.command(&["FLUSHALL"]), "OK");
    next.check_history().await.unwrap();
    is_refused(&next, &["before", "new"]).await;
}
