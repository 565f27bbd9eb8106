//! Alerts about what requests and the store do.

use std::collections::VecDeque;
use std::time::Duration;

use oncegate_engine::{Options, Worker, WorkerOptions};
use oncegate_store::faulty::Fault;

use crate::watched::{Counting, Watched};
use crate::world::{
    HOUR, Hand, complete, completed, did_not_happen, done, held, id, ietf, impatient, request, route, shaky,
    shaky_on, start, sweep,
};

/// Nobody listens at the only target.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_scraped() {
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    Watched::scraping(closed).until_firing("OncegateNotScraped", async || ()).await;
}

/// Every commit fails, and requests are refused.
#[tokio::test(flavor = "multi_thread")]
async fn commits_fail() {
    let counting = Counting::start().await;
    let store = shaky();
    let engine = start(store.clone(), impatient()).await;
    let route = ietf();
    let mut keys = 0..;
    counting
        .watched()
        .await
        .until_firing("OncegateStoreErrors", async || {
            store.queue(Fault::BeforeWrite);
            let key = format!("k-{}", keys.next().unwrap());
            assert!(engine.arrive(&route, request(&route, &key)).await.is_err());
        })
        .await;
}

/// More requests come than are taken, some of which are served.
#[tokio::test(flavor = "multi_thread")]
async fn requests_get_a_503() {
    let counting = Counting::start().await;
    let engine = start(shaky(), Options::default()).await;
    let route = ietf();
    let mut keys = 0..;
    counting
        .watched()
        .await
        .until_firing("OncegateRefusing", async || {
            completed(&engine, &route, &format!("k-{}", keys.next().unwrap()), "paid").await;
            oncegate_engine::count_refusal("queue", Some(&route));
        })
        .await;
}

/// A retry and the late holder have both had their effect. It is the engine's first act, before anybody scrapes.
#[tokio::test(flavor = "multi_thread")]
async fn an_operation_takes_effect_twice() {
    let counting = Counting::start().await;
    let hand = Hand::new();
    let engine = start(shaky_on(&hand), Options::default()).await;
    let route = ietf();
    let late = held(&engine, &route, "k").await;
    hand.turn(HOUR);
    let _ = sweep(&engine, id(&route, "k")).await;
    let _ = did_not_happen(&engine, id(&route, "k")).await;
    done(held(&engine, &route, "k").await, complete("the retry's")).await;
    drop(late.settle(complete("the late one's")).await);
    counting.watched().await.until_firing("OncegateAlarm", async || ()).await;
}

/// Holders vanish, and their leases are swept, again and again.
#[tokio::test(flavor = "multi_thread")]
async fn leases_keep_lapsing() {
    let counting = Counting::start().await;
    let hand = Hand::new();
    let engine = start(shaky_on(&hand), Options::default()).await;
    let route = ietf();
    let mut keys = 0..;
    counting
        .watched()
        .await
        .until_firing("OncegateZombiesRising", async || {
            let vanished = held(&engine, &route, &format!("k-{}", keys.next().unwrap())).await;
            hand.turn(HOUR);
            let swept =
                engine.work(Worker::Sweeper, &WorkerOptions::default(), &oncegate_engine::NoProbe).await;
            assert_eq!(swept.unwrap().changed, 1);
            drop(vanished);
        })
        .await;
}

/// Half of the time until the deadline is used up by every attempt.
#[tokio::test(flavor = "multi_thread")]
async fn attempts_take_half_of_their_deadline() {
    let counting = Counting::start().await;
    let engine = start(shaky(), Options::default()).await;
    let deadline = Duration::from_millis(500);
    let route = route(|policy| (policy.attempt_deadline, policy.lease) = (deadline, deadline));
    let mut keys = 0..;
    let mut running = VecDeque::new();
    counting
        .watched()
        .await
        .until_firing("OncegateDeadlineTooShort", async || {
            let mut next = held(&engine, &route, &format!("k-{}", keys.next().unwrap())).await;
            next.begin().unwrap();
            running.push_back(next);
            // Each is under way for five of the watch's turns, which are half of the deadline, or more where they are slow.
            if running.len() > 5 {
                drop(running.pop_front().unwrap().settle(complete("slow")).await);
            }
        })
        .await;
}

/// A counter that appears at 1 has always been there to who watches it, so they are there before anything has happened.
#[tokio::test(flavor = "multi_thread")]
async fn counters_without_labels_begin_at_zero() {
    let counting = Counting::start().await;
    let _engine = start(shaky(), Options::default()).await;
    let text = counting.handle().render();
    for name in ["alarm", "store_error", "zombie_key", "reconcile_failed"] {
        let line = format!("api_idempotency_{name}_count 0");
        assert!(text.lines().any(|told| told == line), "{line} is not in:\n{text}");
    }
}

/// Past its last bound a quantile stays there, so a deadline of a quarter of an hour needs bounds beyond five minutes.
#[tokio::test(flavor = "multi_thread")]
async fn execution_times_have_buckets_that_reach_past_a_deadline() {
    let counting = Counting::start().await;
    let engine = start(shaky(), Options::default()).await;
    let route = ietf();
    completed(&engine, &route, "k", "paid").await;
    let text = counting.handle().render();
    let series = "api_idempotency_execute_duration_seconds_bucket{profile=\"ietf\",route=\"POST /payments\"";
    let deadline = route.policy().attempt_deadline.as_secs();
    for bound in [deadline / 3, deadline, 4 * deadline] {
        let line = format!("{series},le=\"{bound}\"}} 1");
        assert!(text.lines().any(|told| told == line), "{line} is not in:\n{text}");
    }
    let line =
        format!("oncegate_attempt_deadline_seconds{{profile=\"ietf\",route=\"POST /payments\"}} {deadline}");
    assert!(text.lines().any(|told| told == line), "{line} is not in:\n{text}");
}
