//! A pool that atomic handlers have to themselves: what goes from one to the next, and what does not.

use oncegate_conformance::samples::{FAR_AHEAD, reserved};
use oncegate_core::policy::Profile;
use oncegate_store::join::{Closed, Join as _, Opening, Transaction as _, Transactions as _};
use oncegate_store_sql::sqlx::{DedicatedTransaction, PgDedicated};
use oncegate_test_servers::{TcpProxy, until};
use sqlx::postgres::PgPoolOptions;
use tokio::task::JoinSet;

use crate::base::{Base as _, OnDedicated, OnPostgres};
use crate::client::Call;
use crate::close::nothing;
use crate::node::{LONG, Node, Work, simple};
use crate::row::begun;

fn call(key: &str) -> Call {
    Call::post("/charges").key(key)
}

pub(crate) async fn opened(pool: &PgDedicated, opening: Opening) -> DedicatedTransaction {
    begun(pool.begin_with(opening).await.unwrap())
}

/// Nobody has one, and none rests.
pub(crate) async fn until_all_are_the_pools(pool: &PgDedicated) {
    let pool = pool.pool();
    until("the pool has all of its connections", async || pool.num_idle() == pool.size() as usize).await;
}

/// One session serves one request after the other, each in a transaction of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_goes_from_one_handler_to_the_next() {
    let base = OnDedicated::with(1).await;
    let node = Node::new(&base, Profile::Ietf, |mut work: Work<OnDedicated>| async move {
        work.charge().await.unwrap();
        let text = "SELECT pg_backend_pid()::text, txid_current()::text, (transaction_timestamp())::text";
        let (session, transaction, time): (String, String, String) =
            sqlx::query_as(text).fetch_one(&mut *work.tx).await.unwrap();
        format!("{session} {transaction} {time}")
    })
    .await;
    let mut told = Vec::new();
    for key in ["1", "2", "3"] {
        let reply = call(key).send(node.addr).await;
        assert_eq!(reply.status, 200, "{reply:?}");
        let text = String::from_utf8_lossy(&reply.body).into_owned();
        let words: Vec<String> = text.splitn(3, ' ').map(str::to_owned).collect();
        told.push((words[0].clone(), words[1].clone(), words[2].clone()));
    }
    let [first, second, third] = &told[..] else { unreachable!("three were told") };
    assert!(first.0 == second.0 && second.0 == third.0, "one session: {told:?}");
    assert!(first.1 != second.1 && second.1 != third.1, "its own transaction: {told:?}");
    assert!(first.2 < second.2 && second.2 < third.2, "its own time: {told:?}");
    assert_eq!(base.charges().await, ["1", "2", "3"]);
}

/// Each is as the server has it by default, whatever the one before was set to.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn how_a_transaction_was_set_ends_with_it() {
    let base = OnDedicated::with(1).await;
    let (store, pool) = (base.store().await, base.pool());
    let opening = |key: &str| store.opening(reserved(key, 1, FAR_AHEAD).id).unwrap();
    let mut transaction = opened(&pool, opening("a")).await;
    let set = "ROLLBACK; BEGIN ISOLATION LEVEL SERIALIZABLE READ ONLY; SET LOCAL search_path = nowhere";
    sqlx::raw_sql(set).execute(&mut *transaction).await.unwrap();
    assert!(matches!(transaction.commit_with(nothing()).await.unwrap(), Closed::Committed));
    let mut transaction = opened(&pool, opening("b")).await;
    let text = "SELECT current_setting('transaction_isolation'), current_setting('transaction_read_only'), \
                current_setting('search_path') = 'nowhere'";
    let seen: (String, String, bool) = sqlx::query_as(text).fetch_one(&mut *transaction).await.unwrap();
    assert_eq!(seen, ("read committed".to_owned(), "off".to_owned(), false));
}

/// Nobody wants it any more: it is the pool's again, and in no transaction.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_rests_goes_back_to_the_pool() {
    let base = OnDedicated::with(1).await;
    let node = simple(&base, Profile::Ietf).await;
    call("k").send(node.addr).await.expect_first(200, "run 1");
    // It may be there by now. If not, it is in no transaction while it rests.
    let open = "SELECT count(*) FROM pg_stat_activity WHERE query ~ 'oncegate_(close|keep)_{}[(]' AND state LIKE 'idle in transaction%'";
    assert_eq!(base.of.place.number(open).await, 0);
    // Nor does one that found its key occupied keep it.
    let other = simple(&base, Profile::Ietf).await;
    call("k").send(other.addr).await.expect_replay(200, "run 1");
    let pool = base.pool();
    until_all_are_the_pools(&pool).await;
    let text = "SELECT transaction_timestamp() = statement_timestamp(), (SELECT count(*) FROM pg_locks \
                WHERE locktype = 'advisory' AND pid = pg_backend_pid())";
    let row = sqlx::raw_sql(text).fetch_one(pool.pool()).await.unwrap();
    assert_eq!((sqlx::Row::get::<bool, _>(&row, 0), sqlx::Row::get::<i64, _>(&row, 1)), (true, 0));
    // At the end it can be closed, and gives out nothing any more.
    pool.pool().close().await;
    call("another").send(node.addr).await.expect_problem(503, "store_unavailable");
}

/// A key that is occupied is an error in the session that asked for it; the next one of that connection does not mind.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_whose_key_was_occupied_is_as_good_as_any() {
    let base = OnDedicated::with(1).await;
    let (first, second) = (simple(&base, Profile::Ietf).await, simple(&base, Profile::Ietf).await);
    for round in 1..=20 {
        let (used, fresh) = (format!("used-{round}"), format!("fresh-{round}"));
        call(&used).send(first.addr).await.expect_first(200, &format!("run {round}"));
        call(&used).send(second.addr).await.expect_replay(200, &format!("run {round}"));
        call(&fresh).send(second.addr).await.expect_first(200, &format!("run {round}"));
    }
    assert_eq!(base.charges().await.len(), 40);
}

/// The connection is gone while it rests: the next request is not refused for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_is_lost_while_it_rests_is_replaced() {
    let base = OnPostgres::start().await;
    let proxy = TcpProxy::start(&base.place.url);
    // One that tests what it gives out: by then it may be the pool's again.
    let pool = PgPoolOptions::new().connect_lazy(&proxy.url_of(&base.place.url)).unwrap();
    let node = Node::with(&base, PgDedicated::new(pool), Profile::Ietf, LONG, Work::done).await;
    for round in 1..=20 {
        call(&format!("{round}")).send(node.addr).await.expect_first(200, &format!("run {round}"));
        proxy.cut();
        proxy.mend();
    }
    assert_eq!(base.charges().await.len(), 20);
}

/// Not even that by which a pool looks after a connection: begin, the handler's own, commit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_is_a_round_trip_less_than_without_keys() {
    let base = OnPostgres::start().await;
    let proxy = TcpProxy::start(&base.place.url);
    let pool = PgDedicated::new(base.through_one(&proxy.url_of(&base.place.url)).pool().0);
    let (store, rows) = (base.store().await, 20);
    let before = proxy.round_trips();
    for n in 0..rows {
        let mut transaction = opened(&pool, store.opening(reserved("a", n, FAR_AHEAD).id).unwrap()).await;
        sqlx::raw_sql("SELECT 1").execute(&mut *transaction).await.unwrap();
        assert!(matches!(transaction.commit_with(nothing()).await.unwrap(), Closed::Committed));
    }
    let with_keys = proxy.round_trips() - before;
    until_all_are_the_pools(&pool).await;
    let before = proxy.round_trips();
    for _ in 0..rows {
        let mut transaction = pool.pool().begin().await.unwrap();
        sqlx::raw_sql("SELECT 1").execute(&mut *transaction).await.unwrap();
        transaction.commit().await.unwrap();
    }
    // Three each, and those of connecting, and of what has rested meanwhile; and four each.
    let without = proxy.round_trips() - before;
    assert!(with_keys < without, "{with_keys} round trips with keys, {without} without");
}

/// More requests than connections, again and again: everybody has a turn.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_requests_than_connections_are_all_served() {
    let base = OnDedicated::with(2).await;
    let node = simple(&base, Profile::Ietf).await;
    let mut clients = JoinSet::new();
    for client in 0..16 {
        let addr = node.addr;
        clients.spawn(async move {
            for round in 0..20 {
                let reply = call(&format!("{client}-{round}")).send(addr).await;
                assert_eq!(reply.status, 200, "{reply:?}");
            }
        });
    }
    clients.join_all().await;
    assert_eq!(base.charges().await.len(), 320);
    let pool = base.pool();
    assert!(pool.pool().size() <= 2);
    until_all_are_the_pools(&pool).await;
}

/// Also where nothing runs any more that could take connections back.
#[test]
fn it_may_be_dropped_outside_of_a_runtime() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let pool = runtime.block_on(async {
        let base = OnDedicated::with(1).await;
        let (store, pool) = (base.store().await, base.pool());
        let transaction = opened(&pool, store.opening(reserved("a", 1, FAR_AHEAD).id).unwrap()).await;
        assert!(matches!(transaction.commit_with(nothing()).await.unwrap(), Closed::Committed));
        pool
    });
    drop(runtime);
    drop(pool);
}
