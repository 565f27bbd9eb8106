//! A row that was written in a caller's transaction is as the store would have written it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::task::Poll;

use oncegate_conformance::samples::{FAR_AHEAD, LONG_AGO, entry, every_shape, moved_to, reserved};
use oncegate_core::audit::Act;
use oncegate_core::identity::Version;
use oncegate_core::record::{Record, StateKind};
use oncegate_store::drive::read_one;
use oncegate_store::join::{Join, Joined, Opened, Taken, Transaction as _, Transactions as _};
use oncegate_store::{Due, Outcome, Store as _, Write};
use oncegate_test_servers::until;
use sqlx::{AssertSqlSafe, Row as _};

use crate::base::{Base, OnPostgres};

/// In a transaction of its own.
async fn join<B: Base>(base: &B, store: &B::Store, write: &Write) -> Joined {
    let mut transaction = base.pool().begin().await.unwrap();
    let joined = store.join(&mut transaction, write).await.unwrap();
    match joined {
        Joined::Written => transaction.commit().await.unwrap(),
        Joined::Refused => transaction.roll_back().await,
    }
    joined
}

fn insert(row: &Record) -> Write {
    Write::insert(Arc::new(row.clone()))
}

fn swap(from: &Record, to: &Record) -> Write {
    Write::swap(from.version, Arc::new(to.clone()))
}

on_both! {
    async fn every_field_comes_back<B: Base>() {
        let base = B::start().await;
        let store = base.store().await;
        let rows = every_shape();
        for row in &rows {
            assert_eq!(join(&base, &store, &insert(row)).await, Joined::Written);
            assert_eq!(read_one(&store, row.id).await.unwrap().as_ref(), Some(row), "inserted");
        }
        // A swap may change every field but the identity: each row takes the place of its neighbour's contents.
        for (n, row) in rows.iter().enumerate() {
            let contents = &rows[(n + 1) % rows.len()];
            let next = Record {
                id: row.id,
                address: row.address.clone(),
                version: Version::from_raw(row.version.as_raw() + 1),
                ..contents.clone()
            };
            assert_eq!(join(&base, &store, &swap(row, &next)).await, Joined::Written);
            assert_eq!(read_one(&store, row.id).await.unwrap().as_ref(), Some(&next), "swapped");
            // And as a transaction sees it that takes the key.
            let mut transaction = base.pool().begin().await.unwrap();
            let taken = store.take(&mut transaction, row.id).await.unwrap();
            assert_eq!(taken, Taken::Mine(Some(Box::new(next))));
            transaction.roll_back().await;
        }
    }

    async fn whoever_comes_second_is_refused_and_changes_nothing<B: Base>() {
        let base = B::start().await;
        let store = base.store().await;
        let (first, second) = (reserved("a", 1, LONG_AGO), reserved("a", 2, FAR_AHEAD));
        assert_eq!(join(&base, &store, &insert(&first)).await, Joined::Written);
        assert_eq!(join(&base, &store, &insert(&second)).await, Joined::Refused);
        let next = Record { version: Version::from_raw(first.version.as_raw() + 1), ..first.clone() };
        assert_eq!(join(&base, &store, &swap(&next, &second)).await, Joined::Refused, "a version of nobody's");
        assert_eq!(read_one(&store, first.id).await.unwrap().as_ref(), Some(&first));
        assert_eq!(join(&base, &store, &swap(&first, &next)).await, Joined::Written);
        assert_eq!(join(&base, &store, &swap(&first, &next)).await, Joined::Refused, "the old version");
    }

    /// It had no note while it was settled in its transaction, or one of a lease; what says when its answer expires is what it gets when it is in progress.
    async fn an_answer_that_the_store_gives_to_a_joined_row_is_found_when_it_expires<B: Base>() {
        let base = B::start().await;
        let store = base.store().await;
        let keys = ["entrusted", "again", "again in a transaction"];
        let rows = keys.map(|key| reserved(key, 1, LONG_AGO));
        let ended = rows.each_ref().map(|row| moved_to(row, StateKind::Completed, LONG_AGO));
        let again = |row: &Record| moved_to(row, StateKind::InProgress, LONG_AGO);
        assert_eq!(join(&base, &store, &insert(&rows[0])).await, Joined::Written);
        for row in &ended[1..] {
            assert_eq!(join(&base, &store, &insert(row)).await, Joined::Written);
        }
        assert_eq!(store.apply(&[swap(&ended[1], &again(&ended[1]))]).await.unwrap(), [Outcome::Applied]);
        assert_eq!(join(&base, &store, &swap(&ended[2], &again(&ended[2]))).await, Joined::Written);
        let running = [rows[0].clone(), again(&ended[1]), again(&ended[2])];
        assert_eq!(store.due(Due::Lapsed, FAR_AHEAD, 9).await.unwrap().records.len(), 3, "leases");
        for row in &running {
            let settled = moved_to(row, StateKind::Completed, FAR_AHEAD);
            assert_eq!(store.apply(&[swap(row, &settled)]).await.unwrap(), [Outcome::Applied]);
        }
        // Whoever looks for leases tidies up on the way.
        for _ in 0..2 {
            assert_eq!(store.due(Due::Lapsed, FAR_AHEAD, 9).await.unwrap().records, []);
        }
        let expired = store.due(Due::Expired, FAR_AHEAD, 9).await.unwrap().records;
        let found: BTreeSet<_> = expired.iter().map(|row| row.address.key.as_str()).collect();
        assert_eq!(found, keys.into());
    }

    /// What a node remembers of others' rows may be behind; a row is not written by it.
    async fn whoever_comes_second_to_another_node_is_refused<B: Base>() {
        let base = B::start().await;
        let (here, there) = (base.store().await, base.store().await);
        let rows = ["a", "b", "c"].map(|key| reserved(key, 1, FAR_AHEAD));
        // Here knows what there is: nothing.
        for row in &rows {
            assert_eq!(read_one(&here, row.id).await.unwrap(), None);
        }
        let settled = moved_to(&rows[1], StateKind::Completed, FAR_AHEAD);
        for write in [insert(&rows[0]), insert(&rows[1]), swap(&rows[1], &settled)] {
            assert_eq!(there.apply(&[write]).await.unwrap(), [Outcome::Applied]);
        }
        for row in &rows[..2] {
            assert_eq!(join(&base, &here, &insert(row)).await, Joined::Refused, "there has written it");
        }
        assert_eq!(join(&base, &here, &insert(&rows[2])).await, Joined::Written, "nobody has");
        assert_eq!(read_one(&here, rows[1].id).await.unwrap().as_ref(), Some(&settled));
        assert_eq!(read_one(&there, rows[2].id).await.unwrap().as_ref(), Some(&rows[2]));
    }

    async fn what_is_told_comes_with_the_row_or_not_at_all<B: Base>() {
        let base = B::start().await;
        let store = base.store().await;
        let row = reserved("a", 1, FAR_AHEAD);
        let told = entry(&row, LONG_AGO, Act::Doubted);
        let write = insert(&row).telling(Some(told.clone()));
        let mut transaction = base.pool().begin().await.unwrap();
        assert_eq!(store.join(&mut transaction, &write).await.unwrap(), Joined::Written);
        transaction.roll_back().await;
        assert_eq!(store.story(row.id, 10).await.unwrap(), []);
        assert_eq!(read_one(&store, row.id).await.unwrap(), None);
        assert_eq!(join(&base, &store, &write).await, Joined::Written);
        assert_eq!(store.story(row.id, 10).await.unwrap(), [told]);
    }
}

/// A repeatable read never sees what was committed after it began, and so is not asked what became of a commit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_committed_before_the_key_was_taken_is_seen_whatever_the_isolation() {
    let base = OnPostgres::start().await;
    let store = base.store().await;
    let row = reserved("a", 1, FAR_AHEAD);
    let mut old = base.pool().begin().await.unwrap();
    for text in ["SET TRANSACTION ISOLATION LEVEL REPEATABLE READ", "SELECT 1"] {
        sqlx::query(text).execute(&mut *old).await.unwrap();
    }
    assert_eq!(join(&base, &store, &insert(&row)).await, Joined::Written);
    assert_eq!(store.take(&mut old, row.id).await.unwrap(), Taken::Mine(None), "as it was");
    assert_eq!(store.take_after(&mut old, row.id).await.unwrap(), Taken::Mine(Some(Box::new(row))));
}

/// And nobody waits for a key that another has.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_another_transaction_has_is_not_waited_for() {
    let base = OnPostgres::start().await;
    let store = base.store().await;
    let id = reserved("a", 1, FAR_AHEAD).id;
    let (mut first, mut second) = (base.pool().begin().await.unwrap(), base.pool().begin().await.unwrap());
    assert_eq!(store.take(&mut first, id).await.unwrap(), Taken::Mine(None));
    assert_eq!(store.take(&mut second, id).await.unwrap(), Taken::Twin);
    assert_eq!(store.take_after(&mut second, id).await.unwrap(), Taken::Twin);
    first.roll_back().await;
    assert_eq!(store.take_after(&mut second, id).await.unwrap(), Taken::Mine(None));
}

pub(crate) fn begun<T>(opened: Opened<T>) -> T {
    let transaction = match opened {
        Opened::Begun(transaction) => Some(transaction),
        Opened::Occupied | Opened::Unable => None,
    };
    transaction.expect("it is free")
}

/// Nor by whoever begins with it; and of one that was refused nothing is left behind, neither a lock nor a transaction that has failed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_begins_with_a_key_that_is_occupied_is_told_so_and_leaves_nothing_behind() {
    let base = OnPostgres::start().await;
    let store = base.store().await;
    let rows = ["a", "b", "c"].map(|key| reserved(key, 1, FAR_AHEAD));
    let opening = |n: usize| store.opening(rows[n].id).unwrap();
    let pool = base.pool();
    let mut first = begun(pool.begin_with(opening(0)).await.unwrap());
    assert_eq!(join(&base, &store, &insert(&rows[1])).await, Joined::Written);
    for n in [0, 1].repeat(10) {
        let opened = pool.begin_with(opening(n)).await.unwrap();
        assert!(matches!(opened, Opened::Occupied), "another has it, or it has a row");
    }
    // The first holds it within its transaction, and the connections of the refused ones are as good as new.
    sqlx::query("SELECT 1").execute(&mut *first).await.unwrap();
    for _ in 0..20 {
        begun(pool.begin_with(opening(2)).await.unwrap()).commit().await.unwrap();
    }
    first.commit().await.unwrap();
    // It was let go with the commit, and with what is rolled back or dropped; that, when its connection comes back to the pool.
    begun(pool.begin_with(opening(0)).await.unwrap()).roll_back().await;
    drop(begun(pool.begin_with(opening(0)).await.unwrap()));
    let is_free = async || matches!(pool.begin_with(opening(0)).await.unwrap(), Opened::Begun(_));
    until("what was dropped is rolled back", is_free).await;
}

/// A session keeps its plan, and the table grows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_begins_with_a_key_looks_for_it_by_the_index_also_on_an_empty_table() {
    let base = OnPostgres::start().await;
    let store = base.store().await;
    let pool = base.through_one(&base.place.url).pool();
    // An empty table of which it is known that it is: to scan it is the best plan.
    sqlx::query(AssertSqlSafe(format!("VACUUM ANALYZE {}.record", base.place.schema)))
        .execute(&pool.0)
        .await
        .unwrap();
    let scans = "SELECT seq_scan, idx_scan FROM pg_stat_xact_user_tables WHERE relname = 'record' AND schemaname = $1";
    for n in 0..10 {
        let opening = store.opening(reserved("a", n, FAR_AHEAD).id).unwrap();
        let mut transaction = begun(pool.begin_with(opening).await.unwrap());
        let row = sqlx::query(scans).bind(&base.place.schema).fetch_one(&mut *transaction).await.unwrap();
        let (of_all, by_index): (i64, i64) = (row.get(0), row.get(1));
        assert!(of_all == 0 && by_index > 0, "{of_all} scans of the whole table, {by_index} by an index");
        transaction.roll_back().await;
    }
}

/// Tables alone were restored, or the schema has another name now: the key is taken the long way.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_the_function_is_missing_a_transaction_begins_without_it() {
    let base = OnPostgres::start().await;
    let store = base.store().await;
    let pool = base.through_one(&base.place.url).pool();
    let row = reserved("a", 1, FAR_AHEAD);
    let opening = store.opening(row.id).unwrap();
    begun(pool.begin_with(opening.clone()).await.unwrap()).roll_back().await;
    let gone = "DROP FUNCTION {}.oncegate_open_{}".replace("{}", &base.place.schema);
    sqlx::query(AssertSqlSafe(gone)).execute(&pool.0).await.unwrap();
    assert!(matches!(pool.begin_with(opening).await.unwrap(), Opened::Unable));
    assert_eq!(join(&base, &store, &insert(&row)).await, Joined::Written);
}

/// Polls it so often, and drops it then, wherever it has come to.
async fn given_up_after(mut polls: usize, work: impl Future<Output = ()>) {
    let mut work = std::pin::pin!(work);
    std::future::poll_fn(|cx| {
        if polls == 0 {
            return Poll::Ready(());
        }
        polls -= 1;
        match work.as_mut().poll(cx) {
            Poll::Pending if polls > 0 => Poll::Pending,
            _ => Poll::Ready(()),
        }
    })
    .await;
}

/// A client hangs up, or a limit passes, while a transaction begins: no connection comes back to the pool in the middle of one, or with
/// the key.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_beginning_that_nobody_waits_for_leaves_nothing_behind() {
    let base = OnPostgres::start().await;
    let store = base.store().await;
    let pool = base.through_one(&base.place.url).pool();
    let outside = "SELECT transaction_timestamp() = statement_timestamp()";
    for polls in 0..40 {
        let opening = store.opening(reserved("a", 1, FAR_AHEAD).id).unwrap();
        let opened = async {
            match polls % 2 {
                0 => drop(pool.begin().await),
                _ => drop(pool.begin_with(opening).await),
            }
        };
        given_up_after(polls / 2, opened).await;
        // As a simple query: a prepared one begins with its preparation.
        let row = sqlx::raw_sql(outside).fetch_one(&pool.0).await.unwrap();
        let is_outside: bool = row.get(0);
        assert!(is_outside, "given up after {} polls", polls / 2);
    }
    let locks = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND database = \
                 (SELECT oid FROM pg_database WHERE datname = current_database()) AND pid = pg_backend_pid()";
    let locks: i64 = sqlx::query_scalar(locks).fetch_one(&pool.0).await.unwrap();
    assert_eq!(locks, 0);
}
