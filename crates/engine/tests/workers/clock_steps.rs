//! Attacks 20 and 21: the store's clock steps while nodes are running.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use oncegate_core::policy::Policy;
use oncegate_core::record::{CrashPolicy, StateKind};
use oncegate_core::time::Timestamp;
use oncegate_engine::{Arrived, ClockSteps, Engine, Found, Options, Route, Worker};
use oncegate_store::Store;
use oncegate_store::clock::Clock;
use oncegate_store_redis::RedisStore;
use oncegate_store_sql::sqlite::{SqliteOptions, SqliteStore};
use oncegate_test_servers::{Redis, RedisClock, until};
use tempfile::TempDir;

use crate::crew::{Script, doubt_of, doubted, pass, reconcile};
use crate::world::{HOUR, answer, complete, done, held, id, replayed, request, route, start, state};

const HORIZON: Duration = Duration::from_mins(2);

fn with_horizon(change: impl FnOnce(&mut Policy)) -> Route {
    route(|policy| {
        policy.horizon = Some(HORIZON);
        change(policy);
    })
}

/// A machine with one file and one wall clock, which can be set.
struct Machine {
    folder: TempDir,
    off_s: Arc<AtomicI64>,
}

impl Machine {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap(), off_s: Arc::default() }
    }

    fn set_clock(&self, off_s: i64) {
        self.off_s.store(off_s, Ordering::SeqCst);
    }

    /// A process on this machine.
    async fn process(&self) -> Engine<SqliteStore> {
        let off_s = Arc::clone(&self.off_s);
        let clock = Clock::system().set_to(move |now| {
            Timestamp::from_micros(now.as_micros() + 1_000_000 * off_s.load(Ordering::SeqCst))
        });
        let file = self.folder.path().join("oncegate.db");
        start(SqliteOptions::new(file).clock(clock).open().unwrap(), Options::default()).await
    }
}

/// The machine's clock is set forward by an hour while an attempt runs. Its lease looks lapsed,
/// and the first "not found" looks late enough, because lease end + horizon lies in the past. The
/// record was freed, the retry executed, and then the first request arrived at the provider.
#[tokio::test]
async fn attack_20_a_forward_step_that_lapses_a_lease_does_not_end_its_horizon() {
    let machine = Machine::new();
    let (engine, route) = (machine.process().await, with_horizon(|_| ()));
    let mut holder = held(&engine, &route, "k").await;
    holder.begin().unwrap();
    machine.set_clock(3_600);
    assert_eq!(pass(&engine, Worker::Sweeper).await.changed, 1, "the lease looks lapsed");
    let probe = Script::finding([Found::DidNotHappen]);
    let _ = reconcile(&engine, &probe).await;
    assert_eq!(probe.questions(), 1);
    assert_eq!(state(&engine, id(&route, "k")).await, StateKind::Unknown);
    assert_eq!(engine.stats().clock_steps, ClockSteps { forward: 1, back: 0 });
    // The holder still settles what it did.
    done(holder, complete("paid")).await;
    assert_eq!(*replayed(&engine, &route, "k").await, answer("paid"));
}

/// The record is `unknown` before the clock is set forward, so `since` + horizon lies in the past
/// as well. The node noticed the step, so it counts the horizon from there, and asks again later,
/// not in a loop.
#[tokio::test]
async fn attack_20_a_forward_step_after_the_doubt_restarts_its_horizon() {
    let machine = Machine::new();
    let (engine, route) = (machine.process().await, with_horizon(|_| ()));
    let id = doubted(&engine, &route, "k").await;
    machine.set_clock(3_600);
    let probe = Script::finding([Found::DidNotHappen, Found::DidNotHappen]);
    let _ = reconcile(&engine, &probe).await;
    assert_eq!(probe.questions(), 1);
    let doubt = doubt_of(&engine, id).await;
    assert_eq!((doubt.tries, doubt.parked), (0, false), "such a question counts for nothing");
    assert!(doubt.reconcile_after > doubt.since.plus(HOUR), "asked again after the step: {doubt:?}");
    let arrived = engine.arrive(&route, request(&route, "k")).await.unwrap();
    assert!(matches!(arrived, Arrived::Unsettled { .. }), "{arrived:?}");
}

/// A node is restarted right after the clock was set forward. It cannot know of the step, and the horizon of
/// a record that another process left `unknown` seemed to lie in the past: the retry executed while the first
/// request was on its way. So a node counts the horizon from its own start at the earliest.
#[tokio::test]
async fn attack_20_a_node_that_starts_after_a_forward_step_counts_the_horizon_from_its_start() {
    let machine = Machine::new();
    let (first, route) = (machine.process().await, with_horizon(|_| ()));
    let id = doubted(&first, &route, "k").await;
    machine.set_clock(3_600);
    let second = machine.process().await;
    let probe = Script::finding([Found::DidNotHappen]);
    let _ = reconcile(&second, &probe).await;
    assert_eq!(probe.questions(), 1);
    assert_eq!(state(&second, id).await, StateKind::Unknown);
    assert_eq!(second.stats().clock_steps, ClockSteps::default(), "it saw no step");
}

/// `first` was running when the clock was set back by an hour, and `second` started afterwards.
/// `first` must not lapse the fresh lease of `second`, neither for a retry nor for the sweeper. It
/// executes nothing itself, and says why.
async fn no_lease_is_lapsed<S: Store>(first: &Engine<S>, second: &Engine<S>) {
    for (key, crash) in [("a", CrashPolicy::Reconcile), ("b", CrashPolicy::Restart)] {
        let route = with_horizon(|policy| policy.crash = crash);
        let mut holder = held(second, &route, key).await;
        holder.begin().unwrap();
        let fence = holder.lease().holder.fence;
        let arrived = first.arrive(&route, request(&route, key)).await.unwrap();
        assert!(matches!(arrived, Arrived::Busy { .. }), "{crash:?}: {arrived:?}");
        assert_eq!(pass(first, Worker::Sweeper).await.changed, 0, "{crash:?}");
        done(holder, complete("paid")).await;
        assert_eq!(*replayed(first, &route, key).await, answer("paid"), "{crash:?}");

        let refused = first.arrive(&route, request(&route, "new")).await.unwrap_err().to_string();
        assert!(refused.contains("this node's clock may be off by"), "{refused}");
        // Fences grow from the store's time and from the row, so none is granted twice.
        let holder = held(second, &route, &format!("{key}-released")).await;
        assert!(holder.lease().holder.fence > fence);
        done(holder, crate::world::release()).await;
        let again = held(second, &route, &format!("{key}-released")).await;
        assert!(again.lease().holder.fence > fence);
        done(again, complete("paid")).await;
    }
    assert_eq!(first.stats().clock_steps, ClockSteps { forward: 0, back: 1 });
    assert_eq!(second.stats().clock_steps, ClockSteps::default());
}

/// The machine's clock is set back by an hour under SQLite. The running process stopped its clock
/// at the latest time and claimed an error of zero, so it lapsed the fresh lease of a process that
/// was started later, and the key executed twice.
#[tokio::test]
async fn attack_21_a_clock_set_back_under_sqlite_lapses_no_fresh_lease() {
    let machine = Machine::new();
    let first = machine.process().await;
    let _ = first.now();
    machine.set_clock(-3_600);
    let second = machine.process().await;
    no_lease_is_lapsed(&first, &second).await;
}

/// The same with the clock of a Redis server. The store hid the step: it never told a time that
/// was earlier than one it had told before, so the engine could not widen its error.
#[tokio::test(flavor = "multi_thread")]
async fn attack_21_a_clock_set_back_under_redis_lapses_no_fresh_lease() {
    let server = Redis::start(&[]);
    let clock = RedisClock::of(&server);
    let process = async || start(RedisStore::open(clock.url()).await.unwrap(), Options::default()).await;
    let first = process().await;
    let _ = first.now();
    clock.set_offset_s(-3_600);
    let second = process().await;
    until("the step is noticed", async || first.stats().clock_steps != ClockSteps::default()).await;
    no_lease_is_lapsed(&first, &second).await;
}
