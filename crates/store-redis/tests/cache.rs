//! The shared cache: quick and right when Redis is there, quick and empty when it is not.

#![expect(clippy::expect_used, reason = "tests")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use oncegate_conformance::samples::{FAR_AHEAD, LONG_AGO, answer, id, moved_to, reserved};
use oncegate_core::record::{Record, State, StateKind};
use oncegate_store::shared_cache::{Kept, Realm, SharedCache};
use oncegate_store_redis::{RedisCache, RedisCacheOptions};
use oncegate_test_servers::{Redis, TcpProxy, until};

/// Tests wait for the cache, not the other way round: on a busy machine five milliseconds are short.
const PATIENT: Duration = Duration::from_secs(10);

fn kept(key: &str) -> Kept {
    let record = moved_to(&reserved(key, 1, LONG_AGO), StateKind::Completed, FAR_AHEAD);
    Kept { realm: Realm::from_bytes([3; 16]), record: record.into(), shown_at: LONG_AGO }
}

fn start(url: &str) -> RedisCache {
    RedisCacheOptions::new(url).limit(PATIENT).start().expect("the cache starts")
}

fn name(key: &str) -> String {
    format!("{{oncegate}}:cache:{}", id(key))
}

/// Puts and asks until it is there.
async fn put_until_kept(cache: &RedisCache, key: &str) {
    until("what was put is there", async || {
        cache.put(kept(key));
        cache.get(id(key)).await.is_some()
    })
    .await;
    // It was put more often than needed, and a put that still waits would bring it back after a removal. They are written in order.
    let last = format!("after {key}");
    cache.put(kept(&last));
    until("all that was put is written", async || cache.get(id(&last)).await.is_some()).await;
    cache.remove(id(&last));
    until("and the last of it is gone", async || cache.get(id(&last)).await.is_none()).await;
}

#[tokio::test]
async fn what_one_node_puts_another_gets_until_it_is_removed_or_old() {
    let server = Redis::start(&["--maxmemory-policy", "allkeys-lru"]);
    let (one, two) = (start(&server.url()), start(&server.url()));
    put_until_kept(&one, "a").await;
    until("the other node gets it", async || two.get(id("a")).await.is_some()).await;
    assert_eq!(two.get(id("a")).await, Some(kept("a")));
    assert_eq!(two.get(id("b")).await, None);
    let left: u64 = server.command(&["PTTL", &name("a")]).parse().expect("a time to live");
    assert!(left <= 600_000, "{left} ms");
    two.remove(id("a"));
    until("it is removed for all", async || one.get(id("a")).await.is_none()).await;
    assert_eq!(server.command(&["DBSIZE"]), "0");
    let brief = RedisCacheOptions::new(server.url()).limit(PATIENT).age(Duration::from_millis(1));
    let brief = brief.start().expect("the cache starts");
    until("an entry has reached its age", async || {
        brief.put(kept("brief"));
        !server.command(&["INFO", "stats"]).contains("expired_keys:0")
    })
    .await;
    until("it is no longer there", async || brief.get(id("brief")).await.is_none()).await;
}

/// Whatever the bytes are, they are a whole completed record of that id, or nothing.
#[tokio::test]
async fn bytes_that_are_not_the_entry_are_nothing() {
    let server = Redis::start(&[]);
    let cache = start(&server.url());
    put_until_kept(&cache, "a").await;
    put_until_kept(&cache, "b").await;
    assert_eq!(server.command(&["COPY", &name("b"), &name("a"), "REPLACE"]), "1");
    assert_eq!(cache.get(id("a")).await, None, "another's");
    put_until_kept(&cache, "a").await;
    assert_ne!(server.command(&["SETRANGE", &name("a"), "30", "damage"]), "0");
    assert_eq!(cache.get(id("a")).await, None, "damaged");
    put_until_kept(&cache, "a").await;
    let cut = "redis.call('SET', KEYS[1], redis.call('GETRANGE', KEYS[1], 0, -2)) return 1";
    assert_eq!(server.command(&["EVAL", cut, "1", &name("a")]), "1");
    assert_eq!(cache.get(id("a")).await, None, "cut");
    assert_eq!(server.command(&["SET", &name("a"), "garbage"]), "OK");
    assert_eq!(cache.get(id("a")).await, None, "garbage");
    assert_eq!(server.command(&["DEL", &name("a")]), "1");
    assert_eq!(server.command(&["LPUSH", &name("a"), "x"]), "1");
    assert_eq!(cache.get(id("a")).await, None, "not even a string");
    assert_eq!(cache.get(id("b")).await, Some(kept("b")), "and the others are there");
    assert_eq!(server.command(&["FLUSHALL"]), "OK");
    assert_eq!(cache.get(id("b")).await, None, "emptied");
    put_until_kept(&cache, "b").await;
    // A record that is not completed is never an entry, though its bytes are whole.
    let running = Kept { record: reserved("c", 1, LONG_AGO).into(), ..kept("c") };
    cache.put(running);
    put_until_kept(&cache, "after c").await;
    assert_eq!(server.command(&["EXISTS", &name("c")]), "1");
    assert_eq!(cache.get(id("c")).await, None, "not completed");
}

/// Down at the start: an empty cache. Up: a cache. Killed: an empty one, at once. Up again: a cache.
#[tokio::test]
async fn it_recovers_by_itself() {
    let mut server = Redis::start(&[]);
    let proxy = TcpProxy::start(&server.url());
    proxy.cut();
    let cache = start(&proxy.url_of(&server.url()));
    assert_eq!(cache.get(id("a")).await, None);
    cache.put(kept("a"));
    cache.remove(id("a"));
    proxy.mend();
    put_until_kept(&cache, "a").await;
    server.kill_9();
    let started = Instant::now();
    for _ in 0..1_000 {
        assert_eq!(cache.get(id("a")).await, None);
    }
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
    server.start_again();
    put_until_kept(&cache, "a").await;
}

/// A server that hangs costs a few gets their limit, and the others nothing. Without limit or breaker they would wait for the
/// connection to be given up, which takes a second at least. A busy machine may be slow once, but not each time.
#[tokio::test]
async fn a_server_that_hangs_is_left_alone() {
    let server = Redis::start(&[]);
    let mut quickest = Duration::MAX;
    for _ in 0..10 {
        let options = RedisCacheOptions::new(server.url()).limit(Duration::from_millis(100));
        let cache = options.breaker(3, Duration::from_mins(5)).start().expect("the cache starts");
        put_until_kept(&cache, "a").await;
        server.pause();
        let started = Instant::now();
        for _ in 0..200 {
            assert_eq!(cache.get(id("a")).await, None);
        }
        quickest = quickest.min(started.elapsed());
        assert!(quickest >= Duration::from_millis(200), "it did try: {quickest:?}");
        server.resume();
        assert_eq!(cache.get(id("a")).await, None, "the pause is long here");
        if quickest < Duration::from_millis(900) {
            break;
        }
    }
    assert!(quickest < Duration::from_millis(900), "three limits, not two hundred: {quickest:?}");

    let brief = RedisCacheOptions::new(server.url()).limit(Duration::from_millis(100));
    let cache = brief.breaker(3, Duration::from_millis(50)).start().expect("the cache starts");
    put_until_kept(&cache, "a").await;
    server.pause();
    for _ in 0..10 {
        assert_eq!(cache.get(id("a")).await, None);
    }
    server.resume();
    until("the server is asked again", async || cache.get(id("a")).await.is_some()).await;
}

/// A put never waits: what comes while the writer is stuck, beyond the queue, is dropped.
#[tokio::test]
async fn puts_beyond_the_queue_are_dropped() {
    let server = Redis::start(&[]);
    let options = RedisCacheOptions::new(server.url()).limit(PATIENT).changes_max(4);
    let cache = options.start().expect("the cache starts");
    put_until_kept(&cache, "first").await;
    let many: Vec<_> = (0..5_000).map(|n| kept(&format!("key-{n}"))).collect();
    server.pause();
    for kept in many {
        cache.put(kept);
    }
    server.resume();
    put_until_kept(&cache, "last").await;
    let count: u64 = server.command(&["DBSIZE"]).parse().expect("a number");
    assert!((2..5_000).contains(&count), "{count} entries");
}

/// Many gets at once share one connection, and each gets its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_gets_share_a_connection() {
    let server = Redis::start(&[]);
    let proxy = TcpProxy::start(&server.url());
    let cache = Arc::new(start(&proxy.url_of(&server.url())));
    for n in 0..20 {
        put_until_kept(&cache, &format!("key-{n}")).await;
    }
    let gets: Vec<_> = (0..400)
        .map(|n| {
            let cache = Arc::clone(&cache);
            tokio::spawn(async move {
                let key = format!("key-{}", n % 20);
                assert_eq!(cache.get(id(&key)).await, Some(kept(&key)));
            })
        })
        .collect();
    for get in gets {
        get.await.expect("it is its own");
    }
    assert_eq!(proxy.accepted(), 1);
}

/// An answer too large for quick gets is not kept.
#[tokio::test]
async fn large_answers_are_not_kept() {
    let server = Redis::start(&[]);
    let cache = start(&server.url());
    let mut large = kept("large");
    let state = State::Completed(answer(200, &vec![0; 300 << 10]));
    large.record = Record { state, ..(*large.record).clone() }.into();
    put_until_kept(&cache, "small").await;
    cache.put(large);
    put_until_kept(&cache, "after").await;
    assert_eq!(server.command(&["EXISTS", &name("large"), &name("small")]), "1");
}
