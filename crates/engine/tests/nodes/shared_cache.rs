//! Redis as a cache that nodes share, under everything that may happen to a Redis: it changes no answer.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use oncegate_core::decide::{Decision, Event};
use oncegate_core::policy::Profile;
use oncegate_core::record::Reason;
use oncegate_engine::{Arrived, Engine, Options, Route, Settled, Shared};
use oncegate_store_redis::RedisCacheOptions;
use oncegate_store_sql::PostgresStore;
use oncegate_test_servers::{Postgres, Redis, shared, wait_until};
use tokio::runtime::{Builder, Runtime};

use crate::schema::own_schema;
use crate::world::{Dice, complete, completed, granted, id, node, replayed, request, route, unique, words};

const NODES: usize = 3;

/// Options of a node that keeps next to nothing itself.
fn options(redis: &Redis, limit: Duration) -> Options {
    let cache = RedisCacheOptions::new(redis.url()).limit(limit).breaker(5, Duration::from_millis(50));
    Options {
        cache_bytes: 2_000,
        shared_cache: Some(Shared::new(cache.start().unwrap())),
        ..Options::default()
    }
}

fn payments() -> Route {
    route(Profile::Ietf, |_| ())
}

fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// Where the entry of a key is.
fn entry(key: &str) -> String {
    format!("{{oncegate}}:cache:{}", id(&payments(), key))
}

fn ask(runtime: &Runtime, engine: &Engine<PostgresStore>, key: &str) -> Arrived<PostgresStore> {
    runtime.block_on(engine.arrive(&payments(), request(&payments(), key))).unwrap()
}

/// The store is gone, and what Redis has is replayed all the same, by a node that has never seen it; what it has not is 503.
pub(crate) fn healthy() {
    const KEYS: usize = 50;
    let patient = Duration::from_secs(10);
    let (mut server, redis, runtime) = (Postgres::start(&[]), Redis::start(&[]), runtime());
    let [a, b, c] = [(); 3].map(|()| runtime.block_on(node(&server.url(), options(&redis, patient))));
    let keys: Vec<_> = (0..KEYS).map(|number| format!("k-{number}")).collect();
    wait_until("B's cache is connected and has kept something", || {
        let key = unique("warm");
        runtime.block_on(completed(granted(ask(&runtime, &a, &key)), "up"));
        assert_eq!(replayed(ask(&runtime, &b, &key)), "up");
        redis.command(&["DBSIZE"]) != "0"
    });
    for key in &keys {
        runtime.block_on(completed(granted(ask(&runtime, &a, key)), &format!("paid {key}")));
        assert_eq!(replayed(ask(&runtime, &b, key)), format!("paid {key}"));
    }
    wait_until("all are in Redis", || keys.iter().all(|key| redis.command(&["EXISTS", &entry(key)]) == "1"));
    let mut rotated = keys.iter().cycle();
    wait_until("C's cache is connected", || {
        let _ = replayed(ask(&runtime, &c, rotated.next().unwrap()));
        !redis.command(&["INFO", "stats"]).contains("keyspace_hits:0")
    });
    server.stop_immediate();
    for key in &keys {
        assert_eq!(replayed(ask(&runtime, &c, key)), format!("paid {key}"), "from Redis");
    }
    let fresh = runtime.block_on(c.arrive(&payments(), request(&payments(), "fresh")));
    assert!(fresh.is_err(), "{fresh:?}");
    println!("{KEYS} answers replayed from Redis with PostgreSQL stopped; a fresh key was refused");
}

/// Found by review: two stores behind one Redis, with the same tenant and key, replayed each other's answers.
pub(crate) fn two_stores() {
    let (redis, runtime) = (Redis::start(&[]), runtime());
    let patient = Duration::from_secs(10);
    let [first, other] = [(); 2].map(|()| own_schema(&shared::postgres_url()));
    let [a, b, c] =
        [&first, &first, &other].map(|schema| runtime.block_on(node(&schema.url, options(&redis, patient))));
    let key = unique("both");
    runtime.block_on(completed(granted(ask(&runtime, &a, &key)), "of the first"));
    wait_until("it is in Redis", || {
        assert_eq!(replayed(ask(&runtime, &b, &key)), "of the first");
        redis.command(&["EXISTS", &entry(&key)]) == "1"
    });
    let hits = || {
        redis
            .command(&["INFO", "stats"])
            .lines()
            .find(|line| line.starts_with("keyspace_hits"))
            .map(str::to_owned)
    };
    let before = hits();
    let mut n = 0;
    // Until the other store's node has in fact been shown the first one's answer.
    wait_until("C's cache is connected", || {
        n += 1;
        let key = unique(&format!("warm-{n}"));
        assert_eq!(redis.command(&["SET", &entry(&key), "x"]), "OK");
        let held = granted(ask(&runtime, &c, &key));
        runtime.block_on(completed(held, "up"));
        hits() != before
    });
    let before = hits();
    runtime.block_on(completed(granted(ask(&runtime, &c, &key)), "of the other"));
    assert_ne!(hits(), before, "it was asked for, and found");
    assert_eq!(replayed(ask(&runtime, &c, &key)), "of the other");
    assert_eq!(replayed(ask(&runtime, &a, &key)), "of the first");
}

/// What has happened under load: each key's effects, and what was told of it.
struct Ledger {
    effects: Mutex<HashMap<String, Vec<String>>>,
    replays: AtomicU64,
    refused: AtomicU64,
    is_over: AtomicBool,
}

const KEYS: usize = 300;
const CALLERS: usize = 4;

impl Ledger {
    async fn call(self: Arc<Self>, engine: Engine<PostgresStore>, seed: u64) {
        let (route, mut dice) = (payments(), Dice::new(seed));
        while !self.is_over.load(Ordering::Acquire) {
            // Fresh keys all the time, beside those that are known.
            let fresh = self.replays.load(Ordering::Acquire) / 100;
            let key = format!("k-{}", dice.below(KEYS + usize::try_from(fresh).unwrap()));
            match engine.arrive(&route, request(&route, &key)).await.unwrap() {
                Arrived::Execute(mut held) => {
                    held.begin().unwrap();
                    let mine = unique(&key);
                    self.effects.lock().unwrap().entry(key).or_default().push(mine.clone());
                    let settled = held.settle(complete(&mine)).await;
                    assert!(matches!(settled, Settled::Done(_)), "{settled:?}");
                }
                Arrived::Replay { answer, .. } => {
                    let truth = self.effects.lock().unwrap().get(&key).cloned().unwrap_or_default();
                    assert_eq!(truth, [words(&answer)], "{key}: a wrong answer");
                    self.replays.fetch_add(1, Ordering::AcqRel);
                }
                Arrived::Busy { .. } => {
                    self.refused.fetch_add(1, Ordering::AcqRel);
                }
                other => panic!("{key}: {other:?}"),
            }
            tokio::task::yield_now().await;
        }
    }

    /// Until the load has gone on for a while.
    fn go_on(&self, calls: &[tokio::task::JoinHandle<()>]) {
        let before = self.replays.load(Ordering::Acquire);
        wait_until("the load goes on", || {
            assert!(calls.iter().all(|call| !call.is_finished()), "a caller has failed");
            self.replays.load(Ordering::Acquire) >= before + 2_000
        });
    }
}

fn hits(redis: &Redis) -> u64 {
    let info = redis.command(&["INFO", "stats"]);
    let hits = info.lines().find_map(|line| line.strip_prefix("keyspace_hits:"));
    hits.unwrap().trim().parse().unwrap()
}

/// Killed, emptied, frozen, started again, filled with rubbish and with other keys' entries.
pub(crate) fn troubled() {
    let (mut redis, runtime) = (Redis::start(&[]), runtime());
    let schema = own_schema(&shared::postgres_url());
    let ledger = Arc::new(Ledger {
        effects: Mutex::default(),
        replays: AtomicU64::new(0),
        refused: AtomicU64::new(0),
        is_over: AtomicBool::new(false),
    });
    let mut calls = Vec::new();
    for number in 0..NODES {
        let options =
            Options { store_timeout: Duration::from_mins(1), ..options(&redis, Duration::from_millis(5)) };
        let engine = runtime.block_on(node(&schema.url, options));
        for caller in 0..CALLERS {
            let seed = u64::try_from(number * CALLERS + caller).unwrap();
            calls.push(runtime.spawn(Arc::clone(&ledger).call(engine.clone(), seed)));
        }
    }
    let mut served = 0;
    for _ in 0..2 {
        wait_until("replays come from Redis", || hits(&redis) > 100);
        ledger.go_on(&calls);
        served += hits(&redis);
        redis.kill_9();
        ledger.go_on(&calls);
        redis.start_again();
        wait_until("replays come from Redis again", || hits(&redis) > 100);
        assert_eq!(redis.command(&["FLUSHALL"]), "OK");
        ledger.go_on(&calls);
        redis.pause();
        ledger.go_on(&calls);
        redis.resume();
        for number in 0..KEYS {
            let (name, other) = (entry(&format!("k-{number}")), entry(&format!("k-{}", (number + 1) % KEYS)));
            let _ = match number % 3 {
                0 => redis.command(&["SET", &name, "rubbish"]),
                1 => redis.command(&["COPY", &other, &name, "REPLACE"]),
                _ => redis.command(&["SETRANGE", &name, "60", "damage"]),
            };
        }
        ledger.go_on(&calls);
        served += hits(&redis);
        redis.kill_9();
        redis.start_again();
    }
    ledger.is_over.store(true, Ordering::Release);
    for call in calls {
        runtime.block_on(call).unwrap();
    }
    let effects = ledger.effects.lock().unwrap();
    let fresh = runtime.block_on(node(&schema.url, Options::default()));
    for (key, all) in &*effects {
        assert_eq!(*all, [replayed(ask(&runtime, &fresh, key))], "{key} ran once, and that is what is kept");
    }
    println!(
        "Redis in trouble: {} keys ran once, {} replays and none wrong, {} times 409; Redis was asked and had it {served} times",
        effects.len(),
        ledger.replays.load(Ordering::Acquire),
        ledger.refused.load(Ordering::Acquire),
    );
    assert!(served > 100);
}

/// An entry from before an operator's forgetting is put back again and again, as a Redis restored from a snapshot would. While
/// the tombstone stands it may be replayed, if it is young; once the key runs again, never.
pub(crate) fn stale() {
    const AGE: Duration = Duration::from_secs(2);
    let (redis, runtime) = (Redis::start(&[]), runtime());
    let schema = own_schema(&shared::postgres_url());
    let patient = Duration::from_secs(10);
    let nodes: Vec<_> = (0..NODES)
        .map(|_| {
            runtime.block_on(node(&schema.url, Options { cache_age_max: AGE, ..options(&redis, patient) }))
        })
        .collect();
    let route = payments();
    runtime.block_on(completed(granted(ask(&runtime, &nodes[0], "k")), "life 1"));
    // Shown by the store, and kept in Redis as of then.
    wait_until("the entry is in Redis", || {
        let other = runtime.block_on(node(&schema.url, options(&redis, patient)));
        assert_eq!(replayed(ask(&runtime, &other, "k")), "life 1");
        redis.command(&["COPY", &entry("k"), "aside", "REPLACE"]) == "1"
    });
    let put_back = || assert_eq!(redis.command(&["COPY", "aside", &entry("k"), "REPLACE"]), "1");
    let row = runtime.block_on(nodes[0].read(id(&route, "k"))).unwrap().unwrap();
    // As `Engine::forget`, but without its minute of slack.
    let forget = Event::Forget {
        version: row.version,
        reason: Reason::new("operator", "a test"),
        cache_age_max: AGE + Duration::from_secs(1),
    };
    let step = runtime.block_on(nodes[0].drive(row.id, &forget)).unwrap();
    assert_eq!(step.decision, Decision::Done);
    let (mut young, mut shut, started) = (0, 0, Instant::now());
    let second = 'second: loop {
        assert!(started.elapsed() < Duration::from_mins(1), "the key stays shut");
        put_back();
        for node in &nodes {
            match ask(&runtime, node, "k") {
                Arrived::Replay { answer, .. } => {
                    assert_eq!(words(&answer), "life 1");
                    young += 1;
                }
                Arrived::Gone { .. } => shut += 1,
                Arrived::Execute(held) => break 'second *held,
                other => panic!("{other:?}"),
            }
        }
    };
    for node in &nodes {
        put_back();
        let seen = ask(&runtime, node, "k");
        assert!(matches!(seen, Arrived::Busy { .. }), "{seen:?}");
    }
    runtime.block_on(completed(second, "life 2"));
    for _ in 0..50 {
        for node in &nodes {
            put_back();
            assert_eq!(replayed(ask(&runtime, node, "k")), "life 2");
        }
    }
    println!(
        "a stale entry put back all the time: replayed {young} times while it was young, refused {shut} times, never after"
    );
    assert!(young > 0 && shut > 0, "the stale entry was never looked at");
}
