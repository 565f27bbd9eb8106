//! Synchronous standbys: what only the primary has is not answered.

use std::time::Duration;

use oncegate_core::policy::Profile;
use oncegate_test_servers::{Postgres, Replication, until, wait_until};

use crate::base::{OnPostgres, Remote};
use crate::client::Call;
use crate::node::simple;
use crate::place::Place;
use crate::stage::policy;

const WAITING: &str = "from pg_stat_activity where wait_event = 'SyncRep'";

on_both_pools! {
    /// A handler's commit waits for the standby, and the wait is cancelled. PostgreSQL then reports a
    /// success with a warning, which sqlx does not pass on: the client was answered, the primary died,
    /// and both the key and the business row were gone (attack 26).
    async fn attack_26_a_commit_whose_wait_for_the_standby_is_cancelled_is_not_answered<B: Remote>() {
        interrupted::<B>("pg_cancel_backend").await;
    }

    /// The session that waits is terminated. The commit was looked for, and found on the primary alone.
    async fn attack_26_a_commit_whose_wait_for_the_standby_is_terminated_is_not_answered<B: Remote>() {
        interrupted::<B>("pg_terminate_backend").await;
    }
}

async fn interrupted<B: Remote>(interrupt: &str) {
    let mut primary = tokio::task::block_in_place(|| Postgres::start(&[]));
    let base = OnPostgres::at(Place::at(&primary.url())).await;
    let mut standby = tokio::task::block_in_place(|| primary.standby(Replication::Synchronous));
    let base = B::by(&base, &primary.url(), 8);
    let hasty = policy(Profile::Ietf, |policy| policy.patience = Duration::from_secs(3));
    let node = simple(&base, hasty).await;
    let call = |key| Call::post("/charges").key(key);
    call("before").send(node.addr).await.expect_first(200, "run 1");
    tokio::task::block_in_place(|| {
        let _nothing = standby.sql("alter system set primary_conninfo = ''");
        let _true = standby.sql("select pg_reload_conf()");
        wait_until("the standby is behind", || {
            primary.sql("select count(*) from pg_stat_replication") == "0"
        });
    });
    let addr = node.addr;
    let client = tokio::spawn(async move { call("k").send(addr).await });
    until("the commit waits", async || {
        tokio::task::block_in_place(|| primary.sql(&format!("select count(*) {WAITING}")) == "1")
    })
    .await;
    let _true = tokio::task::block_in_place(|| primary.sql(&format!("select {interrupt}(pid) {WAITING}")));
    client.await.unwrap().expect_problem(504, "outcome_unknown");
    assert_eq!(base.charges().await, ["before", "k"], "visible on the primary");
    let again = call("k").send(node.addr).await;
    assert!(!again.is_replay() && again.status >= 500, "{again:?}");
    tokio::task::block_in_place(|| {
        primary.kill_9();
        standby.promote();
    });
    let left = format!("select string_agg(key, ',') from {}.charge", base.place().schema);
    assert_eq!(tokio::task::block_in_place(|| standby.sql(&left)), "before");
}
