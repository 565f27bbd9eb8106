//! The store against servers of its own: killed, cut off, full, misused, and set up in every way that loses keys.

#![expect(clippy::expect_used, reason = "tests")]

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use oncegate_conformance::samples::{FAR_AHEAD, LONG_AGO, entry, id, moved_to, parked, reserved};
use oncegate_core::audit::Act;
use oncegate_core::identity::Version;
use oncegate_core::record::{Record, StateKind};
use oncegate_core::scope::Operation;
use oncegate_store::signals::{Heard, Signal, Signals};
use oncegate_store::{
    Counts, Due, Durability, Effect, Filter, History, Kind, Moments, Outcome, Store, StoreError, Write,
};
use oncegate_store_redis::{RedisOptions, RedisStore, Warning};
use oncegate_test_servers::{Cut, Redis, TcpProxy, until_some, wait_until};

const DURABLE: &[&str] = &["--appendonly", "yes", "--appendfsync", "always"];

fn insert(record: &Record) -> Write {
    Write::insert(Arc::new(record.clone()))
}

fn rows(count: u64) -> Vec<Record> {
    (0..count).map(|n| reserved(&format!("key-{n}"), n, LONG_AGO)).collect()
}

fn told(error: &StoreError) -> (Kind, Effect) {
    (error.kind(), error.effect())
}

/// Patient: the machine that runs the tests may be busy with other things.
async fn open(server: &Redis) -> RedisStore {
    let options = RedisOptions::new(server.url()).limit(Duration::from_secs(30));
    options.open().await.expect("the store opens")
}

async fn read(store: &RedisStore, key: &str) -> Option<Record> {
    store.read(&[id(key)]).await.expect("read").pop().expect("a place").expect("it can be read")
}

/// What a server would lose is said, and what it must not do is refused.
#[tokio::test]
async fn settings_are_read_and_what_they_lose_is_said() {
    let snapshots = Warning::SnapshotsOnly { save: Some("3600 1".to_owned()) };
    let table: &[(&[&str], Vec<Warning>, &str)] = &[
        (DURABLE, vec![], ""),
        (&[], vec![Warning::NothingIsKept], "every key is lost"),
        (&["--save", "3600 1"], vec![snapshots], "every key since the last snapshot is lost"),
        (&["--appendonly", "yes"], vec![Warning::SyncedEverySecond], "up to about two seconds"),
        (
            &["--appendonly", "yes", "--appendfsync", "no"],
            vec![Warning::SyncedBySystem],
            "about thirty seconds",
        ),
        (
            &["--appendonly", "yes", "--appendfsync", "always", "--no-appendfsync-on-rewrite", "yes"],
            vec![Warning::NotSyncedWhileRewriting],
            "while Redis rewrites its file",
        ),
    ];
    for (options, warnings, words) in table {
        let server = Redis::start(options);
        let store = open(&server).await;
        assert_eq!(store.warnings(), warnings, "{options:?}");
        let durability = if warnings.is_empty() { Durability::Durable } else { Durability::None };
        assert_eq!(store.capability().durability, durability, "{options:?}");
        for warning in warnings {
            let text = warning.to_string();
            assert!(
                text.contains(words) && text.contains("PostgreSQL for anything that moves money"),
                "{text}"
            );
        }
    }
}

#[tokio::test]
async fn replicas_are_a_warning_and_a_replica_is_refused() {
    let primary = Redis::start(DURABLE);
    let replica = Redis::replica_of(&primary);
    let store = open(&primary).await;
    assert_eq!(store.warnings(), [Warning::Replicated { replicas: 1 }]);
    assert_eq!(store.capability().durability, Durability::None);
    let refusal = RedisStore::open(replica.url()).await.expect_err("a replica is refused");
    assert_eq!(told(&refusal), (Kind::Misconfigured, Effect::None));
    assert!(refusal.to_string().contains("replica"), "{refusal}");
}

#[tokio::test]
async fn a_server_that_may_evict_is_refused_also_when_it_was_changed_later() {
    for policy in ["allkeys-lru", "volatile-ttl"] {
        let server = Redis::start(&["--maxmemory-policy", policy]);
        let refusal = RedisStore::open(server.url()).await.expect_err("eviction is refused");
        assert_eq!(told(&refusal), (Kind::Misconfigured, Effect::None));
        assert!(refusal.to_string().contains(policy), "{refusal}");
    }
    let server = Redis::start(DURABLE);
    let proxy = TcpProxy::start(&server.url());
    let store = RedisStore::open(proxy.url_of(&server.url())).await.expect("the store opens");
    assert_eq!(server.command(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]), "OK");
    proxy.cut();
    proxy.mend();
    let refusal = until_some("the changed server is refused", async || match store.counts().await {
        Err(error) if error.kind() == Kind::Misconfigured => Some(error),
        // The first call may still meet the old connection, and find it closed.
        _ => None,
    });
    assert!(refusal.await.to_string().contains("allkeys-lru"));
}

/// Managed servers forbid `CONFIG`. Eviction and role are in `INFO`, how data are kept is not.
#[tokio::test]
async fn settings_that_cannot_be_seen_are_said_to_be_unseen() {
    let server = Redis::start(DURABLE);
    let user = ["ACL", "SETUSER", "app", "on", ">pw", "~*", "&*", "+@all", "-config"];
    assert_eq!(server.command(&user), "OK");
    let url = server.url().replace("redis://", "redis://app:pw@");
    let store = RedisStore::open(&url).await.expect("the store opens");
    assert_eq!(store.warnings(), [Warning::Unseen]);
    assert_eq!(store.capability().durability, Durability::None);
    assert_eq!(server.command(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lfu"]), "OK");
    let refusal = RedisStore::open(&url).await.expect_err("eviction is refused");
    assert_eq!(told(&refusal), (Kind::Misconfigured, Effect::None));
    assert_eq!(server.command(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]), "OK");
    let user = ["ACL", "SETUSER", "weak", "on", ">pw", "~*", "&*", "+@all", "-@scripting"];
    assert_eq!(server.command(&user), "OK");
    let weak = RedisStore::open(url.replace("app:", "weak:")).await.expect_err("no scripts, no store");
    assert_eq!(told(&weak), (Kind::Misconfigured, Effect::None));
    let wrong = url.replace(":pw@", ":other@");
    let refusal = RedisStore::open(&wrong).await.expect_err("a wrong password is refused");
    assert_eq!(told(&refusal), (Kind::Misconfigured, Effect::None));
    assert!(!refusal.to_string().contains("other"), "{refusal}");
}

/// Twelve writers, the server killed under them: what was acknowledged is there, through a new handle and through the old one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_server_loses_nothing_acknowledged() {
    let mut server = Redis::start(DURABLE);
    let store = Arc::new(open(&server).await);
    let acknowledged = Arc::new(Mutex::new(Vec::new()));
    let stop = Arc::new(AtomicBool::new(false));
    let writers: Vec<_> = (0..12)
        .map(|writer| {
            let (store, stop) = (Arc::clone(&store), Arc::clone(&stop));
            let acknowledged = Arc::clone(&acknowledged);
            tokio::spawn(async move {
                for n in 0.. {
                    let row = reserved(&format!("{writer}-{n}"), n, LONG_AGO);
                    match store.apply(&[insert(&row)]).await {
                        Ok(outcomes) => {
                            assert_eq!(outcomes, [Outcome::Applied]);
                            acknowledged.lock().expect("a lock").push(row);
                        }
                        Err(error) => assert_eq!(error.kind(), Kind::Unavailable, "{error}"),
                    }
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                }
            })
        })
        .collect();
    let count = || acknowledged.lock().expect("a lock").len();
    tokio::task::block_in_place(|| {
        for _ in 0..3 {
            let before = count();
            wait_until("some writes are acknowledged", || count() > before + 200);
            server.kill_9();
            server.start_again();
        }
        let before = count();
        wait_until("the old handle writes again", || count() > before + 50);
    });
    stop.store(true, Ordering::Relaxed);
    for writer in writers {
        writer.await.expect("a writer ends");
    }
    server.kill_9();
    server.start_again();
    let acknowledged = std::mem::take(&mut *acknowledged.lock().expect("a lock"));
    let ids: Vec<_> = acknowledged.iter().map(|row| row.id).collect();
    let fresh = open(&server).await;
    let found = fresh.read(&ids).await.expect("read");
    for (row, found) in acknowledged.iter().zip(found) {
        assert_eq!(found.expect("it can be read").as_ref(), Some(row));
    }
    let due = fresh.due(Due::Lapsed, FAR_AHEAD, usize::MAX).await.expect("scanned");
    let counts = fresh.counts().await.expect("counted");
    assert_eq!(
        (due.records.len() as u64, due.unreadable),
        (counts.in_progress, 0),
        "no row without its index"
    );
    assert!(counts.in_progress >= acknowledged.len() as u64);
}

/// A batch is there or not: nobody sees a part of it, and a connection that is lost under it does not split it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_large_batch_is_atomic() {
    let server = Redis::start(DURABLE);
    let (writer, watcher) = (open(&server).await, open(&server).await);
    let batch: Vec<_> = rows(2_000).iter().map(insert).collect();
    let done = Arc::new(AtomicBool::new(false));
    let watching = tokio::spawn({
        let done = Arc::clone(&done);
        async move {
            while !done.load(Ordering::Relaxed) {
                let count = watcher.counts().await.expect("counted").in_progress;
                assert!(count.is_multiple_of(2_000), "{count} rows of a batch of 2,000");
            }
        }
    });
    let outcomes = writer.apply(&batch).await.expect("applied");
    assert!(outcomes.iter().all(|outcome| *outcome == Outcome::Applied));
    done.store(true, Ordering::Relaxed);
    watching.await.expect("no part was seen");
}

/// The answer is lost, or the request is: the store cannot tell, says so, and either all or nothing is there.
#[tokio::test]
async fn a_lost_connection_leaves_a_write_in_doubt() {
    let server = Redis::start(DURABLE);
    let proxy = TcpProxy::start(&server.url());
    let store = RedisStore::open(proxy.url_of(&server.url())).await.expect("the store opens");
    let batch: Vec<_> = rows(100).iter().map(insert).collect();
    // From here on the server knows the script: what it is sent it can do.
    assert_eq!(store.apply(&batch[..1]).await.expect("applied"), [Outcome::Applied]);
    for (cut, landed) in [(Cut::BeforeSending, 1), (Cut::AfterSending, 100)] {
        proxy.cut_at(b"key-99", 1, cut);
        let error = store.apply(&batch).await.expect_err("the connection is cut");
        assert_eq!(told(&error), (Kind::Unavailable, Effect::Unknown));
        proxy.fired();
        assert_eq!(server.command(&["ZCARD", "{oncegate}:order:in_progress"]), landed.to_string());
        // The next call connects again by itself.
        assert_eq!(store.counts().await.expect("counted").in_progress, landed);
    }
    proxy.cut();
    // Where nobody answers nothing is sent, and that is known.
    let error = until_some("a write fails without effect", async || match store.apply(&batch).await {
        Err(error) if error.effect() == Effect::None => Some(error),
        _ => None,
    });
    assert_eq!(told(&error.await), (Kind::Unavailable, Effect::None));
    let (row, read) = (id("key-1"), store.read(&[id("key-1")]).await);
    assert_eq!(told(&read.expect_err("nobody answers")), (Kind::Unavailable, Effect::None), "{row}");
}

/// A server that hangs costs a call its limit, and no more; what was sent may land, and here it does.
#[tokio::test]
async fn a_server_that_hangs_leaves_a_write_in_doubt() {
    let server = Redis::start(DURABLE);
    let options = RedisOptions::new(server.url()).limit(Duration::from_secs(1));
    let store = options.open().await.expect("the store opens");
    let row = reserved("hangs", 1, LONG_AGO);
    // From here on the server knows the script: what it is sent it can do.
    assert_eq!(
        store.apply(&[insert(&reserved("first", 1, LONG_AGO))]).await.expect("applied"),
        [Outcome::Applied]
    );
    server.pause();
    let started = Instant::now();
    let error = store.apply(&[insert(&row)]).await.expect_err("it hangs");
    assert_eq!(told(&error), (Kind::Unavailable, Effect::Unknown));
    assert!(started.elapsed() < Duration::from_secs(20), "{:?}", started.elapsed());
    // A new connection is tried, and gets no handshake: nothing was sent.
    let error = store.apply(&[insert(&row)]).await.expect_err("it still hangs");
    assert_eq!(told(&error), (Kind::Unavailable, Effect::None));
    server.resume();
    let found = until_some("the late write has landed", async || match store.read(&[row.id]).await {
        Ok(mut found) => found.pop().expect("a place").expect("it can be read"),
        Err(_) => None,
    });
    assert_eq!(found.await, row, "it landed late");
}

#[tokio::test]
async fn scripts_that_the_server_forgot_are_sent_again() {
    let server = Redis::start(DURABLE);
    let store = open(&server).await;
    for row in rows(3) {
        assert_eq!(server.command(&["SCRIPT", "FLUSH"]), "OK");
        assert_eq!(store.apply(&[insert(&row)]).await.expect("applied"), [Outcome::Applied]);
        assert_eq!(server.command(&["SCRIPT", "FLUSH"]), "OK");
        assert_eq!(store.due(Due::Lapsed, FAR_AHEAD, 1).await.expect("scanned").records.len(), 1);
    }
    assert_eq!(store.counts().await.expect("counted").in_progress, 3);
}

/// A server that takes no writes says so before the first: nothing is written, and what is there can still be shown.
#[tokio::test]
async fn refused_writes_leave_no_trace() {
    let server = Redis::start(DURABLE);
    let store = open(&server).await;
    let kept = reserved("kept", 1, LONG_AGO);
    assert_eq!(store.apply(&[insert(&kept)]).await.expect("applied"), [Outcome::Applied]);
    let other = server.port().to_string();
    let table: &[(&[&str], Kind, &[&str])] = &[
        (&["CONFIG", "SET", "maxmemory", "1"], Kind::Full, &["CONFIG", "SET", "maxmemory", "0"]),
        (
            &["CONFIG", "SET", "min-replicas-to-write", "1"],
            Kind::Unavailable,
            &["CONFIG", "SET", "min-replicas-to-write", "0"],
        ),
        // A primary that does not answer: itself.
        (&["REPLICAOF", "127.0.0.1", &other], Kind::Misconfigured, &["REPLICAOF", "NO", "ONE"]),
    ];
    let next = moved_to(&kept, StateKind::Completed, FAR_AHEAD);
    let batch = [
        insert(&reserved("kept", 2, LONG_AGO)),
        insert(&reserved("new", 1, LONG_AGO)),
        Write::swap(kept.version, Arc::new(next)),
    ];
    for (harm, kind, mend) in table {
        assert_eq!(server.command(harm), "OK");
        let error = store.apply(&batch).await.expect_err("writes are refused");
        assert_eq!(told(&error), (*kind, Effect::None), "{harm:?}: {error}");
        let shown = store.apply(&batch[..1]).await.expect("a clash needs no write");
        assert_eq!(shown, [Outcome::Refused { current: Some(Arc::new(kept.clone())) }], "{harm:?}");
        assert_eq!(server.command(mend), "OK");
        assert_eq!((read(&store, "kept").await, read(&store, "new").await), (Some(kept.clone()), None));
        assert_eq!(server.command(&["GET", "{oncegate}:arrival"]), "1", "{harm:?}");
    }
    let counts = Counts { in_progress: 1, ..Counts::default() };
    assert_eq!(store.counts().await.expect("counted"), counts);
}

/// A node of the release before counts arrivals under another name. Once a node of this release has started, its script
/// writes nothing, and says that its counter is none.
#[tokio::test]
async fn a_node_of_the_release_before_is_refused_once_this_one_has_started() {
    let server = Redis::start(DURABLE);
    assert_eq!(server.command(&["SET", "{oncegate}:seq", "41"]), "OK");
    let store = open(&server).await;
    assert_eq!(server.command(&["GET", "{oncegate}:seq"]), "41", "looking changes nothing");
    assert_eq!(store.check_history().await.expect("a node starts"), History::Intact);
    assert_eq!(server.command(&["GET", "{oncegate}:arrival"]), "41", "the order goes on");
    // Its script is the same, but for the name of the counter.
    let counter = "{oncegate}:seq";
    let keys: Vec<_> = (2..=23).map(|n| format!("{{oncegate}}:none:{n}")).collect();
    let mut words = vec!["EVAL", include_str!("../src/scripts/apply.lua"), "23", counter];
    words.extend(keys.iter().map(String::as_str));
    let refused = server.command(&words);
    assert!(refused.contains("{oncegate}:seq is not a number"), "{refused}");
    assert!(server.command(&["GET", counter]).contains("a newer release has taken over"));
    // A second node changes nothing about that.
    assert_eq!(open(&server).await.check_history().await.expect("a node starts"), History::Intact);
    assert_eq!(server.command(&["GET", "{oncegate}:arrival"]), "41");
}

/// Somebody else's value under one of our names is found before anything is written.
#[tokio::test]
async fn foreign_keys_are_noticed_before_the_first_write() {
    let server = Redis::start(DURABLE);
    let store = open(&server).await;
    let row = reserved("a", 1, LONG_AGO);
    for (name, value) in [
        ("{oncegate}:arrival", "text"),
        ("{oncegate}:order:in_progress", "text"),
        ("{oncegate}:due:lapsed", "text"),
        ("{oncegate}:trail:entries", "text"),
        ("{oncegate}:trail:ages", "text"),
        ("{oncegate}:references:of", "text"),
    ] {
        assert_eq!(server.command(&["SET", name, value]), "OK");
        let write = insert(&row).telling(Some(entry(&row, LONG_AGO, Act::Began)));
        let error = store.apply(&[write]).await.expect_err("a foreign key");
        assert_eq!(told(&error), (Kind::Misconfigured, Effect::None), "{error}");
        assert!(error.to_string().contains(name), "{error}");
        assert_eq!(server.command(&["DEL", name]), "1");
        assert_eq!(server.command(&["DBSIZE"]), "0", "{name}");
    }
    assert_eq!(store.apply(&[insert(&row)]).await.expect("applied"), [Outcome::Applied]);
}

/// An access rule forbids one row. A batch with a write of that row was taken for a server that is set
/// up wrongly, and all its writes failed. It is a rejection: nothing is written, and the engine
/// applies the writes one by one.
#[tokio::test]
async fn a_batch_with_a_row_that_the_server_forbids_is_rejected_whole() {
    let server = Redis::start(DURABLE);
    let store = open(&server).await;
    let rows = rows(6);
    let batch: Vec<_> = rows.iter().map(insert).collect();
    let allowed = rows.iter().enumerate().filter(|(n, _)| *n != 2);
    let allowed = allowed.map(|(_, row)| format!("~{{oncegate}}:row:{}", row.id));
    let mut rule: Vec<String> =
        ["ACL", "SETUSER", "default", "resetkeys", "%R~*", "~{oncegate}:[^r]*", "~{oncegate}:r[^o]*"]
            .map(str::to_owned)
            .into();
    rule.extend(allowed);
    let words: Vec<&str> = rule.iter().map(String::as_str).collect();
    assert_eq!(server.command(&words), "OK");

    let error = store.apply(&batch).await.expect_err("one row is forbidden");
    assert!(error.is_rejection(), "{error}");
    assert_eq!(server.command(&["DBSIZE"]), "0", "nothing of the batch is written");
    let alone = store.apply(&batch[2..3]).await.expect_err("the row is forbidden");
    assert!(alone.is_rejection(), "{alone}");
    let others: Vec<_> =
        batch.iter().enumerate().filter(|(n, _)| *n != 2).map(|(_, write)| write.clone()).collect();
    assert_eq!(store.apply(&others).await.expect("applied"), vec![Outcome::Applied; 5]);
}

/// A row that cannot be read refuses only the writes that are about it.
#[tokio::test]
async fn damaged_rows_hinder_nobody() {
    let server = Redis::start(DURABLE);
    let store = open(&server).await;
    let rows = rows(6);
    let batch: Vec<_> = rows.iter().map(insert).collect();
    store.apply(&batch).await.expect("applied").clear();
    let name = |n: usize| format!("{{oncegate}}:row:{}", rows[n].id);
    assert_eq!(server.command(&["SET", &name(0), "garbage"]), "OK");
    // Larger than all that a scan reads.
    assert_ne!(server.command(&["SETRANGE", &name(0), "9437184", "X"]), "0");
    assert_eq!(server.command(&["SET", &name(1), ""]), "OK");
    // In the scope: it would be another's row.
    assert_ne!(server.command(&["SETRANGE", &name(2), "17", "X"]), "0");
    assert_eq!(server.command(&["DEL", &name(3)]), "1");
    assert_eq!(server.command(&["HSET", &name(3), "a", "b"]), "1");

    let outcomes = store.apply(&batch).await.expect("applied");
    for (n, outcome) in outcomes.iter().enumerate() {
        match outcome {
            Outcome::Unreadable { .. } if n < 4 => {}
            Outcome::Refused { current: Some(row) } if n >= 4 => assert_eq!(**row, rows[n]),
            other => panic!("write {n}: {other:?}"),
        }
    }
    let ids: Vec<_> = rows.iter().map(|row| row.id).collect();
    let found = store.read(&ids).await.expect("read");
    assert!(found[..3].iter().all(|row| row.as_ref().is_err_and(|error| error.kind() == Kind::Unreadable)));
    assert!(found[4..].iter().all(|row| row.as_ref().is_ok_and(Option::is_some)));
    let scan = store.due(Due::Lapsed, FAR_AHEAD, 2).await.expect("scanned");
    assert_eq!((scan.records.len(), scan.unreadable), (2, 4), "passed over, not stumbled upon");
    let page = store.browse(&Filter::default(), None, 10).await.expect("browsed");
    assert_eq!((page.records.len(), page.unreadable), (2, 4));
}

/// Through all states and out: at each step a row is in the sorted sets that are its own and in no others, it keeps its place
/// among the others, and in the end nothing of it is left.
#[tokio::test]
async fn a_row_is_listed_where_it_belongs_and_leaves_nothing_behind() {
    let server = Redis::start(DURABLE);
    let store = open(&server).await;
    let others = [reserved("older", 1, LONG_AGO), reserved("newer", 1, LONG_AGO)];
    let mut row = reserved("a", 1, LONG_AGO);
    let batch = [insert(&others[0]), insert(&row), insert(&others[1])];
    store.apply(&batch).await.expect("applied").clear();
    let own = || -> Vec<String> {
        let names =
            ["pending", "in_progress", "completed", "failed_retryable", "unknown", "expired", "parked"];
        let orders = names.iter().map(|name| format!("order:{name}"));
        let dues = ["pending", "lapsed", "resumable", "doubted", "expired"].map(|name| format!("due:{name}"));
        let has = |name: &String| {
            !server.command(&["ZSCORE", &format!("{{oncegate}}:{name}"), &id("a").to_string()]).is_empty()
        };
        let doubts = ["open", "parked"].map(|name| format!("doubts:{name}"));
        orders.chain(dues).chain(doubts).filter(has).collect()
    };
    assert_eq!(own(), ["order:in_progress", "due:lapsed"]);
    let steps: [(Record, &[&str]); 8] = [
        (moved_to(&row, StateKind::Pending, LONG_AGO), &["order:pending", "due:pending", "due:expired"]),
        (moved_to(&row, StateKind::InProgress, LONG_AGO), &["order:in_progress", "due:lapsed"]),
        (moved_to(&row, StateKind::Unknown, LONG_AGO), &["order:unknown", "due:doubted", "doubts:open"]),
        (parked(&row), &["order:parked", "doubts:open", "doubts:parked"]),
        (moved_to(&row, StateKind::FailedRetryable, LONG_AGO), &["order:failed_retryable", "due:expired"]),
        (Record { expires_at: None, ..moved_to(&row, StateKind::Expired, LONG_AGO) }, &["order:expired"]),
        (
            Record { expires_at: Some(LONG_AGO), ..moved_to(&row, StateKind::Pending, LONG_AGO) },
            &["order:pending", "due:pending", "due:expired"],
        ),
        (moved_to(&row, StateKind::Completed, LONG_AGO), &["order:completed", "due:expired"]),
    ];
    let remove = |row: &Record| Write::remove(row.id, row.version, Duration::ZERO);
    for (next, names) in steps {
        let next = Record { version: Version::from_raw(row.version.as_raw() + 1), ..next };
        let swap = Write::swap(row.version, Arc::new(next.clone()));
        assert_eq!(store.apply(&[swap]).await.expect("applied"), [Outcome::Applied]);
        row = next;
        assert_eq!(own(), names);
        let page = store.browse(&Filter::default(), None, 9).await.expect("browsed");
        assert_eq!(page.records, [others[1].clone(), row.clone(), others[0].clone()], "it keeps its place");
        // Waiting work is never removed, though its time is up; nor what has no end.
        let is_settled = matches!(row.state.kind(), StateKind::Completed | StateKind::FailedRetryable);
        if !is_settled {
            let refused = [Outcome::Refused { current: Some(Arc::new(row.clone())) }];
            assert_eq!(store.apply(&[remove(&row)]).await.expect("refused"), refused);
        }
    }
    assert_eq!(store.apply(&[remove(&row)]).await.expect("applied"), [Outcome::Applied]);
    assert_eq!(own(), [""; 0]);
    assert_eq!(read(&store, "a").await, None);
    // Two rows, one order, one due, the counter.
    assert_eq!(server.command(&["DBSIZE"]), "5");
}

/// A story that takes several calls; and what is dropped leaves nothing behind.
#[tokio::test]
async fn long_stories_come_whole_and_leave_nothing_behind() {
    let server = Redis::start(DURABLE);
    let store = open(&server).await;
    let row = reserved("a", 1, LONG_AGO);
    let at = |n: u64| LONG_AGO.plus(Duration::from_secs(n));
    // The last to come is the oldest: a story is told in the order in which it came.
    let entries: Vec<_> = (0..700).rev().map(|n| entry(&row, at(n), Act::NotKnown)).collect();
    store.tell(&entries).await.expect("told");
    assert_eq!(store.story(row.id, usize::MAX).await.expect("told"), entries);
    assert_eq!(store.story(row.id, 600).await.expect("told"), entries[100..]);
    assert_eq!(store.drop_entries(at(600), 550).await.expect("dropped"), 550);
    assert_eq!(store.story(row.id, usize::MAX).await.expect("told"), entries[..150]);
    assert_eq!(store.drop_entries(FAR_AHEAD, usize::MAX).await.expect("dropped"), 150);
    assert_eq!(server.command(&["DBSIZE"]), "1", "the counter is left");
}

/// What a provider calls a record finds it, through every change, and is gone with it.
#[tokio::test]
async fn a_reference_goes_where_its_record_goes() {
    let server = Redis::start(DURABLE);
    let store = open(&server).await;
    let mut row = reserved("a", 1, LONG_AGO);
    assert_eq!(store.apply(&[insert(&row)]).await.expect("applied"), [Outcome::Applied]);
    for reference in [Some("one"), Some("one"), Some("two"), None, Some("three")] {
        let mut next = moved_to(&row, StateKind::Completed, LONG_AGO);
        next.provider_reference = reference.map(Into::into);
        let swap = Write::swap(row.version, Arc::new(next.clone()));
        assert_eq!(store.apply(&[swap]).await.expect("applied"), [Outcome::Applied]);
        row = next;
        for asked in ["one", "two", "three"] {
            let filter = Filter { reference: Some(asked.to_owned()), ..Filter::default() };
            let found = store.browse(&filter, None, 9).await.expect("browsed").records;
            assert_eq!(found.len(), usize::from(reference == Some(asked)), "{reference:?}, {asked}");
        }
        assert_eq!(server.command(&["EXISTS", "{oncegate}:references:ids"]) == "1", reference.is_some());
    }
    let remove = Write::remove(row.id, row.version, Duration::ZERO);
    assert_eq!(store.apply(&[remove]).await.expect("applied"), [Outcome::Applied]);
    assert_eq!(server.command(&["DBSIZE"]), "1", "the counter is left");
}

/// A page and a scan that take several calls.
#[tokio::test]
async fn long_lists_come_whole() {
    let server = Redis::start(DURABLE);
    let store = open(&server).await;
    let rows = rows(700);
    store.apply(&rows.iter().map(insert).collect::<Vec<_>>()).await.expect("applied").clear();
    let scan = store.due(Due::Lapsed, FAR_AHEAD, usize::MAX).await.expect("scanned");
    assert_eq!(scan.records.len(), 700);
    let page = store.browse(&Filter::default(), None, 600).await.expect("browsed");
    assert!(page.records.iter().eq(rows.iter().rev().take(600)), "newest first");
    let rest = store.browse(&Filter::default(), page.next.as_ref(), usize::MAX).await.expect("browsed");
    assert!(rest.records.iter().eq(rows[..100].iter().rev()));
    assert_eq!(rest.next, None);
    let last = Filter { key: Some("key-0".to_owned()), ..Filter::default() };
    assert_eq!(store.browse(&last, None, 1).await.expect("browsed").records, rows[..1]);
}

/// Rows of excepted operations are read and skipped. A scan that has skipped too many says where the
/// next one begins, and that one finds what is behind them.
#[tokio::test]
async fn a_scan_that_skips_many_rows_says_where_the_next_one_begins() {
    let server = Redis::start(&[]);
    let store = RedisOptions::new(server.url()).limit(Duration::from_secs(30));
    let store = store.open().await.expect("the store opens");
    let [many, few] = ["POST /many", "POST /few"].map(|one| Operation::new(one).expect("an operation"));
    let doubt = |n: u64, operation: &Operation| {
        let since = LONG_AGO.plus(Duration::from_millis(n));
        let base = reserved(&format!("key-{n}"), n, since);
        moved_to(&Record { operation: operation.clone(), ..base }, StateKind::Unknown, since)
    };
    let mut rows: Vec<_> = (0..16_700).map(|n| doubt(n, &many)).collect();
    rows.push(doubt(16_700, &few));
    for rows in rows.chunks(500) {
        let writes: Vec<_> = rows.iter().map(insert).collect();
        store.apply(&writes).await.expect("applied").clear();
    }
    let except = [many];
    let first = Moments::by(FAR_AHEAD);
    let scan = store.doubted_except(&except, first, 10).await.expect("scanned");
    let from = scan.skipped_until.expect("it says how far it came");
    assert!(scan.is_cut && scan.records.is_empty() && rows[16_000].created_at < from, "{from:?}");
    let rest = Moments { from, ..first };
    let scan = store.doubted_except(&except, rest, 10).await.expect("scanned");
    assert_eq!(scan.records, rows[16_700..]);
    assert!(!scan.is_cut && scan.skipped_until.is_none());
}

/// Nodes hear each other; a gap is told at the start and after each loss.
#[tokio::test]
async fn signals_reach_the_other_node_and_a_loss_is_a_gap() {
    let mut server = Redis::start(DURABLE);
    let (one, two) = (open(&server).await, open(&server).await);
    let other = RedisOptions::new(server.url()).prefix("other").open().await.expect("the store opens");
    let (one, two) = (one.signals().expect("signals"), two.signals().expect("signals"));
    let other = other.signals().expect("signals");
    assert_eq!(hear(&*two).await, Heard::Gap, "it listens from now on");
    let told = [Signal::Settled(id("a")), Signal::Forgotten(id("b"))];
    other.tell(&[Signal::Settled(id("not yours"))]).await.expect("told");
    one.tell(&[]).await.expect("told");
    one.tell(&told).await.expect("told");
    assert_eq!(hear(&*two).await, Heard::Signals(told.to_vec()));
    two.tell(&told[..1]).await.expect("told");
    assert_eq!(hear(&*two).await, Heard::Signals(told[..1].to_vec()), "its own too");
    server.kill_9();
    let error = until_some("telling fails", async || one.tell(&told).await.err()).await;
    assert_eq!(error.kind(), Kind::Unavailable);
    server.start_again();
    assert_eq!(hear(&*two).await, Heard::Gap, "whatever was told meanwhile was missed");
    until_some("telling works again", async || one.tell(&told).await.ok()).await;
    assert_eq!(hear(&*two).await, Heard::Signals(told.to_vec()));
}

/// A listener that falls behind is told so, and hears on from there.
#[tokio::test]
async fn signals_that_nobody_fetches_become_a_gap() {
    const MANY: usize = 1_500;
    let server = Redis::start(DURABLE);
    let store = open(&server).await;
    let signals = store.signals().expect("signals");
    assert_eq!(hear(&*signals).await, Heard::Gap, "it listens from now on");
    let told = [Signal::Settled(id("a"))];
    until_some("the listener has fallen behind", async || {
        for _ in 0..MANY {
            signals.tell(&told).await.expect("told");
        }
        // All of them, or fewer and a gap.
        for _ in 0..MANY {
            if hear(&*signals).await == Heard::Gap {
                return Some(());
            }
        }
        None
    })
    .await;
    // It hears on; until it has caught up there may be further gaps.
    let last = Heard::Signals(vec![Signal::Forgotten(id("last"))]);
    until_some("it hears on", async || {
        signals.tell(&[Signal::Forgotten(id("last"))]).await.expect("told");
        loop {
            match hear(&*signals).await {
                Heard::Gap => return None,
                heard if heard == last => return Some(()),
                Heard::Signals(_) => {}
            }
        }
    })
    .await;
}

async fn hear(signals: &dyn Signals) -> Heard {
    tokio::time::timeout(Duration::from_mins(1), signals.hear()).await.expect("something is heard")
}
