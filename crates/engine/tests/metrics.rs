//! The meters count what their names say. In a binary of its own, because a recorder is the whole process's.

#![expect(clippy::unwrap_used, clippy::panic, reason = "tests")]

#[path = "metrics/recorder.rs"]
mod recorder;
#[expect(dead_code, reason = "shared with the other tests, which use all of it")]
#[path = "engine/world.rs"]
mod world;

use std::time::Duration;

use oncegate_core::decide::{Event, Finding, Retry, Verdict};
use oncegate_core::identity::Token;
use oncegate_core::key::Key;
use oncegate_core::policy::Profile;
use oncegate_core::record::{AfterRetention, GoneStatus, Reason};
use oncegate_engine::{
    About, Delivering, Delivery, Effect, Effects, Engine, Heard, Life, Message, NoProbe, Options,
    OutboxOptions, Route, Says, Sent, Worker, WorkerOptions, names,
};
use oncegate_store::faulty::Fault;
use oncegate_store::jobs::{Job, JobId, Jobs as _};
use oncegate_store::memory::MemoryStore;

use recorder::Counts;
use world::{
    HOUR, Hand, Shaky, complete, completed, did_not_happen, done, doubt, happened, held, id, ietf, impatient,
    lenient, release, replayed, request, request_of, route, row, scope, shaky, shaky_on, soon, start, sweep,
};

/// A key is created, found in progress, replayed from the cache and from the store, and misused.
#[tokio::test]
async fn the_ends_of_an_arrival_are_counted() {
    let counts = Counts::start().await;
    let store = shaky();
    let engine = start(store.clone(), Options::default()).await;
    let route = ietf();
    let holder = held(&engine, &route, "k").await;
    counts.are(&[(names::CREATED, 1)]);
    for _ in 0..3 {
        drop(engine.arrive(&route, request(&route, "k")).await);
    }
    counts.are(&[(names::CREATED, 1), (names::IN_PROGRESS, 3)]);
    drop(engine.arrive(&route, request_of(&route, "acme", "k", "other")).await);
    counts.are(&[(names::CREATED, 1), (names::IN_PROGRESS, 3), (names::KEY_MISUSE, 1)]);
    done(holder, complete("paid")).await;
    let other = start(store, Options::default()).await;
    for engine in [&engine, &other] {
        replayed(engine, &route, "k").await;
    }
    counts.are(&[(names::CREATED, 1), (names::IN_PROGRESS, 3), (names::KEY_MISUSE, 1), (names::REPLAY, 2)]);
    assert_eq!(counts.of(names::DUPLICATES), 6, "all but the first");
    assert_eq!(counts.of(names::MISUSE), 1);
}

/// Under `lenient` misuse is replayed, and counted as both.
#[tokio::test]
async fn misuse_that_is_replayed_is_counted() {
    let counts = Counts::start().await;
    let engine = start(shaky(), Options::default()).await;
    let route = lenient();
    completed(&engine, &route, "k", "paid").await;
    drop(engine.arrive(&route, request_of(&route, "acme", "k", "other")).await);
    counts.are(&[(names::CREATED, 1), (names::KEY_MISUSE, 1), (names::REPLAY, 1)]);
}

/// A released key runs again.
#[tokio::test]
async fn a_retry_after_a_release_is_counted() {
    let counts = Counts::start().await;
    let engine = start(shaky(), Options::default()).await;
    let route = ietf();
    done(held(&engine, &route, "k").await, release()).await;
    done(held(&engine, &route, "k").await, complete("paid")).await;
    counts.are(&[(names::CREATED, 1), (names::FAILED_RETRY, 1)]);
}

/// A new life begins where an older one had ended.
#[tokio::test]
async fn a_new_life_is_counted() {
    let counts = Counts::start().await;
    let hand = Hand::new();
    let engine = start(shaky_on(&hand), Options::default()).await;
    let route = route(|policy| policy.retention = HOUR);
    completed(&engine, &route, "k", "life 1").await;
    hand.turn(HOUR);
    completed(&engine, &route, "k", "life 2").await;
    counts.are(&[(names::CREATED, 2), (names::AFTER_EXPIRY, 1)]);
}

/// The same where the row of the older life was removed meanwhile, and where that look-up fails.
#[tokio::test]
async fn a_new_life_after_a_removal_is_counted() {
    let counts = Counts::start().await;
    let hand = Hand::new();
    let store = shaky_on(&hand);
    let engine = start(store.clone(), Options::default()).await;
    let route = route(|policy| policy.retention = HOUR);
    completed(&engine, &route, "k", "life 1").await;
    engine.look_up_new_keys().await;
    hand.turn(3 * HOUR);
    let pass = engine.work(Worker::Reaper, &WorkerOptions::default(), &NoProbe).await.unwrap();
    assert_eq!(pass.changed, 1);
    completed(&engine, &route, "k", "life 2").await;
    engine.look_up_new_keys().await;
    counts.are(&[(names::CREATED, 2), (names::AFTER_EXPIRY, 1)]);
    assert_eq!(counts.of(names::AFTER_EXPIRY_UNCHECKED), 0);
    store.fail_reads(usize::MAX);
    completed(&engine, &route, "not looked up", "paid").await;
    engine.look_up_new_keys().await;
    assert_eq!(counts.of(names::AFTER_EXPIRY_UNCHECKED), 1);
}

/// A lease lapses: found by the sweeper in one case, by a retry in the other. Somebody finds out what happened.
#[tokio::test]
async fn zombies_and_their_reconciliation_are_counted() {
    let counts = Counts::start().await;
    let hand = Hand::new();
    let engine = start(shaky_on(&hand), Options::default()).await;
    let route = ietf();
    let swept = held(&engine, &route, "swept").await;
    let found = held(&engine, &route, "found").await;
    hand.turn(HOUR);
    let _ = sweep(&engine, id(&route, "swept")).await;
    drop(engine.arrive(&route, request(&route, "found")).await);
    let so_far =
        [(names::CREATED, 2), (names::ZOMBIE_KEY, 2), (names::RECONCILE_SCHEDULED, 2), (names::UNKNOWN, 1)];
    counts.are(&so_far);
    let _ = happened(&engine, id(&route, "swept"), "it did").await;
    let _ = did_not_happen(&engine, id(&route, "found")).await;
    counts.are(&[&so_far[..], &[(names::RECONCILE_RESOLVED, 2)]].concat());
    drop((swept, found));
    engine.quiet().await;
}

/// A doubt is scheduled, asked about too often and put before an operator; its clients are told that it is unknown.
#[tokio::test]
async fn a_doubt_that_is_parked_is_counted() {
    let counts = Counts::start().await;
    let engine = start(shaky(), Options::default()).await;
    let route = ietf();
    done(held(&engine, &route, "k").await, doubt()).await;
    let doubted = row(&engine, id(&route, "k")).await;
    let retry = Retry { at: doubted.created_at, park_after: 1 };
    let finding = Finding::NotKnown { version: doubted.version, retry };
    let verdict = Verdict { life: doubted.life, source: "probe".into(), reference: None, finding };
    drop(engine.drive(doubted.id, &Event::Verdict(verdict)).await.unwrap());
    drop(engine.arrive(&route, request(&route, "k")).await);
    counts.are(&[
        (names::CREATED, 1),
        (names::RECONCILE_SCHEDULED, 1),
        (names::RECONCILE_FAILED, 1),
        (names::UNKNOWN, 1),
    ]);
}

/// A failed commit, a panic and a store that hangs are errors of the store.
#[tokio::test]
async fn errors_of_the_store_are_counted() {
    let counts = Counts::start().await;
    for (n, fault) in [Fault::BeforeWrite, Fault::Panics, Fault::Delayed].into_iter().enumerate() {
        let store = shaky();
        // Only the one that hangs is given up: to print a panic can take longer than this.
        let store_timeout = if fault == Fault::Delayed { Duration::from_millis(100) } else { HOUR };
        let engine = start(store.clone(), Options { store_timeout, ..impatient() }).await;
        let route = ietf();
        store.queue(fault);
        assert!(soon(engine.arrive(&route, request(&route, &format!("k-{n}")))).await.is_err());
        assert_eq!(counts.of(names::STORE_ERROR), 1 + n as u64, "{fault:?}");
        if fault == Fault::Delayed {
            store.let_go();
        }
        soon(engine.quiet()).await;
    }
}

/// Two attempts of one key have both had their effect: somebody must look.
#[tokio::test]
async fn a_second_effect_is_an_alarm() {
    let counts = Counts::start().await;
    let hand = Hand::new();
    let engine = start(shaky_on(&hand), Options::default()).await;
    let route = ietf();
    let late = held(&engine, &route, "k").await;
    hand.turn(HOUR);
    let _ = sweep(&engine, id(&route, "k")).await;
    let _ = did_not_happen(&engine, id(&route, "k")).await;
    done(held(&engine, &route, "k").await, complete("the retry's")).await;
    assert_eq!(counts.of(names::ALARM), 0);
    drop(late.settle(complete("the late one's")).await);
    assert_eq!(counts.of(names::ALARM), 1);
}

/// Rows past retention are removed, or buried where the policy keeps tombstones. What an operator forgets is neither.
#[tokio::test]
async fn pruned_rows_are_counted() {
    let counts = Counts::start().await;
    let hand = Hand::new();
    let engine = start(shaky_on(&hand), Options::default()).await;
    let removed = ietf();
    let buried = route(|policy| {
        policy.after_retention = AfterRetention::Gone { status: GoneStatus::Gone, tombstone: HOUR };
    });
    completed(&engine, &removed, "removed", "paid").await;
    completed(&engine, &buried, "buried", "paid").await;
    completed(&engine, &removed, "forgotten", "paid").await;
    let key = Key::from_text("forgotten").unwrap();
    let _ = engine.forget(scope(&removed), key, Reason::new("privacy", "asked for")).await.unwrap();
    assert_eq!(counts.of(names::TTL_PRUNED), 0);
    hand.turn(48 * HOUR);
    for (n, key) in ["removed", "buried"].into_iter().enumerate() {
        let reap = Event::Reap { grace: Duration::ZERO };
        drop(engine.drive(id(&removed, key), &reap).await.unwrap());
        assert_eq!(counts.of(names::TTL_PRUNED), 1 + n as u64, "{key}");
    }
}

/// Counters say which profile and which route; a busy scope gets a label of its own.
#[tokio::test]
async fn the_labels_are_profile_route_and_busy_scopes() {
    let counts = Counts::start().await;
    let engine = start(shaky(), Options::default()).await;
    let operation = oncegate_core::scope::Operation::new("POST /refunds").unwrap();
    let route = Route::of_profile(Profile::Stripe, operation);
    completed(&engine, &route, "k", "paid").await;
    assert_eq!(counts.labelled(names::CREATED, &[("profile", "stripe"), ("route", "POST /refunds")]), 1);
    for _ in 0..150 {
        replayed(&engine, &route, "k").await;
    }
    assert_eq!(counts.labelled(names::REPLAY, &[("profile", "stripe"), ("route", "POST /refunds")]), 150);
    let (own, other) = (
        counts.labelled(names::DUPLICATES, &[("scope", "acme")]),
        counts.labelled(names::DUPLICATES, &[("scope", "other")]),
    );
    assert_eq!(own + other, 150);
    assert!(own > 0, "busy since its hundredth");
}

/// Every arrival, settlement, execution and commit is measured.
#[tokio::test]
async fn durations_and_batches_are_measured() {
    let counts = Counts::start().await;
    let engine = start(shaky(), Options::default()).await;
    let route = ietf();
    completed(&engine, &route, "k", "paid").await;
    replayed(&engine, &route, "k").await;
    for (name, times) in [
        (names::ARRIVE_SECONDS, 2),
        (names::EXECUTE_SECONDS, 1),
        (names::SETTLE_SECONDS, 1),
        (names::BATCH_SIZE, 2),
    ] {
        assert_eq!(counts.of(name), times, "{name}");
    }
}

/// A duplicate that waits looks again and again; it is one duplicate.
#[tokio::test]
async fn a_duplicate_that_waits_is_counted_once() {
    let counts = Counts::start().await;
    let options = Options { wait_poll: Duration::from_millis(1), ..Options::default() };
    let store = shaky();
    let engine = start(store.clone(), options).await;
    let route = lenient();
    let holder = held(&engine, &route, "k").await;
    let waiting = tokio::spawn({
        let (engine, route) = (engine.clone(), route.clone());
        async move { engine.arrive_or_wait(&route, request(&route, "k")).await }
    });
    // Looks of the waiter; the first write was the holder's.
    soon(store.until_applied(6)).await;
    done(holder, complete("once")).await;
    drop(soon(waiting).await.unwrap());
    counts.are(&[(names::CREATED, 1), (names::IN_PROGRESS, 1), (names::REPLAY, 1)]);
    assert_eq!(counts.of(names::DUPLICATES), 1);
}

/// Two nodes find the same lapsed leases, and both are about to write: each zombie is counted once.
#[tokio::test]
async fn a_zombie_that_two_nodes_sweep_at_the_same_time_is_counted_once() {
    const ROWS: u64 = 20;
    let counts = Counts::start().await;
    let hand = Hand::new();
    let store = shaky_on(&hand);
    let [a, b] =
        [start(store.clone(), Options::default()).await, start(store.clone(), Options::default()).await];
    let route = ietf();
    let mut holders = Vec::new();
    for n in 0..ROWS {
        holders.push(held(&a, &route, &format!("k-{n}")).await);
    }
    hand.turn(HOUR);
    for _ in 0..ROWS {
        store.queue(Fault::Delayed);
    }
    let sweeping = |engine: &Engine<Shaky>| {
        let engine = engine.clone();
        tokio::spawn(async move {
            engine.work(Worker::Sweeper, &WorkerOptions::default(), &NoProbe).await.unwrap()
        })
    };
    let first = sweeping(&a);
    soon(store.until_delayed(1)).await;
    let second = sweeping(&b);
    soon(store.until_delayed(2)).await;
    for _ in 0..2 * ROWS {
        store.let_go();
    }
    let (first, second) = (soon(first).await.unwrap(), soon(second).await.unwrap());
    assert_eq!((first.seen, second.seen), (20, 20));
    counts.are(&[(names::CREATED, ROWS), (names::ZOMBIE_KEY, ROWS), (names::RECONCILE_SCHEDULED, ROWS)]);
}

/// A message about a key that was never seen is counted when it is kept and when it has come to its end; not if its record appears, nor if it
/// said that nothing happened.
#[tokio::test]
async fn messages_that_are_kept_apart_are_counted() {
    let counts = Counts::start().await;
    let hand = Hand::new();
    let engine = start(shaky_on(&hand), Options::default()).await;
    let route = ietf();
    let happened = || Says::Happened(std::sync::Arc::new(world::answer("paid")));
    for (key, says) in [("appears", happened()), ("never", happened()), ("nor", Says::Failed)] {
        let message = Message {
            name: key.into(),
            about: About::Record(id(&route, key)),
            life: Life::Any,
            source: "stripe".into(),
            reference: None,
            says,
        };
        assert_eq!(engine.hear(&message, HOUR, &NoProbe).await.unwrap(), Heard::KeptApart);
    }
    done(held(&engine, &route, "appears").await, complete("paid")).await;
    hand.turn(2 * HOUR);
    engine.work(Worker::Apart, &WorkerOptions::default(), &NoProbe).await.unwrap();
    assert_eq!((counts.of(names::APART_KEPT), counts.of(names::APART_EXPIRED)), (3, 1));
}

/// A storm of new doubts stood before the old ones: the oldest was not seen, and a dead letter not counted. Then no alert fired.
#[tokio::test]
async fn neither_a_dead_letter_nor_the_oldest_doubt_is_hidden_by_ten_thousand_others() {
    let counts = Counts::start().await;
    let hand = Hand::new();
    let engine = start(shaky_on(&hand), Options::default()).await;
    let (route, options) = (ietf(), WorkerOptions::default());
    done(held(&engine, &route, "dead").await, doubt()).await;
    engine.work(Worker::Reconciler, &options, &NoProbe).await.unwrap();
    done(held(&engine, &route, "old").await, doubt()).await;
    hand.turn(HOUR);
    for n in 0..10_100 {
        done(held(&engine, &route, &format!("k-{n}")).await, doubt()).await;
    }
    engine.work(Worker::Watcher, &options, &NoProbe).await.unwrap();
    let shown = [names::UNKNOWN_OPEN, names::DEAD_LETTERS, names::UNKNOWN_OLDEST]
        .map(|name| counts.gauge(name, &[]).unwrap().to_string());
    assert_eq!(shown, ["10102", "1", "3600"]);
}

/// How much was accepted and waits, and for how long.
#[tokio::test]
async fn what_waits_is_measured() {
    let counts = Counts::start().await;
    let hand = Hand::new();
    let engine = start(shaky_on(&hand), Options::default()).await;
    let route = route(|policy| policy.execution = oncegate_core::record::Execution::Deferred);
    let shown = async || {
        engine.work(Worker::Watcher, &WorkerOptions::default(), &NoProbe).await.unwrap();
        [names::PENDING_WAITING, names::PENDING_OLDEST]
            .map(|name| counts.gauge(name, &[]).unwrap().to_string())
    };
    assert_eq!(shown().await, ["0", "0"]);
    for key in ["one", "two"] {
        let _accepted = engine.arrive(&route, request(&route, key)).await.unwrap();
        // A retry is a duplicate, and nothing more waits for it.
        let _again = engine.arrive(&route, request(&route, key)).await.unwrap();
        hand.turn(HOUR);
    }
    assert_eq!(shown().await, ["2", "7200"]);
    assert_eq!((counts.of(names::CREATED), counts.of(names::IN_PROGRESS)), (2, 2));
}

/// Questions are counted by what was found; passes and their failures by worker.
#[tokio::test]
async fn questions_and_passes_are_counted() {
    let counts = Counts::start().await;
    let store = shaky();
    let engine = start(store.clone(), Options::default()).await;
    let route = ietf();
    done(held(&engine, &route, "k").await, doubt()).await;
    store.fail_reads(1);
    let options = WorkerOptions { sweep_every: Duration::from_millis(1), ..WorkerOptions::default() };
    engine.work(Worker::Sweeper, &options, &NoProbe).await.unwrap_err();
    let mut workers = engine.start_workers(&options, &(std::sync::Arc::new(NoProbe) as _));
    soon(workers.until_passes(Worker::Reconciler, 1)).await;
    soon(workers.until_passes(Worker::Sweeper, 3)).await;
    assert_eq!(counts.labelled(names::PROBE, &[("found", "nobody_to_ask")]), 1);
    assert!(counts.labelled(names::WORKER_PASS, &[("worker", "sweeper")]) >= 3);
    assert_eq!(counts.of(names::WORKER_ERROR), 0);
    store.fail_reads(usize::MAX);
    let passes = workers.passes(Worker::Sweeper);
    soon(workers.until_passes(Worker::Sweeper, passes + 2)).await;
    assert!(counts.labelled(names::WORKER_ERROR, &[("worker", "sweeper")]) >= 1);
}

/// Delivers the first, puts off the second, refuses the third.
struct Moods;

impl Effect for Moods {
    fn deliver<'a>(&'a self, delivery: &'a Delivery<'a>) -> Delivering<'a> {
        Box::pin(std::future::ready(match delivery.payload {
            b"1" => Sent::Delivered { reference: None, answer: None },
            b"2" => Sent::Later { after: None, why: "busy".into() },
            b"4" => Sent::Unreachable { after: None, why: "nobody is there".into() },
            _ => Sent::Refused("no".into()),
        }))
    }
}

#[tokio::test]
async fn the_outbox_is_counted_and_measured() {
    let counts = Counts::start().await;
    let hand = Hand::new();
    let engine = start(MemoryStore::with_clock(hand.clock()), Options::default()).await;
    let (life, effects) = (Token::from_bytes([4; 16]), Effects::new().with("mood", Moods));
    let jobs = [1_u32, 2, 3, 4].map(|n| {
        let whose = (id(&ietf(), "k"), life);
        Job::promised(JobId::of(life, n), "mood", n.to_string().into_bytes(), whose, hand.now())
    });
    engine.store().promise(&jobs).await.unwrap();
    let options = OutboxOptions::default();
    engine.work_outbox(&effects, &options).await.unwrap();
    assert_eq!(counts.of(names::OUTBOX_DELIVERY), 4);
    for result in ["delivered", "later", "refused", "unreachable"] {
        let labels = [("effect", "mood"), ("result", result)];
        assert_eq!(counts.labelled(names::OUTBOX_DELIVERY, &labels), 1, "{result}");
    }
    assert_eq!(counts.of(names::OUTBOX_PARKED), 1);
    assert_eq!(counts.of(names::OUTBOX_SECONDS), 4);
    hand.turn(Duration::from_secs(90));
    engine.tidy_outbox(&effects, &options).await.unwrap();
    let gauge = |name| counts.gauge(name, &[("effect", "mood")]);
    assert_eq!(gauge(names::OUTBOX_WAITING), Some(2.0));
    assert_eq!(gauge(names::OUTBOX_DEAD), Some(1.0));
    assert_eq!(gauge(names::OUTBOX_OLDEST), Some(90.0));
    // Before anything has happened, everything is there, and at nothing.
    let quiet = engine.start_outbox(&Effects::new().with("quiet", Moods), &options);
    assert_eq!(counts.gauge(names::OUTBOX_WAITING, &[("effect", "quiet")]), Some(0.0));
    drop(quiet);
}

/// On a node that does not have the effect, gauges stood at what they had shown last, and alerts fired for ever.
#[tokio::test]
async fn an_outbox_that_another_node_has_emptied_is_shown_as_empty() {
    let counts = Counts::start().await;
    let store = MemoryStore::new();
    let (engine, other) =
        (start(store.clone(), Options::default()).await, start(store, Options::default()).await);
    let (life, effects) = (Token::from_bytes([4; 16]), Effects::new().with("mood", Moods));
    let whose = (id(&ietf(), "k"), life);
    let job = Job::promised(JobId::of(life, 1), "mood", b"1".to_vec(), whose, engine.now().at);
    engine.store().promise(&[job]).await.unwrap();
    let (none, options) = (Effects::new(), OutboxOptions::default());
    engine.tidy_outbox(&none, &options).await.unwrap();
    let waiting = || counts.gauge(names::OUTBOX_WAITING, &[("effect", "mood")]);
    assert_eq!(waiting(), Some(1.0));
    other.work_outbox(&effects, &options).await.unwrap();
    for _ in 0..2 {
        engine.tidy_outbox(&none, &options).await.unwrap();
        assert_eq!(waiting(), Some(0.0));
    }
    assert_eq!(counts.gauge(names::OUTBOX_OLDEST, &[("effect", "mood")]), Some(0.0));
}

/// A gauge says which workers run: the default two, then all that `start_workers` starts, and each once.
#[tokio::test]
async fn the_workers_that_run_are_shown_and_each_runs_once() {
    let counts = Counts::start().await;
    let running = || {
        Worker::ALL_KINDS.map(|worker| {
            counts.gauge(names::WORKER_RUNNING, &[("worker", worker.name())]).unwrap().to_string()
        })
    };
    let engine = Engine::start(MemoryStore::new(), Options::default()).await.unwrap();
    let are = async |expected: [&str; 6]| {
        oncegate_test_servers::until("the gauges show it", async || running() == expected).await;
    };
    are(["1", "1", "0", "0", "0", "0"]).await;
    let workers = engine.start_workers(&WorkerOptions::default(), &(std::sync::Arc::new(NoProbe) as _));
    are(["1", "1", "1", "1", "1", "0"]).await;
    workers.stop().await;
    are(["0"; 6]).await;
    let alone = Engine::start(MemoryStore::new(), Options::default()).await.unwrap();
    are(["1", "1", "0", "0", "0", "0"]).await;
    drop(alone);
    are(["0"; 6]).await;
}
