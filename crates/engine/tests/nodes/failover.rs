//! The primary dies and its standby takes over.

use std::time::Duration;

use oncegate_core::policy::Profile;
use oncegate_engine::{Arrived, Options, Settled};
use oncegate_store_sql::PostgresStore;
use oncegate_test_servers::{Postgres, Replication, wait_until};

use crate::actor::block_on;
use crate::load::Load;
use crate::world::{complete, completed, granted, node, replayed, request, route};

const SECONDS: Duration = Duration::from_secs(5);

/// Both servers in one URL, the primary first.
fn both(primary: &Postgres, standby: &Postgres) -> String {
    let port = primary.port().to_string();
    primary.url().replacen(&port, &format!("{port},127.0.0.1:{}", standby.port()), 1)
}

/// The standby hears no more of its primary, as in the moments before many a failover.
fn leave_behind(primary: &Postgres, standby: &Postgres) {
    let _nothing = standby.sql("alter system set primary_conninfo = ''");
    let _true = standby.sql("select pg_reload_conf()");
    wait_until("the standby is behind", || primary.sql("select count(*) from pg_stat_replication") == "0");
}

pub(crate) fn synchronous() {
    let mut primary = Postgres::start(&[]);
    let mut standby = primary.standby(Replication::Synchronous);
    let url = both(&primary, &standby);
    block_on(async {
        let store = PostgresStore::open(&url).await.unwrap();
        assert!(store.warnings().is_empty(), "{:?}", store.warnings());
    });
    let mut load = Load::start(&url, 2);
    load.until_answered(300);
    // From here on the primary commits what the standby will never have. Nobody may be told of it.
    leave_behind(&primary, &standby);
    load.until_unavailable(1);
    primary.kill_9();
    load.until_unavailable(20);
    standby.promote();
    let recovery = load.recovery();
    load.until_answered(100);
    let ledger = load.check(&standby.url());
    println!("failover to a synchronous standby: {ledger:?}; a fresh key on every node after {recovery:?}");
    assert!(recovery < SECONDS, "{recovery:?}");
}

/// A commit waits for its synchronous standby, and the wait is cancelled (by an operator, or by a
/// `statement_timeout`). The row is visible then, and the standby does not have it. The holder read its
/// own completion there, took its doubt for resolved and answered; the primary died, and a response that
/// the client had seen was gone (attack 26).
pub(crate) fn cancelled_wait() {
    interrupted_wait("pg_cancel_backend");
}

/// The same where the session that waits is terminated.
pub(crate) fn terminated_wait() {
    interrupted_wait("pg_terminate_backend");
}

fn interrupted_wait(interrupt: &str) {
    const WAITING: &str = "from pg_stat_activity where wait_event = 'SyncRep'";
    let mut primary = Postgres::start(&[]);
    let mut standby = primary.standby(Replication::Synchronous);
    let url = both(&primary, &standby);
    let route = route(Profile::Ietf, |_| ());
    let (runtime, (engine, held)) = block_on_still(async {
        let engine = node(&url, Options::default()).await;
        let mut held = granted(engine.arrive(&route, request(&route, "k")).await.unwrap());
        held.begin().unwrap();
        (engine, held)
    });
    leave_behind(&primary, &standby);
    let settling = runtime.spawn(held.settle(complete("paid")));
    let count = || primary.sql(&format!("select count(*) {WAITING}"));
    wait_until("the completion waits for the standby", || count() == "1");
    let _true = primary.sql(&format!("select {interrupt}(pid) {WAITING}"));
    wait_until("the completion is visible", || {
        primary.sql("select count(*) from oncegate.record where state = 2") == "1"
    });
    // The client asks again, by another node: it must not be shown what only the primary has.
    runtime.block_on(async {
        let other = node(&url, Options::default()).await;
        match other.arrive(&route, request(&route, "k")).await {
            Err(_) | Ok(Arrived::Busy { .. }) => {}
            Ok(shown) => panic!("only the primary has this: {shown:?}"),
        }
    });
    primary.kill_9();
    standby.promote();
    let settled = runtime.block_on(settling).unwrap();
    assert!(matches!(settled, Settled::Done(_)), "{settled:?}");
    runtime.block_on(async {
        let fresh = node(&url, Options::default()).await;
        let again = fresh.arrive(&route, request(&route, "k")).await.unwrap();
        assert_eq!(replayed(again), "paid", "the holder was told that this is recorded");
        drop(engine);
    });
}

/// Nothing waits for an asynchronous standby, and start-up says so. What it warns of comes true: an answer that was given is gone
/// after the failover, and its key would run again.
pub(crate) fn asynchronous() {
    let mut primary = Postgres::start(&[]);
    let mut standby = primary.standby(Replication::Asynchronous);
    let url = both(&primary, &standby);
    block_on(async {
        let store = PostgresStore::open(&url).await.unwrap();
        let warnings: Vec<_> = store.warnings().iter().map(ToString::to_string).collect();
        println!("failover to an asynchronous standby; start-up warned: {warnings:?}");
        let [warning] = &warnings[..] else { panic!("one warning, not {warnings:?}") };
        let name = format!("standby standby_{} is asynchronous", standby.port());
        assert!(warning.contains(&name) && warning.contains("failover"), "{warning}");
    });
    let route = route(Profile::Ietf, |_| ());
    let (runtime, engine) = block_on_still(async {
        let engine = node(&url, Options::default()).await;
        completed(granted(engine.arrive(&route, request(&route, "there")).await.unwrap()), "paid").await;
        engine
    });
    let position = primary.sql("select pg_current_wal_lsn()");
    wait_until("the standby has what was written", || {
        standby.sql(&format!("select pg_last_wal_replay_lsn() >= '{position}'")) == "t"
    });
    leave_behind(&primary, &standby);
    runtime.block_on(async {
        completed(granted(engine.arrive(&route, request(&route, "lost")).await.unwrap()), "paid").await;
    });
    primary.kill_9();
    standby.promote();
    runtime.block_on(async {
        let fresh = node(&url, Options::default()).await;
        assert_eq!(replayed(fresh.arrive(&route, request(&route, "there")).await.unwrap()), "paid");
        let again = fresh.arrive(&route, request(&route, "lost")).await.unwrap();
        drop(granted(again));
        fresh.quiet().await;
    });
}

/// The runtime lives on, and with it what was started in it.
fn block_on_still<T>(future: impl Future<Output = T>) -> (tokio::runtime::Runtime, T) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let output = runtime.block_on(future);
    (runtime, output)
}
